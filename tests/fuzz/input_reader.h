// Numbers and bytes out of a fuzzer's input, in order; behind its end all is zero.
//
// Test code only. No thread rule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace roci::fuzz {

class InputReader {
 public:
  explicit InputReader(std::span<const std::uint8_t> input) : left_(input) {}

  [[nodiscard]] bool is_empty() const { return left_.empty(); }
  void bytes(std::span<std::byte> out) {
    const std::size_t count = std::min(out.size(), left_.size());
    std::memset(out.data(), 0, out.size());
    if (count > 0) std::memcpy(out.data(), left_.data(), count);
    left_ = left_.subspan(count);
  }
  // In the host's order.
  template <class Number>
  [[nodiscard]] Number number() {
    Number value{};
    bytes(std::as_writable_bytes(std::span<Number, 1>(&value, 1)));
    return value;
  }
  [[nodiscard]] std::uint8_t byte() { return number<std::uint8_t>(); }
  // Below `count`.
  [[nodiscard]] std::size_t choice(std::size_t count) { return byte() % count; }

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace roci::fuzz
