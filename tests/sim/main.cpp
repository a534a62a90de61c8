// roci-sim: random programs against simulated engines, each from its seed; the first that fails prints how to
// replay it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "tests/sim/churn_program.h"
#include "tests/sim/error_program.h"
#include "tests/sim/rc_program.h"

namespace {

using roci::sim::ProgramResult;

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t runs = 0;  // 0: one, or until the time is up
  double seconds = 0;
  unsigned shards = 0;  // 0: one and two by turns
  std::string kind = "all";
  unsigned operations = 150;
  bool is_verbose = false;
};

struct Totals {
  std::uint64_t runs = 0, operations = 0, messages = 0, bytes = 0, frames = 0, retransmitted = 0,
                timeouts = 0, rnr = 0, sequence = 0, pauses = 0, short_bursts = 0, blocked = 0, passes = 0;
  std::uint64_t faults[roci::sim::kFaultCount] = {};
  double virtual_seconds = 0;

  void add(const ProgramResult& one) {
    ++runs;
    operations += one.operations;
    messages += one.messages_received;
    bytes += one.bytes;
    frames += one.link_frames;
    retransmitted += one.retransmitted;
    timeouts += one.ack_timeouts;
    rnr += one.rnr_naks;
    sequence += one.sequence_naks;
    pauses += one.counts.pauses;
    short_bursts += one.counts.short_bursts;
    blocked += one.counts.blocked;
    passes += one.counts.passes;
    for (std::size_t i = 0; i < roci::sim::kFaultCount; ++i)
      faults[i] += one.faults[i];
    virtual_seconds += std::chrono::duration<double>(one.virtual_time).count();
  }
  void print(double took) const {
    std::printf(
        "%llu programs, %llu operations, %llu messages, %.1f MB, %llu frames, %.1f s of virtual time in %.1f "
        "s\n",
        static_cast<unsigned long long>(runs), static_cast<unsigned long long>(operations),
        static_cast<unsigned long long>(messages), static_cast<double>(bytes) / 1e6,
        static_cast<unsigned long long>(frames), virtual_seconds, took);
    std::printf("link:  ");
    for (std::size_t i = 0; i < roci::sim::kFaultCount; ++i) {
      std::printf(" %llu %s", static_cast<unsigned long long>(faults[i]), roci::sim::kFaultNames[i]);
    }
    std::printf("\ndaemon: %llu passes, %llu pauses, %llu short bursts, %llu with a NIC blocked\n",
                static_cast<unsigned long long>(passes), static_cast<unsigned long long>(pauses),
                static_cast<unsigned long long>(short_bursts), static_cast<unsigned long long>(blocked));
    std::printf("engine: %llu packets retransmitted, %llu ACK timeouts, %llu RNR NAKs, %llu sequence NAKs\n",
                static_cast<unsigned long long>(retransmitted), static_cast<unsigned long long>(timeouts),
                static_cast<unsigned long long>(rnr), static_cast<unsigned long long>(sequence));
  }
};

ProgramResult run(const std::string& kind, std::uint64_t seed, unsigned shards, unsigned operations) {
  if (kind == "churn") return roci::sim::run_churn_program({seed, shards});
  if (kind == "errors") return roci::sim::run_error_program({seed, shards});
  return roci::sim::run_rc_program({seed, shards, operations});
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Random RDMA programs between simulated hosts, in virtual time. The same seed does the same."};
  app.add_option("--seed", options.seed, "seed of the first program; the next has the next number")
      ->capture_default_str();
  app.add_option("--runs", options.runs, "how many programs (default: one, or as many as --seconds allows)");
  app.add_option("--seconds", options.seconds, "start no more programs after this time");
  app.add_option("--shards", options.shards, "engines a host; 0: one and two by turns")
      ->check(CLI::Range(0, 8))
      ->capture_default_str();
  app.add_option("--kind", options.kind,
                 "rc: nothing may fail; errors: something must; churn: objects come and go; all: by turns")
      ->check(CLI::IsMember({"rc", "errors", "churn", "all"}))
      ->capture_default_str();
  app.add_option("--operations", options.operations, "operations of each end of a connection (rc)")
      ->capture_default_str();
  app.add_flag("-v,--verbose", options.is_verbose, "a line for each program");
  CLI11_PARSE(app, argc, argv);

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const bool is_open_ended = options.runs == 0 && options.seconds > 0;
  const std::uint64_t runs = options.runs == 0 ? 1 : options.runs;
  Totals totals;
  for (std::uint64_t i = 0; is_open_ended || i < runs; ++i) {
    if (options.seconds > 0 && elapsed() > options.seconds) break;
    const std::uint64_t seed = options.seed + i;
    const unsigned shards = options.shards != 0 ? options.shards : 1 + static_cast<unsigned>(seed / 3 % 2);
    constexpr const char* kTurns[] = {"rc", "errors", "churn"};
    const std::string kind = options.kind != "all" ? options.kind : kTurns[seed % 3];
    const ProgramResult result = run(kind, seed, shards, options.operations);
    totals.add(result);
    if (options.is_verbose || !result.ok()) {
      std::printf("%s %llu: %s; trace %016llx\n", kind.c_str(), static_cast<unsigned long long>(seed),
                  result.setting.c_str(), static_cast<unsigned long long>(result.trace_hash));
    }
    if (!result.ok()) {
      std::printf("FAILED: %s\nreplay: tools/sim --kind %s --seed %llu --shards %u --operations %u\n",
                  result.failure.c_str(), kind.c_str(), static_cast<unsigned long long>(seed), shards,
                  options.operations);
      return 1;
    }
  }
  totals.print(elapsed());
  return 0;
}
