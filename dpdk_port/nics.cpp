#include "dpdk_port/nics.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;

// The MTU that is asked for, if one is, and if the interface has it; the error, or empty.
std::string set_mtu(ResolvedNic& nic) {
  const Interface& device = nic.interface;
  nic.config.mtu_bytes = nic.spec.mtu_bytes.value_or(nic.config.mtu_bytes);
  if (nic.config.mtu_bytes > device.mtu_bytes) {
    return fmt::format("mtu {} is more than the {} of interface '{}'", nic.config.mtu_bytes, device.mtu_bytes,
                       device.name);
  }
  if (nic.config.mtu_bytes < kMinMtuBytes)
    return fmt::format("interface '{}' has an MTU of {}, {} is the least", device.name, device.mtu_bytes,
                       kMinMtuBytes);
  return {};
}

// Fills in what a NIC on an interface takes from it; the error, or empty.
std::string take_from_interface(ResolvedNic& nic) {
  auto interface = query_interface(nic.spec.interface);
  if (!interface) return interface.error();
  nic.interface = std::move(interface).value();
  const Interface& device = nic.interface;
  if (!device.is_ethernet) return fmt::format("interface '{}' is not an Ethernet", device.name);
  emulator::NicConfig& config = nic.config;
  config.mac = nic.spec.mac.value_or(device.mac);
  config.mtu_bytes = std::min(device.mtu_bytes, kMaxMtuBytes);
  if (auto error = set_mtu(nic); !error.empty()) return error;
  config.addresses = nic.spec.addresses.empty() ? device.addresses : nic.spec.addresses;
  if (config.addresses.empty())
    return fmt::format("interface '{}' has no address; give ip=ADDRESS/PREFIX", device.name);
  config.link_up = device.link_up;
  // Either the kernel answers for all of the addresses, or we do.
  const auto kernels = std::count_if(config.addresses.begin(), config.addresses.end(), [&](const auto& ours) {
    return std::any_of(device.addresses.begin(), device.addresses.end(),
                       [&](const auto& its) { return its.gid == ours.gid; });
  });
  if (kernels != 0 && kernels != static_cast<std::ptrdiff_t>(config.addresses.size())) {
    return fmt::format(
        "some of the addresses are those of interface '{}' and some are not; the kernel answers for all or "
        "none",
        device.name);
  }
  config.answers_neighbours = kernels == 0;
  if (kernels != 0 && config.mac != device.mac) {
    return fmt::format("the addresses are those of interface '{}', so the MAC must be, too", device.name);
  }
  return {};
}

// A NIC on UDP sockets is what the kernel is there, but for a MAC, which no wire sees.
std::string take_from_address(ResolvedNic& nic) {
  auto interface = query_interface_of(nic.spec.local_address);
  if (!interface) return interface.error();
  nic.interface = std::move(interface).value();
  emulator::NicConfig& config = nic.config;
  config.mac = emulator::made_up_mac(nic.spec.local_address);
  config.addresses = nic.interface.addresses;
  config.link_up = nic.interface.link_up;
  config.answers_neighbours = false;
  config.kernel_finds_neighbours = true;
  // Longer packets than of path MTU 4096 there are none.
  config.mtu_bytes = std::min(nic.interface.mtu_bytes, kFabricMtuBytes);
  return set_mtu(nic);
}

// Addresses and MACs that came from interfaces may collide where the written ones did not.
std::string check_unique(const std::vector<ResolvedNic>& nics) {
  std::map<std::string, std::string> owners;
  for (const auto& nic : nics) {
    std::vector<std::string> claims{"MAC " + to_text(nic.config.mac)};
    for (const auto& address : nic.config.addresses)
      claims.push_back("address " + to_text(address.gid));
    for (const auto& claim : claims) {
      const auto [owner, is_new] = owners.emplace(claim, nic.config.name);
      if (!is_new) return fmt::format("{}: {} is already that of {}", nic.config.name, claim, owner->second);
    }
  }
  return {};
}

}  // namespace

Parsed<std::vector<ResolvedNic>> resolve(const std::vector<NicSpec>& specs) {
  std::vector<ResolvedNic> nics;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    ResolvedNic nic;
    nic.spec = specs[i];
    nic.config.name = specs[i].name;
    switch (specs[i].port) {
      case PortKind::kFabric:
        nic.config.mac = specs[i].mac.value_or(default_mac(i));
        nic.config.mtu_bytes = specs[i].mtu_bytes.value_or(kFabricMtuBytes);
        nic.config.addresses = specs[i].addresses;
        break;
      case PortKind::kAfPacket:
        if (auto error = take_from_interface(nic); !error.empty())
          return Unexpected{fmt::format("{}: {}", specs[i].name, error)};
        break;
      case PortKind::kUdp:
        if (auto error = take_from_address(nic); !error.empty())
          return Unexpected{fmt::format("{}: {}", specs[i].name, error)};
        break;
    }
    nics.push_back(std::move(nic));
  }
  if (auto error = check_unique(nics); !error.empty()) return Unexpected{std::move(error)};
  // A NIC knows itself, and on the fabric the others, so that no connection there waits for an ARP.
  for (auto& nic : nics) {
    for (const auto& other : nics) {
      const bool both_on_fabric = nic.spec.port == PortKind::kFabric && other.spec.port == PortKind::kFabric;
      if (&nic != &other && !both_on_fabric) continue;
      for (const auto& gid : emulator::gid_table(other.config))
        nic.config.neighbours.push_back({gid, other.config.mac});
    }
  }
  return nics;
}

}  // namespace roci::dpdk_port
