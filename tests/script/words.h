// The words of a script's line: `key=value` pairs, bare words, numbers, durations and bytes as text.
//
// A complaint is thrown as Stop, which the runner catches and gives its file and line. Every word must be
// used, so that a misspelt one is told and never ignored. Test code only. No thread rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/time.h"

namespace roci::scripts {

using Bytes = std::vector<std::byte>;

// Ends a script: it is wrong itself, or what it expects did not come.
struct Stop {
  enum class Kind : std::uint8_t { kWrongScript, kMismatch };
  Kind kind = Kind::kWrongScript;
  std::string message;
  std::vector<std::string> fields{};  // kMismatch: which differ
};
[[noreturn]] void complain(const std::string& message);  // about the script

// Decimal or 0x...; complains about anything else, and above `max`.
[[nodiscard]] std::uint64_t number_of(std::string_view key, std::string_view text,
                                      std::uint64_t max = ~std::uint64_t{0});
[[nodiscard]] std::optional<std::uint64_t> try_number(std::string_view text);
[[nodiscard]] std::string hex(std::uint64_t value);
[[nodiscard]] std::string hex(const std::byte* bytes, std::size_t count);

// "0", "10ms", "0.64ms", "4s".
[[nodiscard]] emulator::Duration duration_of(std::string_view text);
[[nodiscard]] std::string to_text(emulator::Duration duration);

// When a line happens after the one before: "+10ms", or for an expectation "+1ms..4ms".
struct When {
  emulator::Duration earliest{0}, latest{0};
};
[[nodiscard]] When when_of(std::string_view text);  // behind the '+'

// "7" or "1..8".
struct Range {
  std::uint64_t first = 0, last = 0;
  [[nodiscard]] std::uint64_t count() const { return last - first + 1; }
};
[[nodiscard]] Range range_of(std::string_view key, std::string_view text);

// `count` bytes: hexadecimal, "zero", or "~S+OFFSET": message S, which no other message looks like, from
// that byte on.
[[nodiscard]] Bytes bytes_of(std::string_view text, std::size_t count);
// How many bytes a hexadecimal value has; nothing for the other forms.
[[nodiscard]] std::optional<std::size_t> length_of_bytes(std::string_view text);
// "~1+256" moved on by `bytes`; other forms stay.
[[nodiscard]] std::string advanced(std::string_view text, std::size_t bytes);

class Words {
 public:
  explicit Words(std::string_view line);

  // The next word without '=', in order; nothing if there is none.
  [[nodiscard]] std::optional<std::string> next();
  [[nodiscard]] std::string need(std::string_view what);  // or complain
  [[nodiscard]] bool flag(std::string_view word);
  [[nodiscard]] std::optional<std::string> value(std::string_view key);
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view key,
                                                    std::uint64_t max = ~std::uint64_t{0});
  // `key`=value pairs not asked for yet, in order; they count as used.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> rest();
  // What stands behind "->", the last two words; nothing without.
  [[nodiscard]] std::optional<std::string> outcome();
  // Complains about a word that nothing asked for.
  void end() const;

 private:
  struct Word {
    std::string text;
    bool is_used = false;
  };
  std::vector<Word> words_;
};

// A name from a table {{"INIT", value}, ...}; complains with all names.
template <class Table>
auto named(std::string_view what, std::string_view name, const Table& table) {
  std::string all;
  for (const auto& [text, value] : table) {
    if (text == name) return value;
    all.append(" ").append(text);
  }
  complain("'" + std::string(name) + "' is no " + std::string(what) + "; there are:" + all);
}
template <class Table, class Value>
std::string name_in(const Table& table, Value wanted) {
  for (const auto& [text, value] : table) {
    if (value == wanted) return std::string(text);
  }
  return std::to_string(static_cast<std::uint64_t>(wanted));
}

}  // namespace roci::scripts
