// What holds of every packet that an engine sends and of every completion that it writes, whatever the test
// is about: each test checks it for nothing.
//
// Not here: what depends on the connection (path MTU, PSNs, addresses). Test code only; no thread rule.
#pragma once

#include <optional>
#include <string>

#include "emulator/shared_layout.h"
#include "proto/packet.h"

namespace roci::sim {

// What is wrong, in words; nothing if all is well. `packet` is RoCE.
[[nodiscard]] std::optional<std::string> unsound(const proto::Dissection& packet);
[[nodiscard]] std::optional<std::string> unsound(const emulator::RingCqe& cqe);

}  // namespace roci::sim
