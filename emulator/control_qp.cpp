#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/address_handle.h"
#include "emulator/control_objects.h"
#include "emulator/datagram.h"
#include "emulator/memory_window.h"
#include "emulator/qp_error.h"
#include "emulator/qp_transitions.h"
#include "emulator/requester.h"
#include "emulator/ring_shape.h"
#include "emulator/steering.h"
#include "emulator/work_requests.h"

namespace roci::emulator {
namespace {

proto::Qpn draw_qpn(Shard& shard) {
  for (;;) {
    const proto::Qpn qpn{shard.dice.next()};
    const bool is_special = qpn <= proto::kQpnGsi || qpn == proto::kQpnMulticast;
    if (is_special || shard_of(qpn, shard.config.shard_count) != shard.config.shard) continue;
    if (shard.qps.find(qpn.value()) == nullptr) return qpn;
  }
}

std::optional<proto::Service> service_of(std::uint32_t type, bool is_first_shard) {
  if (type == static_cast<std::uint32_t>(QpType::kRc)) return proto::Service::kRc;
  if (type == static_cast<std::uint32_t>(QpType::kUc)) return proto::Service::kUc;
  if (type == static_cast<std::uint32_t>(QpType::kGsi) && is_first_shard) return proto::Service::kUd;
  if (type == static_cast<std::uint32_t>(QpType::kUd)) return proto::Service::kUd;
  return std::nullopt;
}

// The ModifyQp that waits for the QP's neighbour, if one does, has come to nothing.
void cancel_modify(Shard& shard, Qp& qp) {
  if (!std::exchange(qp.is_modifying, false)) return;
  const auto waiting = std::find_if(shard.modifying.begin(), shard.modifying.end(),
                                    [&](const PendingModify& one) { return one.qp == &qp; });
  shard.replies.push_back({waiting->id, std::errc::operation_canceled, std::monostate{}});
  shard.modifying.erase(waiting);
}

}  // namespace

// ---- QPs: create, destroy --------------------------------------------------------------------------

Outcome create_qp(Shard& shard, Context& context, const CreateQp& command) {
  const std::optional<proto::Service> service = service_of(command.type, shard.config.shard == 0);
  if (!service.has_value()) return refuse(std::errc::operation_not_supported);
  Pd* const pd = context.pds.find(command.pd.value);
  CompletionQueue* const send_cq = context.cqs.find(command.send_cq.value);
  CompletionQueue* const recv_cq = context.cqs.find(command.recv_cq.value);
  const QpCapabilities& cap = command.capabilities;
  if (pd == nullptr || send_cq == nullptr || recv_cq == nullptr) return refuse(std::errc::invalid_argument);
  // An overrun CQ takes no more completions [IBTA C11-37]: who waits for them would wait for ever.
  if (send_cq->is_overrun || recv_cq->is_overrun) return refuse(std::errc::invalid_argument);
  if (!shard.config.limits.allow(cap)) return refuse(std::errc::invalid_argument);
  const RingShape send_shape = send_ring_shape(cap);
  const RingShape recv_shape = recv_ring_shape(cap);
  SharedReceiveQueue* const srq = command.srq ? context.srqs.find(command.srq->value) : nullptr;
  if ((command.srq.has_value() && srq == nullptr) ||
      !fits<RingHeader>(command.send_ring, send_shape.bytes()) ||
      (srq == nullptr && !fits<RingHeader>(command.recv_ring, recv_shape.bytes()))) {
    return refuse(std::errc::invalid_argument);
  }
  Nic& nic = *shard.nics[context.nic.index];
  const bool is_gsi = command.type == static_cast<std::uint32_t>(QpType::kGsi);
  if (is_gsi && nic.gsi != nullptr) return refuse(std::errc::device_or_resource_busy);
  const std::size_t send_tail = send_tail_bytes(cap);
  const std::size_t recv_tail = (srq != nullptr ? srq->max_sge : cap.max_recv_sge) * sizeof(RingSge);
  const std::uint32_t recv_slots = srq != nullptr ? kTakenSlots : recv_shape.slots;
  const std::uint64_t bytes = WorkQueue<SendWqe>::bytes_needed(send_shape.slots, send_tail) +
                              WorkQueue<RecvWqe>::bytes_needed(recv_slots, recv_tail);
  const bool is_full =
      nic.qp_count == shard.config.limits.max_qp || context.qps.next_handle() >= kMaxQpsPerContext;
  if (is_full || context.private_bytes + bytes > shard.config.context_memory_bytes) {
    return refuse(std::errc::not_enough_memory);
  }
  const proto::Qpn qpn = is_gsi ? proto::kQpnGsi : draw_qpn(shard);
  auto owned = std::make_unique<Qp>(context, context.qps.next_handle(), qpn);
  Qp& qp = context.qps.add(std::move(owned));
  qp.pd = pd;
  qp.send_cq = send_cq;
  qp.recv_cq = recv_cq;
  qp.srq = srq;
  qp.recv_pd = srq != nullptr ? srq->pd : pd;
  qp.nic = context.nic;
  qp.type = static_cast<QpType>(command.type);
  qp.service = *service;
  qp.datagram_source_port = datagram_source_port(qp.qpn);
  qp.signal_all = command.sq_signal_all;
  qp.attributes.capabilities = cap;
  qp.sq = WorkQueue<SendWqe>{Ring{command.send_ring, send_shape}, send_tail};
  const Ring recv_ring =
      srq != nullptr ? Ring::without_memory(recv_slots) : Ring{command.recv_ring, recv_shape};
  qp.rq = WorkQueue<RecvWqe>{recv_ring, recv_tail};
  qp.private_bytes = bytes;
  qp.events.context = context.id;
  qp.events.user_handle = command.user_handle;
  qp.events.object = qp.handle;
  ++nic.qp_count;
  ++pd->users;
  ++send_cq->users;
  ++recv_cq->users;
  if (srq != nullptr) ++srq->users;
  context.private_bytes += bytes;
  if (is_gsi) {
    nic.gsi = &qp;
  } else {
    shard.qps.insert(qp.qpn.value(), qp);
    shard.timers.reserve(shard.qps.size());  // datagrams need none
  }
  set_state(shard, qp, QpState::kReset);  // [IBTA C10-20]
  return {{}, CreateQpReply{{qp.handle}, qp.qpn}};
}

void remove_qp(Shard& shard, Qp& qp) {
  Context& context = *qp.context;
  cancel_modify(shard, qp);
  unbind_windows_of(qp);  // [IBTA o10-2.2.5]
  shard.timers.set(qp, kNever);
  if (qp.type == QpType::kGsi) {
    shard.nic_of(qp).gsi = nullptr;
  } else {
    shard.qps.erase(qp.qpn.value());
  }
  set_state(shard, qp, QpState::kDestroyed);
  --shard.nic_of(qp).qp_count;
  --qp.pd->users;
  --qp.send_cq->users;
  --qp.recv_cq->users;
  if (qp.srq != nullptr) --qp.srq->users;
  context.private_bytes -= qp.private_bytes;
  context.qps.remove(qp.handle);
}

Outcome destroy_qp(Shard& shard, Context& context, QpHandle handle) {
  Qp* const qp = context.qps.find(handle.value);
  if (qp == nullptr) return refuse(std::errc::invalid_argument);
  if (qp->attachments > 0) return refuse(std::errc::device_or_resource_busy);  // [IBTA o10-2.2.3]
  remove_qp(shard, *qp);
  return {};
}

// ---- modify, query ---------------------------------------------------------------------------------

namespace {

// Of a code 1 to 5.
constexpr std::uint32_t mtu_bytes_of(std::uint32_t path_mtu_code) { return 128U << path_mtu_code; }

constexpr std::uint8_t kMaxAckTimeoutCode = 31, kMaxRnrTimerCode = 31, kMaxRetries = 7;

std::errc check_values(const Shard& shard, const Nic& nic, QpType type, std::uint32_t mask,
                       const QpAttributes& a) {
  const DeviceLimits& limits = shard.config.limits;
  const bool is_bad =
      ((mask & kQpPort) != 0 && a.port != 1) || ((mask & kQpPkeyIndex) != 0 && a.pkey_index != 0) ||
      ((mask & kQpQkey) != 0 && type == QpType::kGsi && a.qkey != kGsiQkey) ||
      ((mask & kQpPathMtu) != 0 && (a.path_mtu_code < 1 || a.path_mtu_code > 5 ||
                                    mtu_bytes_of(a.path_mtu_code) > proto::bytes_of(nic.mtu))) ||
      ((mask & kQpTimeout) != 0 && a.timeout > kMaxAckTimeoutCode) ||
      ((mask & kQpRetryCnt) != 0 && a.retry_cnt > kMaxRetries) ||
      ((mask & kQpRnrRetry) != 0 && a.rnr_retry > kMaxRetries) ||
      ((mask & kQpMinRnrTimer) != 0 && a.min_rnr_timer > kMaxRnrTimerCode) ||
      ((mask & kQpMaxQpRdAtomic) != 0 && a.max_rd_atomic > limits.max_qp_init_rd_atom) ||
      ((mask & kQpMaxDestRdAtomic) != 0 && a.max_dest_rd_atomic > limits.max_qp_rd_atom) ||
      ((mask & kQpAccessFlags) != 0 && (a.access & ~(kAccessKnown | kAccessOptionalMask)) != 0);
  if (is_bad) return std::errc::invalid_argument;
  if ((mask & kQpAltPath) != 0) return std::errc::operation_not_supported;
  return (mask & kQpAv) != 0 ? check_address(nic, a.av) : std::errc{};
}

// The source port of a connection: constant, so that its packets stay in order, and spread, so that paths are
// shared.
std::uint16_t source_port(const Qp& qp, proto::Qpn remote, std::uint32_t flow_label) {
  std::uint64_t value = flow_label;
  if (value == 0) {
    value = std::uint64_t{qp.qpn.value()} * remote.value();
    value ^= value >> 20;
    value ^= value >> 40;
  }
  value &= 0xFFFFF;
  return static_cast<std::uint16_t>(0xC000 | ((value & 0x3FFF) ^ (value >> 14)));
}

void copy_attributes(Qp& qp, std::uint32_t mask, const QpAttributes& from) {
  QpAttributes& to = qp.attributes;
  if ((mask & kQpEnSqdAsyncNotify) != 0) to.en_sqd_async_notify = from.en_sqd_async_notify;
  if ((mask & kQpAccessFlags) != 0) to.access = from.access;
  if ((mask & kQpPkeyIndex) != 0) to.pkey_index = from.pkey_index;
  if ((mask & kQpPort) != 0) to.port = from.port;
  if ((mask & kQpQkey) != 0) to.qkey = from.qkey;
  if ((mask & kQpAv) != 0) to.av = from.av;
  if ((mask & kQpPathMtu) != 0) to.path_mtu_code = from.path_mtu_code;
  if ((mask & kQpTimeout) != 0) to.timeout = from.timeout;
  if ((mask & kQpRetryCnt) != 0) to.retry_cnt = from.retry_cnt;
  if ((mask & kQpRnrRetry) != 0) to.rnr_retry = from.rnr_retry;
  if ((mask & kQpRqPsn) != 0) to.rq_psn = from.rq_psn;
  if ((mask & kQpMaxQpRdAtomic) != 0) to.max_rd_atomic = from.max_rd_atomic;
  if ((mask & kQpMinRnrTimer) != 0) to.min_rnr_timer = from.min_rnr_timer;
  if ((mask & kQpSqPsn) != 0) to.sq_psn = from.sq_psn;
  if ((mask & kQpMaxDestRdAtomic) != 0) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if ((mask & kQpDestQpn) != 0) to.dest_qpn = from.dest_qpn;
}

// Drains both queues and forgets everything but the capabilities; completions already written stay.
void reset(Shard& shard, Qp& qp) {
  qp.ready_node.unlink();
  unbind_windows_of(qp);
  qp.ack_deadline = kNever;
  qp.requester = {};
  qp.responder = {};
  shard.update_timer(qp);
  qp.failed = false;
  qp.answers_in_error = false;
  qp.resources.clear();
  qp.first_owed = 0;
  qp.reply = {};
  qp.headers = {};
  qp.requester.sq_consumer = qp.requester.sq_fetched = qp.requester.send_index = qp.sq.ring.load_producer();
  if (qp.srq == nullptr) {
    qp.responder.rq_consumer = qp.rq.ring.load_producer();
    qp.rq.ring.store_consumer(qp.responder.rq_consumer);
  }
  qp.sq.ring.store_consumer(qp.requester.sq_consumer);
  const QpCapabilities cap = qp.attributes.capabilities;
  qp.attributes = {};
  qp.attributes.capabilities = cap;
}

void enter_rtr(const Nic& nic, Qp& qp) {
  if (qp.type == QpType::kGsi) {
    qp.path_mtu_bytes = kMadBytes;
  } else {
    qp.path_mtu_bytes =
        qp.is_datagram() ? proto::bytes_of(nic.mtu) : mtu_bytes_of(qp.attributes.path_mtu_code);
  }
  qp.responder.expected_psn = qp.attributes.rq_psn;
  qp.resources.assign(qp.attributes.max_dest_rd_atomic, {});
}

void enter_rts(Shard& shard, Qp& qp) {
  Requester& r = qp.requester;
  r.oldest_unacked_psn = r.send_psn = r.next_psn = r.fetch_psn = qp.attributes.sq_psn;
  shard.activate(qp);
}

// The send queue starts behind what was flushed.
void leave_send_error(Shard& shard, Qp& qp) {
  for (std::uint32_t left = qp.sq.ring.slots(); left > 0 && flush(shard, qp);
       left -= std::min(left, kMaxFlushPerVisit))
    continue;
  Requester& r = qp.requester;
  r.send_index = r.sq_fetched = r.sq_consumer;
  r.oldest_unacked_psn = r.send_psn = r.fetch_psn = r.next_psn;
}

// Keeps what there is room for, the newest first.
void resize_resources(Qp& qp, std::size_t size) {
  std::vector<ResponderResource> resized(size);
  const std::uint64_t taken = qp.responder.resources_taken;
  const std::uint64_t kept = std::min<std::uint64_t>({taken, size, qp.resources.size()});
  for (std::uint64_t number = taken - kept; number < taken; ++number) {
    resized[number % size] = qp.resource(number);
  }
  qp.resources = std::move(resized);
  qp.first_owed = std::max(qp.first_owed, taken - kept);
}

// All checks are done, the neighbour is known.
void apply_modify(Shard& shard, Qp& qp, const ModifyQp& command, QpState target, proto::Mac destination) {
  const QpState from = qp.state;
  copy_attributes(qp, command.mask, command.attributes);
  if ((command.mask & kQpAv) != 0) {
    qp.local_gid = shard.nic_of(qp).gids[qp.attributes.av.sgid_index];
    qp.source_is_gone = false;
    set_path(shard, qp, destination);
  }
  if ((command.mask & kQpRetryCnt) != 0) qp.requester.retries_left = qp.attributes.retry_cnt;
  if ((command.mask & kQpRnrRetry) != 0) qp.requester.rnr_retries_left = qp.attributes.rnr_retry;
  if ((command.mask & kQpMaxDestRdAtomic) != 0 && target == QpState::kSqd) {
    resize_resources(qp, qp.attributes.max_dest_rd_atomic);
  }
  if (target == QpState::kReset) reset(shard, qp);
  if (target == QpState::kErr) {
    if (from != QpState::kErr) enter_error(shard, qp);
    return;
  }
  if (from == QpState::kSqe) leave_send_error(shard, qp);
  set_state(shard, qp, target);
  if (target == QpState::kRtr) enter_rtr(shard.nic_of(qp), qp);
  if (target == QpState::kRts && from == QpState::kRtr) enter_rts(shard, qp);
  if (target == QpState::kRts && (from == QpState::kSqd || from == QpState::kSqe)) shard.activate(qp);
  if (target == QpState::kSqd && from == QpState::kRts) {
    if ((command.mask & kQpEnSqdAsyncNotify) == 0) qp.attributes.en_sqd_async_notify = false;
    qp.attributes.sq_draining = true;
    check_drained(shard, qp);
  }
}

QpState target_of(const Qp& qp, const ModifyQp& command) {
  return (command.mask & kQpState) != 0 ? command.attributes.state : qp.state;
}

// Not to where the connection ends.
bool goes_on(QpState target) { return target != QpState::kReset && target != QpState::kErr; }

// Whether the QP, as it is now, may be modified so.
std::errc check_modify(const Shard& shard, const Nic& nic, const Qp& qp, const ModifyQp& command) {
  const QpState target = target_of(qp, command);
  // While the send queue drains nothing else may be asked for [IBTA 10.3].
  const bool is_draining = qp.attributes.sq_draining && goes_on(target);
  const bool is_mute =
      (qp.send_cq->is_overrun || qp.recv_cq->is_overrun) && goes_on(target);  // [IBTA C11-37]
  const bool is_stale = (command.mask & kQpCurState) != 0 && command.attributes.current_state != qp.state;
  if (is_draining || is_mute || is_stale || !is_transition_allowed(qp.type, qp.state, target, command.mask)) {
    return std::errc::invalid_argument;
  }
  return check_values(shard, nic, qp.type, command.mask, command.attributes);
}

// All checks are done. Nothing: the neighbour is being asked.
std::optional<Outcome> try_modify(Shard& shard, Qp& qp, const ModifyQp& command, Time now) {
  if ((command.mask & kQpAv) == 0) {
    apply_modify(shard, qp, command, target_of(qp, command), {});
    return Outcome{};
  }
  const Resolution found =
      resolve(shard.nic_of(qp).neighbours, command.attributes.av.dgid, qp.is_modifying, now);
  if (found.mac.has_value()) {
    apply_modify(shard, qp, command, target_of(qp, command), *found.mac);
    return Outcome{};
  }
  if (found.error != std::errc{}) return refuse(found.error);
  return std::nullopt;
}

}  // namespace

void set_path(Shard& shard, Qp& qp, proto::Mac destination) {
  const Nic& nic = shard.nic_of(qp);
  const AddressVector& av = qp.attributes.av;
  proto::Path path = path_to(av, qp.local_gid, nic.mac, destination);
  path.udp_source_port = source_port(qp, qp.attributes.dest_qpn, path.flow_label);
  qp.headers = proto::HeaderTemplate{path, qp.attributes.dest_qpn};
}

std::optional<Outcome> modify_qp(Shard& shard, Context& context, CommandId id, const ModifyQp& command,
                                 Time now) {
  Qp* const qp = context.qps.find(command.qp.value);
  if (qp == nullptr) return refuse(std::errc::invalid_argument);
  // What ends the connection need not wait for one that does; anything else must.
  if (qp->is_modifying && goes_on(target_of(*qp, command))) return refuse(std::errc::device_or_resource_busy);
  const std::errc error = check_modify(shard, shard.nic_of(*qp), *qp, command);
  if (error != std::errc{}) return refuse(error);
  cancel_modify(shard, *qp);
  std::optional<Outcome> outcome = try_modify(shard, *qp, command, now);
  if (!outcome.has_value()) {
    qp->is_modifying = true;
    shard.modifying.push_back({id, qp, command});
  }
  return outcome;
}

Outcome query_qp(Context& context, QpHandle handle) {
  const Qp* const qp = context.qps.find(handle.value);
  if (qp == nullptr) return refuse(std::errc::invalid_argument);
  return {{}, QueryQpReply{qp->attributes}};
}

std::optional<Outcome> resume(Shard& shard, const PendingModify& waiting, Time now) {
  Qp& qp = *waiting.qp;
  // The QP may be in ERR by now, or its CQ overrun.
  const std::errc error = check_modify(shard, shard.nic_of(qp), qp, waiting.command);
  std::optional<Outcome> outcome =
      error == std::errc{} ? try_modify(shard, qp, waiting.command, now) : refuse(error);
  qp.is_modifying = !outcome.has_value();
  return outcome;
}

}  // namespace roci::emulator
