#include <algorithm>
#include <bit>
#include <memory>

#include "emulator/completion_queue.h"
#include "emulator/control_objects.h"
#include "emulator/ring_shape.h"
#include "emulator/shared_receive_queue.h"

namespace roci::emulator {
namespace {

bool is_cq_ring(const DeviceLimits& limits, std::span<std::byte> ring, std::uint32_t slots) {
  return std::has_single_bit(slots) && slots <= std::bit_ceil(limits.max_cqe + 1) &&
         fits<RingHeader>(ring, RingShape{kLog2CqeBytes, slots}.bytes());
}

std::errc check_srq_size(const DeviceLimits& limits, std::uint32_t max_wr, std::uint32_t max_sge,
                         std::span<std::byte> ring) {
  const bool is_ok = max_wr > 0 && max_wr <= limits.max_srq_wr && max_sge <= limits.max_srq_sge &&
                     fits<RingHeader>(ring, srq_ring_shape(max_wr, max_sge).bytes());
  return is_ok ? std::errc{} : std::errc::invalid_argument;
}

}  // namespace

// ---- CQs -------------------------------------------------------------------------------------------

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
Outcome modify_srq(Shard& shard, Context& context, const ModifySrq& command) {
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
  check_limit(shard, *srq);  // who arms it too late is told, too
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

}  // namespace roci::emulator
