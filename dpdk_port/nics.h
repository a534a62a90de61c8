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
  Interface interface;  // only with a device port
};

[[nodiscard]] Parsed<std::vector<ResolvedNic>> resolve(const std::vector<NicSpec>& specs);

}  // namespace roci::dpdk_port
