// rocid, the NIC daemon: the process around Daemon. See daemon.h for what it does and config.h for what it
// takes.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "dpdk_port/command_line.h"
#include "dpdk_port/daemon.h"

namespace {

std::atomic<roci::dpdk_port::Daemon*> serving{nullptr};

void stop_serving(int) {
  if (auto* daemon = serving.load()) daemon->stop();
}

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// Before any thread exists: signals are for the main thread, and only once there is something to stop.
void prepare_process() {
  const sigset_t stops = stop_signals();
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  struct sigaction action {};
  action.sa_handler = &stop_serving;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // Ours would preload itself into what we might start.
  unsetenv("LD_PRELOAD");  // NOLINT(concurrency-mt-unsafe): no thread yet
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
}

// What the user gave is quoted in errors, and may hold anything; an error stays one line.
std::string printable(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F)
      line += c;
    else
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return line;
}

void set_up_log(const std::string& level) {
  auto log = spdlog::stderr_logger_mt("rocid");
  log->set_pattern("%H:%M:%S.%e rocid %l: %v");
  log->set_level(spdlog::level::from_str(level));
  log->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(log));
}

}  // namespace

int main(int argc, char** argv) {
  const auto refuse = [](const std::string& why, int status) {
    std::fprintf(stderr, "rocid: %s\n", printable(why).c_str());
    return status;
  };
  const auto line = roci::dpdk_port::parse_command_line(argc, argv);
  if (!line) return refuse(line.error(), 2);
  if (line->only_printed) return 0;
  if (line->ready_fd >= 0 && fcntl(line->ready_fd, F_SETFD, FD_CLOEXEC) != 0)
    return refuse("--ready-fd: no such file descriptor", 2);

  prepare_process();
  set_up_log(line->config.log_level);
  try {
    roci::dpdk_port::Daemon daemon(line->config);
    serving.store(&daemon);
    const sigset_t stops = stop_signals();
    pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
    spdlog::info("serving on {}", line->config.socket_path);
    if (line->ready_fd >= 0) {
      (void)!write(line->ready_fd, "\n", 1);
      close(line->ready_fd);
    }
    daemon.serve();
    pthread_sigmask(SIG_BLOCK, &stops, nullptr);
    serving.store(nullptr);
    spdlog::info("ending");
  } catch (const roci::dpdk_port::StartError& error) {
    return refuse(error.what(), error.exit_status);
  } catch (const std::system_error& error) {  // no descriptor or thread to be had
    return refuse(error.what(), 1);
  }
  return 0;
}
