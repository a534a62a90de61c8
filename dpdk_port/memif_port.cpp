#include "dpdk_port/memif_port.h"

#include <bit>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "dpdk_port/ethdev_port.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;

constexpr auto kTryAgainAfter = std::chrono::milliseconds(500);  // longer than two sides need to agree

class MemifPort final : public EthdevPort {
 public:
  MemifPort(const EthdevConfig& device, bool is_client) : EthdevPort(device), is_client_(is_client) {}

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
  auto port = std::make_unique<MemifPort>(device, config.is_client);
  if (auto error = port->start(pool, warnings); !error.empty()) return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
