// The daemon's side of the shim's protocol, as little of it as the tests need, and misbehaving on demand.
//
// One thread, which ends with the object. What it saw is read after wait_for_end() of the application.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace roci::tests {

class FakeDaemon {
 public:
  explicit FakeDaemon(std::string socket_path);
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  [[nodiscard]] int opens() const { return opens_; }
  [[nodiscard]] int orderly_closes() const { return orderly_closes_; }  // kCloseDevice
  [[nodiscard]] int live_clients() const { return live_clients_; }
  [[nodiscard]] std::string complaint() const {
    return complaint_;
  }  // of what broke the protocol; after the end only

 private:
  struct Held {
    std::uint64_t id, what;
  };
  struct Client {
    int kick_fd = -1, memory_fd = -1;
    int event_fd = -1;  // of an rdma_cm channel: the pipe's write end
    std::uint64_t memory_used = 0, channel_inode = 0;
    std::vector<Held> held;
    std::uint64_t free_id = 0, free_when = 0;  // kFree that still waits
  };

  void serve();
  // False: the connection is to be closed.
  bool on_message(int fd, Client& client, const std::byte* bytes, std::size_t length_bytes);
  bool on_command(int fd, Client& client, std::uint64_t id, std::uint64_t channel_inode,
                  const std::byte* bytes, std::size_t length_bytes);
  void open_rdma_cm(int fd, Client& client, std::uint64_t id);
  bool on_cm_command(int fd, Client& client, std::uint64_t id, const std::byte* bytes,
                     std::size_t length_bytes);
  void free_held(int fd, Client& client);
  void open_device(int fd, Client& client, std::uint64_t id);
  std::uint64_t make_ring(Client& client, std::uint32_t log2_element_bytes, std::uint32_t slots,
                          std::uint32_t& size);
  static void send(int fd, std::uint16_t kind, std::uint64_t id, int error, iovec payload,
                   std::vector<int> fds = {});
  static void answer(int fd, std::uint64_t id, const void* response, std::size_t size, int passed_fd = -1);

  std::string socket_path_;
  int listener_ = -1, stop_fd_ = -1;
  std::map<int, Client> clients_;
  std::atomic<int> opens_{0}, orderly_closes_{0}, live_clients_{0};
  std::string complaint_;
  std::thread thread_;
};

}  // namespace roci::tests
