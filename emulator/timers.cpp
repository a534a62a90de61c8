#include "emulator/timers.h"

namespace roci::emulator {

void Timers::set(Qp& qp, Time deadline) {
  if (qp.timer_deadline == deadline) return;
  const bool was_in = qp.timer_deadline != kNever;
  qp.timer_deadline = deadline;
  if (deadline != kNever) {
    if (!was_in) {
      heap_.push_back(&qp);
      put(heap_.size() - 1, qp);
    }
    sift(qp.timer_index);
    return;
  }
  const std::size_t hole = qp.timer_index;
  Qp* const last = heap_.back();
  heap_.pop_back();
  if (last == &qp) return;
  put(hole, *last);
  sift(hole);
}

// Restores the order around the one element that may stand wrong.
void Timers::sift(std::size_t at) {
  Qp& qp = *heap_[at];
  for (; at > 0 && qp.timer_deadline < heap_[(at - 1) / 2]->timer_deadline; at = (at - 1) / 2) {
    put(at, *heap_[(at - 1) / 2]);
  }
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->timer_deadline < heap_[child]->timer_deadline) ++child;
    if (heap_[child]->timer_deadline >= qp.timer_deadline) break;
    put(at, *heap_[child]);
    at = child;
  }
  put(at, qp);
}

}  // namespace roci::emulator
