// What a frame starts with, by its number in pcap files (LINKTYPE_*).
//
// Constants, no thread rule.
#pragma once

#include <cstdint>
#include <optional>

namespace roci::proto {

enum class LinkType : std::uint16_t {
  kEthernet = 1,
  kRawIp = 101,
  kLinuxCooked = 113,
  kInfiniBand = 247,
  kLinuxCooked2 = 276,
};

// From a file's link type or from what pcap_datalink() says; no value for one that cannot carry RoCE or is
// not known.
[[nodiscard]] constexpr std::optional<LinkType> link_type_from_pcap(int number) {
  switch (number) {
    case 1:
      return LinkType::kEthernet;
    case 12:   // DLT_RAW on Linux
    case 101:  // LINKTYPE_RAW
    case 228:  // LINKTYPE_IPV4
    case 229:  // LINKTYPE_IPV6
      return LinkType::kRawIp;
    case 113:
      return LinkType::kLinuxCooked;
    case 247:
      return LinkType::kInfiniBand;
    case 276:
      return LinkType::kLinuxCooked2;
    default:
      return std::nullopt;
  }
}

}  // namespace roci::proto
