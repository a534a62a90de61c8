// Shared receive queues: receives that any QP attached may take, in the order in which messages begin.
//
// A receive that a QP takes is copied into the QP's own private slots and is the QP's from then on: the
// shared ring is free for another at once, and the QP's error flushes it and nothing else of the queue.
// Receives that cancelled packets had taken come back and are taken first. Not here: what a message does with
// a receive. Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "emulator/event_queue.h"
#include "emulator/memory_region.h"
#include "emulator/work_queue.h"

namespace roci::emulator {

struct Qp;
struct RequestEffect;
struct Shard;

struct SharedReceiveQueue {
  std::uint32_t handle = 0;
  Pd* pd = nullptr;  // its receives are judged by
  std::uint32_t max_wr = 0, max_sge = 0;
  std::uint32_t limit = 0;  // 0: not armed
  std::uint32_t users = 0;  // QPs
  std::uint64_t private_bytes = 0;
  Ring ring;
  std::uint32_t consumer = 0;
  // Those that came back: [returned_first, returned_end).
  WorkQueue<RecvWqe> returned;
  std::uint32_t returned_first = 0, returned_end = 0;
  EventSource events;

  [[nodiscard]] std::uint32_t depth() const {  // posted, not taken
    return ring.distance(consumer, ring.load_producer()) +
           returned.ring.distance(returned_first, returned_end);
  }
};

// The next receive, into the private slot at the QP's rq_consumer; false if there is none.
[[nodiscard]] bool take_shared_receive(Shard& shard, Qp& qp);
// The packet is cancelled: what it took is anybody's again.
void return_shared_receive(Qp& qp, const RequestEffect& effect);
// After a batch, and when it is armed: raises the event, once, if fewer than the limit are left.
void check_limit(Shard& shard, SharedReceiveQueue& srq);
// What is posted and not taken moves to another ring, which has room for it and elements of the same size.
void move_to(SharedReceiveQueue& srq, Ring ring);

}  // namespace roci::emulator
