#include "proto/icrc.h"

#include "proto/bth.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/lrh.h"
#include "proto/udp.h"

#include <isa-l/crc.h>

#include <array>
#include <cassert>
#include <cstring>

namespace roci::proto {
namespace {

constexpr std::uint32_t kAfterEightOnes = 0x2144DF1C;  // the complement of the register 0xDEBB20E3
constexpr std::byte kOnes{0xFF};

// ISA-L's AVX-512 kernel returns with the upper halves of its registers in use (seen in 2.30); the SSE
// instructions of the code around it then wait for them. Measured: WRITEs of 64 KiB through two engines on
// one core, 18 Gb/s, 28 with this.
void leave_avx() {
#if defined(__x86_64__)
  static const bool has_avx = __builtin_cpu_supports("avx") != 0;
  if (has_avx) asm volatile("vzeroupper");
#endif
}

std::uint32_t crc32(std::uint32_t crc, const std::byte* bytes, std::size_t count) {
  crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes), count);
  leave_avx();
  return crc;
}

// The headers in a buffer where fields can be overwritten.
struct Masked {
  explicit Masked(std::span<const std::byte> headers) : count(headers.size()) {
    assert(count <= bytes.size());
    std::memcpy(bytes.data(), headers.data(), count);
  }
  void ones(std::size_t at) { bytes[at] = kOnes; }
  void mask_ipv6(std::size_t at) {  // GRH too: traffic class and flow label, hop limit
    bytes[at] |= std::byte{0x0F};
    ones(at + 1);
    ones(at + 2);
    ones(at + 3);
    ones(at + 7);
  }
  void mask_udp_checksum(std::size_t at) {
    ones(at + 6);
    ones(at + 7);
  }
  void mask_bth(std::size_t at) { ones(at + Bth::kEcnByte); }
  [[nodiscard]] std::uint32_t crc(std::uint32_t seed) const { return crc32(seed, bytes.data(), count); }

  std::array<std::byte, Icrc::kMaxHeaderBytes> bytes;
  std::size_t count;
};

}  // namespace

Icrc Icrc::over_ipv4(std::span<const std::byte> ipv4_udp_bth) {
  constexpr std::size_t udp = Ipv4Header::kSize;
  constexpr std::size_t bth = udp + UdpHeader::kSize;
  assert(ipv4_udp_bth.size() >= bth + Bth::kSize);
  Masked masked{ipv4_udp_bth};
  masked.ones(1);   // TOS
  masked.ones(8);   // TTL
  masked.ones(10);  // header checksum
  masked.ones(11);
  masked.mask_udp_checksum(udp);
  masked.mask_bth(bth);
  return Icrc{masked.crc(kAfterEightOnes)};
}

Icrc Icrc::over_ipv6(std::span<const std::byte> ipv6_udp_bth) {
  constexpr std::size_t udp = Ipv6Header::kSize;
  constexpr std::size_t bth = udp + UdpHeader::kSize;
  assert(ipv6_udp_bth.size() >= bth + Bth::kSize);
  Masked masked{ipv6_udp_bth};
  masked.mask_ipv6(0);
  masked.mask_udp_checksum(udp);
  masked.mask_bth(bth);
  return Icrc{masked.crc(kAfterEightOnes)};
}

Icrc Icrc::over_grh(std::span<const std::byte> grh_bth) {
  assert(grh_bth.size() >= Ipv6Header::kSize + Bth::kSize);
  Masked masked{grh_bth};
  masked.mask_ipv6(0);
  masked.mask_bth(Ipv6Header::kSize);
  return Icrc{masked.crc(kAfterEightOnes)};
}

Icrc Icrc::over_lrh(std::span<const std::byte> lrh_bth) {
  assert(lrh_bth.size() >= Lrh::kSize + Bth::kSize);
  Masked masked{lrh_bth};
  masked.bytes[0] |= std::byte{0xF0};  // virtual lane
  masked.mask_bth(Lrh::kSize);
  return Icrc{masked.crc(0)};
}

Icrc Icrc::over_lrh_grh(std::span<const std::byte> lrh_grh_bth) {
  assert(lrh_grh_bth.size() >= Lrh::kSize + Ipv6Header::kSize + Bth::kSize);
  Masked masked{lrh_grh_bth};
  masked.bytes[0] |= std::byte{0xF0};
  masked.mask_ipv6(Lrh::kSize);
  masked.mask_bth(Lrh::kSize + Ipv6Header::kSize);
  return Icrc{masked.crc(0)};
}

Icrc& Icrc::update(std::span<const std::byte> piece) {
  crc_ = crc32(crc_, piece.data(), piece.size());
  return *this;
}

// Least significant byte first, on any host.
void Icrc::store(std::span<std::byte, kSize> out) const {
  for (std::size_t i = 0; i < kSize; ++i)
    out[i] = static_cast<std::byte>(crc_ >> (8 * i));
}

std::uint32_t Icrc::load(std::span<const std::byte, kSize> in) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < kSize; ++i)
    value |= std::to_integer<std::uint32_t>(in[i]) << (8 * i);
  return value;
}

}  // namespace roci::proto
