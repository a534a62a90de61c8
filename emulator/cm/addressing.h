// Which NIC and which of its addresses leads to an IP address, as a kernel's routing table would say.
//
// A pure function of the configuration: the longest on-link prefix wins, gateways come last. Not here: MACs
// (neighbour.h), and ports (ports.h). No thread rule.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/command.h"
#include "emulator/config.h"
#include "proto/types.h"

namespace roci::emulator::cm {

[[nodiscard]] bool is_any(const proto::Gid& ip);
[[nodiscard]] bool is_multicast(const proto::Gid& ip);
[[nodiscard]] bool is_loopback(const proto::Gid& ip);  // 127.0.0.0/8, ::1
// 127.0.0.1, ::1: not all of 127.0.0.0/8, in which NICs of a fabric have their addresses.
[[nodiscard]] bool is_localhost(const proto::Gid& ip);

class Addressing {
 public:
  explicit Addressing(const std::vector<NicConfig>& nics);

  // The NIC's addresses are those of `config` now.
  void change(NicId nic, const NicConfig& config);

  struct Choice {
    NicId nic;
    proto::Gid source;
    std::uint8_t sgid_index = 0;
    bool is_own = false;  // the destination is an address of that very NIC: there is no neighbour to ask
  };
  // `nics`: those that may be used (bit n: NIC n). Of the same family as `destination`, which may be a group.
  [[nodiscard]] std::optional<Choice> to(const proto::Gid& destination, std::uint64_t nics) const;
  // The same from a given NIC and source; none if that cannot reach it.
  [[nodiscard]] std::optional<Choice> from(NicId nic, const proto::Gid& source,
                                           const proto::Gid& destination) const;
  // The first NIC of `nics` that owns the address.
  [[nodiscard]] std::optional<NicId> owner(const proto::Gid& ip, std::uint64_t nics) const;
  // The first address of the first NIC that has one of this family.
  [[nodiscard]] std::optional<proto::Gid> first_address(bool ipv4, std::uint64_t nics) const;
  [[nodiscard]] std::optional<std::uint8_t> sgid_index(NicId nic, const proto::Gid& ip) const;

  [[nodiscard]] bool has(NicId nic) const { return nic.index < nics_.size(); }
  [[nodiscard]] proto::PathMtu path_mtu(NicId nic) const { return nics_[nic.index].path_mtu; }
  [[nodiscard]] std::uint64_t guid(NicId nic) const { return nics_[nic.index].guid; }

 private:
  struct Nic {
    explicit Nic(const NicConfig& config);

    std::vector<NicAddress> addresses;  // the link-local one first
    std::vector<proto::Gid> gids;       // zero: a free place
    std::optional<proto::Gid> gateway4, gateway6;
    proto::PathMtu path_mtu = proto::PathMtu::k256;
    std::uint64_t guid = 0;
  };
  // How well a NIC's best address suits; bits of prefix, -1: not on link.
  struct Match {
    int prefix = -1;
    proto::Gid source;
  };
  [[nodiscard]] static Match on_link(const Nic& nic, const proto::Gid& destination);
  [[nodiscard]] static std::optional<proto::Gid> behind_gateway(const Nic& nic,
                                                                const proto::Gid& destination);
  [[nodiscard]] Choice choice(std::size_t index, const proto::Gid& source,
                              const proto::Gid& destination) const;

  std::vector<Nic> nics_;
};

}  // namespace roci::emulator::cm
