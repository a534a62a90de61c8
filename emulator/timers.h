// When QPs want to be woken: a binary min-heap of QPs by deadline, each in it at most once.
//
// A QP's deadline moves with every acknowledgement, so it carries its place in the heap. Exact: next() is
// when something is to be done. Grows when a QP is made, never later. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <vector>

#include "emulator/qp.h"
#include "emulator/time.h"

namespace roci::emulator {

class Timers {
 public:
  // Room for that many QPs, so that set() never allocates.
  void reserve(std::size_t qps) {
    if (qps > heap_.capacity()) heap_.reserve(2 * qps);
  }
  [[nodiscard]] Time next() const { return heap_.empty() ? kNever : heap_.front()->timer_deadline; }
  [[nodiscard]] Qp* first_due(Time now) const { return next() <= now ? heap_.front() : nullptr; }
  // kNever takes it out.
  void set(Qp& qp, Time deadline);
  // Moves every QP's deadline to where `deadline_of(qp)` says, which is not earlier than before.
  template <class DeadlineOf>
  void postpone_all(DeadlineOf deadline_of) {
    for (Qp* qp : heap_)
      qp->timer_deadline = deadline_of(*qp);
    for (std::size_t at = heap_.size(); at-- > 0;)
      sift(at);
  }

 private:
  void put(std::size_t at, Qp& qp) {
    heap_[at] = &qp;
    qp.timer_index = static_cast<std::uint32_t>(at);
  }
  void sift(std::size_t at);

  std::vector<Qp*> heap_;
};

}  // namespace roci::emulator
