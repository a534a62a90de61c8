#include "dpdk_port/tap_port.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <rte_mbuf.h>

#include "dpdk_port/ethdev_port.h"
#include "dpdk_port/kernel_sockets.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;
using shim::UniqueFd;

std::string why() { return std::generic_category().message(errno); }

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::memcpy(request.ifr_name, name.data(), std::min(name.size(), sizeof request.ifr_name - 1));
  return request;
}

// The interface lives as long as the descriptor, unless somebody made it before.
Parsed<UniqueFd> make_interface(const std::string& name) {
  UniqueFd fd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd)
    return Unexpected{
        fmt::format("/dev/net/tun: {}; load the module tun, or give the container the device", why())};
  ifreq request = request_for(name);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (ioctl(fd.get(), TUNSETIFF, &request) == 0) return fd;
  if (errno == EPERM) {
    return Unexpected{fmt::format(
        "needs root or CAP_NET_ADMIN, or an interface made for you: ip tuntap add {} mode tap user NAME",
        name)};
  }
  if (errno == EBUSY) return Unexpected{fmt::format("another process has interface '{}'", name)};
  if (errno == EINVAL) return Unexpected{fmt::format("there is an interface '{}' that is no TAP", name)};
  return Unexpected{why()};
}

// Whom an interface was made for may not change it; then it has to be as we want it already.
std::string set_up(const UniqueFd& control, const TapConfig& config) {
  ifreq request = request_for(config.name);
  if (ioctl(control.get(), SIOCGIFMTU, &request) != 0) return why();
  if (request.ifr_mtu != static_cast<int>(config.mtu_bytes)) {
    request.ifr_mtu = static_cast<int>(config.mtu_bytes);
    if (ioctl(control.get(), SIOCSIFMTU, &request) != 0)
      return fmt::format("mtu {}: {}", config.mtu_bytes, why());
  }
  if (config.mac) {
    request = request_for(config.name);
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    std::memcpy(request.ifr_hwaddr.sa_data, config.mac->bytes.data(), config.mac->bytes.size());
    if (ioctl(control.get(), SIOCSIFHWADDR, &request) != 0)
      return fmt::format("MAC {}: {}", to_text(*config.mac), why());
  }
  request = request_for(config.name);
  if (ioctl(control.get(), SIOCGIFFLAGS, &request) != 0) return why();
  if ((request.ifr_flags & IFF_UP) == 0) {
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    if (ioctl(control.get(), SIOCSIFFLAGS, &request) != 0)
      return fmt::format("it cannot be set up: {}", why());
  }
  return {};
}

// Adds an address to an interface; errno, or 0.
int add_address(int interface_index, const emulator::NicAddress& address) {
  const bool v4 = address.gid.is_ipv4();
  const std::size_t bytes = v4 ? 4 : 16;
  struct {
    nlmsghdr header;
    ifaddrmsg body;
    rtattr attribute;
    std::uint8_t value[16];
  } request{};
  request.header.nlmsg_len =
      static_cast<std::uint32_t>(NLMSG_LENGTH(sizeof request.body) + RTA_LENGTH(bytes));
  request.header.nlmsg_type = RTM_NEWADDR;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
  request.body.ifa_family = v4 ? AF_INET : AF_INET6;
  request.body.ifa_prefixlen = address.prefix_length;
  request.body.ifa_index = static_cast<std::uint32_t>(interface_index);
  request.attribute.rta_type = IFA_LOCAL;
  request.attribute.rta_len = static_cast<unsigned short>(RTA_LENGTH(bytes));
  std::memcpy(request.value, address.gid.bytes.data() + (16 - bytes), bytes);
  const UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  struct {
    nlmsghdr header;
    nlmsgerr error;
    char rest[512];
  } reply{};
  if (!fd || send(fd.get(), &request, request.header.nlmsg_len, 0) < 0 ||
      recv(fd.get(), &reply, sizeof reply, 0) < 0)
    return errno;
  return reply.header.nlmsg_type == NLMSG_ERROR ? -reply.error.error : EPROTO;
}

class TapPort final : public Port {
 public:
  TapPort(UniqueFd fd, int interface_index, rte_mempool* pool, std::vector<UniqueFd> held)
      : fd_(std::move(fd)), interface_index_(interface_index), pool_(pool), held_(std::move(held)) {}

  ~TapPort() override { rte_pktmbuf_free(spare_); }

  std::size_t receive(rte_mbuf** out, std::size_t max) override {
    std::size_t count = 0;
    for (; count < max; ++count) {
      if (spare_ == nullptr) spare_ = rte_pktmbuf_alloc(pool_);
      if (spare_ == nullptr) break;
      const ssize_t got = read(fd_.get(), rte_pktmbuf_mtod(spare_, void*), rte_pktmbuf_tailroom(spare_));
      if (got <= 0) break;
      spare_->data_len = static_cast<std::uint16_t>(got);
      spare_->pkt_len = static_cast<std::uint32_t>(got);
      out[count] = std::exchange(spare_, nullptr);
    }
    return count;
  }

  // An interface that is down loses them, as a wire that was pulled does.
  std::size_t send(rte_mbuf** frames, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      const ssize_t sent = write(fd_.get(), rte_pktmbuf_mtod(frames[i], const void*), frames[i]->data_len);
      if (sent < 0 && errno == EAGAIN) return i;
      rte_pktmbuf_free(frames[i]);
    }
    return count;
  }

  [[nodiscard]] int wake_fd() const override { return fd_.get(); }
  void prepare_to_sleep() override {}  // it is readable as long as frames wait
  [[nodiscard]] int kernel_groups_interface() const override { return interface_index_; }

 private:
  const UniqueFd fd_;
  const int interface_index_;
  rte_mempool* const pool_;
  const std::vector<UniqueFd> held_;
  rte_mbuf* spare_ = nullptr;
};

}  // namespace

Parsed<std::unique_ptr<Port>> open_tap(const TapConfig& config, rte_mempool* pool,
                                       std::vector<std::string>& warnings) {
  auto fd = make_interface(config.name);
  if (!fd) return Unexpected{fd.error()};
  const UniqueFd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!control) return Unexpected{why()};
  if (auto error = set_up(control, config); !error.empty())
    return Unexpected{fmt::format("interface '{}': {}", config.name, error)};
  ifreq request = request_for(config.name);
  if (ioctl(control.get(), SIOCGIFINDEX, &request) != 0) return Unexpected{why()};
  const int index = request.ifr_ifindex;
  for (const auto& address : config.addresses) {
    if (const int error = add_address(index, address); error != 0)
      warnings.push_back(fmt::format("interface '{}' does not get address {}: {}", config.name,
                                     to_text(address.gid), std::generic_category().message(error)));
  }
  return std::unique_ptr<Port>(std::make_unique<TapPort>(std::move(fd).value(), index, pool,
                                                         hold_udp_ports(config.addresses, warnings)));
}

}  // namespace roci::dpdk_port
