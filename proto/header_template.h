// The transmit path's headers: Ethernet, IP, UDP and BTH of one connection, built once, patched per packet.
//
// Per packet only IP length, id and checksum, UDP length, BTH opcode, flags and PSN are written (and for UD
// the destination QP). Extension headers are emitted by the caller with their own emit(), behind the returned
// size. Not here: which source port, ECN or hop limit to use (emulator). Plain value, no thread rule.
#pragma once

#include "proto/bth.h"
#include "proto/ethernet.h"
#include "proto/icrc.h"
#include "proto/opcode.h"
#include "proto/types.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace roci::proto {

// Where packets of a connection go. Both addresses are IPv4 (as ::ffff:a.b.c.d) or both IPv6.
struct Path {
  Mac source_mac;
  Mac destination_mac;
  std::optional<std::uint16_t> vlan_control;  // tag control information: priority, DEI, VLAN id
  Gid source;
  Gid destination;
  std::uint8_t traffic_class = 0;  // DSCP and ECN [IBTA CA17-4, CA17-5]
  std::uint8_t hop_limit = 64;     // [IBTA CA17-9]
  std::uint32_t flow_label = 0;    // IPv6 only
  std::uint16_t udp_source_port = 0xC000;

  [[nodiscard]] bool is_ipv6() const { return !destination.is_ipv4(); }
};

class HeaderTemplate {
 public:
  static constexpr std::size_t kMaxSize = 14 + 4 + 40 + 8 + Bth::kSize;

  struct PerPacket {
    Opcode opcode = Opcode::kRcSendOnly;
    bool solicited_event = false;
    bool ack_request = false;
    bool migration_request = true;
    bool becn = false;
    std::uint8_t pad_count = 0;
    Psn psn;
    std::uint16_t ip_identification = 0;  // IPv4 only
    std::uint16_t bytes_behind_bth = 0;   // extension headers, payload and pad, without the ICRC
  };

  HeaderTemplate() = default;
  HeaderTemplate(const Path& path, Qpn destination, Pkey pkey = kDefaultPkey);

  // For UD, where they change from packet to packet; a QP of a connection keeps them.
  void set_destination(Qpn destination);
  void set_source_port(std::uint16_t port);

  // Bytes up to and including the BTH: 54 with IPv4, 74 with IPv6, 4 more with a VLAN tag. 0 if
  // default-constructed.
  [[nodiscard]] std::size_t size() const { return size_; }
  // Writes size() bytes and returns that; `out` must hold them.
  std::size_t emit(std::span<std::byte> out, const PerPacket& packet) const;
  // Starts the ICRC from headers written by emit(). `headers` begins at the frame's first byte and may go on
  // behind the BTH with extension headers (at most Icrc::kMaxHeaderBytes from the IP header on); go on with
  // update().
  [[nodiscard]] Icrc icrc_over(std::span<const std::byte> headers) const;

 private:
  std::array<std::byte, kMaxSize> bytes_{};
  std::uint8_t size_ = 0;
  std::uint8_t ip_offset_ = 0;
  bool is_ipv6_ = false;
  std::uint32_t ip_checksum_base_ = 0;  // sum of the constant IPv4 words
};

}  // namespace roci::proto
