#include "dpdk_port/ports.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "dpdk_port/af_packet_port.h"
#include "dpdk_port/af_xdp_port.h"
#include "dpdk_port/ethdev_port.h"
#include "dpdk_port/mbufs.h"
#include "dpdk_port/memif_port.h"
#include "dpdk_port/ring_port.h"
#include "dpdk_port/tap_port.h"
#include "dpdk_port/udp_port.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;
using Opened = Parsed<std::unique_ptr<Port>>;

constexpr std::uint32_t kPortMbufs = 1023;    // one less than a power of two suits a mempool best
constexpr std::uint32_t kDeviceMbufs = 2047;  // a driver keeps its receive queue filled

struct PoolSize {
  std::uint32_t mbufs, data_bytes;
};

// Network cards cut their buffers to multiples of up to a KiB.
std::uint32_t device_data_bytes(std::uint32_t mtu_bytes) {
  return std::max(2048U, (longest_frame_bytes(mtu_bytes) + 1023) / 1024 * 1024);
}

PoolSize pool_size(PortKind kind, std::uint32_t mtu_bytes) {
  switch (kind) {
    case PortKind::kFabric:
      return {0, 0};
    case PortKind::kAfPacket:
      return {kPortMbufs, af_packet_slot_bytes(mtu_bytes)};
    case PortKind::kAfXdp:
      return {kAfXdpMbufs, kAfXdpDataBytes};
    case PortKind::kUdp:
      return {kPortMbufs, longest_frame_bytes(mtu_bytes)};
    case PortKind::kTap:
      return {kTapMbufs, longest_frame_bytes(mtu_bytes)};
    case PortKind::kMemif:
    case PortKind::kPcap:
    case PortKind::kRing:
      return {kPortMbufs, device_data_bytes(mtu_bytes)};
    case PortKind::kDevice:
      return {kDeviceMbufs, device_data_bytes(mtu_bytes)};
  }
  std::abort();
}

// Null: no memory.
rte_mempool* make_port_pool(const std::string& name, PortKind kind, std::uint32_t mtu_bytes) {
  const PoolSize size = pool_size(kind, mtu_bytes);
  return make_pool(name, size.mbufs, size.data_bytes);
}

// Linux answers ARP on each interface for the addresses of all of them, so several MACs would claim one.
std::string arp_ignore_of(const std::string& interface) {
  return fmt::format("/proc/sys/net/ipv4/conf/{}/arp_ignore", interface);
}

bool answers_for_others(const std::string& interface) {
  int all = 0, its = 0;
  std::ifstream(arp_ignore_of("all")) >> all;
  std::ifstream(arp_ignore_of(interface)) >> its;
  return all == 0 && its == 0;
}

// Opening of one port.
class Opening {
 public:
  Opening(const PortPlan& plan, std::size_t number, std::vector<ResolvedNic>& nics,
          std::vector<std::string>& warnings)
      : plan_(plan), number_(static_cast<std::uint16_t>(number)), nics_(nics), warnings_(warnings) {}

  Opened open() {
    pool_ = make_port_pool(fmt::format("port{}", number_), first().spec.port, plan_.mtu_bytes);
    if (pool_ == nullptr) return Unexpected{std::string("no memory for its buffers; give EAL more by -m")};
    switch (first().spec.port) {
      case PortKind::kFabric:
        break;
      case PortKind::kAfPacket:
        return beside_kernel();
      case PortKind::kAfXdp:
        return af_xdp();
      case PortKind::kTap:
        return tap();
      case PortKind::kMemif:
        return memif();
      case PortKind::kPcap:
        return first().spec.interface.empty()
                   ? device(fmt::format("net_pcap{},{}", number_, first().spec.device), false)
                   : beside_kernel();
      case PortKind::kRing:
        return open_ring(first().spec.port_text.substr(sizeof "ring:" - 1), plan_.mtu_bytes, pool_);
      case PortKind::kDevice:
        return device(first().spec.device, true);
      case PortKind::kUdp:
        return open_udp(
            {first().spec.local_address, first().interface.index, first().config.mac, first().spec.gso},
            pool_);
    }
    std::abort();
  }

 private:
  [[nodiscard]] ResolvedNic& first() { return nics_[plan_.nics.front()]; }

  Opened beside_kernel() {
    AfPacketConfig port;
    port.interface = first().interface;
    port.number = number_;
    port.mtu_bytes = plan_.mtu_bytes;
    if (first().spec.port == PortKind::kPcap)
      port.device = fmt::format("net_pcap{},{}", number_, first().spec.device);
    for (const std::size_t i : plan_.nics) {
      const auto& nic = nics_[i].config;
      port.macs.push_back(nic.mac);
      if (!nic.answers_neighbours && nics_[i].spec.kernel_interface.empty())
        port.shared_addresses.insert(port.shared_addresses.end(), nic.addresses.begin(), nic.addresses.end());
    }
    return open_af_packet(port, pool_, warnings_);
  }

  Opened af_xdp() {
    AfXdpConfig port;
    port.interface = first().interface;
    port.number = number_;
    port.mtu_bytes = plan_.mtu_bytes;
    port.promiscuous = std::any_of(plan_.nics.begin(), plan_.nics.end(), [this](std::size_t i) {
      return nics_[i].config.mac != first().interface.mac;
    });
    return open_af_xdp(port, pool_, warnings_);
  }

  Opened tap() {
    TapConfig port;
    port.name = first().spec.interface;
    port.mtu_bytes = plan_.mtu_bytes;
    auto opened = open_tap(port, pool_, warnings_);
    if (!opened) return opened;
    auto interface = query_interface(port.name);
    if (!interface) return Unexpected{interface.error()};
    for (const std::size_t i : plan_.nics) {
      nics_[i].interface = *interface;
      nics_[i].config.link_up = interface->link_up;
    }
    return opened;
  }

  Opened memif() {
    MemifConfig port;
    port.arguments = first().spec.device;
    port.number = number_;
    port.is_client = first().spec.device.rfind("role=client", 0) == 0;
    port.mtu_bytes = plan_.mtu_bytes;
    return open_memif(port, pool_, warnings_);
  }

  Opened device(const std::string& text, bool sets_mtu) {
    EthdevConfig config;
    config.device = text;
    config.mtu_bytes = plan_.mtu_bytes;
    config.sets_mtu = sets_mtu;
    for (const std::size_t i : plan_.nics) {
      proto::Mac& mac = nics_[i].config.mac;
      if (mac == proto::Mac{} && i != plan_.nics.front()) mac = random_mac();
      if (mac != proto::Mac{}) config.macs.push_back(mac);
    }
    auto port = std::make_unique<EthdevPort>(config);
    if (auto error = port->start(pool_, warnings_); !error.empty()) return Unexpected{std::move(error)};
    if (first().config.mac == proto::Mac{}) first().config.mac = port->mac();
    if (first().config.mac == proto::Mac{}) first().config.mac = random_mac();
    return Opened(std::move(port));
  }

  const PortPlan& plan_;
  const std::uint16_t number_;
  std::vector<ResolvedNic>& nics_;
  std::vector<std::string>& warnings_;
  rte_mempool* pool_ = nullptr;
};

}  // namespace

std::size_t port_memory_bytes(const PortPlan& plan, const std::vector<ResolvedNic>& nics) {
  const PoolSize size = pool_size(nics[plan.nics.front()].spec.port, plan.mtu_bytes);
  std::size_t bytes = pool_bytes(size.mbufs, size.data_bytes);
  for (const std::size_t i : plan.nics) {
    if (nics[i].spec.kernel_interface.empty()) continue;
    const PoolSize share = pool_size(PortKind::kTap, nics[i].config.mtu_bytes);
    bytes += pool_bytes(share.mbufs, share.data_bytes);
  }
  return bytes;
}

Opened open_port(const PortPlan& plan, std::size_t number, std::vector<ResolvedNic>& nics) {
  const ResolvedNic& first = nics[plan.nics.front()];
  std::vector<std::string> warnings;
  auto opened = Opening(plan, number, nics, warnings).open();
  if (!opened)
    return Unexpected{fmt::format("{}: {}: {}", first.config.name, first.spec.port_text, opened.error())};
  for (const auto& warning : warnings)
    spdlog::warn("{}: {}", first.config.name, warning);
  return opened;
}

Opened open_kernel_share(const ResolvedNic& nic) {
  TapConfig share;
  share.name = nic.spec.kernel_interface;
  share.mtu_bytes = nic.config.mtu_bytes;
  share.mac = nic.config.mac;
  share.addresses = nic.config.addresses;
  std::vector<std::string> warnings;
  const auto fail = [&](const std::string& why) {
    return Unexpected{fmt::format("{}: kernel={}: {}", nic.config.name, share.name, why)};
  };
  rte_mempool* pool = make_port_pool("kernel-" + nic.config.name, PortKind::kTap, share.mtu_bytes);
  if (pool == nullptr) return fail("no memory for its buffers; give EAL more by -m");
  auto opened = open_tap(share, pool, warnings);
  if (!opened) return fail(opened.error());
  std::ofstream(arp_ignore_of(share.name)) << 1 << std::flush;
  std::vector<std::string> flux{share.name};
  if (is_on_interface(nic.spec) && nic.spec.port != PortKind::kAfXdp) flux.push_back(nic.interface.name);
  for (const auto& interface : flux) {
    if (answers_for_others(interface))
      warnings.push_back(
          fmt::format("interface '{}' answers ARP for addresses of '{}' too; set sysctl "
                      "net.ipv4.conf.{}.arp_ignore=1",
                      interface, flux.front() == interface ? "others" : share.name, interface));
  }
  for (const auto& warning : warnings)
    spdlog::warn("{}: {}", nic.config.name, warning);
  return opened;
}

}  // namespace roci::dpdk_port
