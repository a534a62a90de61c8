// Who has a UDP port of an address of this host, for a user who cannot have it.
//
// Any thread, at start.
#pragma once

#include <cstdint>
#include <string>

#include "proto/types.h"

namespace roci::dpdk_port {

// "process 4711 (rocid)", or what else could be found out.
[[nodiscard]] std::string udp_port_holder(const proto::Gid& address, std::uint16_t port);

}  // namespace roci::dpdk_port
