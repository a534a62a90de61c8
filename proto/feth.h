// Flush Extended Transport Header: placement types and selectivity level of a FLUSH [IBTA A19.4.1].
//
// Not here: whether the region has the type (emulator). Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Feth {
  static constexpr std::size_t kSize = 4;

  std::uint8_t placement_types = 0;    // 4 bits; bit 0 global visibility, bit 1 persistence
  std::uint8_t selectivity_level = 0;  // 2 bits; 0 range, 1 whole region
  std::uint32_t reserved26 = 0;

  [[nodiscard]] static Feth parse(std::span<const std::byte, kSize> in) {
    const std::uint32_t word = load_be32(in.data());
    return {static_cast<std::uint8_t>(word & 0xF), static_cast<std::uint8_t>((word >> 4) & 3), word >> 6};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_be32(out.data(), (reserved26 << 6) | ((selectivity_level & 3U) << 4) | (placement_types & 0xFU));
  }
  bool operator==(const Feth&) const = default;
};

}  // namespace roci::proto
