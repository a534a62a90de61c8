// Why bytes are not a sound RoCE packet: one list, usable as drop reasons and counter names.
//
// Ordered by layer. Not here: what the emulator refuses in a sound packet (P_Key, PSN, ...). Constants, no
// thread rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace roci::proto {

// X(Enumerator, counter_name, "sentence")
#define ROCI_PARSE_ERRORS(X)                                                               \
  X(None, none, "the packet is sound")                                                     \
  X(OtherEthertype, other_ethertype, "the Ethertype is neither IPv4, IPv6 nor RoCE v1")    \
  X(OtherIpProtocol, other_ip_protocol, "the IP packet does not carry UDP")                \
  X(OtherUdpPort, other_udp_port, "the UDP destination port is not 4791")                  \
  X(OtherLinkNextHeader, other_link_next_header, "the LRH or GRH does not announce a BTH") \
  X(ShortLink, short_link, "the frame ends within the link header")                        \
  X(VlanDepth, vlan_depth, "the frame has more than two VLAN tags")                        \
  X(LinkLength, link_length, "the LRH length does not fit the frame")                      \
  X(ShortIp, short_ip, "the frame ends within the IP header or GRH")                       \
  X(IpVersion, ip_version, "the IP version is not that of the Ethertype")                  \
  X(IpOptions, ip_options, "the IPv4 header is not 5 words long")                          \
  X(IpFragment, ip_fragment, "the IPv4 packet is a fragment")                              \
  X(IpLength, ip_length, "the IP length does not fit the frame")                           \
  X(IpChecksum, ip_checksum, "the IPv4 header checksum is wrong")                          \
  X(MappedAddress, mapped_address, "an IPv6 header carries an IPv4-mapped address")        \
  X(ShortUdp, short_udp, "the IP packet ends within the UDP header")                       \
  X(UdpLength, udp_length, "the UDP length is not what the IP length leaves")              \
  X(ShortBth, short_bth, "the packet ends within BTH and ICRC")                            \
  X(TransportVersion, transport_version, "the BTH transport version is not 0")             \
  X(ReservedOpcode, reserved_opcode, "the BTH opcode is reserved")                         \
  X(ShortHeaders, short_headers, "the packet ends within extension headers, pad and ICRC of its opcode")

enum class ParseError : std::uint8_t {
#define ROCI_X(enumerator, name, sentence) k##enumerator,
  ROCI_PARSE_ERRORS(ROCI_X)
#undef ROCI_X
};

struct ParseErrorInfo {
  std::string_view name;
  std::string_view sentence;
};

inline constexpr std::array kParseErrorTable = {
#define ROCI_X(enumerator, name, sentence) ParseErrorInfo{#name, sentence},
    ROCI_PARSE_ERRORS(ROCI_X)
#undef ROCI_X
};

[[nodiscard]] constexpr const ParseErrorInfo& info(ParseError error) {
  return kParseErrorTable[static_cast<std::size_t>(error)];
}

// True for other people's traffic (ARP, ICMP, TCP, ...), which is no fault of the sender.
[[nodiscard]] constexpr bool is_other_traffic(ParseError error) {
  return error >= ParseError::kOtherEthertype && error <= ParseError::kOtherLinkNextHeader;
}

}  // namespace roci::proto
