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
#include "verbs_shim/server/context_commands.h"
#include "verbs_shim/server/process_probe.h"

namespace roci::shim {
namespace {

using emulator::QpCapabilities;

constexpr std::uint32_t kExtended = UverbsCall::kExtendedFlag;
// Of `ib_uverbs_query_device_ex`: the part that every version of the ABI has.
constexpr std::uint16_t kMinDeviceResponseEx = offsetof(ib_uverbs_ex_query_device_resp, odp_caps);

std::uint64_t big_endian(std::uint64_t value) { return __builtin_bswap64(value); }

emulator::AddressVector address_vector(const ib_uverbs_ah_attr& attr) {
  emulator::AddressVector av;
  std::copy(std::begin(attr.grh.dgid), std::end(attr.grh.dgid), av.dgid.bytes.begin());
  av.flow_label = attr.grh.flow_label;
  av.sgid_index = attr.grh.sgid_index;
  av.hop_limit = attr.grh.hop_limit;
  av.traffic_class = attr.grh.traffic_class;
  av.service_level = attr.sl;
  av.is_global = attr.is_global != 0;
  av.port = attr.port_num;
  return av;
}

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
      {{IB_USER_VERBS_CMD_ALLOC_MW, sizeof(ib_uverbs_alloc_mw), sizeof(ib_uverbs_alloc_mw_resp), 0},
       &Context::alloc_mw},
      {{IB_USER_VERBS_CMD_DEALLOC_MW, sizeof(ib_uverbs_dealloc_mw), 0, 0}, &Context::dealloc_mw},
      {{IB_USER_VERBS_CMD_CREATE_AH, sizeof(ib_uverbs_create_ah), sizeof(ib_uverbs_create_ah_resp),
        sizeof(AhNumber)},
       &Context::create_ah},
      {{IB_USER_VERBS_CMD_DESTROY_AH, sizeof(ib_uverbs_destroy_ah), 0, 0}, &Context::destroy_ah},
      {{IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, 8, sizeof(ib_uverbs_create_comp_channel_resp), 0},
       &Context::create_comp_channel},
      {{IB_USER_VERBS_CMD_CREATE_CQ, sizeof(ib_uverbs_create_cq), sizeof(ib_uverbs_create_cq_resp),
        sizeof(MmapInfo)},
       &Context::create_cq},
      {{kExtended | IB_USER_VERBS_EX_CMD_CREATE_CQ, sizeof(ib_uverbs_ex_create_cq),
        sizeof(ib_uverbs_ex_create_cq_resp), sizeof(MmapInfo)},
       &Context::create_cq_ex},
      {{IB_USER_VERBS_CMD_RESIZE_CQ, sizeof(ib_uverbs_resize_cq), sizeof(ib_uverbs_resize_cq_resp),
        sizeof(MmapInfo)},
       &Context::resize_cq},
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
      {{IB_USER_VERBS_CMD_ATTACH_MCAST, sizeof(ib_uverbs_attach_mcast), 0, 0}, &Context::attach_multicast},
      {{IB_USER_VERBS_CMD_DETACH_MCAST, sizeof(ib_uverbs_detach_mcast), 0, 0}, &Context::detach_multicast},
      {{IB_USER_VERBS_CMD_CREATE_SRQ, sizeof(ib_uverbs_create_srq), sizeof(ib_uverbs_create_srq_resp),
        sizeof(SrqMmapInfo)},
       &Context::create_srq},
      {{IB_USER_VERBS_CMD_CREATE_XSRQ, sizeof(ib_uverbs_create_xsrq), sizeof(ib_uverbs_create_srq_resp),
        sizeof(SrqMmapInfo)},
       &Context::create_xsrq},
      {{IB_USER_VERBS_CMD_MODIFY_SRQ, sizeof(ib_uverbs_modify_srq), 0, 0}, &Context::modify_srq},
      {{IB_USER_VERBS_CMD_QUERY_SRQ, sizeof(ib_uverbs_query_srq), sizeof(ib_uverbs_query_srq_resp), 0},
       &Context::query_srq},
      {{IB_USER_VERBS_CMD_DESTROY_SRQ, sizeof(ib_uverbs_destroy_srq), sizeof(ib_uverbs_destroy_srq_resp), 0},
       &Context::destroy_srq},
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

void Context::answer(const Request& request) { answer_with(request, request.call.response({}, {})); }

void Context::answer_with(const Request& request, std::span<const std::byte> response) {
  answer_with_fd(request, response, kNoFd, UniqueFd());
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

void Context::tell_fatal() {
  constexpr std::uint32_t kDeviceFatal = 8;  // IBV_EVENT_DEVICE_FATAL
  if (async_) static_cast<void>(async_->push(ObjectClass::kPort, 1, kDeviceFatal));
}

// ---- device and port ---------------------------------------------------------------------------------

void Context::get_context(const Request& request) {
  auto ends = EventPipe::create(EventPipe::Record::kAsync);
  if (!ends) return host_.fail(request.to, ends.error());
  async_ = std::move(ends->pipe);
  async_->watch(ObjectClass::kPort, 1);
  async_watch_ = host_.watch(
      async_->write_fd(), [pipe = async_] { pipe->flush(); }, [] {});
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
  r.max_mw = limits.max_mw;
  r.max_mcast_grp = limits.max_mcast_grp;
  r.max_mcast_qp_attach = limits.max_mcast_qp_attach;
  r.max_total_mcast_qp_attach = limits.max_mcast_grp * limits.max_mcast_qp_attach;
  r.max_ah = limits.max_ah;
  r.max_srq = limits.max_srq;
  r.max_srq_wr = limits.max_srq_wr;
  r.max_srq_sge = limits.max_srq_sge;
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
  response.device_cap_flags_ex = response.base.device_cap_flags;
  answer_as_long_as_asked(request, response);
}

void Context::query_port(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_query_port>();
  if (wanted.port_num != 1) return host_.fail(request.to, std::errc::invalid_argument);
  const emulator::NicConfig& nic = host_.config().nics[nic_.index];
  const bool up = host_.link_up(nic_);
  auto r = zeroed<ib_uverbs_query_port_resp>();
  r.port_cap_flags = kPortCapabilities;
  r.max_msg_sz = host_.config().limits.max_message_bytes;
  r.gid_tbl_len = static_cast<std::uint32_t>(std::max(emulator::gid_table(nic).size(), kLeastGidTableLength));
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

// ---- PDs, memory and address handles -----------------------------------------------------------------

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
  if (const std::errc error = emulator::check_region_access(wanted.access_flags); error != std::errc{})
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

void Context::alloc_mw(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_alloc_mw>();
  run(request, emulator::AllocMw{{wanted.pd_handle}, wanted.mw_type},
      [this](const Request& done, Reply&& reply) {
        const auto& mw = std::get<emulator::AllocMwReply>(reply.body);
        auto response = zeroed<ib_uverbs_alloc_mw_resp>();
        response.mw_handle = mw.mw.value;
        response.rkey = mw.rkey.value();
        answer(done, response);
      });
}

void Context::dealloc_mw(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_dealloc_mw>();
  run(request, emulator::DeallocMw{{wanted.mw_handle}});
}

void Context::create_ah(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_create_ah>();
  run(request, emulator::CreateAh{{wanted.pd_handle}, address_vector(wanted.attr)},
      [this](const Request& done, Reply&& reply) {
        const std::uint32_t handle = std::get<emulator::AhHandle>(reply.body).value;
        auto response = zeroed<ib_uverbs_create_ah_resp>();
        response.ah_handle = handle;
        // 0 would tell the application's library that this device wants the address in every work request.
        answer(done, response, bytes_of(AhNumber{handle + 1, 0}));
      });
}

void Context::destroy_ah(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_destroy_ah>();
  run(request, emulator::DestroyAh{{wanted.ah_handle}});
}

// ---- rings that can be resized -----------------------------------------------------------------------

void Context::move_ring(MovableRing& ring, const ContextMemory::Area& to) {
  if (ring.before) memory_->free(*ring.before);
  ring.before = std::exchange(ring.now, to);
}

void Context::free_ring(const MovableRing& ring) {
  if (ring.before) memory_->free(*ring.before);
  memory_->free(ring.now);
}

}  // namespace roci::shim
