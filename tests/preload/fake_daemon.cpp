#include "tests/preload/fake_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "emulator/shared_layout.h"
#include "tests/preload/scenario.h"
#include "verbs_shim/protocol.h"
#include "verbs_shim/rdma_cm_abi.h"

namespace roci::tests {

using namespace emulator;
using namespace shim;

namespace {

constexpr std::uint64_t kMemoryBytes = kControlAreaBytes + (std::uint64_t{1} << 20);

void need(bool condition, const char* what) {
  if (!condition) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

FakeDaemon::FakeDaemon(std::string socket_path) : socket_path_(std::move(socket_path)) {
  listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path_.c_str(), sizeof(address.sun_path) - 1);
  need(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "bind");
  need(::listen(listener_, 64) == 0, "listen");
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { serve(); });
}

FakeDaemon::~FakeDaemon() {
  const std::uint64_t one = 1;
  static_cast<void>(::write(stop_fd_, &one, sizeof(one)));
  thread_.join();
  for (const auto& [fd, client] : clients_)
    ::close(fd);
  ::close(listener_);
  ::close(stop_fd_);
  ::unlink(socket_path_.c_str());
}

void FakeDaemon::serve() {
  std::vector<std::byte> buffer(kMaxMessageBytes);
  for (;;) {
    std::vector<pollfd> watched = {{stop_fd_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const auto& [fd, client] : clients_)
      watched.push_back({fd, POLLIN, 0});
    live_clients_ = static_cast<int>(clients_.size());
    ::poll(watched.data(), watched.size(), -1);
    if (watched[0].revents != 0) return;
    if (watched[1].revents != 0) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) clients_[fd] = {};
    }
    for (std::size_t i = 2; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      const int fd = watched[i].fd;
      const auto found = clients_.find(fd);
      if (found == clients_.end()) continue;
      const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (got > 0 && on_message(fd, found->second, buffer.data(), static_cast<std::size_t>(got))) continue;
      if (clients_.count(fd) == 0) continue;
      ::close(found->second.kick_fd);
      ::close(found->second.memory_fd);
      ::close(found->second.event_fd);
      ::close(fd);
      clients_.erase(fd);
    }
  }
}

bool FakeDaemon::on_message(int fd, Client& client, const std::byte* bytes, std::size_t length_bytes) {
  MessageHeader header;
  if (length_bytes < sizeof(header)) return false;
  std::memcpy(&header, bytes, sizeof(header));
  if (header.magic != kMessageMagic || header.length_bytes != length_bytes - sizeof(header)) {
    complaint_ = "a malformed message";
    return false;
  }
  bytes += sizeof(header);
  length_bytes -= sizeof(header);
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kOpenDevice:
      open_device(fd, client, header.id);
      return true;
    case MessageKind::kCloseDevice:
      ++orderly_closes_;
      send(fd, header.kind, header.id, 0, {});
      return true;
    case MessageKind::kUverbs: {
      UverbsRequest request;
      if (length_bytes < sizeof(request)) return false;
      std::memcpy(&request, bytes, sizeof(request));
      return on_command(fd, client, header.id, request.channel_inode, bytes + sizeof(request),
                        length_bytes - sizeof(request));
    }
    case MessageKind::kOpenRdmaCm:
      open_rdma_cm(fd, client, header.id);
      return true;
    case MessageKind::kRdmaCm:
      return on_cm_command(fd, client, header.id, bytes, length_bytes);
    case MessageKind::kAdmin:
    case MessageKind::kLifeline:
      break;
  }
  complaint_ = "a message of kind " + std::to_string(header.kind);
  return false;
}

void FakeDaemon::open_device(int fd, Client& client, std::uint64_t id) {
  ++opens_;
  client.memory_fd = ::memfd_create("context", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  need(::ftruncate(client.memory_fd, static_cast<off_t>(kMemoryBytes)) == 0, "ftruncate");
  client.memory_used = kControlAreaBytes;
  client.kick_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  void* mapped = ::mmap(nullptr, kControlAreaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.memory_fd, 0);
  need(mapped != MAP_FAILED, "mmap");
  auto& control = *static_cast<ControlArea*>(mapped);
  control.magic = kControlMagic;
  control.version = kControlVersion;
  std::memset(control.qp_state, static_cast<int>(QpState::kDestroyed), sizeof(control.qp_state));
  ::munmap(mapped, kControlAreaBytes);
  OpenDeviceReply reply;
  reply.memory_bytes = kMemoryBytes;
  send(fd, static_cast<std::uint16_t>(MessageKind::kOpenDevice), id, 0, {&reply, sizeof(reply)},
       {client.memory_fd, client.kick_fd});
}

std::uint64_t FakeDaemon::make_ring(Client& client, std::uint32_t log2_element_bytes, std::uint32_t slots,
                                    std::uint32_t& size) {
  const std::uint64_t offset = client.memory_used;
  size = static_cast<std::uint32_t>((kRingDataOffset + (slots << log2_element_bytes) + 4095) / 4096 * 4096);
  client.memory_used += size;
  RingHeader header{};
  header.log2_element_bytes = log2_element_bytes;
  header.index_mask = slots - 1;
  need(::pwrite(client.memory_fd, &header, sizeof(header), static_cast<off_t>(offset)) == sizeof(header),
       "pwrite");
  return offset;
}

bool FakeDaemon::on_command(int fd, Client& client, std::uint64_t id, std::uint64_t channel_inode,
                            const std::byte* bytes, std::size_t length_bytes) {
  ib_uverbs_cmd_hdr header;
  std::uint64_t what = 0;
  if (length_bytes < sizeof(header)) return false;
  std::memcpy(&header, bytes, sizeof(header));
  if (length_bytes >= sizeof(header) + 16) std::memcpy(&what, bytes + sizeof(header) + 8, sizeof(what));

  switch (header.command) {
    case kEcho:
      break;
    case kReadKicks:
      if (::read(client.kick_fd, &what, sizeof(what)) != sizeof(what)) what = 0;
      break;
    case kHold:
      client.held.push_back({id, what});
      free_held(fd, client);
      return true;
    case kFree:
      client.free_id = id;
      client.free_when = what;
      free_held(fd, client);
      return true;
    case kReadChannel:
      what = client.channel_inode;
      break;
    case kFail:
      send(fd, static_cast<std::uint16_t>(MessageKind::kUverbs), id, static_cast<int>(what), {});
      return true;
    case kCountClients:
      what = clients_.size();
      break;
    case kDie:
      for (const auto& [each, theirs] : clients_) {
        ::close(each);
        ::close(theirs.event_fd);
      }
      clients_.clear();
      return false;
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: {
      int ends[2];
      need(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
      need(::write(ends[1], "event", 5) == 5, "write");
      const std::uint32_t placeholder = 0;
      answer(fd, id, &placeholder, sizeof(placeholder), ends[0]);
      ::close(ends[0]);
      ::close(ends[1]);
      return true;
    }
    case IB_USER_VERBS_CMD_CREATE_CQ: {
      client.channel_inode = channel_inode;
      struct {
        std::uint32_t handle, cqe;
        std::uint64_t offset;
        std::uint32_t size, pad;
      } response{5, 3, 0, 0, 0};
      response.offset = make_ring(client, kLog2CqeBytes, 4, response.size);
      answer(fd, id, &response, sizeof(response));
      return true;
    }
    case IB_USER_VERBS_CMD_CREATE_SRQ: {
      struct {
        std::uint32_t handle, max_wr, max_sge, number;
        std::uint64_t offset;
        std::uint32_t size, pad[3];
      } response{6, 7, 1, 6, 0, 0, {}};
      response.offset = make_ring(client, 7, 8, response.size);
      answer(fd, id, &response, sizeof(response));
      return true;
    }
    case IB_USER_VERBS_CMD_MODIFY_SRQ: {
      ib_uverbs_modify_srq request;
      std::memcpy(&request, bytes + sizeof(header), sizeof(request));
      struct {
        std::uint64_t offset;
        std::uint32_t size, pad;
      } location{};
      const bool resizes = (request.attr_mask & 1) != 0;
      if (resizes) location.offset = make_ring(client, 7, 8, location.size);
      answer(fd, id, &location, resizes ? sizeof(location) : 0);
      return true;
    }
    case IB_USER_VERBS_CMD_CREATE_QP: {
      struct {
        std::uint32_t handle, qpn, capabilities[6];
        struct {
          std::uint64_t offset;
          std::uint32_t size, pad;
        } recv_ring, send_ring;
      } response{};
      response.handle = 9;
      response.qpn = 0xABCDE;
      response.recv_ring.offset = make_ring(client, 7, 8, response.recv_ring.size);
      response.send_ring.offset = make_ring(client, 8, 8, response.send_ring.size);
      answer(fd, id, &response, sizeof(response));
      return true;
    }
    default:
      complaint_ = "command " + std::to_string(header.command);
      return false;
  }
  answer(fd, id, &what, sizeof(what));
  return true;
}

void FakeDaemon::open_rdma_cm(int fd, Client& client, std::uint64_t id) {
  ++opens_;
  int ends[2];
  need(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
  client.event_fd = ends[1];
  send(fd, static_cast<std::uint16_t>(MessageKind::kOpenRdmaCm), id, 0, {}, {ends[0]});
  ::close(ends[0]);
}

// CREATE_ID: the id is the uid, and an event says so. MIGRATE_ID: the inode of the old channel. SET_OPTION:
// succeeds if the bytes of the value add up to 10.
bool FakeDaemon::on_cm_command(int fd, Client& client, std::uint64_t id, const std::byte* bytes,
                               std::size_t length_bytes) {
  RdmaCmRequest request;
  ucm::Header header;
  if (length_bytes < sizeof(request) + sizeof(header)) return false;
  std::memcpy(&request, bytes, sizeof(request));
  const std::byte* const command = bytes + sizeof(request);
  std::memcpy(&header, command, sizeof(header));
  if (request.command_bytes != sizeof(header) + header.in_bytes) return false;
  std::uint32_t answer = 0;
  int error = 0;
  if (header.command == static_cast<std::uint32_t>(ucm::Command::kCreateId)) {
    ucm::EventRecord record{};
    std::memcpy(&record.uid, command + sizeof(header), sizeof(record.uid));
    answer = record.id = static_cast<std::uint32_t>(record.uid);
    need(::write(client.event_fd, &record, sizeof(record)) == sizeof(record), "write");
  } else if (header.command == static_cast<std::uint32_t>(ucm::Command::kMigrateId)) {
    answer = static_cast<std::uint32_t>(request.other_inode);
  } else if (header.command == static_cast<std::uint32_t>(ucm::Command::kSetOption)) {
    unsigned sum = 0;
    for (std::size_t at = sizeof(request) + request.command_bytes; at < length_bytes; ++at)
      sum += std::to_integer<unsigned>(bytes[at]);
    error = sum == 10 ? 0 : EPROTO;
  } else {
    complaint_ = "rdma_cm command " + std::to_string(header.command);
    return false;
  }
  send(fd, static_cast<std::uint16_t>(MessageKind::kRdmaCm), id, error, {&answer, sizeof(answer)});
  return true;
}

void FakeDaemon::free_held(int fd, Client& client) {
  if (client.free_id == 0 || client.held.size() < client.free_when) return;
  answer(fd, client.free_id, &client.free_when, sizeof(client.free_when));
  client.free_id = 0;
  while (!client.held.empty()) {
    const Held latest = client.held.back();
    client.held.pop_back();
    answer(fd, latest.id, &latest.what, sizeof(latest.what));
  }
}

void FakeDaemon::answer(int fd, std::uint64_t id, const void* response, std::size_t size, int passed_fd) {
  UverbsReply reply;
  std::vector<int> fds;
  if (passed_fd >= 0) {
    reply.fd_offset = 0;
    fds.push_back(passed_fd);
  }
  std::vector<std::byte> payload(sizeof(reply) + size);
  std::memcpy(payload.data(), &reply, sizeof(reply));
  std::memcpy(payload.data() + sizeof(reply), response, size);
  send(fd, static_cast<std::uint16_t>(MessageKind::kUverbs), id, 0, {payload.data(), payload.size()}, fds);
}

void FakeDaemon::send(int fd, std::uint16_t kind, std::uint64_t id, int error, iovec payload,
                      std::vector<int> fds) {
  MessageHeader header;
  header.kind = kind;
  header.id = id;
  header.error = error;
  header.length_bytes = static_cast<std::uint32_t>(payload.iov_len);
  iovec pieces[2] = {{&header, sizeof(header)}, payload};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageFds)] = {};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(part), fds.data(), sizeof(int) * fds.size());
  }
  static_cast<void>(::sendmsg(fd, &message, MSG_NOSIGNAL));
}

}  // namespace roci::tests
