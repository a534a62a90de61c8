// Hooks of the execve family: the process id lives on, and the daemon would go on writing into the new
// program's memory, so the contexts of this process end first. A child of fork or vfork has none of its own
// and is not held up.
//
// Where it can be seen beforehand that the call will fail, nothing ends. posix_spawn() is a child of vfork.
#include <fcntl.h>
#include <unistd.h>

#include <alloca.h>

#include <cstdarg>
#include <cstring>

#include "verbs_shim/preload/device.h"
#include "verbs_shim/preload/fd_table.h"
#include "verbs_shim/preload/real.h"
#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {
namespace {

constinit Real<int(const char*, char* const*, char* const*)> real_execve{"execve"};
constinit Real<int(const char*, char* const*)> real_execv{"execv"};
constinit Real<int(const char*, char* const*)> real_execvp{"execvp"};
constinit Real<int(const char*, char* const*, char* const*)> real_execvpe{"execvpe"};
constinit Real<int(int, char* const*, char* const*)> real_fexecve{"fexecve"};
constinit Real<int(int, const char*, char* const*, char* const*, int)> real_execveat{"execveat"};

void prepare(const char* program) {
  if (highest_tracked_fd() < 0) return;
  const bool is_searched = program == nullptr || std::strchr(program, '/') == nullptr;
  if (!is_searched && system_call(SYS_faccessat, AT_FDCWD, program, X_OK) != 0) return;
  Device::close_all_for_exec();
}

// Without the null pointer that ends them.
std::size_t count_arguments(const char* first, va_list& arguments) {
  std::size_t count = 0;
  for (const char* argument = first; argument != nullptr; argument = va_arg(arguments, char*))
    ++count;
  return count;
}

void copy_arguments(char** vector, const char* first, std::size_t count, va_list& arguments) {
  vector[0] = const_cast<char*>(first);
  for (std::size_t i = 1; i <= count; ++i)
    vector[i] = va_arg(arguments, char*);
}

}  // namespace
}  // namespace roci::shim

using namespace roci::shim;  // the hooks below are global by nature

ROCI_HOOK int execve(const char* program, char* const arguments[], char* const variables[]) noexcept {
  prepare(program);
  return real_execve(program, arguments, variables);
}
ROCI_HOOK int execv(const char* program, char* const arguments[]) noexcept {
  prepare(program);
  return real_execv(program, arguments);
}
ROCI_HOOK int execvp(const char* program, char* const arguments[]) noexcept {
  prepare(program);
  return real_execvp(program, arguments);
}
ROCI_HOOK int execvpe(const char* program, char* const arguments[], char* const variables[]) noexcept {
  prepare(program);
  return real_execvpe(program, arguments, variables);
}
ROCI_HOOK int fexecve(int fd, char* const arguments[], char* const variables[]) noexcept {
  prepare(nullptr);
  return real_fexecve(fd, arguments, variables);
}
ROCI_HOOK int execveat(int folder, const char* program, char* const arguments[], char* const variables[],
                       int flags) noexcept {
  prepare(nullptr);
  return real_execveat(folder, program, arguments, variables, flags);
}

#define ROCI_EXEC_LIST(name, target)                                                \
  ROCI_HOOK int name(const char* program, const char* first, ...) noexcept {        \
    va_list list;                                                                   \
    va_start(list, first);                                                          \
    const std::size_t count = count_arguments(first, list);                         \
    va_end(list);                                                                   \
    auto** const vector = static_cast<char**>(alloca((count + 1) * sizeof(char*))); \
    va_start(list, first);                                                          \
    copy_arguments(vector, first, count, list);                                     \
    va_end(list);                                                                   \
    return target(program, vector);                                                 \
  }
ROCI_EXEC_LIST(execl, execv)
ROCI_EXEC_LIST(execlp, execvp)

ROCI_HOOK int execle(const char* program, const char* first, ...) noexcept {
  va_list list;
  va_start(list, first);
  const std::size_t count = count_arguments(first, list);
  va_end(list);
  auto** const vector = static_cast<char**>(alloca((count + 1) * sizeof(char*)));
  va_start(list, first);
  copy_arguments(vector, first, count, list);
  auto* const variables = va_arg(list, char**);
  va_end(list);
  return execve(program, vector, variables);
}
