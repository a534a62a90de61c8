// `roci explain`: what it says of captures whose story is known.
#include "tools/trace/narrator.h"
#include "tests/trace/support.h"
#include "tools/trace/explain_files.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <sstream>

namespace roci::tools::test {
namespace {

Lines tell(std::string_view name) {
  const Capture capture = load_own(name);
  Narrator narrator;
  Lines lines;
  std::uint64_t number = 0;
  for (const HeldFrame& frame : capture.frames) {
    lines.push_back(
        narrator.tell({++number, frame.time_ns, capture.link, frame.bytes, frame.original_bytes}).text);
  }
  return lines;
}

TEST_CASE("an ACK names the packet that it answers, a retransmission the one that it repeats") {
  // SEND, ACK, the ACK is lost behind the capture, SEND again, ACK again.
  const Lines lines = tell("rc-loss-ack");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "RC SEND, 50 bytes, PSN 0x001000, asks for an acknowledgement");
  CHECK(lines[1] == "RC ACK: everything up to PSN 0x001000 (packet 1) has arrived, 1 message done");
  CHECK(lines[2] ==
        "RC SEND, 50 bytes, PSN 0x001000, asks for an acknowledgement; sent again, first in packet 1");
  CHECK(lines[3] == "RC ACK: everything up to PSN 0x001000 (packet 3) has arrived, 1 message done");
}

TEST_CASE("RNR NAK, NAK, READ, ATOMIC and connection manager in words") {
  CHECK(tell("rc-rnr")[1] ==
        "RC RNR NAK: no receive is posted for PSN 0x001000 (packet 1), to be sent again after 0.64 ms, 0 "
        "messages done");
  CHECK(tell("rc-nak-rkey-read")[1] ==
        "RC NAK: PSN 0x001000 (packet 1) may not access that memory, 0 messages done");
  CHECK(tell("rc-loss-read-middle")[8] ==
        "RC READ response, middle packet, 1024 bytes, PSN 0x001002 (asked for by packet 8)");
  CHECK(tell("rc-atomic")[3] ==
        "RC ATOMIC response: the value was 0x1122334455667788, for PSN 0x001001 (packet 3), 2 messages done");
  CHECK(
      tell("cm-rping")[0] ==
      "UD connection manager: REQ, asks for a connection (local id 0x98e6701f, QPN 0xfa, starting PSN "
      "0x125b51, service 7174/TCP from 10.77.0.11:35518 to 10.77.0.12, RC, path MTU 4096), from QP 0x1 with "
      "Q_Key 0x80010000, PSN 0x000019");
  CHECK(
      tell("cm-reject")[1] ==
      "UD connection manager: REJ, refuses (local id 0x00000000, remote id 0x9ee6701f, about the REQ, reason "
      "8: invalid service id), from QP 0x1 with Q_Key 0x80010000, PSN 0x00001e");
  CHECK(tell("ud-mcast")[0].find("not RoCE") == 0);
}

TEST_CASE("a MAD of connection management that is cut or damaged") {
  const Capture capture = load_own("cm-rping");
  const HeldFrame& frame = capture.frames[0];
  Narrator narrator;
  const std::size_t payload_at = 14 + 20 + 8 + 12 + 8;
  auto cut = frame.bytes;
  cut.resize(payload_at + 200);
  CHECK(narrator.tell({1, frame.time_ns, capture.link, cut, frame.original_bytes})
            .text.find("connection manager: REQ, asks for a connection, from QP") != std::string::npos);
  auto packet = *proto::parse(frame.bytes, capture.link);
  std::vector<std::byte> mad(packet.payload.begin(), packet.payload.end());
  mad[2] = std::byte{1};
  packet.payload = mad;
  proto::complete(packet);
  std::vector<std::byte> damaged(proto::size_of(packet));
  REQUIRE(proto::emit(packet, damaged) == damaged.size());
  CHECK(narrator.tell({2, frame.time_ns, capture.link, damaged, damaged.size()})
            .text.find("connection manager: unreadable, the class version of the MAD is not 2, from QP") !=
        std::string::npos);
}

TEST_CASE("JSON is one object a line, with what is wrong") {
  std::ostringstream out;
  std::ostringstream err;
  ExplainOptions options;
  options.paths = {(pcaps_folder() / "raw-dropped.pcap").string()};
  options.is_json = true;
  CHECK(explain_files(options, out, err) == 0);
  std::istringstream in{out.str()};
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(in, line);)
    objects.push_back(nlohmann::json::parse(line));
  REQUIRE(objects.size() == 6);
  CHECK(objects[0]["opcode"] == "RC_SEND_ONLY");
  CHECK(objects[0]["psn"] == 0x1000);
  CHECK(objects[2]["violations"][0]["rule"] == "ICRC");
}

}  // namespace
}  // namespace roci::tools::test
