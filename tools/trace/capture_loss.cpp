#include "tools/trace/capture_loss.h"

#include "tools/trace/pcapng_blocks.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace roci::tools {
namespace {

constexpr std::uint16_t kFramesDropped = 5;    // isb_ifdrop: by the interface
constexpr std::uint16_t kFramesOsDropped = 7;  // isb_osdrop: by the operating system
constexpr std::size_t kFixedBytes = 12;        // of a statistics block, before its options

}  // namespace

std::uint64_t frames_lost_by_capture(const std::string& path) {
  // Statistics blocks repeat a running count; the last of each interface counts.
  std::map<std::uint32_t, std::uint64_t> by_interface;
  PcapngBlocks blocks(path);
  while (blocks.next()) {
    if (blocks.type() != PcapngBlocks::kStatistics || blocks.body().size() < kFixedBytes) continue;
    std::uint64_t& lost = by_interface[blocks.load<std::uint32_t>(0)];
    lost = 0;
    blocks.for_each_option(kFixedBytes, [&](std::uint16_t code, std::size_t at, std::size_t size) {
      if ((code == kFramesDropped || code == kFramesOsDropped) && size == 8)
        lost = std::max(lost, blocks.load<std::uint64_t>(at));
    });
  }
  std::uint64_t lost = 0;
  for (const auto& [interface, count] : by_interface)
    lost += count;
  return lost;
}

}  // namespace roci::tools
