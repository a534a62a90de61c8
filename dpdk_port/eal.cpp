#include "dpdk_port/eal.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <spdlog/spdlog.h>

#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

// Room for what DPDK itself allocates: drivers, rings, the mempools' own tables.
constexpr std::size_t kEalOwnBytes = std::size_t{24} << 20;

bool gives(const std::vector<std::string>& arguments, std::initializer_list<std::string_view> options) {
  return std::any_of(arguments.begin(), arguments.end(), [&](std::string_view argument) {
    return std::any_of(options.begin(), options.end(), [&](std::string_view option) {
      if (option.size() == 2) return argument.substr(0, 2) == option;  // -m 64, -m64
      return argument == option ||
             (argument.substr(0, option.size()) == option && argument[option.size()] == '=');
    });
  });
}

// Standard output and error go to a file of ours: of arguments that it does not like EAL says something on
// the one and prints its whole usage on the other.
class Overheard {
 public:
  Overheard() {
    if (!file_) return;
    for (const int fd : kFds) {
      before_[static_cast<std::size_t>(fd)] = shim::UniqueFd::duplicate(fd);
      if (before_[static_cast<std::size_t>(fd)]) (void)dup2(file_.get(), fd);
    }
  }
  Overheard(const Overheard&) = delete;
  Overheard& operator=(const Overheard&) = delete;
  ~Overheard() { (void)end(); }

  // What was said; from now on it is heard again.
  std::string end() {
    (void)std::fflush(nullptr);
    for (const int fd : kFds) {
      auto& before = before_[static_cast<std::size_t>(fd)];
      if (before) (void)dup2(before.get(), fd);
      before.reset();
    }
    std::string text(8192, '\0');
    const ssize_t got = pread(file_.get(), text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }

 private:
  static constexpr std::array kFds = {STDOUT_FILENO, STDERR_FILENO};
  const shim::UniqueFd file_{memfd_create("eal", MFD_CLOEXEC)};
  std::array<shim::UniqueFd, 3> before_;
};

thread_local DriverMessages* listener = nullptr;

// One message a call, with a newline.
ssize_t write_to_log(void*, const char* text, std::size_t length) {
  std::string_view message(text, length);
  while (!message.empty() && message.back() == '\n')
    message.remove_suffix(1);
  if (message.empty()) return static_cast<ssize_t>(length);
  if (listener != nullptr)
    listener->take(message);
  else
    spdlog::log(rte_log_cur_msg_loglevel() <= static_cast<int>(RTE_LOG_ERR) ? spdlog::level::err
                                                                            : spdlog::level::warn,
                "{}", message);
  return static_cast<ssize_t>(length);
}

}  // namespace

std::vector<unsigned> allowed_cpus() {
  cpu_set_t set;
  std::vector<unsigned> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::vector<std::string> eal_arguments(std::size_t memory_bytes, const std::vector<unsigned>& cpus,
                                       const std::vector<std::string>& pci,
                                       const std::vector<std::string>& user) {
  std::vector<std::string> all{"rocid"};
  const bool huge = gives(user, {"--in-memory", "--huge-dir", "--huge-unlink", "--legacy-mem",
                                 "--single-file-segments", "--socket-mem", "--socket-limit"});
  if (!huge && !gives(user, {"--no-huge"})) all.emplace_back("--no-huge");
  if (!gives(user, {"--no-shconf", "--in-memory", "--file-prefix", "--proc-type"}))
    all.emplace_back("--no-shconf");
  if (!gives(user, {"-b", "--block", "--no-pci"})) {
    if (pci.empty() && !gives(user, {"-a", "--allow"})) all.emplace_back("--no-pci");
    for (const auto& address : pci)
      all.insert(all.end(), {"-a", address});
  }
  if (!gives(user, {"--telemetry", "--no-telemetry"}))
    all.emplace_back("--no-telemetry");  // else it leaves a socket behind
  if (!gives(user, {"-m", "--socket-mem"})) {
    const std::size_t megabytes = (memory_bytes + kEalOwnBytes + (std::size_t{1} << 20) - 1) >> 20;
    all.insert(all.end(), {"-m", fmt::format("{}", megabytes)});
  }
  if (!gives(user, {"-l", "-c", "-s", "-S", "--lcores"})) {
    all.insert(all.end(), {"--lcores", fmt::format("0@({})", fmt::join(cpus, ","))});
  }
  all.insert(all.end(), user.begin(), user.end());
  return all;
}

EalFailure start_eal(std::vector<std::string> arguments) {
  static const cookie_io_functions_t kLog{nullptr, &write_to_log, nullptr, nullptr};
  if (FILE* stream = fopencookie(nullptr, "w", kLog); stream != nullptr) {
    setvbuf(stream, nullptr, _IOLBF, 4096);
    (void)rte_openlog_stream(stream);
  }
  const bool chatty = spdlog::should_log(spdlog::level::debug);
  rte_log_set_global_level(chatty ? RTE_LOG_INFO : RTE_LOG_ERR);
  std::vector<char*> argv;
  argv.reserve(arguments.size());
  for (auto& argument : arguments)
    argv.push_back(argument.data());
  spdlog::debug("EAL arguments: {}", fmt::join(arguments, " "));
  if (chatty || gives(arguments, {"-h", "--help", "-v"})) {
    if (rte_eal_init(static_cast<int>(argv.size()), argv.data()) >= 0) return {};
    return {fmt::format("DPDK's EAL does not start: {}", rte_strerror(rte_errno)), rte_errno == EINVAL};
  }
  Overheard overheard;
  const int used = rte_eal_init(static_cast<int>(argv.size()), argv.data());
  const int error = rte_errno;
  const std::string said = overheard.end();
  if (used >= 0) {
    std::fputs(said.c_str(), stderr);
    return {};
  }
  // Its first line tells most; the option parser of the C library begins it with our name.
  const auto complaint = said.find("rocid: ");
  const std::string first = complaint == std::string::npos
                                ? rte_strerror(error)
                                : said.substr(complaint + 7, said.find('\n', complaint) - complaint - 7);
  if (error == EINVAL)
    return {fmt::format("DPDK's EAL refuses its arguments: {} (see rocid ... -- --help)", first), true};
  std::fputs(said.c_str(), stderr);
  return {fmt::format("DPDK's EAL does not start: {}", rte_strerror(error))};
}

DriverMessages::DriverMessages() { listener = this; }
DriverMessages::~DriverMessages() {
  listener = nullptr;
  for (const auto& message : said_)
    spdlog::debug("{}", message);
}

// EAL's own thread for interrupts goes on through the clean-up, which takes away memory that it looks at: a
// memif's connection is still there, and 3 of 25 daemons crashed. Without huge pages there
// is nothing that outlives the process, so nothing is cleaned up.
void stop_eal() {
  if (rte_eal_has_hugepages() != 0) (void)rte_eal_cleanup();
}

}  // namespace roci::dpdk_port
