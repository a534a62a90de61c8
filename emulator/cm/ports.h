// Who holds which port of which NIC: the tables that bind() fills and a peer's request is looked up in.
//
// One table for each NIC, in effect: two clients that see different NICs may both have a port by wildcard.
// Connected ids of the passive side hold nothing; they share the listener's port. Not here: what an address
// means (addressing.h). No thread rule.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "emulator/cm/connection_manager.h"

namespace roci::emulator::cm {

// What an unbound id gets, as Linux has it by default (net.ipv4.ip_local_port_range).
inline constexpr std::uint16_t kFirstEphemeralPort = 32768;
inline constexpr std::uint32_t kEphemeralPorts = 60999 - 32768 + 1;

class Ports {
 public:
  struct Holder {
    IdHandle id;
    proto::Gid ip;           // may be any
    std::uint64_t nics = 0;  // bit n: NIC n
    bool may_share = false;  // REUSEADDR
    bool one_family = false;
    bool is_listening = false;
  };
  // False: somebody else holds it.
  [[nodiscard]] bool bind(PortSpace space, std::uint16_t port, const Holder& holder);
  // One that is free for `holder`, looked for from `start` on (0 .. kEphemeralPorts - 1).
  [[nodiscard]] std::optional<std::uint16_t> bind_any(PortSpace space, std::uint32_t start,
                                                      const Holder& holder);
  // False: somebody listens there who does not leave room for a second one. `id` holds the port.
  [[nodiscard]] bool listen(PortSpace space, std::uint16_t port, IdHandle id);
  void release(PortSpace space, std::uint16_t port, IdHandle id);

  // Who listens: the one that named the address, before the one that took all.
  [[nodiscard]] std::optional<IdHandle> listener(PortSpace space, std::uint16_t port, NicId nic,
                                                 const proto::Gid& ip) const;

 private:
  [[nodiscard]] static std::uint32_t key(PortSpace space, std::uint16_t port) {
    return std::uint32_t{static_cast<std::uint16_t>(space)} << 16 | port;
  }
  std::unordered_map<std::uint32_t, std::vector<Holder>> holders_;  // looked up only, never walked
};

}  // namespace roci::emulator::cm
