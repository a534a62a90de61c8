// A port on a network interface of the kernel, beside the kernel: through DPDK's af_packet PMD, or its pcap
// PMD, which does the same by libpcap.
//
// The PMDs hand over more than arrived from the wire, and tell nothing about the interface; what is done
// about it stands at each place. Needs CAP_NET_RAW. Not here: addresses and MTU, which rtnetlink gives
// (interface.h).
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

struct AfPacketConfig {
  Interface interface;
  std::string device;            // "net_pcap0,..."; empty: the af_packet PMD
  std::uint16_t number = 0;      // of this port among the daemon's
  std::vector<proto::Mac> macs;  // of the NICs; promiscuous if one is not the interface's
  std::uint32_t mtu_bytes = 1500;
  // Of the kernel's, those that NICs share with it: their UDP port 4791 is held, so that peers see no port
  // unreachable.
  std::vector<emulator::NicAddress> shared_addresses;
};

inline constexpr std::uint16_t kAfPacketRingFrames = 512;

// Bytes of a slot in the kernel's rings, and of the data room of the mbufs it is copied to.
[[nodiscard]] std::uint32_t af_packet_slot_bytes(std::uint32_t mtu_bytes);
// Frames from and to `pool`, whose mbufs have af_packet_slot_bytes() behind the headroom. `warnings`: what
// works less well.
[[nodiscard]] Parsed<std::unique_ptr<Port>> open_af_packet(const AfPacketConfig& config, rte_mempool* pool,
                                                           std::vector<std::string>& warnings);

}  // namespace roci::dpdk_port
