// Protocol numbers as types: a PSN cannot be passed for a QPN, nor compared with `<`.
//
// Not here: wire layout (one file per header) or any rule. Plain values, no thread rule.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace roci::proto {

// A 24-bit packet sequence number. Serial arithmetic modulo 2^24; there is no order, only distance.
class Psn {
 public:
  static constexpr std::uint32_t kMask = 0xFFFFFF;

  constexpr Psn() = default;
  constexpr explicit Psn(std::uint32_t value) : value_(value & kMask) {}

  [[nodiscard]] constexpr std::uint32_t value() const { return value_; }
  // Steps from this PSN forward to `other`: -2^23 .. 2^23-1.
  [[nodiscard]] constexpr std::int32_t distance_to(Psn other) const {
    const std::uint32_t steps = (other.value_ - value_) & kMask;
    return steps < 0x800000 ? static_cast<std::int32_t>(steps) : static_cast<std::int32_t>(steps) - 0x1000000;
  }
  [[nodiscard]] constexpr Psn plus(std::int64_t steps) const {
    return Psn{
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(value_) + static_cast<std::uint64_t>(steps))};
  }
  constexpr bool operator==(const Psn&) const = default;

 private:
  std::uint32_t value_ = 0;
};

// A 24-bit queue pair number. 0 and 1 are the special QPs, 0xFFFFFF is the multicast QPN.
class Qpn {
 public:
  static constexpr std::uint32_t kMask = 0xFFFFFF;

  constexpr Qpn() = default;
  constexpr explicit Qpn(std::uint32_t value) : value_(value & kMask) {}

  [[nodiscard]] constexpr std::uint32_t value() const { return value_; }
  constexpr auto operator<=>(const Qpn&) const = default;

 private:
  std::uint32_t value_ = 0;
};

inline constexpr Qpn kQpnGsi{1};
inline constexpr Qpn kQpnMulticast{0xFFFFFF};

// A memory key. An L_Key and an R_Key of one region are the same number here, but not the same type.
template <class Tag>
class Key {
 public:
  constexpr Key() = default;
  constexpr explicit Key(std::uint32_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint32_t value() const { return value_; }
  constexpr auto operator<=>(const Key&) const = default;

 private:
  std::uint32_t value_ = 0;
};
using Lkey = Key<struct LkeyTag>;
using Rkey = Key<struct RkeyTag>;
using Qkey = Key<struct QkeyTag>;

// A 16-bit partition key: bit 15 says full member.
class Pkey {
 public:
  constexpr Pkey() = default;
  constexpr explicit Pkey(std::uint16_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint16_t value() const { return value_; }
  constexpr auto operator<=>(const Pkey&) const = default;

 private:
  std::uint16_t value_ = 0;
};
inline constexpr Pkey kDefaultPkey{0xFFFF};

// A 24-bit message sequence number, as the AETH carries it.
class Msn {
 public:
  static constexpr std::uint32_t kMask = 0xFFFFFF;

  constexpr Msn() = default;
  constexpr explicit Msn(std::uint32_t value) : value_(value & kMask) {}

  [[nodiscard]] constexpr std::uint32_t value() const { return value_; }
  [[nodiscard]] constexpr Msn next() const { return Msn{value_ + 1}; }
  [[nodiscard]] constexpr Msn plus(std::uint32_t messages) const { return Msn{value_ + messages}; }
  // Steps from this MSN forward to `other`: -2^23 .. 2^23-1.
  [[nodiscard]] constexpr std::int32_t distance_to(Msn other) const {
    return Psn{value_}.distance_to(Psn{other.value_});
  }
  constexpr bool operator==(const Msn&) const = default;

 private:
  std::uint32_t value_ = 0;
};

struct Mac {
  std::array<std::uint8_t, 6> bytes{};
  constexpr auto operator<=>(const Mac&) const = default;
};

// A GID, which on RoCE v2 is an IP address: IPv6, or IPv4 as ::ffff:a.b.c.d [IBTA A17.4.1.1].
struct Gid {
  std::array<std::uint8_t, 16> bytes{};
  constexpr auto operator<=>(const Gid&) const = default;

  [[nodiscard]] static constexpr Gid from_ipv4(std::uint32_t host_order) {
    Gid gid;
    gid.bytes[10] = gid.bytes[11] = 0xFF;
    for (std::size_t i = 0; i < 4; ++i) {
      gid.bytes[12 + i] = static_cast<std::uint8_t>(host_order >> (24 - 8 * i));
    }
    return gid;
  }
  [[nodiscard]] constexpr bool is_ipv4() const {
    for (std::size_t i = 0; i < 10; ++i) {
      if (bytes[i] != 0) return false;
    }
    return bytes[10] == 0xFF && bytes[11] == 0xFF;
  }
  // The IPv4 address in host order; meaningful only if is_ipv4().
  [[nodiscard]] constexpr std::uint32_t ipv4() const {
    return (std::uint32_t{bytes[12]} << 24) | (std::uint32_t{bytes[13]} << 16) |
           (std::uint32_t{bytes[14]} << 8) | std::uint32_t{bytes[15]};
  }
};

// A path MTU in bytes of payload; the five values of the standard and no other.
enum class PathMtu : std::uint16_t { k256 = 256, k512 = 512, k1024 = 1024, k2048 = 2048, k4096 = 4096 };

[[nodiscard]] constexpr std::uint32_t bytes_of(PathMtu mtu) { return static_cast<std::uint32_t>(mtu); }

}  // namespace roci::proto
