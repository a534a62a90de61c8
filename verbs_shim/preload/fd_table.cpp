#include "verbs_shim/preload/fd_table.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {

constinit std::atomic<FdTag> fd_tags[kTrackedFds] = {};

namespace {

std::atomic<int> highest_fd{-1};
std::atomic<int> process_id{0};

// Hidden descriptors start here, or at three quarters of a lower limit. Not much higher, since the kernel's
// table, which fork copies, grows up to the highest one.
constexpr int kHiddenFdStart = 960;

}  // namespace

bool set_fd_tag(int fd, FdTag tag) {
  if (static_cast<unsigned>(fd) >= kTrackedFds) return false;
  int seen = highest_fd.load();
  while (seen < fd && !highest_fd.compare_exchange_weak(seen, fd)) {
  }
  fd_tags[fd].store(tag);
  return true;
}

FdTag clear_fd_tag(int fd) {
  if (static_cast<unsigned>(fd) >= kTrackedFds) return kUntracked;
  return fd_tags[fd].exchange(kUntracked);
}

int highest_tracked_fd() { return highest_fd.load(std::memory_order_relaxed); }

int hide_fd(int fd) {
  int start = kHiddenFdStart;
  rlimit limit{};
  if (system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) == 0 &&
      limit.rlim_cur < static_cast<rlim_t>(kHiddenFdStart) * 4 / 3)
    start = static_cast<int>(limit.rlim_cur * 3 / 4);
  long hidden = system_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, start);
  if (hidden < 0) hidden = system_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0);
  close_quietly(fd);
  if (hidden >= 0 && !set_fd_tag(static_cast<int>(hidden), kHidden)) {
    close_quietly(static_cast<int>(hidden));
    return -EMFILE;
  }
  return static_cast<int>(hidden);
}

bool is_own_process() { return process_id.load(std::memory_order_relaxed) == system_call(SYS_getpid); }

void adopt_process() { process_id.store(static_cast<int>(system_call(SYS_getpid))); }

}  // namespace roci::shim
