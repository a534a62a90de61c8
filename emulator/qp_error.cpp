#include "emulator/qp_error.h"

#include <cstring>

#include "emulator/memory_window.h"

namespace roci::emulator {
namespace {

// wr_id stands first in both kinds of WQE.
std::uint64_t wr_id_at(const Ring& ring, std::uint32_t index) {
  std::uint64_t wr_id = 0;
  std::memcpy(&wr_id, ring.element(index), sizeof wr_id);
  return wr_id;
}

void flush_one(Shard& shard, Qp& qp, CompletionQueue& cq, std::uint64_t wr_id) {
  shard.completer.complete(cq, cqe_of(qp, wr_id, WcStatus::kFlushError), true, shard.nic_of(qp).counters);
}

bool is_exhausted(WcStatus status) {
  return status == WcStatus::kRetryExceeded || status == WcStatus::kRnrRetryExceeded;
}
bool is_local(WcStatus status) {
  return status == WcStatus::kLocalLengthError || status == WcStatus::kLocalQpOperationError ||
         status == WcStatus::kLocalProtectionError || status == WcStatus::kMwBindError;
}

}  // namespace

RingCqe cqe_of(const Qp& qp, std::uint64_t wr_id, WcStatus status) {
  RingCqe cqe{};
  cqe.wr_id = wr_id;
  cqe.status = static_cast<std::uint32_t>(status);
  cqe.vendor_err = cqe.status;
  cqe.qp_num = qp.qpn.value();
  cqe.port_num = 1;
  return cqe;
}

void set_state(Shard& shard, Qp& qp, QpState state) {
  qp.state = state;
  qp.attributes.state = qp.attributes.current_state = state;
  if (state != QpState::kSqd) qp.attributes.sq_draining = false;
  __atomic_store_n(&qp.context->control->qp_state[qp.handle], static_cast<std::uint8_t>(state),
                   __ATOMIC_RELEASE);
  if (!qp.flushes()) {
    qp.error_node.unlink();
    return;
  }
  shard.in_error.push_back(qp.error_node);
  shard.error_poll_interval = kMinErrorPoll;
  shard.error_poll_at = Time::min();
}

void enter_send_error(Shard& shard, Qp& qp) {
  set_state(shard, qp, QpState::kSqe);
  flush(shard, qp);
}

void enter_error(Shard& shard, Qp& qp, bool keep_responses) {
  const bool is_new = qp.state != QpState::kErr;
  set_state(shard, qp, QpState::kErr);
  qp.failed = true;
  qp.answers_in_error = keep_responses;
  if (!keep_responses) {
    qp.first_owed = qp.responder.resources_taken;
    qp.reply = {};
  }
  unbind_windows_of(qp);
  qp.ack_deadline = kNever;
  qp.requester.not_before = kNoWait;
  shard.update_timer(qp);
  if (qp.responder.has_receive) {  // taken by a message that will not end
    qp.responder.has_receive = false;
    flush_one(shard, qp, *qp.recv_cq, qp.rq[qp.rq.ring.before(qp.responder.rq_consumer)].wr_id);
  }
  flush(shard, qp);
  // What it had taken is flushed, and it takes no more [IBTA o11-5.2.5].
  if (is_new && qp.srq != nullptr) shard.events.raise(qp.events, EventKind::kQpLastWqeReached);
}

void complete_send(Shard& shard, Qp& qp, std::uint32_t index, WcStatus status) {
  const SendWqe& wqe = qp.sq[index];
  const bool is_error = status != WcStatus::kSuccess;
  if (!is_error && !qp.signal_all && (wqe.flags & kSendSignaled) == 0) return;  // [IBTA 10.7.3.1]
  RingCqe cqe = cqe_of(qp, wqe.wr_id, status);
  cqe.opcode = static_cast<std::uint32_t>(wqe.completes_as);
  cqe.byte_len = wqe.length_bytes;
  shard.completer.complete(*qp.send_cq, cqe, is_error, shard.nic_of(qp).counters);
}

void fail_send(Shard& shard, Qp& qp, WcStatus status) {
  Requester& r = qp.requester;
  Counters& counters = shard.nic_of(qp).counters;
  ++(is_local(status)       ? counters.local_errors
     : is_exhausted(status) ? counters.retry_exceeded
                            : counters.remote_errors);
  complete_send(shard, qp, r.sq_consumer, status);
  r.sq_consumer = qp.sq.ring.after(r.sq_consumer);
  qp.sq.ring.store_consumer(r.sq_consumer);
  if (qp.service == proto::Service::kRc) {
    enter_error(shard, qp);
  } else {
    enter_send_error(shard, qp);
  }
}

bool flush(Shard& shard, Qp& qp) {
  bool found = false;
  Requester& r = qp.requester;
  std::uint32_t budget = kMaxFlushPerVisit;
  for (const std::uint32_t end = qp.sq.ring.load_producer(); r.sq_consumer != end && budget > 0; --budget) {
    const bool is_copied = r.sq_consumer != r.sq_fetched;  // then it is no longer the ring's to tell
    flush_one(shard, qp, *qp.send_cq,
              is_copied ? qp.sq[r.sq_consumer].wr_id : wr_id_at(qp.sq.ring, r.sq_consumer));
    r.sq_consumer = qp.sq.ring.after(r.sq_consumer);
    if (!is_copied) r.sq_fetched = r.sq_consumer;
    found = true;
  }
  if (found) qp.sq.ring.store_consumer(r.sq_consumer);
  if (qp.state == QpState::kSqe || qp.srq != nullptr) return found;

  std::uint32_t& taken = qp.responder.rq_consumer;
  const std::uint32_t first_taken = taken;
  budget = kMaxFlushPerVisit;
  for (const std::uint32_t end = qp.rq.ring.load_producer(); taken != end && budget > 0; --budget) {
    flush_one(shard, qp, *qp.recv_cq, wr_id_at(qp.rq.ring, taken));
    taken = qp.rq.ring.after(taken);
  }
  if (taken != first_taken) {
    qp.rq.ring.store_consumer(taken);
    found = true;
  }
  return found;
}

void handle_overruns(Shard& shard) {
  while (shard.completer.take_overrun()) {  // flushing may overrun another CQ
    for (const auto& context : shard.contexts) {
      context->qps.for_each([&](Qp& qp) {
        if (!qp.send_cq->is_overrun && !qp.recv_cq->is_overrun) return;
        if (qp.state == QpState::kErr || qp.state == QpState::kReset) return;
        enter_error(shard, qp);
        shard.events.raise(qp.events, EventKind::kQpFatal);
      });
    }
  }
}

}  // namespace roci::emulator
