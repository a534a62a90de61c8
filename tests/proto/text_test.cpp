#include "tests/proto/support.h"

#include "proto/cm_text.h"
#include "proto/text.h"

#include <catch2/catch.hpp>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

std::string error_of(std::string_view line) {
  const auto packet = from_text(line);
  return packet ? "" : packet.error().message;
}

}  // namespace

TEST_CASE("a line says what the packet is, and no more") {
  const auto send =
      from_text("RC_SEND_ONLY from=10.0.0.1 to=10.0.0.2 dqpn=0x11 psn=100 a=1 len=4 data=01020304");
  REQUIRE(send);
  const Packet& packet = send->packet();
  CHECK(packet.bth.opcode == Opcode::kRcSendOnly);
  CHECK(packet.ipv4->source == 0x0A000001);
  CHECK(packet.bth.destination == Qpn{0x11});
  CHECK(packet.bth.psn == Psn{100});
  CHECK(packet.bth.ack_request);
  CHECK(Bytes(packet.payload.begin(), packet.payload.end()) == hex("01020304"));
  CHECK(icrc_matches(packet));
  CHECK(packet.ipv4->checksum == packet.ipv4->checksum_of());
  CHECK(to_text(packet) == "RC_SEND_ONLY from=10.0.0.1 to=10.0.0.2 dqpn=0x11 psn=100 a=1 len=4");
  CHECK(to_text(packet, TextDetail::kAll) ==
        "RC_SEND_ONLY from=10.0.0.1 to=10.0.0.2 dqpn=0x11 psn=100 a=1 len=4 data=01020304");
}

TEST_CASE("what is left out has its usual value") {
  const auto packet = from_text("RC_WRITE_ONLY_IMM va=0x1000 len=5 imm=7");
  REQUIRE(packet);
  CHECK(packet->packet().reth->virtual_address == 0x1000);
  CHECK(packet->packet().imm_dt->value == 7);
  CHECK(packet->packet().bth.pad_count == 3);
  CHECK(packet->packet().payload.size() == 5);
  CHECK(packet->packet().bth.pkey == kDefaultPkey);
}

TEST_CASE("lines of acknowledgements") {
  const std::string ends = " from=1.2.3.4 to=1.2.3.5 dqpn=0x12 psn=9 ";
  for (const char* syndrome : {"ack", "ack:5", "rnr:12", "nak:psn_sequence_error", "nak:invalid_request",
                               "nak:remote_access_error", "nak:remote_operational_error", "0x7f", "0x45"}) {
    const std::string line = "RC_ACKNOWLEDGE" + ends + "syn=" + syndrome + " msn=3";
    INFO(line);
    const auto packet = from_text(line);
    REQUIRE(packet);
    CHECK(to_text(packet->packet()) == line);
  }
}

TEST_CASE("what is computed shows when it is wrong") {
  auto packet = from_text("RC_SEND_ONLY len=3 icrc=0x1 ipsum=0x2 padcnt=0 pad=010203");
  REQUIRE(packet);
  CHECK(packet->packet().icrc == 1);
  CHECK(packet->packet().ipv4->checksum == 2);
  CHECK(to_text(packet->packet()) ==
        "RC_SEND_ONLY from=0.0.0.0 to=0.0.0.0 dqpn=0x0 psn=0 len=3 padcnt=0 pad=010203 ipsum=0x2 icrc=0x1");
}

TEST_CASE("text and packet are inverses for every opcode and framing") {
  Dice dice{10};
  for (unsigned value = 0; value < 256; ++value) {
    for (const Shape shape : kShapes) {
      const auto opcode = static_cast<Opcode>(value);
      const Bytes payload = dice.bytes(4 * dice.below(4) + (info(opcode).is_known ? dice.below(4) : 0));
      Packet packet = random_packet(dice, opcode, shape, payload);
      const Bytes trailer = dice.bytes(dice.below(3));
      packet.trailer = trailer;
      if (dice.one_in(4)) packet.icrc ^= 0x10;
      if (dice.one_in(4)) packet.pad = {std::byte{1}, std::byte{2}, std::byte{3}};
      if (dice.one_in(4) && packet.udp) packet.udp->length ^= 4;
      if (dice.one_in(4)) packet.bth.pad_count ^= 1;
      const std::string line = to_text(packet, TextDetail::kAll);
      INFO(line);
      const auto back = from_text(line);
      REQUIRE(back);
      CHECK(back->packet() == packet);
      CHECK(to_text(back->packet(), TextDetail::kAll) == line);
    }
  }
}

TEST_CASE("an owned packet keeps its bytes when it moves") {
  auto read = from_text("RC_SEND_ONLY data=0102 trailer=ff");
  REQUIRE(read);
  const OwnedPacket moved = std::move(read).value();
  CHECK(Bytes(moved.packet().payload.begin(), moved.packet().payload.end()) == hex("0102"));
  CHECK(Bytes(moved.packet().trailer.begin(), moved.packet().trailer.end()) == hex("ff"));
}

TEST_CASE("a line that is wrong is refused with the word at fault") {
  CHECK(error_of("") == "'' is no opcode");
  CHECK(error_of("RC_SEND") == "'RC_SEND' is no opcode");
  CHECK(error_of("RESERVED_0x4") == "'RESERVED_0x4' is no opcode");
  CHECK(error_of("RC_SEND_ONLY psn=0x1000000") == "psn=0x1000000 is no number from 0 to 16777215");
  CHECK(error_of("RC_SEND_ONLY psn=") == "psn= is no number from 0 to 16777215");
  CHECK(error_of("RC_SEND_ONLY va=1") == "va=1 does not belong to this packet, or stands twice");
  CHECK(error_of("RC_SEND_ONLY psn=1 psn=2") == "psn=2 does not belong to this packet, or stands twice");
  CHECK(error_of("RC_SEND_ONLY from=10.0.0.1 to=::1") == "to=::1 is no IPv4 address");
  CHECK(error_of("RC_SEND_ONLY link=token") == "link=token is no link type");
  CHECK(error_of("RC_SEND_ONLY len=2 data=00") == "data=00 is no hexadecimal string of that length");
  CHECK(error_of("RC_ACKNOWLEDGE syn=nak:tired") == "syn=nak:tired is no such value");
  CHECK(error_of("RC_SEND_ONLY len=70000") == "len=70000 is no number from 0 to 65535");
}

TEST_CASE("addresses as text") {
  const Mac mac{{0x52, 0x54, 0x00, 0x77, 0x00, 0x01}};
  CHECK(to_text(mac) == "52:54:00:77:00:01");
  CHECK(mac_from_text("52:54:00:77:00:01") == mac);
  for (const char* bad :
       {"", "52:54:00:77:00", "52:54:00:77:00:0g", "52-54-00-77-00-01", "52:54:00:77:00:01 "}) {
    CHECK_FALSE(mac_from_text(bad).has_value());
  }
  CHECK(to_text(Gid::from_ipv4(0x7F4D0001)) == "127.77.0.1");
  CHECK(gid_from_text("127.77.0.1") == Gid::from_ipv4(0x7F4D0001));
  CHECK(gid_from_text("::ffff:127.77.0.1") == Gid::from_ipv4(0x7F4D0001));
  const auto ula = gid_from_text("fd77::11");
  REQUIRE(ula);
  CHECK(to_text(*ula) == "fd77::11");
  for (const char* bad : {"", "1.2.3", "1.2.3.256", "fd77::1::2", "name"})
    CHECK_FALSE(gid_from_text(bad).has_value());
}

TEST_CASE("a CM message is told behind the fields, where reading ends") {
  CmRej rej;
  rej.remote_comm_id = CommunicationId{0x1234};
  rej.reason = CmRejectReason::kInvalidServiceId;
  std::array<std::byte, kMadBytes> payload{};
  write_cm({}, rej, payload);
  Packet packet = make_packet(Opcode::kUdSendOnly);
  packet.bth.destination = kQpnGsi;
  packet.deth->qkey = kQkeyGsi;
  packet.deth->source = kQpnGsi;
  packet.payload = payload;
  complete(packet);
  const std::string headers =
      "UD_SEND_ONLY from=0.0.0.0 to=0.0.0.0 dqpn=0x1 psn=0 sqpn=0x1 qkey=0x80010000 len=256";
  const std::string words =
      " # REJ: local id 0x00000000, remote id 0x00001234, about the REQ, reason 8: invalid service id";
  CHECK(to_text(packet) == headers + words);
  const auto back = from_text(to_text(packet, TextDetail::kAll));
  REQUIRE(back);
  CHECK(back->packet() == packet);
  CHECK(from_text(headers + " # a=1")->packet() == from_text(headers)->packet());

  packet.bth.destination = Qpn{2};
  CHECK(to_text(packet).find('#') == std::string::npos);
}

TEST_CASE("CM messages in words") {
  CmReq req;
  req.local_comm_id = CommunicationId{1};
  req.local_qpn = Qpn{0x11};
  req.starting_psn = Psn{0xABC};
  req.path_packet_payload_mtu = code_of(PathMtu::k1024);
  const std::string ends = "local id 0x00000001, QPN 0x11, starting PSN 0x000abc, ";
  CHECK(cm_details(req) == ends + "service id 0x0000000000000000, RC, path MTU 1024");
  req.service_id = service_id_of(CmPortSpace::kTcp, 7471);
  CHECK(cm_details(req) == ends + "service 7471/TCP, no IP CM header that can be read, RC, path MTU 1024");
  const IpCmHeader header{IpVersion::kIpv6, 40000, *gid_from_text("fd77::11"), *gid_from_text("fd77::12")};
  header.emit(std::span{req.private_data}.first<IpCmHeader::kSize>());
  req.transport_service_type = CmTransportService::kUc;
  req.path_packet_payload_mtu = 9;
  CHECK(cm_details(req) ==
        ends + "service 7471/TCP from [fd77::11]:40000 to fd77::12, UC, reserved path MTU code 9");
  req.service_id = service_id_of(static_cast<CmPortSpace>(0x0133), 1);
  CHECK(cm_details(req).find("service 1/protocol 0x33 from") != std::string::npos);
  req.service_id = service_id_of(CmPortSpace::kIb, 1);
  CHECK(cm_details(req).find("service 1/IB, UC") != std::string::npos);

  const std::string ids = "local id 0x00000000, remote id 0x00000000";
  CmMra mra;
  mra.message_mraed = CmMraed::kLap;
  mra.service_timeout = CmTimeout{20};
  CHECK(cm_details(mra) == ids + ", about the LAP, which will be answered within 4.29 s");
  CmRej rej;
  rej.message_rejected = CmRejected::kNone;
  rej.reason = static_cast<CmRejectReason>(999);
  CHECK(cm_details(rej) == ids + ", about no message, reason 999");
  CHECK(cm_details(CmRep{}) == ids + ", QPN 0x0, starting PSN 0x000000");
  CHECK(cm_details(CmRtu{}) == ids);
  CHECK(cm_details(CmDreq{}) == ids + ", remote QPN 0x0");
  CHECK(cm_details(CmDrep{}) == ids);
  CHECK(cm_details(CmSidrReq{}) == "request id 0x00000000, service id 0x0000000000000000");
  CmSidrRep sidr_rep;
  sidr_rep.qpn = Qpn{5};
  sidr_rep.qkey = Qkey{0x1234567};
  CHECK(cm_details(sidr_rep) == "request id 0x00000000, QPN 0x5, Q_Key 0x1234567");
  sidr_rep.status = CmSidrStatus::kRejected;
  CHECK(cm_details(sidr_rep) == "request id 0x00000000, refused with status 2");
  CHECK(cm_details(CmLap{}) == ids + ", remote QPN 0x0, path from :: to ::");
  CmApr apr;
  apr.ap_status = CmApStatus::kNotSupported;
  CHECK(cm_details(apr) == ids + ", status 2");
}
