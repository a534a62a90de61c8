// What a change of four bytes does to a packet's ICRC, and which change of four bytes an ICRC tells of.
//
// A CRC is linear: two packets that differ in one word have ICRCs whose difference depends on that word and
// on the number of bytes from it to the end, not on the rest. Over a given distance this is multiplication by
// a constant, so it can be undone. It is how a port seals a packet again whose IP id the kernel chooses, and
// finds the IP id and DF that a UDP socket does not tell. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace roci::dpdk_port {

// More than from any word to the ICRC of a packet that fits any port's MTU.
inline constexpr std::size_t kMaxIcrcDistance = 16384;

// Exclusive ors. A word is its four bytes on the wire, the first as the least significant; `distance_bytes`
// counts from the word's first byte to the ICRC, 4 to kMaxIcrcDistance.
[[nodiscard]] std::uint32_t icrc_change(std::uint32_t word_change, std::size_t distance_bytes);
[[nodiscard]] std::uint32_t word_change(std::uint32_t icrc_change, std::size_t distance_bytes);

// What an IPv4 header has in its second word where a packet is no fragment.
struct Ipv4Identity {
  std::uint16_t identification = 0;
  bool dont_fragment = true;

  bool operator==(const Ipv4Identity&) const = default;
};

// The ICRC of the packet if it had `actual` in place of `assumed`.
[[nodiscard]] std::uint32_t icrc_with(std::uint32_t icrc, Ipv4Identity assumed, Ipv4Identity actual,
                                      std::size_t ip_bytes_before_icrc);
// The one identity with which the packet has the ICRC `received`, if it has `computed` with `assumed`; none:
// it is not intact. 17 of the 32 bits are solved for, so that 1 of 2^15 damaged packets passes.
[[nodiscard]] std::optional<Ipv4Identity> solve_identity(std::uint32_t received, std::uint32_t computed,
                                                         Ipv4Identity assumed,
                                                         std::size_t ip_bytes_before_icrc);

}  // namespace roci::dpdk_port
