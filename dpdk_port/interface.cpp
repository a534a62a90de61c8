#include "dpdk_port/interface.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include <fmt/format.h>

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;

// One datagram holds several messages; 32 KiB is what the kernel fills at most for a dump.
using Buffer = std::array<char, 32768>;

template <class T>
const T* payload(const nlmsghdr* message) {
  if (message->nlmsg_len < NLMSG_LENGTH(sizeof(T))) return nullptr;
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(message) + NLMSG_LENGTH(0));
}

// Calls `visit(type, bytes, length)` for each attribute behind a header of `header_bytes`.
template <class Visit>
void for_each_attribute(const nlmsghdr* message, std::size_t header_bytes, Visit visit) {
  const char* at = reinterpret_cast<const char*>(message) + NLMSG_LENGTH(0) + NLMSG_ALIGN(header_bytes);
  const char* end = reinterpret_cast<const char*>(message) + message->nlmsg_len;
  while (end - at >= static_cast<std::ptrdiff_t>(sizeof(rtattr))) {
    rtattr attribute;
    std::memcpy(&attribute, at, sizeof attribute);
    if (attribute.rta_len < sizeof attribute || attribute.rta_len > end - at) return;
    visit(attribute.rta_type & NLA_TYPE_MASK, at + RTA_LENGTH(0), attribute.rta_len - RTA_LENGTH(0));
    at += RTA_ALIGN(attribute.rta_len);
  }
}

// Calls `visit(message)` for each message of a datagram; false once NLMSG_DONE or an error was met.
template <class Visit>
bool for_each_message(char* bytes, std::size_t length, Visit visit) {
  std::size_t at = 0;
  while (length - at >= sizeof(nlmsghdr)) {
    const auto* message = reinterpret_cast<const nlmsghdr*>(bytes + at);
    if (message->nlmsg_len < sizeof(nlmsghdr) || message->nlmsg_len > length - at) return false;
    if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) return false;
    visit(message);
    at += std::min<std::size_t>(NLMSG_ALIGN(message->nlmsg_len), length - at);
  }
  return true;
}

bool link_is_up(const ifinfomsg& link) {
  return (link.ifi_flags & IFF_UP) != 0 && (link.ifi_flags & IFF_RUNNING) != 0;
}

template <class Header, class Visit>
bool dump(std::uint16_t type, Visit visit) {
  const shim::UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return false;
  struct {
    nlmsghdr header;
    Header body;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  if (send(fd.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) return false;
  alignas(nlmsghdr) Buffer buffer;
  for (;;) {
    const ssize_t got = recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return false;
    if (!for_each_message(buffer.data(), static_cast<std::size_t>(got), visit)) return true;
  }
}

void add_address(const nlmsghdr* message, Interface& interface) {
  const auto* header = payload<ifaddrmsg>(message);
  if (header == nullptr || static_cast<int>(header->ifa_index) != interface.index) return;
  if (header->ifa_family != AF_INET && header->ifa_family != AF_INET6) return;
  const std::size_t bytes = header->ifa_family == AF_INET ? 4 : 16;
  std::optional<proto::Gid> local, any;  // IFA_LOCAL is ours where IFA_ADDRESS is the far end's
  for_each_attribute(message, sizeof *header, [&](int type, const char* value, std::size_t length) {
    if (length != bytes || (type != IFA_LOCAL && type != IFA_ADDRESS)) return;
    proto::Gid gid;
    if (bytes == 4) gid.bytes[10] = gid.bytes[11] = 0xFF;
    std::memcpy(gid.bytes.data() + (16 - bytes), value, bytes);
    (type == IFA_LOCAL ? local : any) = gid;
  });
  const auto gid = local ? local : any;
  const bool link_local = gid && gid->bytes[0] == 0xFE && (gid->bytes[1] & 0xC0) == 0x80;
  if (gid && !link_local) interface.addresses.push_back({*gid, header->ifa_prefixlen});
}

bool is_of_prefix(const proto::Gid& address, const emulator::NicAddress& of) {
  return address.is_ipv4() && of.gid.is_ipv4() &&
         (address.ipv4() ^ of.gid.ipv4()) >> (32 - of.prefix_length) == 0;
}

}  // namespace

Parsed<Interface> query_interface(const std::string& name) {
  Interface interface;
  interface.name = name;
  bool found = false;
  const bool links = dump<ifinfomsg>(RTM_GETLINK, [&](const nlmsghdr* message) {
    const auto* header = payload<ifinfomsg>(message);
    if (header == nullptr || found) return;
    Interface candidate;
    bool same_name = false;
    for_each_attribute(message, sizeof *header, [&](int type, const char* value, std::size_t length) {
      if (type == IFLA_IFNAME) same_name = name == std::string_view(value, strnlen(value, length));
      if (type == IFLA_ADDRESS && length == 6) std::memcpy(candidate.mac.bytes.data(), value, 6);
      if (type == IFLA_MTU && length == 4) std::memcpy(&candidate.mtu_bytes, value, 4);
    });
    if (!same_name) return;
    candidate.index = header->ifi_index;
    candidate.name = name;
    candidate.is_ethernet = header->ifi_type == ARPHRD_ETHER;
    candidate.is_loopback = (header->ifi_flags & IFF_LOOPBACK) != 0;
    candidate.link_up = link_is_up(*header);
    interface = candidate;
    found = true;
  });
  if (!links) return Unexpected{fmt::format("rtnetlink: {}", std::generic_category().message(errno))};
  if (!found) return Unexpected{fmt::format("there is no interface '{}'", name)};
  if (!dump<ifaddrmsg>(RTM_GETADDR, [&](const nlmsghdr* message) { add_address(message, interface); })) {
    return Unexpected{fmt::format("rtnetlink: {}", std::generic_category().message(errno))};
  }
  return interface;
}

Parsed<Interface> query_interface_of(const proto::Gid& address) {
  const std::unique_ptr<struct if_nameindex, decltype(&if_freenameindex)> names(if_nameindex(),
                                                                                &if_freenameindex);
  for (const auto* name = names.get(); name != nullptr && name->if_index != 0; ++name) {
    auto interface = query_interface(name->if_name);
    if (!interface) continue;  // it went away
    for (const auto& its : interface->addresses) {
      if (its.gid != address && !(interface->is_loopback && is_of_prefix(address, its))) continue;
      Interface found = std::move(interface).value();
      found.addresses = {{address, its.prefix_length}};
      return found;
    }
  }
  return Unexpected{fmt::format("no interface has the address {}", to_text(address))};
}

LinkMonitor::LinkMonitor() : fd_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (fd_ && bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd_.reset();
}

void LinkMonitor::read(
    const std::function<void(int index, bool link_up, std::uint32_t mtu_bytes)>& link_changed,
    const std::function<void(int index)>& addresses_changed) {
  alignas(nlmsghdr) Buffer buffer;
  for (;;) {
    const ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return;
    for_each_message(buffer.data(), static_cast<std::size_t>(got), [&](const nlmsghdr* message) {
      if (message->nlmsg_type == RTM_NEWADDR || message->nlmsg_type == RTM_DELADDR) {
        const auto* header = payload<ifaddrmsg>(message);
        if (header != nullptr) addresses_changed(static_cast<int>(header->ifa_index));
        return;
      }
      const auto* header = payload<ifinfomsg>(message);
      if (header == nullptr) return;
      std::uint32_t mtu_bytes = 0;
      for_each_attribute(message, sizeof *header, [&](int type, const char* value, std::size_t length) {
        if (type == IFLA_MTU && length == 4) std::memcpy(&mtu_bytes, value, 4);
      });
      if (message->nlmsg_type == RTM_NEWLINK) link_changed(header->ifi_index, link_is_up(*header), mtu_bytes);
      if (message->nlmsg_type == RTM_DELLINK) link_changed(header->ifi_index, false, 0);
    });
  }
}

}  // namespace roci::dpdk_port
