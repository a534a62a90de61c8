// Datagram Extended Transport Header: Q_Key and source QP, on UD and RD requests [IBTA 5.2.5].
//
// Not here: the Q_Key check (emulator). Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Deth {
  static constexpr std::size_t kSize = 8;

  Qkey qkey;
  std::uint8_t reserved8 = 0;
  Qpn source;

  [[nodiscard]] static Deth parse(std::span<const std::byte, kSize> in) {
    return {Qkey{load_be32(in.data())}, load_u8(in.data() + 4), Qpn{load_be24(in.data() + 5)}};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_be32(out.data(), qkey.value());
    store_8_24(out.data() + 4, reserved8, source.value());
  }
  bool operator==(const Deth&) const = default;
};

}  // namespace roci::proto
