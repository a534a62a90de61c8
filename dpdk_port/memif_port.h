// A port to another process on this machine over shared memory, through DPDK's memif PMD.
//
// The server's end waits for a client, a client comes back by itself: either side may start first, end and
// start again. Thread rule: as port.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dpdk_port/config.h"
#include "dpdk_port/port.h"

struct rte_mempool;

namespace roci::dpdk_port {

struct MemifConfig {
  std::string arguments;     // "role=server,socket=/run/a.sock,..."
  std::uint16_t number = 0;  // of this port among the daemon's
  bool is_client = false;
  std::uint32_t mtu_bytes = kFabricMtuBytes;  // no more than that of the other side
};

[[nodiscard]] Parsed<std::unique_ptr<Port>> open_memif(const MemifConfig& config, rte_mempool* pool,
                                                       std::vector<std::string>& warnings);

}  // namespace roci::dpdk_port
