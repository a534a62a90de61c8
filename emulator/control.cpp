#include "emulator/control.h"

#include <algorithm>
#include <utility>

#include "emulator/address_handle.h"
#include "emulator/datagram.h"
#include "emulator/qp_error.h"
#include "emulator/qp_transitions.h"
#include "emulator/requester.h"
#include "emulator/steering.h"
#include "emulator/work_requests.h"

namespace roci::emulator {
namespace {

using Body = decltype(CommandReply::body);

// What a command comes to: an errno, or success with what it returns.
struct Outcome {
  std::errc error{};
  Body body;
};
Outcome refuse(std::errc error) { return {error, std::monostate{}}; }

template <class T>
bool fits(std::span<std::byte> bytes, std::size_t needed) {
  return bytes.size() >= needed && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0;
}

// ---- contexts --------------------------------------------------------------------------------------

Context* find_context(Shard& shard, ContextId id) {
  const auto found = std::find_if(shard.contexts.begin(), shard.contexts.end(),
                                  [&](const auto& context) { return context->id == id; });
  return found == shard.contexts.end() ? nullptr : found->get();
}

Outcome open_context(Shard& shard, const OpenContext& command) {
  if (command.nic.index >= shard.nics.size()) return refuse(std::errc::no_such_device);
  if (!fits<ControlArea>(command.control_area, kControlAreaBytes)) return refuse(std::errc::invalid_argument);
  auto context = std::make_unique<Context>();
  // Unique over all shards, as each gives out its own residue.
  context->id = {shard.next_context++ * shard.config.shard_count + shard.config.shard};
  context->nic = command.nic;
  context->client = command.client;
  context->control = new (command.control_area.data()) ControlArea{};
  context->control->magic = kControlMagic;
  context->control->version = kControlVersion;
  std::fill(std::begin(context->control->qp_state), std::end(context->control->qp_state),
            static_cast<std::uint8_t>(QpState::kDestroyed));
  context->port_events.context = context->id;
  context->port_events.user_handle = 1;  // port number
  const ContextId id = context->id;
  shard.contexts.push_back(std::move(context));
  return {{}, id};
}

// ---- PDs and MRs -----------------------------------------------------------------------------------

Outcome alloc_pd(Shard& shard, Context& context) {
  Nic& nic = *shard.nics[context.nic.index];
  if (nic.pd_count == shard.config.limits.max_pd) return refuse(std::errc::not_enough_memory);
  ++nic.pd_count;
  auto pd = std::make_unique<Pd>();
  pd->handle = context.pds.next_handle();
  return {{}, PdHandle{context.pds.add(std::move(pd)).handle}};
}

Outcome dealloc_pd(Shard& shard, Context& context, PdHandle handle) {
  const Pd* const pd = context.pds.find(handle.value);
  if (pd == nullptr) return refuse(std::errc::invalid_argument);
  if (pd->users > 0) return refuse(std::errc::device_or_resource_busy);
  context.pds.remove(handle.value);
  --shard.nics[context.nic.index]->pd_count;
  return {};
}

Outcome reg_mr(Shard& shard, Context& context, const RegMr& command) {
  Pd* const pd = context.pds.find(command.pd.value);
  if (pd == nullptr) return refuse(std::errc::invalid_argument);
  if (const std::errc error = check_region_access(command.access); error != std::errc{}) return refuse(error);
  const std::uint64_t last = command.length_bytes - 1;
  const bool wraps = command.length_bytes == 0 || command.address + last < last || command.iova + last < last;
  if (wraps || command.length_bytes > shard.config.limits.max_mr_bytes)
    return refuse(std::errc::invalid_argument);
  Nic& nic = *shard.nics[context.nic.index];
  if (nic.mr_count == shard.config.limits.max_mr) return refuse(std::errc::not_enough_memory);
  ++nic.mr_count;
  ++pd->users;
  auto region = std::make_unique<MemoryRegion>();
  region->pd = pd;
  region->handle = context.regions.next_handle();
  region->access = command.access & ~kAccessOptionalMask;
  region->space = command.space;
  region->address = command.address;
  region->iova = command.iova;
  region->length_bytes = command.length_bytes;
  region->key = shard.keys.draw([&] { return shard.dice.next(); });  // not to be guessed, nor soon used again
  MemoryRegion& kept = context.regions.add(std::move(region));
  shard.keys.insert(kept);
  return {{}, RegMrReply{{kept.handle}, proto::Lkey{kept.key}, proto::Rkey{kept.key}}};
}

Outcome dereg_mr(Shard& shard, Context& context, MrHandle handle) {
  MemoryRegion* const region = context.regions.find(handle.value);
  if (region == nullptr) return refuse(std::errc::invalid_argument);
  if (region->windows > 0) return refuse(std::errc::device_or_resource_busy);  // [IBTA 10.6.7.2.6]
  shard.keys.erase(*region);
  --region->pd->users;
  --shard.nics[context.nic.index]->mr_count;
  context.regions.remove(handle.value);
  return {};
}

// ---- memory windows --------------------------------------------------------------------------------

Outcome alloc_mw(Shard& shard, Context& context, const AllocMw& command) {
  Pd* const pd = context.pds.find(command.pd.value);
  const bool is_type = command.type == static_cast<std::uint32_t>(MwType::kType1) ||
                       command.type == static_cast<std::uint32_t>(MwType::kType2);
  if (pd == nullptr || !is_type) return refuse(std::errc::invalid_argument);
  Nic& nic = *shard.nics[context.nic.index];
  if (nic.mw_count == shard.config.limits.max_mw) return refuse(std::errc::not_enough_memory);
  ++nic.mw_count;
  ++pd->users;
  auto window = std::make_unique<MemoryWindow>();
  window->pd = pd;
  window->handle = context.windows.next_handle();
  window->is_window = true;
  window->type = static_cast<MwType>(command.type);
  // The variant is the consumer's to count up from 0.
  window->key = shard.keys.draw([&] { return shard.dice.next(); }) & ~kKeyVariantMask;
  MemoryWindow& kept = context.windows.add(std::move(window));
  shard.keys.insert(kept);
  return {{}, AllocMwReply{{kept.handle}, proto::Rkey{kept.key}}};
}

Outcome dealloc_mw(Shard& shard, Context& context, MwHandle handle) {
  MemoryWindow* const window = context.windows.find(handle.value);
  if (window == nullptr) return refuse(std::errc::invalid_argument);
  unbind_window(*window);
  shard.keys.erase(*window);
  --window->pd->users;
  --shard.nics[context.nic.index]->mw_count;
  context.windows.remove(handle.value);
  return {};
}

// ---- CQs -------------------------------------------------------------------------------------------

bool is_cq_ring(const DeviceLimits& limits, std::span<std::byte> ring, std::uint32_t slots) {
  return std::has_single_bit(slots) && slots <= std::bit_ceil(limits.max_cqe + 1) &&
         fits<RingHeader>(ring, RingShape{kLog2CqeBytes, slots}.bytes());
}

Outcome create_cq(Shard& shard, Context& context, const CreateCq& command) {
  const DeviceLimits& limits = shard.config.limits;
  if (!is_cq_ring(limits, command.ring, command.slots)) return refuse(std::errc::invalid_argument);
  Nic& nic = *shard.nics[context.nic.index];
  if (nic.cq_count == limits.max_cq || context.cqs.next_handle() >= kMaxCqsPerContext) {
    return refuse(std::errc::not_enough_memory);
  }
  ++nic.cq_count;
  auto cq = std::make_unique<CompletionQueue>();
  cq->context = &context;
  cq->handle = context.cqs.next_handle();
  cq->ring = Ring{command.ring, RingShape{kLog2CqeBytes, command.slots}};
  cq->events.context = context.id;
  cq->events.user_handle = command.user_handle;
  cq->events.channel = command.channel;
  cq->events.object = cq->handle;
  __atomic_store_n(&context.control->cq_arm[cq->handle], 0U, __ATOMIC_RELAXED);
  return {{}, CqHandle{context.cqs.add(std::move(cq)).handle}};
}

Outcome resize_cq(Shard& shard, Context& context, const ResizeCq& command) {
  CompletionQueue* const cq = context.cqs.find(command.cq.value);
  const bool is_done = cq != nullptr && is_cq_ring(shard.config.limits, command.ring, command.slots) &&
                       move_to(*cq, command.ring, RingShape{kLog2CqeBytes, command.slots});
  return refuse(is_done ? std::errc{} : std::errc::invalid_argument);
}

Outcome destroy_cq(Shard& shard, Context& context, CqHandle handle) {
  const CompletionQueue* const cq = context.cqs.find(handle.value);
  if (cq == nullptr) return refuse(std::errc::invalid_argument);
  if (cq->users > 0) return refuse(std::errc::device_or_resource_busy);  // [IBTA C11-17]
  context.cqs.remove(handle.value);
  --shard.nics[context.nic.index]->cq_count;
  return {};
}

// ---- SRQs ------------------------------------------------------------------------------------------

std::errc check_srq_size(const DeviceLimits& limits, std::uint32_t max_wr, std::uint32_t max_sge,
                         std::span<std::byte> ring) {
  const bool is_ok = max_wr > 0 && max_wr <= limits.max_srq_wr && max_sge <= limits.max_srq_sge &&
                     fits<RingHeader>(ring, srq_ring_shape(max_wr, max_sge).bytes());
  return is_ok ? std::errc{} : std::errc::invalid_argument;
}

Outcome create_srq(Shard& shard, Context& context, const CreateSrq& command) {
  const DeviceLimits& limits = shard.config.limits;
  Pd* const pd = context.pds.find(command.pd.value);
  if (pd == nullptr || command.limit > command.max_wr) return refuse(std::errc::invalid_argument);
  const std::errc error = check_srq_size(limits, command.max_wr, command.max_sge, command.ring);
  if (error != std::errc{}) return refuse(error);
  Nic& nic = *shard.nics[context.nic.index];
  const std::size_t tail = command.max_sge * sizeof(RingSge);
  const std::uint64_t bytes = WorkQueue<RecvWqe>::bytes_needed(kTakenSlots, tail);
  const bool has_room = context.private_bytes + bytes <= shard.config.context_memory_bytes;
  if (nic.srq_count == limits.max_srq || !has_room) return refuse(std::errc::not_enough_memory);
  auto srq = std::make_unique<SharedReceiveQueue>();
  srq->handle = context.srqs.next_handle();
  srq->pd = pd;
  srq->max_wr = command.max_wr;
  srq->max_sge = command.max_sge;
  srq->limit = command.limit;
  srq->private_bytes = bytes;
  srq->ring = Ring{command.ring, srq_ring_shape(command.max_wr, command.max_sge)};
  srq->returned = WorkQueue<RecvWqe>{Ring::without_memory(kTakenSlots), tail};
  srq->events.context = context.id;
  srq->events.user_handle = command.user_handle;
  srq->events.object = srq->handle;
  ++nic.srq_count;
  ++pd->users;
  context.private_bytes += bytes;
  return {{}, SrqHandle{context.srqs.add(std::move(srq)).handle}};
}

// One invalid attribute, and nothing changes [IBTA 11.2.3.3].
Outcome modify_srq(const Shard& shard, Context& context, const ModifySrq& command) {
  SharedReceiveQueue* const srq = context.srqs.find(command.srq.value);
  if (srq == nullptr) return refuse(std::errc::invalid_argument);
  const bool moves = !command.ring.empty();
  const std::uint32_t max_wr = moves ? command.max_wr : srq->max_wr;
  const std::uint32_t limit = command.limit.value_or(srq->limit);
  if (limit > max_wr) return refuse(std::errc::invalid_argument);
  if (moves) {
    const std::errc error = check_srq_size(shard.config.limits, max_wr, srq->max_sge, command.ring);
    if (error != std::errc{}) return refuse(error);
    if (srq->ring.distance(srq->consumer, srq->ring.load_producer()) > max_wr)
      return refuse(std::errc::invalid_argument);
    move_to(*srq, Ring{command.ring, srq_ring_shape(max_wr, srq->max_sge)});
  }
  srq->max_wr = max_wr;
  srq->limit = limit;
  return {};
}

Outcome query_srq(const Context& context, SrqHandle handle) {
  const SharedReceiveQueue* const srq = context.srqs.find(handle.value);
  if (srq == nullptr) return refuse(std::errc::invalid_argument);
  return {{}, QuerySrqReply{srq->max_wr, srq->max_sge, srq->limit}};
}

Outcome destroy_srq(Shard& shard, Context& context, SrqHandle handle) {
  const SharedReceiveQueue* const srq = context.srqs.find(handle.value);
  if (srq == nullptr) return refuse(std::errc::invalid_argument);
  if (srq->users > 0) return refuse(std::errc::device_or_resource_busy);
  --srq->pd->users;
  --shard.nics[context.nic.index]->srq_count;
  context.private_bytes -= srq->private_bytes;
  context.srqs.remove(handle.value);
  return {};
}

// ---- QPs: create, destroy --------------------------------------------------------------------------

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

// The ModifyQp that waits for the QP's neighbour, if one does, has come to nothing.
void cancel_modify(Shard& shard, Qp& qp) {
  if (!std::exchange(qp.is_modifying, false)) return;
  const auto waiting = std::find_if(shard.modifying.begin(), shard.modifying.end(),
                                    [&](const PendingModify& one) { return one.qp == &qp; });
  shard.replies.push_back({waiting->id, std::errc::operation_canceled, std::monostate{}});
  shard.modifying.erase(waiting);
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

// ---- multicast -------------------------------------------------------------------------------------

Outcome attach(Shard& shard, Context& context, const AttachMulticast& command, Time now) {
  Qp* const qp = context.qps.find(command.qp.value);
  if (qp == nullptr || qp->type != QpType::kUd || !is_multicast(command.group))
    return refuse(std::errc::invalid_argument);
  Nic& nic = shard.nic_of(*qp);
  const auto [error, is_first, is_new] = nic.groups.attach(
      command.group, *qp, shard.config.limits.max_mcast_grp, shard.config.limits.max_mcast_qp_attach);
  if (error != std::errc{}) return refuse(error);
  qp->attachments += is_new ? 1U : 0U;
  if (is_first) nic.neighbours.join(command.group, now);
  return {};
}

std::errc detach(Nic& nic, Qp& qp, const proto::Gid& group) {
  const auto [error, is_last, is_done] = nic.groups.detach(group, qp);
  qp.attachments -= is_done ? 1U : 0U;
  if (is_last) nic.neighbours.leave(group);
  return error;
}

Outcome detach(Shard& shard, Context& context, const DetachMulticast& command) {
  Qp* const qp = context.qps.find(command.qp.value);
  if (qp == nullptr) return refuse(std::errc::invalid_argument);
  return refuse(detach(shard.nic_of(*qp), *qp, command.group));
}

void detach_all(Nic& nic, Qp& qp) {
  const std::span<const proto::Gid> all = nic.groups.groups();
  const std::vector<proto::Gid> groups(all.begin(), all.end());
  for (const proto::Gid& group : groups) {
    if (qp.attachments == 0) return;
    static_cast<void>(detach(nic, qp, group));  // it need not be in each
  }
}

// ---- address handles -------------------------------------------------------------------------------

constexpr std::uint8_t kServiceLevels = 8;  // the others are reserved [IBTA CA16-18, A17.4.2]

std::errc check_address(const Nic& nic, const AddressVector& av) {
  const bool is_ok = av.is_global &&  // [IBTA A17.4.2]
                     av.port == 1 && av.sgid_index < nic.gids.size() &&
                     nic.gids[av.sgid_index].is_ipv4() == av.dgid.is_ipv4() && av.dgid != proto::Gid{} &&
                     av.service_level < kServiceLevels;
  return is_ok ? std::errc{} : std::errc::invalid_argument;
}

// What comes of looking for a GID's MAC: it, an errno, or neither while the neighbour is being asked.
struct Resolution {
  std::optional<proto::Mac> mac;
  std::errc error{};
};

Resolution resolve(NeighbourCache& neighbours, const proto::Gid& gid, bool is_waiting, Time now) {
  if (const std::optional<proto::Mac> mac = neighbours.lookup(gid)) return {mac, {}};
  switch (is_waiting ? neighbours.state(gid) : neighbours.request(gid, now)) {
    case NeighbourState::kUnreachable:
      return {std::nullopt, std::errc::network_unreachable};
    case NeighbourState::kFailed:
      return {std::nullopt, std::errc::timed_out};
    case NeighbourState::kUnknown:  // its entry gave way to others
      neighbours.request(gid, now);
      break;
    case NeighbourState::kKnown:
    case NeighbourState::kPending:
      break;
  }
  return {};
}

void set_headers(AddressHandle& ah, const Nic& nic, proto::Mac destination) {
  ah.headers = proto::HeaderTemplate{path_to(ah.av, nic.gids[ah.av.sgid_index], nic.mac, destination), {}};
}

// All checks are done and it is counted. Nothing: the neighbour is being asked.
std::optional<Outcome> try_create_ah(Shard& shard, Context& context, Pd& pd, const AddressVector& av,
                                     bool is_waiting, Time now) {
  Nic& nic = *shard.nics[context.nic.index];
  const Resolution found = resolve(nic.neighbours, av.dgid, is_waiting, now);
  if (found.mac.has_value()) {
    auto owned = std::make_unique<AddressHandle>();
    owned->pd = &pd;
    owned->handle = context.ahs.next_handle();
    owned->av = av;
    set_headers(*owned, nic, *found.mac);
    return Outcome{{}, AhHandle{context.ahs.add(std::move(owned)).handle}};
  }
  if (found.error == std::errc{}) return std::nullopt;
  --nic.ah_count;
  --pd.users;
  return refuse(found.error);
}

std::optional<Outcome> create_ah(Shard& shard, Context& context, CommandId id, const CreateAh& command,
                                 Time now) {
  Pd* const pd = context.pds.find(command.pd.value);
  if (pd == nullptr) return refuse(std::errc::invalid_argument);
  AddressVector av = command.av;
  // A handle made from a completion has the packet's kind there (datagram.cpp).
  av.service_level %= kServiceLevels;
  Nic& nic = *shard.nics[context.nic.index];
  if (const std::errc error = check_address(nic, av); error != std::errc{}) return refuse(error);
  if (nic.ah_count == shard.config.limits.max_ah) return refuse(std::errc::not_enough_memory);
  ++nic.ah_count;
  ++pd->users;
  std::optional<Outcome> outcome = try_create_ah(shard, context, *pd, av, false, now);
  if (!outcome.has_value()) shard.creating_ahs.push_back({id, &context, pd, av});
  return outcome;
}

// Never busy [IBTA 11.2.2].
Outcome destroy_ah(Shard& shard, Context& context, AhHandle handle) {
  const AddressHandle* const ah = context.ahs.find(handle.value);
  if (ah == nullptr) return refuse(std::errc::invalid_argument);
  --ah->pd->users;
  --shard.nics[context.nic.index]->ah_count;
  context.ahs.remove(handle.value);
  return {};
}

void cancel_ahs(Shard& shard, const Context& context) {
  for (std::size_t i = shard.creating_ahs.size(); i-- > 0;) {
    const PendingAh& waiting = shard.creating_ahs[i];
    if (waiting.context != &context) continue;
    --waiting.pd->users;
    --shard.nics[context.nic.index]->ah_count;
    shard.replies.push_back({waiting.id, std::errc::operation_canceled, std::monostate{}});
    shard.creating_ahs.erase(shard.creating_ahs.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Outcome close_context(Shard& shard, Context& context) {
  cancel_ahs(shard, context);
  for (const std::uint32_t handle : context.qps.handles()) {
    Qp& qp = *context.qps.find(handle);
    detach_all(shard.nic_of(qp), qp);
    remove_qp(shard, qp);
  }
  for (const std::uint32_t handle : context.ahs.handles())
    static_cast<void>(destroy_ah(shard, context, {handle}));
  for (const std::uint32_t handle : context.cqs.handles())
    static_cast<void>(destroy_cq(shard, context, {handle}));
  for (const std::uint32_t handle : context.srqs.handles())
    static_cast<void>(destroy_srq(shard, context, {handle}));
  for (const std::uint32_t handle : context.windows.handles())
    static_cast<void>(dealloc_mw(shard, context, {handle}));
  for (const std::uint32_t handle : context.regions.handles())
    static_cast<void>(dereg_mr(shard, context, {handle}));
  for (const std::uint32_t handle : context.pds.handles())
    static_cast<void>(dealloc_pd(shard, context, {handle}));
  const auto found = std::find_if(shard.contexts.begin(), shard.contexts.end(),
                                  [&](const auto& one) { return one.get() == &context; });
  shard.contexts.erase(found);
  return {};
}

// ---- QPs: modify -----------------------------------------------------------------------------------

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

void set_path(Shard& shard, Qp& qp, proto::Mac destination) {
  const Nic& nic = shard.nic_of(qp);
  const AddressVector& av = qp.attributes.av;
  qp.local_gid = nic.gids[av.sgid_index];
  proto::Path path = path_to(av, qp.local_gid, nic.mac, destination);
  path.udp_source_port = source_port(qp, qp.attributes.dest_qpn, path.flow_label);
  qp.headers = proto::HeaderTemplate{path, qp.attributes.dest_qpn};
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
  if ((command.mask & kQpAv) != 0) set_path(shard, qp, destination);
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

// ---- inspection ------------------------------------------------------------------------------------

QpSnapshot snapshot_of(const Qp& qp) {
  QpSnapshot snapshot;
  snapshot.context = qp.context->id;
  snapshot.handle = {qp.handle};
  snapshot.qpn = qp.qpn;
  snapshot.type = qp.type;
  snapshot.state = qp.state;
  snapshot.attributes = qp.attributes;
  snapshot.next_psn = qp.requester.next_psn;
  snapshot.oldest_unacked_psn = qp.requester.oldest_unacked_psn;
  snapshot.expected_psn = qp.responder.expected_psn;
  snapshot.send_queue_depth = qp.sq.ring.distance(qp.requester.sq_consumer, qp.sq.ring.load_producer());
  if (qp.srq == nullptr)
    snapshot.recv_queue_depth = qp.rq.ring.distance(qp.responder.rq_consumer, qp.rq.ring.load_producer());
  snapshot.packets_sent = qp.statistics.packets_sent;
  snapshot.packets_received = qp.statistics.packets_received;
  snapshot.bytes_sent = qp.statistics.bytes_sent;
  snapshot.bytes_received = qp.statistics.bytes_received;
  snapshot.retransmitted = qp.statistics.retransmitted;
  snapshot.nic = qp.nic;
  return snapshot;
}

Outcome inspect(const Shard& shard) {
  auto snapshot = std::make_unique<Snapshot>();
  for (const auto& owned : shard.contexts) {
    const Context& context = *owned;
    snapshot->contexts.push_back(
        {context.id, context.nic, context.client, static_cast<std::uint32_t>(context.pds.size())});
    context.qps.for_each([&](const Qp& qp) { snapshot->qps.push_back(snapshot_of(qp)); });
    context.regions.for_each([&](const MemoryRegion& region) {
      snapshot->mrs.push_back({context.id,
                               {region.handle},
                               {region.pd->handle},
                               proto::Rkey{region.key},
                               region.iova,
                               region.length_bytes,
                               region.access});
    });
    context.ahs.for_each([&](const AddressHandle& ah) {
      snapshot->ahs.push_back({context.id, {ah.handle}, ah.av});
    });
    context.windows.for_each([&](const MemoryWindow& window) {
      snapshot->mws.push_back({context.id,
                               {window.handle},
                               {window.pd->handle},
                               window.type,
                               proto::Rkey{window.key},
                               window.region != nullptr,
                               window.iova,
                               window.length_bytes,
                               window.access});
    });
    context.srqs.for_each([&](const SharedReceiveQueue& srq) {
      snapshot->srqs.push_back({context.id, {srq.handle}, srq.max_wr, srq.limit, srq.depth(), srq.users});
    });
    context.cqs.for_each([&](const CompletionQueue& cq) {
      snapshot->cqs.push_back({context.id,
                               {cq.handle},
                               cq.ring.slots(),
                               cq.ring.distance(cq.ring.load_consumer(), cq.producer),
                               cq.completions,
                               cq.is_overrun});
    });
  }
  for (const auto& nic : shard.nics)
    nic->neighbours.snapshot(nic->id, snapshot->neighbours);
  return {{}, std::move(snapshot)};
}

// ---- dispatch --------------------------------------------------------------------------------------

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::optional<Outcome> dispatch(Shard& shard, Context& context, CommandId id, Command& command, Time now) {
  return std::visit(
      Overloaded{
          [](const OpenContext&) -> std::optional<Outcome> { return refuse(std::errc::invalid_argument); },
          [](const Inspect&) -> std::optional<Outcome> { return refuse(std::errc::invalid_argument); },
          [&](const CloseContext&) -> std::optional<Outcome> { return close_context(shard, context); },
          [&](const AllocPd&) -> std::optional<Outcome> { return alloc_pd(shard, context); },
          [&](const DeallocPd& c) -> std::optional<Outcome> { return dealloc_pd(shard, context, c.pd); },
          [&](const RegMr& c) -> std::optional<Outcome> { return reg_mr(shard, context, c); },
          [&](const DeregMr& c) -> std::optional<Outcome> { return dereg_mr(shard, context, c.mr); },
          [&](const CreateSrq& c) -> std::optional<Outcome> { return create_srq(shard, context, c); },
          [&](const ModifySrq& c) -> std::optional<Outcome> { return modify_srq(shard, context, c); },
          [&](const QuerySrq& c) -> std::optional<Outcome> { return query_srq(context, c.srq); },
          [&](const DestroySrq& c) -> std::optional<Outcome> { return destroy_srq(shard, context, c.srq); },
          [&](const AllocMw& c) -> std::optional<Outcome> { return alloc_mw(shard, context, c); },
          [&](const DeallocMw& c) -> std::optional<Outcome> { return dealloc_mw(shard, context, c.mw); },
          [&](const CreateCq& c) -> std::optional<Outcome> { return create_cq(shard, context, c); },
          [&](const ResizeCq& c) -> std::optional<Outcome> { return resize_cq(shard, context, c); },
          [&](const DestroyCq& c) -> std::optional<Outcome> { return destroy_cq(shard, context, c.cq); },
          [&](const CreateQp& c) -> std::optional<Outcome> { return create_qp(shard, context, c); },
          [&](const ModifyQp& c) -> std::optional<Outcome> { return modify_qp(shard, context, id, c, now); },
          [&](const QueryQp& c) -> std::optional<Outcome> { return query_qp(context, c.qp); },
          [&](const DestroyQp& c) -> std::optional<Outcome> { return destroy_qp(shard, context, c.qp); },
          [&](const CreateAh& c) -> std::optional<Outcome> { return create_ah(shard, context, id, c, now); },
          [&](const AttachMulticast& c) -> std::optional<Outcome> { return attach(shard, context, c, now); },
          [&](const DetachMulticast& c) -> std::optional<Outcome> { return detach(shard, context, c); },
          [&](const DestroyAh& c) -> std::optional<Outcome> { return destroy_ah(shard, context, c.ah); },
      },
      command.body);
}

}  // namespace

void execute(Shard& shard, CommandId id, Command&& command, Time now) {
  std::optional<Outcome> outcome;
  if (const auto* open = std::get_if<OpenContext>(&command.body)) {
    outcome = open_context(shard, *open);
  } else if (std::holds_alternative<Inspect>(command.body)) {
    outcome = inspect(shard);
  } else if (Context* const context = find_context(shard, command.context); context != nullptr) {
    outcome = dispatch(shard, *context, id, command, now);
  } else {
    outcome = refuse(std::errc::bad_file_descriptor);
  }
  if (outcome.has_value()) shard.replies.push_back({id, outcome->error, std::move(outcome->body)});
}

void refresh_paths(Shard& shard, const Nic& nic) {
  for (const auto& context : shard.contexts) {
    if (context->nic != nic.id) continue;
    context->qps.for_each([&](Qp& qp) {
      if (qp.headers.size() == 0) return;  // not connected
      if (const auto mac = nic.neighbours.lookup(qp.attributes.av.dgid)) set_path(shard, qp, *mac);
    });
    context->ahs.for_each([&](AddressHandle& ah) {
      if (const auto mac = nic.neighbours.lookup(ah.av.dgid)) set_headers(ah, nic, *mac);
    });
  }
}

void resume_commands(Shard& shard, Time now) {
  for (std::size_t i = 0; i < shard.creating_ahs.size();) {
    const PendingAh& waiting = shard.creating_ahs[i];
    std::optional<Outcome> outcome =
        try_create_ah(shard, *waiting.context, *waiting.pd, waiting.av, true, now);
    if (!outcome.has_value()) {
      ++i;
      continue;
    }
    shard.replies.push_back({waiting.id, outcome->error, std::move(outcome->body)});
    shard.creating_ahs.erase(shard.creating_ahs.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t i = 0; i < shard.modifying.size();) {
    const PendingModify& waiting = shard.modifying[i];
    Qp& qp = *waiting.qp;
    // The QP may be in ERR by now, or its CQ overrun.
    const std::errc error = check_modify(shard, shard.nic_of(qp), qp, waiting.command);
    std::optional<Outcome> outcome =
        error == std::errc{} ? try_modify(shard, qp, waiting.command, now) : refuse(error);
    if (!outcome.has_value()) {
      ++i;
      continue;
    }
    qp.is_modifying = false;
    shard.replies.push_back({waiting.id, outcome->error, std::move(outcome->body)});
    shard.modifying.erase(shard.modifying.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace roci::emulator
