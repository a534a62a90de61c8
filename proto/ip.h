// What IPv4 and IPv6 share: the version, protocol numbers, the ECN field, the Internet checksum.
//
// Plain values and pure functions, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

enum class IpVersion : std::uint8_t { kIpv4, kIpv6 };

inline constexpr std::uint8_t kHopByHopOptions = 0;  // IPv6 extension header
inline constexpr std::uint8_t kProtocolIcmp = 1;
inline constexpr std::uint8_t kProtocolIgmp = 2;
inline constexpr std::uint8_t kProtocolUdp = 17;  // [IBTA CA17-10, CA17-16]
inline constexpr std::uint8_t kProtocolIcmpv6 = 58;
inline constexpr std::uint8_t kNextHeaderIba = 0x1B;  // of a GRH, RoCE v1 and InfiniBand [IBTA C8-7]

// The low two bits of the TOS or traffic class.
enum class Ecn : std::uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

// The one's complement sum, not yet complemented, so that pieces can be chained (each but the last of even
// length).
[[nodiscard]] inline std::uint32_t checksum_add(std::uint32_t sum, std::span<const std::byte> bytes) {
  std::uint64_t wide = sum;
  std::size_t i = 0;
  for (; i + 4 <= bytes.size(); i += 4)
    wide += load_be32(bytes.data() + i);
  if (i + 2 <= bytes.size()) {
    wide += load_be16(bytes.data() + i);
    i += 2;
  }
  if (i < bytes.size()) wide += std::uint32_t{load_u8(bytes.data() + i)} << 8;
  wide = (wide & 0xFFFFFFFF) + (wide >> 32);
  wide = (wide & 0xFFFF) + (wide >> 16);
  wide = (wide & 0xFFFF) + (wide >> 16);
  wide = (wide & 0xFFFF) + (wide >> 16);
  return static_cast<std::uint32_t>(wide);
}
// The value to store in a checksum field that was 0 while `bytes` were summed; 0 if a stored checksum is
// right.
[[nodiscard]] inline std::uint16_t internet_checksum(std::span<const std::byte> bytes,
                                                     std::uint32_t sum = 0) {
  return static_cast<std::uint16_t>(~checksum_add(sum, bytes));
}

}  // namespace roci::proto
