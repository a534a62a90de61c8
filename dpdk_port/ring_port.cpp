#include "dpdk_port/ring_port.h"

#include <vector>

#include <fmt/format.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_ring.h>

#include "dpdk_port/ethdev_port.h"

namespace roci::dpdk_port {

using proto::Unexpected;

Parsed<std::unique_ptr<Port>> open_ring(const std::string& name, std::uint32_t mtu_bytes, rte_mempool* pool) {
  constexpr unsigned kFrames = 1024;
  const auto forth = fmt::format("rocid-{}-0", name), back = fmt::format("rocid-{}-1", name);
  const bool is_second = rte_ring_lookup(forth.c_str()) != nullptr;
  if (!is_second) {
    for (const auto& ring : {forth, back}) {
      if (rte_ring_create(ring.c_str(), kFrames, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ) == nullptr)
        return Unexpected{fmt::format("no ring: {}", rte_strerror(rte_errno))};
    }
  }
  rte_ring* rx = rte_ring_lookup((is_second ? forth : back).c_str());
  rte_ring* tx = rte_ring_lookup((is_second ? back : forth).c_str());
  const auto device = fmt::format("{}-{}", name, is_second ? 1 : 0);
  if (rte_eth_from_rings(device.c_str(), &rx, 1, &tx, 1, static_cast<unsigned>(SOCKET_ID_ANY)) < 0)
    return Unexpected{fmt::format("the ring driver makes no port: {}", rte_strerror(rte_errno))};
  EthdevConfig config;
  config.device = "net_ring_" + device;
  config.mtu_bytes = mtu_bytes;
  auto port = std::make_unique<EthdevPort>(config);
  std::vector<std::string> warnings;  // a ring takes whatever MAC
  if (auto error = port->start(pool, warnings); !error.empty()) return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
