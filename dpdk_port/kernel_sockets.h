// Sockets that stand beside a port on an interface of the kernel: one that wakes for the port's frames, one
// that has the interface take them all, and those that keep the kernel from answering for us.
//
// Not here: receiving; no byte that comes out of them is used. Any thread.
#pragma once

#include <string>
#include <vector>

#include "dpdk_port/config.h"
#include "emulator/engine.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {

// Takes frames for other MACs if `promiscuous`, else those of all groups; ends with the socket, unlike
// IFF_PROMISC.
[[nodiscard]] Parsed<shim::UniqueFd> open_member_socket(int interface_index, bool promiscuous);
// The same, and readable by a frame that an engine may have an interest in. A driver whose own socket is
// opened later sees a frame before this one wakes, as the kernel serves the youngest first.
[[nodiscard]] Parsed<shim::UniqueFd> open_wake_socket(int interface_index, bool promiscuous);
// Until it would block.
void drain_wake_socket(int fd);
// Takes UDP port 4791 of addresses of the kernel's and reads nothing, or the kernel tells our peers that
// nobody listens. A `warning` for each that cannot be had.
[[nodiscard]] std::vector<shim::UniqueFd> hold_udp_ports(const std::vector<emulator::NicAddress>& addresses,
                                                         std::vector<std::string>& warnings);

}  // namespace roci::dpdk_port
