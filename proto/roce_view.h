// The receive path's look at one Ethernet / IP / UDP / BTH frame: a few loads, no copy of the payload, no
// allocation.
//
// For the emulator. Tools that must keep every bit, or read RoCE v1 and InfiniBand, use packet.h.
// Judges framing only. Not judged: destination MAC, addresses, UDP checksum, TTL, DF, ECN, P_Key, payload
// rule of the opcode, ICRC (icrc_matches() below). The bytes are lent: a view is good as long as the frame
// is.
#pragma once

#include "proto/aeth.h"
#include "proto/atomic_ack_eth.h"
#include "proto/atomic_eth.h"
#include "proto/bth.h"
#include "proto/deth.h"
#include "proto/feth.h"
#include "proto/ieth.h"
#include "proto/imm_dt.h"
#include "proto/ip.h"
#include "proto/opcode.h"
#include "proto/parse_error.h"
#include "proto/reth.h"
#include "proto/types.h"
#include "proto/xrceth.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct RoceView {
  const std::byte* frame = nullptr;  // lent; offsets count from here
  std::uint16_t ip_offset = 0;
  std::uint16_t udp_offset = 0;
  std::uint16_t bth_offset = 0;
  std::uint16_t extension_offset = 0;
  std::uint16_t payload_offset = 0;
  std::uint16_t payload_bytes = 0;  // without pad
  std::uint16_t icrc_offset = 0;
  std::uint16_t end_offset = 0;  // behind the ICRC; Ethernet padding may follow
  bool is_in_vlan = false;       // a tag names a VLAN other than 0
  bool is_ipv6 = false;
  bool dont_fragment = true;  // IPv4 only; a packet without it breaks [IBTA CA17-7]
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;  // or TTL
  std::uint16_t udp_source_port = 0;
  Mac source_mac;
  Mac destination_mac;
  Gid source;  // IPv4 addresses as ::ffff:a.b.c.d
  Gid destination;
  Bth bth;

  [[nodiscard]] Ecn ecn() const { return static_cast<Ecn>(traffic_class & 3); }
  [[nodiscard]] const OpcodeInfo& opcode_info() const { return info(bth.opcode); }
  [[nodiscard]] std::span<const std::byte> payload() const { return {frame + payload_offset, payload_bytes}; }
  [[nodiscard]] std::span<const std::byte> ip_header() const {
    return {frame + ip_offset, static_cast<std::size_t>(udp_offset - ip_offset)};
  }
  // IP header to ICRC, both included: what the ICRC covers, and the ICRC.
  [[nodiscard]] std::span<const std::byte> ip_packet() const {
    return {frame + ip_offset, static_cast<std::size_t>(end_offset - ip_offset)};
  }

  // Each may be asked only if opcode_info().has() it.
  [[nodiscard]] Deth deth() const { return extension<Deth>(Extension::kDeth); }
  [[nodiscard]] Xrceth xrceth() const { return extension<Xrceth>(Extension::kXrceth); }
  [[nodiscard]] Feth feth() const { return extension<Feth>(Extension::kFeth); }
  [[nodiscard]] Reth reth() const { return extension<Reth>(Extension::kReth); }
  [[nodiscard]] AtomicEth atomic_eth() const { return extension<AtomicEth>(Extension::kAtomicEth); }
  [[nodiscard]] Aeth aeth() const { return extension<Aeth>(Extension::kAeth); }
  [[nodiscard]] AtomicAckEth atomic_ack_eth() const {
    return extension<AtomicAckEth>(Extension::kAtomicAckEth);
  }
  [[nodiscard]] ImmDt imm_dt() const { return extension<ImmDt>(Extension::kImmDt); }
  [[nodiscard]] Ieth ieth() const { return extension<Ieth>(Extension::kIeth); }

 private:
  template <class Header>
  [[nodiscard]] Header extension(Extension which) const {
    const std::byte* at =
        frame + extension_offset + opcode_info().extension_offset[static_cast<std::size_t>(which)];
    return Header::parse(std::span<const std::byte, Header::kSize>{at, Header::kSize});
  }
};

// kNone if the frame is a sound RoCE v2 packet; `view` is filled then.
// kReservedOpcode and kTransportVersion: `view` is filled too (so that an ICRC can be checked before a NAK is
// sent for it); for a reserved opcode all bytes behind the BTH are payload. Any other error: `view` is filled
// as far as the packet could be read and must not be used.
[[nodiscard]] ParseError parse_roce(std::span<const std::byte> frame, RoceView& view);

// Both for a view that parse_roce() filled.
[[nodiscard]] std::uint32_t icrc_of(const RoceView& view);
[[nodiscard]] bool icrc_matches(const RoceView& view);

}  // namespace roci::proto
