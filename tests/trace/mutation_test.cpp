// Each rule fires on a clean capture that was changed in one place, it and what follows from it, and nothing
// else.
#include "proto/icrc.h"
#include "tests/trace/support.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace roci::tools::test {
namespace {

using proto::Opcode;
using proto::Packet;

// Behind Ethernet, IPv4 and UDP headers.
constexpr std::size_t kIpAt = 14;
constexpr std::size_t kBthAt = kIpAt + 20 + 8;

// The right ICRC for a frame that cannot be parsed any more.
void seal_unread(Bytes& bytes) {
  const std::size_t icrc_at = bytes.size() - proto::Icrc::kSize;
  const proto::Icrc icrc = proto::Icrc::over_ipv4(std::span{bytes}.subspan(kIpAt, icrc_at - kIpAt));
  icrc.store(std::span{bytes}.subspan(icrc_at).first<proto::Icrc::kSize>());
}

struct Mutation {
  const char* name;
  const char* capture;  // a clean one of pcaps/
  std::function<void(Capture&)> apply;
  Lines expected;
};

// rc-send-only:  1 SEND 64 B, 2 ACK, 3 SEND 256 B, 4 ACK, 5 SEND 1024 B, 6 ACK.
// rc-send-multi: 1 F 2 L 3 ACK, 4 F 5 M 6 L 7 ACK, 8 F 9 M 10 M 11 M 12 L 13 ACK; path MTU 1024.
// rc-send-pad:   SENDs of 0, 1, 2, 3, 4, 5, 7 bytes, each with its ACK.
// rc-write-multi: 1 F 2 L 3 ACK, 4 F 5 M 6 M 7 M 8 L 9 ACK; 1500 and 4097 bytes.
// rc-read-multi: 1 READ 2 F 3 L, 4 READ 5 F 6 L, 7 READ 8 F 9 M 10 M 11 M 12 L; 1025, 2048, 5000 bytes.
// rc-loss-ack:   1 SEND, 2 ACK, 3 SEND again, 4 ACK.
// uc-send:       3 only, 4 F 5 M 6 L ... of 0, 3, 1024, 3000, 3001 bytes.
// cm-rping:      1 REQ, 2 REP, 3 RTU, ...
const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> list = {
      {"IP length too long for the frame",
       "rc-send-only",
       [](Capture& c) {
         c.spoil(3, [](Packet& p) {
           p.ipv4->total_length = static_cast<std::uint16_t>(p.ipv4->total_length + 8);
         });
       },
       {"3 FRAME.LENGTH"}},
      {"IP length shorter than UDP says",
       "rc-send-only",
       [](Capture& c) {
         c.spoil_and_seal(3, [](Packet& p) {
           p.ipv4->total_length = static_cast<std::uint16_t>(p.ipv4->total_length - 4);
         });
       },
       {"3 FRAME.LENGTH"}},
      {"UDP length too short",
       "rc-send-only",
       [](Capture& c) {
         c.spoil_and_seal(3,
                          [](Packet& p) { p.udp->length = static_cast<std::uint16_t>(p.udp->length - 4); });
       },
       {"3 FRAME.LENGTH"}},
      {"IPv6 length",
       "rc-ipv6",
       [](Capture& c) {
         c.spoil(1, [](Packet& p) {
           p.ipv6->payload_length = static_cast<std::uint16_t>(p.ipv6->payload_length - 4);
         });
       },
       {"1 FRAME.LENGTH"}},
      {"IP version", "rc-send-only", [](Capture& c) { c.poke(3, kIpAt, 0x55); }, {"3 FRAME.VERSION"}},
      {"IPv4 options",
       "rc-send-only",
       [](Capture& c) {
         Bytes& bytes = c.at(3).bytes;
         bytes.insert(bytes.begin() + kIpAt + 20, 4, std::byte{1});
         bytes[kIpAt] = std::byte{0x46};
         bytes[kIpAt + 2] = std::byte{static_cast<std::uint8_t>((bytes.size() - kIpAt) >> 8)};
         bytes[kIpAt + 3] = std::byte{static_cast<std::uint8_t>(bytes.size() - kIpAt)};
         c.at(3).original_bytes = bytes.size();
       },
       {"3 FRAME.OPTIONS"}},
      {"DF clear",
       "rc-send-only",
       [](Capture& c) { c.change(3, [](Packet& p) { p.ipv4->dont_fragment = false; }); },
       {"3 FRAME.DF"}},
      {"more fragments",
       "rc-send-only",
       [](Capture& c) { c.change(3, [](Packet& p) { p.ipv4->more_fragments = true; }); },
       {"3 FRAME.FRAGMENT"}},
      {"IPv4 checksum",
       "rc-send-only",
       [](Capture& c) { c.spoil(3, [](Packet& p) { p.ipv4->checksum ^= 1; }); },
       {"3 FRAME.IP_CHECKSUM"}},
      {"UDP checksum",
       "rc-send-only",
       [](Capture& c) { c.spoil(3, [](Packet& p) { p.udp->checksum = 0x1234; }); },
       {"3 FRAME.UDP_CHECKSUM"}},
      {"ICRC of a request",
       "rc-send-multi",
       [](Capture& c) { c.spoil(5, [](Packet& p) { p.icrc ^= 0x100; }); },
       {"5 ICRC"}},
      {"ICRC of an ACK",
       "rc-send-only",
       [](Capture& c) { c.spoil(4, [](Packet& p) { p.icrc ^= 1; }); },
       {"4 ICRC"}},
      {"a payload bit",
       "rc-send-multi",
       [](Capture& c) {
         c.poke(9, kBthAt + 100,
                static_cast<std::uint8_t>(std::to_integer<unsigned>(c.at(9).bytes[kBthAt + 100]) ^ 4U));
       },
       {"9 ICRC"}},
      {"TVer",
       "rc-send-multi",
       [](Capture& c) { c.change(5, [](Packet& p) { p.bth.transport_version = 1; }); },
       {"5 BTH.TVER"}},
      {"Resv6",
       "rc-send-only",
       [](Capture& c) { c.change(1, [](Packet& p) { p.bth.reserved6 = 1; }); },
       {"1 BTH.RESERVED"}},
      {"Resv7",
       "rc-send-only",
       [](Capture& c) { c.change(4, [](Packet& p) { p.bth.reserved7 = 0x40; }); },
       {"4 BTH.RESERVED"}},
      {"P_Key of one request",
       "rc-send-multi",
       [](Capture& c) { c.change(9, [](Packet& p) { p.bth.pkey = proto::Pkey{0x9234}; }); },
       {"9 PKEY"}},
      {"P_Key of the only request",
       "rc-send-inv-unknown",
       [](Capture& c) { c.change(1, [](Packet& p) { p.bth.pkey = proto::Pkey{0x9234}; }); },
       {"1 PKEY"}},
      {"P_Key of an ACK",
       "rc-send-only",
       [](Capture& c) { c.change(4, [](Packet& p) { p.bth.pkey = proto::Pkey{0x8001}; }); },
       {"4 PKEY"}},
      {"invalid P_Key",
       "ud-send",
       [](Capture& c) { c.change(2, [](Packet& p) { p.bth.pkey = proto::Pkey{0x8000}; }); },
       {"2 PKEY"}},
      {"only limited members",
       "rc-send-only",
       [](Capture& c) {
         for (std::uint64_t n = 1; n <= 6; ++n)
           c.change(n, [](Packet& p) { p.bth.pkey = proto::Pkey{0x7FFF}; });
       },
       {"1 PKEY", "2 PKEY"}},
      {"reserved opcode",
       "rc-send-only",
       [](Capture& c) {
         c.poke(3, kBthAt, 0x1B);
         c.spoil_and_seal(3, [](Packet&) {});
       },
       {"3 OPCODE.KNOWN"}},
      {"opcode of UC's space that UC has not",
       "uc-send",
       [](Capture& c) {
         c.poke(2, kBthAt, 0x2C);
         c.spoil_and_seal(2, [](Packet&) {});
       },
       {"2 OPCODE.KNOWN"}},
      {"UC packet to an RC QP",
       "rc-send-only",
       [](Capture& c) { c.change(3, [](Packet& p) { p.bth.opcode = Opcode::kUcSendOnly; }); },
       {"3 OPCODE.SERVICE"}},
      {"RC packet to a UC QP",
       "uc-send",
       [](Capture& c) { c.change(2, [](Packet& p) { p.bth.opcode = Opcode::kRcSendOnly; }); },
       {"2 OPCODE.SERVICE"}},
      {"RC packet to QP1",
       "rc-send-only",
       [](Capture& c) {
         c.change(1, [](Packet& p) {
           p.bth.destination = proto::kQpnGsi;
           p.payload = {};
         });
       },
       {"1 OPCODE.SERVICE", "1 LENGTH.MAD"}},
      {"FIRST in a message",
       "rc-send-multi",
       [](Capture& c) { c.change(9, [](Packet& p) { p.bth.opcode = Opcode::kRcSendFirst; }); },
       {"9 OPCODE.SEQUENCE"}},
      {"MIDDLE without FIRST",
       "rc-send-multi",
       [](Capture& c) { c.change(8, [](Packet& p) { p.bth.opcode = Opcode::kRcSendMiddle; }); },
       {"8 OPCODE.SEQUENCE"}},
      {"ONLY in a message",
       "uc-send",
       [](Capture& c) { c.change(5, [](Packet& p) { p.bth.opcode = Opcode::kUcSendOnly; }); },
       {"5 OPCODE.SEQUENCE", "6 OPCODE.SEQUENCE"}},
      {"another operation within a message",
       "rc-send-multi",
       [](Capture& c) { c.change(9, [](Packet& p) { p.bth.opcode = Opcode::kRcWriteMiddle; }); },
       {"9 OPCODE.SEQUENCE", "10 OPCODE.SEQUENCE"}},
      {"no room for the RETH",
       "rc-write-only",
       [](Capture& c) {
         c.change(1, [](Packet& p) {
           p.bth.opcode = Opcode::kRcSendOnly;
           p.reth.reset();
           p.payload = p.payload.first(8);
         });
         c.poke(1, kBthAt, 0x0A);
         seal_unread(c.at(1).bytes);
       },
       {"1 LENGTH.HEADERS"}},
      {"an ACK with payload",
       "rc-send-only",
       [](Capture& c) {
         static constexpr std::array<std::byte, 4> kFour{};
         c.change(4, [](Packet& p) { p.payload = kFour; });
       },
       {"4 LENGTH.PAYLOAD"}},
      {"an empty LAST",
       "rc-send-multi",
       [](Capture& c) { c.change(2, [](Packet& p) { p.payload = {}; }); },
       {"2 LENGTH.PAYLOAD"}},
      {"a MIDDLE shorter than the path MTU",
       "rc-send-multi",
       [](Capture& c) { c.change(9, [](Packet& p) { p.payload = p.payload.first(512); }); },
       {"9 LENGTH.MTU"}},
      {"a FIRST that is no path MTU",
       "rc-send-multi",
       [](Capture& c) { c.change(4, [](Packet& p) { p.payload = p.payload.first(1000); }); },
       {"4 LENGTH.MTU"}},
      {"an ONLY longer than the path MTU",
       "rc-mtu-256",
       [](Capture& c) {
         static constexpr std::array<std::byte, 300> kLong{};
         c.change(4, [](Packet& p) { p.payload = kLong; });
       },
       {"4 LENGTH.MTU"}},
      {"a datagram longer than any path MTU",
       "ud-send",
       [](Capture& c) {
         static constexpr std::array<std::byte, 4100> kLong{};
         c.change(1, [](Packet& p) { p.payload = kLong; });
       },
       {"1 LENGTH.MTU"}},
      {"a WRITE's RETH",
       "rc-write-only",
       [](Capture& c) { c.change(1, [](Packet& p) { p.reth->dma_length_bytes += 1; }); },
       {"1 LENGTH.WRITE"}},
      {"a WRITE with more than announced",
       "rc-write-multi",
       [](Capture& c) { c.change(4, [](Packet& p) { p.reth->dma_length_bytes = 3000; }); },
       {"6 LENGTH.WRITE"}},
      {"a DMA length above 2^31",
       "rc-read-only",
       [](Capture& c) { c.change(1, [](Packet& p) { p.reth->dma_length_bytes = 0x80000001; }); },
       {"1 LENGTH.READ", "2 LENGTH.READ"}},
      {"a short READ response",
       "rc-read-multi",
       [](Capture& c) { c.change(12, [](Packet& p) { p.payload = p.payload.first(500); }); },
       {"12 LENGTH.READ"}},
      {"a READ response that goes on too long",
       "rc-read-multi",
       [](Capture& c) { c.change(1, [](Packet& p) { p.reth->dma_length_bytes = 1024; }); },
       {"2 LENGTH.READ"}},
      {"a short MAD",
       "cm-rping",
       [](Capture& c) { c.change(2, [](Packet& p) { p.payload = p.payload.first(252); }); },
       {"2 LENGTH.MAD"}},
      {"pad in a packet without payload",
       "rc-read-multi",
       [](Capture& c) {
         c.poke(1, kBthAt + 1,
                static_cast<std::uint8_t>(std::to_integer<unsigned>(c.at(1).bytes[kBthAt + 1]) | 0x10U));
         seal_unread(c.at(1).bytes);
       },
       {"1 PAD.COUNT"}},
      {"pad in a FIRST",
       "rc-send-multi",
       [](Capture& c) {
         c.spoil_and_seal(4, [](Packet& p) {
           p.bth.pad_count = 1;
           p.pad[0] = p.payload.back();
           p.payload = p.payload.first(1023);
         });
       },
       {"4 PAD.COUNT"}},
      {"no pad where one is needed",
       "rc-send-pad",
       [](Capture& c) {
         c.change(3, [](Packet& p) {
           p.bth.pad_count = 0;
           p.ipv4->total_length = static_cast<std::uint16_t>(p.ipv4->total_length - 3);
         });
         c.spoil(3, [](Packet& p) {
           p.bth.pad_count = 0;
           p.ipv4->total_length = static_cast<std::uint16_t>(p.ipv4->total_length - 3);
           p.udp->length = static_cast<std::uint16_t>(p.udp->length - 3);
         });
         c.spoil_and_seal(3, [](Packet&) {});
       },
       {"3 PAD.COUNT"}},
      {"a pad byte that is not 0",
       "rc-send-pad",
       [](Capture& c) { c.spoil_and_seal(3, [](Packet& p) { p.pad[1] = std::byte{7}; }); },
       {"3 PAD.ZERO"}},
      {"a misaligned ATOMIC",
       "rc-atomic",
       [](Capture& c) { c.change(5, [](Packet& p) { p.atomic_eth->virtual_address += 1; }); },
       {"5 ATOMIC.ALIGNMENT"}},
      {"a request that was never sent",
       "rc-send-multi",
       [](Capture& c) { c.remove(9); },
       {"9 PSN.CONTINUITY"}},
      {"a PSN too far on, with its ACK",
       "rc-send-only",
       [](Capture& c) {
         for (std::uint64_t n = 3; n <= 6; ++n)
           c.change(n, [](Packet& p) { p.bth.psn = p.bth.psn.plus(5); });
       },
       {"3 PSN.CONTINUITY"}},
      {"a retransmission that is another request",
       "rc-loss-ack",
       [](Capture& c) {
         c.change(3, [](Packet& p) {
           p.bth.opcode = Opcode::kRcWriteOnly;
           p.reth.emplace().dma_length_bytes = static_cast<std::uint32_t>(p.payload.size());
         });
       },
       {"3 PSN.REUSE"}},
      {"AckReq without an answer",
       "rc-send-only",
       [](Capture& c) {
         // The last request comes a second later, and nothing was acknowledged after the first.
         c.remove(6);
         c.remove(4);
         c.at(4).time_ns += 1'000'000'000;
       },
       {"3 ACK.MISSING"}},
      {"a READ without a response",
       "rc-mixed",
       [](Capture& c) {
         // All responses to READ and ATOMIC are gone, and a second later there is another request.
         HeldFrame another = c.at(6);
         another.time_ns = c.frames.back().time_ns + 1'000'000'000;
         for (std::uint64_t n = c.frames.size(); n > 0; --n) {
           const auto operation = proto::dissect(c.at(n).bytes, c.link).packet.opcode_info().operation;
           if (operation == proto::Operation::kReadResponse ||
               operation == proto::Operation::kAtomicAcknowledge) {
             c.remove(n);
           }
         }
         c.frames.push_back(another);
         c.change(c.frames.size(), [](Packet& p) { p.bth.psn = p.bth.psn.plus(1); });
       },
       {"4 ACK.MISSING", "5 ACK.MISSING"}},
  };
  return list;
}

TEST_CASE("a mutated capture gives the finding that was put in, and no other") {
  for (const Mutation& mutation : mutations()) {
    INFO(mutation.name << " in " << mutation.capture);
    REQUIRE(expectation(mutation.capture).empty());
    Capture capture = load_own(mutation.capture);
    mutation.apply(capture);
    CHECK(check(capture) == mutation.expected);
  }
}

TEST_CASE("every rule is shown to fire") {
  std::set<std::string> fired;
  for (const Mutation& mutation : mutations()) {
    for (const std::string& line : mutation.expected)
      fired.insert(line.substr(line.find(' ') + 1));
  }
  for (const RuleInfo& rule : kRules) {
    INFO(rule.id);
    CHECK(fired.count(std::string{rule.id}) == 1);
  }
}

// What must not fire though it looks like it.
TEST_CASE("legal peculiarities are no findings") {
  const std::vector<Mutation> legal = {
      {"MigReq, ECN, TTL",
       "rc-send-only",
       [](Capture& c) {
         c.change(3, [](Packet& p) {
           p.bth.migration_request = !p.bth.migration_request;
           p.ipv4->traffic_class = 3;
           p.ipv4->time_to_live = 1;
         });
       },
       {}},
      {"a limited member on one side",
       "rc-send-only",
       [](Capture& c) {
         for (const std::uint64_t n : {1U, 3U, 5U})
           c.change(n, [](Packet& p) { p.bth.pkey = proto::Pkey{0x7FFF}; });
       },
       {}},
      {"another partition",
       "rc-send-only",
       [](Capture& c) {
         for (std::uint64_t n = 1; n <= 6; ++n)
           c.change(n, [](Packet& p) { p.bth.pkey = proto::Pkey{0x8042}; });
       },
       {}},
      {"a coalesced ACK",
       "rc-send-only",
       [](Capture& c) {
         c.remove(4);
         c.remove(2);
       },
       {}},
      {"a checksum left to the NIC",
       "rc-send-only",
       [](Capture& c) {
         c.spoil(3, [](Packet& p) {
           p.ipv4->checksum = 0;
           // The sum over 10.77.0.11, 10.77.0.12, protocol and length.
           std::uint32_t sum = 2U * 0x0A4D + 11 + 12 + 17 + p.udp->length;
           sum = (sum & 0xFFFF) + (sum >> 16);
           p.udp->checksum = static_cast<std::uint16_t>(sum);
         });
       },
       {}},
      {"the same QPN in another connection",
       "rc-send-only",
       [](Capture& c) {
         for (std::uint64_t n = 3; n <= 6; ++n)
           c.change(n, [](Packet& p) { p.bth.psn = p.bth.psn.plus(1'000'000); });
       },
       {}},
  };
  for (const Mutation& mutation : legal) {
    INFO(mutation.name << " in " << mutation.capture);
    Capture capture = load_own(mutation.capture);
    mutation.apply(capture);
    CHECK(check(capture) == mutation.expected);
  }
}

}  // namespace
}  // namespace roci::tools::test
