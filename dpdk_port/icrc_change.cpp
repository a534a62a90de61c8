#include "dpdk_port/icrc_change.h"

#include <array>
#include <cassert>

namespace roci::dpdk_port {
namespace {

// Polynomials over GF(2) modulo the CRC's, bit 31 for 1, bit 30 for x and so on ("reflected").
constexpr std::uint32_t kPolynomial = 0xEDB88320, kOne = 0x80000000;

constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}
constexpr std::uint32_t divided_by_x(std::uint32_t value) {
  return (value & kOne) != 0 ? ((value ^ kPolynomial) << 1) | 1 : value << 1;
}

std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (int bit = 0; bit < 32; ++bit, a <<= 1) {
    sum ^= b & (0U - (a >> 31));
    b = times_x(b);
  }
  return sum;
}

// A byte that follows moves a difference on by x to the 8th.
using Powers = std::array<std::uint32_t, kMaxIcrcDistance + 1>;

template <std::uint32_t step(std::uint32_t)>
Powers powers_of_bytes() {
  Powers powers{kOne};
  for (std::size_t i = 1; i < powers.size(); ++i) {
    powers[i] = powers[i - 1];
    for (int bit = 0; bit < 8; ++bit)
      powers[i] = step(powers[i]);
  }
  return powers;
}

constexpr std::size_t kIdentityOffset = 4;  // in the IPv4 header
constexpr std::uint32_t kDontFragment = 0x40 << 16;

std::uint32_t word_of(Ipv4Identity identity) {
  return static_cast<std::uint32_t>(identity.identification >> 8 | (identity.identification & 0xFF) << 8) |
         (identity.dont_fragment ? kDontFragment : 0);
}

}  // namespace

std::uint32_t icrc_change(std::uint32_t word_change, std::size_t distance_bytes) {
  static const Powers kForward = powers_of_bytes<times_x>();
  assert(distance_bytes >= 4 && distance_bytes <= kMaxIcrcDistance);
  return product(word_change, kForward[distance_bytes]);
}

std::uint32_t word_change(std::uint32_t icrc_change, std::size_t distance_bytes) {
  static const Powers kBack = powers_of_bytes<divided_by_x>();
  assert(distance_bytes >= 4 && distance_bytes <= kMaxIcrcDistance);
  return product(icrc_change, kBack[distance_bytes]);
}

std::uint32_t icrc_with(std::uint32_t icrc, Ipv4Identity assumed, Ipv4Identity actual,
                        std::size_t ip_bytes_before_icrc) {
  return icrc ^ icrc_change(word_of(assumed) ^ word_of(actual), ip_bytes_before_icrc - kIdentityOffset);
}

std::optional<Ipv4Identity> solve_identity(std::uint32_t received, std::uint32_t computed,
                                           Ipv4Identity assumed, std::size_t ip_bytes_before_icrc) {
  const std::uint32_t word =
      word_of(assumed) ^ word_change(received ^ computed, ip_bytes_before_icrc - kIdentityOffset);
  // The other bits are those of a fragment, and a reserved one.
  if ((word & ~(kDontFragment | 0xFFFFU)) != 0) return {};
  return Ipv4Identity{static_cast<std::uint16_t>((word & 0xFF) << 8 | (word >> 8 & 0xFF)),
                      (word & kDontFragment) != 0};
}

}  // namespace roci::dpdk_port
