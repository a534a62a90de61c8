// What stands behind the BTH of a Congestion Notification Packet: 16 reserved bytes [IBTA A17.9.3].
//
// Not here: when to send one and what to do about one (emulator). Plain value, no thread rule.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace roci::proto {

struct CnpReserved {
  static constexpr std::size_t kSize = 16;

  std::array<std::byte, kSize> bytes{};

  [[nodiscard]] static CnpReserved parse(std::span<const std::byte, kSize> in) {
    CnpReserved cnp;
    std::copy(in.begin(), in.end(), cnp.bytes.begin());
    return cnp;
  }
  void emit(std::span<std::byte, kSize> out) const { std::copy(bytes.begin(), bytes.end(), out.begin()); }
  bool operator==(const CnpReserved&) const = default;
};

}  // namespace roci::proto
