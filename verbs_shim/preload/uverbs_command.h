// One uverbs command as the application wrote it: where its parts lie. Nothing is checked that only the
// daemon can know.
//
// Layouts are those of the kernel's rdma/ib_user_verbs.h; driver replies are rxe's (rdma_user_rxe.h), which
// cannot be included from C++: its flexible arrays change size there. Any thread.
#pragma once

#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace roci::shim {

// Where a ring lies in the context's memory [rdma_user_rxe.h, mminfo].
struct RingLocation {
  std::uint64_t offset;
  std::uint32_t size_bytes;
  std::uint32_t pad;
};
static_assert(sizeof(RingLocation) == 16);

class UverbsCommand {
 public:
  // 0 or the errno that the kernel gives a malformed header.
  [[nodiscard]] int parse(const void* bytes, std::size_t length_bytes);

  [[nodiscard]] bool is(std::uint32_t command) const { return command_ == command; }
  [[nodiscard]] bool is_extended() const { return is_extended_; }
  [[nodiscard]] std::byte* response() const { return response_; }
  [[nodiscard]] std::size_t response_capacity_bytes() const { return response_capacity_bytes_; }
  // Where the driver's part of the response begins; `core_bytes` is the size of the core part of the legacy
  // command.
  [[nodiscard]] std::size_t driver_response_offset(std::size_t core_bytes) const {
    return is_extended_ ? core_response_bytes_ : core_bytes;
  }
  // A member of the command's struct, by its offset there. The legacy structs begin with the response
  // pointer, which the extended ones lack.
  template <class T>
  [[nodiscard]] bool field(std::size_t offset, T& value) const {
    if (offset + sizeof(value) > body_bytes_) return false;
    std::memcpy(&value, body_ + offset, sizeof(value));
    return true;
  }

 private:
  [[nodiscard]] int find_modify_srq_response(std::uint64_t& response);

  std::uint32_t command_ = 0;  // without the flag
  bool is_extended_ = false;
  const std::byte* body_ = nullptr;
  std::size_t body_bytes_ = 0;
  std::byte* response_ = nullptr;
  std::size_t response_capacity_bytes_ = 0;
  std::size_t core_response_bytes_ = 0;
};

inline int UverbsCommand::parse(const void* bytes, std::size_t length_bytes) {
  constexpr std::uint32_t kExtended = 0x80000000u;
  ib_uverbs_cmd_hdr header;
  if (length_bytes < sizeof(header)) return EINVAL;
  std::memcpy(&header, bytes, sizeof(header));
  const auto* at = static_cast<const std::byte*>(bytes) + sizeof(header);
  is_extended_ = (header.command & kExtended) != 0;
  command_ = header.command & 0xFFu;

  std::uint64_t response = 0;
  if (is_extended_) {
    ib_uverbs_ex_cmd_hdr extension;
    if (length_bytes < sizeof(header) + sizeof(extension)) return EINVAL;
    std::memcpy(&extension, at, sizeof(extension));
    at += sizeof(extension);
    body_bytes_ = length_bytes - sizeof(header) - sizeof(extension);
    if (body_bytes_ != (std::size_t{header.in_words} + extension.provider_in_words) * 8) return EINVAL;
    response = extension.response;
    core_response_bytes_ = std::size_t{header.out_words} * 8;
    response_capacity_bytes_ = core_response_bytes_ + std::size_t{extension.provider_out_words} * 8;
  } else {
    if (length_bytes != std::size_t{header.in_words} * 4) return EINVAL;
    body_bytes_ = length_bytes - sizeof(header);
    response_capacity_bytes_ = std::size_t{header.out_words} * 4;
    if (response_capacity_bytes_ != 0) {
      if (body_bytes_ < sizeof(response)) return EINVAL;
      std::memcpy(&response, at, sizeof(response));
    }
  }
  body_ = at;
  if (const int error = find_modify_srq_response(response); error != 0) return error;
  if (response_capacity_bytes_ != 0 && response == 0) return EFAULT;
  response_ = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(response));
  return 0;
}

// MODIFY_SRQ has no response: the driver's part of the request says where the location of a new ring goes
// [rdma_user_rxe.h, rxe_modify_srq_cmd].
inline int UverbsCommand::find_modify_srq_response(std::uint64_t& response) {
  constexpr std::uint32_t kMaxWr = 1;  // IBV_SRQ_MAX_WR
  if (!is(IB_USER_VERBS_CMD_MODIFY_SRQ)) return 0;
  std::uint32_t mask = 0;
  if (!field(offsetof(ib_uverbs_modify_srq, attr_mask), mask) ||
      !field(offsetof(ib_uverbs_modify_srq, driver_data), response))
    return EINVAL;
  response_capacity_bytes_ = (mask & kMaxWr) != 0 ? sizeof(RingLocation) : 0;
  return 0;
}

}  // namespace roci::shim
