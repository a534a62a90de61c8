// A control server with a real engine behind it, in this process: threads for both, and a client that speaks
// the protocol byte by byte.
//
// No port: frames go from NIC to NIC by the fabric's rule. Tests talk to the server through its socket only.
#pragma once

#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/engine.h"
#include "emulator/fabric.h"
#include "verbs_shim/protocol.h"
#include "verbs_shim/server/server.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {

// Replies on their way from a shard to the server, and the descriptors of both directions.
class ReplyingShard : public ShardLink {
 public:
  std::size_t drain_replies(std::span<emulator::CommandReply> out) override {
    const std::lock_guard guard(mutex_);
    std::size_t count = 0;
    for (; count < out.size() && !replies_.empty(); ++count) {
      out[count] = std::move(replies_.front());
      replies_.pop_front();
    }
    return count;
  }
  [[nodiscard]] int replies_fd() const override { return replies_fd_.get(); }
  [[nodiscard]] int kick_fd() const override { return kick_fd_.get(); }

 protected:
  // With mutex_ held.
  void post_reply(emulator::CommandReply&& reply) {
    replies_.push_back(std::move(reply));
    constexpr std::uint64_t kOnce = 1;
    if (::write(replies_fd_.get(), &kOnce, sizeof kOnce) != sizeof kOnce) std::abort();
  }

  std::mutex mutex_;

 private:
  std::deque<emulator::CommandReply> replies_;
  UniqueFd replies_fd_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)},
      kick_fd_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
};

// One shard: an engine and its thread.
class EngineShard final : public ReplyingShard {
 public:
  explicit EngineShard(emulator::EngineConfig config) : config_(std::move(config)) {
    for (std::size_t i = 0; i < config_.nics.size(); ++i)
      fabric_.attach({static_cast<std::uint8_t>(i)}, config_.nics[i].mac);
  }
  ~EngineShard() override { stop(); }

  void start(ControlServer& server, std::uint32_t index) {
    server_ = &server;
    engine_ = std::make_unique<emulator::Engine>(config_, server.memory(index));
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    wake();
    thread_.join();
  }
  void set_link(emulator::NicId nic, bool up) {
    const std::lock_guard guard(mutex_);
    links_.emplace_back(nic, up);
    wake();
  }

  bool submit(emulator::CommandId id, emulator::Command&& command) override {
    const std::lock_guard guard(mutex_);
    if (commands_.size() == 4) return false;  // a short ring, so that the full one is met
    commands_.emplace_back(id, std::move(command));
    wake();
    return true;
  }
  [[nodiscard]] const emulator::Counters& counters(emulator::NicId nic) const override {
    return engine_->counters(nic);
  }

 private:
  class Sink final : public emulator::TxSink {
   public:
    std::span<emulator::TxFrame> reserve(std::size_t max) override {
      lent_.resize(std::min(max, std::size_t{32}));
      for (std::size_t i = 0; i < lent_.size(); ++i)
        lent_[i] = {buffers_[i].data(), static_cast<std::uint32_t>(buffers_[i].size()), 0, {}};
      return lent_;
    }
    void commit(std::size_t count) override {
      for (std::size_t i = 0; i < count; ++i)
        sent.emplace_back(lent_[i].nic, std::vector(lent_[i].data, lent_[i].data + lent_[i].length_bytes));
    }
    [[nodiscard]] std::uint64_t blocked_nics() const override { return 0; }
    std::vector<std::pair<emulator::NicId, std::vector<std::byte>>> sent;

   private:
    std::array<std::array<std::byte, 9300>, 32> buffers_;
    std::vector<emulator::TxFrame> lent_;
  };

  void run() {
    Sink sink;
    while (!stopping_) {
      const emulator::Time now{std::chrono::steady_clock::now().time_since_epoch()};
      take_commands(now);
      engine_->on_doorbells(now);
      engine_->on_timers(now);
      while (engine_->transmit(sink, now) != 0) {
      }
      for (const auto& [from, bytes] : std::exchange(sink.sent, {})) {
        const std::uint64_t to = fabric_.destinations(from, bytes);
        for (std::size_t nic = 0; nic < config_.nics.size(); ++nic) {
          const emulator::Frame frame{bytes, {static_cast<std::uint8_t>(nic)}};
          if ((to >> nic & 1) != 0) engine_->on_frames({&frame, 1}, now);
        }
      }
      hand_out();
      pollfd kicked{kick_fd(), POLLIN, 0};
      std::uint64_t count = 0;
      if (::poll(&kicked, 1, 1) == 1 && ::read(kick_fd(), &count, sizeof count) < 0) std::abort();
    }
  }
  void wake() const {
    constexpr std::uint64_t kOnce = 1;
    if (::write(kick_fd(), &kOnce, sizeof kOnce) != sizeof kOnce) std::abort();
  }
  void take_commands(emulator::Time now) {
    std::deque<std::pair<emulator::CommandId, emulator::Command>> commands;
    std::vector<std::pair<emulator::NicId, bool>> links;
    {
      const std::lock_guard guard(mutex_);
      commands.swap(commands_);
      links.swap(links_);
    }
    for (auto& [id, command] : commands)
      engine_->submit(id, std::move(command), now);
    for (const auto& [nic, up] : links)
      engine_->on_link(nic, up, now);
  }
  void hand_out() {
    std::array<emulator::Event, 16> events;
    while (const std::size_t count = engine_->drain_events(events))
      server_->on_events({events.data(), count});
    std::array<emulator::CommandReply, 16> replies;
    while (const std::size_t count = engine_->drain_replies(replies)) {
      const std::lock_guard guard(mutex_);
      for (std::size_t i = 0; i < count; ++i)
        post_reply(std::move(replies[i]));
    }
  }

  emulator::EngineConfig config_;
  emulator::Fabric fabric_;
  ControlServer* server_ = nullptr;
  std::unique_ptr<emulator::Engine> engine_;
  std::deque<std::pair<emulator::CommandId, emulator::Command>> commands_;
  std::vector<std::pair<emulator::NicId, bool>> links_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class FakeCapture final : public CaptureControl {
 public:
  void start(UniqueFd fd, const Wanted& wanted, std::function<void(std::int64_t)> then) override {
    files_.push_back(std::move(fd));
    last = wanted;
    ++running;
    answer([then = std::move(then), id = static_cast<std::int64_t>(files_.size())] { then(id); });
  }
  void stop(std::int64_t, std::function<void(const Totals&)> then) override {
    --running;
    files_.back().reset();
    answer([then = std::move(then)] { then({10, 2, 1000, ENOSPC}); });
  }
  [[nodiscard]] int answers_fd() const override { return answers_fd_.get(); }
  void run_answers() override {
    std::uint64_t count = 0;
    static_cast<void>(!::read(answers_fd_.get(), &count, sizeof count));
    for (const auto& one : std::exchange(answers_, {}))
      one();
  }
  std::atomic<int> running{0};
  Wanted last;

 private:
  void answer(std::function<void()> one) {
    answers_.push_back(std::move(one));
    const std::uint64_t once = 1;
    static_cast<void>(!::write(answers_fd_.get(), &once, sizeof once));
  }
  std::vector<UniqueFd> files_;
  std::vector<std::function<void()>> answers_;
  UniqueFd answers_fd_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
};

[[nodiscard]] inline std::size_t open_fds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// Waits, by looking again and again, for something that another thread brings about.
[[nodiscard]] inline bool eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

// Whether no more descriptors than `before` stay open: of those counted then, the server may have been about
// to close some.
[[nodiscard]] inline bool fds_back_to(std::size_t before) {
  return eventually([before] { return open_fds() <= before; });
}

struct TestReply {
  bool closed = false;  // the connection ended instead
  int error = 0;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
  std::uint64_t id = 0;

  template <class T>
  [[nodiscard]] T as(std::size_t offset = 0) const {
    T value;
    std::memset(static_cast<void*>(&value), 0, sizeof value);
    if (offset < payload.size())
      std::memcpy(static_cast<void*>(&value), payload.data() + offset,
                  std::min(sizeof value, payload.size() - offset));
    return value;
  }
  // Of a uverbs reply, behind UverbsReply.
  template <class T>
  [[nodiscard]] T response() const {
    return as<T>(sizeof(UverbsReply));
  }
  [[nodiscard]] std::string text() const {
    return {reinterpret_cast<const char*>(payload.data()), payload.size()};
  }
};

class TestClient {
 public:
  explicit TestClient(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    connected_ = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  [[nodiscard]] bool connected() const { return connected_; }
  [[nodiscard]] int fd() const { return socket_.get(); }
  void disconnect() { socket_.reset(); }

  bool send_raw(std::span<const std::byte> bytes, std::span<const int> fds = {}) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)] = {};
    iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* const c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL) >= 0;
  }
  std::uint64_t send(MessageKind kind, std::span<const std::byte> payload, std::span<const int> fds = {}) {
    MessageHeader header;
    header.kind = static_cast<std::uint16_t>(kind);
    header.id = ++last_id_;
    header.length_bytes = static_cast<std::uint32_t>(payload.size());
    std::vector<std::byte> bytes(sizeof header);
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    send_raw(bytes, fds);
    return last_id_;
  }
  TestReply receive() {
    TestReply reply;
    std::vector<std::byte> buffer(kMaxMessageBytes);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageFds)];
    iovec data{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t length = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    MessageHeader header;
    if (length < static_cast<ssize_t>(sizeof header)) {
      reply.closed = true;
      return reply;
    }
    std::memcpy(&header, buffer.data(), sizeof header);
    reply.error = header.error;
    reply.id = header.id;
    reply.payload.assign(buffer.begin() + sizeof header, buffer.begin() + length);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        reply.fds.emplace_back(fd);
      }
    }
    return reply;
  }
  TestReply call(MessageKind kind, std::span<const std::byte> payload = {}, std::span<const int> fds = {}) {
    send(kind, payload, fds);
    return receive();
  }
  TestReply admin(const std::string& text, std::span<const int> fds = {}) {
    return call(MessageKind::kAdmin, std::as_bytes(std::span(text)), fds);
  }
  TestReply open_device(std::uint32_t nic = 0) {
    OpenDeviceRequest request;
    request.nic = nic;
    return call(MessageKind::kOpenDevice, std::as_bytes(std::span(&request, 1)));
  }

  // A legacy command: `core` without the header, room for `response_bytes`.
  template <class Core>
  std::vector<std::byte> legacy(std::uint32_t command, const Core& core, std::size_t response_bytes,
                                std::uint64_t channel_inode = 0) {
    ib_uverbs_cmd_hdr header{command, static_cast<std::uint16_t>((sizeof header + sizeof core) / 4),
                             static_cast<std::uint16_t>(response_bytes / 4)};
    return pack(UverbsRequest{channel_inode}, header, core);
  }
  template <class Core>
  std::vector<std::byte> extended(std::uint32_t command, const Core& core, std::size_t response_bytes,
                                  std::size_t driver_bytes = 0) {
    ib_uverbs_cmd_hdr header{command | 0x80000000u, static_cast<std::uint16_t>(sizeof core / 8),
                             static_cast<std::uint16_t>(response_bytes / 8)};
    ib_uverbs_ex_cmd_hdr more{};
    more.response = response_bytes + driver_bytes == 0 ? 0 : 0x1000;
    more.provider_out_words = static_cast<std::uint16_t>(driver_bytes / 8);
    return pack(UverbsRequest{}, header, more, core);
  }
  TestReply uverbs(const std::vector<std::byte>& bytes) { return call(MessageKind::kUverbs, bytes); }
  TestReply get_context() {
    const std::array<std::uint64_t, 1> core{};
    return uverbs(legacy(IB_USER_VERBS_CMD_GET_CONTEXT, core, sizeof(ib_uverbs_get_context_resp)));
  }

 private:
  template <class... Parts>
  static std::vector<std::byte> pack(const Parts&... parts) {
    std::vector<std::byte> bytes;
    const auto add = [&](const auto& part) {
      const auto* const at = reinterpret_cast<const std::byte*>(&part);
      bytes.insert(bytes.end(), at, at + sizeof part);
    };
    (add(parts), ...);
    return bytes;
  }

  UniqueFd socket_;
  bool connected_ = false;
  std::uint64_t last_id_ = 0;
};

// Two NICs, `shards` engines, a server in a fresh folder.
class ServerFixture {
 public:
  explicit ServerFixture(std::uint32_t shard_count = 1,
                         const std::function<void(ServerConfig&)>& change = {}) {
    std::string name = (std::filesystem::temp_directory_path() / "shim-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
    config_.socket_path = name + "/rocid.sock";
    for (std::uint8_t i = 0; i < 2; ++i) {
      emulator::NicConfig nic;
      nic.name = "rxe" + std::to_string(i);
      nic.mac.bytes = {2, 0, 0, 0, 0, static_cast<std::uint8_t>(i + 1)};
      nic.addresses.push_back({proto::Gid::from_ipv4(0x7F4D0001u + i), 24});
      config_.nics.push_back(nic);
    }
    config_.log = [this](std::string_view sentence) {
      const std::lock_guard guard(log_mutex_);
      log_.emplace_back(sentence);
    };
    if (change) change(config_);
    emulator::EngineConfig engine;
    engine.nics = config_.nics;
    engine.limits = config_.limits;
    engine.shard_count = shard_count;
    std::vector<ShardLink*> links;
    for (engine.shard = 0; engine.shard < shard_count; ++engine.shard)
      links.push_back(shards_.emplace_back(std::make_unique<EngineShard>(engine)).get());
    server_ = std::make_unique<ControlServer>(config_, links, capture);
    for (std::uint32_t i = 0; i < shard_count; ++i)
      shards_[i]->start(*server_, i);
    thread_ = std::thread([this] {
      server_->serve();
      served_ = true;
    });
  }
  ServerFixture(const ServerFixture&) = delete;
  ServerFixture& operator=(const ServerFixture&) = delete;
  ~ServerFixture() {
    stop();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
    for (const auto& shard : shards_)
      shard->stop();
  }

  [[nodiscard]] const std::string& path() const { return config_.socket_path; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] TestClient connect() const { return TestClient(config_.socket_path); }
  [[nodiscard]] bool served() const { return served_; }
  [[nodiscard]] ControlServer& server() { return *server_; }
  [[nodiscard]] EngineShard& shard(std::size_t index) { return *shards_[index]; }
  [[nodiscard]] bool logged(const std::string& part) {
    const std::lock_guard guard(log_mutex_);
    return std::any_of(log_.begin(), log_.end(),
                       [&](const auto& line) { return line.find(part) != std::string::npos; });
  }
  FakeCapture capture;

 private:
  std::string folder_;
  ServerConfig config_;
  std::mutex log_mutex_;
  std::vector<std::string> log_;
  std::vector<std::unique_ptr<EngineShard>> shards_;
  std::unique_ptr<ControlServer> server_;
  std::atomic<bool> served_{false};
  std::thread thread_;
};

}  // namespace roci::shim
