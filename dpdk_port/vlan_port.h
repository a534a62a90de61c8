// The VLANs of one port [IEEE 802.1Q]: a port for each, whose frames carry its tag on the wire and none in
// here.
//
// So neither the engine nor a capture of ours sees a tag. The priority in a tag is the upper three bits of
// the packet's traffic class. Frames of a VLAN that no NIC is on are dropped and counted. Thread rule: as
// port.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dpdk_port/port.h"

namespace roci::dpdk_port {

// A port for each of `vlans` (0: frames without a tag), in this order, in which they have to be read: the
// first reads for all.
[[nodiscard]] std::vector<std::unique_ptr<Port>> split_by_vlan(std::unique_ptr<Port> port,
                                                               std::span<const std::uint16_t> vlans);

}  // namespace roci::dpdk_port
