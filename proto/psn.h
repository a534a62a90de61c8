// Counting in PSNs: how many packets, hence PSNs, a message takes. Psn itself is in types.h.
//
// Not here: windows and retransmission (emulator). Pure functions, no thread rule.
#pragma once

#include "proto/types.h"

#include <cstdint>

namespace roci::proto {

// A message of no bytes still takes one packet. For a READ this is the number of response packets.
[[nodiscard]] constexpr std::uint32_t packet_count(std::uint32_t length_bytes, PathMtu mtu) {
  if (length_bytes == 0) return 1;
  return (length_bytes - 1) / bytes_of(mtu) + 1;
}

// True if `psn` is one of the `count` PSNs that start at `first`; `count` is at most 2^23.
[[nodiscard]] constexpr bool is_within(Psn psn, Psn first, std::uint32_t count) {
  const std::int32_t steps = first.distance_to(psn);
  return steps >= 0 && static_cast<std::uint32_t>(steps) < count;
}

}  // namespace roci::proto
