// roci-sim: random programs against simulated engines, each from its seed; the first that fails prints how to
// replay it, and the smallest that fails alike.
//
// The programs run in a child, so that one that crashes or never ends is reported like any other.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "proto/opcode.h"
#include "tests/sim/run.h"

namespace {

using namespace roci::sim;

using ull = unsigned long long;

struct Options {
  RunOptions run;
  std::uint64_t runs = 0, packets = 0;  // 0: any number
  double seconds = 0;
  bool all_kinds = true, all_shards = true;
  bool is_verbose = false, may_shrink = true;
};

// What the child has done so far; in memory that both see.
struct Progress {
  ull runs = 0, operations = 0, unsignaled = 0, messages = 0, bytes = 0, packets = 0, retransmitted = 0,
      timeouts = 0, rnr = 0, sequence = 0, passes = 0;
  double virtual_seconds = 0, took = 0, took_processor = 0;  // the latter two in seconds
  FaultNumbers faults{}, runs_with_fault{};
  std::array<std::uint64_t, 256> sent{}, accepted{};
  std::array<std::uint64_t, 9> runs_by_shards{};
  // The run that is going on, and its failure.
  std::size_t kind = 0;
  ProgramOptions program;
  bool has_failed = false;
  std::array<char, 4096> failure{}, setting{};

  void add(const ProgramResult& one) {
    ++runs;
    operations += one.operations;
    unsignaled += one.unsignaled;
    messages += one.messages_received;
    bytes += one.bytes;
    packets += one.counts.frames;
    retransmitted += one.retransmitted;
    timeouts += one.ack_timeouts;
    rnr += one.rnr_naks;
    sequence += one.sequence_naks;
    passes += one.counts.passes;
    virtual_seconds += std::chrono::duration<double>(one.virtual_time).count();
    for (std::size_t i = 0; i < kFaultCount; ++i) {
      faults[i] += one.faults[i];
      runs_with_fault[i] += one.faults[i] != 0 ? 1U : 0U;
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sent[i] += one.counts.sent[i];
      accepted[i] += one.counts.accepted[i];
    }
    ++runs_by_shards[program.shards];
  }

  void print() const {
    std::printf(
        "%llu runs (%llu with one shard, %llu with more), %llu packets in %.1f s: %.0f a second, %.0f of "
        "processor time\n",
        runs, static_cast<ull>(runs_by_shards[1]), runs - runs_by_shards[1], packets, took,
        static_cast<double>(packets) / took, static_cast<double>(packets) / took_processor);
    std::printf("%llu operations, %llu of rc and mixed programs unsignaled; %llu messages, %.1f MB\n",
                operations, unsignaled, messages, static_cast<double>(bytes) / 1e6);
    std::printf("%llu passes of a daemon, %.1f s of virtual time\n", passes, virtual_seconds);
    std::printf("%llu packets retransmitted, %llu ACK timeouts, %llu RNR NAKs, %llu sequence NAKs\n",
                retransmitted, timeouts, rnr, sequence);
    for (std::size_t i = 0; i < kFaultCount; ++i) {
      std::printf("  %-12s %8llu times, in %2.0f %% of the runs\n", kFaultNames[i],
                  static_cast<ull>(faults[i]),
                  100 * static_cast<double>(runs_with_fault[i]) / static_cast<double>(runs));
    }
    print_opcodes();
  }

  void print_opcodes() const {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (sent[i] == 0) continue;
      const roci::proto::OpcodeInfo& info = roci::proto::info(static_cast<roci::proto::Opcode>(i));
      std::printf("  %-32.*s %9llu sent, %9llu accepted\n", static_cast<int>(info.name.size()),
                  info.name.data(), static_cast<ull>(sent[i]), static_cast<ull>(accepted[i]));
    }
    std::string never;
    for (const roci::proto::Opcode one : opcodes()) {
      if (accepted[static_cast<std::size_t>(one)] == 0)
        never += ' ' + std::string(roci::proto::info(one).short_name);
    }
    std::printf("never accepted:%s\n", never.empty() ? " none" : never.c_str());
  }
};

RunOptions current(const Progress& progress) { return {kinds()[progress.kind].name, progress.program}; }

void run_all(const Options& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const bool is_open_ended = options.runs == 0 && (options.seconds > 0 || options.packets > 0);
  const std::uint64_t runs = options.runs == 0 ? 1 : options.runs;
  for (std::uint64_t i = 0; is_open_ended || i < runs; ++i) {
    if (options.seconds > 0 && progress.took > options.seconds) break;
    if (options.packets > 0 && progress.packets >= options.packets) break;
    progress.program = options.run.program;
    progress.program.seed += i;
    const std::uint64_t seed = progress.program.seed;
    if (options.all_shards) progress.program.shards = 1 + static_cast<unsigned>(seed / kinds().size() % 2);
    for (progress.kind = 0; !options.all_kinds && kinds()[progress.kind].name != options.run.kind;)
      ++progress.kind;
    if (options.all_kinds) progress.kind = static_cast<std::size_t>(seed % kinds().size());
    limit_run();
    const ProgramResult result = run(current(progress));
    progress.add(result);
    progress.took_processor = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    progress.took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options.is_verbose) {
      std::printf("%s %llu: %s; trace %016llx\n", kinds()[progress.kind].name, static_cast<ull>(seed),
                  result.setting.c_str(), static_cast<ull>(result.trace_hash));
    }
    if (!result.ok()) {
      progress.has_failed = true;
      std::strncpy(progress.failure.data(), result.failure.c_str(), progress.failure.size() - 1);
      std::strncpy(progress.setting.data(), result.setting.c_str(), progress.setting.size() - 1);
      return;
    }
  }
}

Progress& shared_progress() {
  void* const memory =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(2);
  }
  return *new (memory) Progress;
}

int judge(const Options& options, const Progress& progress, int status) {
  std::string failure = progress.failure.data();
  if (!progress.has_failed && status != 0) failure = failure_of_status(status);
  if (failure.empty()) {
    progress.print();
    return 0;
  }
  const RunOptions failing = current(progress);
  std::printf("FAILED after %llu packets of %llu runs: %s\n", progress.packets, progress.runs,
              failure.c_str());
  if (progress.setting[0] != 0) std::printf("with: %s\n", progress.setting.data());
  std::printf("replay: %s\n", command_of(failing).c_str());
  if (options.may_shrink)
    std::printf("smallest: %s\n", command_of(shrink(failing, failure, failure_apart)).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Random RDMA programs between simulated hosts, in virtual time. The same seed does the same."};
  std::vector<std::string> names, faults(kFaultNames.begin(), kFaultNames.end()), without;
  for (const Kind& kind : kinds())
    names.emplace_back(kind.name);
  ProgramOptions& program = options.run.program;
  app.add_option("--seed", program.seed, "seed of the first run; the next has the next number")
      ->capture_default_str();
  app.add_option("--runs", options.runs, "how many runs (default: one, or as many as the two below allow)");
  app.add_option("--seconds", options.seconds, "start no more runs after this time");
  app.add_option("--packets", options.packets, "start no more runs after so many packets");
  CLI::Option* const shards =
      app.add_option("--shards", program.shards, "engines a host (default: one and two by turns)")
          ->check(CLI::Range(1, 8));
  CLI::Option* const kind = app.add_option("--kind", options.run.kind,
                                           "rc: nothing may fail; errors: something must; churn: objects "
                                           "come and go; mixed: all services (default: by turns)")
                                ->check(CLI::IsMember(names));
  app.add_option("--operations", program.operations, "operations of each end of a connection")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--connections", program.max_connections, "connections at most")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--without", without, "a fault that shall not be")->check(CLI::IsMember(faults));
  app.add_flag("!--no-shrink", options.may_shrink, "do not look for a smaller run that fails alike");
  app.add_flag("-v,--verbose", options.is_verbose, "a line for each run");
  CLI11_PARSE(app, argc, argv);
  options.all_shards = shards->empty();
  options.all_kinds = kind->empty();
  for (std::size_t i = 0; i < kFaultCount; ++i) {
    if (std::find(without.begin(), without.end(), faults[i]) != without.end()) program.without |= 1U << i;
  }

  Progress& progress = shared_progress();
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    return 2;
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_all(options, progress);
    return 0;
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) {
    std::perror("waitpid");
    return 2;
  }
  return judge(options, progress, status);
}
