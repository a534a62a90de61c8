// libroci.so in a process of its own, against a fake daemon: one scenario of preload_probe a case. And what
// kind of library it is: needs libc only, exports hooks only.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/preload/fake_daemon.h"

namespace {

namespace fs = std::filesystem;
using roci::tests::FakeDaemon;

// What a shell command prints, and its exit status.
struct Outcome {
  std::string output;
  int status = -1;
};
Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.output.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

// A folder with a small view, and the environment that `roci run` would set.
class Surroundings {
 public:
  Surroundings() {
    char name[] = "/tmp/roci-preload.XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder_ = name;
    const fs::path device = view() / "devices/virtual/rocinante/rxe0/infiniband/rxe0";
    fs::create_directories(device);
    write(device / "node_desc", "rxe0\n");
    fs::create_directories(view() / "class/infiniband_verbs");
    write(view() / "class/infiniband_verbs/abi_version", "6\n");
    fs::create_directories(view() / "class/infiniband");
    fs::create_symlink("../../devices/virtual/rocinante/rxe0/infiniband/rxe0",
                       view() / "class/infiniband/rxe0");
    fs::create_symlink(view() / "devices/virtual/rocinante/rxe0", view() / "class/infiniband/absolute");
    fs::create_directories(view() / "class/misc/rdma_cm");
    write(view() / "class/misc/rdma_cm/dev", "10:122\n");
    fs::create_directories(view() / "dev/infiniband");
    write(view() / "dev/infiniband/uverbs0", "");
    write(view() / "dev/infiniband/rdma_cm", "");
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;
  ~Surroundings() { fs::remove_all(folder_); }

  [[nodiscard]] fs::path view() const { return folder_ / "view"; }
  [[nodiscard]] std::string socket_path() const { return folder_ / "sock"; }
  [[nodiscard]] Outcome probe(const std::string& scenario) const {
    return run("ROCI_SOCKET=" + socket_path() + " ROCI_VIEW=" + view().string() +
               " LD_PRELOAD=" ROCI_SHIM " timeout 60 " ROCI_PROBE " " + scenario);
  }

 private:
  static void write(const fs::path& path, const char* text) { std::ofstream(path) << text; }
  fs::path folder_;
};

void check_scenario(const std::string& scenario) {
  const Surroundings surroundings;
  const FakeDaemon daemon(surroundings.socket_path());
  const Outcome outcome = surroundings.probe(scenario);
  INFO(outcome.output);
  CHECK(outcome.status == 0);
  CHECK(daemon.opens() > 0);
  for (int i = 0; i < 2000 && daemon.live_clients() != 0; ++i)
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // the kernel closes the sockets of an ended process
  CHECK(daemon.live_clients() == 0);
  CHECK(daemon.complaint().empty());
}

}  // namespace

TEST_CASE("the library needs libc only") {
  const Outcome outcome = run("readelf -dW " ROCI_SHIM);
  REQUIRE(outcome.status == 0);
  std::set<std::string> needed;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);)
    if (line.find("(NEEDED)") != std::string::npos)
      needed.insert(line.substr(line.find('[') + 1, line.find(']') - line.find('[') - 1));
  CHECK(needed == std::set<std::string>{"libc.so.6"});
}

TEST_CASE("the library exports its hooks and nothing else, and no C++ symbol passes its border") {
  const std::set<std::string> hooks = {
      "__fxstat",   "__fxstat64", "__fxstatat",   "__fxstatat64", "__lxstat",       "__lxstat64",
      "__open64_2", "__open_2",   "__openat64_2", "__openat_2",   "__readlink_chk", "__realpath_chk",
      "__xstat",    "__xstat64",  "access",       "close",        "close_range",    "closefrom",
      "dup",        "dup2",       "dup3",         "execl",        "execle",         "execlp",
      "execv",      "execve",     "execveat",     "execvp",       "execvpe",        "faccessat",
      "fcntl",      "fcntl64",    "fexecve",      "freeifaddrs",  "getifaddrs",     "fopen",
      "fopen64",    "fstat",      "fstat64",      "fstatat",      "fstatat64",      "ioctl",
      "lstat",      "lstat64",    "open",         "open64",       "openat",         "openat64",
      "opendir",    "readlink",   "realpath",     "scandir",      "scandir64",      "socket",
      "stat",       "stat64",     "statx",        "write"};
  const Outcome outcome = run("nm -D " ROCI_SHIM);
  REQUIRE(outcome.status == 0);
  std::set<std::string> exported;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind, name;
    if (line.front() != ' ') words >> kind;  // the address
    words >> kind >> name;
    INFO(line);
    CHECK(name.rfind("_Z", 0) != 0);
    CHECK((name.rfind("__cxa", 0) != 0 || name.rfind("__cxa_finalize", 0) == 0));  // the latter is libc's
    if (kind == "T" || kind == "D" || kind == "B" || kind == "R") exported.insert(name);
  }
  CHECK(exported == hooks);
}

TEST_CASE("hooks change nothing for what is not ours") {
  const Surroundings surroundings;
  const Outcome alone = run(ROCI_PROBE " transparent");
  const Outcome preloaded_only = run("LD_PRELOAD=" ROCI_SHIM " " ROCI_PROBE " transparent");
  const Outcome active = surroundings.probe("transparent");
  REQUIRE(alone.status == 0);
  CHECK(alone.output.size() > 1000);
  CHECK(preloaded_only.output == alone.output);
  CHECK(active.output == alone.output);
}

TEST_CASE("the device looks like a character device, and commands reach the daemon") {
  check_scenario("looks_like_a_device");
}
TEST_CASE("the send doorbell sets its bits, minds the QP state, and kicks a sleeper once") {
  check_scenario("rings_doorbells");
}
TEST_CASE("arming a CQ is a store that never weakens") { check_scenario("arms_queues"); }
TEST_CASE("a command that waits delays no other thread's") { check_scenario("waits_do_not_block"); }
TEST_CASE("descriptors come along with replies, and a channel is named by its inode") {
  check_scenario("receives_fds");
}
TEST_CASE("an address that is bad is EFAULT, not a signal, and costs nothing") {
  check_scenario("refuses_bad_addresses");
}
TEST_CASE("a child of fork or vfork cannot harm its parent's context") { check_scenario("survives_fork"); }
TEST_CASE("copies and closes of descriptors are followed, hidden ones stay out of the way") {
  check_scenario("keeps_count_of_fds");
}
TEST_CASE("a device can be opened again and again") { check_scenario("opens_again_and_again"); }
TEST_CASE("when the daemon dies, outstanding work is flushed and everything fails") {
  check_scenario("outlives_the_daemon");
}

TEST_CASE("an SRQ's new ring is told where the command asks, and flushed when the daemon dies") {
  check_scenario("resizes_shared_queues");
}

TEST_CASE("the rdma_cm device is the read end of a pipe of events, and its commands reach the daemon") {
  check_scenario("speaks_rdma_cm");
}
TEST_CASE("when the daemon dies, who waits for rdma_cm events is told") {
  check_scenario("outlives_the_daemon_of_rdma_cm");
}

TEST_CASE("paths of sysfs and /dev lead into the view and look as if they did not") {
  const Surroundings surroundings;
  const Outcome outcome = surroundings.probe("redirects_paths");
  INFO(outcome.output);
  CHECK(outcome.status == 0);
}

TEST_CASE("without a daemon the device cannot be opened") {
  const Surroundings surroundings;
  const Outcome outcome = surroundings.probe("refuses_without_daemon");
  INFO(outcome.output);
  CHECK(outcome.status == 0);
}

TEST_CASE("before exec the daemon has let go of the process") {
  const Surroundings surroundings;
  const FakeDaemon daemon(surroundings.socket_path());
  const Outcome outcome = surroundings.probe("closes_before_exec");
  INFO(outcome.output);
  CHECK(outcome.status == 0);
  CHECK(daemon.opens() == 1);
  CHECK(daemon.orderly_closes() == 1);
}
