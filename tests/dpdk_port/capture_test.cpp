// Captures and their file, read back by libpcap, which shares no code with us, and block by block for what it
// does not tell.
#include "dpdk_port/capture.h"

#include <pcap/pcap.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dpdk_port/pcapng.h"

using namespace roci;
using namespace roci::dpdk_port;
using emulator::DropReason;
using emulator::NicId;
using emulator::Time;

namespace {

constexpr NicId kNic0{0}, kNic1{1};

struct TemporaryFile {
  TemporaryFile() : fd(mkstemp(path)) { REQUIRE(fd >= 0); }
  ~TemporaryFile() { unlink(path); }
  char path[32] = "/tmp/roci-capture-XXXXXX";
  int fd;  // given to the capture
};

struct ReadPacket {
  std::vector<std::uint8_t> bytes;
  std::uint32_t original_bytes;
  std::int64_t time_ns;
};

std::vector<ReadPacket> read_by_libpcap(const char* path) {
  char error[PCAP_ERRBUF_SIZE] = {};
  pcap_t* file = pcap_open_offline_with_tstamp_precision(path, PCAP_TSTAMP_PRECISION_NANO, error);
  CAPTURE(error);
  REQUIRE(file != nullptr);
  CHECK(pcap_datalink(file) == DLT_EN10MB);
  std::vector<ReadPacket> packets;
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  int result = 0;
  while ((result = pcap_next_ex(file, &header, &bytes)) == 1) {
    packets.push_back({{bytes, bytes + header->caplen},
                       header->len,
                       header->ts.tv_sec * 1'000'000'000LL + header->ts.tv_usec});
  }
  CHECK(result == PCAP_ERROR_BREAK);  // the end, not an error
  pcap_close(file);
  return packets;
}

struct Block {
  std::uint32_t type;
  std::string body;
};

std::vector<Block> read_blocks(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<Block> blocks;
  for (std::size_t at = 0; at < text.size();) {
    std::uint32_t type = 0, length = 0, again = 0;
    REQUIRE(text.size() - at >= 12);
    std::memcpy(&type, text.data() + at, 4);
    std::memcpy(&length, text.data() + at + 4, 4);
    REQUIRE(length % 4 == 0);
    REQUIRE(length <= text.size() - at);
    std::memcpy(&again, text.data() + at + length - 4, 4);
    REQUIRE(again == length);
    blocks.push_back({type, text.substr(at + 8, length - 12)});
    at += length;
  }
  return blocks;
}

template <class T>
T word(const std::string& body, std::size_t offset) {
  T value{};
  REQUIRE(body.size() >= offset + sizeof value);
  std::memcpy(&value, body.data() + offset, sizeof value);
  return value;
}

// The value of an option of a block whose options start at `offset`; empty if it is not there.
std::string option(const std::string& body, std::size_t offset, std::uint16_t wanted) {
  while (offset + 4 <= body.size()) {
    const auto code = word<std::uint16_t>(body, offset), length = word<std::uint16_t>(body, offset + 2);
    if (code == 0) break;
    if (code == wanted) return body.substr(offset + 4, length);
    offset += 4U + (length + 3U) / 4U * 4U;
  }
  return {};
}

std::string packet_option(const Block& packet, std::uint16_t wanted) {
  return option(packet.body, 20 + (word<std::uint32_t>(packet.body, 12) + 3) / 4 * 4, wanted);
}

std::vector<Block> of_type(const std::vector<Block>& blocks, std::uint32_t type) {
  std::vector<Block> found;
  for (const auto& block : blocks) {
    if (block.type == type) found.push_back(block);
  }
  return found;
}

constexpr std::uint32_t kInterfaceBlock = 1, kStatisticsBlock = 5, kPacketBlock = 6;

std::vector<std::byte> frame(std::size_t length, std::uint8_t fill) {
  return std::vector<std::byte>(length, std::byte{fill});
}

CaptureHub::Config two_nics(std::uint32_t shards = 1) {
  CaptureHub::Config config;
  config.nic_names = {"rxe0", "rxe1"};
  config.port_names = {"fabric", "fabric"};
  config.shards = shards;
  config.ring_bytes = 65536;
  return config;
}

// Asks, and takes the answer.
template <class Answer>
struct Asked {
  void operator()(const Answer& value) const { *answer = value; }
  [[nodiscard]] Answer get(CaptureHub& hub) const {
    pollfd waiting{hub.answers_fd(), POLLIN, 0};
    while (!*answer) {
      REQUIRE(poll(&waiting, 1, 60'000) == 1);
      hub.run_answers();
    }
    return **answer;
  }
  std::shared_ptr<std::optional<Answer>> answer = std::make_shared<std::optional<Answer>>();
};

std::int64_t start(CaptureHub& hub, int fd, std::uint64_t nics, std::uint32_t snap_length_bytes,
                   bool truncate = false) {
  const Asked<std::int64_t> asked;
  hub.start(shim::UniqueFd(fd), {nics, snap_length_bytes, truncate}, asked);
  return asked.get(hub);
}

CaptureHub::Totals stop(CaptureHub& hub, std::int64_t id) {
  const Asked<CaptureHub::Totals> asked;
  hub.stop(id, asked);
  return asked.get(hub);
}

Time now() { return Time{std::chrono::steady_clock::now().time_since_epoch()}; }

}  // namespace

TEST_CASE("a capture is a pcapng file that libpcap reads, each frame once, in order") {
  TemporaryFile file;
  CaptureHub hub(two_nics());
  CHECK_FALSE(hub.tap(0).on());
  const auto id = start(hub, file.fd, 3, 0);
  REQUIRE(id > 0);
  REQUIRE(hub.tap(0).on());
  const Time first = now();
  hub.tap(0).record(frame(61, 1), kNic0, kNic1, fate_of(DropReason::kAccepted), first);
  hub.tap(0).record(frame(64, 2), kNic1, kNic0, fate_of(DropReason::kBadIcrc),
                    first + std::chrono::nanoseconds(7));
  hub.tap(0).record(frame(70, 3), kNic0, kWire, Fate::kNobody, first + std::chrono::nanoseconds(9));
  const auto totals = stop(hub, id);
  CHECK_FALSE(hub.tap(0).on());
  CHECK(totals.written == 3);
  CHECK(totals.lost == 0);

  const auto packets = read_by_libpcap(file.path);
  REQUIRE(packets.size() == 3);
  CHECK(packets[0].bytes == std::vector<std::uint8_t>(61, 1));
  CHECK(packets[1].bytes == std::vector<std::uint8_t>(64, 2));
  CHECK(packets[1].time_ns - packets[0].time_ns == 7);
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  CHECK(std::chrono::abs(wall - std::chrono::nanoseconds(packets[0].time_ns)) < std::chrono::minutes(1));

  const auto blocks = read_blocks(file.path);
  CHECK(totals.bytes ==
        static_cast<std::uint64_t>(std::ifstream(file.path, std::ios::ate | std::ios::binary).tellg()));
  const auto interfaces = of_type(blocks, kInterfaceBlock);
  REQUIRE(interfaces.size() == 2);
  CHECK(option(interfaces[0].body, 8, 2) == "rxe0");
  CHECK(option(interfaces[1].body, 8, 2) == "rxe1");
  CHECK(option(interfaces[0].body, 8, 9) == "\x09");
  const auto written = of_type(blocks, kPacketBlock);
  REQUIRE(written.size() == 3);
  CHECK(word<std::uint32_t>(written[0].body, 0) == 1);  // shown where it was received
  CHECK(packet_option(written[0], 2)[0] == 1);          // inbound
  CHECK(packet_option(written[0], 1).empty());
  CHECK(packet_option(written[1], 1) == "bad_icrc: wrong ICRC");
  CHECK(word<std::uint32_t>(written[2].body, 0) == 0);
  CHECK(packet_option(written[2], 2)[0] == 2);  // outbound
  CHECK_THAT(packet_option(written[2], 1), Catch::StartsWith("no_station: "));
  const auto statistics = of_type(blocks, kStatisticsBlock);
  REQUIRE(statistics.size() == 2);
  CHECK(word<std::uint64_t>(option(statistics[0].body, 12, 4), 0) == 2);
  CHECK(word<std::uint64_t>(option(statistics[1].body, 12, 4), 0) == 1);
  CHECK(word<std::uint64_t>(option(statistics[0].body, 12, 5), 0) == 0);
}

TEST_CASE("frames are cut to the snap length, but say how long they were") {
  TemporaryFile file;
  CaptureHub hub(two_nics());
  const auto id = start(hub, file.fd, 3, 96);
  hub.tap(0).record(frame(1000, 5), kNic0, kNic1, fate_of(DropReason::kAccepted), now());
  CHECK(stop(hub, id).written == 1);
  const auto packets = read_by_libpcap(file.path);
  REQUIRE(packets.size() == 1);
  CHECK(packets[0].bytes.size() == 96);
  CHECK(packets[0].original_bytes == 1000);
}

TEST_CASE("a capture of one NIC has its frames of both directions and no others'") {
  TemporaryFile file;
  CaptureHub hub(two_nics());
  const auto id = start(hub, file.fd, 1, 0);
  hub.tap(0).record(frame(60, 1), kNic0, kNic1, fate_of(DropReason::kAccepted), now());
  hub.tap(0).record(frame(60, 2), kNic1, kNic0, fate_of(DropReason::kAccepted), now());
  hub.tap(0).record(frame(60, 3), kNic1, kNic1, fate_of(DropReason::kAccepted), now());
  CHECK(stop(hub, id).written == 2);
  const auto written = of_type(read_blocks(file.path), kPacketBlock);
  REQUIRE(written.size() == 2);
  CHECK(packet_option(written[0], 2)[0] == 2);
  CHECK(packet_option(written[1], 2)[0] == 1);
}

TEST_CASE("what the ring cannot take is lost, and the file says how much") {
  TemporaryFile file;
  auto config = two_nics();
  config.write_interval = std::chrono::hours(1);  // the writer comes too late
  CaptureHub hub(config);
  const auto id = start(hub, file.fd, 3, 0);
  const auto big = frame(8000, 1);
  // Until the writer has found the ring empty once it may still take some.
  constexpr std::uint64_t kFrames = 4000;
  for (std::uint64_t i = 0; i < kFrames; ++i)
    hub.tap(0).record(big, kNic0, kNic1, fate_of(DropReason::kAccepted), now());
  const auto totals = stop(hub, id);
  CHECK(totals.written + totals.lost == kFrames);
  CHECK(totals.lost > 0);
  CHECK(read_by_libpcap(file.path).size() == totals.written);
  const auto statistics = of_type(read_blocks(file.path), kStatisticsBlock);
  REQUIRE(statistics.size() == 2);
  CHECK(word<std::uint64_t>(option(statistics[1].body, 12, 4), 0) == kFrames);
  CHECK(word<std::uint64_t>(option(statistics[1].body, 12, 5), 0) == totals.lost);
}

TEST_CASE("the frames of two shards are merged by time") {
  TemporaryFile file;
  CaptureHub hub(two_nics(2));
  const auto id = start(hub, file.fd, 3, 0);
  const Time start = now();
  for (int i = 0; i < 100; ++i) {  // shard 1 records first what happened later
    const Time time = start + std::chrono::nanoseconds(10 * i);
    hub.tap(1).record(frame(60, static_cast<std::uint8_t>(2 * i + 1)), kNic1, kNic0,
                      fate_of(DropReason::kAccepted), time + std::chrono::nanoseconds(5));
    hub.tap(1).set_horizon(time + std::chrono::nanoseconds(5));
    hub.tap(0).record(frame(60, static_cast<std::uint8_t>(2 * i)), kNic0, kNic1,
                      fate_of(DropReason::kAccepted), time);
    hub.tap(0).set_horizon(time);
  }
  CHECK(stop(hub, id).written == 200);
  const auto packets = read_by_libpcap(file.path);
  REQUIRE(packets.size() == 200);
  for (std::size_t i = 0; i < packets.size(); ++i)
    CHECK(packets[i].bytes[0] == static_cast<std::uint8_t>(i));
}

TEST_CASE("two captures at once, and a reader that left") {
  TemporaryFile file;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  signal(SIGPIPE, SIG_IGN);
  CaptureHub hub(two_nics());
  const auto whole = start(hub, file.fd, 3, 0);
  const auto piped = start(hub, ends[1], 3, 0);
  REQUIRE(whole > 0);
  REQUIRE(piped > 0);
  close(ends[0]);
  hub.tap(0).record(frame(60, 1), kNic0, kNic1, fate_of(DropReason::kAccepted), now());
  const auto lost = stop(hub, piped);
  CHECK(lost.written == 0);
  CHECK(lost.lost == 1);
  hub.tap(0).record(frame(60, 2), kNic0, kNic1, fate_of(DropReason::kAccepted), now());
  CHECK(stop(hub, whole).written == 2);
  CHECK(read_by_libpcap(file.path).size() == 2);
}

TEST_CASE("a socket that nobody reads from does not hold the captures") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const std::array<char, 4096> filler{};
  while (send(ends[1], filler.data(), filler.size(), MSG_DONTWAIT) > 0) {
  }
  CaptureHub::Config config = two_nics();
  config.write_patience = std::chrono::milliseconds(1);
  CaptureHub hub(std::move(config));
  CHECK(start(hub, ends[1], 3, 0) == -ETIMEDOUT);
  close(ends[0]);
}

void fill(int pipe_end) {
  const int flags = fcntl(pipe_end, F_GETFL);
  REQUIRE(fcntl(pipe_end, F_SETFL, flags | O_NONBLOCK) == 0);
  const std::array<char, 4096> filler{};
  while (write(pipe_end, filler.data(), filler.size()) > 0) {
  }
  REQUIRE(fcntl(pipe_end, F_SETFL, flags) == 0);
}

TEST_CASE("a pipe that is read late delays its capture's answer, and not who asks") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  fill(ends[1]);
  CaptureHub::Config config = two_nics();
  config.write_patience = std::chrono::minutes(1);
  CaptureHub hub(std::move(config));
  const Asked<std::int64_t> asked;
  hub.start(shim::UniqueFd(ends[1]), {3, 0, false}, asked);
  std::array<char, 65536> sink;
  REQUIRE(read(ends[0], sink.data(), sink.size()) > 0);
  CHECK(asked.get(hub) > 0);
  close(ends[0]);
}

TEST_CASE("a full pipe that cannot be opened anew is given up, too") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  REQUIRE(fchmod(ends[1], 0) == 0);
  fill(ends[1]);
  const uid_t user = geteuid();
  if (user == 0) REQUIRE(seteuid(65534) == 0);  // root may open everything
  {
    CaptureHub::Config config = two_nics();
    config.write_patience = std::chrono::milliseconds(1);
    CaptureHub hub(std::move(config));
    CHECK(start(hub, dup(ends[1]), 3, 0) == -ETIMEDOUT);
    std::array<char, 65536> sink;
    REQUIRE(read(ends[0], sink.data(), sink.size()) > 0);
    const auto id = start(hub, ends[1], 3, 0);
    REQUIRE(id > 0);
    hub.tap(0).record(frame(20'000, 1), kNic0, kNic1, fate_of(DropReason::kAccepted), now());
    CHECK(stop(hub, id).written == 1);
  }
  if (user == 0) REQUIRE(seteuid(0) == 0);
  close(ends[0]);
}

TEST_CASE("what ends a capture early is told") {
  CaptureHub hub(two_nics());
  CHECK(start(hub, open("/dev/full", O_WRONLY), 3, 0) == -ENOSPC);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  signal(SIGPIPE, SIG_IGN);
  const auto id = start(hub, ends[1], 3, 0);
  close(ends[0]);
  hub.tap(0).record(frame(60, 1), kNic0, kNic1, fate_of(DropReason::kAccepted), now());
  CHECK(stop(hub, id).error == EPIPE);
}

TEST_CASE("a file is emptied once its capture begins, if that is asked for") {
  TemporaryFile file;
  REQUIRE(write(file.fd, "before", 6) == 6);
  CaptureHub hub(two_nics());
  const auto content = [&] {
    std::ifstream in(file.path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  };
  CHECK(start(hub, dup(file.fd), 4, 0, true) == -EINVAL);
  CHECK(content() == "before");
  (void)stop(hub, start(hub, dup(file.fd), 3, 0, false));
  CHECK_THAT(content(), Catch::StartsWith("before\x0a\x0d\x0d\x0a"));
  REQUIRE(lseek(file.fd, 0, SEEK_SET) == 0);
  (void)stop(hub, start(hub, file.fd, 3, 0, true));
  CHECK_THAT(content(), Catch::StartsWith("\x0a\x0d\x0d\x0a"));
}

TEST_CASE("a capture that cannot be is refused") {
  CaptureHub hub(two_nics());
  TemporaryFile file;
  CHECK(start(hub, dup(file.fd), 4, 0) == -EINVAL);  // no such NIC
  CHECK(start(hub, -1, 3, 0) == -EBADF);
  CHECK(stop(hub, 77).written == 0);
  close(file.fd);
}
