// The daemon's socket: where it may lie, who may connect, and messages in and out.
//
// Bytes and credentials only; what a message means is server.cpp's matter. Control thread.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs_shim/protocol.h"
#include "verbs_shim/server/server.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {

// A bound and listening socket that goes from the file system with this object.
class Listener {
 public:
  // Creates the directory if need be (0700) and checks that nobody else can replace what is in it. One daemon
  // at a time: a lock file beside the socket says so. Throws std::system_error with a sentence.
  explicit Listener(const ServerConfig& config);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int fd() const { return socket_.get(); }
  // The next connection; empty: none, or one that could not be taken.
  [[nodiscard]] UniqueFd accept();

 private:
  const std::string path_;
  UniqueFd lock_;
  UniqueFd socket_;
  UniqueFd spare_;  // given up to take, and so refuse, a connection when descriptors have run out
};

struct Peer {
  ucred credentials{};
  UniqueFd pidfd;  // empty if the process cannot be seen from here
};
// Who connected; nothing if that cannot be found out.
[[nodiscard]] std::optional<Peer> peer_of(int socket);
[[nodiscard]] bool may_connect(const ServerConfig& config, int socket, const ucred& peer);

// One received message. Its bytes lie in the buffer that was received into.
struct Message {
  enum class Status : std::uint8_t { kMessage, kNone, kEnd, kMalformed };
  Status status = Status::kNone;
  const char* reason = "";  // kMalformed
  MessageHeader header;
  std::span<const std::byte> payload;
  ucred sender{};
  std::vector<UniqueFd> fds;
};
[[nodiscard]] Message receive(int socket, std::span<std::byte, kMaxMessageBytes> buffer);

enum class SendStatus : std::uint8_t { kSent, kFull, kBroken };
[[nodiscard]] SendStatus send(int socket, std::span<const std::byte> bytes, std::span<const UniqueFd> fds);

}  // namespace roci::shim
