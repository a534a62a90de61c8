// The way into ERR and out of the queues: error completions, flushing, and what an overrun CQ does to its
// QPs.
//
// Every work request completes exactly once: with success or the error that happened to it, or flushed [IBTA
// C10-42]. Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "emulator/shard.h"

namespace roci::emulator {

// What every completion of a work request of this QP begins with.
[[nodiscard]] RingCqe cqe_of(const Qp& qp, std::uint64_t wr_id, WcStatus status);
// Sets the state where the application's shim sees it, too.
void set_state(Shard& shard, Qp& qp, QpState state);
// To SQE: what is in the send queue, and what is put there, is flushed; receiving goes on.
void enter_send_error(Shard& shard, Qp& qp);
// To ERR: the queues are flushed from now on. Pending responses are dropped, unless `keep_responses` (the
// responder found the error, and what came before is still answered).
void enter_error(Shard& shard, Qp& qp, bool keep_responses = false);
// Completes the send WQE at the head of the queue; the CQE is left out if nobody asked for it.
void complete_send(Shard& shard, Qp& qp, std::uint32_t index, WcStatus status);
// The send WQE at the head fails: it completes with `status`, and the QP goes to ERR, or to SQE where the
// peer has no part in it (UC, UD).
void fail_send(Shard& shard, Qp& qp, WcStatus status);
// Flushes at most kMaxFlushPerVisit of each queue of a QP in ERR, of the send queue of one in SQE; true if it
// found something.
bool flush(Shard& shard, Qp& qp);
// After CQs overran: their QPs go to ERR [IBTA C9-218].
void handle_overruns(Shard& shard);

}  // namespace roci::emulator
