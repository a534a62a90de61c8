#include "emulator/responder.h"

#include <algorithm>
#include <utility>

#include "emulator/qp_error.h"
#include "emulator/work_requests.h"
#include "proto/atomic_ack_eth.h"
#include "proto/psn.h"

namespace roci::emulator {
namespace {

using proto::NakCode;
using proto::Opcode;
using proto::Operation;
using proto::Psn;
using proto::Syndrome;

// What the checks say of an expected packet: go on, or why not.
struct Check {
  enum class Kind : std::uint8_t { kPass, kNak, kRnrNak };
  Kind kind = Kind::kPass;
  NakCode code = NakCode::kInvalidRequest;
  WcStatus status = WcStatus::kRemoteInvalidRequest;  // of the receive WQE it is tied to, if any
};
constexpr Check kPass{};
constexpr Check kRnr{Check::Kind::kRnrNak, NakCode::kInvalidRequest, WcStatus::kSuccess};

constexpr Check nak(NakCode code, WcStatus status) { return {Check::Kind::kNak, code, status}; }
constexpr Check invalid_request() { return nak(NakCode::kInvalidRequest, WcStatus::kRemoteInvalidRequest); }
constexpr Check access_error() { return nak(NakCode::kRemoteAccessError, WcStatus::kLocalAccessError); }

// One packet of a request under judgement.
struct Request {
  Shard& shard;
  Qp& qp;
  const proto::RoceView& view;
  const proto::OpcodeInfo& info;
  ReceivedPacket& packet;
  ReceiveBatch& batch;

  [[nodiscard]] Responder& r() const { return qp.responder; }
  [[nodiscard]] RequestEffect& effect() const { return packet.request; }
  [[nodiscard]] std::uint32_t payload_bytes() const { return view.payload_bytes; }
  [[nodiscard]] std::byte* payload() const {
    return const_cast<std::byte*>(view.payload().data());  // kWrite does not modify it
  }
  [[nodiscard]] bool has_immediate() const { return info.has(proto::Extension::kImmDt); }
  // SENDs take a receive when they start, WRITEs with immediate data when they end.
  [[nodiscard]] bool needs_receive() const {
    return info.operation == Operation::kSend ? info.starts_message() : has_immediate();
  }
  [[nodiscard]] std::uint32_t receive_index() const { return qp.rq.ring.before(r().rq_consumer); }

  // An ACK: how many receives are posted and not taken, rounded down to a code, at the moment that the MSN
  // tells [IBTA 9.7.7.2]. A shared queue promises none to anybody, hence sets no limit.
  [[nodiscard]] Syndrome positive() const {
    if (qp.srq != nullptr) return Syndrome::ack();
    const std::uint32_t posted = qp.rq.ring.distance(r().rq_consumer, qp.rq.ring.load_producer());
    return Syndrome::ack(proto::CreditCode::from_messages(posted));
  }
  void reply(Syndrome syndrome, Psn psn) const { effect().reply = {true, syndrome, psn, r().msn}; }
};

// ---- checks, in the standard's order ---------------------------------------------------------------

// FIRST, MIDDLE, LAST and ONLY must make whole messages of one kind [IBTA, responder: opcode sequence].
Check check_sequence(const Request& q) {
  if (!q.info.is_known) return invalid_request();  // reserved opcode of this service
  const bool continues = !q.info.starts_message();
  if (continues != q.r().in_message) return invalid_request();
  if (continues && q.info.operation != q.r().message) return invalid_request();
  return kPass;
}

// The right that a peer needs for it, of the QP and of the memory; for FLUSH, one of the two at least.
constexpr std::uint32_t right_of(Operation operation) {
  switch (operation) {
    case Operation::kWrite:
    case Operation::kAtomicWrite:  // has no right of its own [IBTA A19.4.5.3]
      return kAccessRemoteWrite;
    case Operation::kReadRequest:
      return kAccessRemoteRead;
    case Operation::kCompareSwap:
    case Operation::kFetchAdd:
      return kAccessRemoteAtomic;
    case Operation::kFlush:
      return kAccessFlushGlobal | kAccessFlushPersistent;
    case Operation::kSend:  // needs none
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
    case Operation::kResync:
    case Operation::kCnp:
    case Operation::kReserved:
      break;
  }
  return 0;
}

// What the QP grants its peer at all; a QP that lacks it answers as for an operation it does not have.
Check check_operation(const Request& q) {
  const bool is_granted =
      q.info.operation == Operation::kSend || (q.qp.attributes.access & right_of(q.info.operation)) != 0;
  return is_granted ? kPass : invalid_request();
}

// Payload against opcode and path MTU [IBTA C9-92], and against what the message may still carry.
Check check_length(const Request& q) {
  const std::uint32_t mtu = q.qp.path_mtu_bytes;
  const std::uint32_t bytes = q.payload_bytes();
  switch (q.info.payload) {
    case proto::PayloadRule::kNone:
      if (bytes != 0) return invalid_request();
      break;
    case proto::PayloadRule::kUpToPmtu:
      if (bytes > mtu) return invalid_request();
      break;
    case proto::PayloadRule::kOneToPmtu:
      if (bytes == 0 || bytes > mtu) return invalid_request();
      break;
    case proto::PayloadRule::kExactlyPmtu:
      if (bytes != mtu) return invalid_request();
      break;
    case proto::PayloadRule::kEightBytes:
      if (bytes != 8) return invalid_request();
      break;
  }
  if (q.info.operation == Operation::kSend) {
    const std::uint32_t before = q.info.starts_message() ? 0 : q.r().message_bytes;
    return std::uint64_t{before} + bytes > q.shard.config.limits.max_message_bytes ? invalid_request()
                                                                                   : kPass;
  }
  if (q.info.operation != Operation::kWrite) return kPass;
  const bool starts = q.info.starts_message();
  const std::uint32_t total = starts ? q.view.reth().dma_length_bytes : q.r().write_length_bytes;
  const std::uint32_t left = starts ? total : total - q.r().message_bytes;
  const bool fits = q.info.ends_message() ? bytes == left : bytes < left;
  return fits ? kPass : invalid_request();
}

// Takes the receive that the packet needs, whatever it is worth. A UC message that was dropped may have left
// one.
Check claim_receive(const Request& q) {
  if (!q.needs_receive() || q.r().has_receive) return kPass;
  if (!take_receive(q.shard, q.qp)) return kRnr;
  q.r().has_receive = true;
  q.effect().takes_receive = true;
  return kPass;
}

// A receive that is good and has room, or a free responder resource.
Check check_resources(const Request& q) {
  if (q.needs_receive()) {
    const RecvWqe& wqe = q.qp.rq[q.receive_index()];
    if (wqe.local_error != WcStatus::kSuccess) return nak(NakCode::kRemoteOperationalError, wqe.local_error);
  }
  if (q.info.operation == Operation::kSend) {
    const std::uint32_t before = q.info.starts_message() ? 0 : q.r().message_bytes;
    const bool fits = std::uint64_t{before} + q.payload_bytes() <= q.qp.rq[q.receive_index()].capacity_bytes;
    return fits ? kPass : nak(NakCode::kInvalidRequest, WcStatus::kLocalLengthError);
  }
  if (q.info.operation == Operation::kWrite) return kPass;
  if (q.qp.resources.empty()) return invalid_request();
  const ResponderResource& oldest = q.qp.resource(q.r().resources_taken);  // it would give way
  const bool is_owed = oldest.is_pending && !oldest.is_replay;
  return is_owed ? invalid_request() : kPass;  // the peer has more outstanding than it was granted
}

// What the RETH of a message's first packet names.
Check check_whole_range(const Request& q, Location& where) {
  const proto::Reth reth = q.view.reth();
  if (reth.dma_length_bytes > q.shard.config.limits.max_message_bytes)
    return invalid_request();                    // [IBTA C9-94]
  if (reth.dma_length_bytes == 0) return kPass;  // [IBTA C9-88]
  return q.shard.keys.resolve(q.qp.pd, q.qp, reth.rkey, right_of(q.info.operation), reth.virtual_address,
                              reth.dma_length_bytes, where)
             ? kPass
             : access_error();
}

// Exactly 8 bytes [IBTA oA19-28], aligned as the peer names them and where they lie: no other store is
// atomic.
Check check_atomic_write(const Request& q, Location& where) {
  const proto::Reth reth = q.view.reth();
  if (reth.dma_length_bytes != sizeof(std::uint64_t) || reth.virtual_address % sizeof(std::uint64_t) != 0)
    return invalid_request();
  const Check check = check_whole_range(q, where);
  if (check.kind != Check::Kind::kPass) return check;
  return where.address % sizeof(std::uint64_t) == 0 ? kPass : invalid_request();
}

// Always validates the key, also for no bytes; a placement that QP or region does not have is an access error
// [IBTA oA19-13].
Check check_flush(const Request& q) {
  constexpr std::uint8_t kGlobal = 1, kPersistent = 2, kWholeRegion = 1;
  const proto::Feth feth = q.view.feth();
  const proto::Reth reth = q.view.reth();
  const bool is_known = feth.placement_types != 0 && (feth.placement_types & ~(kGlobal | kPersistent)) == 0 &&
                        feth.selectivity_level <= kWholeRegion;
  if (!is_known || reth.dma_length_bytes > q.shard.config.limits.max_message_bytes) return invalid_request();
  const std::uint32_t needed = ((feth.placement_types & kGlobal) != 0 ? kAccessFlushGlobal : 0U) |
                               ((feth.placement_types & kPersistent) != 0 ? kAccessFlushPersistent : 0U);
  if ((q.qp.attributes.access & needed) != needed) return access_error();
  const MemoryGrant* const grant = q.shard.keys.find(reth.rkey.value());
  if (grant == nullptr) return access_error();
  const bool is_whole = feth.selectivity_level == kWholeRegion;  // then the range says nothing
  Location where;
  return q.shard.keys.resolve(q.qp.pd, q.qp, reth.rkey, needed, is_whole ? grant->iova : reth.virtual_address,
                              is_whole ? 0 : reth.dma_length_bytes, where)
             ? kPass
             : access_error();
}

// R_Key, PD, rights and bounds. Of a message's first packet the whole range is checked, of the others what
// they carry: the region may have gone in between. `where` is for this packet's bytes.
Check check_access(const Request& q, Location& where) {
  const Pd* const pd = q.qp.pd;
  switch (q.info.operation) {
    case Operation::kWrite:
      if (!q.info.starts_message()) {
        return q.shard.keys.resolve(pd, q.qp, q.r().write_rkey, kAccessRemoteWrite,
                                    q.r().write_address + q.r().message_bytes, q.payload_bytes(), where)
                   ? kPass
                   : access_error();
      }
      return check_whole_range(q, where);
    case Operation::kReadRequest:
      return check_whole_range(q, where);
    case Operation::kCompareSwap:
    case Operation::kFetchAdd: {
      const proto::AtomicEth atomic = q.view.atomic_eth();
      if (atomic.virtual_address % sizeof(std::uint64_t) != 0) return invalid_request();  // [IBTA 9.4.5]
      if (!q.shard.keys.resolve(pd, q.qp, atomic.rkey, kAccessRemoteAtomic, atomic.virtual_address,
                                sizeof(std::uint64_t), where)) {
        return access_error();
      }
      // Aligned as the peer names it, but not where it lies: no such access is atomic.
      return where.address % sizeof(std::uint64_t) == 0 ? kPass : invalid_request();
    }
    case Operation::kSend:
      if (!q.info.has(proto::Extension::kIeth)) return kPass;
      // A key that may not be invalidated is one that may not be used.
      return find_invalidable(q.shard.keys, q.qp, q.view.ieth().rkey) != nullptr ? kPass : access_error();
    case Operation::kAtomicWrite:
      return check_atomic_write(q, where);
    case Operation::kFlush:
      return check_flush(q);
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
    case Operation::kResync:
    case Operation::kCnp:
    case Operation::kReserved:
      break;
  }
  return kPass;
}

// ---- acceptance ------------------------------------------------------------------------------------

ResponderResource& take_resource(const Request& q, Psn psn) {
  const std::uint64_t number = q.r().resources_taken++;
  ResponderResource& resource = q.qp.resource(number);
  resource = {};
  resource.number = number;
  resource.first_psn = psn;
  resource.operation = q.info.operation;
  resource.syndrome = q.positive();
  resource.msn = q.r().msn;
  q.effect().queues_resource = true;
  return resource;
}

void accept_read(const Request& q, Psn psn) {
  const proto::Reth reth = q.view.reth();
  ResponderResource& resource = take_resource(q, psn);
  resource.psn_count = proto::packet_count(reth.dma_length_bytes, q.qp.path_mtu());
  resource.run_psn = resource.send_psn = psn;
  resource.end_psn = psn.plus(resource.psn_count);
  resource.run_end_bytes = reth.dma_length_bytes;
  resource.address = reth.virtual_address;
  resource.rkey = reth.rkey;
  resource.is_pending = true;
  q.r().expected_psn = resource.end_psn;
}

void accept_atomic(const Request& q, Psn psn, const Location& where) {
  const proto::AtomicEth atomic = q.view.atomic_eth();
  ResponderResource& resource = take_resource(q, psn);
  resource.is_pending = true;
  q.effect().atomic_resource = resource.number;
  MemoryOp op;
  const bool is_swap = q.info.operation == Operation::kCompareSwap;
  op.kind = is_swap ? MemoryOp::Kind::kCompareSwap : MemoryOp::Kind::kFetchAdd;
  op.space = where.space;
  op.address = where.address;
  op.order_key = q.qp.qpn.value();
  op.length_bytes = sizeof(std::uint64_t);
  op.compare = atomic.compare_data;
  op.operand = atomic.swap_or_add_data;
  q.batch.ops.push_back(op);
  q.r().expected_psn = psn.plus(1);
}

void write_payload(const Request& q, const Location& where) {
  MemoryOp op;
  op.kind = MemoryOp::Kind::kWrite;
  op.space = where.space;
  op.address = where.address;
  op.order_key = q.qp.qpn.value();
  op.length_bytes = q.payload_bytes();
  op.local = q.payload();
  op.ends_message = q.info.ends_message();
  q.batch.ops.push_back(op);
}

// ATOMIC WRITE and FLUSH: answered as a READ of no bytes, which goes out when the writes before it are done,
// and these are then visible to all [IBTA oA19-1]. Uses a resource [IBTA oA19-9].
void accept_single(const Request& q, Psn psn, const Location& where) {
  ResponderResource& resource = take_resource(q, psn);
  resource.run_psn = resource.send_psn = psn;
  resource.end_psn = psn.plus(1);
  resource.is_pending = true;
  q.r().expected_psn = psn.plus(1);
  if (q.info.operation == Operation::kAtomicWrite) write_payload(q, where);
}

// Places the payload of a SEND or WRITE. False: a key of the receive WQE has gone since it was taken.
bool place_payload(const Request& q, const Location& where) {
  Responder& r = q.r();
  const std::uint32_t bytes = q.payload_bytes();
  if (q.info.operation == Operation::kSend) {
    q.effect().fills_receive = true;
    return add_sge_ops(q.shard, q.qp, q.qp.rq.sges(q.receive_index()), SgeUse::kReceive, r.message_bytes,
                       bytes, q.payload(), q.info.ends_message(), q.batch.ops);
  }
  if (bytes != 0) write_payload(q, where);
  return true;
}

void start_message(const Request& q) {
  Responder& r = q.r();
  r.in_message = true;
  r.message = q.info.operation;
  r.message_bytes = 0;
  if (q.info.operation == Operation::kWrite) {
    const proto::Reth reth = q.view.reth();
    r.write_length_bytes = reth.dma_length_bytes;
    r.write_address = reth.virtual_address;
    r.write_rkey = reth.rkey;
  }
}

void end_message(const Request& q) {
  Responder& r = q.r();
  RequestEffect& effect = q.effect();
  r.in_message = false;
  r.msn = r.msn.next();  // [IBTA C9-148]
  if (q.info.has(proto::Extension::kIeth)) {
    effect.tail = MessageTail::kInvalidate;
    effect.immediate = q.view.ieth().rkey.value();
    // At once, as the packets behind it must meet it so. No undoing: should this one be cancelled, the QP
    // goes to ERR, and its windows end anyway.
    unbind_window(*find_invalidable(q.shard.keys, q.qp, q.view.ieth().rkey));
  }
  // A plain WRITE leaves alone what a dropped UC message has taken.
  if (q.info.operation != Operation::kSend && !q.has_immediate()) return;
  r.has_receive = false;
  effect.completes_receive = true;
  effect.status = WcStatus::kSuccess;
  effect.opcode =
      q.info.operation == Operation::kSend ? WcOpcode::kReceive : WcOpcode::kReceiveRdmaWithImmediate;
  effect.byte_len = r.message_bytes;
  if (q.has_immediate()) {
    effect.tail = MessageTail::kImmediate;
    effect.immediate = q.view.imm_dt().value;
  }
  effect.wakes = q.view.bth.solicited_event;
}

// What a response answers.
void accept_answered(const Request& q, Psn psn, const Location& where) {
  if (q.info.operation == Operation::kReadRequest) {
    accept_read(q, psn);
  } else if (proto::is_atomic(q.info.operation)) {
    accept_atomic(q, psn, where);
  } else {
    accept_single(q, psn, where);
  }
}

Check accept(const Request& q, const Location& where) {
  Responder& r = q.r();
  const Psn psn = q.view.bth.psn;
  if (q.info.operation != Operation::kSend && q.info.operation != Operation::kWrite) {
    r.msn = r.msn.next();  // [IBTA C9-148]
    accept_answered(q, psn, where);
    return kPass;
  }
  if (q.info.starts_message()) start_message(q);
  if (!place_payload(q, where)) return nak(NakCode::kRemoteOperationalError, WcStatus::kLocalProtectionError);
  r.message_bytes += q.payload_bytes();
  if (q.info.ends_message()) end_message(q);
  r.expected_psn = psn.plus(1);
  if (q.view.bth.ack_request && q.qp.service == proto::Service::kRc) q.reply(q.positive(), psn);
  return kPass;
}

EventKind event_of(NakCode code) {
  switch (code) {
    case NakCode::kRemoteAccessError:
      return EventKind::kQpAccessErr;
    case NakCode::kRemoteOperationalError:
      return EventKind::kQpFatal;
    case NakCode::kInvalidRequest:
    case NakCode::kInvalidRdRequest:
    case NakCode::kPsnSequenceError:
      break;
  }
  return EventKind::kQpReqErr;
}

// An error that ends the connection [IBTA 9.9.3]. Tied to a receive WQE it is told by that WQE's completion,
// otherwise by an event [IBTA C9-222.1.1].
void note_fatal(RequestEffect& effect, Responder& r, const Check& check) {
  effect.is_fatal = true;
  if (r.has_receive) {
    r.has_receive = false;
    effect.completes_receive = true;
    effect.status = check.status;
  } else {
    effect.event = event_of(check.code);
  }
}

// What a packet that stands in its place in the sequence comes to; `check` says whether it does.
Check judge(const Request& q, Check check) {
  Location where;
  if (check.kind == Check::Kind::kPass) check = check_operation(q);
  if (check.kind == Check::Kind::kPass) check = check_length(q);
  if (check.kind == Check::Kind::kPass) check = claim_receive(q);
  if (check.kind == Check::Kind::kPass) check = check_resources(q);
  if (check.kind == Check::Kind::kPass) check = check_access(q, where);
  if (check.kind == Check::Kind::kPass) check = accept(q, where);
  q.effect().rq_consumer = q.r().rq_consumer;
  if (check.kind == Check::Kind::kPass) q.effect().establishes = !std::exchange(q.r().is_established, true);
  return check;
}

DropReason decide_expected(const Request& q) {
  Responder& r = q.r();
  r.nak_sent = false;
  const Check check = judge(q, check_sequence(q));
  switch (check.kind) {
    case Check::Kind::kPass:
      return DropReason::kAccepted;
    case Check::Kind::kRnrNak:
      r.nak_sent = true;  // what follows it is out of sequence, and needs no NAK of its own
      q.reply(Syndrome::rnr_nak(proto::RnrTimer{q.qp.attributes.min_rnr_timer}), q.view.bth.psn);
      return DropReason::kRnr;
    case Check::Kind::kNak:
      break;
  }
  q.reply(Syndrome::nak(check.code), q.view.bth.psn);
  note_fatal(q.effect(), r, check);
  q.qp.failed = true;
  return DropReason::kNaked;
}

// ---- UC --------------------------------------------------------------------------------------------

// FIRST and ONLY start anew whatever their PSN; anything else must go on where the message was left [IBTA, UC
// responder: lost packets]. A receive that a dropped message has taken is for the next one.
DropReason decide_unreliable(const Request& q) {
  Responder& r = q.r();
  const bool goes_on = r.in_message && q.view.bth.psn == r.expected_psn && q.info.operation == r.message;
  if (!q.info.starts_message() && !goes_on) {
    r.in_message = false;
    ++q.shard.nic_of(q.qp).counters.out_of_sequence;
    return DropReason::kOutOfSequence;
  }
  const Check check = judge(q, kPass);
  if (check.kind == Check::Kind::kPass) return DropReason::kAccepted;
  r.in_message = false;
  if (check.kind == Check::Kind::kRnrNak) return DropReason::kNoReceive;
  if (check.code != NakCode::kRemoteOperationalError) return DropReason::kRefused;
  note_fatal(q.effect(), r, check);  // the receive's own fault
  q.qp.failed = true;
  return DropReason::kReceiveError;
}

// ---- duplicates ------------------------------------------------------------------------------------

// The newest that has this PSN.
ResponderResource* find_resource(Qp& qp, Psn psn) {
  const std::uint64_t taken = qp.responder.resources_taken;
  const std::uint64_t kept = std::min<std::uint64_t>(taken, qp.resources.size());
  for (std::uint64_t number = taken; number-- > taken - kept;) {
    ResponderResource& resource = qp.resource(number);
    if (steps(resource.first_psn, psn) < resource.psn_count) return &resource;
  }
  return nullptr;
}

void owe_again(Qp& qp, ResponderResource& resource) {
  resource.is_replay = !resource.is_pending || resource.is_replay;
  resource.is_pending = true;
  qp.first_owed = std::min(qp.first_owed, resource.number);
}

// Executed again, from where the peer asks; an earlier one goes before the response in progress [IBTA
// C9-110].
DropReason repeat_read(const Request& q) {
  const Psn psn = q.view.bth.psn;
  ResponderResource* const resource = find_resource(q.qp, psn);
  if (resource == nullptr || resource->operation != Operation::kReadRequest) return DropReason::kDuplicate;
  const proto::Reth reth = q.view.reth();
  const std::uint32_t offset = steps(resource->first_psn, psn) * q.qp.path_mtu_bytes;
  const std::uint32_t packets = proto::packet_count(reth.dma_length_bytes, q.qp.path_mtu());
  const bool is_part = reth.rkey == resource->rkey && reth.virtual_address == resource->address + offset &&
                       steps(resource->first_psn, psn) + packets <= resource->psn_count;
  Location where;
  if (reth.dma_length_bytes > q.shard.config.limits.max_message_bytes ||
      (reth.dma_length_bytes != 0 &&
       !q.shard.keys.resolve(q.qp.pd, q.qp, reth.rkey, kAccessRemoteRead, reth.virtual_address,
                             reth.dma_length_bytes, where))) {
    q.reply(Syndrome::nak(NakCode::kRemoteAccessError), psn);
    // The key was good when the READ was new. If the network has kept this copy back, the peer has its data
    // and the NAK is stale; if the peer still waits, it learns why it waits in vain. Neither is this side's
    // error.
    if (is_part) return DropReason::kDuplicate;
    note_fatal(q.effect(), q.r(), access_error());
    q.qp.failed = true;
    return DropReason::kNaked;
  }
  if (!is_part) return DropReason::kDuplicate;  // not the READ that had these PSNs
  owe_again(q.qp, *resource);
  resource->run_psn = resource->send_psn = psn;
  resource->end_psn = psn.plus(packets);
  resource->run_end_bytes = offset + reth.dma_length_bytes;
  return DropReason::kDuplicate;
}

// Never executed again: the saved result [IBTA, READ/ATOMIC: replay; IBTA oA19-14].
DropReason repeat_single(const Request& q) {
  ResponderResource* const resource = find_resource(q.qp, q.view.bth.psn);
  if (resource == nullptr || resource->operation != q.info.operation) return DropReason::kDuplicate;
  owe_again(q.qp, *resource);
  resource->send_psn = resource->run_psn;
  return DropReason::kDuplicate;
}

DropReason decide_duplicate(const Request& q) {
  ++q.shard.nic_of(q.qp).counters.duplicate_requests;
  switch (q.info.operation) {
    case Operation::kReadRequest:
      return repeat_read(q);
    case Operation::kCompareSwap:
    case Operation::kFetchAdd:
    case Operation::kAtomicWrite:
    case Operation::kFlush:
      return repeat_single(q);
    case Operation::kSend:
    case Operation::kWrite:
      q.reply(q.positive(), q.r().expected_psn.plus(-1));  // the newest [IBTA C9-105]
      return DropReason::kDuplicate;
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
    case Operation::kResync:
    case Operation::kCnp:
    case Operation::kReserved:
      break;
  }
  return DropReason::kDuplicate;
}

// ---- applying --------------------------------------------------------------------------------------

void complete_receive(Shard& shard, Qp& qp, std::uint32_t index, const RequestEffect& effect) {
  RingCqe cqe = cqe_of(qp, qp.rq[index].wr_id, effect.status);
  cqe.opcode = static_cast<std::uint32_t>(effect.opcode);
  cqe.byte_len = effect.byte_len;
  cqe.src_qp = qp.attributes.dest_qpn.value();
  if (effect.tail == MessageTail::kImmediate) {
    cqe.immediate_or_invalidate = __builtin_bswap32(effect.immediate);
    cqe.wc_flags = kWcWithImmediate;
  } else if (effect.tail == MessageTail::kInvalidate) {
    cqe.immediate_or_invalidate = effect.immediate;
    cqe.wc_flags = kWcWithInvalidate;
  }
  shard.completer.complete(*qp.recv_cq, cqe, effect.wakes || effect.status != WcStatus::kSuccess,
                           shard.nic_of(qp).counters);
}

// A later acknowledgement covers one that still waits. An answer to a duplicate covers an ACK only, and only
// if it is one: a NAK that waits says more, and one to a duplicate acknowledges less.
void queue_reply(Shard& shard, Qp& qp, const PendingReply& reply, bool is_repeated) {
  const auto is_ack = [](const PendingReply& one) { return one.syndrome.kind() == Syndrome::Kind::kAck; };
  const bool covers = !qp.reply.is_pending || !is_repeated || (is_ack(qp.reply) && is_ack(reply));
  if (covers) qp.reply = reply;
  shard.activate(qp);
}

void count_reply(Counters& counters, Syndrome syndrome) {
  switch (syndrome.kind()) {
    case Syndrome::Kind::kRnrNak:
      ++counters.rnr_naks_sent;
      return;
    case Syndrome::Kind::kNak:
      ++counters.naks_sent;
      if (syndrome.nak_code() == NakCode::kPsnSequenceError) ++counters.sequence_naks_sent;
      return;
    case Syndrome::Kind::kAck:
    case Syndrome::Kind::kReserved:
      return;
  }
}

void raise_fatal(Shard& shard, Qp& qp, const RequestEffect& effect) {
  if (effect.completes_receive)
    complete_receive(shard, qp, qp.rq.ring.before(qp.responder.rq_consumer), effect);
  enter_error(shard, qp, true);
  qp.reply = effect.reply;
  if (effect.event) shard.events.raise(qp.events, *effect.event);
  shard.activate(qp);
}

ResponderResource* first_pending(Qp& qp) {
  const std::uint64_t taken = qp.responder.resources_taken;
  if (taken - qp.first_owed > qp.resources.size()) qp.first_owed = taken - qp.resources.size();
  for (; qp.first_owed != taken; ++qp.first_owed) {
    ResponderResource& resource = qp.resource(qp.first_owed);
    if (resource.is_pending) return &resource;
  }
  return nullptr;
}

void plan_acknowledge(Shard& shard, Qp& qp, TransmitBatch& batch) {
  std::byte* const at =
      batch.start_packet(qp, Opcode::kRcAcknowledge, qp.reply.psn, proto::Aeth::kSize, false, false);
  emit_extension(at, proto::Aeth{qp.reply.syndrome, qp.reply.msn});
  batch.add(qp, PlannedPacket::Kind::kResponse, qp.reply.psn, proto::Aeth::kSize, batch.ops.size());
  count_reply(shard.nic_of(qp).counters, qp.reply.syndrome);
  qp.reply = {};
}

void plan_atomic_response(Qp& qp, ResponderResource& resource, TransmitBatch& batch) {
  constexpr std::uint32_t kBehindBth = proto::Aeth::kSize + proto::AtomicAckEth::kSize;
  std::byte* at =
      batch.start_packet(qp, Opcode::kRcAtomicAcknowledge, resource.first_psn, kBehindBth, false, false);
  at = emit_extension(at, proto::Aeth{resource.syndrome, resource.msn});
  emit_extension(at, proto::AtomicAckEth{resource.original});
  batch.add(qp, PlannedPacket::Kind::kResponse, resource.first_psn, kBehindBth, batch.ops.size());
  resource.is_pending = false;
}

// In a burst, requests and responses of a QP fail independently of each other.
std::uint32_t response_order_key(const Qp& qp) { return qp.qpn.value() | (proto::Qpn::kMask + 1); }

// One packet of the run. False: the region has gone since the request was accepted.
bool plan_read_response(Shard& shard, Qp& qp, ResponderResource& resource, TransmitBatch& batch) {
  const Psn psn = resource.send_psn;
  const std::uint32_t offset = steps(resource.first_psn, psn) * qp.path_mtu_bytes;
  const std::uint32_t chunk = std::min(qp.path_mtu_bytes, resource.run_end_bytes - offset);
  const bool is_first = psn == resource.run_psn;
  const bool is_last = psn.plus(1) == resource.end_psn;
  const Opcode opcode = is_first ? (is_last ? Opcode::kRcReadResponseOnly : Opcode::kRcReadResponseFirst)
                                 : (is_last ? Opcode::kRcReadResponseLast : Opcode::kRcReadResponseMiddle);
  const proto::OpcodeInfo& info = proto::info(opcode);
  const std::uint32_t behind_bth = info.extension_bytes + chunk;
  const std::size_t first_op = batch.ops.size();
  if (chunk > 0) {
    Location where;
    if (!shard.keys.resolve(qp.pd, qp, resource.rkey, kAccessRemoteRead, resource.address + offset, chunk,
                            where)) {
      return false;
    }
    MemoryOp op;
    op.kind = MemoryOp::Kind::kRead;
    op.space = where.space;
    op.address = where.address;
    op.order_key = response_order_key(qp);
    op.length_bytes = chunk;
    op.local = batch.next_data() + qp.headers.size() + info.extension_bytes;
    batch.ops.push_back(op);
  }
  std::byte* const at = batch.start_packet(qp, opcode, psn, behind_bth, false, false);
  if (info.has(proto::Extension::kAeth)) emit_extension(at, proto::Aeth{resource.syndrome, resource.msn});
  batch.add(qp, PlannedPacket::Kind::kResponse, psn, behind_bth, first_op);
  resource.send_psn = psn.plus(1);
  resource.is_pending = !is_last;
  return true;
}

// A READ that fails after it was accepted [IBTA 9.7.5.1.3]: NAK at the response's PSN, and the QP goes to
// ERR.
void end_with_nak(Shard& shard, Qp& qp, Psn psn, NakCode code, EventKind event) {
  enter_error(shard, qp);
  qp.answers_in_error = true;
  qp.reply = {true, Syndrome::nak(code), psn, qp.responder.msn};
  shard.events.raise(qp.events, event);
  shard.activate(qp);
}

}  // namespace

DropReason decide_request(Shard& shard, Qp& qp, const proto::RoceView& view, ReceivedPacket& packet,
                          ReceiveBatch& batch) {
  const Request q{shard, qp, view, view.opcode_info(), packet, batch};
  if (qp.service == proto::Service::kUc) return decide_unreliable(q);
  const Psn psn = view.bth.psn;
  const std::int32_t ahead = qp.responder.expected_psn.distance_to(psn);
  if (ahead == 0) return decide_expected(q);
  if (ahead < 0) return decide_duplicate(q);
  ++shard.nic_of(qp).counters.out_of_sequence;
  if (!qp.responder.nak_sent) {  // one for each gap [IBTA, PSN & retransmission: one NAK per gap]
    qp.responder.nak_sent = true;
    q.reply(Syndrome::nak(NakCode::kPsnSequenceError), qp.responder.expected_psn);
  }
  return DropReason::kOutOfSequence;
}

void apply_request(Shard& shard, Qp& qp, const ReceivedPacket& packet, const ReceiveBatch& batch) {
  const RequestEffect& effect = packet.request;
  if (effect.establishes && qp.state == QpState::kRtr) shard.events.raise(qp.events, EventKind::kCommEst);
  if (effect.takes_receive) free_receive_slot(qp, effect.rq_consumer);
  if (effect.is_fatal) {
    raise_fatal(shard, qp, effect);
    return;
  }
  if (effect.completes_receive) complete_receive(shard, qp, qp.rq.ring.before(effect.rq_consumer), effect);
  if (effect.queues_resource) {
    if (effect.atomic_resource) {
      qp.resource(*effect.atomic_resource).original = batch.ops[packet.first_op].original;
    }
    qp.reply = {};  // the response acknowledges what came before [IBTA 9.7.5.1.2]
  }
  if (effect.reply.is_pending) queue_reply(shard, qp, effect.reply, packet.verdict == DropReason::kDuplicate);
  if (qp.owes_responses()) shard.activate(qp);
}

DropReason fail_request(Shard& shard, Qp& qp, const ReceivedPacket& packet) {
  ++shard.nic_of(qp).counters.memory_faults;
  Responder& r = qp.responder;
  const bool is_reliable = qp.service == proto::Service::kRc;
  // What the packet, or one behind it, queued is not to be answered.
  for (ResponderResource& resource : qp.resources) {
    if (resource.first_psn.distance_to(packet.psn) <= 0) resource.is_pending = false;
  }
  if (packet.request.takes_receive) {  // as the packet did
    r.rq_consumer = packet.request.rq_consumer;
    r.has_receive = true;
    free_receive_slot(qp, r.rq_consumer);
  }
  if (!is_reliable && !packet.request.fills_receive) {
    r.in_message = false;
    return DropReason::kRefused;
  }
  RequestEffect effect;
  if (is_reliable) effect.reply = {true, Syndrome::nak(NakCode::kRemoteOperationalError), packet.psn, r.msn};
  note_fatal(effect, r, nak(NakCode::kRemoteOperationalError, WcStatus::kLocalProtectionError));
  raise_fatal(shard, qp, effect);
  return is_reliable ? DropReason::kNaked : DropReason::kReceiveError;
}

bool plan_response(Shard& shard, Qp& qp, TransmitBatch& batch) {
  if (qp.state == QpState::kErr ? !qp.answers_in_error : !qp.can_receive()) return false;
  if (ResponderResource* const resource = first_pending(qp); resource != nullptr) {
    if (proto::is_atomic(resource->operation)) {
      plan_atomic_response(qp, *resource, batch);
    } else if (!plan_read_response(shard, qp, *resource, batch)) {
      if (resource->is_replay) {  // as in repeat_read()
        resource->is_pending = false;
        if (!qp.reply.is_pending)
          qp.reply = {true, Syndrome::nak(NakCode::kRemoteAccessError), resource->send_psn, qp.responder.msn};
      } else {
        end_with_nak(shard, qp, resource->send_psn, NakCode::kRemoteAccessError, EventKind::kQpAccessErr);
      }
      return plan_response(shard, qp, batch);
    }
    return true;
  }
  if (!qp.reply.is_pending) return false;
  plan_acknowledge(shard, qp, batch);
  return true;
}

void fail_response(Shard& shard, Qp& qp, Psn psn) {
  end_with_nak(shard, qp, psn, NakCode::kRemoteOperationalError, EventKind::kQpFatal);
}

}  // namespace roci::emulator
