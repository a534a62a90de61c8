// IPv6 header, 40 bytes, and the pseudo header that ICMPv6 and UDP checksums start from.
//
// Not here: extension headers, which RoCE v2 does not have [IBTA CA17-16]. Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/ip.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace roci::proto {

[[nodiscard]] inline Gid load_gid(const std::byte* at) {
  Gid gid;
  std::memcpy(gid.bytes.data(), at, gid.bytes.size());
  return gid;
}
inline void store_gid(std::byte* at, const Gid& gid) { std::memcpy(at, gid.bytes.data(), gid.bytes.size()); }

struct Ipv6Header {
  static constexpr std::size_t kSize = 40;

  std::uint8_t version = 6;
  std::uint8_t traffic_class = 0;    // DSCP and ECN
  std::uint32_t flow_label = 0;      // 20 bits
  std::uint16_t payload_length = 0;  // all behind this header, ICRC included [IBTA CA17-15]
  std::uint8_t next_header = kProtocolUdp;
  std::uint8_t hop_limit = 64;
  Gid source;
  Gid destination;

  [[nodiscard]] Ecn ecn() const { return static_cast<Ecn>(traffic_class & 3); }

  [[nodiscard]] static Ipv6Header parse(std::span<const std::byte, kSize> in) {
    const std::byte* at = in.data();
    const std::uint32_t word = load_be32(at);
    Ipv6Header ip;
    ip.version = static_cast<std::uint8_t>(word >> 28);
    ip.traffic_class = static_cast<std::uint8_t>(word >> 20);
    ip.flow_label = word & 0xFFFFF;
    ip.payload_length = load_be16(at + 4);
    ip.next_header = load_u8(at + 6);
    ip.hop_limit = load_u8(at + 7);
    ip.source = load_gid(at + 8);
    ip.destination = load_gid(at + 24);
    return ip;
  }
  void emit(std::span<std::byte, kSize> out) const {
    std::byte* at = out.data();
    store_be32(
        at, (std::uint32_t{version} << 28) | (std::uint32_t{traffic_class} << 20) | (flow_label & 0xFFFFF));
    store_be16(at + 4, payload_length);
    store_u8(at + 6, next_header);
    store_u8(at + 7, hop_limit);
    store_gid(at + 8, source);
    store_gid(at + 24, destination);
  }
  // What internet_checksum() of an upper-layer packet starts from.
  [[nodiscard]] static std::uint32_t pseudo_header_sum(const Gid& source, const Gid& destination,
                                                       std::uint32_t length_bytes, std::uint8_t next_header) {
    std::byte raw[kSize];
    store_gid(raw, source);
    store_gid(raw + 16, destination);
    store_be32(raw + 32, length_bytes);
    store_be32(raw + 36, next_header);
    return checksum_add(0, raw);
  }
  bool operator==(const Ipv6Header&) const = default;
};

}  // namespace roci::proto
