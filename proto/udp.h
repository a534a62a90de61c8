// UDP header; RoCE v2 is destination port 4791 [IBTA CA17-20].
//
// Not here: the checksum, which RoCE v2 should send as 0 [IBTA A17.3.2.4] and nobody here judges. Plain
// value, no thread rule.
#pragma once

#include "proto/bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

inline constexpr std::uint16_t kRoceV2Port = 4791;

struct UdpHeader {
  static constexpr std::size_t kSize = 8;

  std::uint16_t source_port = 0;
  std::uint16_t destination_port = kRoceV2Port;
  std::uint16_t length = 0;  // header to ICRC, both included [IBTA CA17-21]
  std::uint16_t checksum = 0;

  [[nodiscard]] static UdpHeader parse(std::span<const std::byte, kSize> in) {
    return {load_be16(in.data()), load_be16(in.data() + 2), load_be16(in.data() + 4),
            load_be16(in.data() + 6)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_be16(out.data(), source_port);
    store_be16(out.data() + 2, destination_port);
    store_be16(out.data() + 4, length);
    store_be16(out.data() + 6, checksum);
  }
  bool operator==(const UdpHeader&) const = default;
};

}  // namespace roci::proto
