// Memory windows: a key for a part of a region, given and taken back by work requests.
//
// Type 1 belongs to its PD and is bound anew at will, with no bytes to end the binding. Type 2 belongs to the
// QP that bound it (a 2B), must be free to be bound, and ends by an invalidation, the QP's end or its own.
// Not here: when a work request's turn comes (local_operation.h). Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "emulator/command.h"
#include "emulator/intrusive_list.h"
#include "emulator/memory_region.h"

namespace roci::emulator {

struct MemoryWindow : MemoryGrant {
  std::uint32_t handle = 0;
  MwType type = MwType::kType1;
  MemoryRegion* region = nullptr;          // bound to; null: free
  OwnedNode<MemoryWindow> qp_node{*this};  // type 2: in the list of the QP that bound it
};

struct WindowBinding {
  proto::Rkey current_key, new_key;
  proto::Lkey region_key;
  std::uint64_t address = 0, length_bytes = 0;
  std::uint32_t access = 0;
};

// Binds by a work request of `qp`. False: it may not, and nothing has changed.
[[nodiscard]] bool bind_window(const KeyTable& keys, Qp& qp, const WindowBinding& binding);
// Free from now on; the key grants nothing.
void unbind_window(MemoryWindow& window);
// Those that the QP has bound: it is no more what it was when it did [IBTA o10-2.2.5].
void unbind_windows_of(Qp& qp);

// The window that `qp` may invalidate by this key: of type 2, bound, and by that QP [IBTA o10-37.2.26,
// o10-37.2.43]. Null if there is none; a region of ordinary registration never is one [IBTA o10-37.2.13].
[[nodiscard]] MemoryWindow* find_invalidable(const KeyTable& keys, const Qp& qp, proto::Rkey key);

}  // namespace roci::emulator
