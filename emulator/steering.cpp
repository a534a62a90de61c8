#include "emulator/steering.h"

#include "proto/bth.h"
#include "proto/ethernet.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/udp.h"

namespace roci::emulator {
namespace {

constexpr std::size_t kMaxVlanTags = 2;
constexpr std::size_t kQpnByte = 5;             // in the BTH
constexpr std::uint32_t kDropShard = 0;         // counts what nobody can take
constexpr std::optional<std::uint32_t> kEvery;  // every shard must see it

}  // namespace

std::optional<std::uint32_t> steer(std::span<const std::byte> frame, std::uint32_t shard_count) {
  if (shard_count == 1) return 0;
  std::size_t at = proto::EthernetHeader::kSize;
  if (frame.size() < at) return kDropShard;
  std::uint16_t ethertype = proto::load_be16(frame.data() + at - 2);
  for (std::size_t tags = 0; tags < kMaxVlanTags && proto::is_vlan(ethertype); ++tags) {
    at += proto::VlanTag::kSize;
    if (frame.size() < at) return kDropShard;
    ethertype = proto::load_be16(frame.data() + at - 2);
  }

  std::uint8_t protocol = 0;
  if (ethertype == proto::kEthertypeArp) return kEvery;
  if (ethertype == proto::kEthertypeIpv4) {
    if (frame.size() < at + proto::Ipv4Header::kSize) return kDropShard;
    protocol = proto::load_u8(frame.data() + at + 9);
    at += std::size_t{4} * (proto::load_u8(frame.data() + at) & 0x0F);
  } else if (ethertype == proto::kEthertypeIpv6) {
    if (frame.size() < at + proto::Ipv6Header::kSize) return kDropShard;
    protocol = proto::load_u8(frame.data() + at + 6);
    at += proto::Ipv6Header::kSize;
  } else {
    return kDropShard;
  }

  if (protocol == proto::kProtocolIcmp || protocol == proto::kProtocolIcmpv6) return kEvery;
  if (protocol != proto::kProtocolUdp || frame.size() < at + proto::UdpHeader::kSize + proto::Bth::kSize)
    return kDropShard;
  if (proto::load_be16(frame.data() + at + 2) != proto::kRoceV2Port) return kDropShard;
  const proto::Qpn qpn{proto::load_be24(frame.data() + at + proto::UdpHeader::kSize + kQpnByte)};
  if (qpn <= proto::kQpnGsi || qpn == proto::kQpnMulticast) return kEvery;
  return shard_of(qpn, shard_count);
}

}  // namespace roci::emulator
