// What makes the framing of a RoCE packet sound, layer by layer: shared by parse_roce() and dissect().
//
// Internal to proto. Each check looks at the first error of its layer in a fixed order: other people's
// traffic, then lengths, then contents. Pure functions, no thread rule.
#pragma once

#include "proto/bth.h"
#include "proto/bytes.h"
#include "proto/icrc.h"
#include "proto/ip.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/parse_error.h"
#include "proto/udp.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace roci::proto::framing {

// Where the layer below ends; for IP, `header` and `end` count from the IP header.
struct Verdict {
  ParseError error = ParseError::kNone;
  std::size_t header = 0;
  std::size_t end = 0;
};

// What is wrong, yet does not hinder reading on.
[[nodiscard]] inline bool is_legible(ParseError error) {
  return error == ParseError::kNone || error == ParseError::kIpChecksum ||
         error == ParseError::kMappedAddress || error == ParseError::kTransportVersion ||
         error == ParseError::kReservedOpcode;
}

[[nodiscard]] inline bool is_mapped(const std::byte* address) {
  return load_be64(address) == 0 && load_be32(address + 8) == 0xFFFF;
}

// The one's complement sum does not depend on byte order, so three loads of the host's do.
[[nodiscard]] inline bool is_ipv4_checksum_right(const std::byte* header) {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint32_t c = 0;
  std::memcpy(&a, header, sizeof a);
  std::memcpy(&b, header + 8, sizeof b);
  std::memcpy(&c, header + 16, sizeof c);
  std::uint64_t sum = (a >> 32) + (a & 0xFFFFFFFF) + (b >> 32) + (b & 0xFFFFFFFF) + c;
  sum = (sum >> 32) + (sum & 0xFFFFFFFF);
  sum = (sum >> 16) + (sum & 0xFFFF);
  sum = (sum >> 16) + (sum & 0xFFFF);
  return ((sum >> 16) + (sum & 0xFFFF)) == 0xFFFF;
}

// The IP packet is already cut to its length, `bytes` starts at the UDP header.
[[nodiscard]] inline ParseError check_udp_length(std::span<const std::byte> bytes) {
  return load_be16(bytes.data() + 4) == bytes.size() ? ParseError::kNone : ParseError::kUdpLength;
}

// `bytes` starts at the IPv4 header and may go on behind the packet. [IBTA CA17-24]
[[nodiscard]] inline Verdict check_ipv4(std::span<const std::byte> bytes) {
  if (bytes.size() < Ipv4Header::kSize) return {ParseError::kShortIp};
  const std::byte* at = bytes.data();
  const std::uint8_t first = load_u8(at);
  if (first >> 4 != 4) return {ParseError::kIpVersion};  // [IBTA CA17-27]
  if (load_u8(at + 9) != kProtocolUdp) return {ParseError::kOtherIpProtocol};
  const std::uint16_t fragment = load_be16(at + 6);
  if ((fragment & 0x1FFF) != 0) return {ParseError::kIpFragment};  // no UDP header to look at [IBTA CA17-8]
  const std::size_t header = std::size_t{4} * (first & 0x0FU);
  const std::size_t end = load_be16(at + 2);
  if (header < Ipv4Header::kSize) return {ParseError::kIpOptions};
  if (end > bytes.size() || end < header) return {ParseError::kIpLength};
  if (end - header < UdpHeader::kSize) return {ParseError::kShortUdp};
  if (load_be16(at + header + 2) != kRoceV2Port) return {ParseError::kOtherUdpPort};
  if (header != Ipv4Header::kSize) return {ParseError::kIpOptions};  // [IBTA CA17-3]
  if ((fragment & 0x2000) != 0) return {ParseError::kIpFragment};    // [IBTA CA17-7]
  Verdict verdict{check_udp_length(bytes.subspan(header, end - header)), header, end};
  if (verdict.error == ParseError::kNone && !is_ipv4_checksum_right(at)) {
    verdict.error = ParseError::kIpChecksum;
  }
  return verdict;
}

[[nodiscard]] inline Verdict check_ipv6(std::span<const std::byte> bytes) {
  constexpr std::size_t header = Ipv6Header::kSize;
  if (bytes.size() < header) return {ParseError::kShortIp};
  const std::byte* at = bytes.data();
  if (load_u8(at) >> 4 != 6) return {ParseError::kIpVersion};
  if (load_u8(at + 6) != kProtocolUdp) return {ParseError::kOtherIpProtocol};
  const std::size_t end = header + load_be16(at + 4);
  if (end > bytes.size()) return {ParseError::kIpLength};
  if (end - header < UdpHeader::kSize) return {ParseError::kShortUdp};
  if (load_be16(at + header + 2) != kRoceV2Port) return {ParseError::kOtherUdpPort};
  Verdict verdict{check_udp_length(bytes.subspan(header, end - header)), header, end};
  if (verdict.error == ParseError::kNone && (is_mapped(at + 8) || is_mapped(at + 24))) {
    verdict.error = ParseError::kMappedAddress;
  }
  return verdict;
}

// A GRH; `bytes` starts there and may go on behind the packet.
[[nodiscard]] inline Verdict check_grh(std::span<const std::byte> bytes) {
  constexpr std::size_t header = Ipv6Header::kSize;
  if (bytes.size() < header) return {ParseError::kShortIp};
  const std::byte* at = bytes.data();
  if (load_u8(at) >> 4 != 6) return {ParseError::kIpVersion};
  if (load_u8(at + 6) != kNextHeaderIba) return {ParseError::kOtherLinkNextHeader};  // [IBTA C8-7]
  const std::size_t end = header + load_be16(at + 4);
  if (end > bytes.size()) return {ParseError::kIpLength};
  return {ParseError::kNone, header, end};
}

// `bytes` is BTH to ICRC, both included: unknown opcodes are told first, then lengths.
[[nodiscard]] inline ParseError check_transport(std::span<const std::byte> bytes, const Bth& bth) {
  const OpcodeInfo& opcode = info(bth.opcode);
  if (opcode.is_known && bytes.size() < Bth::kSize + opcode.extension_bytes + bth.pad_count + Icrc::kSize) {
    return ParseError::kShortHeaders;
  }
  if (bth.transport_version != 0) return ParseError::kTransportVersion;
  return opcode.is_known ? ParseError::kNone : ParseError::kReservedOpcode;
}

inline constexpr std::size_t kMinTransportBytes = Bth::kSize + Icrc::kSize;

}  // namespace roci::proto::framing
