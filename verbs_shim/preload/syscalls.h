// System calls of the shim's own: never a hook, never a cancellation point, restarted after a signal where
// that is safe.
//
// Each returns the call's result or a negative errno and leaves errno alone, so a hook that did work on the
// side does not disturb the application. Any thread, signal handlers and children of vfork too.
#pragma once

#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>

#include <unistd.h>

namespace roci::shim {

template <typename... Arguments>
long system_call(long number, Arguments... arguments) {
  const int saved = errno;
  const long result = ::syscall(number, arguments...);
  const long outcome = result < 0 ? -static_cast<long>(errno) : result;
  errno = saved;
  return outcome;
}

template <typename... Arguments>
long system_call_restarted(long number, Arguments... arguments) {
  long outcome = 0;
  do
    outcome = system_call(number, arguments...);
  while (outcome == -EINTR);
  return outcome;
}

inline void close_quietly(int fd) {
  if (fd >= 0) system_call(SYS_close, fd);
}

// Sets errno and returns -1: how a hook fails.
inline int fail(int error) {
  errno = error;
  return -1;
}

}  // namespace roci::shim
