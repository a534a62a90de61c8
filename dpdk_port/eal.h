// DPDK's environment: which arguments rocid starts it with, and where its messages go.
//
// The defaults need neither privilege nor huge pages, leave no files behind, and let several daemons run side
// by side. A default is left out where the user says the opposite, as nothing cancels some of them once
// given. Main thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace roci::dpdk_port {

// Pure. `memory_bytes`: what the pools need. `pci`: addresses of the devices that ports are on.
[[nodiscard]] std::vector<std::string> eal_arguments(std::size_t memory_bytes,
                                                     const std::vector<unsigned>& cpus,
                                                     const std::vector<std::string>& pci,
                                                     const std::vector<std::string>& user);
[[nodiscard]] std::vector<unsigned> allowed_cpus();
struct EalFailure {
  std::string why;        // empty: it runs
  bool is_usage = false;  // the arguments are wrong
};
// Once in a process.
[[nodiscard]] EalFailure start_eal(std::vector<std::string> arguments);
void stop_eal();  // and soon the process

// While it lives, what DPDK would log on this thread is kept here, as a refusal is to be one line; in the end
// it goes to the log as chatter. One at a time in a thread.
class DriverMessages {
 public:
  DriverMessages();
  ~DriverMessages();
  DriverMessages(const DriverMessages&) = delete;
  DriverMessages& operator=(const DriverMessages&) = delete;

  // Empty: nothing was said.
  [[nodiscard]] std::string first() const { return said_.empty() ? std::string() : said_.front(); }
  void take(std::string_view message) { said_.emplace_back(message); }

 private:
  std::vector<std::string> said_;
};

}  // namespace roci::dpdk_port
