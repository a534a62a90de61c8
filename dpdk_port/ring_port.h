// A port on one end of a pair of DPDK rings, through the ring PMD: two NICs of one daemon joined as by a
// cable.
//
// The fabric joins them better. This is for whoever wants what a device's driver does in between without a
// device or privilege. Thread rule: as port.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dpdk_port/config.h"
#include "dpdk_port/port.h"

struct rte_mempool;

namespace roci::dpdk_port {

// The ring's two ends are opened one after the other; EAL has the rings themselves.
[[nodiscard]] Parsed<std::unique_ptr<Port>> open_ring(const std::string& name, std::uint32_t mtu_bytes,
                                                      rte_mempool* pool);

}  // namespace roci::dpdk_port
