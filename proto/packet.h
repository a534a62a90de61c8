// A RoCE packet as a value: every header that was present, every bit of it, and the payload as lent bytes.
//
// For tools, tests and traces: RoCE v2, RoCE v1 (GRH) and native InfiniBand (LRH), under Ethernet with up to
// two VLAN tags, Linux cooked captures or nothing. The emulator's receive path uses roce_view.h instead.
// parse() and emit() are exact inverses: the same bytes come out, damaged ones too, as stored lengths,
// checksums and ICRC are kept. complete() computes those of a packet made by hand. Plain values, no thread
// rule.
#pragma once

#include "proto/aeth.h"
#include "proto/atomic_ack_eth.h"
#include "proto/atomic_eth.h"
#include "proto/bth.h"
#include "proto/cnp.h"
#include "proto/deth.h"
#include "proto/ethernet.h"
#include "proto/feth.h"
#include "proto/grh.h"
#include "proto/ieth.h"
#include "proto/imm_dt.h"
#include "proto/ip.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/link_type.h"
#include "proto/lrh.h"
#include "proto/opcode.h"
#include "proto/parse_error.h"
#include "proto/rdeth.h"
#include "proto/result.h"
#include "proto/reth.h"
#include "proto/types.h"
#include "proto/udp.h"
#include "proto/xrceth.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace roci::proto {

// A Linux cooked header (16 bytes, or 20 in version 2), kept as it is.
struct CookedHeader {
  std::array<std::byte, 20> bytes{};
  bool operator==(const CookedHeader&) const = default;
};

// Where things stand in the frame.
struct PacketOffsets {
  std::size_t network = 0;  // IP header, GRH, or LRH if there is no GRH
  std::size_t udp = 0;      // 0 without UDP
  std::size_t bth = 0;
  std::size_t extensions = 0;
  std::size_t payload = 0;
  std::size_t icrc = 0;
  std::size_t end = 0;  // behind the ICRC
  bool operator==(const PacketOffsets&) const = default;
};

struct Packet {
  static constexpr std::size_t kMaxVlanTags = 2;

  LinkType link = LinkType::kEthernet;
  std::optional<EthernetHeader> ethernet;
  std::uint8_t vlan_count = 0;
  std::array<VlanTag, kMaxVlanTags> vlan_tags{};  // outer first
  std::optional<CookedHeader> cooked;
  std::optional<Lrh> lrh;
  std::optional<Grh> grh;
  std::optional<Ipv4Header> ipv4;
  std::optional<Ipv6Header> ipv6;
  std::optional<UdpHeader> udp;
  Bth bth;
  // Present exactly if the opcode has them.
  std::optional<Rdeth> rdeth;
  std::optional<Deth> deth;
  std::optional<Xrceth> xrceth;
  std::optional<Feth> feth;
  std::optional<Reth> reth;
  std::optional<AtomicEth> atomic_eth;
  std::optional<Aeth> aeth;
  std::optional<AtomicAckEth> atomic_ack_eth;
  std::optional<ImmDt> imm_dt;
  std::optional<Ieth> ieth;
  std::optional<CnpReserved> cnp;
  std::span<const std::byte> payload;  // lent, without pad
  std::array<std::byte, 3> pad{};      // bth.pad_count of them
  std::uint32_t icrc = 0;              // as stored, read least significant byte first
  std::span<const std::byte> trailer;  // lent: what follows the ICRC (Ethernet padding, an InfiniBand VCRC)

  [[nodiscard]] const OpcodeInfo& opcode_info() const { return info(bth.opcode); }
  // Addresses as GIDs, of IPv4, IPv6 or GRH; all zero without any of them.
  [[nodiscard]] Gid source() const;
  [[nodiscard]] Gid destination() const;
  // Of IP or GRH; kNotEct without.
  [[nodiscard]] Ecn ecn() const;
};

// Compares the lent bytes too, not where they are.
[[nodiscard]] bool operator==(const Packet& a, const Packet& b);

// The frame as far as it could be read, and why no further (or what is wrong with it).
struct Dissection {
  Packet packet;
  ParseError error = ParseError::kNone;
  // The packet was read to its end and emit() gives the same bytes. Always so with kNone, and with what is
  // wrong but legible: kReservedOpcode (all behind the BTH is payload), kTransportVersion, kIpChecksum,
  // kMappedAddress.
  bool is_complete = false;
};
[[nodiscard]] Dissection dissect(std::span<const std::byte> frame, LinkType link);

// dissect() for who wants sound packets only.
[[nodiscard]] Result<Packet, ParseError> parse(std::span<const std::byte> frame, LinkType link);

// Derived from which headers are present and how long the payload is.
[[nodiscard]] PacketOffsets offsets_of(const Packet& packet);
[[nodiscard]] std::size_t size_of(const Packet& packet);

// Writes the frame with all stored values as they are; its size, or 0 if `out` is too small.
[[nodiscard]] std::size_t emit(const Packet& packet, std::span<std::byte> out);

// What the stored values ought to be.
[[nodiscard]] std::uint32_t icrc_of(const Packet& packet);
[[nodiscard]] inline bool icrc_matches(const Packet& packet) { return packet.icrc == icrc_of(packet); }

// Fills in what follows from the rest: Ethertypes, lengths, next headers, IPv4 checksum, pad count and ICRC.
void complete(Packet& packet);
// The same without IPv4 checksum and ICRC, which cover what may be altered in between.
void complete_lengths(Packet& packet);

// A packet of that opcode with its extension headers present and zero, over Ethernet, IPv4 (or IPv6) and UDP.
[[nodiscard]] Packet make_packet(Opcode opcode, IpVersion version = IpVersion::kIpv4);

}  // namespace roci::proto
