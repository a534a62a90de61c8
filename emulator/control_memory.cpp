#include <memory>

#include "emulator/control_objects.h"
#include "emulator/memory_window.h"

namespace roci::emulator {

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

}  // namespace roci::emulator
