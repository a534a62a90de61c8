// Local Route Header of native InfiniBand, 8 bytes [IBTA 5.2.1].
//
// Not on RoCE, which has Ethernet in its place [IBTA A17.4.1.2]. Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

// What follows the LRH.
enum class LinkNextHeader : std::uint8_t { kRaw = 0, kIpv6 = 1, kBth = 2, kGrh = 3 };

struct Lrh {
  static constexpr std::size_t kSize = 8;

  std::uint8_t virtual_lane = 0;   // 4 bits; ones in the ICRC
  std::uint8_t link_version = 0;   // 4 bits
  std::uint8_t service_level = 0;  // 4 bits
  std::uint8_t reserved2 = 0;
  LinkNextHeader next_header = LinkNextHeader::kBth;
  std::uint16_t destination_lid = 0;
  std::uint8_t reserved5 = 0;
  std::uint16_t length_words = 0;  // 11 bits: this header to the ICRC, in units of 4 bytes
  std::uint16_t source_lid = 0;

  [[nodiscard]] static Lrh parse(std::span<const std::byte, kSize> in) {
    const std::byte* at = in.data();
    const std::uint8_t first = load_u8(at);
    const std::uint8_t second = load_u8(at + 1);
    const std::uint16_t length = load_be16(at + 4);
    Lrh lrh;
    lrh.virtual_lane = first >> 4;
    lrh.link_version = first & 0x0F;
    lrh.service_level = second >> 4;
    lrh.reserved2 = (second >> 2) & 3;
    lrh.next_header = static_cast<LinkNextHeader>(second & 3);
    lrh.destination_lid = load_be16(at + 2);
    lrh.reserved5 = static_cast<std::uint8_t>(length >> 11);
    lrh.length_words = length & 0x7FF;
    lrh.source_lid = load_be16(at + 6);
    return lrh;
  }
  void emit(std::span<std::byte, kSize> out) const {
    std::byte* at = out.data();
    store_u8(at, static_cast<std::uint8_t>((virtual_lane << 4) | (link_version & 0x0F)));
    store_u8(at + 1, static_cast<std::uint8_t>((service_level << 4) | ((reserved2 & 3) << 2) |
                                               static_cast<std::uint8_t>(next_header)));
    store_be16(at + 2, destination_lid);
    store_be16(at + 4, static_cast<std::uint16_t>((reserved5 << 11) | (length_words & 0x7FF)));
    store_be16(at + 6, source_lid);
  }
  bool operator==(const Lrh&) const = default;
};

}  // namespace roci::proto
