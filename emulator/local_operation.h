// Work requests that send nothing: binding a memory window, and invalidating one.
//
// They take no PSN. One runs when everything before it in its queue is complete, which is stricter than the
// standard asks without a fence: an invalidation that overtook earlier work would end it, too
// [IBTA 9.4.1.1.1, 10.6.5.1]. So it completes at once, in order, and is never repeated. Thread rule: the
// engine's thread.
#pragma once

#include "emulator/shard.h"

namespace roci::emulator {

// Runs those whose turn it is, at most kMaxLocalOperations; true if there may be more.
bool run_local_operations(Shard& shard, Qp& qp);

}  // namespace roci::emulator
