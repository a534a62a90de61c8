// What a process has mapped: whether memory that it wants to register is there.
//
// Free of side effects on the process, apart from the pages at both ends, which are read. A mapping may
// change right after; whoever then uses the memory gets an error of its own. Control thread (it may take some
// 10 us, more in a process of thousands of mappings).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <system_error>

namespace roci::shim {

// std::errc{}: [address, address + length_bytes) is mapped throughout, readable, and writable if that is
// asked for. Otherwise EFAULT, EPERM (this user may not reach that process's memory) or ESRCH.
[[nodiscard]] std::errc probe_memory(pid_t pid, std::uint64_t address, std::uint64_t length_bytes,
                                     bool writable);

// "name[pid]".
[[nodiscard]] std::string process_name(pid_t pid);

}  // namespace roci::shim
