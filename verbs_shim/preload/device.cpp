#include "verbs_shim/preload/device.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "verbs_shim/preload/environment.h"
#include "verbs_shim/preload/syscalls.h"
#include "verbs_shim/preload/user_memory.h"
#include "verbs_shim/preload/watcher.h"

namespace roci::shim {

using emulator::ControlArea;
using emulator::CqArm;
using emulator::QpState;

namespace {

DeviceTable the_table;

void* map_fresh(std::size_t size_bytes, void* in_place_of = nullptr) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (in_place_of != nullptr ? MAP_FIXED : 0);
  return ::mmap(in_place_of, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

bool is_live(const bool& flag) { return __atomic_load_n(&flag, __ATOMIC_ACQUIRE); }
void set_live(bool& flag, bool value) { __atomic_store_n(&flag, value, __ATOMIC_RELEASE); }

// Threads create objects at the same time.
void raise_bound(std::uint32_t& bound, std::uint32_t at_least) {
  std::uint32_t seen = __atomic_load_n(&bound, __ATOMIC_RELAXED);
  while (seen < at_least &&
         !__atomic_compare_exchange_n(&bound, &seen, at_least, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

bool get_file_identity(int fd, struct stat& status) { return system_call(SYS_fstat, fd, &status) == 0; }

// Yama lets the daemon reach our memory only if we name it; without Yama this fails, which changes nothing.
void allow_memory_access(int daemon_pid) {
  if (daemon_pid > 0) system_call(SYS_prctl, PR_SET_PTRACER, daemon_pid, 0, 0, 0);
}

void unhide_and_close(std::atomic<int>& fd) {
  const int old = fd.exchange(-1);
  if (old < 0) return;
  clear_fd_tag(old);
  close_quietly(old);
}

}  // namespace

DeviceTable& device_table() { return the_table; }

// ---- opening and closing -----------------------------------------------------------------------------

Device& Device::of(FdTag tag) { return *the_table.devices[tag - 1]; }

Device* Device::claim_slot() {
  DeviceTable::Locked locked;
  for (Device*& slot : the_table.devices) {
    if (slot == nullptr) {
      void* const memory = map_fresh(sizeof(Device));
      void* const records = map_fresh(sizeof(Records));
      if (memory == MAP_FAILED || records == MAP_FAILED) return nullptr;
      slot = new (memory) Device;
      slot->records_ = static_cast<Records*>(records);
    }
    if (slot->state_ != State::kFree) continue;
    slot->state_ = State::kOpening;
    return slot;
  }
  return nullptr;
}

int Device::open(Kind kind, int uverbs_number, int open_flags) {
  {
    DeviceTable::Locked locked;
    static bool is_prepared = false;
    if (!is_prepared) {
      adopt_process();
      ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
      is_prepared = true;
    }
  }
  Device* const device = claim_slot();
  if (device == nullptr) return fail(EMFILE);
  device->kind_ = kind;
  const int fd = device->connect(uverbs_number, open_flags);
  if (fd < 0) {
    device->release();
    return fail(-fd);
  }
  Watcher::start();
  return fd;
}

// The application's fd, or a negative errno.
int Device::connect(int uverbs_number, int open_flags) {
  if (const int error = connection_.open(environment().socket_path); error < 0)
    return error == -EMFILE ? error : -ENODEV;
  int fd = -1;
  int error = kind_ == Kind::kUverbs ? connect_uverbs(uverbs_number, fd) : connect_rdma_cm(fd, open_flags);
  struct stat status {};
  if (error == 0 && !get_file_identity(fd, status)) error = EIO;
  if (error != 0) {
    close_quietly(fd);
    return -error;
  }
  nic_ = static_cast<std::uint32_t>(uverbs_number);
  file_device_ = status.st_dev;
  file_inode_ = status.st_ino;
  is_inherited_ = false;
  {
    DeviceTable::Locked locked;
    state_ = State::kOpen;
  }
  if ((open_flags & O_CLOEXEC) == 0) system_call(SYS_fcntl, fd, F_SETFD, 0);
  fd_count_.store(1);
  const auto index = static_cast<FdTag>(the_table.index_of(this));
  if (!set_fd_tag(fd, static_cast<FdTag>(index + 1))) {
    close_quietly(fd);
    return -EMFILE;
  }
  return fd;
}

// `memory_fd`: what is to become the application's, also on failure. Returns an errno.
int Device::connect_uverbs(int uverbs_number, int& memory_fd) {
  OpenDeviceRequest request;
  request.nic = static_cast<std::uint32_t>(uverbs_number);
  request.pid_hint = static_cast<std::uint32_t>(system_call(SYS_getpid));
  OpenDeviceReply reply;
  Call call;
  call.kind = MessageKind::kOpenDevice;
  call.request[0] = {&request, sizeof(request)};
  call.head = &reply;
  call.head_bytes = sizeof(reply);
  if (const int error = connection_.call(call); error != 0) return error;
  if (call.fd_count != 2) {
    for (std::size_t i = 0; i < call.fd_count; ++i)
      close_quietly(call.fds[i]);
    return EIO;
  }
  memory_fd = call.fds[0];
  kick_fd_.store(hide_fd(call.fds[1]));

  const long duplicate = system_call(SYS_fcntl, memory_fd, F_DUPFD_CLOEXEC, 0);
  if (duplicate >= 0) memory_fd_.store(hide_fd(static_cast<int>(duplicate)));
  if (kick_fd_.load() < 0 || duplicate < 0 || memory_fd_.load() < 0) return EMFILE;
  struct stat status {};
  if (!get_file_identity(memory_fd, status) ||
      static_cast<std::uint64_t>(status.st_size) < emulator::kControlAreaBytes)
    return EIO;
  if (const int error = map_control_area(memory_fd); error != 0) return error;
  allow_memory_access(connection_.daemon_pid());
  return 0;
}

// Maps it where an earlier one of this slot was. Returns an errno.
int Device::map_control_area(int memory_fd) {
  void* const where = control_;
  void* const mapped = ::mmap(where, emulator::kControlAreaBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | (where != nullptr ? MAP_FIXED : 0), memory_fd, 0);
  if (mapped == MAP_FAILED) return errno;
  control_ = static_cast<ControlArea*>(mapped);
  if (control_->magic == emulator::kControlMagic && control_->version == emulator::kControlVersion) return 0;
  return EPROTONOSUPPORT;
}

void Device::add_fd() { fd_count_.fetch_add(1); }

void Device::drop_fd() {
  if (fd_count_.fetch_sub(1) == 1) release();
}

// Also of a slot that never got to be open.
void Device::release() {
  {
    DeviceTable::Locked locked;
    state_ = State::kClosing;
  }
  if (connection_.fd() >= 0) {
    connection_.shut_down();
    while (running_.load() != 0)
      ::sched_yield();  // commands that just failed are on their way out
  }
  DeviceTable::Locked locked;
  connection_.close();
  unhide_and_close(kick_fd_);
  unhide_and_close(memory_fd_);
  if (control_ != nullptr) map_fresh(emulator::kControlAreaBytes, control_);  // see the head of device.h
  forget_rings();
  fd_count_.store(0);
  state_ = State::kFree;
}

void Device::forget_rings() {
  const auto unmap = [](Ring& ring) {
    if (ring.mapped != nullptr) ::munmap(ring.mapped, ring.location.size_bytes);
    ring.mapped = nullptr;
  };
  for (std::uint32_t i = 0; i < records_->qp_bound; ++i) {
    unmap(records_->qps[i].send_ring);
    unmap(records_->qps[i].recv_ring);
    set_live(records_->qps[i].is_live, false);
  }
  for (std::uint32_t i = 0; i < records_->cq_bound; ++i) {
    unmap(records_->cqs[i].ring);
    set_live(records_->cqs[i].is_live, false);
  }
  for (std::uint32_t i = 0; i < records_->srq_bound; ++i) {
    unmap(records_->srqs[i].ring);
    set_live(records_->srqs[i].is_live, false);
  }
}

bool Device::is_same_file(int fd) const {
  struct stat status {};
  return get_file_identity(fd, status) && status.st_dev == file_device_ && status.st_ino == file_inode_;
}

dev_t Device::device_number() const {
  return kind_ == Kind::kUverbs ? makedev(kUverbsMajor, kUverbsFirstMinor + nic_)
                                : makedev(kRdmaCmMajor, kRdmaCmMinor);
}

void Device::move_hidden_fd(int fd) {
  DeviceTable::Locked locked;
  const long elsewhere = system_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, fd + 1);
  const long moved = elsewhere >= 0 ? elsewhere : system_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0);
  if (moved < 0 || !set_fd_tag(static_cast<int>(moved), kHidden)) return;
  const int target = static_cast<int>(moved);
  for (Device* device : the_table.devices) {
    if (device == nullptr || device->state_ == State::kFree) continue;
    if (device->connection_.fd() == fd) device->connection_.set_fd(target);
    if (device->kick_fd_.load() == fd) device->kick_fd_.store(target);
    if (device->memory_fd_.load() == fd) device->memory_fd_.store(target);
  }
  Watcher::replace_fd_locked(fd, target);
  clear_fd_tag(fd);
}

void Device::close_all_for_exec() {
  if (!is_own_process()) return;
  for (Device* device : the_table.devices) {
    if (device == nullptr) break;
    if (device->state_ != State::kOpen || device->is_inherited_) continue;
    Call call;
    call.kind = MessageKind::kCloseDevice;
    static_cast<void>(
        device->connection_.call(call));  // it fails only if the daemon is gone, which is as good
    device->connection_.shut_down();
  }
}

void Device::after_fork_in_child() {
  adopt_process();
  the_table.reset_lock_after_fork();
  Watcher::reset_after_fork();
  for (Device* device : the_table.devices) {
    if (device == nullptr) break;
    if (device->state_ == State::kFree) continue;
    // Our duplicates only: a context belongs to the parent, and must end with it.
    device->connection_.close();
    device->connection_.reset_after_fork();
    unhide_and_close(device->kick_fd_);
    unhide_and_close(device->memory_fd_);
    device->running_.store(0);
    device->is_inherited_ = true;
    if (device->state_ != State::kOpen || device->fd_count_.load() == 0) device->release();
  }
}

// ---- commands ----------------------------------------------------------------------------------------

ssize_t Device::write(int fd, const void* bytes, std::size_t length_bytes) {
  const void* const frame = __builtin_frame_address(0);
  if (kind_ == Kind::kUverbs) [[likely]]
    return write_uverbs(fd, bytes, length_bytes, frame);
  return write_rdma_cm(fd, bytes, length_bytes, frame);
}

ssize_t Device::write_uverbs(int fd, const void* bytes, std::size_t length_bytes, const void* frame) {
  ib_uverbs_cmd_hdr header{};
  std::byte begin[sizeof(header) + sizeof(ib_uverbs_post_send)] = {};  // all that is looked at here
  const bool is_readable = length_bytes >= sizeof(begin) ? copy_in(frame, begin, bytes, sizeof(begin))
                                                         : copy_in(frame, begin, bytes, length_bytes);
  std::memcpy(&header, begin, sizeof(header));
  int error = 0;
  if (is_readable && header.command == IB_USER_VERBS_CMD_POST_SEND && length_bytes >= sizeof(begin) &&
      !is_inherited_) [[likely]] {
    ib_uverbs_post_send post;
    std::memcpy(&post, begin + sizeof(header), sizeof(post));
    error = post.wr_count == 0 ? post_send(post.qp_handle) : EINVAL;
  } else if (!is_same_file(fd)) {
    return kNotOurs;
  } else if (is_inherited_ || !is_own_process()) {
    error = EIO;
  } else if (length_bytes < sizeof(header)) {
    error = EINVAL;
  } else if (!is_readable) {
    error = EFAULT;
  } else if (header.command == IB_USER_VERBS_CMD_REQ_NOTIFY_CQ &&
             length_bytes >= sizeof(header) + sizeof(ib_uverbs_req_notify_cq)) {
    ib_uverbs_req_notify_cq notify;
    static_assert(sizeof(header) + sizeof(notify) <= sizeof(begin));
    std::memcpy(&notify, begin + sizeof(header), sizeof(notify));
    error = arm(notify.cq_handle, notify.solicited_only != 0);
  } else {
    error = run(fd, bytes, length_bytes, frame);
  }
  if (error != 0) return fail(error);
  return static_cast<ssize_t>(length_bytes);
}

int Device::post_send(std::uint32_t qp) {
  if (__atomic_load_n(&control_->dead, __ATOMIC_RELAXED) != 0) return EIO;
  if (qp >= emulator::kMaxQpsPerContext) return EINVAL;
  const std::uint8_t qp_state = __atomic_load_n(&control_->qp_state[qp], __ATOMIC_RELAXED);
  if (qp_state < static_cast<std::uint8_t>(QpState::kRts) ||
      qp_state > static_cast<std::uint8_t>(QpState::kErr))
    return EINVAL;
  ring_doorbell(qp);
  return 0;
}

void Device::ring_doorbell(std::uint32_t slot) {
  emulator::set_doorbell(*control_, slot);
  if (__atomic_load_n(&control_->asleep, __ATOMIC_SEQ_CST) != 0 &&
      __atomic_exchange_n(&control_->asleep, 0u, __ATOMIC_SEQ_CST) != 0) {
    const std::uint64_t one = 1;
    system_call(SYS_write, kick_fd_.load(std::memory_order_relaxed), &one, sizeof(one));
  }
}

int Device::arm(std::uint32_t cq, bool solicited_only) {
  if (__atomic_load_n(&control_->dead, __ATOMIC_RELAXED) != 0) return EIO;
  if (cq >= emulator::kMaxCqsPerContext || !is_live(records_->cqs[cq].is_live)) return EINVAL;
  if (arm_cq(control_->cq_arm[cq], solicited_only ? CqArm::kSolicited : CqArm::kNext))
    ring_doorbell(emulator::cq_doorbell(cq));
  return 0;
}

// Request and response are copied once, each: what the other threads of the application do to them meanwhile
// changes nothing, and an address that is bad is found before the daemon has done anything.
int Device::run(int fd, const void* bytes, std::size_t length_bytes, const void* frame) {
  if (length_bytes > kMaxCommandBytes) return EINVAL;
  std::byte written[kMaxCommandBytes];
  if (!copy_in(frame, written, bytes, length_bytes)) return EFAULT;
  UverbsCommand command;
  if (const int error = command.parse(written, length_bytes); error != 0) return error;
  std::byte response[kMaxCommandBytes];
  const std::size_t capacity_bytes = std::min(command.response_capacity_bytes(), sizeof(response));
  if (capacity_bytes != 0 && !is_writable(frame, command.response(), capacity_bytes)) return EFAULT;
  UverbsRequest request;

  if (command.is(IB_USER_VERBS_CMD_CREATE_CQ)) {
    std::uint32_t channel = 0;
    const std::size_t offset = command.is_extended() ? offsetof(ib_uverbs_ex_create_cq, comp_channel)
                                                     : offsetof(ib_uverbs_create_cq, comp_channel);
    if (!command.field(offset, channel)) return EINVAL;
    if (static_cast<std::int32_t>(channel) >= 0) {
      struct stat status {};
      if (!get_file_identity(static_cast<int>(channel), status) || !S_ISFIFO(status.st_mode)) return EINVAL;
      request.channel_inode = status.st_ino;
    }
  }

  UverbsReply reply;
  Call call;
  call.request[0] = {&request, sizeof(request)};
  call.request[1] = {written, length_bytes};
  call.head = &reply;
  call.head_bytes = sizeof(reply);
  call.body = response;
  call.body_capacity_bytes = capacity_bytes;
  running_.fetch_add(1);
  int error = fd_tag(fd) != kUntracked ? connection_.call(call) : EBADF;
  if (error == 0) {
    std::size_t taken = 0;
    if (reply.fd_offset != kNoFd && call.fd_count == 1 && call.body_bytes >= sizeof(int) &&
        reply.fd_offset <= call.body_bytes - sizeof(int)) {
      std::memcpy(response + reply.fd_offset, &call.fds[0], sizeof(int));
      taken = 1;
    }
    remember(command, response, call.body_bytes);
    if (call.body_bytes != 0 && !copy_out(frame, command.response(), response, call.body_bytes)) {
      error = EFAULT;  // another thread has just unmapped it
      taken = 0;
    }
    for (std::size_t i = taken; i < call.fd_count; ++i)
      close_quietly(call.fds[i]);
  }
  running_.fetch_sub(1);
  return error;
}

// Keeps what the watcher needs in order to fail the QPs of a dead daemon.
void Device::remember(const UverbsCommand& command, const std::byte* response, std::size_t response_bytes) {
  const auto read = [&](std::size_t offset, auto& value) {
    if (offset + sizeof(value) > response_bytes) return false;
    std::memcpy(&value, response + offset, sizeof(value));
    return true;
  };
  std::uint32_t handle = 0;
  RingLocation location{};
  if (command.is(IB_USER_VERBS_CMD_CREATE_CQ)) {
    if (!read(offsetof(ib_uverbs_create_cq_resp, cq_handle), handle) ||
        handle >= emulator::kMaxCqsPerContext ||
        !read(command.driver_response_offset(sizeof(ib_uverbs_create_cq_resp)), location))
      return;
    CqRecord& cq = records_->cqs[handle];
    cq.ring.location = location;
    set_live(cq.is_live, true);
    raise_bound(records_->cq_bound, handle + 1);
  } else if (command.is(IB_USER_VERBS_CMD_RESIZE_CQ)) {
    if (command.field(offsetof(ib_uverbs_resize_cq, cq_handle), handle) &&
        handle < emulator::kMaxCqsPerContext && read(sizeof(ib_uverbs_resize_cq_resp), location))
      records_->cqs[handle].ring.location = location;
  } else if (command.is(IB_USER_VERBS_CMD_DESTROY_CQ)) {
    if (command.field(offsetof(ib_uverbs_destroy_cq, cq_handle), handle) &&
        handle < emulator::kMaxCqsPerContext)
      set_live(records_->cqs[handle].is_live, false);
  } else if (command.is(IB_USER_VERBS_CMD_CREATE_SRQ) || command.is(IB_USER_VERBS_CMD_CREATE_XSRQ)) {
    if (!read(offsetof(ib_uverbs_create_srq_resp, srq_handle), handle) || handle >= kMaxSrqRecords ||
        !read(sizeof(ib_uverbs_create_srq_resp), location))
      return;
    SrqRecord& srq = records_->srqs[handle];
    srq.ring.location = location;
    set_live(srq.is_live, true);
    raise_bound(records_->srq_bound, handle + 1);
  } else if (command.is(IB_USER_VERBS_CMD_MODIFY_SRQ)) {
    if (command.field(offsetof(ib_uverbs_modify_srq, srq_handle), handle) && handle < kMaxSrqRecords &&
        read(0, location))
      records_->srqs[handle].ring.location = location;
  } else if (command.is(IB_USER_VERBS_CMD_DESTROY_SRQ)) {
    if (command.field(offsetof(ib_uverbs_destroy_srq, srq_handle), handle) && handle < kMaxSrqRecords)
      set_live(records_->srqs[handle].is_live, false);
  } else if (command.is(IB_USER_VERBS_CMD_CREATE_QP)) {
    remember_qp(command, response, response_bytes);
  } else if (command.is(IB_USER_VERBS_CMD_DESTROY_QP)) {
    if (command.field(offsetof(ib_uverbs_destroy_qp, qp_handle), handle) &&
        handle < emulator::kMaxQpsPerContext)
      set_live(records_->qps[handle].is_live, false);
  }
}

void Device::remember_qp(const UverbsCommand& command, const std::byte* response,
                         std::size_t response_bytes) {
  const std::size_t rings_at = command.driver_response_offset(sizeof(ib_uverbs_create_qp_resp));
  ib_uverbs_create_qp_resp created;
  RingLocation rings[2];  // receive, send
  if (response_bytes < sizeof(created) || response_bytes < rings_at + sizeof(rings)) return;
  std::memcpy(&created, response, sizeof(created));
  std::memcpy(rings, response + rings_at, sizeof(rings));
  if (created.qp_handle >= emulator::kMaxQpsPerContext) return;
  QpRecord& qp = records_->qps[created.qp_handle];
  const std::size_t shift = command.is_extended() ? sizeof(std::uint64_t) : 0;  // no response pointer
  std::uint8_t has_srq = 0;
  if (!command.field(offsetof(ib_uverbs_create_qp, send_cq_handle) - shift, qp.send_cq) ||
      !command.field(offsetof(ib_uverbs_create_qp, recv_cq_handle) - shift, qp.recv_cq) ||
      !command.field(offsetof(ib_uverbs_create_qp, srq_handle) - shift, qp.srq) ||
      !command.field(offsetof(ib_uverbs_create_qp, is_srq) - shift, has_srq))
    return;
  qp.has_srq = has_srq != 0;
  qp.qpn = created.qpn;
  qp.recv_ring.location = rings[0];
  qp.send_ring.location = rings[1];
  set_live(qp.is_live, true);
  raise_bound(records_->qp_bound, created.qp_handle + 1);
}

}  // namespace roci::shim
