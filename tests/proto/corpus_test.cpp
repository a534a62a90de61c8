// The shared captures, read packet by packet: rxe's and those of hardware. Skips (exit status 77) where they
// are not.
#include "tests/catch_main.h"
#include "tests/proto/captures.h"

#include "proto/cm.h"
#include "proto/roce_view.h"
#include "proto/text.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

using namespace roci::proto;
using namespace roci::proto::test;

namespace {

constexpr int kSkipped = 77;

std::filesystem::path shared_folder() {
  for (const char* variable : {"ROCI_SHARED", "ROCI_SHARED_DEFAULT"}) {
    if (const char* value = std::getenv(variable)) return value;
  }
  return "../shared";
}

struct Count {
  std::size_t packets = 0;
  std::size_t wrong_icrc = 0;
  std::size_t unsound = 0;  // of those, by parse()
  std::size_t other_traffic = 0;
  std::size_t cm_messages = 0;
};

// What is sent to QP 1 is CM in all captures; nobody writes what we take for reserved.
void check_cm(const Packet& packet, Count& count) {
  if (packet.opcode_info().service != Service::kUd || packet.bth.destination != kQpnGsi) return;
  const auto mad = parse_cm(packet.payload);
  REQUIRE(mad.has_value());
  ++count.cm_messages;
  std::array<std::byte, kMadBytes> again{};
  write_cm(mad->header, mad->message, again);
  CHECK(std::equal(again.begin(), again.end(), packet.payload.begin()));
}

// Every property that must hold for any frame, and a count.
void check_frame(const Bytes& frame, LinkType link, Count& count) {
  const Dissection dissection = dissect(frame, link);
  if (link == LinkType::kEthernet) {
    RoceView view;
    const ParseError error = parse_roce(frame, view);
    // The receive path knows RoCE v2 only.
    CHECK(error == (dissection.packet.grh ? ParseError::kOtherEthertype : dissection.error));
    if (error == ParseError::kNone) {
      CHECK(view.bth == dissection.packet.bth);
      CHECK(icrc_of(view) == icrc_of(dissection.packet));
    }
  }
  if (is_other_traffic(dissection.error)) {
    ++count.other_traffic;
    return;
  }
  ++count.packets;
  if (dissection.error != ParseError::kNone) ++count.unsound;
  REQUIRE(dissection.is_complete);
  if (!icrc_matches(dissection.packet)) ++count.wrong_icrc;
  CHECK(frame_of(dissection.packet) == frame);
  const std::string line = to_text(dissection.packet, TextDetail::kAll);
  INFO(line);
  const auto back = from_text(line);
  REQUIRE(back);
  CHECK(back->packet() == dissection.packet);
  CHECK(frame_of(back->packet()) == frame);
  check_cm(dissection.packet, count);
}

Count check_folder(const std::filesystem::path& folder, const std::map<std::string, std::size_t>& damaged) {
  Count total;
  for (const auto& path : captures_in(folder)) {
    INFO(path.string());
    const Capture capture = read_capture(path);
    Count count;
    for (std::size_t i = 0; i < capture.frames.size(); ++i) {
      INFO("packet " << i + 1);
      check_frame(capture.frames[i], capture.link, count);
    }
    const auto found = damaged.find(path.filename().string());
    CHECK(count.wrong_icrc == (found == damaged.end() ? 0 : found->second));
    total.packets += count.packets;
    total.wrong_icrc += count.wrong_icrc;
    total.unsound += count.unsound;
    total.other_traffic += count.other_traffic;
    total.cm_messages += count.cm_messages;
  }
  return total;
}

}  // namespace

TEST_CASE(
    "rxe captures: parsed, the same bytes again, text and back, ICRC right but where INDEX.md says damaged") {
  const Count count =
      check_folder(shared_folder() / "pcaps" / "rxe", {{"rc-corrupt.pcap", 6}, {"raw-dropped.pcap", 1}});
  CHECK(count.packets == 2097 + 6);  // in pcap and in pcapng
  CHECK(count.unsound == 2);         // a reserved opcode, and TVer 3
  CHECK(count.wrong_icrc == 7);
  CHECK(count.cm_messages == 43);
  std::printf("rxe: %zu packets, %zu unsound, %zu with a wrong ICRC, %zu frames of other traffic\n",
              count.packets, count.unsound, count.wrong_icrc, count.other_traffic);
}

TEST_CASE("public captures: hardware, RoCE v1, VLAN, IPv6") {
  const Count count =
      check_folder(shared_folder() / "pcaps" / "public", {{"scapy_roce_uts_vectors.pcap", 1}});
  CHECK(count.packets == 33);
  CHECK(count.unsound == 0);
  CHECK(count.other_traffic == 0);
  CHECK(count.cm_messages == 7);
  std::printf("public: %zu packets, %zu with a wrong ICRC\n", count.packets, count.wrong_icrc);
}

TEST_CASE("ICRC vectors of hardware and of a vendor's documentation") {
  const auto cnps = [](const char* name) {
    const Capture capture = read_capture(shared_folder() / "pcaps" / "public" / name);
    std::vector<Bytes> icrcs;
    for (const Bytes& frame : capture.frames) {
      const auto packet = parse(frame, capture.link);
      REQUIRE(packet);
      if (packet->bth.opcode != Opcode::kCnp) continue;
      const std::uint32_t icrc = icrc_of(*packet);
      Bytes& stored = icrcs.emplace_back();
      for (unsigned shift = 0; shift < 32; shift += 8)
        stored.push_back(static_cast<std::byte>(icrc >> shift));
    }
    return icrcs;
  };
  const std::vector<Bytes> vectors = cnps("scapy_roce_uts_vectors.pcap");
  CHECK(std::count(vectors.begin(), vectors.end(), hex("82 fd 00 2a")) == 1);  // a ConnectX-4 Lx CNP
  CHECK(cnps("cnp_example_corrected_icrc.pcap") == std::vector<Bytes>{hex("da fc 1b ef")});
}

int main(int argc, char** argv) {
  if (!std::filesystem::is_directory(shared_folder() / "pcaps" / "rxe")) {
    std::printf("skipped: no captures in %s; set ROCI_SHARED to the folder that holds pcaps/\n",
                shared_folder().c_str());
    return kSkipped;
  }
  return run_tests(argc, argv);
}
