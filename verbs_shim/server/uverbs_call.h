// One uverbs command as a client sent it: header checked, parts found, and the shape of the response it asked
// for.
//
// The checks and their errnos are the kernel's (ib_uverbs_write): a legacy command counts 4-byte words and
// begins with the response pointer, an extended one counts 8-byte words and has a header of its own. The
// pointer is the shim's business and ignored here. Pure; the bytes are copied out of the message, so the call
// may outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <system_error>
#include <vector>

#include "proto/result.h"

namespace roci::shim {

// What the ABI says of a command.
struct UverbsFormat {
  std::uint32_t command = 0;                // with the extended flag
  std::uint16_t request_bytes = 0;          // least size of the core request, without headers
  std::uint16_t response_bytes = 0;         // least room for the core response
  std::uint16_t driver_response_bytes = 0;  // least room for the driver's part
};

class UverbsCall {
 public:
  static constexpr std::uint32_t kExtendedFlag = 0x80000000u;
  static constexpr std::size_t kMaxCoreBytes = 256;

  // The command number of a message, with the flag; EINVAL if there is not even that.
  [[nodiscard]] static proto::Result<std::uint32_t, std::errc> command_of(std::span<const std::byte> bytes);
  [[nodiscard]] static proto::Result<UverbsCall, std::errc> parse(const UverbsFormat& format,
                                                                  std::span<const std::byte> bytes);

  // The core request as the ABI's struct; what the client left out is zero.
  template <class Request>
  [[nodiscard]] Request request() const {
    static_assert(sizeof(Request) <= kMaxCoreBytes);
    Request request;
    std::memcpy(static_cast<void*>(&request), core_.data(), sizeof request);
    return request;
  }
  // Bytes of the response: core and driver part, cut to what the client has room for.
  [[nodiscard]] std::vector<std::byte> response(std::span<const std::byte> core,
                                                std::span<const std::byte> driver) const;
  // Room for the core response in bytes: what `response_length` members report.
  [[nodiscard]] std::size_t core_capacity_bytes() const { return core_capacity_bytes_; }

 private:
  bool extended_ = false;
  std::array<std::byte, kMaxCoreBytes> core_{};
  std::size_t core_capacity_bytes_ = 0;  // extended: of the core part alone
  std::size_t total_capacity_bytes_ = 0;
};

}  // namespace roci::shim
