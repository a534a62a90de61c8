// A port on ordinary UDP sockets of the kernel, for where no raw socket is allowed: no privilege, no driver.
//
// The engine has frames as with any port; Ethernet, IP and UDP headers are taken off and put on here, and
// the ICRC is made right for the headers that the kernel sends (udp_datagram.h). The kernel finds neighbours,
// routes, and answers ARP and ICMP. What it assumes of the kernel: an unconnected IPv4 socket with
// IP_PMTUDISC_DO sends IP id 0 and DF, and packet k of what it segments id k. Thread rule: that of port.h.
#pragma once

#include <cstdint>
#include <memory>

#include "dpdk_port/config.h"
#include "dpdk_port/port.h"
#include "proto/types.h"

struct rte_mempool;

namespace roci::dpdk_port {

struct UdpPortConfig {
  proto::Gid address;
  int interface_index = 0;  // which has the address
  proto::Mac mac;           // of the NIC, in frames only
  bool gso = false;         // hands runs of packets to the kernel as one
};

// Frames from and to `pool`, whose mbufs have room for a frame of the NIC's MTU.
[[nodiscard]] Parsed<std::unique_ptr<Port>> open_udp(const UdpPortConfig& config, rte_mempool* pool);

}  // namespace roci::dpdk_port
