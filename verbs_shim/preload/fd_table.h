// What each file descriptor of this process is to the shim: nothing, a context of ours, or one that we hide.
//
// A flat table, so that a hook costs one load for a descriptor of somebody else. In the child of a vfork (or
// of a raw clone), which shares this table with its parent but has descriptors of its own, nothing here may
// change: is_own_process() tells. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace roci::shim {

// Descriptors from here on are never ours: opening a device fails with EMFILE instead.
inline constexpr unsigned kTrackedFds = 65536;

using FdTag = std::uint16_t;
inline constexpr FdTag kUntracked = 0;
inline constexpr FdTag kHidden = 0xFFFF;  // the shim's own: the application never got it, and must not close
                                          // it between them: 1 + the index of a device

// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
extern constinit std::atomic<FdTag> fd_tags[kTrackedFds];

[[nodiscard]] inline FdTag fd_tag(int fd) {
  const auto index = static_cast<unsigned>(fd);
  return index < kTrackedFds ? fd_tags[index].load(std::memory_order_relaxed) : kUntracked;
}
// False: the descriptor is too high to be tracked.
[[nodiscard]] bool set_fd_tag(int fd, FdTag tag);
// Returns what it was.
FdTag clear_fd_tag(int fd);
// No descriptor above it is tracked; -1 where none is.
[[nodiscard]] int highest_tracked_fd();

// A duplicate, with close-on-exec, out of the way of the low numbers that applications count on; the argument
// is closed, also on failure. Negative errno on failure.
[[nodiscard]] int hide_fd(int fd);

// False in a child of vfork() or of a clone() that ran no fork handlers.
[[nodiscard]] bool is_own_process();
// To be called at start and in the child of a fork.
void adopt_process();

}  // namespace roci::shim
