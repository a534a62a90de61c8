#include "verbs_shim/preload/rpc.h"

#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "verbs_shim/preload/fd_table.h"
#include "verbs_shim/preload/syscalls.h"

namespace roci::shim {
namespace {

class Locked {
 public:
  explicit Locked(pthread_mutex_t& mutex) : mutex_(mutex) { ::pthread_mutex_lock(&mutex_); }
  ~Locked() { ::pthread_mutex_unlock(&mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t while_equal) {
  system_call(SYS_futex, &word, FUTEX_WAIT_PRIVATE, while_equal, nullptr);
}
void futex_wake(std::atomic<std::uint32_t>& word) { system_call(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1); }

void close_all(const int* fds, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    close_quietly(fds[i]);
}

}  // namespace

int Connection::open(const char* socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(socket_path);
  if (length >= sizeof(address.sun_path)) return -ENAMETOOLONG;
  std::memcpy(address.sun_path, socket_path, length + 1);

  const long visible = system_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (visible < 0) return static_cast<int>(visible);
  const int hidden = hide_fd(static_cast<int>(visible));
  if (hidden < 0) return hidden;
  if (const long result = system_call_restarted(SYS_connect, hidden, &address, sizeof(address)); result < 0) {
    clear_fd_tag(hidden);
    close_quietly(hidden);
    return static_cast<int>(result);
  }
  lock_ = PTHREAD_MUTEX_INITIALIZER;
  waiting_ = nullptr;
  has_leader_ = false;
  is_broken_ = false;
  next_id_ = 1;
  fd_.store(hidden);
  return 0;
}

void Connection::shut_down() {
  Locked locked(lock_);
  system_call(SYS_shutdown, fd(), SHUT_RDWR);
  break_locked();
}

void Connection::close() {
  const int old = fd_.exchange(-1);
  if (old < 0) return;
  clear_fd_tag(old);
  close_quietly(old);
}

int Connection::daemon_pid() const {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (system_call(SYS_getsockopt, fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return 0;
  return peer.pid;
}

void Connection::reset_after_fork() {
  lock_ = PTHREAD_MUTEX_INITIALIZER;
  waiting_ = nullptr;
  has_leader_ = false;
  is_broken_ = true;
}

int Connection::call(Call& call) {
  {
    Locked locked(lock_);
    if (is_broken_) return EIO;
    call.id_ = next_id_++;
    call.next_ = waiting_;
    waiting_ = &call;
  }
  send(call);

  for (;;) {
    bool leads = false;
    {
      Locked locked(lock_);
      const auto state = static_cast<Call::State>(call.state_.load(std::memory_order_relaxed));
      if (state == Call::State::kDone) break;
      leads = state == Call::State::kLead || !has_leader_;
      if (leads) {
        has_leader_ = true;
        call.state_.store(static_cast<std::uint32_t>(Call::State::kLead), std::memory_order_relaxed);
      }
    }
    if (leads)
      receive_one();
    else
      futex_wait(call.state_, static_cast<std::uint32_t>(Call::State::kWaiting));
  }
  return call.error_;
}

// A failure to send ends the connection, and so the call.
void Connection::send(Call& call) {
  MessageHeader header;
  header.kind = static_cast<std::uint16_t>(call.kind);
  header.id = call.id_;
  header.length_bytes = static_cast<std::uint32_t>(call.request[0].iov_len + call.request[1].iov_len);
  iovec pieces[3] = {{&header, sizeof(header)}, call.request[0], call.request[1]};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 3;
  if (system_call_restarted(SYS_sendmsg, fd(), &message, MSG_NOSIGNAL) < 0) {
    Locked locked(lock_);
    system_call(SYS_shutdown, fd(), SHUT_RDWR);  // wakes a leader
    break_locked();
  }
}

// The leader only: one message, which answers some call, or the end of the connection.
void Connection::receive_one() {
  int fds[kMaxMessageFds];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))];
  iovec piece{buffer_, sizeof(buffer_)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const long received = system_call_restarted(SYS_recvmsg, fd(), &message, MSG_CMSG_CLOEXEC);

  std::size_t fd_count = 0;
  if (received >= 0) {
    const cmsghdr* part = CMSG_FIRSTHDR(&message);
    if (part != nullptr && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
      fd_count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      std::memcpy(fds, CMSG_DATA(part), fd_count * sizeof(int));
    }
  }

  Locked locked(lock_);
  MessageHeader header;
  bool is_sound =
      received >= static_cast<long>(sizeof(header)) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (is_sound) {
    std::memcpy(&header, buffer_, sizeof(header));
    is_sound = header.magic == kMessageMagic &&
               header.length_bytes == static_cast<std::size_t>(received) - sizeof(header) &&
               header.error >= 0;
  }
  Call* const call = is_sound ? take_waiting(header.id) : nullptr;
  if (call == nullptr) {
    close_all(fds, fd_count);
    break_locked();
    return;
  }
  deliver(*call, header, buffer_ + sizeof(header), fds, fd_count);
}

void Connection::deliver(Call& call, const MessageHeader& header, const std::byte* payload, const int* fds,
                         std::size_t fd_count) {
  call.error_ = header.error;
  if (header.error == 0 && header.length_bytes < call.head_bytes) call.error_ = EIO;
  if (call.error_ == 0) {
    if (call.head_bytes != 0) std::memcpy(call.head, payload, call.head_bytes);
    const std::size_t rest = header.length_bytes - call.head_bytes;
    call.body_bytes = rest < call.body_capacity_bytes ? rest : call.body_capacity_bytes;
    if (call.body_bytes != 0) std::memcpy(call.body, payload + call.head_bytes, call.body_bytes);
    std::memcpy(call.fds, fds, fd_count * sizeof(int));
    call.fd_count = fd_count;
  } else {
    close_all(fds, fd_count);
  }
  // The call's owner may return, and its memory be gone, as soon as it sees kDone; it looks under the lock.
  const bool was_leader =
      call.state_.exchange(static_cast<std::uint32_t>(Call::State::kDone), std::memory_order_relaxed) ==
      static_cast<std::uint32_t>(Call::State::kLead);
  futex_wake(call.state_);
  if (was_leader) pass_lead_locked();
}

Call* Connection::take_waiting(std::uint64_t id) {
  for (Call** link = &waiting_; *link != nullptr; link = &(*link)->next_) {
    if ((*link)->id_ != id) continue;
    Call* const found = *link;
    *link = found->next_;
    return found;
  }
  return nullptr;
}

void Connection::pass_lead_locked() {
  has_leader_ = false;
  if (waiting_ == nullptr) return;
  has_leader_ = true;
  waiting_->state_.store(static_cast<std::uint32_t>(Call::State::kLead), std::memory_order_relaxed);
  futex_wake(waiting_->state_);
}

void Connection::break_locked() {
  is_broken_ = true;
  has_leader_ = false;
  while (waiting_ != nullptr) {
    Call* const call = waiting_;
    waiting_ = call->next_;
    call->error_ = EIO;
    call->state_.store(static_cast<std::uint32_t>(Call::State::kDone), std::memory_order_relaxed);
    futex_wake(call->state_);
  }
}

}  // namespace roci::shim
