// The connection to the daemon of one open device: requests of several threads outstanding at once.
//
// Whoever waits first becomes the leader and receives for all: a reply that is another's is put where that
// one wants it and its thread woken; a leader that has its own reply passes the lead on. So a command that
// waits for the network (RTR) delays no other, and no thread of ours exists. Nothing here is a cancellation
// point. A connection whose daemon died, or talks nonsense, is broken for good: every request fails with EIO.
// Any thread, not signal handlers.
#pragma once

#include <pthread.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbs_shim/protocol.h"

namespace roci::shim {

// One request and what comes back. Lives on the caller's stack for the length of Connection::call().
struct Call {
  MessageKind kind = MessageKind::kUverbs;
  // The payload, in up to two pieces.
  iovec request[2] = {};

  // Where the reply's payload goes: first `head_bytes` to `head`, all of which must come, then the rest, of
  // which what does not fit is dropped. Null pointers are allowed with size 0.
  void* head = nullptr;
  std::size_t head_bytes = 0;
  void* body = nullptr;
  std::size_t body_capacity_bytes = 0;

  std::size_t body_bytes = 0;                  // out: copied to `body`
  int fds[kMaxMessageFds] = {-1, -1, -1, -1};  // out: now the caller's, with close-on-exec
  std::size_t fd_count = 0;                    // out

 private:
  friend class Connection;
  enum class State : std::uint32_t { kWaiting, kLead, kDone };

  int error_ = 0;  // a positive errno
  std::uint64_t id_ = 0;
  Call* next_ = nullptr;
  std::atomic<std::uint32_t> state_{static_cast<std::uint32_t>(State::kWaiting)};  // a futex
};

class Connection {
 public:
  // Connects to the daemon; 0 or a negative errno. The socket is hidden from the application.
  [[nodiscard]] int open(const char* socket_path);
  // Every call in progress and every later one fails. The daemon learns at once, even if a child of fork
  // still holds the socket.
  void shut_down();
  // Only when no call is in progress.
  void close();

  // Sends and waits for the reply. 0 or a positive errno: the daemon's, or EIO.
  [[nodiscard]] int call(Call& call);

  // For poll(): readable or hung up.
  [[nodiscard]] int fd() const { return fd_.load(std::memory_order_relaxed); }
  // The application wants this number for itself: the socket has moved to another.
  void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }
  // Process id of the daemon, or 0 where it cannot be seen.
  [[nodiscard]] int daemon_pid() const;
  // In the child of fork: forgets the parent's calls and locks.
  void reset_after_fork();

 private:
  void send(Call& call);
  void receive_one();
  void deliver(Call& call, const MessageHeader& header, const std::byte* payload, const int* fds,
               std::size_t fd_count);
  Call* take_waiting(std::uint64_t id);
  void break_locked();
  void pass_lead_locked();

  std::atomic<int> fd_{-1};
  pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
  Call* waiting_ = nullptr;  // sent or being sent, not answered
  bool has_leader_ = false;
  bool is_broken_ = false;
  std::uint64_t next_id_ = 1;
  alignas(MessageHeader) std::byte buffer_[kMaxMessageBytes];  // the leader's
};

}  // namespace roci::shim
