#include "verbs_shim/server/context.h"

#include <rdma/ib_user_verbs.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "emulator/ring_shape.h"
#include "emulator/shared_layout.h"
#include "verbs_shim/server/process_probe.h"

namespace roci::shim {
namespace {

using emulator::QpCapabilities;

constexpr std::uint32_t kExtended = UverbsCall::kExtendedFlag;
// Of `ib_uverbs_query_device_ex`: the part that every version of the ABI has.
constexpr std::uint16_t kMinDeviceResponseEx = offsetof(ib_uverbs_ex_query_device_resp, odp_caps);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// A struct of the ABI with every byte zero, padding too.
template <class T>
T zeroed() {
  T value;
  std::memset(static_cast<void*>(&value), 0, sizeof value);
  return value;
}

std::atomic_ref<std::uint64_t> atomic_word(std::uint64_t& word) {
  return std::atomic_ref<std::uint64_t>(word);
}

std::uint64_t big_endian(std::uint64_t value) { return __builtin_bswap64(value); }

// Rings for at least what was asked: slots and elements are powers of two, and all that fits is granted, up
// to the device's limits. The granted capabilities give the same rings.
QpCapabilities grant(const QpCapabilities& asked, const emulator::DeviceLimits& limits) {
  const emulator::RingShape send = emulator::send_ring_shape(asked);
  const emulator::RingShape recv = emulator::recv_ring_shape(asked);
  const std::uint32_t send_tail =
      (1u << send.log2_element_bytes) - std::uint32_t{sizeof(emulator::RingSendWqe)};
  const std::uint32_t recv_tail =
      (1u << recv.log2_element_bytes) - std::uint32_t{sizeof(emulator::RingRecvWqe)};
  constexpr std::uint32_t kSgeBytes = sizeof(emulator::RingSge);
  QpCapabilities granted;
  granted.max_send_wr = std::min(send.slots - 1, limits.max_qp_wr);
  granted.max_recv_wr = std::min(recv.slots - 1, limits.max_qp_wr);
  granted.max_send_sge = std::min(send_tail / kSgeBytes, limits.max_sge);
  granted.max_recv_sge = std::min(recv_tail / kSgeBytes, limits.max_sge);
  granted.max_inline_bytes = std::min(send_tail, limits.max_inline_bytes);
  return granted;
}

bool within(const QpCapabilities& asked, const emulator::DeviceLimits& limits) {
  return asked.max_send_wr <= limits.max_qp_wr && asked.max_recv_wr <= limits.max_qp_wr &&
         asked.max_send_sge <= limits.max_sge && asked.max_recv_sge <= limits.max_sge &&
         asked.max_inline_bytes <= limits.max_inline_bytes;
}

// std::errc{}: rights that a region may have.
std::errc check_access(std::uint32_t access) {
  using enum emulator::AccessFlags;
  constexpr std::uint32_t kKnown = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                   kAccessRemoteAtomic | kAccessMwBind | kAccessZeroBased | kAccessOnDemand |
                                   kAccessHugeTlb | emulator::kAccessOptionalMask;
  if ((access & ~kKnown) != 0) return std::errc::invalid_argument;
  if ((access & (kAccessZeroBased | kAccessOnDemand)) != 0) return std::errc::operation_not_supported;
  if ((access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0 && (access & kAccessLocalWrite) == 0)
    return std::errc::invalid_argument;
  return {};
}

emulator::AddressVector address_vector(const ib_uverbs_qp_dest& dest) {
  emulator::AddressVector av;
  std::copy(std::begin(dest.dgid), std::end(dest.dgid), av.dgid.bytes.begin());
  av.flow_label = dest.flow_label;
  av.sgid_index = dest.sgid_index;
  av.hop_limit = dest.hop_limit;
  av.traffic_class = dest.traffic_class;
  av.service_level = dest.sl;
  av.is_global = dest.is_global != 0;
  av.port = dest.port_num;
  return av;
}

ib_uverbs_qp_dest destination(const emulator::AddressVector& av) {
  auto dest = zeroed<ib_uverbs_qp_dest>();
  std::copy(av.dgid.bytes.begin(), av.dgid.bytes.end(), std::begin(dest.dgid));
  dest.flow_label = av.flow_label;
  dest.sgid_index = av.sgid_index;
  dest.hop_limit = av.hop_limit;
  dest.traffic_class = av.traffic_class;
  dest.sl = av.service_level;
  dest.is_global = av.is_global ? 1 : 0;
  dest.port_num = av.port;
  return dest;
}

emulator::QpAttributes attributes_of(const ib_uverbs_modify_qp& wanted) {
  emulator::QpAttributes a;
  a.state = static_cast<emulator::QpState>(wanted.qp_state);
  a.current_state = static_cast<emulator::QpState>(wanted.cur_qp_state);
  a.path_mtu_code = wanted.path_mtu;
  a.qkey = wanted.qkey;
  a.rq_psn = proto::Psn{wanted.rq_psn};
  a.sq_psn = proto::Psn{wanted.sq_psn};
  a.dest_qpn = proto::Qpn{wanted.dest_qp_num};
  a.access = wanted.qp_access_flags;
  a.av = address_vector(wanted.dest);
  a.pkey_index = wanted.pkey_index;
  a.port = wanted.port_num;
  a.max_rd_atomic = wanted.max_rd_atomic;
  a.max_dest_rd_atomic = wanted.max_dest_rd_atomic;
  a.min_rnr_timer = wanted.min_rnr_timer;
  a.timeout = wanted.timeout;
  a.retry_cnt = wanted.retry_cnt;
  a.rnr_retry = wanted.rnr_retry;
  a.en_sqd_async_notify = wanted.en_sqd_async_notify != 0;
  return a;
}

bool is_qp_state(std::uint8_t value) { return value <= static_cast<std::uint8_t>(emulator::QpState::kErr); }

}  // namespace

// ---- life --------------------------------------------------------------------------------------------

std::shared_ptr<Context> Context::open(ContextHost& host, emulator::NicId nic, std::uint32_t shard,
                                       const ucred& owner, const ReplyTo& to) {
  auto memory = ContextMemory::create();
  if (!memory) {
    host.fail(to, memory.error());
    return nullptr;
  }
  const std::optional<emulator::AddressSpaceId> space = host.spaces().add(owner.pid);
  if (!space) {
    host.fail(to, std::errc::not_enough_memory);
    return nullptr;
  }
  std::shared_ptr<Context> context(new Context(host, nic, shard, std::move(*memory)));
  context->owner_ = owner.pid;
  context->space_ = space;
  emulator::OpenContext open_context{nic, context->memory_->control_area(), process_name(owner.pid)};
  host.submit(shard, {{}, std::move(open_context)},
              [context, to](Reply&& reply) { context->opened(to, std::move(reply)); });
  return context;
}

Context::Context(ContextHost& host, emulator::NicId nic, std::uint32_t shard,
                 std::unique_ptr<ContextMemory> memory)
    : host_(host), nic_(nic), shard_(shard), memory_(std::move(memory)) {}

Context::~Context() = default;

void Context::opened(const ReplyTo& to, Reply&& reply) {
  if (reply.error != std::errc{}) {
    host_.fail(to, reply.error);
    closed_ = true;
  } else {
    id_ = std::get<emulator::ContextId>(reply.body);
    is_open_ = true;
    OpenDeviceReply opened;
    opened.context = id_.value;
    opened.memory_bytes = ContextMemory::kBytes;
    ReplyBody body;
    const auto bytes = bytes_of(opened);
    body.payload.assign(bytes.begin(), bytes.end());
    body.fds.push_back(memory_->take_fd());
    body.fds.push_back(UniqueFd::duplicate(host_.kick_fd(shard_)));
    if (body.fds[1]) {
      host_.reply(to, std::move(body));
    } else {
      host_.fail(to, static_cast<std::errc>(errno));
    }
  }
  if (closing_) submit_close();
}

void Context::close(std::function<void()> done) {
  when_closed_.push_back(std::move(done));
  if (space_) host_.spaces().mark_dead(*space_);
  const bool first = !std::exchange(closing_, true);
  // An opening context is closed when the engine has answered.
  if (closed_ || (first && is_open_)) submit_close();
}

void Context::submit_close() {
  const auto finish = [self = shared_from_this()] {
    self->closed_ = true;
    self->is_open_ = false;
    for (auto& [id, channel] : self->channels_) {
      self->host_.router().remove_channel(id);
      self->host_.unwatch(channel.watch);
    }
    self->channels_.clear();
    if (self->async_) {
      self->host_.router().remove_context(self->id_);
      self->host_.unwatch(self->async_watch_);
      self->async_.reset();
    }
    if (self->space_) self->host_.spaces().remove(*std::exchange(self->space_, std::nullopt));
    self->memory_.reset();
    for (const auto& done : std::exchange(self->when_closed_, {}))
      done();
  };
  if (closed_) {
    finish();
    return;
  }
  host_.submit(shard_, {id_, emulator::CloseContext{}}, [finish](Reply&&) { finish(); });
}

// ---- dispatch ----------------------------------------------------------------------------------------

const Context::Row* Context::find_row(std::uint32_t command) {
  // Everything else is EOPNOTSUPP, as the kernel says of what a driver lacks.
  static constexpr Row kRows[] = {
      {{IB_USER_VERBS_CMD_GET_CONTEXT, 8, sizeof(ib_uverbs_get_context_resp), 0}, &Context::get_context},
      {{IB_USER_VERBS_CMD_QUERY_DEVICE, 8, sizeof(ib_uverbs_query_device_resp), 0}, &Context::query_device},
      {{kExtended | IB_USER_VERBS_EX_CMD_QUERY_DEVICE, sizeof(ib_uverbs_ex_query_device),
        kMinDeviceResponseEx, 0},
       &Context::query_device_ex},
      {{IB_USER_VERBS_CMD_QUERY_PORT, sizeof(ib_uverbs_query_port), sizeof(ib_uverbs_query_port_resp), 0},
       &Context::query_port},
      {{IB_USER_VERBS_CMD_ALLOC_PD, 8, sizeof(ib_uverbs_alloc_pd_resp), 0}, &Context::alloc_pd},
      {{IB_USER_VERBS_CMD_DEALLOC_PD, sizeof(ib_uverbs_dealloc_pd), 0, 0}, &Context::dealloc_pd},
      {{IB_USER_VERBS_CMD_REG_MR, sizeof(ib_uverbs_reg_mr), sizeof(ib_uverbs_reg_mr_resp), 0},
       &Context::reg_mr},
      {{IB_USER_VERBS_CMD_DEREG_MR, sizeof(ib_uverbs_dereg_mr), 0, 0}, &Context::dereg_mr},
      {{IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, 8, sizeof(ib_uverbs_create_comp_channel_resp), 0},
       &Context::create_comp_channel},
      {{IB_USER_VERBS_CMD_CREATE_CQ, sizeof(ib_uverbs_create_cq), sizeof(ib_uverbs_create_cq_resp),
        sizeof(MmapInfo)},
       &Context::create_cq},
      {{kExtended | IB_USER_VERBS_EX_CMD_CREATE_CQ, sizeof(ib_uverbs_ex_create_cq),
        sizeof(ib_uverbs_ex_create_cq_resp), sizeof(MmapInfo)},
       &Context::create_cq_ex},
      {{IB_USER_VERBS_CMD_DESTROY_CQ, sizeof(ib_uverbs_destroy_cq), sizeof(ib_uverbs_destroy_cq_resp), 0},
       &Context::destroy_cq},
      {{IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, sizeof(ib_uverbs_req_notify_cq), 0, 0}, &Context::req_notify_cq},
      {{IB_USER_VERBS_CMD_CREATE_QP, sizeof(ib_uverbs_create_qp), sizeof(ib_uverbs_create_qp_resp),
        sizeof(QpMmapInfo)},
       &Context::create_qp},
      {{kExtended | IB_USER_VERBS_EX_CMD_CREATE_QP, offsetof(ib_uverbs_ex_create_qp, rwq_ind_tbl_handle),
        sizeof(ib_uverbs_ex_create_qp_resp), sizeof(QpMmapInfo)},
       &Context::create_qp_ex},
      {{IB_USER_VERBS_CMD_QUERY_QP, sizeof(ib_uverbs_query_qp), sizeof(ib_uverbs_query_qp_resp), 0},
       &Context::query_qp},
      {{IB_USER_VERBS_CMD_MODIFY_QP, sizeof(ib_uverbs_modify_qp), 0, 0}, &Context::modify_qp},
      {{kExtended | IB_USER_VERBS_EX_CMD_MODIFY_QP, sizeof(ib_uverbs_modify_qp), 0, 0},
       &Context::modify_qp_ex},
      {{IB_USER_VERBS_CMD_DESTROY_QP, sizeof(ib_uverbs_destroy_qp), sizeof(ib_uverbs_destroy_qp_resp), 0},
       &Context::destroy_qp},
      {{IB_USER_VERBS_CMD_POST_SEND, offsetof(ib_uverbs_post_send, send_wr), sizeof(ib_uverbs_post_send_resp),
        0},
       &Context::post_send},
  };
  const auto* const at = std::find_if(std::begin(kRows), std::end(kRows),
                                      [&](const Row& row) { return row.format.command == command; });
  return at == std::end(kRows) ? nullptr : at;
}

void Context::handle(const ReplyTo& to, const ucred& sender, std::span<const std::byte> payload) {
  UverbsRequest head;
  if (!is_open_ || closing_) return host_.fail(to, std::errc::no_such_device);
  if (sender.pid != owner_) return host_.fail(to, std::errc::operation_not_permitted);
  if (payload.size() < sizeof head) return host_.fail(to, std::errc::invalid_argument);
  std::memcpy(&head, payload.data(), sizeof head);
  payload = payload.subspan(sizeof head);

  const auto command = UverbsCall::command_of(payload);
  if (!command) return host_.fail(to, command.error());
  const Row* const row = find_row(*command);
  if (row == nullptr) return host_.fail(to, std::errc::operation_not_supported);
  auto call = UverbsCall::parse(row->format, payload);
  if (!call) return host_.fail(to, call.error());
  // GET_CONTEXT comes first and once.
  if (has_context_ == (row->handler == &Context::get_context))
    return host_.fail(to, std::errc::invalid_argument);
  (this->*row->handler)({to, head.channel_inode, *call});
}

template <class Body, class Then>
void Context::run(const Request& request, Body&& body, Then then) {
  host_.submit(shard_, {id_, std::forward<Body>(body)},
               [self = shared_from_this(), request, then = std::move(then)](Reply&& reply) {
                 if (reply.error != std::errc{}) return self->host_.fail(request.to, reply.error);
                 then(request, std::move(reply));
               });
}

template <class Body>
void Context::run(const Request& request, Body&& body) {
  run(request, std::forward<Body>(body), [this](const Request& done, Reply&&) { answer(done); });
}

template <class Response>
void Context::answer(const Request& request, const Response& response, std::span<const std::byte> driver) {
  answer_with_fd(request, request.call.response(bytes_of(response), driver), kNoFd, UniqueFd());
}

void Context::answer(const Request& request) {
  answer_with_fd(request, request.call.response({}, {}), kNoFd, UniqueFd());
}

void Context::answer_with_fd(const Request& request, std::span<const std::byte> response,
                             std::size_t fd_offset, UniqueFd fd) {
  UverbsReply head;
  head.fd_offset = static_cast<std::uint32_t>(fd_offset);
  ReplyBody body;
  const auto bytes = bytes_of(head);
  body.payload.assign(bytes.begin(), bytes.end());
  body.payload.insert(body.payload.end(), response.begin(), response.end());
  if (fd) body.fds.push_back(std::move(fd));
  host_.reply(request.to, std::move(body));
}

// ---- device and port ---------------------------------------------------------------------------------

void Context::get_context(const Request& request) {
  auto ends = EventPipe::create(EventPipe::Record::kAsync);
  if (!ends) return host_.fail(request.to, ends.error());
  async_ = std::move(ends->pipe);
  async_->watch(ObjectClass::kPort, 1);
  async_watch_ = host_.watch(async_, [] {});
  host_.router().add_context(id_, async_);
  has_context_ = true;
  auto response = zeroed<ib_uverbs_get_context_resp>();
  response.num_comp_vectors = kCompletionVectors;
  answer_with_fd(request, request.call.response(bytes_of(response), {}),
                 offsetof(ib_uverbs_get_context_resp, async_fd), std::move(ends->reader));
}

ib_uverbs_query_device_resp Context::device_attributes() const {
  const emulator::DeviceLimits& limits = host_.config().limits;
  const emulator::NicConfig& nic = host_.config().nics[nic_.index];
  auto r = zeroed<ib_uverbs_query_device_resp>();
  r.node_guid = r.sys_image_guid = big_endian(guid_of(nic.mac));
  r.max_mr_size = limits.max_mr_bytes;
  r.page_size_cap = kPageSizes;
  r.vendor_id = kVendorId;
  r.max_qp = limits.max_qp;
  r.max_qp_wr = limits.max_qp_wr;
  r.device_cap_flags = kDeviceCapabilities;
  r.max_sge = limits.max_sge;
  r.max_sge_rd = limits.max_sge;
  r.max_cq = limits.max_cq;
  r.max_cqe = limits.max_cqe;
  r.max_mr = limits.max_mr;
  r.max_pd = limits.max_pd;
  r.max_qp_rd_atom = limits.max_qp_rd_atom;
  r.max_res_rd_atom = limits.max_qp_rd_atom * limits.max_qp;
  r.max_qp_init_rd_atom = limits.max_qp_init_rd_atom;
  r.atomic_cap = kAtomicHca;
  r.max_pkeys = kPkeyTableLength;
  r.local_ca_ack_delay = kCaAckDelayCode;
  r.phys_port_cnt = 1;
  return r;
}

void Context::query_device(const Request& request) { answer(request, device_attributes()); }

void Context::query_device_ex(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_ex_query_device>();
  if (wanted.comp_mask != 0 || wanted.reserved != 0)
    return host_.fail(request.to, std::errc::invalid_argument);
  auto response = zeroed<ib_uverbs_ex_query_device_resp>();
  response.base = device_attributes();
  response.response_length =
      static_cast<std::uint32_t>(std::min(sizeof response, request.call.core_capacity_bytes()));
  response.device_cap_flags_ex = response.base.device_cap_flags;
  answer(request, response);
}

void Context::query_port(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_query_port>();
  if (wanted.port_num != 1) return host_.fail(request.to, std::errc::invalid_argument);
  const emulator::NicConfig& nic = host_.config().nics[nic_.index];
  const bool up = host_.link_up(nic_);
  auto r = zeroed<ib_uverbs_query_port_resp>();
  r.port_cap_flags = kPortCapabilities;
  r.max_msg_sz = host_.config().limits.max_message_bytes;
  r.gid_tbl_len = static_cast<std::uint32_t>(emulator::gid_table(nic).size());
  r.pkey_tbl_len = kPkeyTableLength;
  r.state = port_state(up).number;
  r.max_mtu = kMaxMtuCode;
  r.active_mtu = mtu_code(emulator::active_path_mtu(nic.mtu_bytes));
  r.max_vl_num = kVirtualLanes;
  r.active_width = kActiveWidth;
  r.active_speed = kActiveSpeed;
  r.phys_state = physical_state(up).number;
  r.link_layer = kLinkLayerEthernet;
  answer(request, r);
}

// ---- PDs and MRs -------------------------------------------------------------------------------------

void Context::alloc_pd(const Request& request) {
  run(request, emulator::AllocPd{}, [this](const Request& done, Reply&& reply) {
    auto response = zeroed<ib_uverbs_alloc_pd_resp>();
    response.pd_handle = std::get<emulator::PdHandle>(reply.body).value;
    answer(done, response);
  });
}

void Context::dealloc_pd(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_dealloc_pd>();
  run(request, emulator::DeallocPd{{wanted.pd_handle}});
}

void Context::reg_mr(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_reg_mr>();
  constexpr std::uint64_t kPageOffset = 4095;
  if (((wanted.start ^ wanted.hca_va) & kPageOffset) != 0)
    return host_.fail(request.to, std::errc::invalid_argument);
  if (const std::errc error = check_access(wanted.access_flags); error != std::errc{})
    return host_.fail(request.to, error);
  const bool writable = (wanted.access_flags & emulator::kAccessLocalWrite) != 0;
  const std::errc mapped = probe_memory(owner_, wanted.start, wanted.length, writable);
  if (mapped == std::errc::operation_not_permitted) {
    host_.log("the memory of " + process_name(owner_) +
              " cannot be reached: it runs as another user, is not dumpable, or ptrace_scope forbids it");
  }
  if (mapped != std::errc{}) return host_.fail(request.to, mapped);

  emulator::RegMr reg;
  reg.pd = {wanted.pd_handle};
  reg.space = *space_;
  reg.address = wanted.start;
  reg.length_bytes = wanted.length;
  reg.iova = wanted.hca_va;
  reg.access = wanted.access_flags & ~emulator::kAccessOptionalMask;
  run(request, reg, [this](const Request& done, Reply&& reply) {
    const auto& mr = std::get<emulator::RegMrReply>(reply.body);
    auto response = zeroed<ib_uverbs_reg_mr_resp>();
    response.mr_handle = mr.mr.value;
    response.lkey = mr.lkey.value();
    response.rkey = mr.rkey.value();
    answer(done, response);
  });
}

void Context::dereg_mr(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_dereg_mr>();
  run(request, emulator::DeregMr{{wanted.mr_handle}});
}

// ---- channels and CQs --------------------------------------------------------------------------------

void Context::create_comp_channel(const Request& request) {
  if (channels_.size() == kMaxChannels) return host_.fail(request.to, std::errc::too_many_files_open);
  auto ends = EventPipe::create(EventPipe::Record::kCompletion);
  if (!ends) return host_.fail(request.to, ends.error());
  static std::uint64_t next_channel = 1;  // 0 means none; unique in the daemon
  const std::uint64_t id = next_channel++;
  Channel channel;
  channel.pipe = std::move(ends->pipe);
  channel.watch = host_.watch(channel.pipe, [weak = weak_from_this(), id] {
    if (const auto self = weak.lock()) self->channel_closed(id);
  });
  host_.router().add_channel(id, channel.pipe);
  channels_.emplace(id, std::move(channel));
  auto response = zeroed<ib_uverbs_create_comp_channel_resp>();
  answer_with_fd(request, request.call.response(bytes_of(response), {}),
                 offsetof(ib_uverbs_create_comp_channel_resp, fd), std::move(ends->reader));
}

std::optional<std::uint64_t> Context::find_channel(std::uint64_t inode) const {
  const auto at = std::find_if(channels_.begin(), channels_.end(), [&](const auto& entry) {
    return entry.second.pipe->inode() == inode && !entry.second.closed;
  });
  return at == channels_.end() ? std::nullopt : std::optional(at->first);
}

void Context::channel_closed(std::uint64_t channel) {
  const auto at = channels_.find(channel);
  if (at == channels_.end()) return;
  at->second.closed = true;
  drop_channel_if_unused(channel);
}

void Context::drop_channel_if_unused(std::uint64_t channel) {
  const auto at = channels_.find(channel);
  if (at == channels_.end() || !at->second.closed || at->second.cqs != 0) return;
  host_.router().remove_channel(channel);
  host_.unwatch(at->second.watch);
  channels_.erase(at);
}

void Context::create_cq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_create_cq>();
  start_cq(request, {wanted.user_handle, wanted.cqe, wanted.comp_vector, wanted.comp_channel});
}

void Context::create_cq_ex(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_ex_create_cq>();
  if (wanted.comp_mask != 0 || wanted.reserved != 0)
    return host_.fail(request.to, std::errc::invalid_argument);
  if (wanted.flags != 0) return host_.fail(request.to, std::errc::operation_not_supported);
  start_cq(request, {wanted.user_handle, wanted.cqe, wanted.comp_vector, wanted.comp_channel});
}

void Context::start_cq(const Request& request, const CqRequest& wanted) {
  if (wanted.vector >= kCompletionVectors || wanted.entries == 0 ||
      wanted.entries > host_.config().limits.max_cqe)
    return host_.fail(request.to, std::errc::invalid_argument);
  Cq cq;
  cq.user_handle = wanted.user_handle;
  if (wanted.channel_fd >= 0) {
    const auto channel = find_channel(request.channel_inode);
    if (!channel) return host_.fail(request.to, std::errc::bad_file_descriptor);
    cq.channel = *channel;
  }
  const emulator::RingShape shape = emulator::cq_ring_shape(wanted.entries);
  const auto ring = memory_->allocate(shape.bytes());
  if (!ring) return host_.fail(request.to, std::errc::not_enough_memory);
  cq.ring = *ring;
  // Watched before the engine can raise anything.
  async_->watch(ObjectClass::kCq, cq.user_handle);
  if (cq.channel != 0) {
    Channel& channel = channels_.at(cq.channel);
    channel.pipe->watch(ObjectClass::kCq, cq.user_handle);
    ++channel.cqs;
  }
  emulator::CreateCq create;
  create.ring = memory_->bytes_of(cq.ring).first(shape.bytes());
  create.slots = shape.slots;
  create.user_handle = cq.user_handle;
  create.channel = cq.channel;
  host_.submit(shard_, {id_, create},
               [self = shared_from_this(), request, cq, entries = shape.slots - 1](Reply&& reply) {
                 self->finish_cq(request, cq, entries, std::move(reply));
               });
}

void Context::finish_cq(const Request& request, const Cq& cq, std::uint32_t entries, Reply&& reply) {
  if (closed_) return host_.fail(request.to, std::errc::no_such_device);
  if (reply.error != std::errc{}) {
    memory_->free(cq.ring);
    static_cast<void>(async_->purge(ObjectClass::kCq, cq.user_handle));
    if (cq.channel != 0) {
      Channel& channel = channels_.at(cq.channel);
      static_cast<void>(channel.pipe->purge(ObjectClass::kCq, cq.user_handle));
      --channel.cqs;
      drop_channel_if_unused(cq.channel);
    }
    return host_.fail(request.to, reply.error);
  }
  const std::uint32_t handle = std::get<emulator::CqHandle>(reply.body).value;
  cqs_[handle] = cq;
  auto response = zeroed<ib_uverbs_ex_create_cq_resp>();
  response.base.cq_handle = handle;
  response.base.cqe = entries;
  response.response_length = sizeof response;
  const MmapInfo ring{cq.ring.offset, static_cast<std::uint32_t>(cq.ring.bytes), 0};
  // The legacy response is the beginning of the extended one.
  const std::size_t core = std::min(sizeof response, request.call.core_capacity_bytes());
  answer_with_fd(request, request.call.response(bytes_of(response).first(core), bytes_of(ring)), kNoFd,
                 UniqueFd());
}

void Context::destroy_cq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_destroy_cq>();
  run(request, emulator::DestroyCq{{wanted.cq_handle}},
      [this, handle = wanted.cq_handle](const Request& done, Reply&&) {
        auto response = zeroed<ib_uverbs_destroy_cq_resp>();
        if (const auto at = cqs_.find(handle); at != cqs_.end() && !closed_) {
          const Cq cq = at->second;
          cqs_.erase(at);
          memory_->free(cq.ring);
          response.async_events_reported = async_->purge(ObjectClass::kCq, cq.user_handle);
          if (cq.channel != 0) {
            Channel& channel = channels_.at(cq.channel);
            response.comp_events_reported = channel.pipe->purge(ObjectClass::kCq, cq.user_handle);
            --channel.cqs;
            drop_channel_if_unused(cq.channel);
          }
        }
        answer(done, response);
      });
}

// The shim arms a CQ by a store of its own; a command that comes all the same means the same, and
// never weakens what is armed either.
void Context::req_notify_cq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_req_notify_cq>();
  if (!cqs_.contains(wanted.cq_handle) || wanted.cq_handle >= emulator::kMaxCqsPerContext)
    return host_.fail(request.to, std::errc::invalid_argument);
  auto* const control = reinterpret_cast<emulator::ControlArea*>(memory_->control_area().data());
  const auto arm = static_cast<std::uint32_t>(wanted.solicited_only != 0 ? emulator::CqArm::kSolicited
                                                                         : emulator::CqArm::kNext);
  const std::atomic_ref<std::uint32_t> word(control->cq_arm[wanted.cq_handle]);
  std::uint32_t armed = word.load();
  while (armed < arm && !word.compare_exchange_weak(armed, arm)) {
  }
  answer(request);
}

// ---- QPs ---------------------------------------------------------------------------------------------

void Context::create_qp(const Request& request) {
  const auto r = request.call.request<ib_uverbs_create_qp>();
  start_qp(request, {r.user_handle,
                     r.pd_handle,
                     r.send_cq_handle,
                     r.recv_cq_handle,
                     {r.max_send_wr, r.max_recv_wr, r.max_send_sge, r.max_recv_sge, r.max_inline_data},
                     r.sq_sig_all != 0,
                     r.is_srq != 0,
                     r.qp_type});
}

void Context::create_qp_ex(const Request& request) {
  const auto r = request.call.request<ib_uverbs_ex_create_qp>();
  if (r.comp_mask != 0 || r.create_flags != 0)
    return host_.fail(request.to, std::errc::operation_not_supported);
  start_qp(request, {r.user_handle,
                     r.pd_handle,
                     r.send_cq_handle,
                     r.recv_cq_handle,
                     {r.max_send_wr, r.max_recv_wr, r.max_send_sge, r.max_recv_sge, r.max_inline_data},
                     r.sq_sig_all != 0,
                     r.is_srq != 0,
                     r.qp_type});
}

void Context::start_qp(const Request& request, const QpRequest& wanted) {
  const emulator::DeviceLimits& limits = host_.config().limits;
  if (wanted.has_srq) return host_.fail(request.to, std::errc::operation_not_supported);
  if (!within(wanted.capabilities, limits)) return host_.fail(request.to, std::errc::invalid_argument);
  Qp qp;
  qp.user_handle = wanted.user_handle;
  qp.signal_all = wanted.signal_all;
  qp.capabilities = grant(wanted.capabilities, limits);
  const emulator::RingShape send = emulator::send_ring_shape(qp.capabilities);
  const emulator::RingShape recv = emulator::recv_ring_shape(qp.capabilities);
  const auto send_ring = memory_->allocate(send.bytes());
  const auto recv_ring = memory_->allocate(recv.bytes());
  if (!send_ring || !recv_ring) {
    if (send_ring) memory_->free(*send_ring);
    if (recv_ring) memory_->free(*recv_ring);
    return host_.fail(request.to, std::errc::not_enough_memory);
  }
  qp.send_ring = *send_ring;
  qp.recv_ring = *recv_ring;
  async_->watch(ObjectClass::kQp, qp.user_handle);
  emulator::CreateQp create;
  create.pd = {wanted.pd};
  create.send_cq = {wanted.send_cq};
  create.recv_cq = {wanted.recv_cq};
  create.type = wanted.type;
  create.sq_signal_all = qp.signal_all;
  create.capabilities = qp.capabilities;
  create.send_ring = memory_->bytes_of(qp.send_ring).first(send.bytes());
  create.recv_ring = memory_->bytes_of(qp.recv_ring).first(recv.bytes());
  create.user_handle = qp.user_handle;
  host_.submit(shard_, {id_, create}, [self = shared_from_this(), request, qp](Reply&& reply) {
    self->finish_qp(request, qp, std::move(reply));
  });
}

void Context::finish_qp(const Request& request, const Qp& qp, Reply&& reply) {
  if (closed_) return host_.fail(request.to, std::errc::no_such_device);
  if (reply.error != std::errc{}) {
    memory_->free(qp.send_ring);
    memory_->free(qp.recv_ring);
    static_cast<void>(async_->purge(ObjectClass::kQp, qp.user_handle));
    return host_.fail(request.to, reply.error);
  }
  const auto& created = std::get<emulator::CreateQpReply>(reply.body);
  qps_[created.qp.value] = qp;
  auto response = zeroed<ib_uverbs_ex_create_qp_resp>();
  response.base.qp_handle = created.qp.value;
  response.base.qpn = created.qpn.value();
  response.base.max_send_wr = qp.capabilities.max_send_wr;
  response.base.max_recv_wr = qp.capabilities.max_recv_wr;
  response.base.max_send_sge = qp.capabilities.max_send_sge;
  response.base.max_recv_sge = qp.capabilities.max_recv_sge;
  response.base.max_inline_data = qp.capabilities.max_inline_bytes;
  response.response_length = sizeof response;
  const QpMmapInfo rings{{qp.recv_ring.offset, static_cast<std::uint32_t>(qp.recv_ring.bytes), 0},
                         {qp.send_ring.offset, static_cast<std::uint32_t>(qp.send_ring.bytes), 0}};
  // The legacy response is the beginning of the extended one.
  const std::size_t core = std::min(sizeof response, request.call.core_capacity_bytes());
  answer_with_fd(request, request.call.response(bytes_of(response).first(core), bytes_of(rings)), kNoFd,
                 UniqueFd());
}

void Context::query_qp(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_query_qp>();
  run(request, emulator::QueryQp{{wanted.qp_handle}},
      [this, handle = wanted.qp_handle](const Request& done, Reply&& reply) {
        const emulator::QpAttributes& a = std::get<emulator::QueryQpReply>(reply.body).attributes;
        const auto known = qps_.find(handle);
        const Qp qp = known == qps_.end() ? Qp{} : known->second;
        auto r = zeroed<ib_uverbs_query_qp_resp>();
        r.dest = destination(a.av);
        r.max_send_wr = qp.capabilities.max_send_wr;
        r.max_recv_wr = qp.capabilities.max_recv_wr;
        r.max_send_sge = qp.capabilities.max_send_sge;
        r.max_recv_sge = qp.capabilities.max_recv_sge;
        r.max_inline_data = qp.capabilities.max_inline_bytes;
        r.qkey = a.qkey;
        r.rq_psn = a.rq_psn.value();
        r.sq_psn = a.sq_psn.value();
        r.dest_qp_num = a.dest_qpn.value();
        r.qp_access_flags = a.access;
        r.pkey_index = a.pkey_index;
        r.qp_state = static_cast<std::uint8_t>(a.state);
        r.cur_qp_state = static_cast<std::uint8_t>(a.current_state);
        r.path_mtu = static_cast<std::uint8_t>(a.path_mtu_code);
        r.sq_draining = a.sq_draining ? 1 : 0;
        r.max_rd_atomic = a.max_rd_atomic;
        r.max_dest_rd_atomic = a.max_dest_rd_atomic;
        r.min_rnr_timer = a.min_rnr_timer;
        r.port_num = a.port;
        r.timeout = a.timeout;
        r.retry_cnt = a.retry_cnt;
        r.rnr_retry = a.rnr_retry;
        r.sq_sig_all = qp.signal_all ? 1 : 0;
        answer(done, r);
      });
}

void Context::modify_qp(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_modify_qp>();
  start_modify(request, wanted, false);
}

void Context::modify_qp_ex(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_modify_qp>();
  start_modify(request, wanted, true);
}

void Context::start_modify(const Request& request, const ib_uverbs_modify_qp& wanted, bool extended) {
  const std::uint32_t allowed = extended ? kExtendedModifyMask : kLegacyModifyMask;
  if ((wanted.attr_mask & ~allowed) != 0) return host_.fail(request.to, std::errc::operation_not_supported);
  if (((wanted.attr_mask & emulator::kQpState) != 0 && !is_qp_state(wanted.qp_state)) ||
      ((wanted.attr_mask & emulator::kQpCurState) != 0 && !is_qp_state(wanted.cur_qp_state)))
    return host_.fail(request.to, std::errc::invalid_argument);
  emulator::ModifyQp modify;
  modify.qp = {wanted.qp_handle};
  modify.mask = wanted.attr_mask;
  modify.attributes = attributes_of(wanted);
  if (!extended) return run(request, modify);
  run(request, modify, [this](const Request& done, Reply&&) {
    auto response = zeroed<ib_uverbs_ex_modify_qp_resp>();
    response.response_length =
        static_cast<std::uint32_t>(std::min(sizeof response, done.call.core_capacity_bytes()));
    answer(done, response);
  });
}

void Context::destroy_qp(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_destroy_qp>();
  run(request, emulator::DestroyQp{{wanted.qp_handle}},
      [this, handle = wanted.qp_handle](const Request& done, Reply&&) {
        auto response = zeroed<ib_uverbs_destroy_qp_resp>();
        if (const auto at = qps_.find(handle); at != qps_.end() && !closed_) {
          const Qp qp = at->second;
          qps_.erase(at);
          memory_->free(qp.send_ring);
          memory_->free(qp.recv_ring);
          response.events_reported = async_->purge(ObjectClass::kQp, qp.user_handle);
        }
        answer(done, response);
      });
}

// The shim rings by a store of its own; a doorbell that comes as a command (no work requests in it) means the
// same.
void Context::post_send(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_post_send>();
  if (wanted.wr_count != 0 || wanted.qp_handle >= emulator::kMaxQpsPerContext ||
      !qps_.contains(wanted.qp_handle))
    return host_.fail(request.to, std::errc::invalid_argument);
  ring_doorbell(wanted.qp_handle);
  answer(request, zeroed<ib_uverbs_post_send_resp>());
}

void Context::ring_doorbell(std::uint32_t slot) {
  auto* const control = reinterpret_cast<emulator::ControlArea*>(memory_->control_area().data());
  atomic_word(control->doorbells[slot / 64]).fetch_or(std::uint64_t{1} << (slot % 64));
  atomic_word(control->doorbell_summary[slot / 4096]).fetch_or(std::uint64_t{1} << (slot / 64 % 64));
  constexpr std::uint64_t kOnce = 1;
  // A full counter means that a kick is pending already.
  static_cast<void>(!::write(host_.kick_fd(shard_), &kOnce, sizeof kOnce));
}

}  // namespace roci::shim
