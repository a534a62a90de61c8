// A random program of comings and goings: clients, regions and QPs are made, used, broken and destroyed amid
// traffic.
//
// Most of it fails in ways that are not predicted. Checked: every command is answered; memory, rings and
// control areas are not touched once they were given back (rings are freed, which a sanitizer watches); no
// work request completes twice; a connection that takes no part in it moves its data unharmed; nothing is
// left when all have gone.
#pragma once

#include "tests/sim/program.h"

namespace roci::sim {

[[nodiscard]] ProgramResult run_churn_program(const ProgramOptions& options);

}  // namespace roci::sim
