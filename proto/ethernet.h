// Ethernet II header and 802.1Q tags.
//
// Not here: what stands behind them, and the frame check sequence, which no port delivers. Plain values, no
// thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace roci::proto {

inline constexpr std::uint16_t kEthertypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEthertypeArp = 0x0806;
inline constexpr std::uint16_t kEthertypeVlan = 0x8100;         // 802.1Q
inline constexpr std::uint16_t kEthertypeServiceVlan = 0x88A8;  // 802.1ad, the outer tag of two
inline constexpr std::uint16_t kEthertypeIpv6 = 0x86DD;
inline constexpr std::uint16_t kEthertypeRoceV1 = 0x8915;
inline constexpr std::size_t kMinFrameBytes = 60;  // on an Ethernet wire, without the frame check sequence

[[nodiscard]] inline Mac load_mac(const std::byte* at) {
  Mac mac;
  std::memcpy(mac.bytes.data(), at, mac.bytes.size());
  return mac;
}
inline void store_mac(std::byte* at, const Mac& mac) { std::memcpy(at, mac.bytes.data(), mac.bytes.size()); }

struct EthernetHeader {
  static constexpr std::size_t kSize = 14;

  Mac destination;
  Mac source;
  std::uint16_t ethertype = kEthertypeIpv4;  // of the frame: that of the first tag if there is one

  [[nodiscard]] static EthernetHeader parse(std::span<const std::byte, kSize> in) {
    return {load_mac(in.data()), load_mac(in.data() + 6), load_be16(in.data() + 12)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_mac(out.data(), destination);
    store_mac(out.data() + 6, source);
    store_be16(out.data() + 12, ethertype);
  }
  bool operator==(const EthernetHeader&) const = default;
};

// The four bytes behind a tag's Ethertype: tag control information, then the next Ethertype.
struct VlanTag {
  static constexpr std::size_t kSize = 4;

  std::uint8_t priority = 0;  // PCP, 3 bits
  bool drop_eligible = false;
  std::uint16_t vlan_id = 0;  // 12 bits
  std::uint16_t ethertype = kEthertypeIpv4;

  [[nodiscard]] static VlanTag parse(std::span<const std::byte, kSize> in) {
    const std::uint16_t control = load_be16(in.data());
    return {static_cast<std::uint8_t>(control >> 13), (control & 0x1000) != 0,
            static_cast<std::uint16_t>(control & 0x0FFF), load_be16(in.data() + 2)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_be16(out.data(), static_cast<std::uint16_t>(((priority & 7U) << 13) |
                                                      (drop_eligible ? 0x1000U : 0U) | (vlan_id & 0x0FFFU)));
    store_be16(out.data() + 2, ethertype);
  }
  bool operator==(const VlanTag&) const = default;
};

[[nodiscard]] constexpr bool is_vlan(std::uint16_t ethertype) {
  return ethertype == kEthertypeVlan || ethertype == kEthertypeServiceVlan;
}

}  // namespace roci::proto
