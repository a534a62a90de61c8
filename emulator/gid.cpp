// The GID table, made-up MACs and the active path MTU of a NIC.
#include <algorithm>

#include "emulator/config.h"
#include "proto/bth.h"
#include "proto/icrc.h"
#include "proto/imm_dt.h"
#include "proto/ipv6.h"
#include "proto/reth.h"
#include "proto/udp.h"
#include "proto/xrceth.h"

namespace roci::emulator {
namespace {

// fe80::/64 and the modified EUI-64 of the MAC [RFC 4291, appendix A].
proto::Gid link_local(const proto::Mac& mac) {
  proto::Gid gid;
  gid.bytes = {0xFE,
               0x80,
               0,
               0,
               0,
               0,
               0,
               0,
               static_cast<std::uint8_t>(mac.bytes[0] ^ 2),
               mac.bytes[1],
               mac.bytes[2],
               0xFF,
               0xFE,
               mac.bytes[3],
               mac.bytes[4],
               mac.bytes[5]};
  return gid;
}

// In front of and behind the payload of the packet with the most headers: IPv6, and an XRC WRITE with
// immediate.
constexpr std::size_t kMostHeaderBytes = proto::Ipv6Header::kSize + proto::UdpHeader::kSize +
                                         proto::Bth::kSize + proto::Xrceth::kSize + proto::Reth::kSize +
                                         proto::ImmDt::kSize + proto::Icrc::kSize;

}  // namespace

std::optional<proto::Gid> NicConfig::gateway(bool ipv4) const {
  const auto found = std::find_if(gateways.begin(), gateways.end(),
                                  [&](const proto::Gid& one) { return one.is_ipv4() == ipv4; });
  return found == gateways.end() ? std::nullopt : std::optional(*found);
}

std::vector<proto::Gid> gid_table(const NicConfig& nic) {
  std::vector<proto::Gid> table{link_local(nic.mac)};
  for (const NicAddress& address : nic.addresses) {
    const bool is_known = std::find(table.begin(), table.end(), address.gid) != table.end();
    if (!is_known || address.gid == proto::Gid{}) table.push_back(address.gid);
  }
  return table;
}

std::vector<NicAddress> changed_addresses(std::vector<NicAddress> addresses,
                                          const std::vector<NicAddress>& wanted) {
  const auto find = [](const auto& list, const proto::Gid& gid) {
    return std::find_if(list.begin(), list.end(), [&](const NicAddress& one) { return one.gid == gid; });
  };
  for (NicAddress& address : addresses) {
    const auto stays = find(wanted, address.gid);
    address = stays == wanted.end() ? NicAddress{proto::Gid{}, 128} : *stays;
  }
  for (const NicAddress& address : wanted) {
    if (find(addresses, address.gid) != addresses.end()) continue;
    const auto free = std::find_if(addresses.begin(), addresses.end(),
                                   [](const NicAddress& one) { return one.gid == proto::Gid{}; });
    if (free != addresses.end())
      *free = address;
    else
      addresses.push_back(address);
  }
  return addresses;
}

proto::Mac made_up_mac(const proto::Gid& gid) {
  proto::Mac mac;
  if (gid.is_ipv4()) {
    mac.bytes = {0x02, 0x04, gid.bytes[12], gid.bytes[13], gid.bytes[14], gid.bytes[15]};
    return mac;
  }
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const std::uint8_t byte : gid.bytes)
    hash = (hash ^ byte) * 0x100000001B3;
  hash ^= hash >> 32;
  mac.bytes[0] = 0x06;
  for (std::size_t i = 1; i < mac.bytes.size(); ++i, hash >>= 8)
    mac.bytes[i] = static_cast<std::uint8_t>(hash);
  return mac;
}

proto::PathMtu active_path_mtu(std::uint32_t mtu_bytes) {
  for (const proto::PathMtu mtu :
       {proto::PathMtu::k4096, proto::PathMtu::k2048, proto::PathMtu::k1024, proto::PathMtu::k512}) {
    if (proto::bytes_of(mtu) + kMostHeaderBytes <= mtu_bytes) return mtu;
  }
  return proto::PathMtu::k256;
}

}  // namespace roci::emulator
