// A finding: which packet broke which rule, and how. Plain value, no thread rule.
#pragma once

#include "tools/trace/rules.h"

#include <cstdint>
#include <functional>
#include <string>

namespace roci::tools {

struct Finding {
  std::uint64_t packet = 0;  // number of the frame in its capture
  Rule rule = Rule::kIcrc;
  std::string text;  // one sentence with the figures
  // It rests on something that is not in the capture, so it means nothing if the capture itself lost frames.
  bool needs_whole_capture = false;
};

using Report = std::function<void(Finding)>;

}  // namespace roci::tools
