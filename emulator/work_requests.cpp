#include "emulator/work_requests.h"

#include <algorithm>
#include <cstring>

#include "emulator/memory_window.h"
#include "emulator/shared_receive_queue.h"
#include "proto/psn.h"

namespace roci::emulator {
namespace {

// Transport services, a bit each.
constexpr unsigned bit(proto::Service service) { return 1U << static_cast<unsigned>(service); }
constexpr unsigned kRc = bit(proto::Service::kRc), kUc = bit(proto::Service::kUc),
                   kUd = bit(proto::Service::kUd);

struct SendOpcodeInfo {
  unsigned services = 0;  // that have it
  MessageTail tail = MessageTail::kNone;
  proto::Operation operation = proto::Operation::kSend;  // of those that are sent
  WcOpcode completes_as = WcOpcode::kSend;
};

// By the number in RingSendWqe::opcode.
constexpr SendOpcodeInfo kSendOpcodes[] = {
    {kRc | kUc, MessageTail::kNone, proto::Operation::kWrite, WcOpcode::kRdmaWrite},
    {kRc | kUc, MessageTail::kImmediate, proto::Operation::kWrite, WcOpcode::kRdmaWrite},
    {kRc | kUc | kUd, MessageTail::kNone, proto::Operation::kSend, WcOpcode::kSend},
    {kRc | kUc | kUd, MessageTail::kImmediate, proto::Operation::kSend, WcOpcode::kSend},
    {kRc, MessageTail::kNone, proto::Operation::kReadRequest, WcOpcode::kRdmaRead},
    {kRc, MessageTail::kNone, proto::Operation::kCompareSwap, WcOpcode::kCompareSwap},
    {kRc, MessageTail::kNone, proto::Operation::kFetchAdd, WcOpcode::kFetchAdd},
    {kRc | kUc, MessageTail::kNone, proto::Operation::kSend, WcOpcode::kLocalInvalidate},
    {kRc | kUc, MessageTail::kNone, proto::Operation::kSend, WcOpcode::kBindMw},
    {kRc, MessageTail::kInvalidate, proto::Operation::kSend, WcOpcode::kSend},
    {},
    {},
    {},
    {},
    {kRc, MessageTail::kNone, proto::Operation::kFlush, WcOpcode::kFlush},
    {kRc, MessageTail::kNone, proto::Operation::kAtomicWrite, WcOpcode::kAtomicWrite},
};
static_assert(std::size(kSendOpcodes) == static_cast<std::size_t>(SendOpcode::kAtomicWrite) + 1);

std::uint64_t total_bytes(std::span<const RingSge> sges) {
  std::uint64_t sum = 0;  // of 32 32-bit lengths at most
  for (const RingSge& sge : sges)
    sum += sge.length_bytes;
  return sum;
}

bool keys_grant(const Shard& shard, const Pd& pd, std::span<const RingSge> sges, std::uint32_t access) {
  return std::all_of(sges.begin(), sges.end(), [&](const RingSge& sge) {
    Location where;
    return sge.length_bytes == 0 ||
           shard.keys.resolve(&pd, proto::Lkey{sge.lkey}, access, sge.address, sge.length_bytes, where);
  });
}

// Judges the private copy, whose tail stands already; returns what it will complete with.
WcStatus judge(const Shard& shard, const Qp& qp, std::uint32_t index, SendWqe& wqe) {
  // A datagram is one packet. Longer ones are not sent, and the sender is told (where [IBTA C10-93.1.1] is
  // read as not to).
  const std::uint32_t most = qp.is_datagram() ? qp.path_mtu_bytes : shard.config.limits.max_message_bytes;
  if (wqe.is_inline()) {
    if (wqe.is_rd_atomic()) return WcStatus::kLocalQpOperationError;
    return wqe.length_bytes > most ? WcStatus::kLocalLengthError : WcStatus::kSuccess;
  }
  const std::span<const RingSge> sges = qp.sq.sges(index);
  const std::uint64_t total = total_bytes(sges);
  if (total > most) return WcStatus::kLocalLengthError;  // [IBTA 11.6.2]
  wqe.length_bytes = static_cast<std::uint32_t>(total);
  if (proto::is_atomic(wqe.operation)) {
    if (sges.size() != 1) return WcStatus::kLocalQpOperationError;  // [IBTA Table 100]
    if (total != sizeof(std::uint64_t)) return WcStatus::kLocalLengthError;
  }
  const std::uint32_t access = wqe.is_rd_atomic() ? kAccessLocalWrite : 0U;
  return keys_grant(shard, *qp.pd, sges, access) ? WcStatus::kSuccess : WcStatus::kLocalProtectionError;
}

// What the request is aimed at, from its union.
void copy_target(const RingSendWqe& shared, Qp& qp, std::uint32_t index, SendWqe& wqe) {
  const auto& mw = shared.wr.mw;
  if (qp.is_datagram()) {
    wqe.ah_number = shared.wr.ud.ah_number;
    wqe.remote_qpn = proto::Qpn{shared.wr.ud.remote_qpn};
    wqe.remote_qkey = proto::Qkey{shared.wr.ud.remote_qkey};
  } else if (wqe.completes_as == WcOpcode::kBindMw) {
    const WindowBinding binding{proto::Rkey{mw.mw_rkey}, proto::Rkey{mw.rkey},
                                proto::Lkey{mw.mr_lkey}, mw.address,
                                mw.length_bytes,         mw.access};
    std::memcpy(qp.sq.tail(index), &binding, sizeof binding);
  } else if (wqe.operation == proto::Operation::kFlush) {
    wqe.remote_address = shared.wr.flush.remote_address;
    wqe.rkey = proto::Rkey{shared.wr.flush.rkey};
    wqe.length_bytes = shared.wr.flush.length_bytes;
    wqe.placement_types = static_cast<std::uint8_t>(shared.wr.flush.placement_types & 0xFU);
    wqe.selectivity_level = static_cast<std::uint8_t>(shared.wr.flush.selectivity_level & 3U);
  } else if (wqe.completes_as == WcOpcode::kLocalInvalidate || wqe.tail == MessageTail::kInvalidate) {
    wqe.rkey = proto::Rkey{shared.immediate_or_invalidate};
  } else if (proto::is_atomic(wqe.operation)) {
    wqe.remote_address = shared.wr.atomic.remote_address;
    wqe.rkey = proto::Rkey{shared.wr.atomic.rkey};
    wqe.compare = shared.wr.atomic.compare_add;
    wqe.swap_or_add =
        wqe.operation == proto::Operation::kFetchAdd ? shared.wr.atomic.compare_add : shared.wr.atomic.swap;
  } else {
    wqe.remote_address = shared.wr.rdma.remote_address;
    wqe.rkey = proto::Rkey{shared.wr.rdma.rkey};
  }
}

// SGEs or inline data; returns what the request will complete with.
WcStatus copy_data(const Shard& shard, Qp& qp, const RingDma& dma, const std::byte* tail, std::uint32_t index,
                   SendWqe& wqe) {
  if (wqe.is_rd_atomic() && qp.attributes.max_rd_atomic == 0) return WcStatus::kLocalQpOperationError;
  if (wqe.operation == proto::Operation::kFlush) return WcStatus::kSuccess;
  if (wqe.operation == proto::Operation::kAtomicWrite) {  // its bytes stand there, whatever `dma` says
    wqe.length_bytes = sizeof(std::uint64_t);
    std::memcpy(qp.sq.tail(index), tail, sizeof(std::uint64_t));
    return WcStatus::kSuccess;
  }
  const QpCapabilities& cap = qp.attributes.capabilities;
  // ibv_wr_set_inline_data sets no flag: no SGEs but bytes means inline data.
  if (dma.num_sge == 0 && dma.length_bytes > 0) wqe.flags |= kSendInline;
  if (wqe.is_inline()) {
    if (dma.length_bytes > cap.max_inline_bytes) return WcStatus::kLocalQpOperationError;
    wqe.length_bytes = dma.length_bytes;
    std::memcpy(qp.sq.tail(index), tail, wqe.length_bytes);
  } else {
    if (dma.num_sge > cap.max_send_sge) return WcStatus::kLocalQpOperationError;
    wqe.num_sge = dma.num_sge;
    std::memcpy(qp.sq.tail(index), tail, wqe.num_sge * sizeof(RingSge));
  }
  return judge(shard, qp, index, wqe);
}

std::uint32_t psn_count_of(const Qp& qp, const SendWqe& wqe) {
  if (wqe.is_local()) return 0;
  const bool has_many = wqe.operation == proto::Operation::kSend ||
                        wqe.operation == proto::Operation::kWrite ||
                        wqe.operation == proto::Operation::kReadRequest;
  return has_many ? proto::packet_count(wqe.length_bytes, qp.path_mtu()) : 1;
}

}  // namespace

std::size_t send_tail_bytes(const QpCapabilities& cap) {
  return std::max<std::size_t>(
      {cap.max_send_sge * sizeof(RingSge), cap.max_inline_bytes, sizeof(WindowBinding)});
}

bool fetch_send(Shard& shard, Qp& qp) {
  Requester& r = qp.requester;
  const Ring& ring = qp.sq.ring;
  const std::uint32_t index = r.sq_fetched;
  // A producer that went round past what is not completed is nonsense: the private slots stay within the
  // ring.
  if (ring.distance(index, ring.load_producer()) == 0 || ring.distance(r.sq_consumer, index) == ring.mask())
    return false;

  RingSendWqe shared;
  const std::byte* const element = ring.element(index);
  std::memcpy(&shared, element, sizeof shared);
  SendWqe& wqe = qp.sq.renew(index);
  wqe.wr_id = shared.wr_id;
  wqe.flags = static_cast<std::uint8_t>(shared.send_flags &
                                        (kSendFence | kSendSignaled | kSendSolicited | kSendInline));
  if (shared.opcode >= std::size(kSendOpcodes) ||
      (kSendOpcodes[shared.opcode].services & bit(qp.service)) == 0) {
    wqe.local_error = WcStatus::kLocalQpOperationError;
  } else {
    const SendOpcodeInfo& opcode = kSendOpcodes[shared.opcode];
    wqe.operation = opcode.operation;
    wqe.completes_as = opcode.completes_as;
    wqe.tail = opcode.tail;
    wqe.immediate = __builtin_bswap32(shared.immediate_or_invalidate);
    copy_target(shared, qp, index, wqe);
    if (!wqe.is_local())
      wqe.local_error = copy_data(shard, qp, shared.dma, element + sizeof shared, index, wqe);
  }
  wqe.first_psn = r.fetch_psn;
  wqe.psn_count = psn_count_of(qp, wqe);
  r.fetch_psn = wqe.end_psn();
  if (!wqe.is_local()) r.fetched_ssn = r.fetched_ssn.next();
  wqe.ssn = r.fetched_ssn;
  r.sq_fetched = ring.after(index);
  return true;
}

bool take_receive(Shard& shard, Qp& qp) {
  if (qp.srq != nullptr) return take_shared_receive(shard, qp);
  std::uint32_t& index = qp.responder.rq_consumer;
  const Ring& ring = qp.rq.ring;
  if (ring.load_producer() == index) return false;
  copy_receive(shard, *qp.pd, qp.attributes.capabilities.max_recv_sge, ring.element(index), qp.rq, index);
  index = ring.after(index);
  return true;
}

void free_receive_slot(Qp& qp, std::uint32_t rq_consumer) {
  if (qp.srq == nullptr) qp.rq.ring.store_consumer(rq_consumer);
}

void copy_receive(const Shard& shard, const Pd& pd, std::uint32_t max_sge, const std::byte* element,
                  const WorkQueue<RecvWqe>& to, std::uint32_t index) {
  RingRecvWqe shared;
  std::memcpy(&shared, element, sizeof shared);
  RecvWqe& wqe = to.renew(index);
  wqe.wr_id = shared.wr_id;
  if (shared.dma.num_sge > max_sge) {
    wqe.local_error = WcStatus::kLocalQpOperationError;
    return;
  }
  wqe.num_sge = shared.dma.num_sge;
  std::memcpy(to.tail(index), element + sizeof shared, wqe.num_sge * sizeof(RingSge));
  wqe.capacity_bytes = total_bytes(to.sges(index));
  if (!keys_grant(shard, pd, to.sges(index), kAccessLocalWrite))
    wqe.local_error = WcStatus::kLocalProtectionError;
}

bool add_sge_ops(const Shard& shard, const Qp& qp, std::span<const RingSge> sges, SgeUse use,
                 std::uint64_t offset, std::uint32_t length, std::byte* local, bool ends_message,
                 std::vector<MemoryOp>& ops) {
  const std::size_t before = ops.size();
  const std::uint32_t access = use == SgeUse::kGather ? 0U : kAccessLocalWrite;
  const Pd* const pd = use == SgeUse::kReceive ? qp.recv_pd : qp.pd;
  for (const RingSge& sge : sges) {
    if (length == 0) break;
    if (offset >= sge.length_bytes) {
      offset -= sge.length_bytes;
      continue;
    }
    const auto piece = static_cast<std::uint32_t>(std::min<std::uint64_t>(length, sge.length_bytes - offset));
    MemoryOp op;
    Location where;
    if (!shard.keys.resolve(pd, proto::Lkey{sge.lkey}, access, sge.address + offset, piece, where)) break;
    op.kind = use == SgeUse::kGather ? MemoryOp::Kind::kRead : MemoryOp::Kind::kWrite;
    op.space = where.space;
    op.address = where.address;
    op.order_key = qp.qpn.value();
    op.length_bytes = piece;
    op.local = local;
    op.ends_message = ends_message && piece == length;
    ops.push_back(op);
    local += piece;
    length -= piece;
    offset = 0;
  }
  if (length == 0) return true;
  ops.resize(before);
  return false;
}

bool gather_payload(const Shard& shard, const Qp& qp, std::uint32_t index, std::uint32_t offset,
                    std::uint32_t length, std::byte* payload, std::vector<MemoryOp>& ops) {
  if (!qp.sq[index].is_inline())
    return add_sge_ops(shard, qp, qp.sq.sges(index), SgeUse::kGather, offset, length, payload, false, ops);
  std::memcpy(payload, qp.sq.tail(index) + offset, length);
  return true;
}

}  // namespace roci::emulator
