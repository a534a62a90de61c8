// Reliable Datagram Extended Transport Header: the end-to-end context [IBTA 5.2.4].
//
// Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Rdeth {
  static constexpr std::size_t kSize = 4;

  std::uint8_t reserved8 = 0;
  std::uint32_t ee_context = 0;  // 24 bits

  [[nodiscard]] static Rdeth parse(std::span<const std::byte, kSize> in) {
    return {load_u8(in.data()), load_be24(in.data() + 1)};
  }
  void emit(std::span<std::byte, kSize> out) const { store_8_24(out.data(), reserved8, ee_context); }
  bool operator==(const Rdeth&) const = default;
};

}  // namespace roci::proto
