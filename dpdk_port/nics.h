// From what the user asked for to what the engine is given: interfaces are looked up, defaults filled in,
// neighbours named.
//
// Any thread, at start.
#pragma once

#include <vector>

#include "dpdk_port/config.h"
#include "dpdk_port/interface.h"
#include "emulator/config.h"

namespace roci::dpdk_port {

struct ResolvedNic {
  NicSpec spec;
  emulator::NicConfig config;
  Interface interface;  // where it is on one; a TAP's once it is made
};

// A port that leads out: which NICs it has and how long its frames get.
struct PortPlan {
  std::vector<std::size_t> nics;  // by index; never none
  std::uint32_t mtu_bytes = 0;    // of the NIC that has most
};

// A NIC of a kDevice without mac= has no MAC yet; the device knows it.
[[nodiscard]] Parsed<std::vector<ResolvedNic>> resolve(const std::vector<NicSpec>& specs);
// Of a station that nobody made; mac= is for one that stays.
[[nodiscard]] proto::Mac random_mac();
// Once every NIC has its MAC: nobody has another's, and who knows whom without asking. The error, or empty.
[[nodiscard]] std::string name_neighbours(std::vector<ResolvedNic>& nics);
// The ports off the fabric; those who wrote the same share one, but for a ring, of which each has an end.
[[nodiscard]] std::vector<PortPlan> plan_ports(const std::vector<ResolvedNic>& nics);

}  // namespace roci::dpdk_port
