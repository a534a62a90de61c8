#include "dpdk_port/memif_port.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "dpdk_port/ethdev_port.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;

constexpr auto kTryAgainAfter = std::chrono::milliseconds(500);  // longer than two sides need to agree

std::string socket_of(std::string_view arguments) {
  constexpr std::string_view kKey = "socket=";
  const auto at = arguments.find(kKey) + kKey.size();
  return std::string(arguments.substr(at, arguments.find(',', at) - at));
}

// The driver will not listen on what a server that was killed has left. A socket of another type than memif's
// finds out whether there is one still, without a word to it.
void remove_if_stale(const std::string& socket_path) {
  const shim::UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy_n(socket_path.data(), std::min(socket_path.size(), sizeof address.sun_path - 1),
              address.sun_path);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno == ECONNREFUSED)
    (void)unlink(socket_path.c_str());
}

class MemifPort final : public EthdevPort {
 public:
  MemifPort(const EthdevConfig& device, bool is_client, std::string socket_path)
      : EthdevPort(device), is_client_(is_client), socket_path_(std::move(socket_path)) {}
  // As its device ends with the process only.
  ~MemifPort() override {
    if (!is_client_) (void)unlink(socket_path_.c_str());
  }

  std::size_t receive(rte_mbuf** out, std::size_t max) override {
    if (is_client_ && !link_is_up()) connect();
    return EthdevPort::receive(out, max);
  }

 private:
  void connect() {
    const auto now = std::chrono::steady_clock::now();
    if (now - tried_ < kTryAgainAfter) return;
    tried_ = now;
    restart();
  }

  const bool is_client_;
  const std::string socket_path_;
  std::chrono::steady_clock::time_point tried_ = std::chrono::steady_clock::now();
};

}  // namespace

Parsed<std::unique_ptr<Port>> open_memif(const MemifConfig& config, rte_mempool* pool,
                                         std::vector<std::string>& warnings) {
  EthdevConfig device;
  // A buffer of the shared memory has the longest frame.
  device.device = fmt::format("net_memif{},{},bsize={}", config.number, config.arguments,
                              std::bit_ceil(longest_frame_bytes(config.mtu_bytes)));
  device.mtu_bytes = config.mtu_bytes;
  device.may_start_later = config.is_client;
  const auto socket_path = socket_of(config.arguments);
  if (!config.is_client) remove_if_stale(socket_path);
  auto port = std::make_unique<MemifPort>(device, config.is_client, socket_path);
  if (auto error = port->start(pool, warnings); !error.empty()) return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
