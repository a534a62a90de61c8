// A port that leads out of the daemon: bursts of mbufs in and out, and a way to be woken.
//
// The virtual fabric is no port of this kind, as its frames never leave (see handover.h). To add a kind:
// implement this, name it in config.h's PortKind and open it in daemon.cpp. Thread rule: shard 0's thread,
// except the constructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/types.h"

struct rte_mbuf;

namespace roci::dpdk_port {

struct PortCounter {
  std::string_view name;
  std::uint64_t value = 0;
};

struct PortState {
  bool link_up = false;
  std::uint32_t mtu_bytes = 0;
};

class Port {
 public:
  Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  virtual ~Port() = default;

  // Up to `max` received frames, each in one segment, owned by the caller.
  [[nodiscard]] virtual std::size_t receive(rte_mbuf** out, std::size_t max) = 0;
  // Sends what the device takes now, from the first on, and owns those; returns how many.
  [[nodiscard]] virtual std::size_t send(rte_mbuf** frames, std::size_t count) = 0;
  // Readable once a frame came after the last prepare_to_sleep(); -1: the port has to be polled.
  [[nodiscard]] virtual int wake_fd() const = 0;
  // Before a last receive() and sleep.
  virtual void prepare_to_sleep() = 0;
  // Any thread. What the port counts beyond what the engine sees; the names live as long as the program.
  [[nodiscard]] virtual std::vector<PortCounter> counters() const { return {}; }
  // The thread of the shard: the multicast groups that its QPs are in, when they change. What did not work, a
  // sentence each. For a port that does not get the frames of all groups anyway.
  virtual std::vector<std::string> follow_groups(std::uint32_t /*shard*/,
                                                 std::span<const proto::Gid> /*groups*/) {
    return {};
  }
  // Any thread. Index of the interface on which the kernel has to join multicast groups, as it owns the
  // addresses; 0: none.
  [[nodiscard]] virtual int kernel_groups_interface() const { return 0; }
  // One thread at a time, whichever. Nothing: its interface is asked (interface.h).
  [[nodiscard]] virtual std::optional<PortState> state() { return {}; }
};

}  // namespace roci::dpdk_port
