#include "dpdk_port/kernel_groups.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "dpdk_port/config.h"

namespace roci::dpdk_port {
namespace {

// The socket that is in the group; none: errno says why.
shim::UniqueFd join(const proto::Gid& group, int interface_index) {
  const bool v4 = group.is_ipv4();
  shim::UniqueFd fd(socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  ip_mreqn in{};
  std::memcpy(&in.imr_multiaddr, group.bytes.data() + 12, sizeof in.imr_multiaddr);
  in.imr_ifindex = interface_index;
  ipv6_mreq in6{};
  std::memcpy(&in6.ipv6mr_multiaddr, group.bytes.data(), sizeof in6.ipv6mr_multiaddr);
  in6.ipv6mr_interface = static_cast<unsigned>(interface_index);
  const int status = v4 ? setsockopt(fd.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &in, sizeof in)
                        : setsockopt(fd.get(), IPPROTO_IPV6, IPV6_JOIN_GROUP, &in6, sizeof in6);
  return status == 0 ? std::move(fd) : shim::UniqueFd();
}

}  // namespace

std::vector<std::string> KernelGroups::follow(std::span<const proto::Gid> groups) {
  std::erase_if(joined_, [&](const auto& one) {
    return std::find(groups.begin(), groups.end(), one.first) == groups.end();
  });
  std::vector<std::string> problems;
  for (const proto::Gid& group : groups) {
    if (std::any_of(joined_.begin(), joined_.end(), [&](const auto& one) { return one.first == group; }))
      continue;
    auto fd = join(group, interface_index_);
    if (!fd) {
      problems.push_back(
          fmt::format("the kernel does not join {}: {}; switches may keep its datagrams from us",
                      to_text(group), std::generic_category().message(errno)));
    }
    joined_.emplace_back(group, std::move(fd));
  }
  return problems;
}

}  // namespace roci::dpdk_port
