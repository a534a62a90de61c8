#include "emulator/steering.h"

#include "emulator/multicast.h"
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

struct Content {
  enum class Kind : std::uint8_t { kOther, kNeighbours, kRoce };
  Kind kind = Kind::kOther;
  proto::Qpn destination{};  // kRoce
};

Content content_of(std::span<const std::byte> frame) {
  std::size_t at = proto::EthernetHeader::kSize;
  if (frame.size() < at) return {};
  std::uint16_t ethertype = proto::load_be16(frame.data() + at - 2);
  for (std::size_t tags = 0; tags < kMaxVlanTags && proto::is_vlan(ethertype); ++tags) {
    at += proto::VlanTag::kSize;
    if (frame.size() < at) return {};
    ethertype = proto::load_be16(frame.data() + at - 2);
  }

  std::uint8_t protocol = 0;
  if (ethertype == proto::kEthertypeArp) return {Content::Kind::kNeighbours};
  if (ethertype == proto::kEthertypeIpv4) {
    if (frame.size() < at + proto::Ipv4Header::kSize) return {};
    protocol = proto::load_u8(frame.data() + at + 9);
    at += std::size_t{4} * (proto::load_u8(frame.data() + at) & 0x0F);
  } else if (ethertype == proto::kEthertypeIpv6) {
    if (frame.size() < at + proto::Ipv6Header::kSize) return {};
    protocol = proto::load_u8(frame.data() + at + 6);
    at += proto::Ipv6Header::kSize;
  } else {
    return {};
  }

  // Options hop by hop are MLD's.
  if (protocol == proto::kProtocolIcmp || protocol == proto::kProtocolIgmp ||
      protocol == proto::kProtocolIcmpv6 || protocol == proto::kHopByHopOptions) {
    return {Content::Kind::kNeighbours};
  }
  if (protocol != proto::kProtocolUdp || frame.size() < at + proto::UdpHeader::kSize + proto::Bth::kSize)
    return {};
  if (proto::load_be16(frame.data() + at + 2) != proto::kRoceV2Port) return {};
  return {Content::Kind::kRoce,
          proto::Qpn{proto::load_be24(frame.data() + at + proto::UdpHeader::kSize + kQpnByte)}};
}

}  // namespace

bool is_roce(std::span<const std::byte> frame) { return content_of(frame).kind == Content::Kind::kRoce; }

bool is_roce_multicast(std::span<const std::byte> frame) {
  if (frame.size() < proto::EthernetHeader::kSize || !is_group(proto::load_mac(frame.data()))) return false;
  const Content content = content_of(frame);
  return content.kind == Content::Kind::kRoce && content.destination == proto::kQpnMulticast;
}

std::optional<std::uint32_t> steer(std::span<const std::byte> frame, std::uint32_t shard_count) {
  if (shard_count == 1) return 0;
  const Content content = content_of(frame);
  switch (content.kind) {
    case Content::Kind::kOther:
      return kDropShard;
    case Content::Kind::kNeighbours:
      return kEvery;
    case Content::Kind::kRoce:
      break;
  }
  const proto::Qpn qpn = content.destination;
  if (qpn <= proto::kQpnGsi || qpn == proto::kQpnMulticast) return kEvery;
  return shard_of(qpn, shard_count);
}

}  // namespace roci::emulator
