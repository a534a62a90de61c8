#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>

namespace roci::fuzz {
namespace {

constexpr std::size_t kMaxChanges = 4;

std::size_t index_or_zero(sim::Random& random, std::size_t count) {
  return count == 0 ? 0 : random.index(count);
}
std::ptrdiff_t signed_of(std::size_t index) { return static_cast<std::ptrdiff_t>(index); }

// Small, around a power of two, or anything.
std::uint64_t striking_number(sim::Random& random) {
  switch (random.index(4)) {
    case 0:
      return random.index(9);
    case 1:
      return random.next() >> random.index(64);
    default:
      return (std::uint64_t{1} << random.index(64)) + random.index(3) - 1;
  }
}

// ---- bytes -----------------------------------------------------------------------------------------

void mutate_once(Input& input, const Input& other, sim::Random& random) {
  const std::size_t at = index_or_zero(random, input.size());
  const std::size_t left = input.size() - at;
  switch (random.index(8)) {
    case 0:
      if (left > 0) input[at] ^= static_cast<std::uint8_t>(1U << random.index(8));
      break;
    case 1:
      if (left > 0) input[at] = static_cast<std::uint8_t>(random.next());
      break;
    case 2:
      input.resize(at);
      break;
    case 3:
      input.insert(input.begin() + signed_of(at), static_cast<std::uint8_t>(random.next()));
      break;
    case 4: {
      const std::size_t count = std::min(left, 1 + random.index(8));
      input.erase(input.begin() + signed_of(at), input.begin() + signed_of(at + count));
      break;
    }
    case 5: {  // a number of 2, 4 or 8 bytes, in the host's order
      const std::uint64_t number = striking_number(random);
      const std::size_t count = std::min(left, std::size_t{2} << random.index(3));
      for (std::size_t i = 0; i < count; ++i)
        input[at + i] = static_cast<std::uint8_t>(number >> (8 * i));
      break;
    }
    case 6: {  // a piece written over
      const std::size_t from = index_or_zero(random, other.size());
      const std::size_t count = std::min({left, other.size() - from, std::size_t{1} << random.index(9)});
      std::copy_n(other.begin() + signed_of(from), count, input.begin() + signed_of(at));
      break;
    }
    default: {  // a piece put in
      const std::size_t from = index_or_zero(random, other.size());
      const std::size_t count = std::min(other.size() - from, std::size_t{1} << random.index(9));
      const Input piece(other.begin() + signed_of(from), other.begin() + signed_of(from + count));
      input.insert(input.begin() + signed_of(at), piece.begin(), piece.end());
      break;
    }
  }
}

// ---- text ------------------------------------------------------------------------------------------

using Lines = std::vector<std::string>;

Lines lines_of(const Input& input) {
  Lines lines(1);
  for (const std::uint8_t one : input) {
    if (one == '\n') {
      lines.emplace_back();
    } else {
      lines.back().push_back(static_cast<char>(one));
    }
  }
  return lines;
}

struct Span {
  std::size_t begin = 0, end = 0;
};
// The pieces of a line that are made of these characters alone, or of all others.
std::vector<Span> pieces(std::string_view line, std::string_view characters, bool of_these) {
  std::vector<Span> found;
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_one = (characters.find(line[i]) != std::string_view::npos) == of_these;
    if (is_one && !inside) found.push_back({i, i});
    if (is_one) found.back().end = i + 1;
    inside = is_one;
  }
  return found;
}

void change_number(std::string& line, sim::Random& random) {
  const std::vector<Span> numbers = pieces(line, "0123456789", true);
  if (numbers.empty()) return;
  const Span at = numbers[random.index(numbers.size())];
  std::uint64_t value = 0;
  std::from_chars(line.data() + at.begin, line.data() + at.end, value);
  value = random.index(3) == 0 ? striking_number(random) : value + random.index(5) - 2;
  line.replace(at.begin, at.end - at.begin, std::to_string(value));
}

void change_words(std::string& line, const std::string& other, sim::Random& random) {
  const std::vector<Span> mine = pieces(line, " ", false), theirs = pieces(other, " ", false);
  if (mine.empty() || theirs.empty()) return;
  const Span at = mine[random.index(mine.size())], from = theirs[random.index(theirs.size())];
  const std::string word = other.substr(from.begin, from.end - from.begin);
  switch (random.index(3)) {
    case 0:
      line.erase(at.begin, at.end - at.begin);
      break;
    case 1:
      line.replace(at.begin, at.end - at.begin, word);
      break;
    default:
      line.insert(at.begin, std::string(word).append(" "));
      break;
  }
}

void mutate_once(Lines& lines, const Lines& others, sim::Random& random) {
  const std::size_t at = random.index(lines.size());
  const std::string& other = others[random.index(others.size())];
  switch (random.index(10)) {
    case 0:
      if (lines.size() > 1) lines.erase(lines.begin() + signed_of(at));
      break;
    case 1: {
      const std::string again = lines[at];
      lines.insert(lines.begin() + signed_of(at), again);
      break;
    }
    case 2:
      std::swap(lines[at], lines[random.index(lines.size())]);
      break;
    case 3:
    case 4: {
      const std::string taken = other;
      lines.insert(lines.begin() + signed_of(at), taken);
      break;
    }
    case 5:
      change_words(lines[at], other, random);
      break;
    case 6:
      if (!lines[at].empty()) lines[at][random.index(lines[at].size())] = static_cast<char>(random.next());
      break;
    default:
      change_number(lines[at], random);
      break;
  }
}

}  // namespace

Input mutated_bytes(const Input& input, const Input& other, sim::Random& random) {
  Input changed = input;
  for (std::size_t left = 1 + random.index(kMaxChanges); left > 0; --left)
    mutate_once(changed, other, random);
  return changed;
}

Input mutated_text(const Input& input, const Input& other, sim::Random& random) {
  Lines lines = lines_of(input);
  const Lines others = lines_of(other);
  for (std::size_t left = 1 + random.index(kMaxChanges); left > 0; --left)
    mutate_once(lines, others, random);
  Input changed;
  for (const std::string& line : lines) {
    changed.insert(changed.end(), line.begin(), line.end());
    changed.push_back('\n');
  }
  changed.pop_back();
  return changed;
}

}  // namespace roci::fuzz
