#include "emulator/shared_receive_queue.h"

#include <cstring>

#include "emulator/receive_batch.h"
#include "emulator/shard.h"
#include "emulator/work_requests.h"

namespace roci::emulator {
namespace {

// From one private slot to another.
void copy_slot(const WorkQueue<RecvWqe>& from, std::uint32_t source, WorkQueue<RecvWqe>& to,
               std::uint32_t target) {
  const RecvWqe& wqe = from[source];
  to.renew(target) = wqe;
  std::memcpy(to.tail(target), from.tail(source), wqe.num_sge * sizeof(RingSge));
}

}  // namespace

bool take_shared_receive(Shard& shard, Qp& qp) {
  SharedReceiveQueue& srq = *qp.srq;
  std::uint32_t& target = qp.responder.rq_consumer;
  if (srq.returned_first != srq.returned_end) {
    copy_slot(srq.returned, srq.returned_first, qp.rq, target);
    srq.returned_first = srq.returned.ring.after(srq.returned_first);
  } else {
    if (srq.ring.load_producer() == srq.consumer) return false;
    copy_receive(shard, *srq.pd, srq.max_sge, srq.ring.element(srq.consumer), qp.rq, target);
    srq.consumer = srq.ring.after(srq.consumer);
    srq.ring.store_consumer(srq.consumer);
  }
  target = qp.rq.ring.after(target);
  return true;
}

void return_shared_receive(Qp& qp, const RequestEffect& effect) {
  if (qp.srq == nullptr || !effect.takes_receive) return;
  SharedReceiveQueue& srq = *qp.srq;
  copy_slot(qp.rq, qp.rq.ring.before(effect.rq_consumer), srq.returned, srq.returned_end);
  srq.returned_end = srq.returned.ring.after(srq.returned_end);
}

void check_limit(Shard& shard, SharedReceiveQueue& srq) {
  if (srq.depth() >= srq.limit) return;
  srq.limit = 0;
  shard.events.raise(srq.events, EventKind::kSrqLimitReached);
}

void move_to(SharedReceiveQueue& srq, Ring ring) {
  const std::uint32_t end = srq.ring.load_producer();
  std::uint32_t target = 0;
  for (; srq.consumer != end; srq.consumer = srq.ring.after(srq.consumer), target = ring.after(target))
    std::memcpy(ring.element(target), srq.ring.element(srq.consumer), ring.element_bytes());
  ring.store_producer(target);
  srq.ring = ring;
  srq.consumer = 0;
}

}  // namespace roci::emulator
