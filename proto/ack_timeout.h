// The local ACK timeout: 4.096 us x 2^code, 5-bit code, 0 = no timeout [IBTA C9-140].
//
// Not here: the timer and its tolerance (emulator). Plain values, no thread rule.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace roci::proto {

class AckTimeout {
 public:
  static constexpr std::uint8_t kMask = 0x1F;

  constexpr AckTimeout() = default;
  constexpr explicit AckTimeout(std::uint8_t code) : code_(code & kMask) {}

  [[nodiscard]] constexpr std::uint8_t code() const { return code_; }
  // No value means that the timer is off.
  [[nodiscard]] constexpr std::optional<std::chrono::nanoseconds> duration() const {
    if (code_ == 0) return std::nullopt;
    return std::chrono::nanoseconds{std::int64_t{4096} << code_};
  }
  constexpr bool operator==(const AckTimeout&) const = default;

 private:
  std::uint8_t code_ = 0;
};

}  // namespace roci::proto
