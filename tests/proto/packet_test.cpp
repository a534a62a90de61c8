#include "tests/proto/support.h"

#include "proto/icrc.h"

#include <catch2/catch.hpp>

using namespace roci::proto;
using namespace roci::proto::test;

TEST_CASE("every opcode in every framing: emit and parse are inverses") {
  Dice dice{8};
  for (unsigned value = 0; value < 256; ++value) {
    for (const Shape shape : kShapes) {
      for (const unsigned size : {0U, 1U, 2U, 3U, 4U, 61U}) {
        INFO("opcode " << value << " shape " << static_cast<int>(shape) << " payload " << size);
        const auto opcode = static_cast<Opcode>(value);
        const bool is_infiniband = shape == Shape::kInfiniBand || shape == Shape::kInfiniBandGrh;
        // An LRH counts in words, and a reserved opcode has no pad to fill the last one.
        if (is_infiniband && !info(opcode).is_known && size % 4 != 0) continue;
        const Bytes payload = dice.bytes(size);
        Packet packet = random_packet(dice, opcode, shape, payload);
        const Bytes trailer = dice.bytes(is_infiniband ? 2 : dice.below(5));
        packet.trailer = trailer;
        const Bytes frame = frame_of(packet);
        const Dissection dissection = dissect(frame, packet.link);
        REQUIRE(dissection.is_complete);
        CHECK(dissection.error == (info(opcode).is_known ? ParseError::kNone : ParseError::kReservedOpcode));
        CHECK(dissection.packet == packet);
        CHECK(frame_of(dissection.packet) == frame);
        CHECK(icrc_matches(dissection.packet));
        CHECK(parse(frame, packet.link).has_value() == info(opcode).is_known);
      }
    }
  }
}

TEST_CASE("Linux cooked and raw IP captures") {
  Packet packet = make_packet(Opcode::kRcAcknowledge);
  complete(packet);
  const Bytes ethernet = frame_of(packet);
  const Bytes ip{ethernet.begin() + 14, ethernet.end()};
  const auto prefixed = [&ip](std::string_view header) {
    Bytes frame = hex(header);
    frame.insert(frame.end(), ip.begin(), ip.end());
    return frame;
  };
  const std::array frames = {
      std::pair{LinkType::kRawIp, prefixed("")},
      std::pair{LinkType::kLinuxCooked, prefixed("0000 0001 0006 525400770001 0000 0800")},
      std::pair{LinkType::kLinuxCooked, prefixed("0000 0001 0006 525400770001 0000 8100 0005 0800")},
      std::pair{LinkType::kLinuxCooked2, prefixed("0800 0000 00000002 0001 00 06 525400770001 0000")},
  };
  for (const auto& [link, frame] : frames) {
    const auto parsed = parse(frame, link);
    REQUIRE(parsed);
    CHECK(parsed->bth == packet.bth);
    CHECK(icrc_matches(*parsed));
    CHECK(frame_of(*parsed) == frame);
  }
}

TEST_CASE("what is wrong but legible is read to the end") {
  Packet packet = make_packet(Opcode::kRcSendOnly);
  const Bytes payload = hex("aabbcc");
  packet.payload = payload;
  complete(packet);
  packet.ipv4->checksum ^= 1;
  packet.icrc ^= 1;
  packet.bth.transport_version = 3;
  const Bytes frame = frame_of(packet);
  const Dissection dissection = dissect(frame, LinkType::kEthernet);
  CHECK(dissection.is_complete);
  CHECK(dissection.error == ParseError::kIpChecksum);  // the first of them
  CHECK(dissection.packet == packet);
  CHECK_FALSE(icrc_matches(dissection.packet));
  CHECK(parse(frame, LinkType::kEthernet).error() == ParseError::kIpChecksum);
}

TEST_CASE("what cannot be read on is kept as far as it went") {
  Packet packet = make_packet(Opcode::kRcWriteOnly);
  packet.bth.psn = Psn{77};
  packet.reth.reset();
  complete(packet);
  const Dissection dissection = dissect(frame_of(packet), LinkType::kEthernet);
  CHECK(dissection.error == ParseError::kShortHeaders);
  CHECK_FALSE(dissection.is_complete);
  CHECK(dissection.packet.bth.psn == Psn{77});
}

TEST_CASE("lengths of the local route header") {
  Dice dice{9};
  const Bytes payload = dice.bytes(4);
  const Packet sound = random_packet(dice, Opcode::kRcSendOnly, Shape::kInfiniBandGrh, payload);
  const auto error_with = [&sound](auto change) {
    Packet packet = sound;
    change(packet);
    return dissect(frame_of(packet), LinkType::kInfiniBand).error;
  };
  CHECK(error_with([](Packet&) {}) == ParseError::kNone);
  CHECK(error_with([](Packet& p) { p.lrh->length_words = 0x7FF; }) == ParseError::kLinkLength);
  CHECK(error_with([](Packet& p) { p.lrh->length_words = 1; }) == ParseError::kLinkLength);
  CHECK(error_with([](Packet& p) { p.lrh->length_words -= 1; }) == ParseError::kIpLength);
  CHECK(error_with([](Packet& p) { p.grh->payload_length -= 4; }) == ParseError::kIpLength);
  CHECK(error_with([](Packet& p) { p.grh->next_header = 6; }) == ParseError::kOtherLinkNextHeader);
  CHECK(error_with([](Packet& p) { p.lrh->next_header = LinkNextHeader::kRaw; }) ==
        ParseError::kOtherLinkNextHeader);
}

TEST_CASE("emit does not write into a span that is too small") {
  Packet packet = make_packet(Opcode::kRcSendOnly);
  complete(packet);
  Bytes small(size_of(packet) - 1, std::byte{0x55});
  CHECK(emit(packet, small) == 0);
  CHECK(small == Bytes(small.size(), std::byte{0x55}));
}

TEST_CASE("parse errors have names and say which are other people's traffic") {
  CHECK(kParseErrorTable.size() == static_cast<std::size_t>(ParseError::kShortHeaders) + 1);
  CHECK(info(ParseError::kReservedOpcode).name == "reserved_opcode");
  CHECK(is_other_traffic(ParseError::kOtherEthertype));
  CHECK(is_other_traffic(ParseError::kOtherLinkNextHeader));
  CHECK_FALSE(is_other_traffic(ParseError::kNone));
  CHECK_FALSE(is_other_traffic(ParseError::kShortLink));
}
