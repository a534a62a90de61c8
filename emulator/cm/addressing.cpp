#include "emulator/cm/addressing.h"

#include <algorithm>
#include <iterator>

#include "proto/bytes.h"

namespace roci::emulator::cm {
namespace {

// Bits of the 128 that an IPv4 prefix stands behind.
constexpr int kMappedBits = 96;

int common_bits(const proto::Gid& a, const proto::Gid& b) {
  int bits = 0;
  for (std::size_t i = 0; i < a.bytes.size(); ++i) {
    for (int bit = 7; bit >= 0; --bit, ++bits) {
      if (((a.bytes[i] ^ b.bytes[i]) >> bit & 1) != 0) return bits;
    }
  }
  return bits;
}

constexpr bool sees(std::uint64_t nics, std::size_t index) { return (nics >> index & 1) != 0; }

}  // namespace

bool is_any(const proto::Gid& ip) { return ip == proto::Gid{} || ip == proto::Gid::from_ipv4(0); }

bool is_multicast(const proto::Gid& ip) {
  return ip.is_ipv4() ? ip.ipv4() >> 28 == 0xE : ip.bytes[0] == 0xFF;
}

bool is_loopback(const proto::Gid& ip) {
  proto::Gid one;
  one.bytes[15] = 1;
  return ip.is_ipv4() ? ip.ipv4() >> 24 == 127 : ip == one;
}

bool is_localhost(const proto::Gid& ip) {
  return is_loopback(ip) && (!ip.is_ipv4() || ip.ipv4() == 0x7F000001);
}

Addressing::Nic::Nic(const NicConfig& config)
    : gids(gid_table(config)),
      gateway4(config.gateway(true)),
      gateway6(config.gateway(false)),
      path_mtu(active_path_mtu(config.mtu_bytes)) {
  addresses = {{gids.front(), 64}};
  std::copy_if(config.addresses.begin(), config.addresses.end(), std::back_inserter(addresses),
               [](const NicAddress& one) { return one.gid != proto::Gid{}; });
  // The interface id of the link-local address is the EUI-64 that is the node's GUID, too.
  for (std::size_t i = 8; i < 16; ++i)
    guid = guid << 8 | gids.front().bytes[i];
}

Addressing::Addressing(const std::vector<NicConfig>& nics) {
  for (const NicConfig& config : nics)
    nics_.emplace_back(config);
}

void Addressing::change(NicId nic, const NicConfig& config) { nics_[nic.index] = Nic(config); }

Addressing::Match Addressing::on_link(const Nic& nic, const proto::Gid& destination) {
  Match best;
  for (const NicAddress& own : nic.addresses) {
    if (own.gid.is_ipv4() != destination.is_ipv4()) continue;
    const int prefix = own.prefix_length + (own.gid.is_ipv4() ? kMappedBits : 0);
    const int common = common_bits(own.gid, destination);
    const int quality = common == 128 ? 128 : common >= prefix ? prefix : -1;  // an own address beats all
    if (quality > best.prefix) best = {quality, own.gid};
  }
  return best;
}

std::optional<proto::Gid> Addressing::behind_gateway(const Nic& nic, const proto::Gid& destination) {
  const bool ipv4 = destination.is_ipv4();
  // A group has no gateway and needs none: it is asked for on the NIC itself.
  if (!is_multicast(destination)) {
    const auto& gateway = ipv4 ? nic.gateway4 : nic.gateway6;
    if (!gateway || is_loopback(destination)) return std::nullopt;
    const Match way = on_link(nic, *gateway);
    // A gateway of link-local scope says nothing about the source.
    if (way.prefix >= 0 && way.source != nic.gids.front()) return way.source;
  }
  // The link-local address is the last resort.
  for (std::size_t i = 1; i < nic.gids.size(); ++i)
    if (nic.gids[i].is_ipv4() == ipv4 && !is_any(nic.gids[i])) return nic.gids[i];
  return ipv4 ? std::nullopt : std::optional(nic.gids.front());
}

Addressing::Choice Addressing::choice(std::size_t index, const proto::Gid& source,
                                      const proto::Gid& destination) const {
  const NicId nic{static_cast<std::uint8_t>(index)};
  return {nic, source, sgid_index(nic, source).value_or(0), sgid_index(nic, destination).has_value()};
}

std::optional<Addressing::Choice> Addressing::to(const proto::Gid& destination, std::uint64_t nics) const {
  int best = -1;
  std::optional<Choice> found;
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    if (!sees(nics, i)) continue;
    const Match match = on_link(nics_[i], destination);
    if (match.prefix <= best) continue;
    best = match.prefix;
    found = choice(i, match.source, destination);
  }
  for (std::size_t i = 0; i < nics_.size() && !found; ++i) {
    if (!sees(nics, i)) continue;
    if (const auto source = behind_gateway(nics_[i], destination)) found = choice(i, *source, destination);
  }
  return found;
}

std::optional<Addressing::Choice> Addressing::from(NicId nic, const proto::Gid& source,
                                                   const proto::Gid& destination) const {
  const Nic& own = nics_[nic.index];
  if (source.is_ipv4() != destination.is_ipv4()) return std::nullopt;
  if (on_link(own, destination).prefix < 0 && !behind_gateway(own, destination)) return std::nullopt;
  return choice(nic.index, source, destination);
}

std::optional<NicId> Addressing::owner(const proto::Gid& ip, std::uint64_t nics) const {
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    const NicId nic{static_cast<std::uint8_t>(i)};
    if (sees(nics, i) && sgid_index(nic, ip)) return nic;
  }
  return std::nullopt;
}

std::optional<proto::Gid> Addressing::first_address(bool ipv4, std::uint64_t nics) const {
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    if (!sees(nics, i)) continue;
    for (std::size_t j = 1; j < nics_[i].gids.size(); ++j)
      if (nics_[i].gids[j].is_ipv4() == ipv4 && !is_any(nics_[i].gids[j])) return nics_[i].gids[j];
  }
  return std::nullopt;
}

std::optional<std::uint8_t> Addressing::sgid_index(NicId nic, const proto::Gid& ip) const {
  const auto& gids = nics_[nic.index].gids;
  const auto found = std::find(gids.begin(), gids.end(), ip);
  if (found == gids.end() || is_any(ip)) return std::nullopt;
  return static_cast<std::uint8_t>(found - gids.begin());
}

}  // namespace roci::emulator::cm
