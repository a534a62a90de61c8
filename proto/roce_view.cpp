#include "proto/roce_view.h"

#include "proto/bytes.h"
#include "proto/ethernet.h"
#include "proto/framing.h"
#include "proto/icrc.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/udp.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace roci::proto {
namespace {

constexpr std::size_t kMaxVlanTags = 2;
constexpr std::size_t kMaxOffset = std::numeric_limits<std::uint16_t>::max();

std::uint16_t offset(std::size_t value) { return static_cast<std::uint16_t>(value); }

void set_mapped(Gid& gid, const std::byte* ipv4_address) {
  constexpr std::uint64_t low_zeros = 0;
  constexpr std::array<std::uint8_t, 4> high_zeros_ones = {0, 0, 0xFF, 0xFF};
  std::memcpy(gid.bytes.data(), &low_zeros, 8);
  std::memcpy(gid.bytes.data() + 8, high_zeros_ones.data(), 4);
  std::memcpy(gid.bytes.data() + 12, ipv4_address, 4);
}

}  // namespace

ParseError parse_roce(std::span<const std::byte> frame, RoceView& view) {
  frame = frame.first(std::min(frame.size(), kMaxOffset));
  if (frame.size() < EthernetHeader::kSize) return ParseError::kShortLink;
  const std::byte* at = frame.data();
  std::size_t ip = EthernetHeader::kSize;
  std::uint16_t ethertype = load_be16(at + ip - 2);
  bool is_in_vlan = false;
  for (std::size_t tags = 0; is_vlan(ethertype); ++tags) {
    if (tags == kMaxVlanTags) return ParseError::kVlanDepth;
    ip += VlanTag::kSize;
    if (frame.size() < ip) return ParseError::kShortLink;
    is_in_vlan = is_in_vlan || (load_be16(at + ip - 4) & 0x0FFF) != 0;
    ethertype = load_be16(at + ip - 2);
  }

  framing::Verdict network;
  if (ethertype == kEthertypeIpv4) {
    network = framing::check_ipv4(frame.subspan(ip));
  } else if (ethertype == kEthertypeIpv6) {
    network = framing::check_ipv6(frame.subspan(ip));
  } else {
    return ParseError::kOtherEthertype;
  }
  if (network.error != ParseError::kNone) return network.error;

  const std::size_t udp = ip + network.header;
  const std::size_t bth = udp + UdpHeader::kSize;
  const std::size_t end = ip + network.end;
  if (end - bth < framing::kMinTransportBytes) return ParseError::kShortBth;
  view.bth.read(frame.subspan(bth).first<Bth::kSize>());
  const ParseError error = framing::check_transport(frame.subspan(bth, end - bth), view.bth);
  if (!framing::is_legible(error)) return error;

  const OpcodeInfo& opcode = info(view.bth.opcode);
  const std::size_t pad = opcode.is_known ? view.bth.pad_count : 0U;
  const std::size_t extension = bth + Bth::kSize;
  const std::size_t payload = extension + opcode.extension_bytes;
  const std::size_t icrc = end - Icrc::kSize;
  view.frame = at;
  view.is_in_vlan = is_in_vlan;
  view.ip_offset = offset(ip);
  view.udp_offset = offset(udp);
  view.bth_offset = offset(bth);
  view.extension_offset = offset(extension);
  view.payload_offset = offset(payload);
  view.payload_bytes = offset(icrc - pad - payload);
  view.icrc_offset = offset(icrc);
  view.end_offset = offset(end);
  view.udp_source_port = load_be16(at + udp);
  view.destination_mac = load_mac(at);
  view.source_mac = load_mac(at + 6);
  view.is_ipv6 = ethertype == kEthertypeIpv6;
  if (view.is_ipv6) {
    view.dont_fragment = true;
    view.traffic_class = static_cast<std::uint8_t>(load_be16(at + ip) >> 4);
    view.hop_limit = load_u8(at + ip + 7);
    view.source = load_gid(at + ip + 8);
    view.destination = load_gid(at + ip + 24);
  } else {
    view.dont_fragment = (load_u8(at + ip + 6) & 0x40) != 0;
    view.traffic_class = load_u8(at + ip + 1);
    view.hop_limit = load_u8(at + ip + 8);
    set_mapped(view.source, at + ip + 12);
    set_mapped(view.destination, at + ip + 16);
  }
  return error;
}

std::uint32_t icrc_of(const RoceView& view) {
  const std::span<const std::byte> covered{view.frame + view.ip_offset,
                                           static_cast<std::size_t>(view.icrc_offset - view.ip_offset)};
  const std::size_t head = std::min(covered.size(), std::size_t{128});
  const auto start =
      view.is_ipv6 ? Icrc::over_ipv6(covered.first(head)) : Icrc::over_ipv4(covered.first(head));
  return Icrc{start}.update(covered.subspan(head)).value();
}

bool icrc_matches(const RoceView& view) {
  return icrc_of(view) ==
         Icrc::load(std::span<const std::byte, Icrc::kSize>{view.frame + view.icrc_offset, Icrc::kSize});
}

}  // namespace roci::proto
