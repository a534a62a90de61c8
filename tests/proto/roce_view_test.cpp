#include "tests/proto/support.h"

#include "proto/icrc.h"
#include "proto/roce_view.h"

#include <catch2/catch.hpp>

#include <functional>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

Bytes sound_frame(IpVersion version = IpVersion::kIpv4) {
  static const Bytes payload = hex("0102030405");
  Packet packet = make_packet(Opcode::kRcSendOnly, version);
  packet.payload = payload;
  complete(packet);
  return frame_of(packet);
}

ParseError error_of(const Bytes& frame) {
  RoceView view;
  const ParseError error = parse_roce(frame, view);
  // Both readers must tell the same.
  CHECK(dissect(frame, LinkType::kEthernet).error == error);
  return error;
}

constexpr std::size_t kIp = 14;
constexpr std::size_t kUdp4 = 34;
constexpr std::size_t kBth4 = 42;

// `change` made to a sound IPv4 frame; the header checksum is set right again.
ParseError changed(const std::function<void(Bytes&)>& change) {
  Bytes frame = sound_frame();
  change(frame);
  if (frame.size() >= kUdp4) {
    store_be16(&frame[kIp + 10], 0);
    store_be16(&frame[kIp + 10], internet_checksum(std::span{frame}.subspan(kIp, 20)));
  }
  return error_of(frame);
}

}  // namespace

TEST_CASE("a view has every field of the packet") {
  Dice dice{6};
  for (int round = 0; round < 3000; ++round) {
    const auto opcode = static_cast<Opcode>(dice.below(256));
    const Shape shape = dice.one_in(2) ? Shape::kIpv4 : Shape::kIpv6;
    const Bytes payload = dice.bytes(dice.below(40));
    Packet packet = random_packet(dice, opcode, shape, payload);
    const Bytes trailer = dice.bytes(dice.below(8));
    packet.trailer = trailer;
    const Bytes frame = frame_of(packet);
    INFO("round " << round << " of seed 6, opcode " << static_cast<int>(opcode));
    RoceView view;
    const ParseError error = parse_roce(frame, view);
    REQUIRE(error == (info(opcode).is_known ? ParseError::kNone : ParseError::kReservedOpcode));
    const PacketOffsets offsets = offsets_of(packet);
    CHECK(view.ip_offset == offsets.network);
    CHECK(view.udp_offset == offsets.udp);
    CHECK(view.bth_offset == offsets.bth);
    CHECK(view.extension_offset == offsets.extensions);
    CHECK(view.payload_offset == offsets.payload);
    CHECK(view.icrc_offset == offsets.icrc);
    CHECK(view.end_offset == offsets.end);
    CHECK(Bytes(view.payload().begin(), view.payload().end()) == payload);
    CHECK(view.bth == packet.bth);
    CHECK(view.source_mac == packet.ethernet->source);
    CHECK(view.destination_mac == packet.ethernet->destination);
    CHECK(view.source == packet.source());
    CHECK(view.destination == packet.destination());
    CHECK(view.is_ipv6 == (shape == Shape::kIpv6));
    CHECK(view.traffic_class == (packet.ipv4 ? packet.ipv4->traffic_class : packet.ipv6->traffic_class));
    CHECK(view.hop_limit == (packet.ipv4 ? packet.ipv4->time_to_live : packet.ipv6->hop_limit));
    CHECK(view.dont_fragment == (packet.ipv4 ? packet.ipv4->dont_fragment : true));
    CHECK(view.udp_source_port == packet.udp->source_port);
    CHECK(view.ecn() == packet.ecn());
    if (packet.deth) CHECK(view.deth() == *packet.deth);
    if (packet.xrceth) CHECK(view.xrceth() == *packet.xrceth);
    if (packet.feth) CHECK(view.feth() == *packet.feth);
    if (packet.reth) CHECK(view.reth() == *packet.reth);
    if (packet.atomic_eth) CHECK(view.atomic_eth() == *packet.atomic_eth);
    if (packet.aeth) CHECK(view.aeth() == *packet.aeth);
    if (packet.atomic_ack_eth) CHECK(view.atomic_ack_eth() == *packet.atomic_ack_eth);
    if (packet.imm_dt) CHECK(view.imm_dt() == *packet.imm_dt);
    if (packet.ieth) CHECK(view.ieth() == *packet.ieth);
    CHECK(icrc_of(view) == packet.icrc);
    CHECK(icrc_matches(view));
  }
}

TEST_CASE("each unsound frame has its reason") {
  CHECK(error_of(sound_frame()) == ParseError::kNone);
  CHECK(error_of(sound_frame(IpVersion::kIpv6)) == ParseError::kNone);
  using E = ParseError;
  CHECK(changed([](Bytes& f) { f.resize(13); }) == E::kShortLink);
  CHECK(changed([](Bytes& f) { store_be16(&f[12], kEthertypeArp); }) == E::kOtherEthertype);
  CHECK(changed([](Bytes& f) { f[kIp] = std::byte{0x65}; }) == E::kIpVersion);  // [IBTA CA17-27]
  CHECK(changed([](Bytes& f) { f[kIp + 9] = std::byte{6}; }) == E::kOtherIpProtocol);
  CHECK(changed([](Bytes& f) { f[kIp] = std::byte{0x46}; }) ==
        E::kOtherUdpPort);      // options shift the UDP header
  CHECK(changed([](Bytes& f) {  // [IBTA CA17-3]
          f[kIp] = std::byte{0x46};
          store_be16(&f[kUdp4 + 4 + 2], kRoceV2Port);
        }) == E::kIpOptions);
  CHECK(changed([](Bytes& f) { f[kIp] = std::byte{0x44}; }) == E::kIpOptions);
  CHECK(changed([](Bytes& f) { store_be16(&f[kIp + 6], 0x2000); }) == E::kIpFragment);  // [IBTA CA17-7]
  CHECK(changed([](Bytes& f) { store_be16(&f[kIp + 6], 0x0001); }) == E::kIpFragment);  // [IBTA CA17-8]
  CHECK(changed([](Bytes& f) { store_be16(&f[kIp + 6], 0); }) ==
        E::kNone);  // no DF: accepted, see dont_fragment
  CHECK(changed([](Bytes& f) { store_be16(&f[kIp + 2], 0xFFFF); }) == E::kIpLength);
  CHECK(changed([](Bytes& f) { store_be16(&f[kIp + 2], 19); }) == E::kIpLength);
  CHECK(changed([](Bytes& f) { store_be16(&f[kIp + 2], 27); }) == E::kShortUdp);
  CHECK(changed([](Bytes& f) { store_be16(&f[kUdp4 + 2], 4790); }) == E::kOtherUdpPort);  // [IBTA CA17-20]
  CHECK(changed([](Bytes& f) { store_be16(&f[kUdp4 + 4], 33); }) == E::kUdpLength);       // [IBTA CA17-21]
  CHECK(changed([](Bytes& f) { f[kBth4 + 1] = std::byte{0x43}; }) == E::kTransportVersion);
  CHECK(changed([](Bytes& f) { f[kBth4] = std::byte{0x1F}; }) == E::kReservedOpcode);
  CHECK(changed([](Bytes& f) { f[kBth4] = std::byte{0x0A}; }) == E::kShortHeaders);
  CHECK(changed([](Bytes& f) {
          store_be16(&f[kIp + 2], 20 + 8 + 15);
          store_be16(&f[kUdp4 + 4], 8 + 15);
        }) == E::kShortBth);

  Bytes frame = sound_frame();
  frame[kIp + 10] ^= std::byte{1};
  CHECK(error_of(frame) == E::kIpChecksum);
  frame = sound_frame(IpVersion::kIpv6);
  const Gid mapped = Gid::from_ipv4(1);
  store_gid(&frame[kIp + 8], mapped);
  CHECK(error_of(frame) == E::kMappedAddress);
}

TEST_CASE("an unknown opcode is told before a length that would not fit it") {
  // 16 bytes of BTH and ICRC, a pad count that cannot be, and an opcode nobody knows.
  Packet packet = make_packet(static_cast<Opcode>(0x1F));
  complete(packet);
  packet.bth.pad_count = 3;
  packet.icrc = icrc_of(packet);
  const Bytes frame = frame_of(packet);
  RoceView view;
  CHECK(parse_roce(frame, view) == ParseError::kReservedOpcode);
  CHECK(view.payload().empty());
  CHECK(icrc_matches(view));
}

TEST_CASE("Ethernet padding is not part of the packet") {
  Packet packet = make_packet(Opcode::kRcSendOnly);
  complete(packet);
  Bytes frame = frame_of(packet);
  REQUIRE(frame.size() == 58);  // shorter than the wire allows, and sound all the same
  RoceView view;
  CHECK(parse_roce(frame, view) == ParseError::kNone);
  CHECK(icrc_matches(view));
  frame.resize(kMinFrameBytes, std::byte{0xAA});
  CHECK(parse_roce(frame, view) == ParseError::kNone);
  CHECK(view.end_offset == 58);
  CHECK(icrc_matches(view));
}

TEST_CASE("one, two, and too many VLAN tags") {
  for (std::uint8_t tags = 0; tags <= 3; ++tags) {
    Packet packet = make_packet(Opcode::kRcAcknowledge);
    packet.vlan_count = std::min<std::uint8_t>(tags, 2);
    complete(packet);
    Bytes frame = frame_of(packet);
    if (tags == 3) {
      const Bytes third = hex("8100 0001");
      frame.insert(frame.begin() + 12, third.begin(), third.end());
    }
    CHECK(error_of(frame) == (tags == 3 ? ParseError::kVlanDepth : ParseError::kNone));
  }
}

TEST_CASE("a frame is in a VLAN if a tag names one; a priority tag names none") {
  for (const std::uint16_t id : std::initializer_list<std::uint16_t>{0, 1, 0x7FF, 0x800, 0xFFF}) {
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      Packet packet = make_packet(Opcode::kRcAcknowledge);
      packet.vlan_count = static_cast<std::uint8_t>(which + 1);
      packet.vlan_tags[0].priority = 7;
      packet.vlan_tags[which].vlan_id = id;
      complete(packet);
      RoceView view;
      view.is_in_vlan = id == 0;  // of the frame before
      REQUIRE(parse_roce(frame_of(packet), view) == ParseError::kNone);
      CHECK(view.is_in_vlan == (id != 0));
    }
  }
}

TEST_CASE("no truncation and no flipped bit of a frame confuses the two readers") {
  Dice dice{7};
  for (const Opcode opcode : {Opcode::kRcSendOnly, Opcode::kRcAtomicAcknowledge, Opcode::kUdSendOnlyImmediate,
                              Opcode::kCnp, static_cast<Opcode>(0xFF)}) {
    for (const Shape shape : {Shape::kIpv4, Shape::kIpv6}) {
      const Bytes payload = dice.bytes(3);
      const Bytes frame = frame_of(random_packet(dice, opcode, shape, payload));
      for (std::size_t size = 0; size < frame.size(); ++size) {
        CHECK(error_of(Bytes(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size))) !=
              ParseError::kNone);
      }
      for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
        Bytes flipped = frame;
        flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
        (void)error_of(flipped);
      }
    }
  }
}

TEST_CASE("a frame longer than any IP packet is read as far as offsets go") {
  Bytes frame = sound_frame();
  frame.resize(70000);
  RoceView view;
  CHECK(parse_roce(frame, view) == ParseError::kNone);
  store_be16(&frame[kIp + 2], 0xFFFF);
  CHECK(parse_roce(frame, view) == ParseError::kIpLength);
}
