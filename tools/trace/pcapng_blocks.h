// The blocks of a pcapng file, for what libpcap does not tell: comments and statistics.
//
// A file of another kind has no blocks; a damaged one ends where the damage is. Not here: packets (reader.h).
// One thread at a time for each reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace roci::tools {

class PcapngBlocks {
 public:
  static constexpr std::uint32_t kPacket = 2, kSimplePacket = 3, kStatistics = 5, kEnhancedPacket = 6;

  // What can be read only once, such as a pipe, is left to who reads the packets.
  explicit PcapngBlocks(const std::string& path);

  // The next block. False: there is none.
  [[nodiscard]] bool next();
  [[nodiscard]] std::uint32_t type() const { return type_; }
  // Between the two lengths of the block; empty if it is longer than any that is of interest.
  [[nodiscard]] const std::vector<char>& body() const { return body_; }
  // An integer of the body, in the file's byte order.
  template <class T>
  [[nodiscard]] T load(std::size_t at) const {
    return load_from<T>(body_.data() + at);
  }
  // Calls visit(code, at, size) for each option from `at` on.
  template <class Visit>
  void for_each_option(std::size_t at, Visit visit) const {
    while (at + 4 <= body_.size()) {
      const auto code = load<std::uint16_t>(at);
      const std::size_t size = load<std::uint16_t>(at + 2);
      at += 4;
      if (code == 0 || at + size > body_.size()) return;
      visit(code, at, size);
      at += (size + 3) / 4 * 4;
    }
  }

 private:
  template <class T>
  [[nodiscard]] T load_from(const char* at) const {
    T value;
    std::memcpy(&value, at, sizeof value);
    if (!is_swapped_) return value;
    if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  }

  std::ifstream file_;
  bool has_section_ = false;
  bool is_swapped_ = false;
  std::uint32_t type_ = 0;
  std::vector<char> body_;
};

}  // namespace roci::tools
