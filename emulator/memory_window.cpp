#include "emulator/memory_window.h"

#include <utility>

#include "emulator/qp.h"

namespace roci::emulator {
namespace {

constexpr std::uint32_t kWindowAccess =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic | kAccessZeroBased;

// The window may be bound by this QP to something.
bool may_bind(const MemoryWindow& window, const Qp& qp, const WindowBinding& binding) {
  if (window.pd != qp.pd) return false;  // [IBTA C10-72]
  // Only the variant is the consumer's to choose.
  if ((binding.current_key.value() ^ binding.new_key.value()) > kKeyVariantMask) return false;
  if ((binding.access & ~(kWindowAccess | kAccessOptionalMask)) != 0) return false;
  if (window.type == MwType::kType1) return (binding.access & kAccessZeroBased) == 0;  // [IBTA o10-36.2.2]
  return window.region == nullptr &&  // [IBTA o10-37.2.30, Table 78]
         binding.length_bytes != 0;   // [IBTA o10-37.2.40]
}

// The region allows that binding.
bool allows(const MemoryRegion& region, const Qp& qp, const WindowBinding& binding) {
  const bool writes = (binding.access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0;
  return region.pd == qp.pd &&                                     // [IBTA C10-72]
         (region.access & kAccessMwBind) != 0 &&                   // [IBTA C10-73]
         (!writes || (region.access & kAccessLocalWrite) != 0) &&  // [IBTA C10-74]
         region.covers(binding.address, binding.length_bytes);     // [IBTA C10-75]
}

MemoryWindow* find_window(const KeyTable& keys, proto::Rkey key) {
  MemoryGrant* const grant = keys.find(key.value());
  return grant != nullptr && grant->is_window ? static_cast<MemoryWindow*>(grant) : nullptr;
}

MemoryRegion* find_region(const KeyTable& keys, proto::Lkey key) {
  MemoryGrant* const grant = keys.find(key.value());
  return grant != nullptr && !grant->is_window ? static_cast<MemoryRegion*>(grant) : nullptr;
}

}  // namespace

bool bind_window(const KeyTable& keys, Qp& qp, const WindowBinding& binding) {
  MemoryWindow* const window = find_window(keys, binding.current_key);
  if (window == nullptr || !may_bind(*window, qp, binding)) return false;
  MemoryRegion* region = nullptr;
  if (binding.length_bytes != 0) {
    region = find_region(keys, binding.region_key);
    if (region == nullptr || !allows(*region, qp, binding)) return false;
  }
  unbind_window(*window);
  window->key = binding.new_key.value();  // same place in the table
  if (region == nullptr) return true;
  ++region->windows;
  window->region = region;
  window->access = binding.access & kWindowAccess;
  window->space = region->space;
  window->address = region->address + (binding.address - region->iova);
  window->iova = (binding.access & kAccessZeroBased) != 0 ? 0 : binding.address;
  window->length_bytes = binding.length_bytes;
  if (window->type == MwType::kType2) {
    window->only_for = &qp;
    qp.windows.push_back(window->qp_node);
  }
  return true;
}

void unbind_window(MemoryWindow& window) {
  if (window.region != nullptr) --window.region->windows;
  window.region = nullptr;
  window.access = 0;
  window.only_for = nullptr;
  window.length_bytes = 0;
  window.qp_node.unlink();
}

void unbind_windows_of(Qp& qp) {
  qp.windows.for_each([](MemoryWindow& window) { unbind_window(window); });
}

MemoryWindow* find_invalidable(const KeyTable& keys, const Qp& qp, proto::Rkey key) {
  MemoryWindow* const window = find_window(keys, key);
  const bool is_ok = window != nullptr && window->type == MwType::kType2 && window->only_for == &qp;
  return is_ok ? window : nullptr;
}

}  // namespace roci::emulator
