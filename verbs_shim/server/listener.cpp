#include "verbs_shim/server/listener.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace roci::shim {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5
constexpr int kBacklog = 128;

[[noreturn]] void fail(int error, const std::string& sentence) {
  throw std::system_error(error, std::generic_category(), sentence);
}

bool is_open_to_others(const ServerConfig& config) {
  return !config.allow_uids.empty() || !config.allow_gids.empty();
}

void check_directory(const std::string& directory, bool open_to_others) {
  if (::mkdir(directory.c_str(), open_to_others ? 0755 : 0700) != 0 && errno != EEXIST)
    fail(errno, "cannot create the directory " + directory);
  struct stat status = {};
  if (::lstat(directory.c_str(), &status) != 0) fail(errno, "cannot look at " + directory);
  if (!S_ISDIR(status.st_mode)) fail(ENOTDIR, directory + " is not a directory");
  if (status.st_uid != ::geteuid()) fail(EPERM, directory + " belongs to another user");
  const mode_t forbidden = open_to_others ? 0022 : 0077;
  if ((status.st_mode & forbidden) != 0)
    fail(EPERM,
         directory + (open_to_others ? " can be written by others" : " is open to others (chmod 700)"));
}

bool contains(const std::vector<std::uint32_t>& list, std::uint32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Listener::Listener(const ServerConfig& config) : path_(config.socket_path) {
  const std::size_t slash = path_.rfind('/');
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (slash == std::string::npos || slash == 0) fail(EINVAL, "the socket path must be absolute: " + path_);
  if (path_.size() >= sizeof address.sun_path) fail(ENAMETOOLONG, "the socket path is too long: " + path_);
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  check_directory(path_.substr(0, slash), is_open_to_others(config));

  lock_.reset(::open((path_ + ".owner").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) fail(errno, "cannot open " + path_ + ".owner");
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    fail(EADDRINUSE, "another daemon serves " + path_ + " (roci stop ends it)");
  ::unlink(path_.c_str());  // left by a daemon that was killed: the lock says that it is gone

  socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) fail(errno, "cannot create a socket");
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail(errno, "cannot bind " + path_);
  if (::chmod(path_.c_str(), is_open_to_others(config) ? 0666 : 0600) != 0 ||
      ::listen(socket_.get(), kBacklog) != 0)
    fail(errno, "cannot listen on " + path_);
  spare_ = UniqueFd::duplicate(socket_.get());
}

Listener::~Listener() { ::unlink(path_.c_str()); }

UniqueFd Listener::accept() {
  UniqueFd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (client || (errno != EMFILE && errno != ENFILE)) return client;
  // Without this the connection would wait for ever, and the epoll thread spin on it.
  spare_.reset();
  client.reset(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  client.reset();
  spare_ = UniqueFd::duplicate(socket_.get());
  return client;
}

std::optional<Peer> peer_of(int socket) {
  Peer peer;
  socklen_t length = sizeof peer.credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer.credentials, &length) != 0) return std::nullopt;
  const int on = 1;  // so that every message says who sent it
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return std::nullopt;
  if (peer.credentials.pid <= 0) return peer;
  int pidfd = -1;
  length = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &length) != 0)
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, peer.credentials.pid, 0));
  peer.pidfd.reset(pidfd);
  return peer;
}

bool may_connect(const ServerConfig& config, int socket, const ucred& peer) {
  if (peer.uid == ::geteuid() || peer.uid == 0 || contains(config.allow_uids, peer.uid)) return true;
  if (config.allow_gids.empty()) return false;
  if (contains(config.allow_gids, peer.gid)) return true;
  std::array<gid_t, 256> groups;  // of a process in more groups, none counts
  socklen_t length = sizeof groups;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) return false;
  return std::any_of(groups.begin(), groups.begin() + length / sizeof(gid_t),
                     [&](gid_t group) { return contains(config.allow_gids, group); });
}

Message receive(int socket, std::span<std::byte, kMaxMessageBytes> buffer) {
  Message message;
  // One more than allowed, so that too many can be told from enough.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * (kMaxMessageFds + 1)) + CMSG_SPACE(sizeof(ucred))];
  iovec data{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t length = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length < 0) {
    const bool none = errno == EAGAIN || errno == EINTR;
    message.status = none ? Message::Status::kNone : Message::Status::kEnd;
    return message;
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len >= CMSG_LEN(sizeof(ucred)))
      std::memcpy(&message.sender, CMSG_DATA(c), sizeof message.sender);
    if (c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      message.fds.emplace_back(fd);
    }
  }
  const auto malformed = [&](const char* reason) {
    message.status = Message::Status::kMalformed;
    message.reason = reason;
  };
  message.status = Message::Status::kMessage;
  if (length == 0) {
    message.status = Message::Status::kEnd;
  } else if ((header.msg_flags & MSG_TRUNC) != 0) {
    malformed("a message longer than allowed");
  } else if ((header.msg_flags & MSG_CTRUNC) != 0 || message.fds.size() > kMaxMessageFds) {
    malformed("too many file descriptors in a message");
  } else if (static_cast<std::size_t>(length) < sizeof message.header) {
    malformed("a message shorter than its header");
  } else {
    std::memcpy(&message.header, buffer.data(), sizeof message.header);
    message.payload = std::span(buffer).subspan(sizeof message.header,
                                                static_cast<std::size_t>(length) - sizeof message.header);
    if (message.header.magic != kMessageMagic) {
      malformed("not a message of this protocol");
    } else if (message.header.length_bytes != message.payload.size()) {
      malformed("a message whose length is not the one it states");
    }
  }
  return message;
}

SendStatus send(int socket, std::span<const std::byte> bytes, std::span<const UniqueFd> fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageFds)] = {};
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg() does not write
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* const c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (std::size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof fd);
    }
  }
  if (::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SendStatus::kSent;
  // ETOOMANYREFS: descriptors in flight; they land when the other side reads.
  const bool full =
      errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS || errno == EINTR;
  return full ? SendStatus::kFull : SendStatus::kBroken;
}

}  // namespace roci::shim
