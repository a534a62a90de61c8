// Membership of multicast groups where the kernel owns a NIC's addresses: it reports them to the network by
// IGMP and MLD, and lets its network card take their frames.
//
// Where the NIC has addresses of its own the engine reports, and every multicast frame comes in anyway. The
// kernel counts who is in a group, so shards need not know of each other. Not here: receiving; no byte comes
// out of the sockets. One thread.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "proto/types.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {

class KernelGroups {
 public:
  explicit KernelGroups(int interface_index) : interface_index_(interface_index) {}

  // Joins and leaves until the kernel is in just these groups. Returns what did not work, a sentence each.
  [[nodiscard]] std::vector<std::string> follow(std::span<const proto::Gid> groups);

 private:
  int interface_index_;
  // A socket a group, whose end leaves it: a socket may be in few groups only (igmp_max_memberships). Without
  // one: the kernel refused, and is not asked again.
  std::vector<std::pair<proto::Gid, shim::UniqueFd>> joined_;
};

}  // namespace roci::dpdk_port
