// A random RC program: several connections between two NICs run every operation, and a simple model knows
// every byte.
//
// Checked: each byte of each buffer, targets and what lies around them; each completion, once, in order, with
// its fields; atomics executed once; nothing hangs. Everything follows from the seed, also what the link and
// the daemon suffer. Here no operation may fail: the budget of retries is generous. error_program.h has those
// that must.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/sim/link.h"
#include "tests/sim/world.h"

namespace roci::sim {

struct RcProgramOptions {
  std::uint64_t seed = 1;
  unsigned shards = 1;
  unsigned operations = 150;  // of each end of each connection, about
};

struct ProgramResult {
  std::string failure;  // empty: all is well
  std::string setting;  // what the seed chose, in a line
  std::uint64_t trace_hash = 0;
  std::uint64_t operations = 0, messages_received = 0, bytes = 0;
  std::uint64_t retransmitted = 0, ack_timeouts = 0, rnr_naks = 0, sequence_naks = 0;
  std::uint64_t link_frames = 0;
  std::array<std::uint64_t, kFaultCount> faults{};
  WorldCounts counts;
  emulator::Duration virtual_time{};

  [[nodiscard]] bool ok() const { return failure.empty(); }
};

[[nodiscard]] ProgramResult run_rc_program(const RcProgramOptions& options);

// Takes the counts of the world's engines and link over into the result; a violation becomes its failure if
// there is none yet.
void collect(World& world, const WorldConfig& config, ProgramResult& result);

}  // namespace roci::sim
