#include "tools/trace/capture_loss.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <vector>

namespace roci::tools {
namespace {

constexpr std::uint32_t kSectionHeader = 0x0A0D0D0A;
constexpr std::uint32_t kByteOrderMagic = 0x1A2B3C4D;
constexpr std::uint32_t kInterfaceStatistics = 5;
constexpr std::uint16_t kFramesDropped = 5;    // isb_ifdrop: by the interface
constexpr std::uint16_t kFramesOsDropped = 7;  // isb_osdrop: by the operating system
constexpr std::size_t kBlockHeaderBytes = 8;   // type and length
constexpr std::size_t kFixedBytes = 12;        // of a statistics block, before its options
constexpr std::size_t kMaxStatisticsBytes = 4096;

template <class T>
T load(const char* at, bool is_swapped) {
  T value;
  std::memcpy(&value, at, sizeof value);
  if (!is_swapped) return value;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
}

// `body` is a statistics block without its header and its second length.
std::uint64_t lost_frames(const std::vector<char>& body, bool is_swapped) {
  std::uint64_t lost = 0;
  for (std::size_t at = kFixedBytes; at + 4 <= body.size();) {
    const auto code = load<std::uint16_t>(body.data() + at, is_swapped);
    const std::size_t size = load<std::uint16_t>(body.data() + at + 2, is_swapped);
    at += 4;
    if (code == 0 || at + size > body.size()) break;
    if ((code == kFramesDropped || code == kFramesOsDropped) && size == 8) {
      const auto count = load<std::uint64_t>(body.data() + at, is_swapped);
      lost = std::max(lost, count);
    }
    at += (size + 3) / 4 * 4;
  }
  return lost;
}

}  // namespace

std::uint64_t frames_lost_by_capture(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  // Statistics blocks repeat a running count; the last of each interface counts.
  std::map<std::uint32_t, std::uint64_t> by_interface;
  bool is_swapped = false;
  bool has_section = false;
  std::array<char, kBlockHeaderBytes + 4> header{};
  while (file.read(header.data(), header.size())) {
    const auto type = load<std::uint32_t>(header.data(), is_swapped);
    if (type == kSectionHeader) {
      has_section = true;
      is_swapped = load<std::uint32_t>(header.data() + kBlockHeaderBytes, false) != kByteOrderMagic;
    }
    if (!has_section) break;
    const std::uint32_t length = load<std::uint32_t>(header.data() + 4, is_swapped);
    if (length < header.size() || length % 4 != 0) break;
    std::size_t rest = length - header.size();
    if (type == kInterfaceStatistics && length <= kMaxStatisticsBytes && rest >= kFixedBytes) {
      std::vector<char> body(length - kBlockHeaderBytes - 4);
      std::memcpy(body.data(), header.data() + kBlockHeaderBytes, 4);
      if (!file.read(body.data() + 4, static_cast<std::streamsize>(body.size() - 4))) break;
      by_interface[load<std::uint32_t>(body.data(), is_swapped)] = lost_frames(body, is_swapped);
      rest = 4;
    }
    file.seekg(static_cast<std::streamoff>(rest), std::ios::cur);
  }
  std::uint64_t lost = 0;
  for (const auto& [interface, count] : by_interface)
    lost += count;
  return lost;
}

}  // namespace roci::tools
