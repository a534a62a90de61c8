// Immediate data: 32 bits that end up in the receive completion [IBTA 5.2.11].
//
// Held as the number that the four wire bytes make, most significant first; verbs applications hold the same
// bytes in network order. Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct ImmDt {
  static constexpr std::size_t kSize = 4;

  std::uint32_t value = 0;

  [[nodiscard]] static ImmDt parse(std::span<const std::byte, kSize> in) { return {load_be32(in.data())}; }
  void emit(std::span<std::byte, kSize> out) const { store_be32(out.data(), value); }
  bool operator==(const ImmDt&) const = default;
};

}  // namespace roci::proto
