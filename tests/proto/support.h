// What the tests of proto share: byte strings from hex, whole frames from packets, seeded random packets.
//
// Test code only. No thread rule.
#pragma once

#include "proto/packet.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace roci::proto::test {

using Bytes = std::vector<std::byte>;

// "45 00 1c": spaces are ignored.
inline Bytes hex(std::string_view text) {
  Bytes bytes;
  int high = -1;
  for (const char c : text) {
    if (c == ' ' || c == '\n') continue;
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::byte>(high * 16 + digit));
      high = -1;
    }
  }
  return bytes;
}

inline Bytes frame_of(const Packet& packet) {
  Bytes frame(size_of(packet));
  if (emit(packet, frame) != frame.size()) frame.clear();
  return frame;
}

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  std::uint64_t bits(unsigned count) { return engine_() >> (64 - count); }
  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

  Bytes bytes(std::size_t count) {
    Bytes out(count);
    for (std::byte& one : out)
      one = static_cast<std::byte>(bits(8));
    return out;
  }
  // A header of any content.
  template <class Header>
  Header header() {
    const Bytes raw = bytes(Header::kSize);
    return Header::parse(std::span<const std::byte, Header::kSize>{raw.data(), Header::kSize});
  }

 private:
  std::mt19937_64 engine_;
};

enum class Shape { kIpv4, kIpv6, kGrh, kInfiniBand, kInfiniBandGrh };
inline constexpr std::array kShapes = {Shape::kIpv4, Shape::kIpv6, Shape::kGrh, Shape::kInfiniBand,
                                       Shape::kInfiniBandGrh};

// A sound packet with random contents everywhere; `payload` is lent.
inline Packet random_packet(Dice& dice, Opcode opcode, Shape shape, std::span<const std::byte> payload) {
  const auto refill = [&dice]<class Header>(std::optional<Header>& header) {
    if (header) header = dice.header<Header>();
  };
  Packet packet = make_packet(opcode, shape == Shape::kIpv6 ? IpVersion::kIpv6 : IpVersion::kIpv4);
  refill(packet.ethernet);
  refill(packet.rdeth);
  refill(packet.deth);
  refill(packet.xrceth);
  refill(packet.feth);
  refill(packet.reth);
  refill(packet.atomic_eth);
  refill(packet.aeth);
  refill(packet.atomic_ack_eth);
  refill(packet.imm_dt);
  refill(packet.ieth);
  refill(packet.cnp);
  packet.bth = dice.header<Bth>();
  packet.bth.opcode = opcode;
  packet.bth.transport_version = 0;
  packet.payload = payload;

  if (shape == Shape::kIpv4) {
    packet.ipv4 = dice.header<Ipv4Header>();
    packet.ipv4->version = 4;
    packet.ipv4->header_words = 5;
    packet.ipv4->more_fragments = false;
    packet.ipv4->fragment_offset = 0;
    packet.ipv4->protocol = kProtocolUdp;
  } else {
    Ipv6Header ip = dice.header<Ipv6Header>();
    ip.version = 6;
    ip.next_header = kProtocolUdp;
    packet.ipv4.reset();
    if (shape == Shape::kIpv6) {
      packet.ipv6 = ip;
    } else {
      packet.udp.reset();
      if (shape != Shape::kInfiniBand) packet.grh = ip;
    }
  }
  if (shape == Shape::kInfiniBand || shape == Shape::kInfiniBandGrh) {
    packet.link = LinkType::kInfiniBand;
    packet.ethernet.reset();
    packet.lrh = dice.header<Lrh>();
  } else {
    packet.vlan_count = static_cast<std::uint8_t>(dice.below(3));
    for (std::size_t i = 0; i < packet.vlan_count; ++i)
      packet.vlan_tags[i] = dice.header<VlanTag>();
  }
  if (packet.udp) {
    packet.udp->source_port = static_cast<std::uint16_t>(dice.bits(16));
    packet.udp->checksum = static_cast<std::uint16_t>(dice.bits(16));
  }
  complete(packet);
  return packet;
}

}  // namespace roci::proto::test
