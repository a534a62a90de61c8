// The RNR NAK timer: 32 codes and the time a requester waits at least [IBTA Table 45; 48 in another release].
//
// Not here: the wait itself (emulator). Plain values, no thread rule.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace roci::proto {

class RnrTimer {
 public:
  static constexpr std::uint8_t kMask = 0x1F;

  constexpr RnrTimer() = default;
  constexpr explicit RnrTimer(std::uint8_t code) : code_(code & kMask) {}

  [[nodiscard]] constexpr std::uint8_t code() const { return code_; }
  [[nodiscard]] constexpr std::chrono::nanoseconds wait() const {
    return std::chrono::microseconds{10} * kTensOfMicroseconds[code_];
  }
  constexpr bool operator==(const RnrTimer&) const = default;

 private:
  static constexpr std::array<std::uint32_t, 32> kTensOfMicroseconds = {
      65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
      256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  std::uint8_t code_ = 0;
};

}  // namespace roci::proto
