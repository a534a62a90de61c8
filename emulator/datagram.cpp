#include "emulator/datagram.h"

#include <array>

#include "emulator/context.h"
#include "emulator/qp_error.h"
#include "emulator/work_requests.h"
#include "proto/deth.h"
#include "proto/imm_dt.h"

namespace roci::emulator {
namespace {

using proto::Opcode;

// A Q_Key with the top bit set asks for the QP's own [IBTA, UD: Q_Key of a work request].
constexpr std::uint32_t kOwnQkeyBit = 0x80000000;

// What `wc.sl` says of the packet's kind: UCX takes it for the code that hardware has there.
constexpr std::uint8_t kIpv4PacketKind = 0x0A, kIpv6PacketKind = 0x09;

AddressHandle* find_handle(const Qp& qp, std::uint32_t ah_number) {
  AddressHandle* const ah = ah_number == 0 ? nullptr : qp.context->ahs.find(ah_number - 1);
  return ah != nullptr && ah->pd == qp.pd ? ah : nullptr;  // [IBTA C10-10]
}

// The one packet of the message. The burst refers to the handle's headers until it is sealed; no command runs
// before that.
WcStatus plan_message(Shard& shard, Qp& qp, const SendWqe& wqe, TransmitBatch& batch) {
  Requester& r = qp.requester;
  AddressHandle* const ah = find_handle(qp, wqe.ah_number);
  if (ah == nullptr) return WcStatus::kLocalQpOperationError;
  const Opcode opcode =
      wqe.tail == MessageTail::kImmediate ? Opcode::kUdSendOnlyImmediate : Opcode::kUdSendOnly;
  const std::uint32_t extension_bytes = proto::info(opcode).extension_bytes;
  const std::uint32_t behind_bth = extension_bytes + wqe.length_bytes;
  const std::size_t first_op = batch.ops.size();
  std::byte* const payload = batch.next_data() + ah->headers.size() + extension_bytes;
  if (!gather_payload(shard, qp, r.send_index, 0, wqe.length_bytes, payload, batch.ops))
    return WcStatus::kLocalProtectionError;
  const Requester before = r;
  const proto::Psn psn = r.next_psn;
  ah->headers.set_destination(wqe.remote_qpn);
  ah->headers.set_source_port(qp.datagram_source_port);
  std::byte* at =
      batch.start_packet(qp, ah->headers, opcode, psn, behind_bth, false, (wqe.flags & kSendSolicited) != 0);
  const bool is_own_qkey = (wqe.remote_qkey.value() & kOwnQkeyBit) != 0;
  const proto::Qkey qkey = is_own_qkey ? qp.attributes.qkey : wqe.remote_qkey;
  at = emit_extension(at, proto::Deth{qkey, 0, qp.qpn});
  if (wqe.tail == MessageTail::kImmediate) emit_extension(at, proto::ImmDt{wqe.immediate});
  PlannedPacket& packet =
      batch.add(qp, ah->headers, PlannedPacket::Kind::kRequest, psn, behind_bth, first_op);
  packet.before = before;
  packet.is_lost = ah->source_is_gone;
  r.oldest_unacked_psn = r.send_psn = r.next_psn = psn.plus(1);
  r.send_index = qp.sq.ring.after(r.send_index);
  return WcStatus::kSuccess;
}

std::uint32_t receive_index(const Qp& qp) { return qp.rq.ring.before(qp.responder.rq_consumer); }

// An IPv4 header stands in the last 20 bytes of the area [IBTA A17.4.5.2]; what is before it is undefined,
// and zero here.
bool place_message(Shard& shard, Qp& qp, const proto::RoceView& view, ReceiveBatch& batch) {
  static const std::array<std::byte, kGrhAreaBytes> kZeros{};
  const auto place = [&](std::uint32_t offset, std::span<const std::byte> bytes, bool ends_message) {
    return add_sge_ops(shard, qp, qp.rq.sges(receive_index(qp)), SgeUse::kReceive, offset,
                       static_cast<std::uint32_t>(bytes.size()),
                       const_cast<std::byte*>(bytes.data()),  // kWrite does not modify it
                       ends_message, batch.ops);
  };
  const std::span<const std::byte> header = view.ip_header();
  const auto unused = static_cast<std::uint32_t>(kGrhAreaBytes - header.size());
  return place(0, std::span{kZeros}.first(unused), false) && place(unused, header, view.payload_bytes == 0) &&
         place(kGrhAreaBytes, view.payload(), true);
}

void complete_datagram(Shard& shard, Qp& qp, std::uint32_t index, const RequestEffect& effect) {
  RingCqe cqe = cqe_of(qp, qp.rq[index].wr_id, effect.status);
  cqe.opcode = static_cast<std::uint32_t>(effect.opcode);
  if (effect.status == WcStatus::kSuccess) {
    cqe.byte_len = effect.byte_len;
    cqe.src_qp = effect.source_qpn.value();
    cqe.sl = effect.is_ipv6 ? kIpv6PacketKind : kIpv4PacketKind;
    cqe.wc_flags = kWcGrh;
    if (effect.tail == MessageTail::kImmediate) {
      cqe.immediate_or_invalidate = __builtin_bswap32(effect.immediate);
      cqe.wc_flags |= kWcWithImmediate;
    }
  }
  shard.completer.complete(*qp.recv_cq, cqe, effect.wakes || effect.status != WcStatus::kSuccess,
                           shard.nic_of(qp).counters);
}

}  // namespace

bool plan_datagram(Shard& shard, Qp& qp, TransmitBatch& batch) {
  Requester& r = qp.requester;
  if (!qp.can_send() || qp.state == QpState::kSqd) return false;
  if (r.send_index == r.sq_fetched && !fetch_send(shard, qp)) return false;
  SendWqe& wqe = qp.sq[r.send_index];
  if (wqe.local_error == WcStatus::kSuccess) wqe.local_error = plan_message(shard, qp, wqe, batch);
  if (wqe.local_error == WcStatus::kSuccess) return true;
  // In its turn: what was planned before it completes first.
  if (r.send_index == r.sq_consumer) fail_send(shard, qp, wqe.local_error);
  return false;
}

DropReason decide_datagram(Shard& shard, Qp& qp, const proto::RoceView& view, ReceivedPacket& packet,
                           ReceiveBatch& batch) {
  Responder& r = qp.responder;
  RequestEffect& effect = packet.request;
  const proto::Deth deth = view.deth();
  if (deth.qkey != qp.attributes.qkey) return DropReason::kBadQkey;
  if (view.payload_bytes > qp.path_mtu_bytes) return DropReason::kTooLong;
  if (!r.has_receive) {
    if (!take_receive(shard, qp)) return DropReason::kNoReceive;
    r.has_receive = true;
    effect.takes_receive = true;
  }
  effect.rq_consumer = r.rq_consumer;
  const RecvWqe& wqe = qp.rq[receive_index(qp)];
  effect.status = wqe.local_error;
  if (wqe.local_error == WcStatus::kSuccess) {
    // The receive stays, for the next one [IBTA C9-205].
    if (kGrhAreaBytes + view.payload_bytes > wqe.capacity_bytes) return DropReason::kTooLong;
    if (!place_message(shard, qp, view, batch)) effect.status = WcStatus::kLocalProtectionError;
  }
  r.has_receive = false;
  effect.completes_receive = true;
  if (effect.status != WcStatus::kSuccess) {
    batch.ops.resize(packet.first_op);
    effect.is_fatal = true;
    qp.failed = true;
    return DropReason::kReceiveError;
  }
  effect.byte_len = kGrhAreaBytes + view.payload_bytes;
  effect.source_qpn = deth.source;
  effect.is_ipv6 = view.is_ipv6;
  if (view.opcode_info().has(proto::Extension::kImmDt)) {
    effect.tail = MessageTail::kImmediate;
    effect.immediate = view.imm_dt().value;
  }
  effect.wakes = view.bth.solicited_event;
  return DropReason::kAccepted;
}

void apply_datagram(Shard& shard, Qp& qp, const ReceivedPacket& packet) {
  const RequestEffect& effect = packet.request;
  if (effect.takes_receive) free_receive_slot(qp, effect.rq_consumer);
  if (effect.completes_receive) complete_datagram(shard, qp, qp.rq.ring.before(effect.rq_consumer), effect);
  if (effect.is_fatal) enter_error(shard, qp);
}

void fail_datagram(Shard& shard, Qp& qp, const ReceivedPacket& packet) {
  ++shard.nic_of(qp).counters.memory_faults;
  qp.responder.rq_consumer = packet.request.rq_consumer;
  qp.responder.has_receive = false;
  if (packet.request.takes_receive) free_receive_slot(qp, packet.request.rq_consumer);
  RequestEffect effect;
  effect.status = WcStatus::kLocalProtectionError;
  complete_datagram(shard, qp, receive_index(qp), effect);
  enter_error(shard, qp);
}

}  // namespace roci::emulator
