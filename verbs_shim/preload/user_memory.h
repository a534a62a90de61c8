// Copies from and to addresses that the application gave, which may be bad: then EFAULT, as the kernel does,
// and no signal.
//
// The kernel does the copying, on our own process. That costs about 0.6 us, so what lies on the caller's
// stack, as the commands of libibverbs do, is copied directly. Any thread.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {

// `frame`: of the function that asks. What begins within a page above it belongs to the functions that called
// it.
inline bool is_on_stack_above(const void* frame, const void* address, std::size_t length_bytes) {
  constexpr std::size_t kNear = 4096;
  const std::size_t distance =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(frame);
  return distance < kNear && length_bytes <= kNear - distance;
}

// `number` SYS_process_vm_readv or SYS_process_vm_writev, `ours` the side that is known to be good.
inline bool copy_by_kernel(long number, void* ours, void* theirs, std::size_t length_bytes) {
  const iovec local{ours, length_bytes}, remote{theirs, length_bytes};
  const long moved = system_call(number, system_call(SYS_getpid), &local, 1UL, &remote, 1UL, 0UL);
  if (moved >= 0 || moved == -EFAULT) return moved == static_cast<long>(length_bytes);
  // A seccomp filter denies the call: as good as it gets.
  const bool reads = number == SYS_process_vm_readv;
  std::memcpy(reads ? ours : theirs, reads ? theirs : ours, length_bytes);
  return true;
}

[[nodiscard]] inline bool copy_in(const void* frame, void* to, const void* from, std::size_t length_bytes) {
  if (!is_on_stack_above(frame, from, length_bytes)) [[unlikely]]
    return copy_by_kernel(SYS_process_vm_readv, to, const_cast<void*>(from), length_bytes);
  std::memcpy(to, from, length_bytes);
  return true;
}

[[nodiscard]] inline bool copy_out(const void* frame, void* to, const void* from, std::size_t length_bytes) {
  if (!is_on_stack_above(frame, to, length_bytes))
    return copy_by_kernel(SYS_process_vm_writev, const_cast<void*>(from), to, length_bytes);
  std::memcpy(to, from, length_bytes);
  return true;
}

// Can be written to, all of it. The bytes are copied onto themselves.
[[nodiscard]] inline bool is_writable(const void* frame, void* address, std::size_t length_bytes) {
  return is_on_stack_above(frame, address, length_bytes) ||
         copy_by_kernel(SYS_process_vm_writev, address, address, length_bytes);
}

}  // namespace roci::shim
