// roci capture: every packet on the virtual wire, or of some NICs, into a pcapng file.
//
// This process opens the file and hands it to the daemon, which writes it: a daemon of another user gets no
// say in where.
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>

#include "tools/roci/private_daemon.h"
#include "tools/roci/process.h"
#include "tools/roci/subcommand.h"

namespace roci::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct CaptureOptions {
  std::string file;
  std::vector<std::string> nics;
  std::uint32_t snap_length_bytes = 0;  // 0: whole packets
  double duration_seconds = 0;          // 0: until Ctrl-C
  std::string socket_path;
};

constexpr int kProgressMs = 500;

// Why the capture came to its end.
struct Ending {
  bool daemon_died = false;
  std::optional<int> program_status;  // as waitpid gives it
};

// The program whose traffic is captured; its exit status is ours.
pid_t start(const std::vector<std::string>& program, const sigset_t& signals_before) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::pthread_sigmask(SIG_SETMASK, &signals_before, nullptr);
  ::_exit(become("capture", program, Environment()));
}

void show_progress(int file, Clock::time_point begin) {
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count();
  std::cerr << "\r" << seconds << " s, " << status.st_size << " bytes; Ctrl-C ends it " << std::flush;
}

Ending wait_for_end(const CaptureOptions& options, int daemon_fd, int signal_fd, pid_t program, int file) {
  const auto begin = Clock::now();
  // A program draws its own picture on the terminal.
  const bool with_progress = program <= 0 && ::isatty(STDERR_FILENO) == 1;
  Ending ending;
  for (;;) {
    int wait_ms = with_progress ? kProgressMs : -1;
    if (options.duration_seconds > 0) {
      const double left =
          options.duration_seconds - std::chrono::duration<double>(Clock::now() - begin).count();
      if (left <= 0) break;
      const int left_ms = static_cast<int>(std::min(left * 1000, 1e9)) + 1;
      wait_ms = wait_ms < 0 ? left_ms : std::min(wait_ms, left_ms);
    }
    pollfd events[2] = {{daemon_fd, POLLIN, 0}, {signal_fd, POLLIN, 0}};
    ::poll(events, 2, wait_ms);
    if (with_progress) show_progress(file, begin);
    if (events[0].revents != 0) {
      ending.daemon_died = true;
      break;
    }
    if (events[1].revents == 0) continue;
    signalfd_siginfo info{};
    if (::read(signal_fd, &info, sizeof(info)) != sizeof(info)) continue;
    if (info.ssi_signo != SIGCHLD) {
      if (program <= 0) break;
      // Ctrl-C reaches the program by itself; then it ends, or means to go on.
      if (info.ssi_signo == SIGTERM) ::kill(program, SIGTERM);
      continue;
    }
    int status = 0;
    if (::waitpid(program, &status, WNOHANG) == program) {
      ending.program_status = status;
      break;
    }
  }
  if (with_progress) std::cerr << "\r\033[K";
  return ending;
}

int exit_status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

int capture(const CaptureOptions& options) {
  const auto& program = program_after_dashes();
  const bool to_stdout = options.file == "-";
  if (to_stdout && ::isatty(STDOUT_FILENO) == 1)
    return complain("capture", "a capture is no text; pipe it, or name a file", kWrongUse);

  const DaemonLocation location = locate_daemon(options.socket_path);
  auto lifeline = hold_daemon(location);
  if (!lifeline) return complain("capture", lifeline.error());
  auto daemon = connect_to_daemon(location);
  if (!daemon) return complain("capture", daemon.error());

  // What the file holds is lost only once the capture runs, so the daemon empties it.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
  int file = to_stdout ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                       : ::open(options.file.c_str(), kFlags | O_EXCL, 0644);
  const bool is_new = file >= 0 && !to_stdout;
  if (file < 0 && errno == EEXIST) file = ::open(options.file.c_str(), kFlags, 0644);
  if (file < 0) return complain("capture", options.file + ": " + error_text(errno));

  sigset_t signals;
  sigset_t signals_before;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD})
    ::sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, &signals_before);
  const int signal_fd = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);

  Json request = {{"op", "capture"}, {"nics", options.nics}, {"truncate", !to_stdout}};
  if (options.snap_length_bytes != 0) request["snaplen"] = options.snap_length_bytes;
  const auto started = daemon->request(request, file);
  if (!started) {
    if (is_new) ::unlink(options.file.c_str());
    return complain("capture", options.file + ": " + started.error());
  }
  const pid_t child = program.empty() ? -1 : start(program, signals_before);
  if (child < 0 && !program.empty()) return complain("capture", std::string("fork: ") + error_text(errno));

  const Ending ending = wait_for_end(options, daemon->fd(), signal_fd, child, file);
  if (ending.daemon_died)
    return complain("capture", "the daemon has ended; the capture holds what was written until then");
  const auto totals = daemon->request({{"op", "capture_stop"}, {"id", (*started)["id"]}});
  if (!totals) return complain("capture", totals.error());
  std::ostream& out = to_stdout ? std::cerr : std::cout;
  out << options.file << ": " << totals->value("written", std::uint64_t{0}) << " packets, "
      << totals->value("bytes", std::uint64_t{0}) << " bytes, " << totals->value("lost", std::uint64_t{0})
      << " lost\n";
  if (totals->contains("error"))
    return complain("capture", options.file + ": " + totals->value("error", std::string()));
  return ending.program_status ? exit_status_of(*ending.program_status) : 0;
}

}  // namespace

void add_capture(CLI::App& root, int& exit_status) {
  CLI::App* const command =
      root.add_subcommand("capture", "Write packets to a pcapng file, as they are on the wire");
  auto options = std::make_shared<CaptureOptions>();
  command->add_option("-o,--output", options->file, "the file; - is standard output")
      ->type_name("FILE")
      ->required();
  command->add_option("--nic", options->nics, "packets of this NIC only (may be repeated; default: all)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      ->add_option("--snaplen", options->snap_length_bytes, "keep so many bytes of each packet; default: all")
      ->type_name("BYTES")
      ->check(CLI::Range(1u, 65535u));
  command
      ->add_option("--duration", options->duration_seconds,
                   "end after so many seconds; default: Ctrl-C or the program's end")
      ->type_name("SECONDS")
      ->check(seconds_from_to(0.1, 1e6));
  command->add_option("--socket", options->socket_path, "use the daemon that listens here, and start none")
      ->type_name("PATH");
  set_usage(*command, "roci capture -o FILE [OPTIONS] [-- PROGRAM [ARGUMENTS]...]");
  command->footer(
      "With a program: captures while it runs, and ends with its exit status; the program itself uses `roci "
      "run`.\n"
      "At the end it says how many packets were written, and how many were lost because the file was too "
      "slow.\n\n"
      "Examples: roci capture -o all.pcapng\n"
      "          roci capture -o - | tshark -r -\n"
      "          roci capture -o test.pcapng -- ./my_test_script");
  command->callback([options, &exit_status] { exit_status = capture(*options); });
}

}  // namespace roci::tools
