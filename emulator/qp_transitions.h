// Which attributes a modify must and may carry, for each pair of QP states: one table [IBTA 11.2.5.2, Table
// 96].
//
// The sets are those that Linux's core accepts, as applications are written against them. Not here: values of
// attributes (control.cpp). Constants and pure functions, no thread rule.
#pragma once

#include <cstdint>

#include "emulator/command.h"

namespace roci::emulator {

// True if a QP of that type may go from one state to the other by a modify that carries `mask`
// (QpAttributeBit).
[[nodiscard]] bool is_transition_allowed(QpType type, QpState from, QpState to, std::uint32_t mask);

}  // namespace roci::emulator
