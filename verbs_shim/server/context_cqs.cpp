#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "emulator/ring_shape.h"
#include "emulator/shared_layout.h"
#include "verbs_shim/server/context_commands.h"

// Completion channels and CQs of a context.
namespace roci::shim {

// ---- channels ----------------------------------------------------------------------------------------

void Context::create_comp_channel(const Request& request) {
  if (channels_.size() == kMaxChannels) return host_.fail(request.to, std::errc::too_many_files_open);
  auto ends = EventPipe::create(EventPipe::Record::kCompletion);
  if (!ends) return host_.fail(request.to, ends.error());
  static std::uint64_t next_channel = 1;  // 0 means none; unique in the daemon
  const std::uint64_t id = next_channel++;
  Channel channel;
  channel.pipe = std::move(ends->pipe);
  channel.watch = host_.watch(
      channel.pipe->write_fd(), [pipe = channel.pipe] { pipe->flush(); },
      [weak = weak_from_this(), id] {
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

// ---- CQs ---------------------------------------------------------------------------------------------

void Context::create_cq(const Request& request) {
  start_cq(request, request.call.request<ib_uverbs_create_cq>());
}

void Context::create_cq_ex(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_ex_create_cq>();
  if (wanted.comp_mask != 0 || wanted.reserved != 0)
    return host_.fail(request.to, std::errc::invalid_argument);
  if (wanted.flags != 0) return host_.fail(request.to, std::errc::operation_not_supported);
  start_cq(request, wanted);
}

template <class Wanted>
void Context::start_cq(const Request& request, const Wanted& wanted) {
  if (wanted.comp_vector >= kCompletionVectors || wanted.cqe == 0 ||
      wanted.cqe > host_.config().limits.max_cqe)
    return host_.fail(request.to, std::errc::invalid_argument);
  Cq cq;
  cq.user_handle = wanted.user_handle;
  if (wanted.comp_channel >= 0) {
    const auto channel = find_channel(request.channel_inode);
    if (!channel) return host_.fail(request.to, std::errc::bad_file_descriptor);
    cq.channel = *channel;
  }
  const emulator::RingShape shape = emulator::cq_ring_shape(wanted.cqe);
  const auto ring = memory_->allocate(shape.bytes());
  if (!ring) return host_.fail(request.to, std::errc::not_enough_memory);
  cq.ring.now = *ring;
  // Watched before the engine can raise anything.
  async_->watch(ObjectClass::kCq, cq.user_handle);
  if (cq.channel != 0) {
    Channel& channel = channels_.at(cq.channel);
    channel.pipe->watch(ObjectClass::kCq, cq.user_handle);
    ++channel.cqs;
  }
  emulator::CreateCq create;
  create.ring = memory_->bytes_of(*ring).first(shape.bytes());
  create.slots = shape.slots;
  create.user_handle = cq.user_handle;
  create.channel = cq.channel;
  run(
      request, create, [this, cq] { forget_cq(cq, nullptr); },
      [this, cq, entries = shape.slots - 1](const Request& done, Reply&& reply) {
        const std::uint32_t handle = std::get<emulator::CqHandle>(reply.body).value;
        cqs_[handle] = cq;
        auto response = zeroed<ib_uverbs_ex_create_cq_resp>();
        response.base.cq_handle = handle;
        response.base.cqe = entries;
        answer_as_long_as_asked(done, response, bytes_of(mmap_info(cq.ring.now)));
      });
}

void Context::resize_cq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_resize_cq>();
  if (wanted.cqe == 0 || wanted.cqe > host_.config().limits.max_cqe || !cqs_.contains(wanted.cq_handle))
    return host_.fail(request.to, std::errc::invalid_argument);
  const emulator::RingShape shape = emulator::cq_ring_shape(wanted.cqe);
  const auto ring = memory_->allocate(shape.bytes());
  if (!ring) return host_.fail(request.to, std::errc::not_enough_memory);
  const emulator::ResizeCq resize{
      {wanted.cq_handle}, memory_->bytes_of(*ring).first(shape.bytes()), shape.slots};
  run(
      request, resize, [this, ring] { memory_->free(*ring); },
      [this, ring, handle = wanted.cq_handle, entries = shape.slots - 1](const Request& done, Reply&&) {
        move_ring(cqs_.at(handle).ring, *ring);
        auto response = zeroed<ib_uverbs_resize_cq_resp>();
        response.cqe = entries;
        answer(done, response, bytes_of(mmap_info(*ring)));
      });
}

void Context::destroy_cq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_destroy_cq>();
  run(request, emulator::DestroyCq{{wanted.cq_handle}},
      [this, handle = wanted.cq_handle](const Request& done, Reply&&) {
        auto response = zeroed<ib_uverbs_destroy_cq_resp>();
        forget_cq(cqs_.extract(handle).mapped(), &response);
        answer(done, response);
      });
}

void Context::forget_cq(const Cq& cq, ib_uverbs_destroy_cq_resp* reported) {
  free_ring(cq.ring);
  std::uint32_t completion_events = 0;
  const std::uint32_t async_events = async_->purge(ObjectClass::kCq, cq.user_handle);
  if (cq.channel != 0) {
    Channel& channel = channels_.at(cq.channel);
    completion_events = channel.pipe->purge(ObjectClass::kCq, cq.user_handle);
    --channel.cqs;
    drop_channel_if_unused(cq.channel);
  }
  if (reported == nullptr) return;
  reported->comp_events_reported = completion_events;
  reported->async_events_reported = async_events;
}

// The shim arms a CQ by a store of its own; a command that comes all the same means the same.
void Context::req_notify_cq(const Request& request) {
  const auto wanted = request.call.request<ib_uverbs_req_notify_cq>();
  if (!cqs_.contains(wanted.cq_handle) || wanted.cq_handle >= emulator::kMaxCqsPerContext)
    return host_.fail(request.to, std::errc::invalid_argument);
  auto* const control = reinterpret_cast<emulator::ControlArea*>(memory_->control_area().data());
  const auto how = wanted.solicited_only != 0 ? emulator::CqArm::kSolicited : emulator::CqArm::kNext;
  if (emulator::arm_cq(control->cq_arm[wanted.cq_handle], how))
    ring_doorbell(emulator::cq_doorbell(wanted.cq_handle));
  answer(request);
}

}  // namespace roci::shim
