// Scripts: a text file that tells what the peer, the application and the clock do, and what must follow.
//
// One line an event; README.md explains the language. A script runs in process against emulator::Engine
// through its public interface, in virtual time. Test code only. No thread rule.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace roci::scripts {

struct Failure {
  bool is_wrong_script = false;     // otherwise the engine did something else than the script says
  std::size_t line = 0;             // from 1
  std::string text;                 // the line as it stands
  std::string message;              // what was expected, what was seen, what differs
  std::vector<std::string> fields;  // the names of the fields that differ
};

// Nothing: all went as the script says.
[[nodiscard]] std::optional<Failure> run(std::string_view script);

// "FILE:LINE: ..." and what else there is to say.
[[nodiscard]] std::string to_text(std::string_view file, const Failure& failure);

}  // namespace roci::scripts
