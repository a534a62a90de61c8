#include "dpdk_port/af_packet_port.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;
using shim::UniqueFd;

constexpr std::uint16_t kRoceUdpPort = 4791;
constexpr std::size_t kEthernetAndVlanBytes = 18;

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

// Sees the same frames as the PMD's socket, which cannot be waited for; opened before it, so that the kernel,
// which serves the youngest first, puts a frame into the PMD's ring before it wakes us.
Parsed<UniqueFd> open_wake_socket(const AfPacketConfig& config) {
  UniqueFd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return Unexpected{errno == EPERM ? std::string("needs root or CAP_NET_RAW")
                                     : system_error("AF_PACKET socket")};
  }
  const int one = 1;
  if (!attach_filter(fd.get(), wake_filter())) return Unexpected{system_error("wake filter")};
  (void)setsockopt(fd.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &one,
                   sizeof one);  // Linux 4.20; else it wakes more often
  (void)setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &one,
                   sizeof one);  // the least: a few frames, the rest is dropped
  packet_mreq membership{};
  membership.mr_ifindex = config.interface.index;
  membership.mr_type = config.mac != config.interface.mac ? PACKET_MR_PROMISC : PACKET_MR_ALLMULTI;
  if (setsockopt(fd.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership) != 0) {
    return Unexpected{system_error("promiscuous mode")};  // ends with the socket, unlike IFF_PROMISC
  }
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = config.interface.index;
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return Unexpected{system_error("bind")};
  return fd;
}

// Takes UDP port 4791 of an address of the kernel's and reads nothing, or the kernel tells our peers that
// nobody listens.
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

class AfPacketPort final : public Port {
 public:
  AfPacketPort(const AfPacketConfig& config, UniqueFd wake, std::vector<UniqueFd> held)
      : mac_(config.mac),
        longest_bytes_(config.mtu_bytes + kEthernetAndVlanBytes),
        wake_(std::move(wake)),
        held_(std::move(held)),
        kernel_groups_interface_(config.kernel_owns_addresses ? config.interface.index : 0) {}

  ~AfPacketPort() override {
    if (!started_) return;
    (void)rte_eth_dev_stop(port_);
    (void)rte_eth_dev_close(port_);
  }

  // The reason why not, or empty.
  std::string start(const AfPacketConfig& config, rte_mempool* pool) {
    const auto slot = af_packet_slot_bytes(config.mtu_bytes);
    const auto name = fmt::format("net_af_packet{}", config.number);
    // With the queueing discipline, so that tcpdump and packet filters on the interface see our frames.
    const auto arguments = fmt::format(
        "{},iface={},blocksz={},framesz={},framecnt={},qdisc_bypass=0", name, config.interface.name,
        std::max(slot, static_cast<std::uint32_t>(getpagesize())), slot, kAfPacketRingFrames);
    if (const int error = rte_dev_probe(arguments.c_str()); error != 0) {
      return fmt::format("the af_packet driver refused it: {}", rte_strerror(-error));
    }
    if (rte_eth_dev_get_port_by_name(name.c_str(), &port_) != 0) return "the af_packet driver made no port";
    const rte_eth_conf conf{};
    int error = rte_eth_dev_configure(port_, 1, 1, &conf);
    if (error == 0) error = rte_eth_rx_queue_setup(port_, 0, kAfPacketRingFrames, 0, nullptr, pool);
    if (error == 0) error = rte_eth_tx_queue_setup(port_, 0, kAfPacketRingFrames, 0, nullptr);
    if (error == 0) error = rte_eth_dev_start(port_);
    started_ = error == 0;
    return error == 0 ? std::string()
                      : fmt::format("the af_packet port does not start: {}", rte_strerror(-error));
  }

  std::size_t receive(rte_mbuf** out, std::size_t max) override {
    const std::size_t got = rte_eth_rx_burst(port_, 0, out, static_cast<std::uint16_t>(max));
    std::size_t kept = 0;
    for (std::size_t i = 0; i < got; ++i) {
      if (is_from_wire(*out[i]))
        out[kept++] = out[i];
      else
        rte_pktmbuf_free(out[i]);
    }
    return kept;
  }

  std::size_t send(rte_mbuf** frames, std::size_t count) override {
    return rte_eth_tx_burst(port_, 0, frames, static_cast<std::uint16_t>(count));
  }

  [[nodiscard]] int wake_fd() const override { return wake_.get(); }

  void prepare_to_sleep() override {
    std::byte byte{};
    while (recv(wake_.get(), &byte, 1, 0) > 0) {
    }  // a handful at most, the buffer is small
  }

  [[nodiscard]] int kernel_groups_interface() const override { return kernel_groups_interface_; }

 private:
  // Not the kernel's or our own outgoing frames, which the PMD hands over too, and no frame longer than the
  // wire takes: that is a segmentation offload of the sender's on the same host, several datagrams in one.
  [[nodiscard]] bool is_from_wire(const rte_mbuf& mbuf) const {
    const auto* frame = rte_pktmbuf_mtod(&mbuf, const std::byte*);
    return mbuf.data_len >= ETH_HLEN && mbuf.data_len <= longest_bytes_ &&
           std::memcmp(frame + ETH_ALEN, mac_.bytes.data(), ETH_ALEN) != 0;
  }

  const proto::Mac mac_;
  const std::size_t longest_bytes_;
  const UniqueFd wake_;
  const std::vector<UniqueFd> held_;
  const int kernel_groups_interface_;
  std::uint16_t port_ = 0;
  bool started_ = false;
};

}  // namespace

std::uint32_t af_packet_slot_bytes(std::uint32_t mtu_bytes) {
  constexpr std::size_t kTpacketBytes =
      std::size_t{2} * TPACKET_ALIGNMENT + sizeof(tpacket2_hdr) + sizeof(sockaddr_ll);
  return std::max(
      2048U, std::bit_ceil(mtu_bytes + static_cast<std::uint32_t>(kEthernetAndVlanBytes + kTpacketBytes)));
}

Parsed<std::unique_ptr<Port>> open_af_packet(const AfPacketConfig& config, rte_mempool* pool,
                                             std::vector<std::string>& warnings) {
  auto wake = open_wake_socket(config);
  if (!wake) return Unexpected{wake.error()};
  std::vector<UniqueFd> held;
  if (config.kernel_owns_addresses) {
    for (const auto& address : config.addresses) {
      auto fd = hold_udp_port(address.gid);
      if (fd)
        held.push_back(std::move(fd).value());
      else
        warnings.push_back(fmt::format("{} of {}: peers may be told that the port is unreachable", fd.error(),
                                       to_text(address.gid)));
    }
  }
  auto port = std::make_unique<AfPacketPort>(config, std::move(wake).value(), std::move(held));
  if (auto error = port->start(config, pool); !error.empty()) return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
