// Which paths mean our devices, and where they lie in the private view of sysfs and /dev.
//
// Redirected are /sys/class/infiniband*, /sys/class/misc/rdma_cm, /dev/infiniband, and what exists in the
// view of /sys/devices (where the links of the former lead). Nothing else is looked at beyond its first
// bytes. Any thread.
#pragma once

#include <cstddef>

namespace roci::shim {

// A path as an application gave it, and as the C library shall get it.
class MappedPath {
 public:
  explicit MappedPath(const char* path);
  MappedPath(const MappedPath&) = delete;
  MappedPath& operator=(const MappedPath&) = delete;

  [[nodiscard]] const char* c_str() const { return path_; }
  [[nodiscard]] bool is_redirected() const { return path_ == buffer_; }
  // N of /dev/infiniband/uverbsN, or -1.
  [[nodiscard]] int uverbs_number() const { return uverbs_number_; }
  // /dev/infiniband/rdma_cm.
  [[nodiscard]] bool is_rdma_cm() const { return is_rdma_cm_; }
  // A device file that is none of ours (umad): nothing in its place must be opened.
  [[nodiscard]] bool is_other_device() const { return is_other_device_; }

 private:
  void look_at(const char* below_dev_infiniband);

  const char* path_;
  int uverbs_number_ = -1;
  bool is_rdma_cm_ = false;
  bool is_other_device_ = false;
  char buffer_[1024];  // not touched unless redirected
};

// Turns a path inside the view into the one it stands for, in place; others stay. The result is never longer.
// Returns its length.
std::size_t strip_view(char* path, std::size_t length);

}  // namespace roci::shim
