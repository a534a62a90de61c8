// One open of a NIC by one client: its objects by handle, and the control area it shares with the engine.
//
// Everything a client has hangs here, so that its death frees everything. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/address_handle.h"
#include "emulator/command.h"
#include "emulator/completion_queue.h"
#include "emulator/memory_region.h"
#include "emulator/memory_window.h"
#include "emulator/qp.h"
#include "emulator/shared_receive_queue.h"
#include "emulator/slot_map.h"

namespace roci::emulator {

struct Context {
  ContextId id;
  NicId nic;
  ControlArea* control = nullptr;
  std::string client;
  SlotMap<Pd> pds;
  SlotMap<MemoryRegion> regions;
  SlotMap<MemoryWindow> windows;
  SlotMap<CompletionQueue> cqs;
  SlotMap<SharedReceiveQueue> srqs;
  SlotMap<Qp> qps;
  SlotMap<AddressHandle> ahs;
  std::uint64_t private_bytes = 0;  // of its QPs' work queues
  EventSource port_events;
};

}  // namespace roci::emulator
