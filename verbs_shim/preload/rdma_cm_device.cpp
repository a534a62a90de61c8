// The rdma_cm device: commands that the daemon answers, and events, which lie in the pipe that the fd is.
#include <fcntl.h>
#include <unistd.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_shim/preload/device.h"
#include "verbs_shim/preload/environment.h"
#include "verbs_shim/preload/syscalls.h"
#include "verbs_shim/preload/user_memory.h"
#include "verbs_shim/rdma_cm_abi.h"

namespace roci::shim {
namespace {

using ucm::Command;

// Where the address of the response stands in a command; -1: it has none.
long response_offset(Command command) {
  switch (command) {
    case Command::kCreateId:
      return offsetof(ucm::CreateId, response);
    case Command::kDestroyId:
    case Command::kQueryRoute:
    case Command::kInitQpAttr:
    case Command::kGetEvent:
    case Command::kJoinIpMulticast:
    case Command::kLeaveMulticast:
    case Command::kMigrateId:
    case Command::kQuery:
    case Command::kJoinMulticast:
      return 0;
    case Command::kBindIp:
    case Command::kResolveIp:
    case Command::kResolveRoute:
    case Command::kConnect:
    case Command::kListen:
    case Command::kAccept:
    case Command::kReject:
    case Command::kDisconnect:
    case Command::kGetOption:
    case Command::kSetOption:
    case Command::kNotify:
    case Command::kBind:
    case Command::kResolveAddress:
      return -1;
  }
  return -1;
}

template <typename T>
bool read_core(const std::byte* core, std::size_t core_bytes, T& value) {
  if (core_bytes < sizeof(value)) return false;
  std::memcpy(&value, core, sizeof(value));
  return true;
}

}  // namespace

// `event_fd`: what is to become the application's, also on failure. Returns an errno.
int Device::connect_rdma_cm(int& event_fd, int open_flags) {
  Call call;
  call.kind = MessageKind::kOpenRdmaCm;
  call.request[0] = {const_cast<char*>(environment().view), environment().view_length};
  if (const int error = connection_.call(call); error != 0) return error;
  if (call.fd_count != 1) {
    for (std::size_t i = 0; i < call.fd_count; ++i)
      close_quietly(call.fds[i]);
    return EIO;
  }
  event_fd = call.fds[0];
  if ((open_flags & O_NONBLOCK) != 0) system_call(SYS_fcntl, event_fd, F_SETFL, O_NONBLOCK);
  return 0;
}

ssize_t Device::write_rdma_cm(int fd, const void* bytes, std::size_t length_bytes, const void* frame) {
  if (!is_same_file(fd)) return kNotOurs;
  std::byte written[kMaxCommandBytes];
  ucm::Header header{};
  const std::size_t taken_bytes = std::min(length_bytes, sizeof(written));
  if (length_bytes < sizeof(header)) return fail(EINVAL);
  if (!copy_in(frame, written, bytes, taken_bytes)) return fail(EFAULT);
  std::memcpy(&header, written, sizeof(header));
  if (sizeof(header) + header.in_bytes > taken_bytes) return fail(EINVAL);
  const std::byte* const core = written + sizeof(header);

  std::uint64_t response = 0;
  const long offset = response_offset(static_cast<Command>(header.command));
  if (offset >= 0) {
    if (static_cast<std::size_t>(offset) + sizeof(response) > header.in_bytes) return fail(EINVAL);
    std::memcpy(&response, core + offset, sizeof(response));
  }
  auto* const response_at = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(response));
  const std::size_t capacity_bytes = offset < 0 ? 0 : header.out_bytes;
  int error = 0;
  if (header.command == static_cast<std::uint32_t>(Command::kGetEvent))
    error = read_event(fd, response_at, capacity_bytes, frame);
  else if (is_inherited_ || !is_own_process())
    error = EIO;
  else
    error = run_rdma_cm(fd, header, core, response_at, capacity_bytes, frame);
  return error == 0 ? static_cast<ssize_t>(length_bytes) : fail(error);
}

// Blocks, or not, as the application's fd says. A cancellation point, as the write() is in whose place it
// stands.
int Device::read_event(int fd, std::byte* response, std::size_t capacity_bytes, const void* frame) {
  if (capacity_bytes < ucm::kLeastEventBytes) return ENOSPC;
  ucm::EventRecord record;
  const std::size_t shown_bytes = std::min(capacity_bytes, sizeof(record));
  if (!is_writable(frame, response, shown_bytes)) return EFAULT;
  const ssize_t length = ::read(fd, &record, sizeof(record));
  if (length < 0) return errno;
  if (length != static_cast<ssize_t>(sizeof(record))) return EIO;  // 0: the daemon has closed its end
  return copy_out(frame, response, &record, shown_bytes) ? 0 : EFAULT;
}

// As with uverbs commands, everything is copied once. Returns an errno.
int Device::run_rdma_cm(int fd, const ucm::Header& header, const std::byte* core, std::byte* response_at,
                        std::size_t capacity_bytes, const void* frame) {
  std::byte message[kMaxCommandBytes + ucm::kMaxOptionBytes];
  std::byte response[kMaxCommandBytes];
  capacity_bytes = std::min(capacity_bytes, sizeof(response));
  if (capacity_bytes != 0 && !is_writable(frame, response_at, capacity_bytes)) return EFAULT;
  RdmaCmRequest request;
  request.command_bytes = static_cast<std::uint32_t>(sizeof(header)) + header.in_bytes;
  std::memcpy(message, &header, sizeof(header));
  std::memcpy(message + sizeof(header), core, header.in_bytes);
  std::size_t message_bytes = request.command_bytes;

  ucm::SetOption option;
  if (header.command == static_cast<std::uint32_t>(Command::kSetOption) &&
      read_core(core, header.in_bytes, option)) {
    if (option.value_bytes > ucm::kMaxOptionBytes) return EINVAL;
    const auto* const value = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(option.value));
    if (!copy_in(frame, message + message_bytes, value, option.value_bytes)) return EFAULT;
    message_bytes += option.value_bytes;
  }
  ucm::MigrateId migrate;
  if (header.command == static_cast<std::uint32_t>(Command::kMigrateId) &&
      read_core(core, header.in_bytes, migrate)) {
    struct stat status {};
    if (system_call(SYS_fstat, migrate.fd, &status) != 0) return ENOENT;
    if (!S_ISFIFO(status.st_mode)) return EINVAL;
    request.other_inode = status.st_ino;
  }

  Call call;
  call.kind = MessageKind::kRdmaCm;
  call.request[0] = {&request, sizeof(request)};
  call.request[1] = {message, message_bytes};
  call.body = response;
  call.body_capacity_bytes = capacity_bytes;
  running_.fetch_add(1);
  int error = fd_tag(fd) != kUntracked ? connection_.call(call) : EBADF;
  running_.fetch_sub(1);
  if (error == 0 && call.body_bytes != 0 && !copy_out(frame, response_at, response, call.body_bytes))
    error = EFAULT;  // another thread has just unmapped it
  return error;
}

}  // namespace roci::shim
