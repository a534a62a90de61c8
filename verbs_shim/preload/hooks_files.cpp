// Hooks of calls that take a path or ask about a file: they redirect our paths, open our devices, and say of
// our fds what a character device would say. Each passes everything else on unchanged.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "verbs_shim/preload/device.h"
#include "verbs_shim/preload/fd_table.h"
#include "verbs_shim/preload/paths.h"
#include "verbs_shim/preload/real.h"
#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {
namespace {

constexpr mode_t kDeviceMode = S_IFCHR | 0666;

bool is_ours(int fd) {
  const FdTag tag = fd_tag(fd);
  return tag != kUntracked && tag != kHidden && Device::of(tag).is_same_file(fd);
}

// ---- open ----------------------------------------------------------------------------------------------

// Takes over where the path is a device of ours: true, and `result` is what open() returns.
bool open_device(const MappedPath& path, int flags, int& result) {
  if (path.is_other_device()) {
    result = fail(ENOENT);
    return true;
  }
  if (path.uverbs_number() < 0 && !path.is_rdma_cm()) return false;
  // The view has a placeholder for each NIC that this application may see.
  if (const long error = system_call(SYS_faccessat, AT_FDCWD, path.c_str(), F_OK); error < 0)
    result = fail(static_cast<int>(-error));
  else if ((flags & O_PATH) != 0)
    return false;
  else
    result = Device::open(path.is_rdma_cm() ? Device::Kind::kRdmaCm : Device::Kind::kUverbs,
                          path.uverbs_number(), flags);
  return true;
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

mode_t mode_argument(int flags, va_list& arguments) {
  return takes_mode(flags) ? va_arg(arguments, mode_t) : 0;
}

template <typename Function>
int open_path(Real<Function>& real, const char* path, int flags, mode_t mode) {
  const MappedPath mapped(path);
  int result = 0;
  if (open_device(mapped, flags, result)) return result;
  return real(mapped.c_str(), flags, mode);
}

template <typename Function>
int open_path_at(Real<Function>& real, int folder, const char* path, int flags, mode_t mode) {
  const MappedPath mapped(path);
  int result = 0;
  if (open_device(mapped, flags, result)) return result;
  return real(folder, mapped.c_str(), flags, mode);
}

// The fortified ones, which take no mode.
template <typename Function>
int open_path_2(Real<Function>& real, const char* path, int flags) {
  const MappedPath mapped(path);
  int result = 0;
  if (open_device(mapped, flags, result)) return result;
  return real(mapped.c_str(), flags);
}

template <typename Function>
int open_path_at_2(Real<Function>& real, int folder, const char* path, int flags) {
  const MappedPath mapped(path);
  int result = 0;
  if (open_device(mapped, flags, result)) return result;
  return real(folder, mapped.c_str(), flags);
}

bool is_device(const MappedPath& path) { return path.uverbs_number() >= 0 || path.is_rdma_cm(); }
dev_t device_number(const MappedPath& path) {
  return path.is_rdma_cm()
             ? makedev(kRdmaCmMajor, kRdmaCmMinor)
             : makedev(kUverbsMajor, kUverbsFirstMinor + static_cast<unsigned>(path.uverbs_number()));
}

// ---- stat ----------------------------------------------------------------------------------------------

template <typename Status>
void look_like_device(Status& status, dev_t number) {
  status.st_mode = kDeviceMode;
  status.st_rdev = number;
  status.st_size = 0;
  status.st_blocks = 0;
}

// `call(path)` is the C library's function with that path.
template <typename Status, typename RealCall>
int stat_path(const char* path, Status* status, RealCall call) {
  const MappedPath mapped(path);
  const int result = call(mapped.c_str());
  if (result == 0 && is_device(mapped)) look_like_device(*status, device_number(mapped));
  return result;
}

template <typename Status, typename RealCall>
int stat_fd(int fd, Status* status, RealCall call) {
  const int result = call();
  if (result == 0 && is_ours(fd)) look_like_device(*status, Device::of(fd_tag(fd)).device_number());
  return result;
}

bool names_fd(const char* path, int flags) {
  return path != nullptr && *path == 0 && (flags & AT_EMPTY_PATH) != 0;
}

// fstatat() is either, by its flags.
template <typename Status, typename RealCall>
int stat_at(int folder, const char* path, Status* status, int flags, RealCall call) {
  if (names_fd(path, flags)) return stat_fd(folder, status, [&] { return call(path); });
  return stat_path(path, status, call);
}

constinit Real<int(const char*, int, mode_t)> real_open{"open"};
constinit Real<int(const char*, int, mode_t)> real_open64{"open64"};
constinit Real<int(int, const char*, int, mode_t)> real_openat{"openat"};
constinit Real<int(int, const char*, int, mode_t)> real_openat64{"openat64"};
constinit Real<int(const char*, int)> real_open_2{"__open_2"};
constinit Real<int(const char*, int)> real_open64_2{"__open64_2"};
constinit Real<int(int, const char*, int)> real_openat_2{"__openat_2"};
constinit Real<int(int, const char*, int)> real_openat64_2{"__openat64_2"};
constinit Real<FILE*(const char*, const char*)> real_fopen{"fopen"};
constinit Real<FILE*(const char*, const char*)> real_fopen64{"fopen64"};

constinit Real<int(const char*, struct stat*)> real_stat{"stat"};
constinit Real<int(const char*, struct stat64*)> real_stat64{"stat64"};
constinit Real<int(const char*, struct stat*)> real_lstat{"lstat"};
constinit Real<int(const char*, struct stat64*)> real_lstat64{"lstat64"};
constinit Real<int(int, struct stat*)> real_fstat{"fstat"};
constinit Real<int(int, struct stat64*)> real_fstat64{"fstat64"};
constinit Real<int(int, const char*, struct stat*, int)> real_fstatat{"fstatat"};
constinit Real<int(int, const char*, struct stat64*, int)> real_fstatat64{"fstatat64"};
constinit Real<int(int, const char*, int, unsigned, struct statx*)> real_statx{"statx"};
constinit Real<int(int, const char*, struct stat*)> real_xstat{"__xstat"};
constinit Real<int(int, const char*, struct stat64*)> real_xstat64{"__xstat64"};
constinit Real<int(int, const char*, struct stat*)> real_lxstat{"__lxstat"};
constinit Real<int(int, const char*, struct stat64*)> real_lxstat64{"__lxstat64"};
constinit Real<int(int, int, struct stat*)> real_fxstat{"__fxstat"};
constinit Real<int(int, int, struct stat64*)> real_fxstat64{"__fxstat64"};
constinit Real<int(int, int, const char*, struct stat*, int)> real_fxstatat{"__fxstatat"};
constinit Real<int(int, int, const char*, struct stat64*, int)> real_fxstatat64{"__fxstatat64"};

constinit Real<int(const char*, int)> real_access{"access"};
constinit Real<int(int, const char*, int, int)> real_faccessat{"faccessat"};
constinit Real<char*(const char*, char*)> real_realpath{"realpath"};
constinit Real<char*(const char*, char*, std::size_t)> real_realpath_chk{"__realpath_chk"};
constinit Real<ssize_t(const char*, char*, std::size_t)> real_readlink{"readlink"};
constinit Real<ssize_t(const char*, char*, std::size_t, std::size_t)> real_readlink_chk{"__readlink_chk"};
constinit Real<DIR*(const char*)> real_opendir{"opendir"};
using Filter = int(const dirent*);
using Filter64 = int(const dirent64*);
using Compare = int(const dirent**, const dirent**);
using Compare64 = int(const dirent64**, const dirent64**);
constinit Real<int(const char*, dirent***, Filter*, Compare*)> real_scandir{"scandir"};
constinit Real<int(const char*, dirent64***, Filter64*, Compare64*)> real_scandir64{"scandir64"};

// What an application reads out of the view, as if it were the real tree.
char* shown(char* path) {
  if (path != nullptr) path[strip_view(path, std::strlen(path))] = 0;
  return path;
}
ssize_t shown(char* path, ssize_t length, bool was_redirected) {
  if (length <= 0 || !was_redirected) return length;
  return static_cast<ssize_t>(strip_view(path, static_cast<std::size_t>(length)));
}

}  // namespace
}  // namespace roci::shim

using namespace roci::shim;  // the hooks below are global by nature

// NOLINTBEGIN(bugprone-reserved-identifier, bugprone-macro-parentheses): the names are the C library's, the
// macros' arguments are types and names.

#define ROCI_OPEN(name, real)                            \
  ROCI_HOOK int name(const char* path, int flags, ...) { \
    va_list arguments;                                   \
    va_start(arguments, flags);                          \
    const mode_t mode = mode_argument(flags, arguments); \
    va_end(arguments);                                   \
    return open_path(real, path, flags, mode);           \
  }
ROCI_OPEN(open, real_open)
ROCI_OPEN(open64, real_open64)
#define ROCI_OPENAT(name, real)                                      \
  ROCI_HOOK int name(int folder, const char* path, int flags, ...) { \
    va_list arguments;                                               \
    va_start(arguments, flags);                                      \
    const mode_t mode = mode_argument(flags, arguments);             \
    va_end(arguments);                                               \
    return open_path_at(real, folder, path, flags, mode);            \
  }
ROCI_OPENAT(openat, real_openat)
ROCI_OPENAT(openat64, real_openat64)
ROCI_HOOK int __open_2(const char* path, int flags) { return open_path_2(real_open_2, path, flags); }
ROCI_HOOK int __open64_2(const char* path, int flags) { return open_path_2(real_open64_2, path, flags); }
ROCI_HOOK int __openat_2(int folder, const char* path, int flags) {
  return open_path_at_2(real_openat_2, folder, path, flags);
}
ROCI_HOOK int __openat64_2(int folder, const char* path, int flags) {
  return open_path_at_2(real_openat64_2, folder, path, flags);
}
ROCI_HOOK FILE* fopen(const char* path, const char* mode) {
  return real_fopen(MappedPath(path).c_str(), mode);
}
ROCI_HOOK FILE* fopen64(const char* path, const char* mode) {
  return real_fopen64(MappedPath(path).c_str(), mode);
}

#define ROCI_STAT(name, real, Status)                                                         \
  ROCI_HOOK int name(const char* path, Status* status) noexcept {                             \
    return stat_path(path, status, [&](const char* mapped) { return real(mapped, status); }); \
  }
ROCI_STAT(stat, real_stat, struct stat)
ROCI_STAT(stat64, real_stat64, struct stat64)
ROCI_STAT(lstat, real_lstat, struct stat)
ROCI_STAT(lstat64, real_lstat64, struct stat64)
#define ROCI_FSTAT(name, real, Status)                            \
  ROCI_HOOK int name(int fd, Status* status) noexcept {           \
    return stat_fd(fd, status, [&] { return real(fd, status); }); \
  }
ROCI_FSTAT(fstat, real_fstat, struct stat)
ROCI_FSTAT(fstat64, real_fstat64, struct stat64)
#define ROCI_FSTATAT(name, real, Status)                                                     \
  ROCI_HOOK int name(int folder, const char* path, Status* status, int flags) noexcept {     \
    return stat_at(folder, path, status, flags,                                              \
                   [&](const char* mapped) { return real(folder, mapped, status, flags); }); \
  }
ROCI_FSTATAT(fstatat, real_fstatat, struct stat)
ROCI_FSTATAT(fstatat64, real_fstatat64, struct stat64)

// Binaries from before glibc 2.33 call these; `version` names the layout of the struct.
#define ROCI_XSTAT(name, real, Status)                                                                 \
  ROCI_HOOK int name(int version, const char* path, Status* status) noexcept;                          \
  ROCI_HOOK int name(int version, const char* path, Status* status) noexcept {                         \
    return stat_path(path, status, [&](const char* mapped) { return real(version, mapped, status); }); \
  }
ROCI_XSTAT(__xstat, real_xstat, struct stat)
ROCI_XSTAT(__xstat64, real_xstat64, struct stat64)
ROCI_XSTAT(__lxstat, real_lxstat, struct stat)
ROCI_XSTAT(__lxstat64, real_lxstat64, struct stat64)
#define ROCI_FXSTAT(name, real, Status)                                    \
  ROCI_HOOK int name(int version, int fd, Status* status) noexcept;        \
  ROCI_HOOK int name(int version, int fd, Status* status) noexcept {       \
    return stat_fd(fd, status, [&] { return real(version, fd, status); }); \
  }
ROCI_FXSTAT(__fxstat, real_fxstat, struct stat)
ROCI_FXSTAT(__fxstat64, real_fxstat64, struct stat64)
#define ROCI_FXSTATAT(name, real, Status)                                                             \
  ROCI_HOOK int name(int version, int folder, const char* path, Status* status, int flags) noexcept;  \
  ROCI_HOOK int name(int version, int folder, const char* path, Status* status, int flags) noexcept { \
    return stat_at(folder, path, status, flags,                                                       \
                   [&](const char* mapped) { return real(version, folder, mapped, status, flags); }); \
  }
ROCI_FXSTATAT(__fxstatat, real_fxstatat, struct stat)
ROCI_FXSTATAT(__fxstatat64, real_fxstatat64, struct stat64)

ROCI_HOOK int statx(int folder, const char* path, int flags, unsigned mask, struct statx* status) noexcept {
  const MappedPath mapped(path);
  const int result = real_statx(folder, mapped.c_str(), flags, mask, status);
  if (result != 0) return result;
  const bool is_fd = names_fd(path, flags) && is_ours(folder);
  if (is_fd || is_device(mapped)) {
    const dev_t number = is_fd ? Device::of(fd_tag(folder)).device_number() : device_number(mapped);
    status->stx_mode = kDeviceMode;
    status->stx_rdev_major = major(number);
    status->stx_rdev_minor = minor(number);
    status->stx_size = 0;
    status->stx_blocks = 0;
  }
  return result;
}

ROCI_HOOK int access(const char* path, int mode) noexcept {
  return real_access(MappedPath(path).c_str(), mode);
}
ROCI_HOOK int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  return real_faccessat(folder, MappedPath(path).c_str(), mode, flags);
}
ROCI_HOOK char* realpath(const char* path, char* resolved) noexcept {
  const MappedPath mapped(path);
  char* const result = real_realpath(mapped.c_str(), resolved);
  return mapped.is_redirected() ? shown(result) : result;
}
ROCI_HOOK char* __realpath_chk(const char* path, char* resolved, std::size_t resolved_bytes) noexcept;
ROCI_HOOK char* __realpath_chk(const char* path, char* resolved, std::size_t resolved_bytes) noexcept {
  const MappedPath mapped(path);
  char* const result = real_realpath_chk(mapped.c_str(), resolved, resolved_bytes);
  return mapped.is_redirected() ? shown(result) : result;
}
ROCI_HOOK ssize_t readlink(const char* path, char* target, std::size_t size_bytes) noexcept {
  const MappedPath mapped(path);
  return shown(target, real_readlink(mapped.c_str(), target, size_bytes), mapped.is_redirected());
}
ROCI_HOOK ssize_t __readlink_chk(const char* path, char* target, std::size_t size_bytes,
                                 std::size_t) noexcept;
ROCI_HOOK ssize_t __readlink_chk(const char* path, char* target, std::size_t size_bytes,
                                 std::size_t target_bytes) noexcept {
  const MappedPath mapped(path);
  return shown(target, real_readlink_chk(mapped.c_str(), target, size_bytes, target_bytes),
               mapped.is_redirected());
}
ROCI_HOOK DIR* opendir(const char* path) { return real_opendir(MappedPath(path).c_str()); }
ROCI_HOOK int scandir(const char* path, dirent*** entries, Filter* filter, Compare* compare) {
  return real_scandir(MappedPath(path).c_str(), entries, filter, compare);
}
ROCI_HOOK int scandir64(const char* path, dirent64*** entries, Filter64* filter, Compare64* compare) {
  return real_scandir64(MappedPath(path).c_str(), entries, filter, compare);
}
// NOLINTEND(bugprone-reserved-identifier, bugprone-macro-parentheses)
