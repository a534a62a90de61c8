#include "tests/sim/run.h"

#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/sim/churn_program.h"
#include "tests/sim/error_program.h"
#include "tests/sim/mixed_program.h"
#include "tests/sim/rc_program.h"

namespace roci::sim {

namespace {

constexpr unsigned kSeedsTried = 6;  // for each smaller run

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {{"rc", run_rc_program},
                                        {"errors", run_error_program},
                                        {"churn", run_churn_program},
                                        {"mixed", run_mixed_program}};
  return all;
}

std::vector<proto::Opcode> opcodes() {
  std::vector<proto::Opcode> all;
  for (unsigned i = 0; i < 256; ++i) {
    const auto opcode = static_cast<proto::Opcode>(i);
    const proto::OpcodeInfo& info = proto::info(opcode);
    const bool is_ours = info.service == proto::Service::kRc || info.service == proto::Service::kUc ||
                         info.service == proto::Service::kUd;
    if (info.is_known && is_ours) all.push_back(opcode);
  }
  return all;
}

ProgramResult run(const RunOptions& options) {
  for (const Kind& kind : kinds()) {
    if (options.kind == kind.name) return kind.run(options.program);
  }
  std::fprintf(stderr, "no such kind: %s\n", options.kind.c_str());
  std::abort();
}

std::string command_of(const RunOptions& options) {
  const ProgramOptions& program = options.program;
  const ProgramOptions usual;
  std::string text = "tools/sim --kind " + options.kind + " --seed " + std::to_string(program.seed) +
                     " --shards " + std::to_string(program.shards);
  if (program.operations != usual.operations) text += " --operations " + std::to_string(program.operations);
  if (program.max_connections != usual.max_connections)
    text += " --connections " + std::to_string(program.max_connections);
  for (std::size_t i = 0; i < kFaultCount; ++i) {
    if (!program.has(static_cast<Fault>(i))) text += std::string(" --without ") + kFaultNames[i];
  }
  return text;
}

std::string failure_apart(const RunOptions& options) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return "no pipe";
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) return "no process";
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);  // it said all this before
    std::signal(SIGABRT, SIG_DFL);  // a test program may have something to say there
    limit_run();
    const std::string failure = run(options).failure;
    const ssize_t written = write(ends[1], failure.data(), failure.size());
    _exit(written == static_cast<ssize_t>(failure.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string failure;
  std::array<char, 4096> text;
  for (ssize_t got = 0; (got = read(ends[0], text.data(), text.size())) > 0;)
    failure.append(text.data(), static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) return "no process";
  return status == 0 ? failure : failure_of_status(status);
}

void limit_run() {
  const itimerval limit{{}, {120, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
}

std::string failure_of_status(int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) return "does not end";
  if (WIFSIGNALED(status)) return "is ended by signal " + std::to_string(WTERMSIG(status));
  return "ends with exit status " + std::to_string(WEXITSTATUS(status));
}

std::string class_of(const std::string& failure) {
  std::string text;
  for (const char c : failure.substr(0, failure.find('\n'))) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit)
      text += c;
    else if (text.empty() || text.back() != '#')
      text += '#';
  }
  return text;
}

RunOptions shrink(const RunOptions& failing, const std::string& failure,
                  const std::function<std::string(const RunOptions&)>& failure_of) {
  const std::string wanted = class_of(failure);
  RunOptions best = failing;
  const auto keeps = [&](RunOptions smaller) {
    for (unsigned i = 0; i < kSeedsTried; ++i, ++smaller.program.seed) {
      if (class_of(failure_of(smaller)) != wanted) continue;
      best = smaller;
      return true;
    }
    return false;
  };
  for (std::size_t fault = 0; fault < kFaultCount; ++fault) {
    RunOptions smaller = best;
    smaller.program.without |= std::uint32_t{1} << fault;
    if (best.program.has(static_cast<Fault>(fault))) keeps(smaller);
  }
  if (best.program.shards > 1) {
    RunOptions smaller = best;
    smaller.program.shards = 1;
    keeps(smaller);
  }
  for (unsigned connections = 1; connections < best.program.max_connections; ++connections) {
    RunOptions smaller = best;
    smaller.program.max_connections = connections;
    if (keeps(smaller)) break;
  }
  for (unsigned step = best.program.operations / 2; step > 0; step /= 2) {
    while (best.program.operations > step) {
      RunOptions smaller = best;
      smaller.program.operations -= step;
      if (!keeps(smaller)) break;
    }
  }
  return best;
}

}  // namespace roci::sim
