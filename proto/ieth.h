// Invalidate Extended Transport Header: the R_Key that SEND with Invalidate ends [IBTA 5.2.12].
//
// Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Ieth {
  static constexpr std::size_t kSize = 4;

  Rkey rkey;

  [[nodiscard]] static Ieth parse(std::span<const std::byte, kSize> in) {
    return {Rkey{load_be32(in.data())}};
  }
  void emit(std::span<std::byte, kSize> out) const { store_be32(out.data(), rkey.value()); }
  bool operator==(const Ieth&) const = default;
};

}  // namespace roci::proto
