// RoCE packets as frames, which the engine knows, and as datagrams of a UDP socket: what the one has and the
// other has not.
//
// A socket is given and gives BTH to ICRC. The kernel chooses the IP id of what it sends and keeps back the
// id and DF of what it receives, all of which the ICRC covers. Not here: sockets. Thread rule: one thread an
// object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "dpdk_port/icrc_change.h"
#include "proto/ethernet.h"
#include "proto/icrc.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/types.h"
#include "proto/udp.h"

namespace roci::dpdk_port {

[[nodiscard]] constexpr std::size_t headers_before_bth(bool is_ipv6) {
  return proto::EthernetHeader::kSize + (is_ipv6 ? proto::Ipv6Header::kSize : proto::Ipv4Header::kSize) +
         proto::UdpHeader::kSize;
}

// What a frame is to a socket. Lends its bytes.
struct OutgoingDatagram {
  std::span<const std::byte> payload;  // BTH to pad, without the ICRC
  proto::Gid source, destination;
  std::uint16_t source_port = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  Ipv4Identity identity;
  std::uint32_t icrc = 0;

  // The ICRC with what the kernel will put in.
  [[nodiscard]] std::array<std::byte, proto::Icrc::kSize> icrc_as_sent(std::uint16_t port,
                                                                       Ipv4Identity as_sent) const;
};

// None: not a RoCE packet.
[[nodiscard]] std::optional<OutgoingDatagram> parse_outgoing(std::span<const std::byte> frame);

struct IncomingDatagram {
  proto::Mac source_mac, destination_mac;
  proto::Gid source, destination;  // of one family
  std::uint16_t source_port = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;
};

enum class IcrcVerdict : std::uint8_t {
  kPredicted,  // right with the peer's last IP id, the next one, or 0
  kSolved,     // right with others [1 of 2^15 damaged packets would be]
  kExact,      // nothing had to be found: IPv6. Not looked at here, but by the engine
  kUnsolved,   // wrong with any
};

// Remembers what the peers' IP ids were: most leave them as they are or count.
class FrameBuilder {
 public:
  // Writes the headers in front of the datagram, which stands in `frame` behind headers_before_bth() bytes.
  IcrcVerdict build(std::span<std::byte> frame, const IncomingDatagram& datagram);

 private:
  struct Peer {
    Ipv4Identity last;
    std::uint16_t step = 0;  // to the next id
  };
  // By a hash of address and port; those that share one only expect less well.
  std::array<Peer, 256> peers_{};
};

}  // namespace roci::dpdk_port
