// DPDK's environment: which arguments rocid starts it with, and where its messages go.
//
// The defaults need neither privilege nor huge pages, leave no files behind, and let several daemons run side
// by side. A default is left out where the user says the opposite, as nothing cancels some of them once
// given. Main thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace roci::dpdk_port {

// Pure. `memory_bytes`: what the pools need.
[[nodiscard]] std::vector<std::string> eal_arguments(std::size_t memory_bytes,
                                                     const std::vector<unsigned>& cpus,
                                                     const std::vector<std::string>& user);
[[nodiscard]] std::vector<unsigned> allowed_cpus();
struct EalFailure {
  std::string why;        // empty: it runs
  bool is_usage = false;  // the arguments are wrong
};
// Once in a process.
[[nodiscard]] EalFailure start_eal(std::vector<std::string> arguments);
void stop_eal();

}  // namespace roci::dpdk_port
