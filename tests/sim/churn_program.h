// A random program of comings and goings: clients, regions and QPs are made, used, broken and destroyed amid
// traffic.
//
// Most of it fails in ways that are not predicted. Checked: every command is answered; memory, rings and
// control areas are not touched once they were given back (rings are freed, which a sanitizer watches); no
// work request completes twice; a connection that takes no part in it moves its data unharmed; nothing is
// left when all have gone.
#pragma once

#include <cstdint>

#include "tests/sim/rc_program.h"

namespace roci::sim {

struct ChurnProgramOptions {
  std::uint64_t seed = 1;
  unsigned shards = 1;
  unsigned actions = 400;
};
[[nodiscard]] ProgramResult run_churn_program(const ChurnProgramOptions& options);

}  // namespace roci::sim
