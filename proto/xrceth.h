// XRC Extended Transport Header: the shared receive queue an XRC request goes to [IBTA 5.2.8].
//
// Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Xrceth {
  static constexpr std::size_t kSize = 4;

  std::uint8_t reserved8 = 0;
  std::uint32_t srq_number = 0;  // 24 bits

  [[nodiscard]] static Xrceth parse(std::span<const std::byte, kSize> in) {
    return {load_u8(in.data()), load_be24(in.data() + 1)};
  }
  void emit(std::span<std::byte, kSize> out) const { store_8_24(out.data(), reserved8, srq_number); }
  bool operator==(const Xrceth&) const = default;
};

}  // namespace roci::proto
