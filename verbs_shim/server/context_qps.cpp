#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "emulator/ring_shape.h"
#include "emulator/shared_layout.h"
#include "verbs_shim/server/context_commands.h"

// QPs of a context, the multicast groups they are attached to, and SRQs.
namespace roci::shim {
namespace {

using emulator::QpCapabilities;

constexpr std::uint32_t kSgeBytes = sizeof(emulator::RingSge);

// What an element has room for behind the work request.
std::uint32_t tail_bytes(const emulator::RingShape& shape, std::size_t work_request_bytes) {
  return (1u << shape.log2_element_bytes) - static_cast<std::uint32_t>(work_request_bytes);
}

// Rings for at least what was asked: slots and elements are powers of two, and all that fits is granted, up
// to the device's limits. The granted capabilities give the same rings.
QpCapabilities grant(const QpCapabilities& asked, const emulator::DeviceLimits& limits) {
  const emulator::RingShape send = emulator::send_ring_shape(asked);
  const emulator::RingShape recv = emulator::recv_ring_shape(asked);
  const std::uint32_t send_tail = tail_bytes(send, sizeof(emulator::RingSendWqe));
  const std::uint32_t recv_tail = tail_bytes(recv, sizeof(emulator::RingRecvWqe));
  QpCapabilities granted;
  granted.max_send_wr = std::min(send.slots - 1, limits.max_qp_wr);
  granted.max_recv_wr = std::min(recv.slots - 1, limits.max_qp_wr);
  granted.max_send_sge = std::min(send_tail / kSgeBytes, limits.max_sge);
  granted.max_recv_sge = std::min(recv_tail / kSgeBytes, limits.max_sge);
  granted.max_inline_bytes = std::min(send_tail, limits.max_inline_bytes);
  return granted;
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
  a.qkey = proto::Qkey{wanted.qkey};
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

proto::Gid gid_of(const std::uint8_t (&bytes)[16]) {
  proto::Gid gid;
  std::copy(std::begin(bytes), std::end(bytes), gid.bytes.begin());
  return gid;
}

}  // namespace

// ---- QPs ---------------------------------------------------------------------------------------------

void Context::create_qp(const Request& request) {
  start_qp(request, request.call.request<ib_uverbs_create_qp>());
}

void Context::create_qp_ex(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_ex_create_qp>();
  if ((wanted.comp_mask & ~std::uint32_t{IB_UVERBS_CREATE_QP_MASK_IND_TABLE}) != 0 || wanted.reserved != 0)
    return host_.fail(request.to, std::errc::invalid_argument);
  if (wanted.comp_mask != 0 || wanted.create_flags != 0)
    return host_.fail(request.to, std::errc::operation_not_supported);
  start_qp(request, wanted);
}

template <class Wanted>
void Context::start_qp(const Request& request, const Wanted& wanted) {
  const emulator::DeviceLimits& limits = host_.config().limits;
  // QP1 is the device's own; a kernel refuses it alike.
  if (wanted.qp_type == static_cast<std::uint32_t>(emulator::QpType::kGsi))
    return host_.fail(request.to, std::errc::invalid_argument);
  const bool has_srq = wanted.is_srq != 0;
  QpCapabilities asked{wanted.max_send_wr, wanted.max_recv_wr, wanted.max_send_sge, wanted.max_recv_sge,
                       wanted.max_inline_data};
  if (has_srq) asked.max_recv_wr = asked.max_recv_sge = 0;
  if (!limits.allow(asked)) return host_.fail(request.to, std::errc::invalid_argument);
  Qp qp;
  qp.user_handle = wanted.user_handle;
  qp.signal_all = wanted.sq_sig_all != 0;
  qp.capabilities = grant(asked, limits);
  if (has_srq) qp.capabilities.max_recv_wr = qp.capabilities.max_recv_sge = 0;
  const emulator::RingShape send = emulator::send_ring_shape(qp.capabilities);
  const emulator::RingShape recv = emulator::recv_ring_shape(qp.capabilities);
  const auto send_ring = memory_->allocate(send.bytes());
  if (!send_ring) return host_.fail(request.to, std::errc::not_enough_memory);
  if (!has_srq) qp.recv_ring = memory_->allocate(recv.bytes());
  if (!has_srq && !qp.recv_ring) {
    memory_->free(*send_ring);
    return host_.fail(request.to, std::errc::not_enough_memory);
  }
  qp.send_ring = *send_ring;
  async_->watch(ObjectClass::kQp, qp.user_handle);
  emulator::CreateQp create;
  create.pd = {wanted.pd_handle};
  create.send_cq = {wanted.send_cq_handle};
  create.recv_cq = {wanted.recv_cq_handle};
  if (has_srq) create.srq = emulator::SrqHandle{wanted.srq_handle};
  create.type = wanted.qp_type;
  create.sq_signal_all = qp.signal_all;
  create.capabilities = qp.capabilities;
  create.send_ring = memory_->bytes_of(qp.send_ring).first(send.bytes());
  if (qp.recv_ring) create.recv_ring = memory_->bytes_of(*qp.recv_ring).first(recv.bytes());
  create.user_handle = qp.user_handle;
  run(
      request, create, [this, qp] { static_cast<void>(forget_qp(qp)); },
      [this, qp](const Request& done, Reply&& reply) {
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
        QpMmapInfo rings;
        rings.send = mmap_info(qp.send_ring);
        if (qp.recv_ring) rings.recv = mmap_info(*qp.recv_ring);
        answer_as_long_as_asked(done, response, bytes_of(rings));
      });
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
        r.qkey = a.qkey.value();
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
    answer_as_long_as_asked(done, zeroed<ib_uverbs_ex_modify_qp_resp>());
  });
}

void Context::destroy_qp(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_destroy_qp>();
  run(request, emulator::DestroyQp{{wanted.qp_handle}},
      [this, handle = wanted.qp_handle](const Request& done, Reply&&) {
        auto response = zeroed<ib_uverbs_destroy_qp_resp>();
        response.events_reported = forget_qp(qps_.extract(handle).mapped());
        answer(done, response);
      });
}

// Returns how many of its events the application has seen.
std::uint32_t Context::forget_qp(const Qp& qp) {
  memory_->free(qp.send_ring);
  if (qp.recv_ring) memory_->free(*qp.recv_ring);
  return async_->purge(ObjectClass::kQp, qp.user_handle);
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
  emulator::set_doorbell(*reinterpret_cast<emulator::ControlArea*>(memory_->control_area().data()), slot);
  constexpr std::uint64_t kOnce = 1;
  // A full counter means that a kick is pending already.
  static_cast<void>(!::write(host_.kick_fd(shard_), &kOnce, sizeof kOnce));
}

void Context::attach_multicast(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_attach_mcast>();
  run(request, emulator::AttachMulticast{{wanted.qp_handle}, gid_of(wanted.gid)});
}

void Context::detach_multicast(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_detach_mcast>();
  run(request, emulator::DetachMulticast{{wanted.qp_handle}, gid_of(wanted.gid)});
}

// ---- SRQs --------------------------------------------------------------------------------------------

void Context::create_srq(const Request& request) {
  start_srq(request, request.call.request<ib_uverbs_create_srq>());
}

void Context::create_xsrq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_create_xsrq>();
  if (wanted.srq_type != kSrqTypeBasic) return host_.fail(request.to, std::errc::operation_not_supported);
  start_srq(request, wanted);
}

template <class Wanted>
void Context::start_srq(const Request& request, const Wanted& wanted) {
  const emulator::DeviceLimits& limits = host_.config().limits;
  if (wanted.max_wr == 0 || wanted.max_wr > limits.max_srq_wr || wanted.max_sge > limits.max_srq_sge)
    return host_.fail(request.to, std::errc::invalid_argument);
  const emulator::RingShape shape = emulator::srq_ring_shape(wanted.max_wr, std::max(wanted.max_sge, 1u));
  const auto ring = memory_->allocate(shape.bytes());
  if (!ring) return host_.fail(request.to, std::errc::not_enough_memory);
  Srq srq;
  srq.ring.now = *ring;
  srq.user_handle = wanted.user_handle;
  srq.max_sge = std::min(tail_bytes(shape, sizeof(emulator::RingRecvWqe)) / kSgeBytes, limits.max_srq_sge);
  emulator::CreateSrq create;
  create.pd = {wanted.pd_handle};
  create.max_wr = std::min(shape.slots - 1, limits.max_srq_wr);
  create.max_sge = srq.max_sge;
  // Its srq_limit says nothing: ibv_create_srq(3) arms no limit, and an empty queue would be below any.
  create.ring = memory_->bytes_of(*ring).first(shape.bytes());
  create.user_handle = srq.user_handle;
  async_->watch(ObjectClass::kSrq, srq.user_handle);
  run(
      request, create, [this, srq] { static_cast<void>(forget_srq(srq)); },
      [this, srq, max_wr = create.max_wr](const Request& done, Reply&& reply) {
        const std::uint32_t handle = std::get<emulator::SrqHandle>(reply.body).value;
        srqs_[handle] = srq;
        auto response = zeroed<ib_uverbs_create_srq_resp>();
        response.srq_handle = handle;
        response.max_wr = max_wr;
        response.max_sge = srq.max_sge;
        response.srqn = handle;
        answer(done, response, bytes_of(SrqMmapInfo{mmap_info(srq.ring.now), handle, 0}));
      });
}

// The command has no response; where a new ring lies goes to an address within the command, by the shim.
void Context::modify_srq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_modify_srq>();
  const emulator::DeviceLimits& limits = host_.config().limits;
  const auto known = srqs_.find(wanted.srq_handle);
  if (known == srqs_.end() || (wanted.attr_mask & ~(kSrqMaxWr | kSrqLimit)) != 0)
    return host_.fail(request.to, std::errc::invalid_argument);
  emulator::ModifySrq modify;
  modify.srq = {wanted.srq_handle};
  if ((wanted.attr_mask & kSrqLimit) != 0) modify.limit = wanted.srq_limit;
  if ((wanted.attr_mask & kSrqMaxWr) == 0) return run(request, modify);

  if (wanted.max_wr == 0 || wanted.max_wr > limits.max_srq_wr)
    return host_.fail(request.to, std::errc::invalid_argument);
  const emulator::RingShape shape = emulator::srq_ring_shape(wanted.max_wr, known->second.max_sge);
  const auto ring = memory_->allocate(shape.bytes());
  if (!ring) return host_.fail(request.to, std::errc::not_enough_memory);
  modify.max_wr = std::min(shape.slots - 1, limits.max_srq_wr);
  modify.ring = memory_->bytes_of(*ring).first(shape.bytes());
  run(
      request, modify, [this, ring] { memory_->free(*ring); },
      [this, ring, handle = wanted.srq_handle](const Request& done, Reply&&) {
        move_ring(srqs_.at(handle).ring, *ring);
        answer_with(done, bytes_of(mmap_info(*ring)));
      });
}

void Context::query_srq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_query_srq>();
  run(request, emulator::QuerySrq{{wanted.srq_handle}}, [this](const Request& done, Reply&& reply) {
    const auto& srq = std::get<emulator::QuerySrqReply>(reply.body);
    auto response = zeroed<ib_uverbs_query_srq_resp>();
    response.max_wr = srq.max_wr;
    response.max_sge = srq.max_sge;
    response.srq_limit = srq.limit;
    answer(done, response);
  });
}

void Context::destroy_srq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_destroy_srq>();
  run(request, emulator::DestroySrq{{wanted.srq_handle}},
      [this, handle = wanted.srq_handle](const Request& done, Reply&&) {
        auto response = zeroed<ib_uverbs_destroy_srq_resp>();
        response.events_reported = forget_srq(srqs_.extract(handle).mapped());
        answer(done, response);
      });
}

std::uint32_t Context::forget_srq(const Srq& srq) {
  free_ring(srq.ring);
  return async_->purge(ObjectClass::kSrq, srq.user_handle);
}

}  // namespace roci::shim
