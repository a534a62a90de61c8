#include "dpdk_port/udp_datagram.h"

#include <algorithm>
#include <cassert>

#include "proto/bth.h"
#include "proto/bytes.h"
#include "proto/roce_view.h"

namespace roci::dpdk_port {
namespace {

constexpr std::size_t kEthernetBytes = proto::EthernetHeader::kSize;
constexpr std::size_t kIpv4Bytes = proto::Ipv4Header::kSize, kIpv6Bytes = proto::Ipv6Header::kSize;
constexpr std::size_t kUdpBytes = proto::UdpHeader::kSize;

std::size_t hash_of(const IncomingDatagram& datagram) {
  std::uint32_t hash = datagram.source_port;
  for (std::size_t i = 0; i < 16; i += 4)
    hash = (hash ^ proto::load_be32(reinterpret_cast<const std::byte*>(datagram.source.bytes.data()) + i)) *
           0x9E3779B1;
  return hash >> 24;
}

void set_identity(proto::Ipv4Header& ip, Ipv4Identity identity, std::span<std::byte, kIpv4Bytes> out) {
  ip.identification = identity.identification;
  ip.dont_fragment = identity.dont_fragment;
  ip.checksum = ip.checksum_of();
  ip.emit(out);
}

}  // namespace

std::array<std::byte, proto::Icrc::kSize> OutgoingDatagram::icrc_as_sent(std::uint16_t port,
                                                                         Ipv4Identity as_sent) const {
  const std::size_t udp_to_icrc = kUdpBytes + payload.size();
  const auto swapped = [](std::uint16_t value) {  // first byte on the wire, least significant here
    return static_cast<std::uint32_t>(value >> 8 | (value & 0xFF) << 8);
  };
  std::uint32_t sealed = icrc ^ icrc_change(swapped(source_port) ^ swapped(port), udp_to_icrc);
  if (source.is_ipv4()) sealed = icrc_with(sealed, identity, as_sent, kIpv4Bytes + udp_to_icrc);
  std::array<std::byte, proto::Icrc::kSize> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(sealed >> (8 * i));
  return bytes;
}

std::optional<OutgoingDatagram> parse_outgoing(std::span<const std::byte> frame) {
  proto::RoceView view;
  if (proto::parse_roce(frame, view) != proto::ParseError::kNone) return {};
  OutgoingDatagram out;
  out.payload = frame.subspan(view.bth_offset, static_cast<std::size_t>(view.icrc_offset - view.bth_offset));
  out.source = view.source;
  out.destination = view.destination;
  out.source_port = view.udp_source_port;
  out.traffic_class = view.traffic_class;
  out.hop_limit = view.hop_limit;
  if (!view.is_ipv6) out.identity = {proto::load_be16(frame.data() + view.ip_offset + 4), view.dont_fragment};
  out.icrc = proto::Icrc::load(frame.subspan(view.icrc_offset).first<proto::Icrc::kSize>());
  return out;
}

IcrcVerdict FrameBuilder::build(std::span<std::byte> frame, const IncomingDatagram& datagram) {
  const bool is_ipv6 = !datagram.destination.is_ipv4();
  const std::size_t headers = headers_before_bth(is_ipv6);
  assert(frame.size() >= headers && datagram.source.is_ipv4() != is_ipv6);
  const auto udp_bytes = static_cast<std::uint16_t>(frame.size() - headers + kUdpBytes);
  proto::EthernetHeader{datagram.destination_mac, datagram.source_mac,
                        is_ipv6 ? proto::kEthertypeIpv6 : proto::kEthertypeIpv4}
      .emit(frame.first<kEthernetBytes>());
  proto::UdpHeader{datagram.source_port, proto::kRoceV2Port, udp_bytes, 0}.emit(
      frame.subspan(headers - kUdpBytes).first<kUdpBytes>());
  if (is_ipv6) {
    proto::Ipv6Header ip;
    ip.traffic_class = datagram.traffic_class;
    ip.payload_length = udp_bytes;
    ip.hop_limit = datagram.hop_limit;
    ip.source = datagram.source;
    ip.destination = datagram.destination;
    ip.emit(frame.subspan(kEthernetBytes).first<kIpv6Bytes>());
    return IcrcVerdict::kExact;
  }
  Peer& peer = peers_[hash_of(datagram)];
  const Ipv4Identity expected{static_cast<std::uint16_t>(peer.last.identification + peer.step),
                              peer.last.dont_fragment};
  const std::span<std::byte, kIpv4Bytes> header = frame.subspan(kEthernetBytes).first<kIpv4Bytes>();
  proto::Ipv4Header ip;
  ip.traffic_class = datagram.traffic_class;
  ip.total_length = static_cast<std::uint16_t>(udp_bytes + kIpv4Bytes);
  ip.time_to_live = datagram.hop_limit;
  ip.source = datagram.source.ipv4();
  ip.destination = datagram.destination.ipv4();
  set_identity(ip, expected, header);
  if (frame.size() < headers + proto::Bth::kSize + proto::Icrc::kSize) return IcrcVerdict::kUnsolved;
  const std::span<const std::byte> covered =
      frame.subspan(kEthernetBytes, frame.size() - kEthernetBytes - proto::Icrc::kSize);
  const auto first = covered.first(std::min(covered.size(), proto::Icrc::kMaxHeaderBytes));
  const std::uint32_t computed = proto::Icrc::over_ipv4(first).update(covered.subspan(first.size())).value();
  const std::uint32_t received = proto::Icrc::load(frame.last<proto::Icrc::kSize>());
  Ipv4Identity actual = expected;
  if (received != computed) {
    const auto solved = solve_identity(received, computed, expected, covered.size());
    if (!solved) return IcrcVerdict::kUnsolved;
    actual = *solved;
    set_identity(ip, actual, header);
  }
  const auto step = static_cast<std::uint16_t>(actual.identification - peer.last.identification);
  const bool goes_on = step <= 1 && actual.dont_fragment == peer.last.dont_fragment;
  const bool begins = actual == Ipv4Identity{};  // as each run of packets does that a kernel's socket sends
  peer.last = actual;
  peer.step = step == 0 ? 0 : 1;
  return goes_on || begins ? IcrcVerdict::kPredicted : IcrcVerdict::kSolved;
}

}  // namespace roci::dpdk_port
