// The daemon: everything of rocid put together, for as long as it serves.
//
// Not here: what is asked for (config.h) and process matters such as signals (rocid.cpp). Main thread, which
// becomes the control thread in serve().
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "dpdk_port/config.h"

namespace roci::dpdk_port {

// Why the daemon does not run: one sentence. Exit status 2 if the configuration cannot be had, 1 if this
// machine, now, does not let us.
struct StartError : std::runtime_error {
  StartError(int status, const std::string& why) : std::runtime_error(why), exit_status(status) {}
  int exit_status;
};

class Daemon {
 public:
  // Ready to serve, with its socket open; throws StartError.
  explicit Daemon(const DaemonConfig& config);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Returns after stop() or the idle time.
  void serve();
  void stop();  // any thread, also a signal handler's

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace roci::dpdk_port
