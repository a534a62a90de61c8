#include "tests/proto/support.h"

#include "proto/ip.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

template <class Header>
Header parse_hex(std::string_view text) {
  const Bytes raw = hex(text);
  REQUIRE(raw.size() == Header::kSize);
  return Header::parse(std::span<const std::byte, Header::kSize>{raw.data(), Header::kSize});
}

template <class Header>
Bytes emitted(const Header& header) {
  Bytes out(Header::kSize);
  header.emit(std::span<std::byte, Header::kSize>{out.data(), Header::kSize});
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("any bytes come back from a header, bit for bit", "", EthernetHeader, VlanTag, Ipv4Header,
                   Ipv6Header, UdpHeader, Lrh, Bth, Rdeth, Deth, Xrceth, Feth, Reth, AtomicEth, Aeth,
                   AtomicAckEth, ImmDt, Ieth, CnpReserved) {
  Dice dice{1};
  for (int round = 0; round < 1000; ++round) {
    const Bytes raw = dice.bytes(TestType::kSize);
    const auto header =
        TestType::parse(std::span<const std::byte, TestType::kSize>{raw.data(), TestType::kSize});
    REQUIRE(emitted(header) == raw);
  }
}

TEST_CASE("BTH fields are where the standard has them") {
  const Bth bth = parse_hex<Bth>("04 d1 ff fe c5 00 12 34 81 ab cd ef");
  CHECK(bth.opcode == Opcode::kRcSendOnly);
  CHECK(bth.solicited_event);
  CHECK(bth.migration_request);
  CHECK(bth.pad_count == 1);
  CHECK(bth.transport_version == 1);
  CHECK(bth.pkey == Pkey{0xFFFE});
  CHECK(bth.fecn);
  CHECK(bth.becn);
  CHECK(bth.reserved6 == 5);
  CHECK(bth.destination == Qpn{0x001234});
  CHECK(bth.ack_request);
  CHECK(bth.reserved7 == 1);
  CHECK(bth.psn == Psn{0xABCDEF});
}

TEST_CASE("extension header fields are where the standard has them") {
  CHECK(parse_hex<Reth>("0102030405060708 11223344 00001000") ==
        Reth{0x0102030405060708, Rkey{0x11223344}, 4096});
  CHECK(parse_hex<Aeth>("60 000005") == Aeth{Syndrome::nak(NakCode::kPsnSequenceError), Msn{5}});
  CHECK(parse_hex<Deth>("80010000 00 000001") == Deth{Qkey{0x80010000}, 0, kQpnGsi});
  CHECK(parse_hex<AtomicEth>("00000000000000aa 00000001 0000000000000002 0000000000000003") ==
        AtomicEth{0xAA, Rkey{1}, 2, 3});
  CHECK(parse_hex<AtomicAckEth>("0807060504030201").original_data == 0x0807060504030201);
  CHECK(parse_hex<ImmDt>("12345678").value == 0x12345678);
  CHECK(parse_hex<Ieth>("12345678").rkey == Rkey{0x12345678});
  CHECK(parse_hex<Xrceth>("00 000123").srq_number == 0x123);
  CHECK(parse_hex<Rdeth>("00 000321").ee_context == 0x321);
  CHECK(parse_hex<Feth>("00000012") == Feth{2, 1, 0});
}

TEST_CASE("link and network header fields are where they belong") {
  const VlanTag tag = parse_hex<VlanTag>("b001 0800");
  CHECK(tag == VlanTag{5, true, 1, kEthertypeIpv4});
  const Ipv4Header ip = parse_hex<Ipv4Header>("45020064 1234 4000 40 11 beef 0a4d000b 0a4d000c");
  CHECK(ip.ecn() == Ecn::kEct0);
  CHECK(ip.total_length == 100);
  CHECK(ip.dont_fragment);
  CHECK(ip.source == 0x0A4D000B);
  const Ipv6Header ip6 = parse_hex<Ipv6Header>(
      "648abcde 0040 11 ff fd770000000000000000000000000011 fd770000000000000000000000000012");
  CHECK(ip6.traffic_class == 0x48);
  CHECK(ip6.flow_label == 0xABCDE);
  CHECK(ip6.payload_length == 64);
  CHECK(ip6.hop_limit == 255);
  const Lrh lrh = parse_hex<Lrh>("70 12 375c 000e 17d2");
  CHECK(lrh == Lrh{7, 0, 1, 0, LinkNextHeader::kBth, 0x375C, 0, 14, 0x17D2});
}

TEST_CASE("the Internet checksum") {
  // A header that every textbook has: checksum b861.
  const Bytes header = hex("45000073 0000 4000 40 11 b861 c0a80001 c0a800c7");
  CHECK(internet_checksum(header) == 0);
  const auto ip = parse_hex<Ipv4Header>("45000073 0000 4000 40 11 0000 c0a80001 c0a800c7");
  CHECK(ip.checksum_of() == 0xB861);
  // In pieces of any even size, and with an odd end.
  Dice dice{2};
  for (int round = 0; round < 200; ++round) {
    const Bytes bytes = dice.bytes(dice.below(80));
    const std::size_t cut = bytes.empty() ? 0 : dice.below(bytes.size()) & ~std::size_t{1};
    const std::span<const std::byte> all{bytes};
    std::uint32_t slow = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      slow += std::to_integer<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    }
    while (slow > 0xFFFF)
      slow = (slow & 0xFFFF) + (slow >> 16);
    CHECK(internet_checksum(all) == (~slow & 0xFFFF));
    CHECK(internet_checksum(all.subspan(cut), checksum_add(0, all.first(cut))) == (~slow & 0xFFFF));
  }
}

TEST_CASE("the IPv6 pseudo header") {
  // ICMPv6 echo request, ::1 to ::1, id 1, sequence 1, no data.
  Gid loopback;
  loopback.bytes[15] = 1;
  const Bytes echo = hex("8000 0000 0001 0001");
  const std::uint16_t sum =
      internet_checksum(echo, Ipv6Header::pseudo_header_sum(loopback, loopback, 8, kProtocolIcmpv6));
  // 0x8000 + 1 + 1 + 1 + 1 + 8 + 58
  CHECK(sum == static_cast<std::uint16_t>(~(0x8000U + 4 + 8 + 58)));
}
