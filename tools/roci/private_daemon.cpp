#include "tools/roci/private_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tools/roci/process.h"

namespace roci::tools {

using proto::Unexpected;
namespace filesystem = std::filesystem;

namespace {

constexpr int kReadyMs =
    15'000;  // a start takes 0.3 s; a daemon under sanitizers on a busy machine needs a while
constexpr int kAttempts = 5;        // a daemon may end between our finding it and our holding it
constexpr rlim_t kLeastFiles = 64;  // without any application it has about 20 open
constexpr auto kRetryPause = std::chrono::milliseconds(50);

constexpr std::array kDaemonArguments = {"--nic",       "rxe0,port=fabric,ip=127.77.0.1/24",
                                         "--nic",       "rxe1,port=fabric,ip=127.77.0.2/24",
                                         "--idle-exit", "10"};

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }
  [[nodiscard]] int get() const { return fd_; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

std::string system_error(const std::string& what) { return what + ": " + error_text(errno); }

// Ours, and closed to others; made if it is not there. An error, or empty.
std::string prepare_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return system_error("cannot make " + path);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return system_error(path);
  if (!S_ISDIR(status.st_mode)) return path + " is in the way: it is not a folder";
  if (status.st_uid != ::geteuid())
    return path + " belongs to another user; set XDG_RUNTIME_DIR to a folder of yours";
  if ((status.st_mode & 0077) != 0 && ::chmod(path.c_str(), 0700) != 0)
    return system_error("cannot close " + path + " to others");
  return {};
}

std::string last_lines(const std::string& path) {
  constexpr std::size_t kLines = 3;
  std::ifstream log(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);)
    if (!line.empty()) lines.push_back(line);
  std::string text;
  for (std::size_t i = lines.size() > kLines ? lines.size() - kLines : 0; i < lines.size(); ++i) {
    if (!text.empty()) text += "; ";
    text += lines[i];
  }
  return text.empty() ? "it says nothing" : text;
}

// Starts rocid in a session of its own, as nobody's child, since we are about to become the application.
// Returns when it is ready; an error, or empty.
std::string start_daemon(const std::string& program, const std::string& socket_path,
                         const std::string& log_path) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return system_error("getrlimit");
  if (files.rlim_cur < kLeastFiles)
    return "the daemon would not start: " + std::to_string(files.rlim_cur) +
           " open files are allowed (ulimit -n), and it needs " + std::to_string(kLeastFiles);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("pipe");
  const Fd ready(ends[0]);
  Fd ready_writer(ends[1]);
  const Fd log(::open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (log.get() < 0) return system_error("cannot write " + log_path);
  const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));

  std::vector<std::string> arguments = {program};
  arguments.insert(arguments.end(), kDaemonArguments.begin(), kDaemonArguments.end());
  arguments.insert(arguments.end(), {"--socket", socket_path, "--ready-fd", "3"});
  Environment environment;
  for (const char* of_applications : {"LD_PRELOAD", "SYSFS_PATH", "ROCI_SOCKET", "ROCI_VIEW"})
    environment.remove(of_applications);
  const std::vector<char*> argument_pointers = exec_pointers(arguments);
  const std::vector<char*> environment_pointers = exec_pointers(environment.entries());

  const pid_t helper = ::fork();
  if (helper < 0) return system_error("fork");
  if (helper == 0) {
    ::setsid();
    const pid_t daemon = ::fork();
    if (daemon != 0) ::_exit(daemon < 0 ? 1 : 0);
    // Above the numbers that are about to be given out.
    const int high_log = ::fcntl(log.get(), F_DUPFD, 10);
    const int high_nothing = ::fcntl(nothing.get(), F_DUPFD, 10);
    const int high_ready = ::fcntl(ready_writer.get(), F_DUPFD, 10);
    ::dup2(high_nothing, STDIN_FILENO);
    ::dup2(high_log, STDOUT_FILENO);
    ::dup2(high_log, STDERR_FILENO);
    ::dup2(high_ready, 3);
    ::close_range(4, ~0U, 0);
    for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGPIPE, SIGTERM})
      std::signal(number, SIG_DFL);
    if (::chdir("/") != 0) ::_exit(126);
    ::execve(program.c_str(), argument_pointers.data(), environment_pointers.data());
    ::dprintf(STDERR_FILENO, "%s: %s\n", program.c_str(), error_text(errno).c_str());
    ::_exit(127);
  }
  while (::waitpid(helper, nullptr, 0) < 0 && errno == EINTR) {
  }
  ready_writer.reset();

  pollfd answer{ready.get(), POLLIN, 0};
  int polled = 0;
  do
    polled = ::poll(&answer, 1, kReadyMs);
  while (polled < 0 && errno == EINTR);
  char byte = 0;
  if (polled > 0 && ::read(ready.get(), &byte, 1) == 1) return {};
  if (polled == 0)
    return "the daemon is not ready after " + std::to_string(kReadyMs / 1000) + " s; its log is " + log_path;
  return "the daemon did not start: " + last_lines(log_path) + " (log: " + log_path + ")";
}

// Under the lock, so that two at once start one daemon.
std::string start_private_daemon(const std::string& socket_path) {
  const std::string folder = filesystem::path(socket_path).parent_path();
  if (std::string error = prepare_folder(folder); !error.empty()) return error;
  const std::string lock_path = folder + "/lock";
  const Fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.get() < 0) return system_error("cannot open " + lock_path);
  while (::flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) return system_error("cannot lock " + lock_path);

  if (DaemonClient::connect(socket_path)) return {};  // another roci was faster
  const auto installation = find_installation();
  if (!installation) return installation.error();
  ::unlink(socket_path.c_str());  // of a daemon that crashed: nobody listens there
  return start_daemon(installation->daemon, socket_path, folder + "/rocid.log");
}

std::string no_daemon(const DaemonLocation& location) {
  if (location.is_private) return "no daemon is running; `roci run -- PROGRAM` starts one";
  return "no daemon listens at " + location.socket_path + "; start it with: rocid --socket " +
         location.socket_path + " --nic ...";
}

}  // namespace

OrError<Installation> find_installation() {
  std::error_code error;
  const filesystem::path here = filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const auto first_of = [&](std::initializer_list<const char*> candidates) -> std::string {
    for (const char* candidate : candidates) {
      const filesystem::path path = (here / candidate).lexically_normal();
      if (::access(path.c_str(), R_OK) == 0) return path;
    }
    return {};
  };
  Installation found;
  found.shim = first_of({"../verbs_shim/preload/libroci.so", ROCI_SHIM_FROM_BIN "/libroci.so"});
  found.daemon = first_of({"../dpdk_port/rocid", "rocid"});
  if (found.shim.empty())
    return Unexpected<std::string>{"libroci.so is not where it belongs: " +
                                   (here / ROCI_SHIM_FROM_BIN).lexically_normal().string()};
  if (found.daemon.empty())
    return Unexpected<std::string>{"rocid is not where it belongs: " + (here / "rocid").string()};
  return found;
}

DaemonLocation locate_daemon(const std::string& socket_option) {
  if (!socket_option.empty()) return {filesystem::absolute(socket_option), false};
  if (const char* named = std::getenv("ROCI_SOCKET"); named != nullptr && *named != 0) return {named, false};
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder = runtime != nullptr && *runtime == '/'
                                 ? std::string(runtime) + "/rocinante"
                                 : "/tmp/rocinante-" + std::to_string(::geteuid());
  return {folder + "/rocid.sock", true};
}

OrError<DaemonClient> connect_to_daemon(const DaemonLocation& location) {
  auto client = DaemonClient::connect(location.socket_path);
  if (!client && client.error().empty()) return Unexpected<std::string>{no_daemon(location)};
  return client;
}

OrError<DaemonClient> hold_daemon(const DaemonLocation& location) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kRetryPause);
    auto client = DaemonClient::connect(location.socket_path);
    if (client) {
      if (client->become_lifeline()) return client;
      continue;  // it was about to end
    }
    if (!client.error().empty()) return client;
    if (!location.is_private) break;
    if (std::string error = start_private_daemon(location.socket_path); !error.empty())
      return Unexpected<std::string>{std::move(error)};
  }
  return Unexpected<std::string>{no_daemon(location)};
}

}  // namespace roci::tools
