#include "tests/script/words.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

namespace roci::scripts {
namespace {

constexpr std::uint64_t kMaxSeconds = 100'000;
constexpr std::uint64_t kMaxRange = 4096;

// Differs from byte to byte, from 256 bytes to the next, and from message to message.
std::byte pattern_byte(std::uint64_t message, std::uint64_t at) {
  return static_cast<std::byte>((at + 1) ^ (at >> 8) * 29 ^ message * 101);
}

struct Pattern {
  std::uint64_t message, offset;
};
std::optional<Pattern> pattern_of(std::string_view text) {
  if (text.empty() || text.front() != '~') return std::nullopt;
  text.remove_prefix(1);
  const std::size_t plus = text.find('+');
  Pattern pattern{number_of("data", text.substr(0, plus), 255), 0};
  if (plus != std::string_view::npos) pattern.offset = number_of("data", text.substr(plus + 1));
  return pattern;
}

}  // namespace

void complain(const std::string& message) { throw Stop{Stop::Kind::kWrongScript, message}; }

std::optional<std::uint64_t> try_number(std::string_view text) {
  const bool is_hex = text.substr(0, 2) == "0x";
  if (is_hex) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::uint64_t number_of(std::string_view key, std::string_view text, std::uint64_t max) {
  const std::optional<std::uint64_t> value = try_number(text);
  if (!value || *value > max) {
    complain(std::string(key) + "=" + std::string(text) + " is no number from 0 to " + std::to_string(max));
  }
  return *value;
}

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string hex(const std::byte* bytes, std::size_t count) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = std::to_integer<unsigned>(bytes[i]);
    text += digits[value >> 4];
    text += digits[value & 15];
  }
  return text;
}

// ---- time ------------------------------------------------------------------------------------------

emulator::Duration duration_of(std::string_view text) {
  if (text == "0") return emulator::Duration{0};
  const std::size_t digits = text.find_first_not_of("0123456789.");
  constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {
      {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
  const std::string_view count = text.substr(0, digits);
  const std::string_view name = digits == std::string_view::npos ? "" : text.substr(digits);
  const auto* const unit =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& one) { return one.first == name; });
  if (count.empty() || unit == std::end(kUnits)) {
    complain("'" + std::string(text) + "' is no time; '10ms', '0.64ms', '300us' and '2s' are");
  }
  const std::size_t dot = count.find('.');
  std::uint64_t total = number_of("time", count.substr(0, dot), kMaxSeconds * 1'000'000) * unit->second;
  std::uint64_t place = unit->second;
  for (const char digit : dot == std::string_view::npos ? std::string_view{} : count.substr(dot + 1)) {
    place /= 10;
    if (digit == '.' || place == 0) complain("'" + std::string(text) + "' is no whole number of nanoseconds");
    total += static_cast<std::uint64_t>(digit - '0') * place;
  }
  if (total > kMaxSeconds * 1'000'000'000) complain("'" + std::string(text) + "' is too long");
  return emulator::Duration{static_cast<std::int64_t>(total)};
}

std::string to_text(emulator::Duration duration) {
  const auto nanoseconds = duration.count();
  if (nanoseconds % 1'000'000 == 0) return std::to_string(nanoseconds / 1'000'000) + "ms";
  if (nanoseconds % 1'000 == 0) return std::to_string(nanoseconds / 1'000) + "us";
  return std::to_string(nanoseconds) + "ns";
}

When when_of(std::string_view text) {
  const std::size_t dots = text.find("..");
  When when;
  when.earliest = when.latest = duration_of(text.substr(0, dots));
  if (dots != std::string_view::npos) when.latest = duration_of(text.substr(dots + 2));
  if (when.latest < when.earliest) complain("'+" + std::string(text) + "' ends before it begins");
  return when;
}

Range range_of(std::string_view key, std::string_view text) {
  const std::size_t dots = text.find("..");
  Range range;
  range.first = range.last = number_of(key, text.substr(0, dots));
  if (dots != std::string_view::npos) range.last = number_of(key, text.substr(dots + 2));
  if (range.last < range.first || range.last - range.first >= kMaxRange) {
    complain(std::string(key) + "=" + std::string(text) + " is no range of up to " +
             std::to_string(kMaxRange));
  }
  return range;
}

// ---- bytes -----------------------------------------------------------------------------------------

Bytes bytes_of(std::string_view text, std::size_t count) {
  Bytes bytes(count);
  if (text == "zero") return bytes;
  if (const std::optional<Pattern> pattern = pattern_of(text)) {
    for (std::size_t i = 0; i < count; ++i)
      bytes[i] = pattern_byte(pattern->message, pattern->offset + i);
    return bytes;
  }
  bool is_hex = text.size() == 2 * count;
  for (std::size_t i = 0; is_hex && i < count; ++i) {
    std::uint8_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, value, 16);
    is_hex = error == std::errc{} && end == text.data() + 2 * i + 2;
    bytes[i] = std::byte{value};
  }
  if (!is_hex) {
    complain("data=" + std::string(text.substr(0, 40)) + " is not " + std::to_string(count) +
             " bytes in hexadecimal, nor 'zero', nor a pattern like ~1 or ~1+256");
  }
  return bytes;
}

std::optional<std::size_t> length_of_bytes(std::string_view text) {
  if (text == "zero" || (!text.empty() && text.front() == '~')) return std::nullopt;
  return text.size() / 2;
}

std::string advanced(std::string_view text, std::size_t bytes) {
  const std::optional<Pattern> pattern = pattern_of(text);
  if (!pattern) return std::string(text);
  return "~" + std::to_string(pattern->message) + "+" + std::to_string(pattern->offset + bytes);
}

// ---- words -----------------------------------------------------------------------------------------

Words::Words(std::string_view line) {
  for (;;) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t\r", begin), line.size());
    words_.push_back({std::string(line.substr(begin, end - begin))});
    line.remove_prefix(end);
  }
}

std::optional<std::string> Words::next() {
  for (Word& word : words_) {
    if (word.is_used || word.text.find('=') != std::string::npos || word.text == "->") continue;
    word.is_used = true;
    return word.text;
  }
  return std::nullopt;
}

std::string Words::need(std::string_view what) {
  std::optional<std::string> word = next();
  if (!word) complain("here " + std::string(what) + " is missing");
  return *std::move(word);
}

bool Words::flag(std::string_view wanted) {
  const auto found = std::find_if(words_.begin(), words_.end(),
                                  [&](const Word& word) { return !word.is_used && word.text == wanted; });
  if (found == words_.end()) return false;
  found->is_used = true;
  return true;
}

std::optional<std::string> Words::value(std::string_view key) {
  for (Word& word : words_) {
    const bool is_it = !word.is_used && word.text.size() > key.size() && word.text[key.size()] == '=' &&
                       std::string_view(word.text).substr(0, key.size()) == key;
    if (!is_it) continue;
    word.is_used = true;
    return word.text.substr(key.size() + 1);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Words::number(std::string_view key, std::uint64_t max) {
  const std::optional<std::string> text = value(key);
  if (!text) return std::nullopt;
  return number_of(key, *text, max);
}

std::vector<std::pair<std::string, std::string>> Words::rest() {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (Word& word : words_) {
    const std::size_t equals = word.text.find('=');
    if (word.is_used || equals == std::string::npos) continue;
    word.is_used = true;
    pairs.emplace_back(word.text.substr(0, equals), word.text.substr(equals + 1));
  }
  return pairs;
}

std::optional<std::string> Words::outcome() {
  if (words_.size() < 2 || words_[words_.size() - 2].text != "->") return std::nullopt;
  words_[words_.size() - 2].is_used = words_.back().is_used = true;
  return words_.back().text;
}

void Words::end() const {
  for (const Word& word : words_) {
    if (!word.is_used) complain("'" + word.text + "' does not belong here, or stands twice");
  }
}

}  // namespace roci::scripts
