// The server as clients meet it: who may connect, what becomes of malformed and hostile messages, and that
// nothing is left of a client that ends, in whatever way.
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>

#include "proto/text.h"
#include "tests/verbs_shim/server_fixture.h"
#include "verbs_shim/server/context_memory.h"
#include "verbs_shim/server/show.h"

namespace roci::shim {
namespace {

using nlohmann::json;

json show(ServerFixture& f) {
  TestClient client = f.connect();
  return json::parse(client.admin(R"({"op":"show"})").text());
}
constexpr const char* kObjectTables[] = {"contexts", "qps", "cqs", "srqs", "mrs", "mws", "ahs"};
bool no_objects(ServerFixture& f) {
  const json all = show(f);
  return std::all_of(std::begin(kObjectTables), std::end(kObjectTables),
                     [&](const char* table) { return all.at(table).empty(); });
}

std::uint32_t alloc_pd(TestClient& client) {
  const std::array<std::uint64_t, 1> core{};
  const TestReply reply =
      client.uverbs(client.legacy(IB_USER_VERBS_CMD_ALLOC_PD, core, sizeof(ib_uverbs_alloc_pd_resp)));
  REQUIRE(reply.error == 0);
  return reply.response<ib_uverbs_alloc_pd_resp>().pd_handle;
}

TestReply reg_mr(TestClient& client, std::uint32_t pd, const void* at, std::uint64_t length,
                 std::uint32_t access) {
  ib_uverbs_reg_mr core{};
  core.start = core.hca_va = reinterpret_cast<std::uintptr_t>(at);
  core.length = length;
  core.pd_handle = pd;
  core.access_flags = access;
  return client.uverbs(client.legacy(IB_USER_VERBS_CMD_REG_MR, core, sizeof(ib_uverbs_reg_mr_resp)));
}

// ---- the socket --------------------------------------------------------------------------------------

TEST_CASE("the socket's folder must be ours and closed to others") {
  ServerFixture f;
  FakeCapture capture;
  ServerConfig config;
  const std::string folder = f.folder() + "/open";
  config.socket_path = folder + "/s";
  std::filesystem::create_directory(folder);
  const auto start = [&] { ControlServer(config, {}, capture); };
  ::chmod(folder.c_str(), 0755);
  CHECK_THROWS_AS(start(), std::system_error);
  ::chmod(folder.c_str(), 0700);
  CHECK_NOTHROW(start());
  CHECK(!std::filesystem::exists(config.socket_path));  // gone with the server
  config.allow_gids = {12345};
  ::chmod(folder.c_str(), 0755);
  CHECK_NOTHROW(start());
  ::chmod(folder.c_str(), 0777);
  CHECK_THROWS_AS(start(), std::system_error);
  std::filesystem::create_directory_symlink(folder, f.folder() + "/link");
  config.socket_path = f.folder() + "/link/s";
  CHECK_THROWS_AS(start(), std::system_error);
  config.socket_path = "relative";
  CHECK_THROWS_AS(start(), std::system_error);
}

TEST_CASE("one daemon at a time, and what a killed one left is replaced") {
  ServerFixture f;
  FakeCapture capture;
  ServerConfig config;
  config.socket_path = f.path();
  CHECK_THROWS_WITH(ControlServer(config, {}, capture), Catch::Contains("another daemon serves"));
  CHECK(f.connect().connected());
  config.socket_path = f.folder() + "/stale";
  std::ofstream(config.socket_path) << "left behind";
  CHECK_NOTHROW(ControlServer(config, {}, capture));
}

TEST_CASE("the daemon ends when its last client is gone for long enough") {
  ServerFixture f(1, [](ServerConfig& config) { config.idle_exit_ms = 0; });
  CHECK(eventually([&] { return f.served(); }));
}

TEST_CASE("a lifeline keeps the daemon alive") {
  ServerFixture f(1, [](ServerConfig& config) { config.idle_exit_ms = 1500; });
  TestClient client = f.connect();
  CHECK(client.call(MessageKind::kLifeline).error == 0);
  CHECK(!f.served());
  client.disconnect();
  CHECK(eventually([&] { return f.served(); }));
}

// ---- messages ----------------------------------------------------------------------------------------

std::vector<std::byte> message(std::uint16_t version, std::uint16_t kind, std::size_t payload_bytes) {
  MessageHeader header;
  header.version = version;
  header.kind = kind;
  header.length_bytes = static_cast<std::uint32_t>(payload_bytes);
  std::vector<std::byte> bytes(sizeof header + payload_bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

TEST_CASE("a malformed message ends its connection with a reason, and no other") {
  ServerFixture f;
  TestClient bystander = f.connect();
  REQUIRE(bystander.open_device().error == 0);
  const std::size_t before = open_fds();
  std::vector<int> fds;
  std::vector<std::byte> bytes = message(1, 4, 0);
  std::string reason;
  SECTION("shorter than a header") {
    bytes.resize(10);
    reason = "shorter than its header";
  }
  SECTION("not our magic") {
    bytes[0] = std::byte{0};
    reason = "not a message";
  }
  SECTION("states another length") {
    bytes.resize(bytes.size() + 1);
    reason = "is not the one it states";
  }
  SECTION("longer than allowed") {
    bytes = message(1, 4, kMaxMessageBytes);
    reason = "longer than allowed";
  }
  SECTION("more descriptors than allowed") {
    fds.assign(40, STDERR_FILENO);
    reason = "too many file descriptors";
  }
  {
    TestClient client = f.connect();
    REQUIRE(client.send_raw(bytes, fds));
    CHECK(client.receive().closed);
  }
  CHECK(eventually([&] { return f.logged(reason); }));
  CHECK(bystander.get_context().error == 0);
  CHECK(eventually([&] { return open_fds() <= before + 2; }));  // the bystander's async pipe
}

TEST_CASE("requests out of place are answered with an errno") {
  ServerFixture f;
  TestClient client = f.connect();
  REQUIRE(client.send_raw(message(kProtocolVersion + 1, 4, 0)));
  CHECK(client.receive().error == EPROTONOSUPPORT);
  REQUIRE(client.send_raw(message(kProtocolVersion, 99, 0)));
  CHECK(client.receive().error == EINVAL);
  CHECK(client.call(MessageKind::kUverbs).error == ENODEV);
  CHECK(client.call(MessageKind::kCloseDevice).error == ENODEV);
  CHECK(client.call(MessageKind::kOpenDevice).error == EINVAL);
  CHECK(client.open_device(2).error == ENODEV);
  CHECK(client.open_device(1).error == 0);
  CHECK(client.open_device(1).error == EINVAL);
  CHECK(client.call(MessageKind::kUverbs).error == EINVAL);
}

TEST_CASE("descriptors that nobody asked for are closed") {
  ServerFixture f;
  TestClient client = f.connect();
  REQUIRE(client.open_device().error == 0);
  const std::size_t before = open_fds();
  const std::array<int, 4> fds{1, 1, 2, 2};
  for (int i = 0; i < 50; ++i)
    CHECK(client.call(MessageKind::kLifeline, {}, fds).error == 0);
  CHECK(fds_back_to(before));
}

TEST_CASE("a client that never reads its replies is closed") {
  ServerFixture f;
  TestClient client = f.connect();
  const std::string text = R"({"op":"ping"})";
  for (int i = 0; i < 100000; ++i) {
    MessageHeader header;
    header.kind = static_cast<std::uint16_t>(MessageKind::kAdmin);
    header.length_bytes = static_cast<std::uint32_t>(text.size());
    std::vector<std::byte> bytes(sizeof header);
    std::memcpy(bytes.data(), &header, sizeof header);
    const auto payload = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    if (!client.send_raw(bytes)) break;
  }
  CHECK(eventually([&] { return f.logged("too many requests unanswered or answers unread"); }));
  CHECK(f.connect().call(MessageKind::kLifeline).error == 0);
}

TEST_CASE("more clients than allowed are refused") {
  ServerFixture f(1, [](ServerConfig& config) { config.max_clients = 3; });
  std::vector<TestClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(f.connect());
    CHECK(clients.back().call(MessageKind::kLifeline).error == 0);
  }
  CHECK(f.connect().call(MessageKind::kLifeline).closed);
  clients.pop_back();
  CHECK(eventually([&] { return f.connect().call(MessageKind::kLifeline).error == 0 && !f.served(); }));
}

// ---- fuzz --------------------------------------------------------------------------------------------

TEST_CASE("mutated commands disturb nobody") {
  const std::uint32_t seed = GENERATE(1u, 2u, 3u, 4u);
  INFO("seed " << seed);
  std::mt19937 twister(seed);
  const auto dice = [&] { return static_cast<std::uint32_t>(twister()); };
  ServerFixture f(2);
  TestClient bystander = f.connect();
  REQUIRE(bystander.open_device().error == 0);
  REQUIRE(bystander.get_context().error == 0);
  const std::uint32_t pd = alloc_pd(bystander);
  static std::array<std::byte, 8192> memory;
  REQUIRE(reg_mr(bystander, pd, memory.data(), memory.size(), 7).error == 0);
  const std::size_t before = open_fds();

  for (int connection = 0; connection < 12; ++connection) {
    TestClient client = f.connect();
    if (client.open_device(dice() % 2).error != 0 || client.get_context().error != 0) FAIL("cannot open");
    for (int i = 0; i < 150; ++i) {
      // A command with plausible small numbers in random places, then a few flipped bits.
      std::array<std::uint32_t, 48> core;
      for (auto& word : core)
        word = dice() % 4 == 0 ? dice() : dice() % 6;
      const std::uint32_t command = dice() % 42;
      std::vector<std::byte> bytes =
          dice() % 3 == 0 ? client.extended(command, core, 512, 64) : client.legacy(command, core, 512);
      if (dice() % 3 == 0) bytes.resize(dice() % bytes.size());
      for (std::uint32_t flips = dice() % 3; flips != 0 && !bytes.empty(); --flips)
        bytes[dice() % bytes.size()] ^= static_cast<std::byte>(1u << dice() % 8);
      if (client.uverbs(bytes).closed) FAIL("a well-formed message ended the connection");
    }
  }
  CHECK(reg_mr(bystander, pd, memory.data(), memory.size(), 7).error == 0);
  CHECK(eventually([&] { return show(f)["contexts"].size() == 1; }));
  CHECK(show(f)["mrs"].size() == 2);
  CHECK(fds_back_to(before));
}

TEST_CASE("random bytes on the socket disturb nobody") {
  std::mt19937 twister(7);
  const auto dice = [&] { return static_cast<std::uint32_t>(twister()); };
  ServerFixture f;
  const std::size_t before = open_fds();
  for (int i = 0; i < 300; ++i) {
    TestClient client = f.connect();
    std::vector<std::byte> bytes = message(1, static_cast<std::uint16_t>(dice() % 7), dice() % 300);
    for (std::size_t at = sizeof(MessageHeader); at < bytes.size(); ++at)
      bytes[at] = static_cast<std::byte>(dice());
    for (std::uint32_t flips = dice() % 4; flips != 0; --flips)
      bytes[dice() % bytes.size()] ^= static_cast<std::byte>(1u << dice() % 8);
    client.send_raw(bytes);
    static_cast<void>(client.receive());
  }
  CHECK(f.connect().call(MessageKind::kLifeline).error == 0);
  CHECK(fds_back_to(before));
}

// ---- ends of clients ---------------------------------------------------------------------------------

TEST_CASE("nothing is left of a client that disconnects") {
  ServerFixture f(2);
  const std::size_t before = open_fds();
  for (int i = 0; i < 20; ++i) {
    TestClient client = f.connect();
    const TestReply opened = client.open_device();
    REQUIRE(opened.fds.size() == 2);
    REQUIRE(client.get_context().fds.size() == 1);
    static std::array<std::byte, 4096> memory;
    REQUIRE(reg_mr(client, alloc_pd(client), memory.data(), memory.size(), 1).error == 0);
  }
  CHECK(eventually([&] { return no_objects(f); }));
  CHECK(fds_back_to(before));
}

TEST_CASE("closing the device is answered when the engine has let go") {
  ServerFixture f;
  TestClient client = f.connect();
  REQUIRE(client.open_device().error == 0);
  REQUIRE(client.get_context().error == 0);
  alloc_pd(client);
  CHECK(client.call(MessageKind::kCloseDevice).error == 0);
  CHECK(no_objects(f));
  CHECK(client.call(MessageKind::kUverbs).error == ENODEV);
}

TEST_CASE("nothing is left of a client that is killed, even if a child of its holds the socket") {
  ServerFixture f;
  const std::size_t before = open_fds();
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    TestClient client(f.path());
    static std::array<std::byte, 4096> memory;
    const bool ok = client.open_device().error == 0 && client.get_context().error == 0 &&
                    reg_mr(client, alloc_pd(client), memory.data(), memory.size(), 1).error == 0;
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      for (;;)
        ::pause();
    }
    if (!ok || ::write(ready[1], &grandchild, sizeof grandchild) != sizeof grandchild) ::_exit(1);
    for (;;)
      ::pause();
  }
  pid_t grandchild = 0;
  REQUIRE(::read(ready[0], &grandchild, sizeof grandchild) == sizeof grandchild);
  ::close(ready[0]);
  ::close(ready[1]);
  CHECK(show(f)["contexts"].size() == 1);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  CHECK(eventually([&] { return no_objects(f); }));
  CHECK(fds_back_to(before));
  ::kill(grandchild, SIGKILL);
}

// Opens a device, then waits for ever; its page at `page` blocks whoever touches it, until the process ends.
[[noreturn]] void be_a_client_whose_memory_does_not_answer(const std::string& path, std::byte* page,
                                                           int ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  TestClient client(path);
  const bool is_open = client.open_device().error == 0;
  const int fault_fd = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  uffdio_register region{};
  region.range = {reinterpret_cast<std::uintptr_t>(page), 4096};
  region.mode = UFFDIO_REGISTER_MODE_MISSING;
  const bool blocks = fault_fd >= 0 && ::ioctl(fault_fd, UFFDIO_API, &api) == 0 &&
                      ::ioctl(fault_fd, UFFDIO_REGISTER, &region) == 0;
  const char verdict = !is_open ? 'x' : blocks ? 'b' : 'n';
  if (::write(ready, &verdict, 1) != 1) ::_exit(1);
  for (;;)
    ::pause();
}

TEST_CASE("a client whose memory does not answer is named, and killed at the limit") {
  ServerFixture f(1, [](ServerConfig& config) {
    config.memory_stall_report_ms = 0;
    config.memory_stall_kill_ms = 1000;
  });
  TestClient bystander = f.connect();  // while there are clients the server looks once a second
  REQUIRE(bystander.call(MessageKind::kLifeline).error == 0);
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) be_a_client_whose_memory_does_not_answer(f.path(), static_cast<std::byte*>(page), ready[1]);
  char verdict = 0;
  REQUIRE(::read(ready[0], &verdict, 1) == 1);
  REQUIRE(verdict != 'x');
  if (verdict == 'n') {
    WARN("not tested: this user may not block kernel accesses with userfaultfd");
    ::kill(pid, SIGKILL);
  } else {
    emulator::MemoryOp op;  // as the engine would reach for it
    op.space = {2};         // the first context's, behind those of the daemon's own QP1s
    op.kind = emulator::MemoryOp::Kind::kRead;
    std::byte byte{};
    op.local = &byte;
    op.length_bytes = 1;
    op.address = reinterpret_cast<std::uintptr_t>(page);
    f.server().memory(0).execute({&op, 1});  // comes back, with whatever result
    CHECK(f.logged("does not answer"));
    CHECK(f.logged("killed"));
  }
  ::waitpid(pid, nullptr, 0);
  CHECK(eventually([&] { return no_objects(f); }));
  ::close(ready[0]);
  ::close(ready[1]);
  ::munmap(page, 4096);
}

TEST_CASE("a forked child's command on its parent's context is refused") {
  ServerFixture f;
  TestClient client = f.connect();
  REQUIRE(client.open_device().error == 0);
  REQUIRE(client.get_context().error == 0);
  const std::uint32_t pd = alloc_pd(client);
  static std::array<std::byte, 4096> memory;  // at this address both have a page, and not the same one
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(reg_mr(client, pd, memory.data(), memory.size(), 1).error);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == EPERM);
  CHECK(show(f)["mrs"].empty());
  CHECK(reg_mr(client, pd, memory.data(), memory.size(), 1).error == 0);
}

TEST_CASE("the server ends with clients connected") {
  const std::size_t before = open_fds();
  {
    ServerFixture f(2);
    TestClient client = f.connect();
    REQUIRE(client.open_device().error == 0);
    f.stop();
    CHECK(f.served());
    CHECK(client.receive().closed);
  }
  CHECK(open_fds() == before);
}

// ---- admin -------------------------------------------------------------------------------------------

TEST_CASE("admin requests") {
  ServerFixture f;
  TestClient client = f.connect();
  const json ping = json::parse(client.admin(R"({"op":"ping"})").text());
  CHECK(ping["pid"] == ::getpid());
  CHECK(ping["nics"][1]["name"] == "rxe1");
  CHECK(ping["nics"][0]["ip"][0] == "127.77.0.1/24");
  CHECK(client.admin("{").error == EINVAL);
  CHECK(client.admin("[]").error == EINVAL);
  CHECK(client.admin(R"({"op":7})").error == EINVAL);
  CHECK(client.admin(R"({"op":"dance"})").error == EOPNOTSUPP);
  CHECK(client.admin(R"({"op":"show","what":"dance"})").error == EINVAL);
  CHECK(client.admin(R"({"op":"view","nics":["rxe7"]})").error == ENODEV);
  CHECK(client.admin(R"({"op":"view","nics":"rxe0"})").error == ENODEV);
  CHECK(client.admin(std::string(60000, '[')).error == EINVAL);
  const json counters = json::parse(client.admin(R"({"op":"show","what":"counters"})").text());
  CHECK(counters["counters"]["rxe1"]["tx_frames"] == 0);
  CHECK(!counters.contains("qps"));
}

TEST_CASE("captures end with their connection") {
  ServerFixture f;
  TestClient client = f.connect();
  CHECK(client.admin(R"({"op":"capture"})").error == EINVAL);  // no descriptor
  const std::array<int, 1> fd{STDERR_FILENO};
  const TestReply started =
      client.admin(R"({"op":"capture","nics":["rxe1"],"snaplen":96,"truncate":true})", fd);
  REQUIRE(started.error == 0);
  CHECK(f.capture.last.nics == 2);
  CHECK(f.capture.last.snap_length_bytes == 96);
  CHECK(f.capture.last.truncate);
  const std::string id = std::to_string(json::parse(started.text())["id"].get<int>());
  CHECK(f.connect().admin(R"({"op":"capture_stop","id":)" + id + "}").error == EINVAL);  // another's
  SECTION("stopped") {
    const json totals = json::parse(client.admin(R"({"op":"capture_stop","id":)" + id + "}").text());
    CHECK(totals["written"] == 10);
    CHECK(totals["error"] == "No space left on device");
    CHECK(client.admin(R"({"op":"capture_stop","id":)" + id + "}").error == EINVAL);
  }
  SECTION("left running") { client.disconnect(); }
  CHECK(eventually([&] { return f.capture.running == 0; }));
}

TEST_CASE("a capture whose client left before it began is ended") {
  ServerFixture f;
  {
    TestClient client = f.connect();
    const std::string request = R"({"op":"capture"})";
    const std::array<int, 1> fd{STDERR_FILENO};
    client.send(MessageKind::kAdmin, std::as_bytes(std::span(request)), fd);
  }
  TestClient other = f.connect();
  CHECK(eventually([&] { return f.capture.running == 0 && other.admin(R"({"op":"ping"})").error == 0; }));
}

TEST_CASE("a result too long for a message comes in a file") {
  ServerFixture f;
  TestClient client = f.connect();
  REQUIRE(client.open_device().error == 0);
  REQUIRE(client.get_context().error == 0);
  const std::uint32_t pd = alloc_pd(client);
  static std::array<std::byte, 4096> memory;
  for (int i = 0; i < 800; ++i)
    REQUIRE(reg_mr(client, pd, memory.data(), memory.size(), 1).error == 0);
  const TestReply reply = f.connect().admin(R"({"op":"show","what":"mr"})");
  CHECK(reply.error == 0);
  CHECK(reply.payload.empty());
  REQUIRE(reply.fds.size() == 1);
  std::string text(static_cast<std::size_t>(::lseek(reply.fds[0].get(), 0, SEEK_END)), ' ');
  REQUIRE(::pread(reply.fds[0].get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  CHECK(json::parse(text)["mrs"].size() == 800);
}

TEST_CASE("a shutdown is answered and obeyed") {
  ServerFixture f;
  CHECK(f.connect().admin(R"({"op":"shutdown"})").text() == "{}");
  CHECK(eventually([&] { return f.served(); }));
}

std::string line_of(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

TEST_CASE("a view shows the NICs that were asked for") {
  ServerFixture f;
  TestClient client = f.connect();
  const std::string one = json::parse(client.admin(R"({"op":"view","nics":["rxe1"]})").text())["path"];
  const std::string all = json::parse(client.admin(R"({"op":"view","nics":[]})").text())["path"];
  CHECK(json::parse(client.admin(R"({"op":"view"})").text())["path"] == all);
  CHECK(std::filesystem::exists(all + "/class/infiniband_verbs/uverbs0"));
  CHECK(!std::filesystem::exists(one + "/class/infiniband_verbs/uverbs0"));
  CHECK(line_of(one + "/class/infiniband_verbs/abi_version") == "6");
  CHECK(line_of(one + "/class/infiniband_verbs/uverbs1/dev") == "231:193");
  CHECK(line_of(one + "/class/infiniband_verbs/uverbs1/ibdev") == "rxe1");
  const std::string port = one + "/class/infiniband/rxe1/ports/1";
  CHECK(line_of(port + "/state") == "4: ACTIVE");
  CHECK(line_of(port + "/gids/1") == "0000:0000:0000:0000:0000:ffff:7f4d:0002");
  CHECK(line_of(port + "/gid_attrs/types/0") == "RoCE v2");
  CHECK(line_of(port + "/gid_attrs/ndevs/1") == "lo");
  CHECK(line_of(port + "/counters/port_xmit_packets") == "0");
  CHECK(std::filesystem::exists(one + "/class/infiniband/rxe1/device/net/lo"));
  CHECK(std::filesystem::exists(one + "/class/infiniband_verbs/uverbs1/device/local_cpus"));
  CHECK(!std::filesystem::exists(one + "/class/infiniband/rxe1/device/modalias"));
  f.server().on_link({1}, false);
  CHECK(eventually([&] { return line_of(port + "/state") == "1: DOWN"; }));
  f.stop();
  CHECK(std::filesystem::exists(port));  // until the server object goes
}

TEST_CASE("an address that is added or taken away is in the view and in what is shown") {
  ServerFixture f(2, [](ServerConfig& config) {
    config.nics[1].answers_neighbours = false;
    config.parse_address = [](std::string_view text) -> proto::Result<emulator::NicAddress, std::string> {
      const auto gid = proto::gid_from_text(text.substr(0, text.find('/')));
      if (!gid) return proto::Unexpected{std::string("what is that")};
      return emulator::NicAddress{*gid, 24};
    };
  });
  TestClient client = f.connect();
  const std::string view = json::parse(client.admin(R"({"op":"view"})").text())["path"];
  const std::string port = view + "/class/infiniband/rxe0/ports/1";
  const auto change = [&](const std::string& action, const std::string& address,
                          const std::string& nic = "rxe0") {
    return client.admin(
        json{{"op", "address"}, {"action", action}, {"nic", nic}, {"address", address}}.dump());
  };
  CHECK(change("add", "10.0.0.5/24").error == 0);
  CHECK(change("del", "127.77.0.1/24").error == 0);
  const json nic = json::parse(client.admin(R"({"op":"show","what":"nic"})").text())["nics"][0];
  CHECK(nic["ip"] == json{"10.0.0.5/24"});
  CHECK(nic["gids"] == json{"fe80::ff:fe00:1", "::", "10.0.0.5"});
  CHECK(line_of(port + "/gids/1") == "0000:0000:0000:0000:0000:0000:0000:0000");
  CHECK(line_of(port + "/gid_attrs/types/1") == "IB/RoCE v1");  // as of every free place
  CHECK_FALSE(std::filesystem::exists(port + "/gid_attrs/ndevs/1"));
  CHECK(line_of(port + "/gids/2") == "0000:0000:0000:0000:0000:ffff:0a00:0005");
  CHECK(line_of(port + "/gid_attrs/ndevs/2") == "lo");

  CHECK(change("add", "10.0.0.5/24").error == EEXIST);
  CHECK(change("add", "127.77.0.2/24").text() == "rxe1 has the address 127.77.0.2 already");
  CHECK(change("del", "10.0.0.6/24").error == EADDRNOTAVAIL);
  CHECK(change("swap", "10.0.0.6/24").error == EINVAL);
  CHECK(change("add", "nonsense").text() == "what is that");
  CHECK(change("add", "10.0.0.6/24", "rxe7").error == ENODEV);
  CHECK(change("add", "10.0.0.6/24", "rxe1").error == EOPNOTSUPP);  // a kernel's
  for (int i = 10; i < 24; ++i)
    CHECK(change("add", "10.0.0." + std::to_string(i) + "/24").error == 0);
  CHECK(change("add", "10.0.0.24/24").error == ENOSPC);

  f.server().on_addresses({1}, {{*proto::gid_from_text("10.1.0.1"), 24}});
  CHECK(eventually([&] {
    return line_of(view + "/class/infiniband/rxe1/ports/1/gids/1") ==
           "0000:0000:0000:0000:0000:ffff:0a01:0001";
  }));
}

TEST_CASE("every kind of object is shown") {
  ServerConfig config;
  config.nics.resize(1);
  auto snapshot = std::make_unique<emulator::Snapshot>();
  snapshot->srqs.push_back({{3}, {4}, 127, 5, 17, 2});
  snapshot->mws.push_back(
      {{3}, {6}, {1}, emulator::MwType::kType2, proto::Rkey{0x1234}, true, 0x8000, 64, 7});
  emulator::AddressVector av;
  av.dgid = proto::Gid::from_ipv4(0x7F4D0002);
  av.sgid_index = 1;
  snapshot->ahs.push_back({{3}, {8}, av});
  std::vector<std::unique_ptr<emulator::Snapshot>> shards(2);  // the second has not answered
  shards[0] = std::move(snapshot);
  const json all = objects_json(config, shards);
  for (const char* table : kObjectTables)
    CHECK(all.at(table).is_array());
  CHECK(all["srqs"][0] ==
        json{{"context", 3}, {"handle", 4}, {"max_wr", 127}, {"limit", 5}, {"depth", 17}, {"users", 2}});
  CHECK(all["mws"][0]["rkey"] == 0x1234);
  CHECK(all["mws"][0]["type"] == 2);
  CHECK(all["mws"][0]["bound"] == true);
  CHECK(all["mws"][0]["length"] == 64);
  CHECK(all["ahs"][0]["dest_ip"] == "127.77.0.2");
  CHECK(all["ahs"][0]["handle"] == 8);
}

}  // namespace
}  // namespace roci::shim
