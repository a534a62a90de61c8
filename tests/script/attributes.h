// Attributes of a QP by name, as scripts set them with `qp` and `modify` and compare them with `query`.
//
// Test code only. Pure functions, no thread rule.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "emulator/command.h"

namespace roci::scripts {

struct Attribute {
  std::string_view name;
  std::uint32_t bit;  // QpAttributeBit
  void (*set)(emulator::QpAttributes&, std::uint64_t value);
  std::uint64_t (*get)(const emulator::QpAttributes&);
};
// Nothing: there is no such attribute.
[[nodiscard]] const Attribute* find_attribute(std::string_view name);

// What a transition of that QP type must carry [IBTA Table 96].
[[nodiscard]] std::uint32_t usual_mask(emulator::QpType type, emulator::QpState to);

}  // namespace roci::scripts
