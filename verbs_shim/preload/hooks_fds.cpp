// Hooks of calls that take file descriptors: commands on our devices, and what opens, copies and closes
// descriptors, so that the table of fd_table.h stays true.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/netlink.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdarg>
#include <limits>

#include "verbs_shim/preload/device.h"
#include "verbs_shim/preload/environment.h"
#include "verbs_shim/preload/fd_table.h"
#include "verbs_shim/preload/real.h"
#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {
namespace {

constinit Real<ssize_t(int, const void*, std::size_t)> real_write{"write"};
constinit Real<int(int, unsigned long, void*)> real_ioctl{"ioctl"};
constinit Real<int(int, int, int)> real_socket{"socket"};
constinit Real<int(int)> real_close{"close"};
constinit Real<int(int)> real_dup{"dup"};
constinit Real<int(int, int)> real_dup2{"dup2"};
constinit Real<int(int, int, int)> real_dup3{"dup3"};
constinit Real<int(int, int, void*)> real_fcntl{"fcntl"};
constinit Real<int(int, int, void*)> real_fcntl64{"fcntl64"};
constinit Real<int(unsigned, unsigned, int)> real_close_range{"close_range"};
constinit Real<void(int)> real_closefrom{"closefrom"};

constexpr unsigned kLastFd = std::numeric_limits<unsigned>::max();

bool is_device_tag(FdTag tag) { return tag != kUntracked && tag != kHidden; }

// The number has been closed behind our back and means another file now, or will in a moment.
void forget(int fd, FdTag tag) {
  if (clear_fd_tag(fd) == tag) Device::of(tag).drop_fd();
}

// Before dup2() and dup3(): `fd` is going to be closed by the kernel. Returns its tag.
FdTag prepare_target(int fd) {
  if (fd_tag(fd) == kHidden && is_own_process()) Device::move_hidden_fd(fd);
  return fd_tag(fd);
}

void finish_duplicate(int from, int to, FdTag target_was) {
  if (!is_own_process()) return;
  if (is_device_tag(target_was)) forget(to, target_was);
  const FdTag tag = fd_tag(from);
  if (!is_device_tag(tag)) return;
  Device::of(tag).add_fd();
  if (!set_fd_tag(to, tag)) Device::of(tag).drop_fd();  // too high to be tracked: a file like any other
}

int duplicate_or_not(Real<int(int, int, void*)>& real, int fd, int command, void* argument) {
  const int result = real(fd, command, argument);
  const bool duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  if (duplicates && result >= 0 && fd_tag(fd) != kUntracked) finish_duplicate(fd, result, kUntracked);
  return result;
}

// All but the hidden ones, in as few calls as possible.
int close_around_hidden(unsigned first, unsigned last, int flags) {
  const auto highest = static_cast<unsigned>(highest_tracked_fd());
  unsigned begin = first;
  for (unsigned fd = first; fd <= last && fd <= highest; ++fd) {
    const FdTag tag = fd_tag(static_cast<int>(fd));
    if (is_device_tag(tag)) forget(static_cast<int>(fd), tag);
    if (tag != kHidden) continue;
    if (fd > begin && real_close_range(begin, fd - 1, flags) != 0) return -1;
    begin = fd + 1;
  }
  return begin <= last ? real_close_range(begin, last, flags) : 0;
}

bool concerns_us(unsigned first) {
  const int highest = highest_tracked_fd();
  return highest >= 0 && first <= static_cast<unsigned>(highest) && is_own_process();
}

}  // namespace
}  // namespace roci::shim

using namespace roci::shim;  // the hooks below are global by nature

ROCI_HOOK ssize_t write(int fd, const void* bytes, std::size_t length_bytes) {
  const FdTag tag = fd_tag(fd);
  if (is_device_tag(tag)) [[unlikely]] {
    const ssize_t written = Device::of(tag).write(fd, bytes, length_bytes);
    if (written != Device::kNotOurs) return written;
    if (is_own_process()) forget(fd, tag);
  }
  return real_write(fd, bytes, length_bytes);
}

ROCI_HOOK int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const FdTag tag = fd_tag(fd);
  // libibverbs then uses write() [UVERBS.md, commands].
  if (is_device_tag(tag) && Device::of(tag).is_same_file(fd)) return fail(ENOTTY);
  return real_ioctl(fd, request, argument);
}

ROCI_HOOK int socket(int domain, int type, int protocol) noexcept {
  // Without RDMA over netlink, libibverbs looks into sysfs, which is ours.
  constexpr int kNetlinkRdma = 20;
  if (domain == AF_NETLINK && protocol == kNetlinkRdma && environment().active) return fail(EPROTONOSUPPORT);
  return real_socket(domain, type, protocol);
}

ROCI_HOOK int close(int fd) {
  const FdTag tag = fd_tag(fd);
  if (tag == kUntracked || !is_own_process()) return real_close(fd);
  if (tag == kHidden) return fail(EBADF);
  const bool was_tracked = clear_fd_tag(fd) == tag;  // before the number can be used again
  const int result = real_close(fd);
  const int error = errno;
  if (was_tracked) Device::of(tag).drop_fd();
  errno = error;
  return result;
}

ROCI_HOOK int dup(int fd) noexcept {
  const int copy = real_dup(fd);
  if (copy >= 0 && fd_tag(fd) != kUntracked) finish_duplicate(fd, copy, kUntracked);
  return copy;
}

ROCI_HOOK int dup2(int from, int to) noexcept {
  if ((fd_tag(from) | fd_tag(to)) == kUntracked || from == to) return real_dup2(from, to);
  const FdTag target_was = prepare_target(to);
  const int result = real_dup2(from, to);
  if (result >= 0) finish_duplicate(from, to, target_was);
  return result;
}

ROCI_HOOK int dup3(int from, int to, int flags) noexcept {
  if ((fd_tag(from) | fd_tag(to)) == kUntracked || from == to) return real_dup3(from, to, flags);
  const FdTag target_was = prepare_target(to);
  const int result = real_dup3(from, to, flags);
  if (result >= 0) finish_duplicate(from, to, target_was);
  return result;
}

// Python's os.dup() is one of these.
ROCI_HOOK int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return duplicate_or_not(real_fcntl, fd, command, argument);
}

ROCI_HOOK int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return duplicate_or_not(real_fcntl64, fd, command, argument);
}

ROCI_HOOK int close_range(unsigned first, unsigned last, int flags) noexcept {
  const bool only_marks = (flags & static_cast<int>(CLOSE_RANGE_CLOEXEC)) != 0;
  if (first > last || only_marks || !concerns_us(first)) return real_close_range(first, last, flags);
  return close_around_hidden(first, last, flags);
}

ROCI_HOOK void closefrom(int first) noexcept {
  const unsigned from = first < 0 ? 0 : static_cast<unsigned>(first);
  if (!concerns_us(from)) return real_closefrom(first);
  close_around_hidden(from, kLastFd, 0);
}
