// Big-endian loads and stores at any alignment: what every header file reads and writes with.
//
// Not here: length checks. The caller holds a span that is long enough, mostly one of fixed extent.
// Pure functions, no thread rule.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace roci::proto {

static_assert(std::endian::native == std::endian::little, "only little-endian hosts are supported");

[[nodiscard]] inline std::uint8_t load_u8(const std::byte* at) { return std::to_integer<std::uint8_t>(*at); }
[[nodiscard]] inline std::uint16_t load_be16(const std::byte* at) {
  std::uint16_t raw = 0;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap16(raw);
}
[[nodiscard]] inline std::uint32_t load_be32(const std::byte* at) {
  std::uint32_t raw = 0;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap32(raw);
}
[[nodiscard]] inline std::uint64_t load_be64(const std::byte* at) {
  std::uint64_t raw = 0;
  std::memcpy(&raw, at, sizeof raw);
  return __builtin_bswap64(raw);
}
[[nodiscard]] inline std::uint32_t load_be24(const std::byte* at) {
  return (std::uint32_t{load_be16(at)} << 8) | load_u8(at + 2);
}

inline void store_u8(std::byte* at, std::uint8_t value) { *at = std::byte{value}; }
inline void store_be16(std::byte* at, std::uint16_t value) {
  value = __builtin_bswap16(value);
  std::memcpy(at, &value, sizeof value);
}
inline void store_be32(std::byte* at, std::uint32_t value) {
  value = __builtin_bswap32(value);
  std::memcpy(at, &value, sizeof value);
}
inline void store_be64(std::byte* at, std::uint64_t value) {
  value = __builtin_bswap64(value);
  std::memcpy(at, &value, sizeof value);
}
// An 8-bit field and a 24-bit field that share a word, as most transport headers have them.
inline void store_8_24(std::byte* at, std::uint8_t high, std::uint32_t low) {
  store_be32(at, (std::uint32_t{high} << 24) | (low & 0xFFFFFF));
}

}  // namespace roci::proto
