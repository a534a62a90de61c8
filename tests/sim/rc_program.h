// A random RC program: several connections between two NICs run every operation, and a simple model knows
// every byte.
//
// Checked: each byte of each buffer, targets and what lies around them; each completion, once, in order, with
// its fields; atomics executed once; nothing hangs. Here no operation may fail: the budget of retries is
// generous. error_program.h has those that must.
#pragma once

#include "tests/sim/program.h"

namespace roci::sim {

[[nodiscard]] ProgramResult run_rc_program(const ProgramOptions& options);

}  // namespace roci::sim
