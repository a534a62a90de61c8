// A random program of all services at once: hosts, NICs and shards full of RC, UC, UD and GSI QPs over shared
// CQs and SRQs.
//
// Checked: every work request completes once, in order, or is flushed; RC delivers each message once, in
// order, with the right bytes and fields, through regions and memory windows; UC delivers a message whole and
// right or not at all; a datagram arrives whole, with its source and GRH, not more often than the link
// delivers; ATOMICs are executed once; an armed CQ raises one event, also for what it held already, and an
// SRQ one when it falls below its limit, or is below it when it is armed; nothing hangs. Meanwhile CQs and
// SRQs are resized, windows and address handles come and go, these also from under queued sends, and
// connections are broken, their QPs destroyed, their regions deregistered and never touched again, and others
// take their place.
#pragma once

#include "tests/sim/program.h"

namespace roci::sim {

[[nodiscard]] ProgramResult run_mixed_program(const ProgramOptions& options);

}  // namespace roci::sim
