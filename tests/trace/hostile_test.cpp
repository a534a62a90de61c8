// Files made to hurt: cut at any byte, bits flipped at random (seeded), empty, not captures at all. Each is
// read to an end or an error, without a crash, in bounded time.
#include "tests/trace/support.h"
#include "tools/trace/capture_loss.h"
#include "tools/trace/check_files.h"
#include "tools/trace/explain_files.h"

#include <catch2/catch.hpp>

#include <random>
#include <sstream>

namespace roci::tools::test {
namespace {

// Numbers that a seed gives, the same everywhere.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

int read_all(const std::string& path) {
  std::ostringstream out;
  std::ostringstream err;
  CheckOptions check;
  check.paths = {path};
  check.is_json = true;
  const int status = check_files(check, out, err);
  ExplainOptions explain;
  explain.paths = {path};
  const int explained = explain_files(explain, out, err);
  CHECK((explained == 2) == (status == kCheckUnreadable));
  (void)frames_lost_by_capture(path);
  return status;
}

TEST_CASE("a file cut at any byte") {
  const TemporaryFile file;
  for (const auto& path : all_captures(pcaps_folder())) {
    const Bytes whole = file_bytes(path);
    INFO(path);
    const std::size_t step = std::max<std::size_t>(1, whole.size() / 8);
    for (std::size_t size = 0; size < whole.size(); size += size < 100 ? 9 : step) {
      INFO("cut to " << size << " bytes");
      file.write(std::span{whole}.first(size));
      const int status = read_all(file.path());
      // The pcap header alone is an empty capture, and a cut between frames cannot be seen.
      if (size < 24) CHECK(status == kCheckUnreadable);
    }
  }
}

TEST_CASE("bits flipped at random") {
  const TemporaryFile file;
  std::uint32_t seed = 1;
  for (const auto& path : all_captures(pcaps_folder())) {
    const Bytes whole = file_bytes(path);
    // pcapng has more to damage, and only one capture has it.
    const int rounds = path.extension() == ".pcapng" ? 200 : 3;
    for (int round = 0; round < rounds; ++round, ++seed) {
      INFO(path << ", seed " << seed);
      Dice random{seed};
      Bytes damaged = whole;
      const std::size_t flips = 1 + random() % 64;
      for (std::size_t i = 0; i < flips; ++i) {
        damaged[random() % damaged.size()] ^= static_cast<std::byte>(1U << (random() % 8));
      }
      file.write(damaged);
      const int status = read_all(file.path());
      CHECK((status >= kCheckClean && status <= kCheckUnreadable));
    }
  }
}

// The frames themselves, so that no damage to the file's own headers ends the reading early.
TEST_CASE("frames damaged at random, with every link type") {
  std::uint32_t seed = 1;
  for (const auto& path : all_captures(pcaps_folder())) {
    Capture capture = load(path);
    for (const auto link :
         {proto::LinkType::kEthernet, proto::LinkType::kRawIp, proto::LinkType::kLinuxCooked,
          proto::LinkType::kInfiniBand, proto::LinkType::kLinuxCooked2}) {
      INFO(path << ", seed " << seed);
      Dice random{seed++};
      Capture damaged = capture;
      damaged.link = link;
      for (HeldFrame& frame : damaged.frames) {
        for (unsigned i = random() % 6; i > 0 && !frame.bytes.empty(); --i) {
          frame.bytes[random() % std::min<std::size_t>(frame.bytes.size(), 80)] =
              static_cast<std::byte>(random());
        }
        if (random() % 4 == 0) frame.bytes.resize(random() % (frame.bytes.size() + 1));
        if (random() % 16 == 0) frame.original_bytes = random();
        if (random() % 16 == 0) frame.time_ns = static_cast<std::int64_t>(random()) << 31;
      }
      (void)check(damaged);
    }
  }
}

TEST_CASE("more flows and requests than are remembered") {
  Limits limits;
  limits.flows = 16;
  limits.requests = 8;
  limits.answered = 4;
  limits.gaps = 2;
  limits.noted_packets = 2;
  limits.all_requests = 40;
  limits.findings = 10;
  Checker checker{limits};
  Dice random{7};
  std::uint64_t number = 0;
  for (int i = 0; i < 20'000; ++i) {
    proto::Packet packet = proto::make_packet(static_cast<proto::Opcode>(random() % 24));
    packet.bth.destination = proto::Qpn{random() % 64};
    packet.bth.psn = proto::Psn{random() % 2 == 0 ? random() % 64 : random()};
    packet.bth.pkey = proto::Pkey{static_cast<std::uint16_t>(random())};
    if (packet.reth) packet.reth->dma_length_bytes = random();
    packet.ipv4->source = random() % 2;
    packet.ipv4->destination = random() % 2;
    proto::complete(packet);
    Bytes bytes(proto::size_of(packet));
    REQUIRE(proto::emit(packet, bytes) == bytes.size());
    checker.on_frame({++number, static_cast<std::int64_t>(number) * 1'000, proto::LinkType::kEthernet, bytes,
                      bytes.size()});
  }
  checker.finish();
  CHECK(checker.findings().size() == 10);
  CHECK(checker.counts().findings > 10);
}

}  // namespace
}  // namespace roci::tools::test
