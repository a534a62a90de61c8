#include "emulator/completion_queue.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "emulator/context.h"
#include "emulator/counters.h"

namespace roci::emulator {

bool move_to(CompletionQueue& cq, std::span<std::byte> bytes, RingShape shape) {
  const std::uint32_t first = cq.ring.load_consumer();
  const std::uint32_t count = cq.ring.distance(first, cq.producer);
  if (count >= shape.slots) return false;
  Ring moved{bytes, shape};
  for (std::uint32_t i = 0; i < count; ++i)
    std::memcpy(moved.element(i), cq.ring.element(first + i), sizeof(RingCqe));
  moved.store_producer(count);
  cq.ring = moved;
  cq.producer = count;
  cq.consumer = 0;
  return true;
}

void Completer::complete(CompletionQueue& cq, const RingCqe& cqe, bool wakes, Counters& counters) {
  if (cq.is_overrun) {
    ++counters.cq_overruns;
    return;
  }
  const std::uint32_t next = cq.ring.after(cq.producer);
  if (next == cq.consumer) {
    cq.consumer = cq.ring.load_consumer();  // a nonsensical one makes an overrun at worst
    if (next == cq.consumer) {
      ++counters.cq_overruns;
      cq.is_overrun = true;
      has_overrun_ = true;
      events_.raise(cq.events, EventKind::kCqErr);
      return;
    }
  }
  std::memcpy(cq.ring.element(cq.producer), &cqe, sizeof cqe);
  cq.producer = next;
  ++cq.completions;
  if (wakes) cq.woke_at = cq.completions;
  dirty_.push_back(cq.dirty_node);
}

void Completer::publish() {
  dirty_.for_each([this](CompletionQueue& cq) {
    publish(cq);
    cq.dirty_node.unlink();
  });
}

namespace {

// Whether a CQ that is armed so has something to announce.
bool announces(const CompletionQueue& cq, CqArm armed) {
  if (armed != CqArm::kNext && armed != CqArm::kSolicited) return false;
  const std::uint64_t last = armed == CqArm::kNext ? cq.completions : cq.woke_at;
  if (last > cq.published_at) return true;  // it came just now
  const std::uint32_t unread = cq.ring.distance(cq.ring.load_consumer(), cq.producer);
  return last > cq.announced_at && cq.completions - last < unread;
}

}  // namespace

void Completer::publish(CompletionQueue& cq) {
  cq.ring.store_producer(cq.producer);
  // The application arms, then looks at the ring once more; so the producer must be visible before the arm is
  // read. Who does not look rings, if it arms a word that has news; so that comes before, too.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::uint32_t* const word = &cq.context->control->cq_arm[cq.handle];
  std::uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  if ((seen & kCqHasNews) == 0) seen = __atomic_fetch_or(word, kCqHasNews, __ATOMIC_SEQ_CST);
  if (announces(cq, static_cast<CqArm>(seen & kCqArmMask))) {
    __atomic_exchange_n(word, static_cast<std::uint32_t>(CqArm::kNone), __ATOMIC_RELAXED);
    cq.announced_at = cq.completions;
    events_.raise(cq.events, EventKind::kCompletion);
  }
  cq.published_at = cq.completions;
}

}  // namespace roci::emulator
