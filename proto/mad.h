// Management datagrams: the 24-byte header that all 256-byte MADs share [IBTA C13-3, 13.4.2; header: IBTA,
// MAD base format].
//
// A MAD is the whole payload of a UD SEND to QP 1. Not here: what the classes put behind the header (cm.h).
// Reserved bits are written as 0 and ignored on reading. Plain values, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace roci::proto {

inline constexpr std::size_t kMadBytes = 256;
inline constexpr std::size_t kMadDataBytes = 232;  // behind the header
inline constexpr Qkey kQkeyGsi{0x80010000};        // of QP 1
inline constexpr std::uint8_t kMadBaseVersion = 1;
inline constexpr std::uint8_t kMadClassCm = 0x07;
inline constexpr std::uint8_t kMadClassVersionCm = 2;

// Any byte may come in.
enum class MadMethod : std::uint8_t {
  kGet = 0x01,
  kSet = 0x02,
  kSend = 0x03,  // the only one of connection management
  kTrap = 0x05,
  kReport = 0x06,
  kTrapRepress = 0x07,
  kGetResp = 0x81,
  kReportResp = 0x86,
};

struct MadHeader {
  static constexpr std::size_t kSize = 24;

  std::uint8_t base_version = kMadBaseVersion;
  std::uint8_t management_class = kMadClassCm;
  std::uint8_t class_version = kMadClassVersionCm;
  MadMethod method = MadMethod::kSend;
  std::uint16_t status = 0;
  std::uint16_t class_specific = 0;
  std::uint64_t transaction_id = 0;  // chosen by who starts the exchange; answers repeat it
  std::uint16_t attribute_id = 0;    // which message
  std::uint32_t attribute_modifier = 0;

  [[nodiscard]] static MadHeader parse(std::span<const std::byte, kSize> in) {
    return {load_u8(in.data()),       load_u8(in.data() + 1),
            load_u8(in.data() + 2),   static_cast<MadMethod>(load_u8(in.data() + 3)),
            load_be16(in.data() + 4), load_be16(in.data() + 6),
            load_be64(in.data() + 8), load_be16(in.data() + 16),
            load_be32(in.data() + 20)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_u8(out.data(), base_version);
    store_u8(out.data() + 1, management_class);
    store_u8(out.data() + 2, class_version);
    store_u8(out.data() + 3, static_cast<std::uint8_t>(method));
    store_be16(out.data() + 4, status);
    store_be16(out.data() + 6, class_specific);
    store_be64(out.data() + 8, transaction_id);
    store_be16(out.data() + 16, attribute_id);
    store_be16(out.data() + 18, 0);
    store_be32(out.data() + 20, attribute_modifier);
  }
  bool operator==(const MadHeader&) const = default;
};

struct Mad {
  MadHeader header;
  std::span<const std::byte, kMadDataBytes> data;  // borrowed from what was parsed
};

// No value: not exactly 256 bytes. The header may say anything.
[[nodiscard]] inline std::optional<Mad> parse_mad(std::span<const std::byte> bytes) {
  if (bytes.size() != kMadBytes) return std::nullopt;
  const auto whole = bytes.first<kMadBytes>();
  return Mad{MadHeader::parse(whole.first<MadHeader::kSize>()), whole.last<kMadDataBytes>()};
}

// The header only; whoever knows the class writes out.last<kMadDataBytes>().
inline void write_mad(const MadHeader& header, std::span<std::byte, kMadBytes> out) {
  header.emit(out.first<MadHeader::kSize>());
}

}  // namespace roci::proto
