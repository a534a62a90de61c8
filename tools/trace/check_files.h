// `roci check`: captures in, verdicts out, as text or JSON.
//
// Not here: options (tools/roci/check.cpp) and rules. One thread.
#pragma once

#include "tools/trace/check_limits.h"

#include <iosfwd>
#include <string>
#include <vector>

namespace roci::tools {

// Exit status of `roci check`. Of several files the greatest counts.
inline constexpr int kCheckClean = 0;
inline constexpr int kCheckFindings = 1;
inline constexpr int kCheckUnreadable = 2;

struct CheckOptions {
  std::vector<std::string> paths;
  bool is_json = false;
  bool is_quiet = false;        // text: no summary of clean files
  bool shows_progress = false;  // on `err`, for long files
  Limits limits;
};

// Verdicts go to `out`, what hinders them to `err`.
[[nodiscard]] int check_files(const CheckOptions& options, std::ostream& out, std::ostream& err);

// The table of rules.
void print_rules(bool is_json, std::ostream& out);

}  // namespace roci::tools
