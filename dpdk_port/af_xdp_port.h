// A port that takes all frames of an interface's first queue from the kernel, through DPDK's af_xdp PMD.
//
// Frames no longer than a page allows (kAfXdpMaxMtuBytes). Needs root, or CAP_NET_RAW, CAP_NET_ADMIN and
// CAP_BPF.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dpdk_port/config.h"
#include "dpdk_port/interface.h"
#include "dpdk_port/port.h"

struct rte_mempool;

namespace roci::dpdk_port {

struct AfXdpConfig {
  Interface interface;
  std::uint16_t number = 0;  // of this port among the daemon's
  bool promiscuous = false;  // a NIC has another MAC than the interface
  std::uint32_t mtu_bytes = 1500;
};

// An mbuf with what goes before it is a chunk of memory that the kernel writes to, and at most a page; the
// driver fills a ring of 2048, and a second half is under way.
inline constexpr std::uint32_t kAfXdpDataBytes = 3712, kAfXdpMbufs = 4095;

[[nodiscard]] Parsed<std::unique_ptr<Port>> open_af_xdp(const AfXdpConfig& config, rte_mempool* pool,
                                                        std::vector<std::string>& warnings);

}  // namespace roci::dpdk_port
