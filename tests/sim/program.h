// What every random program has in common: how it is chosen, and what it reports.
//
// A program is a function of its options: same options, same bytes. Everything follows from the seed, also
// what the link and the daemon suffer. The other options make it smaller: they are how a failure is shrunk.
// No thread rule.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "tests/sim/link.h"
#include "tests/sim/world.h"

namespace roci::sim {

struct ProgramOptions {
  std::uint64_t seed = 1;
  unsigned shards = 1;
  unsigned operations = 150;     // of each end of a connection; half the actions of a churn program
  unsigned max_connections = 4;  // at most
  std::uint32_t without = 0;     // bit n: no fault n of Fault

  [[nodiscard]] bool has(Fault fault) const { return (without >> static_cast<unsigned>(fault) & 1) == 0; }
};

struct ProgramResult {
  std::string failure;  // empty: all is well
  std::string setting;  // what the seed chose, in a line
  std::uint64_t trace_hash = 0;
  std::uint64_t operations = 0, unsignaled = 0, messages_received = 0, bytes = 0;
  std::uint64_t retransmitted = 0, ack_timeouts = 0, rnr_naks = 0, sequence_naks = 0;
  FaultNumbers faults{};
  WorldCounts counts;
  emulator::Duration virtual_time{};

  [[nodiscard]] bool ok() const { return failure.empty(); }
};

// What the link and the daemon do to this run: mostly several faults at once, sometimes one, sometimes none.
void choose_faults(WorldConfig& config, const ProgramOptions& options, Random random);
// The same in words.
[[nodiscard]] std::string describe_faults(const WorldConfig& config);
// Nothing is lost and nothing arrives later than the link's delay.
[[nodiscard]] bool is_clean(const LinkConfig& link);

// Bytes by chance, always the same; large enough to take any piece of memory of a program from.
[[nodiscard]] std::span<const std::byte> noise();
// From a place by chance: fast, and no two fillings alike.
void fill_noise(Random& random, std::span<std::byte> bytes);

// Takes the counts of the world's engines and link over into the result; a violation becomes its failure if
// there is none yet.
void collect(World& world, const WorldConfig& config, ProgramResult& result);

}  // namespace roci::sim
