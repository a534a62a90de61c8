// A CM message in words, for people: what identifies it and what it agrees on, not every field.
//
// Not here: the way back. Allocates; not for the data path. No thread rule.
#pragma once

#include "proto/cm.h"

#include <string>

namespace roci::proto {

// Without the message's name; for a REQ
//   local id 0x98e6701f, QPN 0xfa, starting PSN 0x125b51, service 7174/TCP from 10.77.0.11:35518 to
//   10.77.0.12, RC, path MTU 4096
// Never contains '#'.
[[nodiscard]] std::string cm_details(const CmMessage& message);

}  // namespace roci::proto
