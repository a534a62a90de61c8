#include "tools/trace/packet_rules.h"

#include "proto/bytes.h"
#include "proto/framing.h"
#include "proto/icrc.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace roci::tools {
namespace {

using proto::Packet;
using proto::ParseError;

// Longer than any IP packet with its link header.
constexpr std::size_t kMaxLaidOutBytes = 66'000;
constexpr std::size_t kMadBytes = 256;
constexpr std::uint64_t kAtomicBytes = 8;
constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 31;

std::span<const std::byte> lay_out(const CapturedFrame& frame, Scratch& scratch) {
  if (!frame.is_cut()) return frame.bytes;
  scratch.assign(std::max(frame.bytes.size(), std::min(frame.original_bytes, kMaxLaidOutBytes)),
                 std::byte{0});
  std::copy(frame.bytes.begin(), frame.bytes.end(), scratch.begin());
  return scratch;
}

// What the network layer says of itself, read as far as it goes, for frames that dissect() gives up on.
struct Glance {
  bool is_roce = false;
  std::size_t needed_bytes = 0;  // from the start of the frame, to be sure of it
  std::size_t ip_length = 0;
  std::size_t udp_length = 0;
  std::size_t available_bytes = 0;
};

Glance glance(std::span<const std::byte> frame, const Packet& packet) {
  const std::size_t network = offsets_of(packet).network;
  Glance seen;
  std::uint16_t type = packet.ethernet ? packet.ethernet->ethertype : 0;
  if (packet.cooked) {
    type = proto::load_be16(packet.cooked->bytes.data() +
                            (packet.link == proto::LinkType::kLinuxCooked ? 14 : 0));
  }
  if (packet.vlan_count > 0) type = packet.vlan_tags[packet.vlan_count - 1U].ethertype;
  if (type == proto::kEthertypeRoceV1 || packet.link == proto::LinkType::kInfiniBand) {
    seen.is_roce = true;
    seen.needed_bytes = network + proto::Grh::kSize;
    seen.available_bytes = frame.size() - std::min(frame.size(), network);
    if (seen.available_bytes >= proto::Grh::kSize) {
      seen.ip_length = proto::Grh::kSize + proto::load_be16(frame.data() + network + 4);
    }
    return seen;
  }
  if (frame.size() <= network) return seen;
  const std::byte* at = frame.data() + network;
  seen.available_bytes = frame.size() - network;
  const bool is_ipv6 =
      packet.link == proto::LinkType::kRawIp ? proto::load_u8(at) >> 4 == 6 : type == proto::kEthertypeIpv6;
  std::size_t header = proto::Ipv6Header::kSize;
  if (!is_ipv6) {
    if (seen.available_bytes < proto::Ipv4Header::kSize) return seen;
    header = std::max<std::size_t>(proto::Ipv4Header::kSize, std::size_t{4} * (proto::load_u8(at) & 0x0FU));
    // A later fragment has no UDP header.
    if ((proto::load_be16(at + 6) & 0x1FFF) != 0) return seen;
  }
  if (seen.available_bytes < header + proto::UdpHeader::kSize) return seen;
  seen.needed_bytes = network + header + proto::UdpHeader::kSize;
  seen.is_roce = proto::load_u8(at + (is_ipv6 ? 6 : 9)) == proto::kProtocolUdp &&
                 proto::load_be16(at + header + 2) == proto::kRoceV2Port;
  seen.ip_length = is_ipv6 ? header + proto::load_be16(at + 4) : proto::load_be16(at + 2);
  seen.udp_length = proto::load_be16(at + header + 4);
  return seen;
}

void add(JudgedFrame& judged, Rule rule, std::string text) {
  judged.violations.push_back({rule, std::move(text)});
}

// For the errors after which dissect() has no transport headers to give.
void judge_broken(const CapturedFrame& frame, std::span<const std::byte> bytes, ParseError error,
                  JudgedFrame& judged) {
  const Glance seen = glance(bytes, judged.packet);
  if (!seen.is_roce) return;
  if (frame.bytes.size() < seen.needed_bytes) {
    judged.kind = FrameKind::kCutShort;
    return;
  }
  judged.kind = FrameKind::kBroken;
  switch (error) {
    case ParseError::kIpVersion:
      add(judged, Rule::kFrameVersion, "the IP version is not the one that the Ethertype announces");
      return;
    case ParseError::kIpOptions:
      add(judged, Rule::kFrameOptions, "the IPv4 header is not 5 words long");
      return;
    case ParseError::kIpFragment:
      add(judged, Rule::kFrameFragment, "the IPv4 packet is the first fragment of several");
      return;
    case ParseError::kLinkLength:
      add(judged, Rule::kFrameLength, "the LRH's packet length does not fit the frame");
      return;
    case ParseError::kIpLength:
    case ParseError::kShortUdp:
    case ParseError::kUdpLength:
      add(judged, Rule::kFrameLength,
          seen.udp_length != 0 || error == ParseError::kUdpLength
              ? fmt::format("the IP length is {}, the UDP length {}, and the frame has {} bytes from the IP "
                            "header on",
                            seen.ip_length, seen.udp_length, seen.available_bytes)
              : fmt::format("the IP length is {}, and the frame has {} bytes from the IP header on",
                            seen.ip_length, seen.available_bytes));
      return;
    case ParseError::kShortBth:
      add(judged, Rule::kLengthHeaders, "the packet ends within BTH and ICRC");
      return;
    case ParseError::kNone:
    case ParseError::kOtherEthertype:
    case ParseError::kOtherIpProtocol:
    case ParseError::kOtherUdpPort:
    case ParseError::kOtherLinkNextHeader:
    case ParseError::kShortLink:
    case ParseError::kVlanDepth:
    case ParseError::kShortIp:
    case ParseError::kIpChecksum:
    case ParseError::kMappedAddress:
    case ParseError::kTransportVersion:
    case ParseError::kReservedOpcode:
    case ParseError::kShortHeaders:
      judged.kind = FrameKind::kOther;
      return;
  }
}

// From the network header to the end of the ICRC, as the IP length or the LRH has it.
std::span<const std::byte> network_packet(std::span<const std::byte> bytes, const Packet& packet) {
  const std::size_t network = offsets_of(packet).network;
  if (packet.lrh) {
    return bytes.subspan(0, std::size_t{4} * packet.lrh->length_words);
  }
  std::size_t size = 0;
  if (packet.ipv4) size = packet.ipv4->total_length;
  if (packet.ipv6) size = proto::Ipv6Header::kSize + packet.ipv6->payload_length;
  if (packet.grh) size = proto::Grh::kSize + packet.grh->payload_length;
  return bytes.subspan(network, size);
}

std::uint32_t right_icrc(std::span<const std::byte> covered, const Packet& packet) {
  const std::size_t head = std::min(covered.size(), proto::Icrc::kMaxHeaderBytes);
  const std::span<const std::byte> first = covered.first(head);
  proto::Icrc icrc = packet.lrh
                         ? (packet.grh ? proto::Icrc::over_lrh_grh(first) : proto::Icrc::over_lrh(first))
                     : packet.grh  ? proto::Icrc::over_grh(first)
                     : packet.ipv6 ? proto::Icrc::over_ipv6(first)
                                   : proto::Icrc::over_ipv4(first);
  return icrc.update(covered.subspan(head)).value();
}

void judge_icrc(std::span<const std::byte> whole, JudgedFrame& judged) {
  const std::size_t covered = whole.size() - proto::Icrc::kSize;
  const std::uint32_t stored = proto::Icrc::load(whole.subspan(covered).first<proto::Icrc::kSize>());
  const std::uint32_t right = right_icrc(whole.first(covered), judged.packet);
  if (stored == right) return;
  add(judged, Rule::kIcrc,
      fmt::format("the ICRC is {:08x} where {:08x} is right", __builtin_bswap32(stored),
                  __builtin_bswap32(right)));
  judged.kind = FrameKind::kDefective;
}

void judge_udp_checksum(std::span<const std::byte> whole, JudgedFrame& judged) {
  const Packet& packet = judged.packet;
  if (!packet.udp || packet.udp->checksum == 0) return;
  const std::span<const std::byte> udp =
      whole.subspan(packet.ipv4 ? proto::Ipv4Header::kSize : proto::Ipv6Header::kSize);
  const std::uint32_t length = static_cast<std::uint32_t>(udp.size());
  std::uint32_t pseudo = 0;
  if (packet.ipv4) {
    pseudo = proto::checksum_add(0, whole.subspan(12, 8));
    pseudo = (pseudo & 0xFFFF) + (pseudo >> 16) + proto::kProtocolUdp + length;
    pseudo = (pseudo & 0xFFFF) + (pseudo >> 16);
  } else {
    pseudo = proto::Ipv6Header::pseudo_header_sum(packet.ipv6->source, packet.ipv6->destination, length,
                                                  proto::kProtocolUdp);
  }
  if (proto::internet_checksum(udp, pseudo) == 0) return;
  // A host leaves the sum over the pseudo header in the field for its NIC to complete: captured too early to
  // tell.
  if (packet.udp->checksum == pseudo) return;
  add(judged, Rule::kFrameUdpChecksum,
      fmt::format("the UDP checksum {:#06x} is wrong", packet.udp->checksum));
}

void judge_ipv4(const proto::Ipv4Header& ipv4, JudgedFrame& judged) {
  if (!ipv4.dont_fragment) add(judged, Rule::kFrameDf, "DF is not set in the IPv4 header");
  // 0 is what a host leaves for its NIC to fill in.
  if (ipv4.checksum != 0 && ipv4.checksum != ipv4.checksum_of()) {
    add(judged, Rule::kFrameIpChecksum,
        fmt::format("the IPv4 header checksum is {:#06x} where {:#06x} is right", ipv4.checksum,
                    ipv4.checksum_of()));
  }
}

bool is_vendor_specific(const proto::OpcodeInfo& opcode) {
  return opcode.service == proto::Service::kVendor6 || opcode.service == proto::Service::kVendor7;
}

void judge_pad(std::span<const std::byte> transport, JudgedFrame& judged) {
  const Packet& packet = judged.packet;
  const proto::OpcodeInfo& opcode = packet.opcode_info();
  const unsigned pad = packet.bth.pad_count;
  if (transport.size() % 4 != 0) {
    add(judged, Rule::kPadCount,
        fmt::format(
            "with a pad count of {} the packet is {} bytes long from BTH to ICRC, which is no multiple of 4",
            pad, transport.size()));
    return;
  }
  if (pad == 0) return;
  if (is_full_position(opcode)) {
    add(judged, Rule::kPadCount,
        fmt::format("the pad count is {}, but {} fills a path MTU, which needs no pad", pad, opcode.name));
    return;
  }
  const auto stored = std::span{packet.pad}.first(pad);
  if (std::any_of(stored.begin(), stored.end(), [](std::byte byte) { return byte != std::byte{0}; })) {
    add(judged, Rule::kPadZero, "a pad byte is not 0");
  }
}

void judge_payload(JudgedFrame& judged) {
  const Packet& packet = judged.packet;
  const proto::OpcodeInfo& opcode = packet.opcode_info();
  const std::size_t size = packet.payload.size();
  switch (opcode.payload) {
    case proto::PayloadRule::kNone:
      if (size != 0) {
        add(judged, Rule::kLengthPayload,
            fmt::format("{} carries {} bytes of payload, and may have none", opcode.name, size));
      }
      break;
    case proto::PayloadRule::kOneToPmtu:
      if (size == 0) add(judged, Rule::kLengthPayload, fmt::format("{} carries no payload", opcode.name));
      break;
    case proto::PayloadRule::kEightBytes:
      if (size != 8) {
        add(judged, Rule::kLengthPayload,
            fmt::format("{} carries {} bytes of payload instead of 8", opcode.name, size));
      }
      break;
    case proto::PayloadRule::kUpToPmtu:
    case proto::PayloadRule::kExactlyPmtu:
      break;
  }
  const bool is_mad = packet.bth.destination == proto::kQpnGsi && opcode.operation == proto::Operation::kSend;
  if (is_mad && size != kMadBytes) {
    add(judged, Rule::kLengthMad,
        fmt::format("a datagram to QP1 carries {} bytes instead of {}", size, kMadBytes));
  }
}

void judge_extensions(JudgedFrame& judged) {
  const Packet& packet = judged.packet;
  if (packet.reth && packet.reth->dma_length_bytes > kMaxMessageBytes) {
    const bool is_read = packet.opcode_info().operation == proto::Operation::kReadRequest;
    add(judged, is_read ? Rule::kLengthRead : Rule::kLengthWrite,
        fmt::format("the RETH's DMA length is {}, above 2^31", packet.reth->dma_length_bytes));
  }
  if (packet.atomic_eth && packet.atomic_eth->virtual_address % kAtomicBytes != 0) {
    add(judged, Rule::kAtomicAlignment,
        fmt::format("the address {:#x} of {} is no multiple of 8", packet.atomic_eth->virtual_address,
                    packet.opcode_info().name));
  }
}

void judge_bth(JudgedFrame& judged) {
  const proto::Bth& bth = judged.packet.bth;
  if (bth.reserved6 != 0 || bth.reserved7 != 0) {
    add(judged, Rule::kBthReserved,
        fmt::format("reserved bits are set: Resv6 {:#04x}, Resv7 {:#04x}", bth.reserved6, bth.reserved7));
  }
  if ((bth.pkey.value() & 0x7FFF) == 0) {
    add(judged, Rule::kPkey, fmt::format("the P_Key {:#06x} is invalid", bth.pkey.value()));
  }
}

// QP1 and the multicast QPN are UD by definition.
void judge_special_qp(JudgedFrame& judged) {
  const proto::OpcodeInfo& opcode = judged.packet.opcode_info();
  const proto::Qpn qpn = judged.packet.bth.destination;
  if (opcode.service == proto::Service::kUd || opcode.service == proto::Service::kCnp) return;
  if (qpn == proto::kQpnGsi || qpn == proto::kQpnMulticast) {
    add(judged, Rule::kOpcodeService,
        fmt::format("{} goes to {}, which takes UD only", opcode.name,
                    qpn == proto::kQpnGsi ? "QP1" : "the multicast QPN"));
  }
}

}  // namespace

bool is_full_position(const proto::OpcodeInfo& opcode) {
  return opcode.payload == proto::PayloadRule::kExactlyPmtu;
}

JudgedFrame judge_frame(const CapturedFrame& frame, Scratch& scratch) {
  const std::span<const std::byte> bytes = lay_out(frame, scratch);
  const proto::Dissection dissection = proto::dissect(bytes, frame.link);
  JudgedFrame judged;
  judged.packet = dissection.packet;
  const Packet& packet = judged.packet;
  if (proto::is_other_traffic(dissection.error)) return judged;
  const bool has_bth =
      proto::framing::is_legible(dissection.error) || dissection.error == ParseError::kShortHeaders;
  if (!has_bth) {
    judge_broken(frame, bytes, dissection.error, judged);
    return judged;
  }
  if (frame.bytes.size() < offsets_of(packet).payload) {
    judged.kind = FrameKind::kCutShort;
    return judged;
  }

  const std::span<const std::byte> whole = network_packet(bytes, packet);
  const std::size_t bth_at = offsets_of(packet).bth - (packet.lrh ? 0 : offsets_of(packet).network);
  const std::span<const std::byte> transport = whole.subspan(bth_at);
  const proto::OpcodeInfo& opcode = packet.opcode_info();
  judged.kind = FrameKind::kSound;
  if (packet.ipv4) judge_ipv4(*packet.ipv4, judged);
  if (!frame.is_cut()) {
    judge_udp_checksum(whole, judged);
    judge_icrc(whole, judged);
    // Of a damaged packet no other word can be trusted.
    if (judged.kind == FrameKind::kDefective) return judged;
  }
  if (packet.bth.transport_version != 0) {
    add(judged, Rule::kBthVersion,
        fmt::format("the transport header version is {}", packet.bth.transport_version));
    judged.kind = FrameKind::kDefective;
  }
  judge_bth(judged);
  if (!opcode.is_known) {
    judged.kind = FrameKind::kDefective;
    if (!is_vendor_specific(opcode)) {
      add(judged, Rule::kOpcodeKnown,
          fmt::format("the opcode {:#04x} is reserved", static_cast<unsigned>(packet.bth.opcode)));
    }
    return judged;
  }
  if (dissection.error == ParseError::kShortHeaders) {
    judged.kind = FrameKind::kDefective;
    const std::size_t needed = proto::Bth::kSize + opcode.extension_bytes + proto::Icrc::kSize;
    if (transport.size() >= needed) {
      add(judged, Rule::kPadCount,
          fmt::format("the pad count is {}, but {} bytes are between headers and ICRC", packet.bth.pad_count,
                      transport.size() - needed));
    } else {
      add(judged, Rule::kLengthHeaders,
          fmt::format("{} needs {} bytes from BTH to ICRC, and the packet has {}", opcode.name, needed,
                      transport.size()));
    }
    return judged;
  }
  if (!frame.is_cut()) judge_pad(transport, judged);
  judge_payload(judged);
  judge_extensions(judged);
  judge_special_qp(judged);
  return judged;
}

}  // namespace roci::tools
