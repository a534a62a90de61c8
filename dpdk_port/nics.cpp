#include "dpdk_port/nics.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
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
  const std::uint32_t most = nic.spec.port == PortKind::kAfXdp ? kAfXdpMaxMtuBytes : kMaxMtuBytes;
  config.mtu_bytes = std::min(device.mtu_bytes, most);
  if (auto error = set_mtu(nic); !error.empty()) return error;
  if (config.mtu_bytes > most)
    return fmt::format("mtu {} is more than the {} of AF_XDP", config.mtu_bytes, most);
  config.addresses = nic.spec.addresses.empty() ? device.addresses : nic.spec.addresses;
  if (config.addresses.empty())
    return fmt::format("interface '{}' has no address; give ip=ADDRESS/PREFIX", device.name);
  config.link_up = device.link_up;
  // An XDP program takes all of the frames, so the kernel answers nothing on its own.
  if (nic.spec.port == PortKind::kAfXdp) return {};
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
  if (kernels != 0 && !nic.spec.kernel_interface.empty()) {
    return fmt::format(
        "the addresses are those of interface '{}', on which the kernel has its traffic; leave kernel= out",
        device.name);
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

std::uint32_t default_mtu(PortKind port) {
  switch (port) {
    case PortKind::kFabric:
    case PortKind::kMemif:
    case PortKind::kRing:
      return kFabricMtuBytes;
    case PortKind::kAfPacket:
    case PortKind::kAfXdp:
    case PortKind::kTap:
    case PortKind::kPcap:
    case PortKind::kDevice:
    case PortKind::kUdp:
      break;
  }
  return kEthernetMtuBytes;
}

// Addresses and MACs that came from interfaces may collide where the written ones did not.
std::string check_unique(const std::vector<ResolvedNic>& nics) {
  std::map<std::string, std::string> owners;
  for (const auto& nic : nics) {
    std::vector<std::string> claims;
    if (nic.config.mac != proto::Mac{}) claims.push_back("MAC " + to_text(nic.config.mac));
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

proto::Mac random_mac() {
  proto::Mac mac;
  if (getrandom(mac.bytes.data(), mac.bytes.size(), 0) < 0) std::abort();  // so few bytes never fail
  mac.bytes[0] = static_cast<std::uint8_t>((mac.bytes[0] & ~3U) | 2U);
  return mac;
}

Parsed<std::vector<ResolvedNic>> resolve(const std::vector<NicSpec>& specs) {
  std::vector<ResolvedNic> nics;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    ResolvedNic nic;
    nic.spec = specs[i];
    nic.config.name = specs[i].name;
    nic.config.gateways = specs[i].gateways;
    if (specs[i].port == PortKind::kUdp) {
      if (auto error = take_from_address(nic); !error.empty())
        return Unexpected{fmt::format("{}: {}", specs[i].name, error)};
    } else if (is_on_interface(specs[i])) {
      if (auto error = take_from_interface(nic); !error.empty())
        return Unexpected{fmt::format("{}: {}", specs[i].name, error)};
    } else {
      nic.config.mtu_bytes = specs[i].mtu_bytes.value_or(default_mtu(specs[i].port));
      nic.config.addresses = specs[i].addresses;
      if (specs[i].mac)
        nic.config.mac = *specs[i].mac;
      else if (specs[i].port == PortKind::kFabric)
        nic.config.mac = default_mac(i);
      else if (specs[i].port != PortKind::kDevice)
        nic.config.mac = random_mac();
    }
    if (!specs[i].kernel_interface.empty()) nic.config.answers_neighbours = false;
    nics.push_back(std::move(nic));
  }
  if (auto error = name_neighbours(nics); !error.empty()) return Unexpected{std::move(error)};
  return nics;
}

std::string name_neighbours(std::vector<ResolvedNic>& nics) {
  if (auto error = check_unique(nics); !error.empty()) return error;
  // A NIC knows what it was told, itself and those on its port, the fabric too, so that no connection there
  // waits for an ARP; which a kernel does not answer to whom it has the address of itself.
  for (auto& nic : nics) {
    nic.config.neighbours = nic.spec.neighbours;
    for (const auto& other : nics) {
      const bool is_beside = nic.spec.port_text == other.spec.port_text && nic.spec.vlan == other.spec.vlan;
      if (&nic != &other && !is_beside) continue;
      for (const auto& gid : emulator::gid_table(other.config))
        nic.config.neighbours.push_back({gid, other.config.mac});
    }
  }
  return {};
}

std::vector<PortPlan> plan_ports(const std::vector<ResolvedNic>& nics) {
  std::vector<PortPlan> plans;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    if (nics[i].spec.port == PortKind::kFabric) continue;
    auto plan = std::find_if(plans.begin(), plans.end(), [&](const PortPlan& each) {
      return nics[each.nics.front()].spec.port_text == nics[i].spec.port_text;
    });
    if (plan == plans.end() || nics[i].spec.port == PortKind::kRing)
      plan = plans.insert(plans.end(), PortPlan{});
    plan->nics.push_back(i);
    plan->mtu_bytes = std::max(plan->mtu_bytes, nics[i].config.mtu_bytes);
  }
  return plans;
}

}  // namespace roci::dpdk_port
