// ACK Extended Transport Header: syndrome (8) and MSN (24); syndrome encode and decode [IBTA 9.7.5.2.2].
//
// Not here: what a requester does with an ACK or NAK (emulator). Plain values, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/rnr_timer.h"
#include "proto/types.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace roci::proto {

enum class NakCode : std::uint8_t {
  kPsnSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccessError = 2,
  kRemoteOperationalError = 3,
  kInvalidRdRequest = 4,
};

// Short names, as text and counters use them.
inline constexpr std::array<std::string_view, 5> kNakNames = {
    "psn_sequence_error", "invalid_request", "remote_access_error", "remote_operational_error",
    "invalid_rd_request"};
[[nodiscard]] constexpr std::string_view name_of(NakCode code) {
  return kNakNames[static_cast<std::size_t>(code)];
}

// End-to-end credits of an ACK, in messages [IBTA 9.7.7.2]: 5-bit code, 31 = the responder sets no limit.
class CreditCode {
 public:
  static constexpr std::uint8_t kMask = 0x1F;
  static constexpr std::uint8_t kNoLimit = 31;

  constexpr CreditCode() = default;
  constexpr explicit CreditCode(std::uint8_t code) : code_(code & kMask) {}
  // The greatest code that grants no more than `messages`.
  [[nodiscard]] static constexpr CreditCode from_messages(std::uint32_t messages) {
    std::uint8_t code = 0;
    while (code + 1 < kNoLimit && kMessages[code + 1U] <= messages)
      ++code;
    return CreditCode{code};
  }

  [[nodiscard]] constexpr std::uint8_t code() const { return code_; }
  // No value means no limit.
  [[nodiscard]] constexpr std::optional<std::uint32_t> messages() const {
    if (code_ == kNoLimit) return std::nullopt;
    return kMessages[code_];
  }
  constexpr bool operator==(const CreditCode&) const = default;

 private:
  // Doubling, and one and a half between the powers of two.
  static constexpr std::array<std::uint32_t, 31> kMessages = {
      0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
      256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};
  std::uint8_t code_ = kNoLimit;
};

// One byte: bits 6:5 say which kind, bits 4:0 its value; bit 7 set is reserved.
class Syndrome {
 public:
  enum class Kind : std::uint8_t { kAck, kRnrNak, kNak, kReserved };

  constexpr Syndrome() = default;
  constexpr explicit Syndrome(std::uint8_t byte) : byte_(byte) {}
  [[nodiscard]] static constexpr Syndrome ack(CreditCode credits = {}) { return Syndrome{credits.code()}; }
  [[nodiscard]] static constexpr Syndrome rnr_nak(RnrTimer timer) {
    return Syndrome{static_cast<std::uint8_t>(0x20 | timer.code())};
  }
  [[nodiscard]] static constexpr Syndrome nak(NakCode code) {
    return Syndrome{static_cast<std::uint8_t>(0x60 | static_cast<std::uint8_t>(code))};
  }

  [[nodiscard]] constexpr std::uint8_t byte() const { return byte_; }
  // A NAK with a code that the standard does not define is kReserved.
  [[nodiscard]] constexpr Kind kind() const {
    switch (byte_ >> 5) {
      case 0:
        return Kind::kAck;
      case 1:
        return Kind::kRnrNak;
      case 3:
        return (byte_ & 0x1F) <= static_cast<std::uint8_t>(NakCode::kInvalidRdRequest) ? Kind::kNak
                                                                                       : Kind::kReserved;
      default:
        return Kind::kReserved;
    }
  }
  // Each is meaningful for its kind only.
  [[nodiscard]] constexpr CreditCode credits() const { return CreditCode{byte_}; }
  [[nodiscard]] constexpr RnrTimer rnr_timer() const { return RnrTimer{byte_}; }
  [[nodiscard]] constexpr NakCode nak_code() const { return static_cast<NakCode>(byte_ & 0x1F); }
  constexpr bool operator==(const Syndrome&) const = default;

 private:
  std::uint8_t byte_ = 0x1F;
};

struct Aeth {
  static constexpr std::size_t kSize = 4;

  Syndrome syndrome;
  Msn msn;

  [[nodiscard]] static Aeth parse(std::span<const std::byte, kSize> in) {
    return {Syndrome{load_u8(in.data())}, Msn{load_be24(in.data() + 1)}};
  }
  void emit(std::span<std::byte, kSize> out) const { store_8_24(out.data(), syndrome.byte(), msn.value()); }
  bool operator==(const Aeth&) const = default;
};

}  // namespace roci::proto
