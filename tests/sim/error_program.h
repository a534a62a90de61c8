// A random program of one connection that must fail in one exact way, beside another that must not notice.
//
// The seed chooses the error, what is posted before and behind it, and how the daemon is paused and
// throttled; the link is clean, as a lost NAK would turn one status into another. Checked: the statuses of
// every completion in order, the state of both QPs, memory that must not change, the bystander's data.
#pragma once

#include <cstdint>

#include "tests/sim/rc_program.h"

namespace roci::sim {

struct ErrorProgramOptions {
  std::uint64_t seed = 1;
  unsigned shards = 1;
};
[[nodiscard]] ProgramResult run_error_program(const ErrorProgramOptions& options);

}  // namespace roci::sim
