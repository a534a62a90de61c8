// IPv4 header, the 20 bytes without options.
//
// RoCE v2 allows no options [IBTA CA17-3]; header_words is kept for other protocols, whose options are the
// caller's bytes. Not here: what makes a header acceptable (packet.cpp). Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/ip.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Ipv4Header {
  static constexpr std::size_t kSize = 20;

  std::uint8_t version = 4;
  std::uint8_t header_words = 5;
  std::uint8_t traffic_class = 0;  // TOS: DSCP and ECN
  std::uint16_t total_length = 0;  // this header to the ICRC, both included [IBTA CA17-6]
  std::uint16_t identification = 0;
  bool reserved_flag = false;
  bool dont_fragment = true;  // [IBTA CA17-7]
  bool more_fragments = false;
  std::uint16_t fragment_offset = 0;  // in units of 8 bytes
  std::uint8_t time_to_live = 64;
  std::uint8_t protocol = kProtocolUdp;
  std::uint16_t checksum = 0;
  std::uint32_t source = 0;  // host order
  std::uint32_t destination = 0;

  [[nodiscard]] Ecn ecn() const { return static_cast<Ecn>(traffic_class & 3); }

  [[nodiscard]] static Ipv4Header parse(std::span<const std::byte, kSize> in) {
    const std::byte* at = in.data();
    const std::uint16_t fragment = load_be16(at + 6);
    Ipv4Header ip;
    ip.version = load_u8(at) >> 4;
    ip.header_words = load_u8(at) & 0x0F;
    ip.traffic_class = load_u8(at + 1);
    ip.total_length = load_be16(at + 2);
    ip.identification = load_be16(at + 4);
    ip.reserved_flag = (fragment & 0x8000) != 0;
    ip.dont_fragment = (fragment & 0x4000) != 0;
    ip.more_fragments = (fragment & 0x2000) != 0;
    ip.fragment_offset = fragment & 0x1FFF;
    ip.time_to_live = load_u8(at + 8);
    ip.protocol = load_u8(at + 9);
    ip.checksum = load_be16(at + 10);
    ip.source = load_be32(at + 12);
    ip.destination = load_be32(at + 16);
    return ip;
  }
  // Writes `checksum` as it is; checksum_of() gives the right one.
  void emit(std::span<std::byte, kSize> out) const {
    std::byte* at = out.data();
    store_u8(at, static_cast<std::uint8_t>((version << 4) | (header_words & 0x0F)));
    store_u8(at + 1, traffic_class);
    store_be16(at + 2, total_length);
    store_be16(at + 4, identification);
    store_be16(at + 6,
               static_cast<std::uint16_t>((reserved_flag ? 0x8000 : 0) | (dont_fragment ? 0x4000 : 0) |
                                          (more_fragments ? 0x2000 : 0) | (fragment_offset & 0x1FFF)));
    store_u8(at + 8, time_to_live);
    store_u8(at + 9, protocol);
    store_be16(at + 10, checksum);
    store_be32(at + 12, source);
    store_be32(at + 16, destination);
  }
  // The checksum of this header, whatever `checksum` holds; for a header without options.
  [[nodiscard]] std::uint16_t checksum_of() const {
    std::byte raw[kSize];
    Ipv4Header copy = *this;
    copy.checksum = 0;
    copy.emit(std::span<std::byte, kSize>{raw});
    return internet_checksum(raw);
  }
  bool operator==(const Ipv4Header&) const = default;
};

}  // namespace roci::proto
