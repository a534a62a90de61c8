#include "tools/roci/process.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "tools/roci/subcommand.h"

namespace roci::tools {
namespace {

bool names(const std::string& entry, std::string_view name) {
  return entry.size() > name.size() && entry.compare(0, name.size(), name) == 0 && entry[name.size()] == '=';
}

// exec says "permission denied" for a name that is nowhere, if one of the folders searched may not be
// entered.
bool is_anywhere(const std::string& name) {
  if (name.find('/') != std::string::npos) return true;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access(((folder.empty() ? "." : folder) + "/" + name).c_str(), F_OK) == 0) return true;
  return false;
}

}  // namespace

std::string error_text(int error) { return std::generic_category().message(error); }

Environment::Environment() {
  for (char** entry = environ; *entry != nullptr; ++entry)
    entries_.emplace_back(*entry);
}

std::string Environment::get(std::string_view name) const {
  for (const std::string& entry : entries_)
    if (names(entry, name)) return entry.substr(name.size() + 1);
  return {};
}

void Environment::set(std::string_view name, std::string_view value) {
  remove(name);
  entries_.push_back(std::string(name) + "=" + std::string(value));
}

void Environment::set_default(std::string_view name, std::string_view value) {
  if (std::none_of(entries_.begin(), entries_.end(),
                   [&](const std::string& entry) { return names(entry, name); }))
    set(name, value);
}

void Environment::remove(std::string_view name) {
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [&](const std::string& entry) { return names(entry, name); }),
                 entries_.end());
}

std::vector<char*> exec_pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words)
    pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int become(std::string_view subcommand, const std::vector<std::string>& program,
           const Environment& environment) {
  const std::vector<char*> arguments = exec_pointers(program);
  const std::vector<char*> variables = exec_pointers(environment.entries());
  ::execvpe(arguments[0], arguments.data(), variables.data());
  const int error = errno == EACCES && !is_anywhere(program[0]) ? ENOENT : errno;
  return complain(subcommand, program[0] + ": " + error_text(error), error == ENOENT ? 127 : 126);
}

}  // namespace roci::tools
