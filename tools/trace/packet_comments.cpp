#include "tools/trace/packet_comments.h"

#include <algorithm>

namespace roci::tools {
namespace {

constexpr std::uint16_t kComment = 1;          // opt_comment
constexpr std::size_t kCapturedLengthAt = 12;  // in both kinds of packet block that have options
constexpr std::size_t kPacketBlockBytes = 20;  // before the packet

bool is_control(char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }

}  // namespace

std::string PacketComments::next() {
  std::string text;
  while (blocks_.next()) {
    if (blocks_.type() == PcapngBlocks::kSimplePacket) return text;
    if (blocks_.type() != PcapngBlocks::kEnhancedPacket && blocks_.type() != PcapngBlocks::kPacket) continue;
    if (blocks_.body().size() < kPacketBlockBytes) return text;
    const std::size_t captured = blocks_.load<std::uint32_t>(kCapturedLengthAt);
    blocks_.for_each_option(kPacketBlockBytes + (captured + 3) / 4 * 4,
                            [&](std::uint16_t code, std::size_t at, std::size_t size) {
                              if (code != kComment) return;
                              if (!text.empty()) text += "; ";
                              text.append(blocks_.body().data() + at, size);
                            });
    std::replace_if(text.begin(), text.end(), is_control, ' ');
    return text;
  }
  return text;
}

}  // namespace roci::tools
