// The memory that one context shares with its application: the control area, and areas for rings behind it.
//
// A sparse memfd of fixed size, mapped here once and sealed against resizing, so that nothing the application
// does to it can fault the daemon. An area that was freed reads as zero and costs nothing. kBytes is address
// space, not memory: with the smallest rings it holds DeviceLimits::max_qp QPs, and a largest send ring
// (32,768 slots of 1,024 bytes) thirty times; what does not fit is refused with ENOMEM. Control thread only;
// the mapping is the engine's too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <system_error>

#include "proto/result.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {

class ContextMemory {
 public:
  static constexpr std::size_t kBytes = std::size_t{1} << 30;

  // A part of the memory; `offset` is what the application maps.
  struct Area {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;  // whole pages
  };

  [[nodiscard]] static proto::Result<std::unique_ptr<ContextMemory>, std::errc> create();
  ~ContextMemory();
  ContextMemory(const ContextMemory&) = delete;
  ContextMemory& operator=(const ContextMemory&) = delete;

  [[nodiscard]] std::span<std::byte> control_area() const;
  [[nodiscard]] std::span<std::byte> bytes_of(const Area& area) const {
    return {base_ + area.offset, area.bytes};
  }
  [[nodiscard]] std::optional<Area> allocate(std::size_t bytes);
  // The engine does not touch it any more. Its pages go back to the system.
  void free(const Area& area);
  // The memfd, once: it is the application's from then on.
  [[nodiscard]] UniqueFd take_fd() { return std::move(fd_); }

 private:
  ContextMemory(std::byte* base, UniqueFd fd);

  std::byte* base_;
  UniqueFd fd_;
  std::map<std::uint64_t, std::size_t> free_;  // offset -> bytes; no two are neighbours
};

}  // namespace roci::shim
