// One side of one cell of connection management: what librdmacm offers, seen from both ends.
#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "tests/interop/agreement.h"

namespace roci::interop {

// The requester is the active side: it connects. `device`: whose address of the cell's IP version is used.
// Nothing, or what was found to be wrong on this side. Throws when the two no longer understand each other.
std::string run_cm_cell(ibv_context* device, Line& line, const Cell& cell, bool is_requester);

}  // namespace roci::interop
