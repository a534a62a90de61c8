#include "verbs_shim/server/uverbs_call.h"

#include <rdma/ib_user_verbs.h>

#include <algorithm>

namespace roci::shim {
namespace {

// rdma-core 18 and 19 send DESTROY_CQ without its last words, and the kernel accepts that.
bool is_short_destroy_cq(const UverbsFormat& format, std::size_t length) {
  return format.command == IB_USER_VERBS_CMD_DESTROY_CQ && length == 16;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

proto::Result<std::uint32_t, std::errc> UverbsCall::command_of(std::span<const std::byte> bytes) {
  ib_uverbs_cmd_hdr header;
  if (bytes.size() < sizeof header) return proto::Unexpected{std::errc::invalid_argument};
  std::memcpy(&header, bytes.data(), sizeof header);
  return header.command;
}

proto::Result<UverbsCall, std::errc> UverbsCall::parse(const UverbsFormat& format,
                                                       std::span<const std::byte> bytes) {
  constexpr auto invalid = proto::Unexpected{std::errc::invalid_argument};
  constexpr auto kTooSmall = proto::Unexpected{std::errc::no_space_on_device};
  ib_uverbs_cmd_hdr header;
  if (bytes.size() < sizeof header) return invalid;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::span<const std::byte> body = bytes.subspan(sizeof header);

  UverbsCall call;
  call.extended_ = (header.command & kExtendedFlag) != 0;
  std::size_t core_bytes = format.request_bytes;
  std::size_t driver_capacity_bytes = 0;
  if (call.extended_) {
    ib_uverbs_ex_cmd_hdr extension;
    if (body.size() < sizeof extension) return invalid;
    std::memcpy(&extension, body.data(), sizeof extension);
    body = body.subspan(sizeof extension);
    core_bytes = std::size_t{header.in_words} * 8;
    if (core_bytes + std::size_t{extension.provider_in_words} * 8 != body.size()) return invalid;
    if (core_bytes < format.request_bytes) return kTooSmall;
    if (extension.cmd_hdr_reserved != 0) return invalid;
    if ((extension.response == 0) != (header.out_words == 0 && extension.provider_out_words == 0))
      return invalid;
    call.core_capacity_bytes_ = std::size_t{header.out_words} * 8;
    driver_capacity_bytes = std::size_t{extension.provider_out_words} * 8;
    call.total_capacity_bytes_ = call.core_capacity_bytes_ + driver_capacity_bytes;
    // A newer application may send more than this release knows, if it asks for nothing by it.
    const std::size_t known = std::min(core_bytes, kMaxCoreBytes);
    if (!all_zero(body.subspan(known, core_bytes - known)))
      return proto::Unexpected{std::errc::operation_not_supported};
    core_bytes = known;
  } else {
    if (std::size_t{header.in_words} * 4 != bytes.size()) return invalid;
    if (body.size() < core_bytes && !is_short_destroy_cq(format, bytes.size())) return kTooSmall;
    core_bytes = std::min(core_bytes, body.size());
    call.total_capacity_bytes_ = std::size_t{header.out_words} * 4;
    call.core_capacity_bytes_ = std::min<std::size_t>(call.total_capacity_bytes_, format.response_bytes);
    driver_capacity_bytes = call.total_capacity_bytes_ - call.core_capacity_bytes_;
  }
  if (call.core_capacity_bytes_ < format.response_bytes) return kTooSmall;
  if (driver_capacity_bytes < format.driver_response_bytes) return invalid;
  std::copy_n(body.begin(), core_bytes, call.core_.begin());
  return call;
}

std::vector<std::byte> UverbsCall::response(std::span<const std::byte> core,
                                            std::span<const std::byte> driver) const {
  std::vector<std::byte> bytes(core.begin(), core.end());
  // The driver's part of an extended response lies behind all the room of the core part.
  if (extended_) bytes.resize(core_capacity_bytes_);
  bytes.insert(bytes.end(), driver.begin(), driver.end());
  bytes.resize(std::min(bytes.size(), total_capacity_bytes_));
  return bytes;
}

}  // namespace roci::shim
