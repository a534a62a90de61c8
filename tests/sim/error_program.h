// A random program of one connection that must fail in one exact way, beside another that must not notice.
//
// The seed chooses the error, and what is posted before and behind it. Checked: the statuses of every
// completion in order, the state of both QPs, memory that must not change, the bystander's data. One doubt is
// left: where the link loses a NAK, the QP that sent it is in ERR and silent, so the requester may also run
// out of retries.
#pragma once

#include "tests/sim/program.h"

namespace roci::sim {

[[nodiscard]] ProgramResult run_error_program(const ProgramOptions& options);

}  // namespace roci::sim
