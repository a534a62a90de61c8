// Multicast: group addresses, and which QPs of a NIC are attached to which group.
//
// An engine knows the QPs of its own shard. Attaching and detaching are commands and may allocate; looking a
// group up never does. Not here: delivering (engine.cpp), and telling the network (neighbour.h). Thread rule:
// the engine's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>
#include <vector>

#include "proto/types.h"

namespace roci::emulator {

struct Qp;

[[nodiscard]] constexpr bool is_multicast(const proto::Gid& gid) {
  return gid.is_ipv4() ? (gid.bytes[12] & 0xF0) == 0xE0 : gid.bytes[0] == 0xFF;
}
[[nodiscard]] constexpr bool is_group(const proto::Mac& mac) { return (mac.bytes[0] & 1) != 0; }

// 01:00:5e and the low 23 bits [RFC 1112, 6.4]; 33:33 and the low 32 [RFC 2464, 7].
[[nodiscard]] constexpr proto::Mac multicast_mac(const proto::Gid& gid) {
  const auto& b = gid.bytes;
  if (gid.is_ipv4()) return {{0x01, 0x00, 0x5E, static_cast<std::uint8_t>(b[13] & 0x7F), b[14], b[15]}};
  return {{0x33, 0x33, b[12], b[13], b[14], b[15]}};
}

class MulticastGroups {
 public:
  struct Change {
    std::errc error{};
    bool moves_group = false;  // it is new, or gone
    bool moves_qp = false;
  };

  // A second time is no second copy.
  Change attach(const proto::Gid& group, Qp& qp, std::size_t max_groups, std::size_t max_members) {
    std::size_t at = place_of(group);
    const bool is_new = !stands_at(at, group);
    if (is_new) {
      if (groups_.size() == max_groups) return {std::errc::not_enough_memory};
      groups_.insert(groups_.begin() + static_cast<std::ptrdiff_t>(at), group);
      members_.emplace(members_.begin() + static_cast<std::ptrdiff_t>(at));
      ++changes_;
    }
    std::vector<Qp*>& members = members_[at];
    if (std::find(members.begin(), members.end(), &qp) != members.end()) return {};
    if (members.size() == max_members) return {std::errc::not_enough_memory};
    members.push_back(&qp);
    return {{}, is_new, true};
  }
  Change detach(const proto::Gid& group, const Qp& qp) {
    const std::size_t at = place_of(group);
    if (!stands_at(at, group)) return {std::errc::invalid_argument};
    std::vector<Qp*>& members = members_[at];
    const auto found = std::find(members.begin(), members.end(), &qp);
    if (found == members.end()) return {std::errc::invalid_argument};
    members.erase(found);
    if (!members.empty()) return {{}, false, true};
    groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(at));
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(at));
    ++changes_;
    return {{}, true, true};
  }
  [[nodiscard]] std::span<Qp* const> members(const proto::Gid& group) const {
    const std::size_t at = place_of(group);
    return stands_at(at, group) ? std::span<Qp* const>(members_[at]) : std::span<Qp* const>();
  }
  // Those with a member, in order; good until the next change.
  [[nodiscard]] std::span<const proto::Gid> groups() const { return groups_; }
  // Grows whenever groups() changed.
  [[nodiscard]] std::uint64_t changes() const { return changes_; }

 private:
  [[nodiscard]] std::size_t place_of(const proto::Gid& group) const {
    return static_cast<std::size_t>(std::lower_bound(groups_.begin(), groups_.end(), group) -
                                    groups_.begin());
  }
  [[nodiscard]] bool stands_at(std::size_t at, const proto::Gid& group) const {
    return at < groups_.size() && groups_[at] == group;
  }

  std::vector<proto::Gid> groups_;         // sorted
  std::vector<std::vector<Qp*>> members_;  // of groups_[i]; never empty
  std::uint64_t changes_ = 0;
};

}  // namespace roci::emulator
