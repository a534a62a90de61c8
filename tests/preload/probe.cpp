// A small application for the shim's tests: preload_test starts it, preloaded with libroci.so, once per
// scenario.
//
// `preload_probe SCENARIO` exits 0 if everything was as it must be, else it says the line that was not. It
// talks the uverbs ABI by hand, since libibverbs would hide what is tested. `transparent` only prints, to be
// compared.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "emulator/shared_layout.h"
#include "tests/preload/scenario.h"
#include "verbs_shim/rdma_cm_abi.h"

// What fortified and old binaries call; no header declares them.
// NOLINTBEGIN(bugprone-reserved-identifier): the names are the C library's
extern "C" {
int __open_2(const char* path, int flags);
int __open64_2(const char* path, int flags);
int __openat_2(int folder, const char* path, int flags);
int __openat64_2(int folder, const char* path, int flags);
char* __realpath_chk(const char* path, char* resolved, std::size_t resolved_bytes);
ssize_t __readlink_chk(const char* path, char* target, std::size_t size_bytes, std::size_t target_bytes);
}
// NOLINTEND(bugprone-reserved-identifier)

// NOLINTBEGIN(concurrency-mt-unsafe): no other thread runs where it calls getenv, system, exit or strerror

namespace {

using namespace roci::emulator;
using namespace roci::tests;

#define MUST(condition)                                                                       \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      std::printf("probe.cpp:%d: not true: %s (errno %d, %s)\n", __LINE__, #condition, errno, \
                  std::strerror(errno));                                                      \
      std::fflush(stdout);                                                                    \
      _exit(1);                                                                               \
    }                                                                                         \
  } while (false)

constexpr char kDevice[] = "/dev/infiniband/uverbs0";

// A legacy command: header, then `body`, whose first member is the response pointer where there is a
// response.
template <typename Body>
ssize_t send_command(int fd, std::uint32_t number, const Body& body, std::size_t response_bytes) {
  std::byte message[sizeof(ib_uverbs_cmd_hdr) + sizeof(Body)];
  const ib_uverbs_cmd_hdr header{number, sizeof(message) / 4, static_cast<std::uint16_t>(response_bytes / 4)};
  std::memcpy(message, &header, sizeof(header));
  std::memcpy(message + sizeof(header), &body, sizeof(body));
  return write(fd, message, sizeof(message));
}
template <typename Body, typename Response>
ssize_t command(int fd, std::uint32_t number, Body body, Response& response) {
  body.response = reinterpret_cast<std::uintptr_t>(&response);
  return send_command(fd, number, body, sizeof(response));
}

// A command that the fake daemon answers at once, with its own number of commands so far.
struct Echo {
  std::uint64_t response;
  std::uint64_t what;
};
struct EchoResponse {
  std::uint64_t what;
};
bool works(int fd) {
  EchoResponse response{};
  return command(fd, kEcho, Echo{0, 42}, response) == 24 && response.what == 42;
}

ssize_t post_send(int fd, std::uint32_t qp) {
  struct {
    std::uint64_t response;
    std::uint32_t qp_handle, wr_count, sge_count, wqe_size;
  } body{0, qp, 0, 0, 0};
  static_assert(sizeof(body) == sizeof(ib_uverbs_post_send));
  struct {
    std::uint32_t bad_wr;
  } response{};
  return command(fd, IB_USER_VERBS_CMD_POST_SEND, body, response);
}

ssize_t request_notification(int fd, std::uint32_t cq, bool solicited_only) {
  ib_uverbs_req_notify_cq body{cq, solicited_only ? 1u : 0u};
  return send_command(fd, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, body, 0);
}

// Core response and what rxe adds: where the ring is.
struct CreateCqResponse {
  std::uint32_t handle, cqe;
  std::uint64_t offset;
  std::uint32_t size, pad;
};
CreateCqResponse create_cq(int fd, int channel) {
  ib_uverbs_create_cq body{};
  body.cqe = 7;
  body.comp_channel = channel;
  CreateCqResponse response{};
  MUST(command(fd, IB_USER_VERBS_CMD_CREATE_CQ, body, response) > 0);
  return response;
}

struct CreateSrqResponse {
  std::uint32_t handle, max_wr, max_sge, number;
  std::uint64_t offset;
  std::uint32_t size, pad;
  std::uint32_t number_again, reserved;
};

struct CreateQpResponse {
  std::uint32_t handle, qpn, capabilities[6];
  struct {
    std::uint64_t offset;
    std::uint32_t size, pad;
  } recv_ring, send_ring;
};
CreateQpResponse create_qp(int fd, std::uint32_t cq, ib_uverbs_create_qp body = {}) {
  body.send_cq_handle = cq;
  body.recv_cq_handle = cq;
  CreateQpResponse response{};
  MUST(command(fd, IB_USER_VERBS_CMD_CREATE_QP, body, response) > 0);
  return response;
}

ControlArea& map_control(int fd) {
  void* mapped = mmap(nullptr, kControlAreaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(mapped != MAP_FAILED);
  return *static_cast<ControlArea*>(mapped);
}

int must_open() {
  const int fd = open(kDevice, O_RDWR | O_CLOEXEC);
  MUST(fd >= 0);
  return fd;
}

int wait_for(pid_t child) {
  int status = 0;
  MUST(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool fails_with(int error, ssize_t result) { return result == -1 && errno == error; }

// ---- scenarios -----------------------------------------------------------------------------------------

void looks_like_a_device() {
  const std::string in_view = std::string(getenv("ROCI_VIEW")) + kDevice;
  for (const char* path : {kDevice, in_view.c_str()}) {
    struct stat status {};
    MUST(stat(path, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(231, 192));
    MUST(lstat(path, &status) == 0 && S_ISCHR(status.st_mode));
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    MUST(fd >= 0);
    MUST(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    status = {};
    MUST(fstat(fd, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(231, 192));
    status = {};
    MUST(fstatat(fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISCHR(status.st_mode));
    struct statx extended {};
    MUST(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &extended) == 0 && extended.stx_rdev_minor == 192);
    MUST(statx(AT_FDCWD, path, 0, STATX_ALL, &extended) == 0 && S_ISCHR(extended.stx_mode));
    MUST(fails_with(ENOTTY, ioctl(fd, 0xc0181b01, nullptr)));
    MUST(works(fd));
    MUST(close(fd) == 0);
    MUST(fails_with(EBADF, close(fd)));
    MUST(fails_with(EBADF, write(fd, "x", 1)));
  }
  for (const int fd : {open64(kDevice, O_RDWR), __open_2(kDevice, O_RDWR), __open64_2(kDevice, O_RDWR),
                       openat(AT_FDCWD, kDevice, O_RDWR), openat64(AT_FDCWD, kDevice, O_RDWR),
                       __openat_2(AT_FDCWD, kDevice, O_RDWR), __openat64_2(AT_FDCWD, kDevice, O_RDWR)}) {
    MUST(works(fd));
    struct stat64 status {};
    MUST(fstat64(fd, &status) == 0 && S_ISCHR(status.st_mode));
    MUST(close(fd) == 0);
  }
  const int fd = open(kDevice, O_RDWR);
  MUST(fcntl(fd, F_GETFD) == 0);
  MUST(fd == 3);  // the lowest number, as open() promises: nothing of the shim's is below
  MUST(fails_with(EINVAL, write(fd, "short", 5)));
  MUST(fails_with(EINVAL, write(fd, "\1\0\0\0\7\0\0\0", 8)));  // says 28 bytes
  MUST(fails_with(ENOENT, open("/dev/infiniband/uverbs1", O_RDWR)));
  MUST(fails_with(ENOENT, open("/dev/infiniband/umad0", O_RDWR)));
  MUST(fails_with(EPROTONOSUPPORT, socket(AF_NETLINK, SOCK_RAW, 20)));
}

void refuses_without_daemon() { MUST(fails_with(ENODEV, open(kDevice, O_RDWR))); }

void rings_doorbells() {
  const int fd = must_open();
  ControlArea& control = map_control(fd);
  control.asleep = 0;
  const std::uint32_t slot = 64 * 70 + 6;
  for (const auto& [state, error] : std::map<QpState, int>{{QpState::kReset, EINVAL},
                                                           {QpState::kInit, EINVAL},
                                                           {QpState::kRtr, EINVAL},
                                                           {QpState::kRts, 0},
                                                           {QpState::kSqd, 0},
                                                           {QpState::kSqe, 0},
                                                           {QpState::kErr, 0},
                                                           {QpState::kDestroyed, EINVAL}}) {
    control.qp_state[slot] = static_cast<std::uint8_t>(state);
    std::memset(control.doorbells, 0, sizeof(control.doorbells));
    std::memset(control.doorbell_summary, 0, sizeof(control.doorbell_summary));
    const ssize_t result = post_send(fd, slot);
    MUST(error == 0 ? result > 0 : fails_with(error, result));
    for (std::size_t i = 0; i < kMaxQpsPerContext / 64; ++i)
      MUST(control.doorbells[i] == (error == 0 && i == 70 ? std::uint64_t{1} << 6 : 0));
    for (std::size_t i = 0; i < kMaxQpsPerContext / 4096; ++i)
      MUST(control.doorbell_summary[i] == (error == 0 && i == 1 ? std::uint64_t{1} << 6 : 0));
  }
  MUST(fails_with(EINVAL, post_send(fd, kMaxQpsPerContext)));
  MUST(fails_with(EINVAL, post_send(fd, 0xFFFFFFFFu)));

  control.qp_state[slot] = static_cast<std::uint8_t>(QpState::kRts);
  EchoResponse kicks{};
  MUST(command(fd, kReadKicks, Echo{0, 0}, kicks) > 0 && kicks.what == 0);
  control.asleep = 1;
  for (int i = 0; i < 3; ++i)
    MUST(post_send(fd, slot) > 0);
  MUST(control.asleep == 0);
  MUST(command(fd, kReadKicks, Echo{0, 0}, kicks) > 0 &&
       kicks.what == 1);  // one, as only one found it asleep
}

void arms_queues() {
  const int fd = must_open();
  ControlArea& control = map_control(fd);
  const std::uint32_t cq = create_cq(fd, -1).handle;
  MUST(request_notification(fd, cq, true) > 0);
  MUST(control.cq_arm[cq] == static_cast<std::uint32_t>(CqArm::kSolicited));
  MUST(request_notification(fd, cq, false) > 0);
  MUST(control.cq_arm[cq] == static_cast<std::uint32_t>(CqArm::kNext));
  MUST(request_notification(fd, cq, true) > 0);
  MUST(control.cq_arm[cq] == static_cast<std::uint32_t>(CqArm::kNext));
  // Over news its doorbell is rung, but not when it is armed as far already.
  const std::uint32_t slot = cq_doorbell(cq);
  std::uint64_t& bits = control.doorbells[slot / 64];
  std::uint64_t& summary = control.doorbell_summary[slot / 4096];
  MUST(bits == 0 && summary == 0);
  control.cq_arm[cq] = kCqHasNews;
  control.asleep = 1;
  MUST(request_notification(fd, cq, false) > 0);
  MUST(control.cq_arm[cq] == (kCqHasNews | static_cast<std::uint32_t>(CqArm::kNext)));
  MUST(bits == std::uint64_t{1} << (slot % 64) && summary == std::uint64_t{1} << (slot / 64 % 64));
  MUST(control.asleep == 0);
  bits = summary = 0;
  MUST(request_notification(fd, cq, false) > 0);
  MUST(bits == 0 && summary == 0);
  MUST(fails_with(EINVAL, request_notification(fd, cq + 1, false)));
  MUST(fails_with(EINVAL, request_notification(fd, kMaxCqsPerContext, false)));
}

// The fake daemon answers kHold only once kFree has come, and kFree is sent when kEcho has been answered.
void waits_do_not_block() {
  const int fd = must_open();
  std::atomic<bool> is_held{true};
  std::vector<std::thread> holders;
  for (std::uint64_t i = 0; i < 4; ++i) {
    holders.emplace_back([&, i] {
      EchoResponse response{};
      MUST(command(fd, kHold, Echo{0, 100 + i}, response) > 0);
      MUST(response.what == 100 + i);
      MUST(!is_held);
    });
  }
  for (int i = 0; i < 1000; ++i)
    MUST(works(fd));
  is_held = false;
  EchoResponse response{};
  MUST(command(fd, kFree, Echo{0, 4}, response) > 0);
  for (std::thread& holder : holders)
    holder.join();
  MUST(works(fd));
}

void receives_fds() {
  const int fd = must_open();
  struct {
    std::uint64_t response;
  } body{};
  struct {
    std::uint32_t fd;
  } response{};
  MUST(command(fd, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, body, response) > 0);
  const int channel = static_cast<int>(response.fd);
  char text[8] = {};
  MUST(read(channel, text, sizeof(text)) == 5 && std::strcmp(text, "event") == 0);
  MUST(fcntl(channel, F_GETFD) == FD_CLOEXEC);
  struct stat status {};
  MUST(fstat(channel, &status) == 0);
  const int copy = dup(channel);
  create_cq(fd, copy);
  EchoResponse inode{};
  MUST(command(fd, kReadChannel, Echo{0, 0}, inode) > 0 && inode.what == status.st_ino);
  ib_uverbs_create_cq wrong{};
  wrong.comp_channel = 999;
  CreateCqResponse cq{};
  MUST(fails_with(EINVAL, command(fd, IB_USER_VERBS_CMD_CREATE_CQ, wrong, cq)));
  EchoResponse error{};
  MUST(fails_with(ENOMEM, command(fd, kFail, Echo{0, ENOMEM}, error)));
}

int open_fds() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd)
    count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

void refuses_bad_addresses() {
  const int fd = must_open();
  map_control(fd).qp_state[0] = static_cast<std::uint8_t>(QpState::kRts);
  const std::uint32_t cq = create_cq(fd, -1).handle;
  constexpr std::size_t kPage = 4096;
  // A good page, one that can be read only, and one that is not there.
  auto* const good = static_cast<std::byte*>(
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  MUST(good != MAP_FAILED && mprotect(good + kPage, kPage, PROT_READ) == 0);
  std::byte* const absent = good + 2 * kPage;
  MUST(munmap(absent, kPage) == 0);
  struct Message {
    ib_uverbs_cmd_hdr header;
    std::uint64_t response;
    std::uint64_t what;
    std::uint64_t more;
  } message{};
  const auto echo_to = [&](void* response) {
    message = {{kEcho, 6, 2}, reinterpret_cast<std::uintptr_t>(response), 42, 0};
    return write(fd, &message, 24);
  };
  const int fds = open_fds();
  for (std::byte* response :
       {good + kPage, absent, absent - 4, good + kPage - 4, static_cast<std::byte*>(nullptr),
        reinterpret_cast<std::byte*>(std::uintptr_t{1} << 60)}) {
    MUST(fails_with(EFAULT, echo_to(response)));
    ib_uverbs_create_comp_channel channel{};
    channel.response = reinterpret_cast<std::uintptr_t>(response);
    MUST(fails_with(EFAULT, send_command(fd, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, channel, 4 * 2)));
  }
  MUST(open_fds() == fds);
  MUST(echo_to(good) == 24 && good[0] == std::byte{42});  // memory that is not on the stack

  // A request that ends behind the end of the memory, at each of its parts; and none at all.
  const std::vector<Message> requests = {
      {{kEcho, 6, 2}, reinterpret_cast<std::uintptr_t>(good), 42, 0},
      {{IB_USER_VERBS_CMD_POST_SEND, 8, 1}, reinterpret_cast<std::uintptr_t>(good), 0, 0},
      {{IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, 4, 0}, cq, 0, 0}};
  for (const Message& request : requests) {
    const std::size_t length = std::size_t{request.header.in_words} * 4;
    for (std::size_t there = 0; there < length; there += 4) {
      MUST(mprotect(good + kPage, kPage, PROT_READ | PROT_WRITE) == 0);
      std::memcpy(absent - there, &request, there);
      MUST(fails_with(EFAULT, write(fd, absent - there, length)));
    }
    MUST(fails_with(EFAULT, write(fd, nullptr, length)));
    std::memcpy(absent - length, &request, length);
    MUST(write(fd, absent - length, length) == static_cast<ssize_t>(length));
  }
  MUST(fails_with(EINVAL, write(fd, nullptr, 0)));
  MUST(works(fd));
}

void survives_fork() {
  const int fd = must_open();
  ControlArea& control = map_control(fd);
  control.qp_state[0] = static_cast<std::uint8_t>(QpState::kRts);
  const pid_t child = fork();
  if (child == 0) {
    EchoResponse response{};
    MUST(fails_with(EIO, command(fd, kEcho, Echo{0, 1}, response)));
    MUST(fails_with(EIO, post_send(fd, 0)));
    MUST(control.doorbells[0] == 0);
    const int own = must_open();
    MUST(works(own));
    MUST(close(fd) == 0);
    const int other = open("/dev/null", O_WRONLY);  // the number of a closed device is a file like any other
    MUST(other == fd && write(other, "x", 1) == 1);
    MUST(works(own));
    std::exit(0);
  }
  MUST(wait_for(child) == 0);
  MUST(works(fd));
  MUST(post_send(fd, 0) > 0);

  const pid_t program = vfork();
  if (program == 0) {
    close(fd);  // of the child only
    close_range(3, ~0U, 0);
    execl("/bin/true", "true", nullptr);
    _exit(9);
  }
  MUST(wait_for(program) == 0);
  MUST(works(fd));
  MUST(std::system("exec 3>&-; true") == 0);
  MUST(works(fd));
}

// ---- the rdma_cm device --------------------------------------------------------------------------------

namespace ucm = roci::shim::ucm;

template <typename Core>
ssize_t cm_command(int fd, ucm::Command number, const Core& core, std::size_t out_bytes) {
  std::byte message[sizeof(ucm::Header) + sizeof(Core)];
  const ucm::Header header{static_cast<std::uint32_t>(number), sizeof(Core),
                           static_cast<std::uint16_t>(out_bytes)};
  std::memcpy(message, &header, sizeof(header));
  std::memcpy(message + sizeof(header), &core, sizeof(core));
  return write(fd, message, sizeof(message));
}
// The fake daemon answers with `uid` as the id, and raises an event of it.
std::uint32_t create_id(int fd, std::uint64_t uid) {
  ucm::CreateIdResponse response{};
  ucm::CreateId core{};
  core.uid = uid;
  core.response = reinterpret_cast<std::uintptr_t>(&response);
  MUST(cm_command(fd, ucm::Command::kCreateId, core, sizeof(response)) == 32);
  return response.id;
}
ssize_t get_event(int fd, ucm::EventRecord* record, std::size_t room = sizeof(ucm::EventRecord)) {
  return cm_command(fd, ucm::Command::kGetEvent, ucm::GetEvent{reinterpret_cast<std::uintptr_t>(record)},
                    room);
}

void speaks_rdma_cm() {
  const int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
  MUST(fd >= 0);
  struct stat status {};
  MUST(fstat(fd, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(10, 122));
  MUST(stat("/dev/infiniband/rdma_cm", &status) == 0 && S_ISCHR(status.st_mode));
  MUST(status.st_rdev == makedev(10, 122));
  pollfd ready{fd, POLLIN, 0};
  MUST(poll(&ready, 1, 0) == 0);
  MUST(create_id(fd, 77) == 77);
  MUST(poll(&ready, 1, -1) == 1 && ready.revents == POLLIN);

  ucm::EventRecord record{};
  MUST(fails_with(ENOSPC, get_event(fd, &record, ucm::kLeastEventBytes - 4)));
  MUST(fails_with(EFAULT, get_event(fd, nullptr)));
  record.ece[1] = 5;
  MUST(get_event(fd, &record, ucm::kLeastEventBytes) == 16);  // as an old library has it
  MUST(record.uid == 77 && record.id == 77 && record.ece[1] == 5);
  MUST(create_id(fd, 78) == 78);
  MUST(get_event(fd, &record) == 16 && record.uid == 78);
  MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
  MUST(fails_with(EAGAIN, get_event(fd, &record)));

  const std::uint32_t value = 0x01020304;  // the fake daemon wants its bytes to add up to 10
  ucm::SetOption option{};
  option.value = reinterpret_cast<std::uintptr_t>(&value);
  option.value_bytes = sizeof(value);
  MUST(cm_command(fd, ucm::Command::kSetOption, option, 0) == 32);
  option.value = 8;
  MUST(fails_with(EFAULT, cm_command(fd, ucm::Command::kSetOption, option, 0)));
  option.value_bytes = ucm::kMaxOptionBytes + 1;
  MUST(fails_with(EINVAL, cm_command(fd, ucm::Command::kSetOption, option, 0)));

  const int other = open("/dev/infiniband/rdma_cm", O_RDWR | O_NONBLOCK);
  MUST(other >= 0 && fails_with(EAGAIN, get_event(other, &record)));
  ucm::EventsReported reported{};
  ucm::MigrateId migrate{reinterpret_cast<std::uintptr_t>(&reported), 77, static_cast<std::uint32_t>(fd)};
  MUST(cm_command(other, ucm::Command::kMigrateId, migrate, sizeof(reported)) == 24);
  // What the fake daemon was told: the old channel's pipe.
  ucm::MigrateId same{reinterpret_cast<std::uintptr_t>(&record.id), 77, static_cast<std::uint32_t>(dup(fd))};
  MUST(cm_command(other, ucm::Command::kMigrateId, same, sizeof(reported)) == 24);
  MUST(reported.events_reported != 0 && record.id == reported.events_reported);
  migrate.fd = 4444;
  MUST(fails_with(ENOENT, cm_command(other, ucm::Command::kMigrateId, migrate, sizeof(reported))));
  migrate.fd = static_cast<std::uint32_t>(open("/dev/null", O_RDONLY));
  MUST(fails_with(EINVAL, cm_command(other, ucm::Command::kMigrateId, migrate, sizeof(reported))));

  // Malformed: too short for a header, or for what the header says.
  const ucm::Header header{static_cast<std::uint32_t>(ucm::Command::kListen), 8, 0};
  MUST(fails_with(EINVAL, write(fd, &header, 4)));
  MUST(fails_with(EINVAL, write(fd, &header, sizeof(header))));
  const void* volatile nowhere = reinterpret_cast<void*>(8);
  MUST(fails_with(EFAULT, write(fd, nowhere, 32)));

  const pid_t child = fork();
  if (child == 0) {
    MUST(fails_with(EIO, cm_command(fd, ucm::Command::kListen, ucm::Listen{1, 1}, 0)));
    const int own = open("/dev/infiniband/rdma_cm", O_RDWR);
    MUST(own >= 0 && create_id(own, 5) == 5);
    std::exit(0);
  }
  MUST(wait_for(child) == 0);
  MUST(create_id(fd, 79) == 79);
  const int copy = dup(fd);
  MUST(close(fd) == 0 && create_id(copy, 80) == 80);
  MUST(close(copy) == 0 && close(other) == 0);
}

void outlives_the_daemon_of_rdma_cm() {
  const int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
  const int verbs = must_open();
  MUST(fd >= 0);
  std::thread reader([fd] {
    ucm::EventRecord record{};
    MUST(fails_with(EIO, get_event(fd, &record)));
  });
  EchoResponse response{};
  MUST(fails_with(EIO, command(verbs, kDie, Echo{0, 0}, response)));
  reader.join();
  MUST(fails_with(EIO, cm_command(fd, ucm::Command::kListen, ucm::Listen{1, 1}, 0)));
  MUST(close(fd) == 0);
}

// The daemon is told before the memory is another program's; the new program then finds itself in order.
void closes_before_exec(const char* self) {
  const int fd = must_open();
  MUST(works(fd));
  MUST(fails_with(ENOENT, execl("/no/such/program", "x", nullptr)));
  MUST(works(fd));
  execl(self, self, "arguments", "one", "two", nullptr);
  MUST(false);
}

void keeps_count_of_fds() {
  const int fd = must_open();
  const int copy = dup(fd);
  MUST(close(fd) == 0);
  MUST(works(copy));
  const int other = open("/dev/null", O_WRONLY);
  MUST(other == fd);
  MUST(dup2(copy, other) == other);
  MUST(close(copy) == 0);
  MUST(works(other));
  MUST(dup3(other, 200, O_CLOEXEC) == 200);
  MUST(works(200));
  const int duplicate = fcntl(other, F_DUPFD_CLOEXEC, 300);
  MUST(duplicate >= 300 && fcntl(duplicate, F_GETFD) == FD_CLOEXEC);
  struct stat status {};
  MUST(fstat(duplicate, &status) == 0 && S_ISCHR(status.st_mode));
  MUST(works(duplicate) && close(duplicate) == 0 && works(other));
  const int null = open("/dev/null", O_WRONLY);
  MUST(dup2(null, 200) == 200);
  MUST(write(200, "x", 1) == 1);
  MUST(works(other));

  // Whatever numbers the shim hides its own under: they give way, and loops that close everything do not hit
  // them.
  rlimit limit{};
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  for (int number = 3; number < static_cast<int>(limit.rlim_cur); ++number)
    if (number != other && number != null) close(number);
  MUST(works(other));
  for (int number = 700; number < 1020 && number < static_cast<int>(limit.rlim_cur); ++number)
    MUST(dup2(null, number) == number);
  MUST(works(other));
  MUST(close_range(static_cast<unsigned>(other) + 1, ~0U, 0) == 0);
  MUST(works(other));
  MUST(fcntl(700, F_GETFD) == -1);

  const int second = must_open();
  EchoResponse clients{};
  MUST(command(second, kCountClients, Echo{0, 0}, clients) > 0 && clients.what == 2);
  MUST(close_range(static_cast<unsigned>(other), static_cast<unsigned>(other), 0) == 0);
  for (int i = 0; i < 1000 && clients.what != 1; ++i) {
    MUST(command(second, kCountClients, Echo{0, 0}, clients) > 0);
    poll(nullptr, 0, 1);
  }
  MUST(clients.what == 1);
  closefrom(second);
  MUST(fcntl(second, F_GETFD) == -1);
}

// Hundreds of opens in turn, some at the same time: slots and descriptors are used again.
void opens_again_and_again() {
  for (int round = 0; round < 200; ++round) {
    int fds[5];
    for (int& fd : fds)
      fd = must_open();
    MUST(fds[4] == 7);
    for (const int fd : fds)
      MUST(works(fd));
    for (const int fd : fds)
      MUST(close(fd) == 0);
  }
}

// What a QP had outstanding when the daemon died comes as flush errors, and also what is posted afterwards.
RingHeader& map_ring(int fd, std::uint64_t offset, std::uint32_t size) {
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  MUST(mapped != MAP_FAILED);
  return *static_cast<RingHeader*>(mapped);
}

void post(RingHeader& ring, std::uint64_t wr_id) {
  std::byte* element = reinterpret_cast<std::byte*>(&ring) + kRingDataOffset +
                       (std::size_t{ring.producer} << ring.log2_element_bytes);
  std::memcpy(element, &wr_id, sizeof(wr_id));
  __atomic_store_n(&ring.producer, (ring.producer + 1) & ring.index_mask, __ATOMIC_RELEASE);
}

// The next completion, waited for, is a flush of that work request.
void take_flushed(RingHeader& completions, std::uint64_t wr_id, std::uint32_t qpn) {
  for (int i = 0; __atomic_load_n(&completions.producer, __ATOMIC_ACQUIRE) == completions.consumer; ++i) {
    MUST(i < 5000);
    poll(nullptr, 0, 1);
  }
  RingCqe cqe;
  std::memcpy(
      &cqe,
      reinterpret_cast<std::byte*>(&completions) + kRingDataOffset + (std::size_t{completions.consumer} << 6),
      sizeof(cqe));
  __atomic_store_n(&completions.consumer, (completions.consumer + 1) & completions.index_mask,
                   __ATOMIC_RELEASE);
  MUST(cqe.wr_id == wr_id);
  MUST(cqe.status == 5);  // IBV_WC_WR_FLUSH_ERR
  MUST(cqe.qp_num == qpn);
}

// An SRQ's new ring is named at an address within the command; a dead daemon's SRQ is flushed, too.
void resizes_shared_queues() {
  const int fd = must_open();
  ControlArea& control = map_control(fd);
  const CreateCqResponse cq = create_cq(fd, -1);
  CreateSrqResponse srq{};
  MUST(command(fd, IB_USER_VERBS_CMD_CREATE_SRQ, ib_uverbs_create_srq{}, srq) > 0);
  ib_uverbs_create_qp body{};
  body.is_srq = 1;
  body.srq_handle = srq.handle;
  const CreateQpResponse qp = create_qp(fd, cq.handle, body);
  control.qp_state[qp.handle] = static_cast<std::uint8_t>(QpState::kRts);

  constexpr std::uint32_t kMaxWr = 1, kLimit = 2;
  struct Location {
    std::uint64_t offset;
    std::uint32_t size, pad;
  } location{1, 2, 3};
  struct {
    std::uint32_t handle, mask, max_wr, limit;
    std::uint64_t location;
  } modify{srq.handle, kLimit, 0, 1, 8};
  // A limit alone looks at no address, and changes nothing there.
  MUST(send_command(fd, IB_USER_VERBS_CMD_MODIFY_SRQ, modify, 0) > 0);
  modify.mask = kMaxWr;
  MUST(fails_with(EFAULT, send_command(fd, IB_USER_VERBS_CMD_MODIFY_SRQ, modify, 0)));
  modify.location = 0;
  MUST(fails_with(EFAULT, send_command(fd, IB_USER_VERBS_CMD_MODIFY_SRQ, modify, 0)));
  const ib_uverbs_modify_srq without_location{srq.handle, kMaxWr, 7, 0};
  MUST(fails_with(EINVAL, send_command(fd, IB_USER_VERBS_CMD_MODIFY_SRQ, without_location, 0)));
  modify.location = reinterpret_cast<std::uintptr_t>(&location);
  MUST(send_command(fd, IB_USER_VERBS_CMD_MODIFY_SRQ, modify, 0) > 0);
  MUST(location.offset != srq.offset && location.offset >= kControlAreaBytes && location.size >= 4096);

  RingHeader& completions = map_ring(fd, cq.offset, cq.size);
  post(map_ring(fd, srq.offset, srq.size), 1);  // the old ring is nobody's any more
  RingHeader& receives = map_ring(fd, location.offset, location.size);
  for (std::uint64_t i = 0; i < 3; ++i)
    post(receives, 20 + i);
  EchoResponse response{};
  MUST(fails_with(EIO, command(fd, kDie, Echo{0, 0}, response)));
  for (std::uint64_t i = 0; i < 3; ++i)
    take_flushed(completions, 20 + i, qp.qpn);
  MUST(fails_with(EIO, send_command(fd, IB_USER_VERBS_CMD_MODIFY_SRQ, modify, 0)));
  MUST(close(fd) == 0);
}

void outlives_the_daemon() {
  const int fd = must_open();
  ControlArea& control = map_control(fd);
  const CreateCqResponse cq = create_cq(fd, -1);
  const CreateQpResponse qp = create_qp(fd, cq.handle);
  control.qp_state[qp.handle] = static_cast<std::uint8_t>(QpState::kRts);
  RingHeader& completions = map_ring(fd, cq.offset, cq.size);
  RingHeader& sends = map_ring(fd, qp.send_ring.offset, qp.send_ring.size);
  RingHeader& receives = map_ring(fd, qp.recv_ring.offset, qp.recv_ring.size);
  const auto take = [&](std::uint64_t wr_id) { take_flushed(completions, wr_id, qp.qpn); };
  for (std::uint64_t i = 0; i < 3; ++i)
    post(sends, 10 + i);
  for (std::uint64_t i = 0; i < 3; ++i)
    post(receives, 20 + i);

  EchoResponse response{};
  std::thread waiting([&] {  // a command in progress ends too
    EchoResponse held{};
    MUST(fails_with(EIO, command(fd, kHold, Echo{0, 1}, held)));
  });
  poll(nullptr, 0, 20);
  MUST(fails_with(EIO, command(fd, kDie, Echo{0, 0}, response)));
  waiting.join();
  for (std::uint64_t i = 0; i < 3; ++i)
    take(10 + i);  // the CQ holds three: the others come as there is room
  for (std::uint64_t i = 0; i < 3; ++i)
    take(20 + i);
  post(receives, 30);
  take(30);
  MUST(control.dead == 1);
  MUST(fails_with(EIO, post_send(fd, qp.handle)));
  MUST(fails_with(EIO, request_notification(fd, cq.handle, false)));
  MUST(fails_with(EIO, command(fd, kEcho, Echo{0, 0}, response)));
  MUST(close(fd) == 0);
}

void redirects_paths() {
  const std::string view = getenv("ROCI_VIEW");
  char text[PATH_MAX] = {};
  FILE* file = fopen("/sys/class/infiniband/rxe0/node_desc", "r");
  MUST(file != nullptr && fgets(text, sizeof(text), file) != nullptr && std::strcmp(text, "rxe0\n") == 0);
  fclose(file);
  const int fd = open("/sys/class/infiniband_verbs/abi_version", O_RDONLY);
  MUST(fd >= 0 && read(fd, text, 1) == 1 && text[0] == '6');
  MUST(access("/sys/class/misc/rdma_cm/dev", R_OK) == 0);
  MUST(faccessat(AT_FDCWD, "/dev/infiniband/uverbs0", R_OK | W_OK, 0) == 0);
  MUST(fails_with(ENOENT, access("/sys/class/infiniband_mad", F_OK)));
  MUST(realpath("/sys/class/infiniband/rxe0", text) == text);
  MUST(std::string(text) == "/sys/devices/virtual/rocinante/rxe0/infiniband/rxe0");
  MUST(access(text, F_OK) == 0);
  struct stat status {};
  MUST(stat(text, &status) == 0 && S_ISDIR(status.st_mode));
  MUST(__realpath_chk("/sys/class/infiniband/rxe0", text, sizeof(text)) == text);
  MUST(std::string(text) == "/sys/devices/virtual/rocinante/rxe0/infiniband/rxe0");
  char* allocated = realpath("/dev/infiniband/uverbs0", nullptr);
  MUST(allocated != nullptr && std::string(allocated) == "/dev/infiniband/uverbs0");
  free(allocated);
  MUST(readlink("/sys/class/infiniband/rxe0", text, sizeof(text)) > 0 &&
       std::strncmp(text, "../../devices", 13) == 0);
  const ssize_t length = readlink("/sys/class/infiniband/absolute", text, sizeof(text));
  MUST(length > 0 &&
       std::string(text, static_cast<std::size_t>(length)) == "/sys/devices/virtual/rocinante/rxe0");
  MUST(__readlink_chk("/sys/class/infiniband/absolute", text, sizeof(text), sizeof(text)) == length);
  DIR* folder = opendir("/sys/class/infiniband_verbs");
  bool is_listed = false;
  while (const dirent* entry = readdir(folder))
    is_listed = is_listed || std::strcmp(entry->d_name, "abi_version") == 0;
  closedir(folder);
  MUST(is_listed);
  dirent** entries = nullptr;
  MUST(scandir("/sys/class/infiniband", &entries, nullptr, alphasort) == 4);
  MUST(std::strcmp(entries[3]->d_name, "rxe0") == 0);
  MUST(access("/sys/devices/virtual", F_OK) == 0);  // not in the view: the kernel's own
  MUST(realpath("/tmp", text) == text && std::string(text) == "/tmp");
}

// The results of every hooked call on what does not concern the shim, one a line.
void transparent() {
  const auto say = [](const char* what, long result) {
    std::printf("%s %ld errno %d\n", what, result, result < 0 ? errno : 0);
    errno = 77;
  };
  char folder[] = "/tmp/roci-probe.XXXXXX";
  MUST(mkdtemp(folder) != nullptr && chdir(folder) == 0);
  errno = 77;
  say("open", open("file", O_RDWR | O_CREAT, 0640));
  struct stat status {};
  say("stat", stat("file", &status));
  std::printf("mode %o size %ld rdev %lu\n", status.st_mode, static_cast<long>(status.st_size),
              status.st_rdev);
  say("open64", open64("file64", O_RDWR | O_CREAT | O_EXCL, 0600));
  say("open64 again", open64("file64", O_RDWR | O_CREAT | O_EXCL, 0600));
  say("open tmpfile", open(".", O_TMPFILE | O_RDWR, 0600));
  const int here = open(".", O_RDONLY | O_DIRECTORY);
  say("openat", openat(here, "file", O_RDONLY));
  say("openat64", openat64(here, "absent", O_RDONLY));
  say("open_2", __open_2("file", O_RDONLY));
  say("open64_2", __open64_2("absent", O_RDONLY));
  say("openat_2", __openat_2(here, "file", O_RDONLY));
  say("openat64_2", __openat64_2(99, "file", O_RDONLY));
  say("open null", open("/dev/null", O_RDWR));
  say("open long", open(std::string(5000, 'x').c_str(), O_RDONLY));
  say("write", write(3, "hello", 5));
  say("write nowhere", write(77, "hello", 5));
  say("write negative", write(-1, "hello", 5));
  say("write empty", write(3, nullptr, 0));
  say("fstat", fstat(3, &status));
  std::printf("size %ld\n", static_cast<long>(status.st_size));
  say("fstat bad", fstat(-5, &status));
  say("lstat absent", lstat("absent", &status));
  struct stat64 status64 {};
  say("stat64", stat64("file", &status64));
  say("fstat64", fstat64(3, &status64));
  say("lstat64", lstat64("/proc/self/exe", &status64));
  std::printf("link %d\n", S_ISLNK(status64.st_mode) ? 1 : 0);
  say("fstatat", fstatat(here, "file", &status, 0));
  say("fstatat fd", fstatat(3, "", &status, AT_EMPTY_PATH));
  say("fstatat empty", fstatat(3, "", &status, 0));
  struct statx extended {};
  say("statx", statx(AT_FDCWD, "file", 0, STATX_SIZE, &extended));
  std::printf("size %llu\n", static_cast<unsigned long long>(extended.stx_size));
  say("access", access("file", R_OK | W_OK));
  say("access absent", access("/dev/infinibandwidth", R_OK));
  say("access sys", access("/sys/class/net", R_OK));
  say("faccessat", faccessat(here, "file", X_OK, AT_EACCESS));
  char text[PATH_MAX] = {};
  say("symlink", symlink("file", "link"));
  say("readlink", readlink("link", text, sizeof(text)));
  say("readlink no link", readlink("file", text, sizeof(text)));
  say("realpath", realpath("link", text) == text && std::strstr(text, "/file") != nullptr ? 1 : -1);
  say("readlink_chk", __readlink_chk("link", text, 3, sizeof(text)));
  say("realpath_chk", __realpath_chk("link", text, sizeof(text)) == text ? 1 : -1);
  say("realpath absent", realpath("absent", text) != nullptr ? 1 : -1);
  say("realpath allocates", realpath("link", nullptr) != nullptr ? 1 : -1);
  say("fopen", fopen("file", "r") != nullptr ? 1 : -1);
  say("fopen64", fopen64("absent", "r") != nullptr ? 1 : -1);
  say("opendir", opendir(".") != nullptr ? 1 : -1);
  say("opendir absent", opendir("absent") != nullptr ? 1 : -1);
  dirent** entries = nullptr;
  say("scandir", scandir(".", &entries, nullptr, alphasort));
  say("scandir absent", scandir("absent", &entries, nullptr, nullptr));
  say("socket", socket(AF_UNIX, SOCK_STREAM, 0));
  say("socket netlink", socket(AF_NETLINK, SOCK_RAW, 0));
  say("socket bad", socket(-1, SOCK_STREAM, 0));
  int waiting = -1;
  say("ioctl", ioctl(3, FIONREAD, &waiting));
  std::printf("waiting %d\n", waiting);
  say("ioctl bad", ioctl(3, 0x1234, nullptr));
  say("dup", dup(3));
  say("dup bad", dup(99));
  say("dup2", dup2(3, 50));
  say("dup2 same", dup2(3, 3));
  say("dup2 bad", dup2(99, 51));
  say("dup3", dup3(3, 52, O_CLOEXEC));
  say("dup3 same", dup3(3, 3, 0));
  say("close", close(50));
  say("close again", close(50));
  say("close_range cloexec", close_range(3, 4, CLOSE_RANGE_CLOEXEC));
  say("getfd", fcntl(3, F_GETFD));
  say("close_range bad", close_range(9, 3, 0));
  say("close_range", close_range(52, ~0U, 0));
  say("getfd", fcntl(52, F_GETFD));
  closefrom(20);
  char* arguments[] = {const_cast<char*>("x"), nullptr};
  say("execv absent", execv("/no/such/program", arguments));
  say("execve absent", execve("/no/such/program", arguments, environ));
  say("execvp absent", execvp("no-such-program-anywhere", arguments));
  say("execlp absent", execlp("no-such-program-anywhere", "x", nullptr));
  say("fexecve bad", fexecve(99, arguments, environ));
  std::fflush(stdout);
  const auto run = [&](const char* what, auto exec) {
    const pid_t child = fork();
    if (child == 0) {
      exec();
      _exit(99);
    }
    say(what, wait_for(child));
    std::fflush(stdout);
  };
  char* variables[] = {const_cast<char*>("PROBE=set"), nullptr};
  run("execl", [] { execl("/bin/sh", "sh", "-c", "echo $0 $1 $2; exit 3", "a", "b", "c", nullptr); });
  run("execlp", [] { execlp("sh", "sh", "-c", "exit 4", nullptr); });
  run("execle", [&] { execle("/bin/sh", "sh", "-c", "echo $PROBE; exit 5", nullptr, variables); });
  char* words[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>("echo $PROBE; exit 6"),
                   nullptr};
  run("execve", [&] { execve("/bin/sh", words, variables); });
  run("execvpe", [&] { execvpe("sh", words, variables); });
  run("execv", [&] { execv("/bin/sh", words); });
  say("clean up", std::system((std::string("rm -r ") + folder).c_str()));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  if (scenario == "arguments") return argc == 4 && std::string(argv[2]) + argv[3] == "onetwo" ? 0 : 1;
  const std::map<std::string, void (*)()> scenarios = {
      {"looks_like_a_device", looks_like_a_device},
      {"refuses_without_daemon", refuses_without_daemon},
      {"rings_doorbells", rings_doorbells},
      {"arms_queues", arms_queues},
      {"waits_do_not_block", waits_do_not_block},
      {"receives_fds", receives_fds},
      {"refuses_bad_addresses", refuses_bad_addresses},
      {"survives_fork", survives_fork},
      {"keeps_count_of_fds", keeps_count_of_fds},
      {"opens_again_and_again", opens_again_and_again},
      {"outlives_the_daemon", outlives_the_daemon},
      {"resizes_shared_queues", resizes_shared_queues},
      {"speaks_rdma_cm", speaks_rdma_cm},
      {"outlives_the_daemon_of_rdma_cm", outlives_the_daemon_of_rdma_cm},
      {"redirects_paths", redirects_paths},
      {"transparent", transparent},
  };
  if (scenario == "closes_before_exec") closes_before_exec(argv[0]);
  const auto found = scenarios.find(scenario);
  if (found == scenarios.end()) {
    std::printf("no such scenario: %s\n", scenario.c_str());
    return 2;
  }
  found->second();
  return 0;
}
// NOLINTEND(concurrency-mt-unsafe)
