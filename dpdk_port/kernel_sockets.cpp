#include "dpdk_port/kernel_sockets.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;
using shim::UniqueFd;

constexpr std::uint16_t kRoceUdpPort = 4791;

std::string system_error(const char* what) {
  return fmt::format("{}: {}", what, std::generic_category().message(errno));
}

bool attach_filter(int fd, std::vector<sock_filter> code) {
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

// Accepts, cut to one byte, what an engine may have an interest in: RoCE v2, ARP, ICMP, ICMPv6 and everything
// with a VLAN tag.
std::vector<sock_filter> wake_filter() {
  constexpr std::uint16_t load_half = BPF_LD | BPF_H | BPF_ABS, load_byte = BPF_LD | BPF_B | BPF_ABS;
  constexpr std::uint16_t equal = BPF_JMP | BPF_JEQ | BPF_K, result = BPF_RET | BPF_K;
  constexpr std::uint8_t yes = 15, no = 16, v6 = 10;  // instructions by number
  const auto jump = [](std::uint8_t from, std::uint8_t to) {
    return static_cast<std::uint8_t>(to - from - 1);
  };
  return {
      /* 0 */ {load_half, 0, 0, 12},
      /* 1 */ {equal, jump(1, yes), 0, ETHERTYPE_ARP},
      /* 2 */ {equal, jump(2, yes), 0, ETHERTYPE_VLAN},
      /* 3 */ {equal, jump(3, v6), 0, ETHERTYPE_IPV6},
      /* 4 */ {equal, 0, jump(4, no), ETHERTYPE_IP},
      /* 5 */ {load_byte, 0, 0, 23},
      /* 6 */ {equal, jump(6, yes), 0, IPPROTO_ICMP},
      /* 7 */ {equal, 0, jump(7, no), IPPROTO_UDP},
      /* 8 */ {load_half, 0, 0, 36},  // behind an IPv4 header without options; those are dropped anyway
      /* 9 */ {equal, jump(9, yes), jump(9, no), kRoceUdpPort},
      /*10 */ {load_byte, 0, 0, 20},
      /*11 */ {equal, jump(11, yes), 0, IPPROTO_ICMPV6},
      /*12 */ {equal, 0, jump(12, no), IPPROTO_UDP},
      /*13 */ {load_half, 0, 0, 56},
      /*14 */ {equal, jump(14, yes), jump(14, no), kRoceUdpPort},
      /*15 */ {result, 0, 0, 1},
      /*16 */ {result, 0, 0, 0},
  };
}

Parsed<UniqueFd> hold_udp_port(const proto::Gid& gid) {
  const bool v4 = gid.is_ipv4();
  UniqueFd fd(socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || !attach_filter(fd.get(), {{BPF_RET | BPF_K, 0, 0, 0}}))
    return Unexpected{system_error("UDP socket")};
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(kRoceUdpPort);
  std::memcpy(&in.sin_addr, gid.bytes.data() + 12, 4);
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(kRoceUdpPort);
  std::memcpy(&in6.sin6_addr, gid.bytes.data(), 16);
  const auto* address = v4 ? reinterpret_cast<sockaddr*>(&in) : reinterpret_cast<sockaddr*>(&in6);
  const auto length = static_cast<socklen_t>(v4 ? sizeof in : sizeof in6);
  if (bind(fd.get(), address, length) != 0) return Unexpected{system_error("UDP port 4791")};
  return fd;
}

}  // namespace

Parsed<UniqueFd> open_member_socket(int interface_index, bool promiscuous) {
  UniqueFd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return Unexpected{errno == EPERM ? std::string("needs root or CAP_NET_RAW")
                                     : system_error("AF_PACKET socket")};
  }
  packet_mreq membership{};
  membership.mr_ifindex = interface_index;
  membership.mr_type = promiscuous ? PACKET_MR_PROMISC : PACKET_MR_ALLMULTI;
  if (setsockopt(fd.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership) != 0)
    return Unexpected{system_error("promiscuous mode")};
  return fd;
}

Parsed<UniqueFd> open_wake_socket(int interface_index, bool promiscuous) {
  auto fd = open_member_socket(interface_index, promiscuous);
  if (!fd) return fd;
  const int one = 1;
  if (!attach_filter(fd->get(), wake_filter())) return Unexpected{system_error("wake filter")};
  // Linux 4.20; else it wakes more often.
  (void)setsockopt(fd->get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
  // The least: a few frames, the rest is dropped.
  (void)setsockopt(fd->get(), SOL_SOCKET, SO_RCVBUF, &one, sizeof one);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = interface_index;
  if (bind(fd->get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return Unexpected{system_error("bind")};
  return fd;
}

void drain_wake_socket(int fd) {
  std::byte byte{};
  while (recv(fd, &byte, 1, 0) > 0) {
  }  // a handful at most, the buffer is small
}

std::vector<UniqueFd> hold_udp_ports(const std::vector<emulator::NicAddress>& addresses,
                                     std::vector<std::string>& warnings) {
  std::vector<UniqueFd> held;
  for (const auto& address : addresses) {
    auto fd = hold_udp_port(address.gid);
    if (fd)
      held.push_back(std::move(fd).value());
    else
      warnings.push_back(fmt::format("{} of {}: peers may be told that the port is unreachable", fd.error(),
                                     to_text(address.gid)));
  }
  return held;
}

}  // namespace roci::dpdk_port
