// What the kernel knows about a network interface, from rtnetlink, and word of its changes.
//
// The af_packet PMD cannot be asked: it claims link up and MTU 1500 whatever the interface has. Not here:
// setting anything. Errors are sentences for the user. Thread rule: as each member says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dpdk_port/config.h"
#include "emulator/config.h"
#include "proto/types.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {

struct Interface {
  int index = 0;
  std::string name;
  proto::Mac mac;
  std::uint32_t mtu_bytes = 0;
  bool is_ethernet = false;
  bool is_loopback = false;
  bool link_up = false;                         // up and with carrier
  std::vector<emulator::NicAddress> addresses;  // link-local IPv6 left out: the GID table has its own
};

// Any thread.
[[nodiscard]] Parsed<Interface> query_interface(const std::string& name);
// The interface that has `address`, with that one address only. To a loopback interface belong all of its
// prefix (127.0.0.2).
[[nodiscard]] Parsed<Interface> query_interface_of(const proto::Gid& address);

// Tells of links going up and down, of MTUs, and of addresses that come and go. One thread.
class LinkMonitor {
 public:
  LinkMonitor();

  // Readable when something changed; -1 if the kernel gives none.
  [[nodiscard]] int fd() const { return fd_.get(); }
  // Reads what waits; calls for every interface that was reported. What its addresses are,
  // query_interface() tells. `mtu_bytes` 0: unknown, as the interface is gone.
  void read(const std::function<void(int index, bool link_up, std::uint32_t mtu_bytes)>& link_changed,
            const std::function<void(int index)>& addresses_changed);

 private:
  shim::UniqueFd fd_;
};

}  // namespace roci::dpdk_port
