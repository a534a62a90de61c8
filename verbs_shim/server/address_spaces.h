// The processes whose memory the engines may reach: a table from AddressSpaceId to a pid.
//
// A space is used from add() to remove(); in between it may be marked dead, after which no new operation
// reaches the process. Not here: watching pidfds (server.cpp). What a pidfd cannot close: a process that ends
// and whose pid is taken by another one of the same user between the check and the system call. Thread rule:
// pid() and mark_dead() any thread, the others the control thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "emulator/memory.h"

namespace roci::shim {

class AddressSpaces {
 public:
  static constexpr std::uint32_t kMax = 16384;

  // Nothing: the table is full.
  [[nodiscard]] std::optional<emulator::AddressSpaceId> add(pid_t pid) {
    for (std::uint32_t tried = 0; tried < kMax; ++tried) {
      const std::uint32_t slot = next_;
      next_ = (next_ + 1) % kMax;
      if (used_[slot]) continue;
      used_[slot] = true;
      pids_[slot].store(pid, std::memory_order_release);
      return emulator::AddressSpaceId{slot};
    }
    return std::nullopt;
  }
  void mark_dead(emulator::AddressSpaceId space) { pids_[space.value].store(0, std::memory_order_release); }
  // No engine names it any more.
  void remove(emulator::AddressSpaceId space) {
    mark_dead(space);
    used_[space.value] = false;
  }
  // 0: dead, or no such space.
  [[nodiscard]] pid_t pid(emulator::AddressSpaceId space) const {
    return space.value < kMax ? pids_[space.value].load(std::memory_order_acquire) : 0;
  }

 private:
  std::array<std::atomic<pid_t>, kMax> pids_{};
  std::array<bool, kMax> used_{};
  std::uint32_t next_ = 0;
};

}  // namespace roci::shim
