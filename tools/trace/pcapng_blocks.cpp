#include "tools/trace/pcapng_blocks.h"

#include <array>
#include <filesystem>
#include <system_error>

namespace roci::tools {
namespace {

constexpr std::uint32_t kSectionHeader = 0x0A0D0D0A;
constexpr std::uint32_t kByteOrderMagic = 0x1A2B3C4D;
constexpr std::size_t kHeaderBytes = 8;  // type and length
constexpr std::size_t kLengthBytes = 4;  // again, at the end
constexpr std::size_t kMaxBodyBytes = std::size_t{1} << 20;

}  // namespace

PcapngBlocks::PcapngBlocks(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) file_.open(path, std::ios::binary);
}

bool PcapngBlocks::next() {
  std::array<char, kHeaderBytes + 4> head{};  // the least that a block has
  if (!file_.read(head.data(), head.size())) return false;
  type_ = load_from<std::uint32_t>(head.data());
  if (type_ == kSectionHeader) {  // the same in both byte orders
    has_section_ = true;
    is_swapped_ = false;
    is_swapped_ = load_from<std::uint32_t>(head.data() + kHeaderBytes) != kByteOrderMagic;
  }
  const std::size_t length = load_from<std::uint32_t>(head.data() + 4);
  if (!has_section_ || length < head.size() || length % 4 != 0) return false;
  const std::size_t body_bytes = length - kHeaderBytes - kLengthBytes;
  if (body_bytes == 0 || body_bytes > kMaxBodyBytes) {
    body_.clear();
    file_.seekg(static_cast<std::streamoff>(length - head.size()), std::ios::cur);
    return true;
  }
  body_.resize(body_bytes + kLengthBytes);
  std::memcpy(body_.data(), head.data() + kHeaderBytes, 4);
  if (!file_.read(body_.data() + 4, static_cast<std::streamsize>(body_bytes))) return false;
  body_.resize(body_bytes);
  return true;
}

}  // namespace roci::tools
