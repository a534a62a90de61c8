#include "verbs_shim/preload/paths.h"

#include <fcntl.h>

#include <cstring>

#include "verbs_shim/preload/environment.h"
#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {
namespace {

constexpr char kDevices[] = "/dev/infiniband";

bool has_prefix(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

// `path` is `folder` or lies below it.
bool is_within(const char* path, const char* folder) {
  const std::size_t length = std::strlen(folder);
  return std::strncmp(path, folder, length) == 0 && (path[length] == 0 || path[length] == '/');
}

// N of "uverbsN", or -1.
int parse_uverbs(const char* name) {
  constexpr char kPrefix[] = "uverbs";
  if (!has_prefix(name, kPrefix)) return -1;
  const char* digit = name + sizeof(kPrefix) - 1;
  if (*digit == 0 || (*digit == '0' && digit[1] != 0)) return -1;
  int number = 0;
  for (; *digit != 0; ++digit) {
    if (*digit < '0' || *digit > '9' || number > 9999) return -1;
    number = number * 10 + (*digit - '0');
  }
  return number;
}

}  // namespace

void MappedPath::look_at(const char* below_dev_infiniband) {
  if (*below_dev_infiniband != '/') return;
  uverbs_number_ = parse_uverbs(below_dev_infiniband + 1);
  is_rdma_cm_ = std::strcmp(below_dev_infiniband, "/rdma_cm") == 0;
  is_other_device_ = uverbs_number_ < 0 && !is_rdma_cm_ && below_dev_infiniband[1] != 0;
}

MappedPath::MappedPath(const char* path) : path_(path) {
  if (path == nullptr || *path != '/') return;
  const Environment& ours = environment();
  if (!ours.active || ours.view_length == 0) return;

  const char* below_view = path;  // the part that is appended to the view's root
  bool must_exist = false;
  if (is_within(path, kDevices)) {
    look_at(path + sizeof(kDevices) - 1);
  } else if (has_prefix(path, "/sys/class/infiniband") || is_within(path, "/sys/class/misc/rdma_cm")) {
    below_view = path + sizeof("/sys") - 1;
  } else if (has_prefix(path, "/sys/devices/")) {
    below_view = path + sizeof("/sys") - 1;
    must_exist = true;
  } else {
    if (std::strncmp(path, ours.view, ours.view_length) == 0 && is_within(path + ours.view_length, kDevices))
      look_at(path + ours.view_length + sizeof(kDevices) - 1);
    return;
  }

  const std::size_t length = std::strlen(below_view);
  if (ours.view_length + length >= sizeof(buffer_)) return;
  std::memcpy(buffer_, ours.view, ours.view_length);
  std::memcpy(buffer_ + ours.view_length, below_view, length + 1);
  if (must_exist && system_call(SYS_faccessat, AT_FDCWD, buffer_, F_OK) != 0) return;
  path_ = buffer_;
}

std::size_t strip_view(char* path, std::size_t length) {
  const Environment& ours = environment();
  if (!ours.active || ours.view_length == 0 || length <= ours.view_length) return length;
  if (std::memcmp(path, ours.view, ours.view_length) != 0 || path[ours.view_length] != '/') return length;
  const std::size_t rest = length - ours.view_length;
  const char* below = path + ours.view_length;
  const bool is_device =
      rest >= sizeof(kDevices) - 1 && std::memcmp(below, kDevices, sizeof(kDevices) - 1) == 0;
  const std::size_t prefix = is_device ? 0 : sizeof("/sys") - 1;
  if (prefix > ours.view_length) return length;
  std::memmove(path + prefix, below, rest);
  std::memcpy(path, "/sys", prefix);
  return prefix + rest;
}

}  // namespace roci::shim
