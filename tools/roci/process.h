// Becoming another program: its environment, its arguments, and what to say if it cannot be started.
//
// Single thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace roci::tools {

// The sentence for an errno.
[[nodiscard]] std::string error_text(int error);

// A copy of our environment, to be changed for another program.
class Environment {
 public:
  Environment();
  [[nodiscard]] std::string get(std::string_view name) const;  // empty if it is not set
  void set(std::string_view name, std::string_view value);
  void set_default(std::string_view name, std::string_view value);
  void remove(std::string_view name);
  [[nodiscard]] const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;  // "NAME=value"
};

// As exec wants them: null at the end; valid as long as `words`, which exec does not change.
[[nodiscard]] std::vector<char*> exec_pointers(const std::vector<std::string>& words);

// Becomes the program, which is searched for in our PATH. Returns only on failure, having complained in the
// name of `subcommand`, with the exit status that says so: 127 not found, 126 found, but cannot be started.
int become(std::string_view subcommand, const std::vector<std::string>& program,
           const Environment& environment);

}  // namespace roci::tools
