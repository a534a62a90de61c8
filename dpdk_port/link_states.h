// Links and MTUs of the NICs' ports, as they are now. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "emulator/engine.h"

namespace roci::dpdk_port {

struct LinkStates {
  std::atomic<std::uint64_t> up{0};           // bit n: the link of NIC n
  std::atomic<std::uint32_t> mtu_changes{0};  // counts; written after what changed
  std::array<std::atomic<std::uint32_t>, emulator::kMaxNics> mtu_bytes{};
};

}  // namespace roci::dpdk_port
