#include "emulator/neighbour.h"

#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "proto/bytes.h"
#include "proto/ethernet.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/text.h"

using namespace roci;
using namespace roci::emulator;
using proto::Gid;
using proto::Mac;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

using Bytes = std::vector<std::byte>;

constexpr Mac kOwn{{2, 0, 0, 0, 0, 1}}, kPeer{{2, 0, 0, 0, 0, 2}}, kOther{{2, 0, 0, 0, 0, 3}};
constexpr Mac kBroadcast{{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}};
const Time kStart{seconds(5)};

Gid gid(const char* text) { return *proto::gid_from_text(text); }

NicConfig nic() {
  NicConfig config;
  config.mac = kOwn;
  config.addresses = {{gid("10.0.0.1"), 24}, {gid("fd00::1"), 64}};
  return config;
}

std::uint8_t byte(const Bytes& frame, std::size_t at) { return proto::load_u8(frame.data() + at); }

Bytes next_frame(NeighbourCache& cache) {
  Bytes out(2048);
  out.resize(cache.emit(out));
  return out;
}

Bytes ethernet(const Mac& to, const Mac& from, std::uint16_t ethertype, std::size_t behind) {
  Bytes frame(14 + behind);
  proto::EthernetHeader{to, from, ethertype}.emit(std::span{frame}.first<14>());
  return frame;
}

Bytes arp(std::uint16_t operation, const Mac& to, const Mac& from, const char* from_ip, const char* to_ip) {
  Bytes frame = ethernet(to, from, proto::kEthertypeArp, 28);
  std::byte* at = frame.data() + 14;
  proto::store_be64(at, (0x0001'0800'0604ULL << 16) | operation);
  proto::store_mac(at + 8, from);
  proto::store_be32(at + 14, gid(from_ip).ipv4());
  proto::store_be32(at + 24, gid(to_ip).ipv4());
  return frame;
}

Bytes icmpv6(const Mac& to, const Mac& from, const char* source, const char* destination, Bytes message,
             std::uint8_t hops = 255) {
  Bytes frame = ethernet(to, from, proto::kEthertypeIpv6, 40 + message.size());
  proto::Ipv6Header ip;
  ip.payload_length = static_cast<std::uint16_t>(message.size());
  ip.next_header = proto::kProtocolIcmpv6;
  ip.hop_limit = hops;
  ip.source = gid(source);
  ip.destination = gid(destination);
  ip.emit(std::span{frame}.subspan<14, 40>());
  const std::uint32_t pseudo =
      proto::Ipv6Header::pseudo_header_sum(ip.source, ip.destination, ip.payload_length, ip.next_header);
  proto::store_be16(message.data() + 2, 0);
  proto::store_be16(message.data() + 2, proto::internet_checksum(message, pseudo));
  std::memcpy(frame.data() + 54, message.data(), message.size());
  return frame;
}

// A solicitation (135) or advertisement (136); the link-layer option only where `option` is given.
Bytes nd_message(std::uint8_t type, const char* target, std::uint32_t flags, const Mac* option) {
  Bytes message(option != nullptr ? 32 : 24);
  proto::store_u8(message.data(), type);
  proto::store_be32(message.data() + 4, flags);
  proto::store_gid(message.data() + 8, gid(target));
  if (option != nullptr) {
    proto::store_u8(message.data() + 24, type == 135 ? 1 : 2);
    proto::store_u8(message.data() + 25, 1);
    proto::store_mac(message.data() + 26, *option);
  }
  return message;
}

bool has_right_icmpv6_checksum(const Bytes& frame) {
  const auto ip = proto::Ipv6Header::parse(std::span{frame}.subspan<14, 40>());
  const std::uint32_t pseudo =
      proto::Ipv6Header::pseudo_header_sum(ip.source, ip.destination, ip.payload_length, ip.next_header);
  return proto::internet_checksum(std::span{frame}.subspan(54, ip.payload_length), pseudo) == 0;
}

}  // namespace

TEST_CASE("ARP: ask, be answered, know") {
  NeighbourCache cache(nic(), seconds(1), true);
  CHECK(cache.state(gid("10.0.0.2")) == NeighbourState::kUnknown);
  CHECK_FALSE(cache.lookup(gid("10.0.0.2")).has_value());
  CHECK(cache.next_deadline() == kNever);
  CHECK(cache.request(gid("10.0.0.2"), kStart) == NeighbourState::kPending);
  CHECK(cache.request(gid("10.0.0.2"), kStart) == NeighbourState::kPending);  // once is enough
  REQUIRE(cache.has_frame());

  const Bytes request = next_frame(cache);
  CHECK_FALSE(cache.has_frame());
  CHECK(request.size() == 60);  // an Ethernet frame's least
  CHECK(proto::load_mac(request.data()) == kBroadcast);
  CHECK(proto::load_mac(request.data() + 6) == kOwn);
  CHECK(proto::load_be16(request.data() + 12) == proto::kEthertypeArp);
  CHECK(proto::load_be64(request.data() + 14) == 0x0001'0800'0604'0001);
  CHECK(proto::load_mac(request.data() + 22) == kOwn);
  CHECK(proto::load_be32(request.data() + 28) == 0x0A000001);
  CHECK(proto::load_mac(request.data() + 32) == Mac{});
  CHECK(proto::load_be32(request.data() + 38) == 0x0A000002);

  const std::uint64_t before = cache.changes();
  CHECK(cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.1")) == DropReason::kAccepted);
  CHECK(cache.changes() > before);
  CHECK(cache.lookup(gid("10.0.0.2")) == kPeer);
  CHECK(cache.state(gid("10.0.0.2")) == NeighbourState::kKnown);
  CHECK(cache.next_deadline() == kNever);
}

TEST_CASE("three requests, a timeout apart, then failure, and a new request starts again") {
  NeighbourCache cache(nic(), seconds(1), true);
  (void)cache.request(gid("10.0.0.9"), kStart);
  int requests = 0;
  for (int tick = 0; tick <= 60; ++tick) {
    const Time now = kStart + milliseconds(50) * tick;
    cache.on_timers(now);
    while (cache.has_frame()) {
      CHECK(now == kStart + seconds(requests));
      REQUIRE_FALSE(next_frame(cache).empty());
      ++requests;
    }
    CHECK(cache.state(gid("10.0.0.9")) == (tick < 60 ? NeighbourState::kPending : NeighbourState::kFailed));
  }
  CHECK(requests == 3);
  CHECK(cache.next_deadline() == kNever);
  // Too late: nobody asks any more.
  (void)cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.9", "10.0.0.1"));
  CHECK_FALSE(cache.lookup(gid("10.0.0.9")).has_value());
  CHECK(cache.request(gid("10.0.0.9"), kStart + seconds(4)) == NeighbourState::kPending);
  CHECK(cache.next_deadline() == kStart + seconds(5));
  CHECK(cache.has_frame());
}

TEST_CASE("neighbour discovery: solicit, be answered, know") {
  NeighbourCache cache(nic(), seconds(1), true);
  (void)cache.request(gid("fd00::1234:5678"), kStart);
  const Bytes request = next_frame(cache);
  REQUIRE(request.size() == 14 + 40 + 32);
  CHECK(to_text(proto::load_mac(request.data())) == "33:33:ff:34:56:78");
  CHECK(to_text(proto::load_gid(request.data() + 22)) == "fd00::1");
  CHECK(to_text(proto::load_gid(request.data() + 38)) == "ff02::1:ff34:5678");
  CHECK(byte(request, 21) == 255);  // hop limit
  CHECK(byte(request, 54) == 135);
  CHECK(proto::load_mac(request.data() + 80) == kOwn);
  CHECK(has_right_icmpv6_checksum(request));

  const auto answer = [](std::uint32_t flags, const Mac& mac) {
    return icmpv6(kOwn, kPeer, "fd00::1234:5678", "fd00::1", nd_message(136, "fd00::1234:5678", flags, &mac));
  };
  SECTION("by a solicited advertisement") {
    CHECK(cache.on_frame(answer(0x60000000, kPeer)) == DropReason::kAccepted);
    CHECK(cache.lookup(gid("fd00::1234:5678")) == kPeer);
    // A change needs the override flag.
    (void)cache.on_frame(answer(0x40000000, kOther));
    CHECK(cache.lookup(gid("fd00::1234:5678")) == kPeer);
    (void)cache.on_frame(answer(0x20000000, kOther));
    CHECK(cache.lookup(gid("fd00::1234:5678")) == kOther);
  }
  SECTION("not by an unsolicited one") {
    (void)cache.on_frame(answer(0x20000000, kPeer));
    CHECK_FALSE(cache.lookup(gid("fd00::1234:5678")).has_value());
  }
  SECTION("with another option before the address") {
    Bytes message = nd_message(136, "fd00::1234:5678", 0x60000000, &kPeer);
    message.insert(message.begin() + 24, 16, std::byte{0});
    proto::store_u8(message.data() + 24, 14);  // a nonce
    proto::store_u8(message.data() + 25, 2);
    (void)cache.on_frame(icmpv6(kOwn, kPeer, "fd00::1234:5678", "fd00::1", message));
    CHECK(cache.lookup(gid("fd00::1234:5678")) == kPeer);
  }
  SECTION("not from beyond a router") {
    const Bytes far = icmpv6(kOwn, kPeer, "fd00::1234:5678", "fd00::1",
                             nd_message(136, "fd00::1234:5678", 0x60000000, &kPeer), 254);
    CHECK(cache.on_frame(far) == DropReason::kMalformed);
    CHECK_FALSE(cache.lookup(gid("fd00::1234:5678")).has_value());
  }
}

TEST_CASE("hostile and gratuitous claims") {
  NeighbourCache cache(nic(), seconds(1), true);
  SECTION("what nobody asked for is not learnt") {
    (void)cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.1"));
    (void)cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.2", "10.0.0.1"));
    CHECK(cache.state(gid("10.0.0.2")) == NeighbourState::kUnknown);
  }
  SECTION("a reply to somebody else is no answer") {
    (void)cache.request(gid("10.0.0.2"), kStart);
    CHECK(cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.7")) == DropReason::kNotForUs);
    CHECK(cache.on_frame(arp(2, kOther, kPeer, "10.0.0.2", "10.0.0.1")) == DropReason::kNotForUs);
    CHECK(cache.state(gid("10.0.0.2")) == NeighbourState::kPending);
  }
  SECTION("zero, broadcast and multicast are nobody's MAC") {
    (void)cache.request(gid("10.0.0.2"), kStart);
    for (const Mac& mac : {Mac{}, kBroadcast, Mac{{1, 0, 0, 0, 0, 1}}}) {
      Bytes reply = arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.1");
      proto::store_mac(reply.data() + 22, mac);
      CHECK(cache.on_frame(reply) == DropReason::kMalformed);
    }
    CHECK_FALSE(cache.lookup(gid("10.0.0.2")).has_value());
  }
  SECTION("a neighbour that moves says so") {
    (void)cache.request(gid("10.0.0.2"), kStart);
    (void)cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.1"));
    const std::uint64_t before = cache.changes();
    (void)cache.on_frame(arp(1, kBroadcast, kOther, "10.0.0.2", "10.0.0.2"));  // gratuitous
    CHECK(cache.lookup(gid("10.0.0.2")) == kOther);
    CHECK(cache.changes() == before + 1);
    (void)cache.on_frame(arp(1, kBroadcast, kOther, "10.0.0.2", "10.0.0.2"));
    CHECK(cache.changes() == before + 1);  // nothing new
  }
  SECTION("own addresses are not up for change") {
    (void)cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.1", "10.0.0.1"));
    CHECK(cache.lookup(gid("10.0.0.1")) == kOwn);
    // Another station claims our address: it gets no answer.
    (void)cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.1", "10.0.0.1"));
    CHECK_FALSE(cache.has_frame());
  }
  SECTION("our own frame, handed back by the port") {
    CHECK(cache.on_frame(arp(1, kBroadcast, kOwn, "10.0.0.2", "10.0.0.1")) == DropReason::kNotForUs);
    CHECK_FALSE(cache.has_frame());
  }
  SECTION("frames cut anywhere") {
    (void)cache.request(gid("10.0.0.2"), kStart);
    (void)cache.request(gid("fd00::2"), kStart);
    const Bytes whole[] = {
        arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.1"),
        icmpv6(kOwn, kPeer, "fd00::2", "fd00::1", nd_message(136, "fd00::2", 0x60000000, &kPeer))};
    for (const Bytes& frame : whole) {
      for (std::size_t length = 0; length < frame.size(); ++length) {
        const Bytes cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(length));
        CHECK(cache.on_frame(cut) == DropReason::kMalformed);
      }
    }
    CHECK_FALSE(cache.lookup(gid("10.0.0.2")).has_value());
    CHECK_FALSE(cache.lookup(gid("fd00::2")).has_value());
  }
  SECTION("an option of length zero") {
    (void)cache.request(gid("fd00::2"), kStart);
    Bytes message = nd_message(136, "fd00::2", 0x60000000, &kPeer);
    proto::store_u8(message.data() + 25, 0);
    CHECK(cache.on_frame(icmpv6(kOwn, kPeer, "fd00::2", "fd00::1", message)) == DropReason::kMalformed);
  }
}

TEST_CASE("answers for own addresses, and for nobody else's") {
  NeighbourCache cache(nic(), seconds(1), true);
  SECTION("ARP") {
    CHECK(cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.2", "10.0.0.1")) == DropReason::kAccepted);
    const Bytes reply = next_frame(cache);
    REQUIRE(reply.size() == 60);
    CHECK(proto::load_mac(reply.data()) == kPeer);
    CHECK(proto::load_be16(reply.data() + 20) == 2);
    CHECK(proto::load_mac(reply.data() + 22) == kOwn);
    CHECK(proto::load_be32(reply.data() + 28) == 0x0A000001);
    CHECK(proto::load_mac(reply.data() + 32) == kPeer);
    CHECK(proto::load_be32(reply.data() + 38) == 0x0A000002);
    CHECK(cache.replies_sent() == 1);
    CHECK(cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.2", "10.0.0.3")) == DropReason::kNotForUs);
    CHECK_FALSE(cache.has_frame());
  }
  SECTION("N01: ND for an address and for GID 0, which is link-local") {
    for (const char* target : {"fd00::1", "fe80::ff:fe00:1"}) {
      INFO(target);
      const Gid group = gid("ff02::1:ff00:1");
      const Bytes ask = icmpv6({{0x33, 0x33, 0xFF, 0, 0, 1}}, kPeer, "fe80::2", to_text(group).c_str(),
                               nd_message(135, target, 0, &kPeer));
      CHECK(cache.on_frame(ask) == DropReason::kAccepted);
      const Bytes reply = next_frame(cache);
      REQUIRE(reply.size() == 14 + 40 + 32);
      CHECK(proto::load_mac(reply.data()) == kPeer);
      CHECK(proto::load_gid(reply.data() + 22) == gid(target));
      CHECK(proto::load_gid(reply.data() + 38) == gid("fe80::2"));
      CHECK(byte(reply, 54) == 136);
      CHECK(proto::load_be32(reply.data() + 58) == 0x60000000);  // solicited, override
      CHECK(proto::load_mac(reply.data() + 80) == kOwn);
      CHECK(has_right_icmpv6_checksum(reply));
    }
  }
  SECTION("a station that checks for duplicates is answered at all nodes") {
    const Bytes probe = icmpv6({{0x33, 0x33, 0xFF, 0, 0, 1}}, kPeer, "::", "ff02::1:ff00:1",
                               nd_message(135, "fd00::1", 0, nullptr));
    CHECK(cache.on_frame(probe) == DropReason::kAccepted);
    const Bytes reply = next_frame(cache);
    REQUIRE_FALSE(reply.empty());
    CHECK(to_text(proto::load_mac(reply.data())) == "33:33:00:00:00:01");
    CHECK(to_text(proto::load_gid(reply.data() + 38)) == "ff02::1");
    CHECK(proto::load_be32(reply.data() + 58) == 0x20000000);
  }
  SECTION("ICMP echo, an odd number of bytes, behind it Ethernet padding") {
    Bytes frame = ethernet(kOwn, kPeer, proto::kEthertypeIpv4, 20 + 8 + 5 + 13);
    proto::Ipv4Header ip;
    ip.total_length = 33;
    ip.protocol = proto::kProtocolIcmp;
    ip.source = 0x0A000002;
    ip.destination = 0x0A000001;
    ip.checksum = ip.checksum_of();
    ip.emit(std::span{frame}.subspan<14, 20>());
    const std::span<std::byte> message = std::span{frame}.subspan(34, 13);
    proto::store_u8(message.data(), 8);
    proto::store_be32(message.data() + 4, 0x12340007);
    std::memcpy(message.data() + 8, "hello", 5);
    proto::store_be16(message.data() + 2, proto::internet_checksum(message));
    CHECK(cache.on_frame(frame) == DropReason::kAccepted);
    const Bytes reply = next_frame(cache);
    REQUIRE(reply.size() == 60);
    CHECK(proto::load_mac(reply.data()) == kPeer);
    const auto back = proto::Ipv4Header::parse(std::span{reply}.subspan<14, 20>());
    CHECK(back.checksum == back.checksum_of());
    CHECK(back.source == 0x0A000001);
    CHECK(back.destination == 0x0A000002);
    CHECK(back.total_length == 33);
    CHECK(byte(reply, 34) == 0);
    CHECK(proto::load_be32(reply.data() + 38) == 0x12340007);
    CHECK(std::memcmp(reply.data() + 42, "hello", 5) == 0);
    CHECK(proto::internet_checksum(std::span{reply}.subspan(34, 13)) == 0);
    CHECK(cache.replies_sent() == 0);  // counts ARP and ND only

    proto::store_u8(frame.data() + 45, 1);  // damage
    CHECK(cache.on_frame(frame) == DropReason::kMalformed);
  }
  SECTION("ICMPv6 echo") {
    Bytes message(8 + 6);
    proto::store_u8(message.data(), 128);
    proto::store_be32(message.data() + 4, 0x55550001);
    CHECK(cache.on_frame(icmpv6(kOwn, kPeer, "fd00::2", "fd00::1", message, 64)) == DropReason::kAccepted);
    const Bytes reply = next_frame(cache);
    REQUIRE(reply.size() >= 68);
    CHECK(byte(reply, 54) == 129);
    CHECK(proto::load_gid(reply.data() + 38) == gid("fd00::2"));
    CHECK(has_right_icmpv6_checksum(reply));
  }
  SECTION("no more answers wait than there is room for") {
    for (std::size_t i = 0; i < 2 * kMaxNeighbourReplies; ++i) {
      CHECK(cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.2", "10.0.0.1")) == DropReason::kAccepted);
    }
    std::size_t answers = 0;
    while (cache.has_frame())
      answers += next_frame(cache).empty() ? 0U : 1U;
    CHECK(answers == kMaxNeighbourReplies);
  }
}

TEST_CASE("another shard, or a NIC whose addresses a kernel owns, learns and does not answer") {
  NeighbourCache cache(nic(), seconds(1), false);
  (void)cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.2", "10.0.0.1"));
  CHECK_FALSE(cache.has_frame());
  (void)cache.request(gid("10.0.0.2"), kStart);
  CHECK(cache.has_frame());
  (void)next_frame(cache);
  (void)cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.2", "10.0.0.1"));
  CHECK(cache.lookup(gid("10.0.0.2")) == kPeer);
}

TEST_CASE("what needs no asking: own, multicast and configured addresses") {
  NicConfig config = nic();
  config.neighbours = {{gid("10.9.9.9"), kPeer}, {gid("10.0.0.8"), Mac{}}, {gid("10.0.0.1"), kOther}};
  NeighbourCache cache(config, seconds(1), true);
  CHECK(cache.lookup(gid("10.0.0.1")) == kOwn);
  CHECK(cache.lookup(gid("fe80::ff:fe00:1")) == kOwn);
  CHECK(cache.lookup(gid("10.9.9.9")) == kPeer);  // though not on link
  CHECK_FALSE(cache.lookup(gid("10.0.0.8")).has_value());
  // D04: 01:00:5e and the low 23 bits, 33:33 and the low 32 bits.
  CHECK(to_text(*cache.lookup(gid("239.129.2.3"))) == "01:00:5e:01:02:03");
  CHECK(to_text(*cache.lookup(gid("ff0e::1:2:3:4"))) == "33:33:00:03:00:04");
  CHECK(cache.request(gid("10.9.9.9"), kStart) == NeighbourState::kKnown);
  CHECK_FALSE(cache.has_frame());
  // Static: no claim changes it.
  (void)cache.on_frame(arp(1, kBroadcast, kOther, "10.9.9.9", "10.0.0.1"));
  CHECK(cache.lookup(gid("10.9.9.9")) == kPeer);
}

TEST_CASE("off link: by the gateway of the family, else unreachable") {
  NicConfig config = nic();
  SECTION("no gateway") {
    NeighbourCache cache(config, seconds(1), true);
    for (const char* far : {"10.0.1.2", "2001:db8::1", "0.0.0.0", "::"}) {
      INFO(far);
      CHECK(cache.request(gid(far), kStart) == NeighbourState::kUnreachable);
    }
    CHECK_FALSE(cache.has_frame());
    CHECK(cache.request(gid("fe80::77"), kStart) == NeighbourState::kPending);  // always on link
  }
  SECTION("no address to ask the gateway from") {
    config.addresses = {{gid("fd00::1"), 64}};
    config.gateways = {gid("10.0.0.254")};
    NeighbourCache cache(config, seconds(1), true);
    CHECK(cache.request(gid("10.0.1.2"), kStart) == NeighbourState::kUnreachable);
    CHECK_FALSE(cache.has_frame());
  }
  SECTION("gateway") {
    config.gateways = {gid("10.0.0.254")};
    NeighbourCache cache(config, seconds(1), true);
    CHECK(cache.request(gid("10.0.1.2"), kStart) == NeighbourState::kPending);
    const Bytes request = next_frame(cache);
    REQUIRE(request.size() == 60);
    CHECK(proto::load_be32(request.data() + 38) == 0x0A0000FE);
    (void)cache.on_frame(arp(2, kOwn, kPeer, "10.0.0.254", "10.0.0.1"));
    CHECK(cache.lookup(gid("10.0.1.2")) == kPeer);
    CHECK(cache.lookup(gid("192.0.2.1")) == kPeer);
    CHECK(cache.request(gid("2001:db8::1"), kStart) == NeighbourState::kUnreachable);
  }
  SECTION("a gateway of each family") {
    config.gateways = {gid("fe80::254"), gid("10.0.0.254")};
    config.neighbours = {{gid("fe80::254"), kOther}, {gid("10.0.0.254"), kPeer}};
    NeighbourCache cache(config, seconds(1), true);
    CHECK(cache.lookup(gid("2001:db8::1")) == kOther);
    CHECK(cache.lookup(gid("192.0.2.1")) == kPeer);
  }
}

TEST_CASE("a full table gives up its oldest entry, and never a pending one while there is another") {
  NicConfig config = nic();
  config.addresses = {{gid("10.0.0.1"), 8}};
  NeighbourCache cache(config, seconds(1), true);
  const auto peer = [](std::uint32_t i) { return Gid::from_ipv4(0x0A010000 + i); };
  const auto text = [&](std::uint32_t i) { return to_text(peer(i)); };
  (void)cache.request(peer(0), kStart);  // stays pending
  for (std::uint32_t i = 1; i <= kMaxNeighbours; ++i) {
    CHECK(cache.request(peer(i), kStart) == NeighbourState::kPending);
    (void)cache.on_frame(arp(2, kOwn, kPeer, text(i).c_str(), "10.0.0.1"));
  }
  CHECK(cache.state(peer(0)) == NeighbourState::kPending);
  CHECK(cache.state(peer(1)) == NeighbourState::kUnknown);
  CHECK(cache.lookup(peer(2)) == kPeer);
  CHECK(cache.lookup(peer(kMaxNeighbours)) == kPeer);
  std::vector<NeighbourSnapshot> all;
  cache.snapshot({3}, all);
  CHECK(all.size() == kMaxNeighbours);
  CHECK(all.front().nic == NicId{3});
}

// ---- multicast groups ------------------------------------------------------------------------------

namespace {

// Sound, and what it says: 0x16 or 0x17 and the group; nothing else.
std::uint8_t igmp_type(const Bytes& frame, const char* destination, const char* group) {
  REQUIRE(frame.size() == 60);
  const proto::Ipv4Header ip = proto::Ipv4Header::parse(std::span{frame}.subspan<14, 20>());
  CHECK(ip.header_words == 6);
  CHECK(proto::internet_checksum(std::span{frame}.subspan(14, 24)) == 0);
  CHECK(proto::load_be32(frame.data() + 34) == 0x94040000);  // router alert
  CHECK(ip.time_to_live == 1);
  CHECK(ip.protocol == proto::kProtocolIgmp);
  CHECK(ip.total_length == 32);
  CHECK(ip.source == gid("10.0.0.1").ipv4());
  CHECK(ip.destination == gid(destination).ipv4());
  CHECK(proto::load_mac(frame.data()).bytes[0] == 0x01);
  CHECK(proto::internet_checksum(std::span{frame}.subspan(38, 8)) == 0);
  CHECK(proto::load_be32(frame.data() + 42) == gid(group).ipv4());
  return byte(frame, 38);
}

std::uint8_t mld_type(const Bytes& frame, const char* destination, const char* group) {
  REQUIRE(frame.size() == 14 + 40 + 8 + 24);
  const proto::Ipv6Header ip = proto::Ipv6Header::parse(std::span{frame}.subspan<14, 40>());
  CHECK(ip.next_header == 0);
  CHECK(ip.hop_limit == 1);
  CHECK(ip.source.bytes[0] == 0xFE);
  CHECK(ip.destination == gid(destination));
  CHECK(proto::load_be64(frame.data() + 54) == 0x3A00'0502'0000'0100);  // ICMPv6 follows; router alert, pad
  const std::uint32_t pseudo =
      proto::Ipv6Header::pseudo_header_sum(ip.source, ip.destination, 24, proto::kProtocolIcmpv6);
  CHECK(proto::internet_checksum(std::span{frame}.subspan(62, 24), pseudo) == 0);
  CHECK(proto::load_gid(frame.data() + 70) == gid(group));
  return byte(frame, 62);
}

Bytes igmp_query(std::uint32_t group, std::size_t options) {
  Bytes frame = ethernet({{0x01, 0x00, 0x5E, 0, 0, 1}}, kPeer, proto::kEthertypeIpv4, 20 + options + 8);
  proto::Ipv4Header ip;
  ip.header_words = static_cast<std::uint8_t>(5 + options / 4);
  ip.total_length = static_cast<std::uint16_t>(28 + options);
  ip.protocol = proto::kProtocolIgmp;
  ip.time_to_live = 1;
  ip.source = gid("10.0.0.2").ipv4();
  ip.destination = gid("224.0.0.1").ipv4();
  ip.emit(std::span{frame}.subspan<14, 20>());
  if (options != 0) proto::store_be32(frame.data() + 34, 0x94040000);
  proto::store_be16(frame.data() + 24, proto::internet_checksum(std::span{frame}.subspan(14, 20 + options)));
  const std::span<std::byte> igmp = std::span{frame}.subspan(34 + options);
  proto::store_u8(igmp.data(), 0x11);
  proto::store_u8(igmp.data() + 1, 100);
  proto::store_be32(igmp.data() + 4, group);
  proto::store_be16(igmp.data() + 2, proto::internet_checksum(igmp));
  return frame;
}

Bytes mld_query(const char* group) {
  Bytes frame = ethernet({{0x33, 0x33, 0, 0, 0, 1}}, kPeer, proto::kEthertypeIpv6, 40 + 8 + 24);
  proto::Ipv6Header ip;
  ip.payload_length = 32;
  ip.next_header = 0;
  ip.hop_limit = 1;
  ip.source = gid("fe80::9");
  ip.destination = gid("ff02::1");
  ip.emit(std::span{frame}.subspan<14, 40>());
  proto::store_be64(frame.data() + 54, 0x3A00'0502'0000'0100);
  const std::span<std::byte> mld = std::span{frame}.subspan(62);
  proto::store_u8(mld.data(), 130);
  proto::store_gid(mld.data() + 8, gid(group));
  const std::uint32_t pseudo =
      proto::Ipv6Header::pseudo_header_sum(ip.source, ip.destination, 24, proto::kProtocolIcmpv6);
  proto::store_be16(mld.data() + 2, proto::internet_checksum(mld, pseudo));
  return frame;
}

}  // namespace

TEST_CASE("a joined group is reported at once, once more, and when it is left") {
  NeighbourCache cache(nic(), seconds(1), true);
  SECTION("IPv4: IGMPv2") {
    cache.join(gid("239.1.2.3"), kStart);
    CHECK(cache.has_frame());
    CHECK(igmp_type(next_frame(cache), "239.1.2.3", "239.1.2.3") == 0x16);
    CHECK_FALSE(cache.has_frame());
    CHECK(cache.next_deadline() == kStart + seconds(1));
    cache.on_timers(kStart + seconds(1));
    CHECK(igmp_type(next_frame(cache), "239.1.2.3", "239.1.2.3") == 0x16);
    CHECK(cache.next_deadline() == kNever);
    cache.leave(gid("239.1.2.3"));
    CHECK(igmp_type(next_frame(cache), "224.0.0.2", "239.1.2.3") == 0x17);
  }
  SECTION("IPv6: MLDv1") {
    cache.join(gid("ff15::77"), kStart);
    CHECK(mld_type(next_frame(cache), "ff15::77", "ff15::77") == 131);
    cache.on_timers(kStart + seconds(1));
    CHECK(mld_type(next_frame(cache), "ff15::77", "ff15::77") == 131);
    cache.leave(gid("ff15::77"));
    CHECK(mld_type(next_frame(cache), "ff02::2", "ff15::77") == 132);
  }
  CHECK_FALSE(cache.has_frame());
  CHECK(next_frame(cache).empty());
  CHECK(cache.next_deadline() == kNever);
}

TEST_CASE("queries are answered for the groups they ask for") {
  NeighbourCache cache(nic(), seconds(1), true);
  for (const char* group : {"239.1.2.3", "239.1.2.4", "ff15::77", "ff15::78"})
    cache.join(gid(group), kStart);
  cache.on_timers(kStart + seconds(1));
  while (!next_frame(cache).empty())
    continue;
  const auto count = [&] {
    std::size_t frames = 0;
    while (!next_frame(cache).empty())
      ++frames;
    return frames;
  };
  for (const std::size_t options : {std::size_t{0}, std::size_t{4}}) {
    CHECK(cache.on_frame(igmp_query(0, options)) == DropReason::kAccepted);
    CHECK(count() == 2);
    CHECK(cache.on_frame(igmp_query(gid("239.1.2.4").ipv4(), options)) == DropReason::kAccepted);
    CHECK(igmp_type(next_frame(cache), "239.1.2.4", "239.1.2.4") == 0x16);
    CHECK(cache.on_frame(igmp_query(gid("239.9.9.9").ipv4(), options)) == DropReason::kAccepted);
  }
  CHECK(cache.on_frame(mld_query("::")) == DropReason::kAccepted);
  CHECK(count() == 2);
  CHECK(cache.on_frame(mld_query("ff15::78")) == DropReason::kAccepted);
  CHECK(mld_type(next_frame(cache), "ff15::78", "ff15::78") == 131);
  CHECK(count() == 0);

  Bytes damaged = igmp_query(0, 4);
  damaged.back() ^= std::byte{1};
  CHECK(cache.on_frame(damaged) == DropReason::kMalformed);
  damaged = mld_query("::");
  damaged.back() ^= std::byte{1};
  CHECK(cache.on_frame(damaged) == DropReason::kMalformed);
  for (const Bytes& whole : {igmp_query(0, 4), mld_query("::")}) {
    for (std::size_t length = 15; length < whole.size(); ++length) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
      CHECK(cache.on_frame(cut) == DropReason::kMalformed);
    }
  }
  CHECK(count() == 0);
}

TEST_CASE("groups that everyone is in are not reported, nor any where a kernel owns the addresses") {
  NeighbourCache cache(nic(), seconds(1), true);
  for (const char* group : {"224.0.0.1", "ff02::1", "ff01::5", "ff11::5"})
    cache.join(gid(group), kStart);
  CHECK_FALSE(cache.has_frame());
  NicConfig owned = nic();
  owned.answers_neighbours = false;
  NeighbourCache silent(owned, seconds(1), false);
  silent.join(gid("239.1.2.3"), kStart);
  silent.leave(gid("239.1.2.3"));
  CHECK_FALSE(silent.has_frame());
}

TEST_CASE("a group joined again before its leaving was sent stays") {
  NeighbourCache cache(nic(), seconds(1), true);
  cache.join(gid("239.1.2.3"), kStart);
  cache.leave(gid("239.1.2.3"));
  cache.join(gid("239.1.2.3"), kStart);
  CHECK(igmp_type(next_frame(cache), "239.1.2.3", "239.1.2.3") == 0x16);
  CHECK_FALSE(cache.has_frame());
  cache.on_frame(igmp_query(0, 4));
  CHECK(igmp_type(next_frame(cache), "239.1.2.3", "239.1.2.3") == 0x16);
}

TEST_CASE("of the groups that are left while nothing can be sent, a bounded number is told") {
  NeighbourCache cache(nic(), seconds(1), true);
  const auto group = [](std::uint32_t number) { return Gid::from_ipv4(0xEF010000 + number); };
  const std::uint32_t count = static_cast<std::uint32_t>(kMaxWaitingLeaves) + 10;
  for (std::uint32_t i = 0; i < count; ++i) {
    cache.join(group(i), kStart);
    cache.leave(group(i));
  }
  cache.join(group(count), kStart);  // others are reported all the same
  std::size_t leaves = 0, reports = 0;
  while (cache.has_frame()) {
    const std::uint8_t type = byte(next_frame(cache), 38);
    leaves += type == 0x17 ? 1U : 0U;
    reports += type == 0x16 ? 1U : 0U;
  }
  CHECK(leaves == kMaxWaitingLeaves);
  CHECK(reports == 1);
}

TEST_CASE(
    "where a kernel finds the way, every peer of the addresses' families has a made-up MAC and nobody is "
    "asked") {
  NicConfig config;
  config.mac = kOwn;
  config.addresses = {{gid("10.0.0.1"), 24}};
  config.answers_neighbours = false;
  config.kernel_finds_neighbours = true;
  NeighbourCache cache(config, seconds(1), false);
  const Gid near = gid("10.0.0.2"), far = gid("192.0.2.255");
  for (const Gid& peer : {near, far}) {
    CHECK(cache.lookup(peer) == made_up_mac(peer));
    CHECK(cache.state(peer) == NeighbourState::kKnown);
    CHECK(cache.request(peer, kStart) == NeighbourState::kKnown);
  }
  CHECK(cache.lookup(gid("10.0.0.1")) == kOwn);
  for (const char* none : {"fd00::2", "fe80::2", "0.0.0.0", "255.255.255.255", "10.0.0.255"}) {
    CHECK_FALSE(cache.lookup(gid(none)));
    CHECK(cache.request(gid(none), kStart) == NeighbourState::kUnreachable);
  }
  CHECK_FALSE(cache.has_frame());
  CHECK(cache.next_deadline() == kNever);

  config.addresses = {{gid("fd00::1"), 64}};
  NeighbourCache cache6(config, seconds(1), false);
  CHECK(cache6.lookup(gid("2001:db8::1")) == made_up_mac(gid("2001:db8::1")));
  CHECK_FALSE(cache6.lookup(gid("fe80::2")));
  CHECK_FALSE(cache6.lookup(near));
}

TEST_CASE("made-up MACs are those of single stations and differ") {
  CHECK(made_up_mac(gid("10.1.2.3")) == Mac{{0x02, 0x04, 10, 1, 2, 3}});
  CHECK(made_up_mac(gid("fd00::1")) == made_up_mac(gid("fd00::1")));
  CHECK_FALSE(made_up_mac(gid("fd00::1")) == made_up_mac(gid("fd00::2")));
  for (const char* one : {"0.0.0.1", "255.255.255.254", "fd00::1", "2001:db8::"})
    CHECK((made_up_mac(gid(one)).bytes[0] & 3) == 2);
}

TEST_CASE("own addresses that change: answered and asked from as they are now") {
  NicConfig config = nic();
  NeighbourCache cache(config, seconds(1), true);
  REQUIRE(cache.request(gid("10.0.0.2"), kStart) == NeighbourState::kPending);
  config.addresses = {{Gid{}, 128}, {gid("fd00::1"), 64}, {gid("10.0.1.1"), 24}};
  cache.change_addresses(config);
  CHECK(cache.state(gid("10.0.0.2")) == NeighbourState::kUnreachable);  // its prefix went
  (void)next_frame(cache);                                              // of 10.0.0.2, from the other address
  CHECK(cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.0.2", "10.0.0.1")) == DropReason::kNotForUs);
  CHECK(cache.on_frame(arp(1, kBroadcast, kPeer, "10.0.1.2", "10.0.1.1")) == DropReason::kAccepted);
  CHECK_FALSE(cache.lookup(Gid{}).has_value());

  SECTION("who cannot be asked for want of an address has failed") {
    config.addresses = {{Gid{}, 128}, {gid("fd00::1"), 64}, {Gid{}, 128}};
    (void)next_frame(cache);
    REQUIRE(cache.request(gid("10.0.1.7"), kStart) == NeighbourState::kPending);
    cache.change_addresses(config);
    CHECK_FALSE(cache.has_frame());
    CHECK(cache.state(gid("10.0.1.7")) == NeighbourState::kUnreachable);
    CHECK(cache.next_deadline() == kNever);
  }
}

TEST_CASE("who knows a station of the fabric follows its addresses") {
  NicConfig config = nic();
  const std::vector<Gid> before = {gid("fe80::2"), gid("10.0.0.2")},
                         now = {gid("fe80::2"), Gid{}, gid("10.0.0.3")};
  for (const Gid& one : before)
    config.neighbours.push_back({one, kPeer});
  NeighbourCache cache(config, seconds(1), true);
  cache.follow_station(kPeer, before, now);
  CHECK(cache.lookup(gid("10.0.0.3")) == kPeer);
  CHECK(cache.state(gid("10.0.0.2")) == NeighbourState::kUnknown);
  cache.follow_station(kPeer, now, before);
  CHECK(cache.lookup(gid("10.0.0.2")) == kPeer);
  CHECK(cache.state(gid("10.0.0.3")) == NeighbourState::kUnknown);

  NeighbourCache stranger(nic(), seconds(1), true);
  stranger.follow_station(kPeer, before, now);
  CHECK(stranger.state(gid("10.0.0.3")) == NeighbourState::kUnknown);
}
