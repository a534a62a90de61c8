// Atomic Acknowledge Extended Transport Header: the value before the atomic operation [IBTA 5.2.10].
//
// Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct AtomicAckEth {
  static constexpr std::size_t kSize = 8;

  std::uint64_t original_data = 0;

  [[nodiscard]] static AtomicAckEth parse(std::span<const std::byte, kSize> in) {
    return {load_be64(in.data())};
  }
  void emit(std::span<std::byte, kSize> out) const { store_be64(out.data(), original_data); }
  bool operator==(const AtomicAckEth&) const = default;
};

}  // namespace roci::proto
