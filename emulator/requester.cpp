#include "emulator/requester.h"

#include <algorithm>
#include <cstring>

#include "emulator/qp_error.h"
#include "emulator/work_requests.h"
#include "proto/ack_timeout.h"
#include "proto/atomic_ack_eth.h"
#include "proto/atomic_eth.h"
#include "proto/feth.h"
#include "proto/ieth.h"
#include "proto/imm_dt.h"
#include "proto/reth.h"

namespace roci::emulator {
namespace {

using proto::Opcode;
using proto::Operation;
using proto::Psn;

// Half of the PSN space: what may be outstanding at most, so that old and new can be told apart.
constexpr std::uint32_t kMaxPsnsInFlight = 1U << 23;

// Opcodes of SEND and WRITE: by position, and what stands at the end.
Opcode message_opcode(const SendWqe& wqe, bool is_first, bool is_last) {
  const bool is_write = wqe.operation == Operation::kWrite;
  if (!is_last) {
    if (is_first) return is_write ? Opcode::kRcWriteFirst : Opcode::kRcSendFirst;
    return is_write ? Opcode::kRcWriteMiddle : Opcode::kRcSendMiddle;
  }
  if (wqe.tail == MessageTail::kInvalidate)
    return is_first ? Opcode::kRcSendOnlyInvalidate : Opcode::kRcSendLastInvalidate;
  if (wqe.tail == MessageTail::kImmediate) {
    if (is_first) return is_write ? Opcode::kRcWriteOnlyImmediate : Opcode::kRcSendOnlyImmediate;
    return is_write ? Opcode::kRcWriteLastImmediate : Opcode::kRcSendLastImmediate;
  }
  if (is_first) return is_write ? Opcode::kRcWriteOnly : Opcode::kRcSendOnly;
  return is_write ? Opcode::kRcWriteLast : Opcode::kRcSendLast;
}

// The packet that takes a receive of the peer: a SEND's first, the last of a WRITE with immediate data.
bool takes_receive(const SendWqe& wqe, bool is_first, bool is_last) {
  if (wqe.operation == Operation::kSend) return is_first;
  return wqe.tail == MessageTail::kImmediate && is_last;
}

bool is_extending(const SendWqe& wqe) { return wqe.operation == Operation::kReadRequest; }

// May the packet at the cursor, which was never sent before, go now?
bool may_start(const Shard& shard, const Qp& qp, const SendWqe& wqe) {
  const Requester& r = qp.requester;
  if (r.is_probing) return false;
  if (r.send_psn == wqe.first_psn) {
    if (qp.state == QpState::kSqd) return false;
    // Fence: what a response answers, and stands before, first [IBTA 10.8.3.3].
    if ((wqe.flags & kSendFence) != 0 && r.rd_atomic_outstanding > 0) return false;
    if (wqe.is_rd_atomic() && r.rd_atomic_outstanding >= qp.attributes.max_rd_atomic) return false;
  }
  // A READ is one packet with many answers, which max_rd_atomic bounds; the window counts packets.
  if (is_extending(wqe)) return r.in_flight() + wqe.psn_count <= kMaxPsnsInFlight;
  return r.packets_in_flight() < shard.config.window_packets && r.in_flight() < kMaxPsnsInFlight;
}

// The cursor returns to the oldest unacknowledged packet.
void rewind(Requester& r) {
  r.send_index = r.sq_consumer;
  r.send_psn = r.oldest_unacked_psn;
  r.packets_since_ack_request = 0;
}

// Ends the packet at the cursor; the caller moves the cursor. `before` is the requester as it was before it.
void add_request(Qp& qp, TransmitBatch& batch, std::uint32_t behind_bth, std::size_t first_op,
                 const Requester& before) {
  PlannedPacket& packet =
      batch.add(qp, PlannedPacket::Kind::kRequest, qp.requester.send_psn, behind_bth, first_op);
  packet.before = before;
  packet.is_retransmission = qp.is_retransmitting();
}

}  // namespace

bool plan_message_packet(Shard& shard, Qp& qp, const SendWqe& wqe, TransmitBatch& batch) {
  Requester& r = qp.requester;
  const std::uint32_t mtu = qp.path_mtu_bytes;
  const std::uint32_t offset = steps(wqe.first_psn, r.send_psn) * mtu;
  const std::uint32_t chunk = std::min(mtu, wqe.length_bytes - offset);
  const bool is_first = offset == 0;
  const bool is_last = offset + chunk == wqe.length_bytes;
  const Opcode opcode = proto::with_service(message_opcode(wqe, is_first, is_last), qp.service);
  const proto::OpcodeInfo& info = proto::info(opcode);
  const std::uint32_t behind_bth = info.extension_bytes + chunk;
  const Requester before = r;

  const std::size_t first_op = batch.ops.size();
  std::byte* const payload = batch.next_data() + qp.headers.size() + info.extension_bytes;
  if (!gather_payload(shard, qp, r.send_index, offset, chunk, payload, batch.ops)) return false;
  const bool is_reliable = qp.service == proto::Service::kRc;
  if (is_reliable && !qp.is_retransmitting() && takes_receive(wqe, is_first, is_last) &&
      r.is_beyond_credit(wqe.ssn)) {
    r.is_probing = true;
    r.probe_psn = r.send_psn;
  }
  const bool is_probe = r.is_probing && r.send_psn == r.probe_psn;
  // On each message's last packet, and so often within one that the window cannot close without.
  ++r.packets_since_ack_request;
  const bool is_due = r.packets_since_ack_request >= std::max(1U, shard.config.window_packets / 2);
  const bool ack_request = is_reliable && (is_last || is_probe || is_due);
  if (ack_request) r.packets_since_ack_request = 0;
  const bool solicited = is_last && (wqe.flags & kSendSolicited) != 0 &&
                         (wqe.operation == Operation::kSend || wqe.tail == MessageTail::kImmediate);
  std::byte* at = batch.start_packet(qp, opcode, r.send_psn, behind_bth, ack_request, solicited);
  if (info.has(proto::Extension::kReth)) {
    at = emit_extension(at, proto::Reth{wqe.remote_address, wqe.rkey, wqe.length_bytes});
  }
  if (info.has(proto::Extension::kImmDt)) at = emit_extension(at, proto::ImmDt{wqe.immediate});
  if (info.has(proto::Extension::kIeth)) at = emit_extension(at, proto::Ieth{wqe.rkey});
  const bool is_new = !qp.is_retransmitting();
  add_request(qp, batch, behind_bth, first_op, before);
  r.send_psn = r.send_psn.plus(1);
  if (is_new) r.next_psn = r.send_psn;
  return true;
}

namespace {

// READ: from the cursor to the end of the message, so that a retry asks only for what is missing.
void plan_read_request(Qp& qp, const SendWqe& wqe, TransmitBatch& batch) {
  Requester& r = qp.requester;
  const std::uint32_t offset = steps(wqe.first_psn, r.send_psn) * qp.path_mtu_bytes;
  std::byte* const at =
      batch.start_packet(qp, Opcode::kRcReadRequest, r.send_psn, proto::Reth::kSize, true, false);
  emit_extension(at, proto::Reth{wqe.remote_address + offset, wqe.rkey, wqe.length_bytes - offset});
  add_request(qp, batch, proto::Reth::kSize, batch.ops.size(), r);
  r.send_psn = wqe.end_psn();
}

void plan_atomic_request(Qp& qp, const SendWqe& wqe, TransmitBatch& batch) {
  Requester& r = qp.requester;
  const Opcode opcode =
      wqe.operation == Operation::kCompareSwap ? Opcode::kRcCompareSwap : Opcode::kRcFetchAdd;
  std::byte* const at = batch.start_packet(qp, opcode, r.send_psn, proto::AtomicEth::kSize, true, false);
  emit_extension(at, proto::AtomicEth{wqe.remote_address, wqe.rkey, wqe.swap_or_add,
                                      wqe.operation == Operation::kCompareSwap ? wqe.compare : 0});
  add_request(qp, batch, proto::AtomicEth::kSize, batch.ops.size(), r);
  r.send_psn = r.send_psn.plus(1);
}

// One packet that is answered by a READ response of no bytes [IBTA, ATOMIC WRITE; IBTA oA19-2, oA19-28].
void plan_single_request(Qp& qp, const SendWqe& wqe, TransmitBatch& batch) {
  Requester& r = qp.requester;
  const bool is_flush = wqe.operation == Operation::kFlush;
  const Opcode opcode = is_flush ? Opcode::kRcFlush : Opcode::kRcAtomicWrite;
  const std::uint32_t payload = is_flush ? 0 : sizeof(std::uint64_t);
  const std::uint32_t behind_bth = proto::info(opcode).extension_bytes + payload;
  std::byte* at = batch.start_packet(qp, opcode, r.send_psn, behind_bth, true, false);
  if (is_flush) {
    at = emit_extension(at, proto::Feth{wqe.placement_types, wqe.selectivity_level});
  }
  at = emit_extension(at, proto::Reth{wqe.remote_address, wqe.rkey, wqe.length_bytes});
  std::memcpy(at, qp.sq.tail(r.send_index), payload);
  add_request(qp, batch, behind_bth, batch.ops.size(), r);
  r.send_psn = r.send_psn.plus(1);
}

void start_ack_timer(Qp& qp, Time now) {
  const std::optional<Duration> wait = ack_wait(qp);
  qp.ack_deadline = wait.has_value() ? now + *wait : kNever;
}

}  // namespace

// ---- sending ---------------------------------------------------------------------------------------

bool plan_request(Shard& shard, Qp& qp, TransmitBatch& batch, Time now) {
  Requester& r = qp.requester;
  if (!qp.can_send() || now < r.not_before) return false;
  r.not_before = kNoWait;  // it is over, whether or not its timer had a turn
  if (r.send_index == r.sq_fetched && (qp.state == QpState::kSqd || !fetch_send(shard, qp))) return false;
  SendWqe& wqe = qp.sq[r.send_index];
  if (wqe.is_local()) return false;  // its turn comes when all before it is complete
  const bool is_new = !qp.is_retransmitting();
  if (wqe.local_error == WcStatus::kSuccess) {
    if (is_new && !may_start(shard, qp, wqe)) return false;
    if (!wqe.is_rd_atomic()) {
      if (!plan_message_packet(shard, qp, wqe, batch)) wqe.local_error = WcStatus::kLocalProtectionError;
    } else if (wqe.operation == Operation::kReadRequest) {
      plan_read_request(qp, wqe, batch);
    } else if (wqe.operation == Operation::kAtomicWrite || wqe.operation == Operation::kFlush) {
      plan_single_request(qp, wqe, batch);
    } else {
      plan_atomic_request(qp, wqe, batch);
    }
  }
  if (wqe.local_error != WcStatus::kSuccess) {
    const bool is_held = qp.state == QpState::kSqd && is_new && r.send_psn == wqe.first_psn;
    if (r.send_index == r.sq_consumer && !is_held) fail_send(shard, qp, wqe.local_error);
    return false;
  }
  if (wqe.is_rd_atomic() && is_new) {
    r.next_psn = r.send_psn;
    ++r.rd_atomic_outstanding;
    r.response_psns += wqe.psn_count - 1;
  }
  if (r.send_psn == wqe.end_psn()) r.send_index = qp.sq.ring.after(r.send_index);
  return true;
}

void commit_request(Shard& shard, Qp& qp, const PlannedPacket& packet, Time now) {
  if (packet.is_retransmission) {
    ++qp.statistics.retransmitted;
    ++shard.nic_of(qp).counters.retransmitted_packets;
  }
  if (qp.ack_deadline == kNever && qp.state != QpState::kErr) {
    start_ack_timer(qp, now);
    shard.update_timer(qp);
  }
}

void commit_unacknowledged(Shard& shard, Qp& qp, const PlannedPacket& packet) {
  Requester& r = qp.requester;
  const std::uint32_t index = packet.before.send_index;
  if (qp.flushes() || packet.psn.plus(1) != qp.sq[index].end_psn()) return;
  complete_send(shard, qp, index, WcStatus::kSuccess);
  r.sq_consumer = qp.sq.ring.after(index);
  qp.sq.ring.store_consumer(r.sq_consumer);
  if (r.send_index != r.sq_fetched) shard.activate(qp);  // one in error waits for its turn
  check_drained(shard, qp);
}

void fail_gather(Shard& shard, Qp& qp) {
  qp.sq[qp.requester.send_index].local_error = WcStatus::kLocalProtectionError;
  shard.activate(qp);
}

// ---- what comes back -------------------------------------------------------------------------------

namespace {

void fail(Qp& qp, ResponseEffect& effect, WcStatus status) {
  effect.error = status;
  qp.failed = true;
}

// Sends again from the oldest unacknowledged packet, once for each gap: the packets that were on their way
// then report the same gap again.
void go_back(Qp& qp, ResponseEffect& effect) {
  Requester& r = qp.requester;
  if (r.went_back && r.went_back_psn == r.oldest_unacked_psn) return;
  if (r.retries_left == 0) return fail(qp, effect, WcStatus::kRetryExceeded);
  --r.retries_left;
  r.went_back = true;
  r.went_back_psn = r.oldest_unacked_psn;
  rewind(r);
  effect.restarts = true;
}

// Everything before oldest_unacked_psn is done: retries start anew, and the cursor need not go there again.
void note_progress(Qp& qp, ResponseEffect& effect) {
  Requester& r = qp.requester;
  effect.is_progress = true;
  r.retries_left = qp.attributes.retry_cnt;
  r.rnr_retries_left = qp.attributes.rnr_retry;
  r.went_back = false;
  r.not_before = kNoWait;
  if (r.is_probing) r.is_probing = steps(r.oldest_unacked_psn, r.probe_psn) < r.in_flight();
  if (steps(r.send_psn, r.next_psn) > r.in_flight()) rewind(r);
}

// Takes `psn`, which is in flight, and everything before it as acknowledged [IBTA 9.7.5.1.2], as far as no
// request stands there whose response is missing. False if one does: an implied NAK.
bool acknowledge(Qp& qp, Psn psn, ResponseEffect& effect) {
  Requester& r = qp.requester;
  const Psn before = r.oldest_unacked_psn;
  const Psn end = psn.plus(1);
  bool is_complete = true;
  while (r.oldest_unacked_psn != end) {
    const SendWqe& wqe = qp.sq[r.sq_consumer];
    if (wqe.is_rd_atomic()) {
      is_complete = false;
      break;
    }
    if (steps(r.oldest_unacked_psn, wqe.end_psn()) > steps(r.oldest_unacked_psn, end)) {
      r.oldest_unacked_psn = end;
      break;
    }
    r.oldest_unacked_psn = wqe.end_psn();
    r.sq_consumer = qp.sq.ring.after(r.sq_consumer);
    ++effect.done_count;
  }
  if (r.oldest_unacked_psn != before) note_progress(qp, effect);
  return is_complete;
}

// The same for everything before `psn`.
bool acknowledge_before(Qp& qp, Psn psn, ResponseEffect& effect) {
  return psn == qp.requester.oldest_unacked_psn || acknowledge(qp, psn.plus(-1), effect);
}

WcStatus status_of(proto::NakCode code) {
  switch (code) {
    case proto::NakCode::kInvalidRequest:
    case proto::NakCode::kInvalidRdRequest:
      return WcStatus::kRemoteInvalidRequest;
    case proto::NakCode::kRemoteAccessError:
      return WcStatus::kRemoteAccessError;
    case proto::NakCode::kRemoteOperationalError:
    case proto::NakCode::kPsnSequenceError:
      break;
  }
  return WcStatus::kRemoteOperationError;
}

DropReason on_rnr_nak(Qp& qp, proto::RnrTimer timer, ResponseEffect& effect, Time now) {
  Requester& r = qp.requester;
  if (r.not_before != kNoWait) return DropReason::kStaleAck;  // this attempt is counted already
  if (r.rnr_retries_left == 0) {
    fail(qp, effect, WcStatus::kRnrRetryExceeded);
    return DropReason::kAccepted;
  }
  if (qp.attributes.rnr_retry != 7) --r.rnr_retries_left;  // 7 = for ever [IBTA, RNR]
  // The peer is there, and only lacks a receive: however long that lasts, losses on the way do not add up.
  r.retries_left = qp.attributes.retry_cnt;
  r.not_before = now + timer.wait();
  r.went_back = false;
  rewind(r);
  effect.restarts = true;
  return DropReason::kAccepted;
}

DropReason decide_acknowledge(Shard& shard, Qp& qp, Psn psn, proto::Syndrome syndrome, ResponseEffect& effect,
                              Time now) {
  Requester& r = qp.requester;
  Counters& counters = shard.nic_of(qp).counters;
  if (syndrome.kind() == proto::Syndrome::Kind::kAck) {
    if (!acknowledge(qp, psn, effect)) go_back(qp, effect);
    return DropReason::kAccepted;
  }
  const bool is_rnr = syndrome.kind() == proto::Syndrome::Kind::kRnrNak;
  ++(is_rnr ? counters.rnr_naks_received : counters.naks_received);
  if (!acknowledge_before(qp, psn, effect)) {
    go_back(qp, effect);
    return DropReason::kAccepted;
  }
  if (is_rnr) return on_rnr_nak(qp, syndrome.rnr_timer(), effect, now);
  if (syndrome.kind() == proto::Syndrome::Kind::kNak &&
      syndrome.nak_code() == proto::NakCode::kPsnSequenceError) {
    // Behind an RNR NAK the packets that followed draw one for the same PSN; the wait stands.
    if (r.not_before != kNoWait) return DropReason::kStaleAck;
    go_back(qp, effect);
    return DropReason::kAccepted;
  }
  // A reserved code or kind: the peer gave up, whatever it means; waiting would only hang [rxe does the
  // same].
  fail(qp, effect,
       syndrome.kind() == proto::Syndrome::Kind::kNak ? status_of(syndrome.nak_code())
                                                      : WcStatus::kRemoteOperationError);
  return DropReason::kAccepted;
}

// The head of the queue is done, its data is on its way to memory.
void finish_head(Qp& qp, ResponseEffect& effect) {
  Requester& r = qp.requester;
  r.sq_consumer = qp.sq.ring.after(r.sq_consumer);
  --r.rd_atomic_outstanding;
  ++effect.done_count;
  effect.is_head_done_by_data = true;
}

// Not what the request at the head is answered by. One for an earlier request was dropped before for its PSN.
DropReason bad_response(Qp& qp, ResponseEffect& effect) {
  fail(qp, effect, WcStatus::kBadResponseError);
  return DropReason::kAccepted;
}

// The AETH of a response says ACK, if it has one [IBTA 9.7.5.1.3].
bool is_positive(const proto::RoceView& view) {
  return !view.opcode_info().has(proto::Extension::kAeth) ||
         view.aeth().syndrome.kind() == proto::Syndrome::Kind::kAck;
}

DropReason decide_read_response(Shard& shard, Qp& qp, const proto::RoceView& view, const SendWqe& wqe,
                                std::uint32_t index, ResponseEffect& effect, ReceiveBatch& batch) {
  Requester& r = qp.requester;
  const std::uint32_t offset = steps(wqe.first_psn, view.bth.psn) * qp.path_mtu_bytes;
  const std::uint32_t left = wqe.length_bytes - offset;
  const bool is_last = left <= qp.path_mtu_bytes;
  // A retry may be answered from FIRST (or ONLY), or go on with MIDDLE or LAST: position alone does not
  // matter.
  if (view.opcode_info().ends_message() != is_last) {
    fail(qp, effect, WcStatus::kBadResponseError);
    return DropReason::kAccepted;
  }
  if (view.payload_bytes != std::min(left, qp.path_mtu_bytes)) {
    fail(qp, effect, WcStatus::kLocalLengthError);
    return DropReason::kAccepted;
  }
  auto* const payload = const_cast<std::byte*>(view.payload().data());  // kWrite does not modify it
  if (!add_sge_ops(shard, qp, qp.sq.sges(index), SgeUse::kScatter, offset, view.payload_bytes, payload,
                   is_last, batch.ops)) {
    fail(qp, effect, WcStatus::kLocalProtectionError);
    return DropReason::kAccepted;
  }
  r.oldest_unacked_psn = view.bth.psn.plus(1);
  if (is_last) {
    finish_head(qp, effect);
  } else {
    --r.response_psns;
  }
  note_progress(qp, effect);
  return DropReason::kAccepted;
}

DropReason decide_atomic_response(Shard& shard, Qp& qp, const proto::RoceView& view, std::uint32_t index,
                                  ResponseEffect& effect, ReceiveBatch& batch) {
  // The wire has it big-endian, the application gets it in host order. The bytes are written to memory after
  // this function has returned, so they live in the WQE, which has no other use for its swap value from here
  // on.
  SendWqe& wqe = qp.sq[index];
  wqe.swap_or_add = view.atomic_ack_eth().original_data;
  if (!add_sge_ops(shard, qp, qp.sq.sges(index), SgeUse::kScatter, 0, sizeof wqe.swap_or_add,
                   reinterpret_cast<std::byte*>(&wqe.swap_or_add), true, batch.ops)) {
    fail(qp, effect, WcStatus::kLocalProtectionError);
    return DropReason::kAccepted;
  }
  qp.requester.oldest_unacked_psn = view.bth.psn.plus(1);
  finish_head(qp, effect);
  note_progress(qp, effect);
  return DropReason::kAccepted;
}

// Receives that were posted stay so, hence an ACK that grants less than one before it (its code is rounded
// down, or it comes late) takes nothing back. Nothing waits for credits alone: what lacks them goes as a
// probe, and what waits behind a probe waits for its acknowledgement.
void take_credits(Requester& r, const proto::Aeth& aeth) {
  if (aeth.syndrome.kind() != proto::Syndrome::Kind::kAck) return;
  const std::optional<std::uint32_t> credits = aeth.syndrome.credits().messages();
  if (!credits.has_value()) {
    r.is_credit_limited = false;
    return;
  }
  const proto::Msn limit = aeth.msn.plus(*credits);
  if (r.is_credit_limited && r.credit_limit.distance_to(limit) <= 0) return;
  r.credit_limit = limit;
  r.is_credit_limited = true;
}

}  // namespace

DropReason decide_response(Shard& shard, Qp& qp, const proto::RoceView& view, ReceivedPacket& packet,
                           ReceiveBatch& batch, Time now) {
  Requester& r = qp.requester;
  ResponseEffect& effect = packet.response;
  effect.first_done = r.sq_consumer;
  if (!qp.can_send()) return DropReason::kQpState;
  const Psn psn = view.bth.psn;
  const Operation operation = view.opcode_info().operation;
  const bool is_awaited = steps(r.oldest_unacked_psn, psn) < r.in_flight();
  const bool is_old = !is_awaited && r.oldest_unacked_psn.distance_to(psn) < 0;
  if ((is_awaited || is_old) && view.opcode_info().has(proto::Extension::kAeth)) take_credits(r, view.aeth());
  if (!is_awaited) {
    if (operation != Operation::kAcknowledge)
      return is_old ? DropReason::kStaleAck : DropReason::kUnexpectedResponse;
    return is_old ? DropReason::kStaleAck : DropReason::kGhostAck;
  }
  if (operation == Operation::kAcknowledge) {
    return decide_acknowledge(shard, qp, psn, view.aeth().syndrome, effect, now);
  }
  // Data: it acknowledges every request before it, and must be the next data that is awaited.
  if (!acknowledge_before(qp, psn, effect)) {
    go_back(qp, effect);
    return DropReason::kOutOfSequence;
  }
  const std::uint32_t index = r.sq_consumer;
  const SendWqe& wqe = qp.sq[index];
  if (!is_positive(view)) return bad_response(qp, effect);
  switch (wqe.operation) {
    case Operation::kReadRequest:
      if (operation != Operation::kReadResponse) return bad_response(qp, effect);
      return decide_read_response(shard, qp, view, wqe, index, effect, batch);
    case Operation::kAtomicWrite:
    case Operation::kFlush:
      if (view.bth.opcode != Opcode::kRcReadResponseOnly || view.payload_bytes != 0)
        return bad_response(qp, effect);
      r.oldest_unacked_psn = psn.plus(1);
      finish_head(qp, effect);
      note_progress(qp, effect);
      return DropReason::kAccepted;
    case Operation::kCompareSwap:
    case Operation::kFetchAdd:
      if (operation != Operation::kAtomicAcknowledge) return bad_response(qp, effect);
      return decide_atomic_response(shard, qp, view, index, effect, batch);
    case Operation::kSend:  // is acknowledged, not answered
    case Operation::kWrite:
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
    case Operation::kResync:
    case Operation::kCnp:
    case Operation::kReserved:
      break;
  }
  return bad_response(qp, effect);
}

void apply_response(Shard& shard, Qp& qp, const ReceivedPacket& packet, Time now) {
  const ResponseEffect& effect = packet.response;
  std::uint32_t index = effect.first_done;
  for (std::uint32_t i = 0; i < effect.done_count; ++i, index = qp.sq.ring.after(index)) {
    complete_send(shard, qp, index, WcStatus::kSuccess);
  }
  if (effect.done_count > 0) qp.sq.ring.store_consumer(index);
  if (effect.error != WcStatus::kSuccess) {
    fail_send(shard, qp, effect.error);
    return;
  }
  if (effect.restarts) {
    qp.ack_deadline = kNever;
  } else if (effect.is_progress) {
    if (qp.requester.oldest_unacked_psn == qp.requester.next_psn) {
      qp.ack_deadline = kNever;
    } else {
      start_ack_timer(qp, now);
    }
  }
  if (effect.restarts || effect.is_progress) {
    shard.activate(qp);
    check_drained(shard, qp);
  }
}

void fail_scatter(Shard& shard, Qp& qp, const ReceivedPacket& packet) {
  ++shard.nic_of(qp).counters.memory_faults;
  // The requests that the packet acknowledged by the way are done; the one it brought data for is not.
  const std::uint32_t done = packet.response.done_count - (packet.response.is_head_done_by_data ? 1U : 0U);
  for (std::uint32_t i = 0; i < done; ++i) {
    complete_send(shard, qp, qp.requester.sq_consumer, WcStatus::kSuccess);
    qp.requester.sq_consumer = qp.sq.ring.after(qp.requester.sq_consumer);
  }
  fail_send(shard, qp, WcStatus::kLocalProtectionError);
}

// ---- time ------------------------------------------------------------------------------------------

std::optional<Duration> ack_wait(const Qp& qp) {
  const std::optional<Duration> timeout = proto::AckTimeout{qp.attributes.timeout}.duration();
  if (!timeout.has_value()) return std::nullopt;
  return *timeout + *timeout / 4;
}

void on_requester_timer(Shard& shard, Qp& qp, Time now) {
  Requester& r = qp.requester;
  if (r.not_before != kNoWait && r.not_before <= now) {
    r.not_before = kNoWait;
    shard.activate(qp);
  }
  if (qp.ack_deadline <= now) {
    qp.ack_deadline = kNever;
    if (r.retries_left == 0) {
      fail_send(shard, qp, WcStatus::kRetryExceeded);
      return;
    }
    --r.retries_left;
    ++shard.nic_of(qp).counters.ack_timeouts;
    r.went_back = false;  // a NAK for what is sent now counts again
    rewind(r);
    shard.activate(qp);
  }
  shard.update_timer(qp);
}

void check_drained(Shard& shard, Qp& qp) {
  const Requester& r = qp.requester;
  if (!qp.attributes.sq_draining || r.oldest_unacked_psn != r.next_psn) return;
  // A message that was begun is finished first.
  if (r.send_index != r.sq_fetched && r.send_psn != qp.sq[r.send_index].first_psn) return;
  qp.attributes.sq_draining = false;
  if (qp.attributes.en_sqd_async_notify) shard.events.raise(qp.events, EventKind::kSqDrained);
}

}  // namespace roci::emulator
