#include "dpdk_port/af_xdp_port.h"

#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "dpdk_port/ethdev_port.h"
#include "dpdk_port/kernel_sockets.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;
using shim::UniqueFd;

// Of this process. The PMD does not tell its socket, so what it opened is found among all descriptors.
std::set<int> af_xdp_sockets() {
  std::set<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename();
    int fd = -1, domain = 0;
    socklen_t length = sizeof domain;
    (void)std::from_chars(name.data(), name.data() + name.size(), fd);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_XDP) found.insert(fd);
  }
  return found;
}

// Why the kernel will not let us, or empty.
std::string try_socket() {
  const UniqueFd fd(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (fd) return {};
  if (errno == EPERM) return "needs root, or CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; af_packet needs less";
  if (errno == EAFNOSUPPORT) return "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use af_packet";
  return fmt::format("AF_XDP socket: {}", std::generic_category().message(errno));
}

std::size_t receive_queues(const std::string& interface) {
  std::error_code ignored;
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/class/net/" + interface + "/queues", ignored))
    if (entry.path().filename().string().rfind("rx-", 0) == 0) ++count;
  return count;
}

class AfXdpPort final : public EthdevPort {
 public:
  AfXdpPort(const EthdevConfig& device, UniqueFd member) : EthdevPort(device), member_(std::move(member)) {}

  std::string start_and_find_socket(rte_mempool* pool, std::vector<std::string>& warnings) {
    const auto before = af_xdp_sockets();
    if (auto error = start(pool, warnings); !error.empty()) return error;
    for (const int fd : af_xdp_sockets()) {
      if (before.count(fd) == 0) wake_fd_ = fd;
    }
    return {};
  }

  // Readable as long as frames wait. The PMD's, which closes it.
  [[nodiscard]] int wake_fd() const override { return wake_fd_; }

 private:
  const UniqueFd member_;
  int wake_fd_ = -1;
};

}  // namespace

Parsed<std::unique_ptr<Port>> open_af_xdp(const AfXdpConfig& config, rte_mempool* pool,
                                          std::vector<std::string>& warnings) {
  if (auto error = try_socket(); !error.empty()) return Unexpected{std::move(error)};
  auto member = open_member_socket(config.interface.index, config.promiscuous);
  if (!member) return Unexpected{member.error()};
  if (const std::size_t queues = receive_queues(config.interface.name); queues > 1) {
    warnings.push_back(
        fmt::format("frames come from the first of {} receive queues only; try ethtool -L {} combined 1",
                    queues, config.interface.name));
  }
  EthdevConfig device;
  // Without busy polling, which wants a loop that never sleeps.
  device.device = fmt::format("net_af_xdp{},iface={},busy_budget=0", config.number, config.interface.name);
  device.mtu_bytes = config.mtu_bytes;
  device.is_interface = true;
  auto port = std::make_unique<AfXdpPort>(device, std::move(member).value());
  if (auto error = port->start_and_find_socket(pool, warnings); !error.empty())
    return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
