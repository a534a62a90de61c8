// Base Transport Header, 12 bytes [IBTA 5.2.3].
//
// Keeps every bit, reserved ones too, so that what was parsed is emitted again. Not here: whether TVer, P_Key
// or PSN are acceptable (parse reports TVer, the emulator judges the rest). Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/opcode.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Bth {
  static constexpr std::size_t kSize = 12;
  static constexpr std::size_t kEcnByte = 4;  // FECN, BECN, reserved: ones in the ICRC

  Opcode opcode = Opcode::kRcSendFirst;
  bool solicited_event = false;
  bool migration_request = true;  // MigReq: hardware sends 1, rxe 0
  std::uint8_t pad_count = 0;     // 0..3
  std::uint8_t transport_version = 0;
  Pkey pkey = kDefaultPkey;
  bool fecn = false;
  bool becn = false;
  std::uint8_t reserved6 = 0;
  Qpn destination;
  bool ack_request = false;
  std::uint8_t reserved7 = 0;
  Psn psn;

  [[nodiscard]] static Bth parse(std::span<const std::byte, kSize> in) {
    Bth bth;
    bth.read(in);
    return bth;
  }
  // parse() in place: a copy of a value just written byte by byte costs a stall of some 10 ns.
  void read(std::span<const std::byte, kSize> in) {
    const std::byte* at = in.data();
    const std::uint8_t flags = load_u8(at + 1);
    const std::uint8_t ecn = load_u8(at + kEcnByte);
    const std::uint8_t ack = load_u8(at + 8);
    opcode = static_cast<Opcode>(load_u8(at));
    solicited_event = (flags & 0x80) != 0;
    migration_request = (flags & 0x40) != 0;
    pad_count = (flags >> 4) & 3;
    transport_version = flags & 0x0F;
    pkey = Pkey{load_be16(at + 2)};
    fecn = (ecn & 0x80) != 0;
    becn = (ecn & 0x40) != 0;
    reserved6 = ecn & 0x3F;
    destination = Qpn{load_be32(at + 4)};
    ack_request = (ack & 0x80) != 0;
    reserved7 = ack & 0x7F;
    psn = Psn{load_be32(at + 8)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    std::byte* at = out.data();
    store_u8(at, static_cast<std::uint8_t>(opcode));
    store_u8(at + 1, static_cast<std::uint8_t>((solicited_event ? 0x80 : 0) | (migration_request ? 0x40 : 0) |
                                               ((pad_count & 3) << 4) | (transport_version & 0x0F)));
    store_be16(at + 2, pkey.value());
    store_8_24(at + 4, static_cast<std::uint8_t>((fecn ? 0x80 : 0) | (becn ? 0x40 : 0) | (reserved6 & 0x3F)),
               destination.value());
    store_8_24(at + 8, static_cast<std::uint8_t>((ack_request ? 0x80 : 0) | (reserved7 & 0x7F)), psn.value());
  }
  bool operator==(const Bth&) const = default;
};

}  // namespace roci::proto
