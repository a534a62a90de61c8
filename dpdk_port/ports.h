// Opens the daemon's ports, each of its kind, and says what memory they need before EAL starts.
//
// Main thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "dpdk_port/nics.h"
#include "dpdk_port/port.h"

namespace roci::dpdk_port {

// Of EAL's heap.
[[nodiscard]] std::size_t port_memory_bytes(const PortPlan& plan, const std::vector<ResolvedNic>& nics);
// The plan's port. Fills in what only the device knows: the MAC of NICs that have none, the interface of a
// TAP. The error is the whole sentence.
[[nodiscard]] Parsed<std::unique_ptr<Port>> open_port(const PortPlan& plan, std::size_t number,
                                                      std::vector<ResolvedNic>& nics);
// The kernel's share of a NIC that has a kernel interface.
[[nodiscard]] Parsed<std::unique_ptr<Port>> open_kernel_share(const ResolvedNic& nic);

}  // namespace roci::dpdk_port
