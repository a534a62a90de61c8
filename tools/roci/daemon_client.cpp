#include "tools/roci/daemon_client.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "tools/roci/process.h"
#include "verbs_shim/protocol.h"

namespace roci::tools {

using proto::Unexpected;
using shim::MessageHeader;
using shim::MessageKind;

namespace {

constexpr time_t kAnswerSeconds = 10;
constexpr std::size_t kMaxLongAnswerBytes = std::size_t{1} << 30;

// A long answer comes as a file.
OrError<std::string> read_all(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) > kMaxLongAnswerBytes)
    return Unexpected<std::string>{"the daemon's answer cannot be read"};
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got <= 0) return Unexpected<std::string>{"the daemon's answer cannot be read"};
    done += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace

OrError<DaemonClient> DaemonClient::connect(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path))
    return Unexpected<std::string>{"the path of the daemon's socket is too long: " + socket_path};
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);

  DaemonClient client(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (client.fd_ < 0) return Unexpected<std::string>{"socket: " + error_text(errno)};
  const timeval limit{kAnswerSeconds, 0};
  ::setsockopt(client.fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(client.fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (::connect(client.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return client;
  if (errno == ENOENT || errno == ECONNREFUSED) return Unexpected<std::string>{""};
  return Unexpected<std::string>{"cannot connect to the daemon at " + socket_path + ": " + error_text(errno)};
}

DaemonClient::DaemonClient(DaemonClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), next_id_(other.next_id_) {}

DaemonClient& DaemonClient::operator=(DaemonClient&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(next_id_, other.next_id_);
  return *this;
}

DaemonClient::~DaemonClient() {
  if (fd_ >= 0) ::close(fd_);
}

int DaemonClient::release() { return std::exchange(fd_, -1); }

OrError<std::string> DaemonClient::exchange(std::uint16_t kind, std::string_view payload, int passed_fd) {
  MessageHeader header;
  header.kind = kind;
  header.id = next_id_++;
  header.length_bytes = static_cast<std::uint32_t>(payload.size());
  iovec pieces[2] = {{&header, sizeof(header)}, {const_cast<char*>(payload.data()), payload.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * shim::kMaxMessageFds)] = {};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &passed_fd, sizeof(int));
  }
  const Unexpected<std::string> gone{"the daemon has ended"};
  if (::sendmsg(fd_, &message, MSG_NOSIGNAL) < 0)
    return errno == EAGAIN ? Unexpected<std::string>{"the daemon does not answer"} : gone;

  std::vector<char> buffer(shim::kMaxMessageBytes);
  pieces[0] = {buffer.data(), buffer.size()};
  message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = 0;
  do
    received = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return Unexpected<std::string>{"the daemon does not answer"};

  int file = -1;
  if (received >= 0) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= part->cmsg_len; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        if (file < 0)
          file = fd;
        else
          ::close(fd);
      }
    }
  }
  const DaemonClient closes_file(file);
  if (received < static_cast<ssize_t>(sizeof(header))) return gone;
  std::memcpy(&header, buffer.data(), sizeof(header));
  std::string text(buffer.data() + sizeof(header), static_cast<std::size_t>(received) - sizeof(header));
  if (header.magic != shim::kMessageMagic) return Unexpected<std::string>{"what answers is not rocid"};
  if (header.error == EPROTONOSUPPORT)
    return Unexpected<std::string>{
        "the running daemon is of another release than this roci; end it and try again"};
  if (header.error != 0) return Unexpected<std::string>{text.empty() ? error_text(header.error) : text};
  if (file >= 0) return read_all(file);
  return text;
}

OrError<Json> DaemonClient::request(const Json& request, int passed_fd) {
  const auto answer = exchange(static_cast<std::uint16_t>(MessageKind::kAdmin), request.dump(), passed_fd);
  if (!answer) return Unexpected<std::string>{answer.error()};
  Json json = Json::parse(*answer, nullptr, false);
  if (json.is_discarded()) return Unexpected<std::string>{"the daemon's answer is not JSON"};
  return json;
}

bool DaemonClient::become_lifeline() {
  return exchange(static_cast<std::uint16_t>(MessageKind::kLifeline), {}, -1).has_value();
}

}  // namespace roci::tools
