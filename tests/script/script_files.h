// The scripts that are there: every *.script below tests/script.
//
// Test code only. No thread rule.
#pragma once

#include <string>
#include <vector>

namespace roci::scripts {

struct ScriptFile {
  std::string name;  // "rc/responder/duplicate_send"
  std::string path;  // as the compiler names sources, for messages
  [[nodiscard]] std::string read() const;
};

// In the order of their names; the same object at each call.
[[nodiscard]] const std::vector<ScriptFile>& script_files();

}  // namespace roci::scripts
