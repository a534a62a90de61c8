// Fuzz target: a script's text (tests/script/README.md), of which every line is carried out that can be,
// whatever came of the others.
//
// Aborts where the engine sends an unsound packet, or touches memory that was given up. What would take very
// long is passed over: time that goes by is bounded, and so is the number of lines. The corpus is the
// scripts.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "tests/fuzz/target.h"
#include "tests/script/runner.h"

namespace {

using namespace roci::scripts;
using roci::emulator::Duration;

constexpr std::size_t kMaxLines = 400;
constexpr Duration kMaxWait = std::chrono::seconds(3), kMaxTime = std::chrono::seconds(20);

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

std::string_view without_comment(std::string_view line) {
  if (starts_with(line, "#") || starts_with(line, "clause:") || starts_with(line, "topic:") ||
      starts_with(line, "case:"))
    return {};
  return line.substr(0, std::min(line.find(" #"), line.size()));
}

std::vector<Statement> statements_of(std::string_view text) {
  std::vector<Statement> statements;
  for (std::size_t number = 1; !text.empty() && number <= kMaxLines; ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_comment(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (starts_with(line, "& ")) {
      if (!statements.empty()) statements.back().burst.emplace_back(line.substr(2));
    } else if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      statements.push_back({number, std::string(line), {}});
    }
  }
  return statements;
}

// How long a line may take; nothing: it has no time that can be read.
std::optional<Duration> time_of(const Statement& statement) {
  try {
    const std::string word = Words(statement.text).need("a verb");
    if (!starts_with(word, "+")) return Duration{0};
    return when_of(std::string_view(word).substr(1)).latest;
  } catch (const Stop&) {
    return std::nullopt;
  }
}

void check(const Runner& runner) {
  const std::optional<std::string> broken = runner.broken_promise();
  roci::fuzz::require(!broken, broken ? broken->c_str() : "");
}

void execute(Runner& runner, const Statement& statement) {
  try {
    runner.execute(statement);
  } catch (const Stop&) {  // a mismatch, or no right line
    runner.drop_output();
  }
  check(runner);
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {true, nullptr};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Runner runner;
  Duration passed{0};
  for (const Statement& statement : statements_of({reinterpret_cast<const char*>(data), size})) {
    const std::optional<Duration> time = time_of(statement);
    if (!time || *time > kMaxWait || passed + *time > kMaxTime) continue;
    passed += *time;
    execute(runner, statement);
  }
  // Timers that still run.
  runner.drop_output();
  execute(runner, {0, "+50ms > nothing", {}});
  return 0;
}
