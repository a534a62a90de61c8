#include "verbs_shim/server/server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "verbs_shim/server/context.h"
#include "verbs_shim/server/listener.h"
#include "verbs_shim/server/process_probe.h"
#include "verbs_shim/server/process_vm_memory.h"
#include "verbs_shim/server/rdma_cm.h"
#include "verbs_shim/server/show.h"
#include "verbs_shim/server/view.h"

namespace roci::shim {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxRequestsInFlight = 1024;  // of a client: unanswered, or answered and not read
constexpr std::size_t kMaxMessagesAtOnce = 16;      // of a client, before others have their turn
constexpr std::size_t kMaxEpollEvents = 64;
constexpr std::size_t kMaxRepliesAtOnce = 64;
constexpr int kTickMs = 1000;                          // counters, watchdog, idle time
constexpr auto kCaptureEnd = std::chrono::seconds(5);  // at the end of all, for files that take their time
constexpr std::size_t kMaxLogsPerTick = 10;
constexpr char kVersion[] = ROCI_VERSION;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// What an epoll event is about: 8 bits of kind, 56 bits of number.
enum class Source : std::uint8_t {
  kListener,
  kWake,
  kShard,
  kClient,
  kClientProcess,
  kWatch,
  kCapture,
  kRdmaCm
};
constexpr std::uint64_t key(Source source, std::uint64_t number) {
  return (static_cast<std::uint64_t>(source) << 56) | number;
}

void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));  // if not, there is room for fewer clients
}

struct Seed {
  std::uint64_t words[4];
};
Seed random_seed() {
  Seed seed{};
  if (::getrandom(seed.words, sizeof seed.words, 0) != static_cast<ssize_t>(sizeof seed.words))
    fail("getrandom");
  return seed;
}

ServerConfig completed(ServerConfig config) {
  config.port_names.resize(config.nics.size(), "fabric");
  return config;
}

std::string only_these_nics(const ServerConfig& config) {
  std::string text = "no such NIC; this daemon has";
  for (const emulator::NicConfig& nic : config.nics)
    text += ' ' + nic.name;
  return text;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A memfd with a text that is too long for a message.
UniqueFd memfd_of(const std::string& text) {
  UniqueFd fd(::memfd_create("rocinante-result", MFD_CLOEXEC));
  for (std::size_t at = 0; fd && at < text.size();) {
    const ssize_t written = ::write(fd.get(), text.data() + at, text.size() - at);
    if (written <= 0) fd.reset();
    at += written <= 0 ? 0 : static_cast<std::size_t>(written);
  }
  if (fd) static_cast<void>(::lseek(fd.get(), 0, SEEK_SET));
  return fd;
}

}  // namespace

struct ControlServer::Impl final : ContextHost {
  struct Outgoing {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> fds;
  };
  struct Client {
    std::uint64_t id = 0;
    UniqueFd socket, pidfd;
    ucred credentials{};
    std::shared_ptr<Context> context;
    std::size_t in_flight = 0;
    std::deque<Outgoing> queue;
    bool waits_for_room = false;
    std::set<std::int64_t> captures;
  };
  struct Shard {
    ShardLink* link = nullptr;
    std::unique_ptr<ProcessVmMemory> memory;
    std::deque<std::pair<emulator::CommandId, emulator::Command>> waiting;  // the link was full
    std::size_t contexts = 0;
    // Watchdog: the call seen at the last tick, and when it was first seen.
    std::uint64_t stalled_call = 0;
    Clock::time_point stalled_since;
    bool stall_reported = false;
  };
  struct Watch {
    int write_fd = -1;
    std::function<void()> has_room, closed;
  };

  Impl(ServerConfig config, std::vector<ShardLink*> links, CaptureControl& capture);

  // ---- ContextHost
  void submit(std::uint32_t shard, emulator::Command&& command, Continuation then) override;
  void reply(const ReplyTo& to, ReplyBody&& body) override { send_reply(to, std::errc{}, std::move(body)); }
  void fail(const ReplyTo& to, std::errc error) override { send_reply(to, error, {}); }
  std::uint64_t watch(int write_fd, std::function<void()> has_room, std::function<void()> closed) override;
  void unwatch(std::uint64_t watch) override;
  void log(const std::string& sentence) override;
  [[nodiscard]] const ServerConfig& config() const override { return config_; }
  [[nodiscard]] bool link_up(emulator::NicId nic) const override { return up_[nic.index]; }
  [[nodiscard]] AddressSpaces& spaces() override { return *spaces_; }
  [[nodiscard]] EventRouter& router() override { return router_; }
  [[nodiscard]] int kick_fd(std::uint32_t shard) const override { return shards_[shard].link->kick_fd(); }

  // ---- loop
  void serve();
  void dispatch(const epoll_event& event);
  void add_to_epoll(int fd, std::uint32_t events, std::uint64_t data) const;
  [[nodiscard]] int sleep_ms() const;
  void tick();
  void watch_for_stalls();
  void follow_links();
  void follow_addresses();
  [[nodiscard]] bool idle_time_over() const;
  void close_everything();

  // ---- shards
  void drain_shard(std::uint32_t index);
  void submit_waiting(Shard& shard);

  // ---- clients
  void accept_clients();
  void on_client(std::uint64_t id, std::uint32_t events);
  void read_client(Client& client);
  void handle(Client& client, Message&& message);
  void open_device(Client& client, const ReplyTo& to, std::span<const std::byte> payload);
  void close_device(Client& client, const ReplyTo& to);
  void open_rdma_cm(Client& client, const ReplyTo& to, std::span<const std::byte> payload);
  void rdma_cm_command(Client& client, const ReplyTo& to, const Message& message);
  void close_context(const std::shared_ptr<Context>& context, std::function<void()> done);
  void send_reply(const ReplyTo& to, std::errc error, ReplyBody&& body);
  void flush(Client& client);
  // With a reason: a client that broke the rules.
  void drop(std::uint64_t client, const std::string& reason);

  // ---- admin
  void admin(Client& client, const ReplyTo& to, Message&& message);
  void admin_op(Client& client, const ReplyTo& to, const std::string& op, const json& request,
                std::vector<UniqueFd> fds);
  void show(const ReplyTo& to, const std::string& what);
  void change_address(Client& client, const ReplyTo& to, const json& request);
  // Tells everybody; calls `done` when every shard knows.
  void change_addresses(std::size_t index, const std::vector<emulator::NicAddress>& wanted,
                        const std::function<void()>& done);
  void start_capture(const ReplyTo& to, const json& request, std::vector<UniqueFd> fds);
  void stop_capture(Client& client, const ReplyTo& to, const json& request);
  void end_capture(std::int64_t id, std::function<void(const CaptureControl::Totals&)> then);
  [[nodiscard]] std::optional<std::uint64_t> nic_set(const json& request) const;
  [[nodiscard]] json daemon_json(std::uint64_t asking) const;
  void reply_json(const ReplyTo& to, const json& value);
  void fail_with(const ReplyTo& to, std::errc error, const std::string& sentence);

  ServerConfig config_;  // only addresses and MTUs change
  CaptureControl& capture_;
  std::unique_ptr<AddressSpaces> spaces_ = std::make_unique<AddressSpaces>();
  std::mutex atomics_;  // read-modify-write of application memory, by any shard
  EventRouter router_;
  const std::vector<ShardLink*> links_;
  std::vector<Shard> shards_;  // one for each of links_
  std::vector<bool> up_;
  std::atomic<std::uint64_t> links_up_{0};                                  // bit n: NIC n; what up_ follows
  std::array<std::atomic<std::uint32_t>, emulator::kMaxNics> mtu_bytes_{};  // what config_ follows
  Listener listener_;
  Views views_;
  UniqueFd epoll_, wake_;
  std::function<std::string()> daemon_info_;
  std::function<std::string(emulator::NicId)> port_counters_;
  std::mutex addresses_;                                                    // guards the next
  std::map<std::size_t, std::vector<emulator::NicAddress>> new_addresses_;  // by NIC, not yet followed
  std::atomic<bool> stopping_{false};
  std::uint64_t next_client_ = 1, next_watch_ = 1, next_command_ = 1;
  std::unordered_map<std::uint64_t, std::unique_ptr<Client>> clients_;
  std::unordered_map<std::uint64_t, Watch> watches_;
  std::unordered_map<std::uint64_t, Continuation> continuations_;
  RdmaCm rdma_cm_;
  std::size_t open_contexts_ = 0;
  std::size_t capture_answers_ = 0;  // that are still to come
  Clock::time_point idle_since_ = Clock::now();
  Clock::time_point last_tick_ = Clock::now();
  std::size_t logged_ = 0, not_logged_ = 0;
  std::uint64_t lost_reported_ = 0;  // events
  alignas(MessageHeader) std::array<std::byte, kMaxMessageBytes> buffer_;
};

ControlServer::Impl::Impl(ServerConfig config, std::vector<ShardLink*> links, CaptureControl& capture)
    : config_(completed(std::move(config))),
      capture_(capture),
      links_(std::move(links)),
      listener_(config_),
      views_(config_.socket_path.substr(0, config_.socket_path.rfind('/')) + "/views", config_.nics,
             config_.port_names),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      rdma_cm_(*this, random_seed().words) {
  if (!epoll_ || !wake_) roci::shim::fail("cannot create the control thread's descriptors");
  std::signal(SIGPIPE, SIG_IGN);
  raise_file_limit();
  for (const emulator::NicConfig& nic : config_.nics) {
    if (nic.link_up) links_up_ |= std::uint64_t{1} << up_.size();
    mtu_bytes_[up_.size()] = nic.mtu_bytes;
    up_.push_back(nic.link_up);
  }
  add_to_epoll(listener_.fd(), EPOLLIN, key(Source::kListener, 0));
  add_to_epoll(wake_.get(), EPOLLIN, key(Source::kWake, 0));
  add_to_epoll(capture_.answers_fd(), EPOLLIN, key(Source::kCapture, 0));
  add_to_epoll(rdma_cm_.events_fd(), EPOLLIN, key(Source::kRdmaCm, 0));
  for (ShardLink* link : links_) {
    Shard& shard = shards_.emplace_back();
    shard.link = link;
    shard.memory = std::make_unique<ProcessVmMemory>(*spaces_, atomics_);
    add_to_epoll(link->replies_fd(), EPOLLIN, key(Source::kShard, shards_.size() - 1));
  }
}

// ---- loop --------------------------------------------------------------------------------------------

void ControlServer::Impl::add_to_epoll(int fd, std::uint32_t events, std::uint64_t data) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) roci::shim::fail("epoll_ctl");
}

void ControlServer::Impl::serve() {
  rdma_cm_.open_ports();
  while (!stopping_ && !idle_time_over()) {
    std::array<epoll_event, kMaxEpollEvents> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), sleep_ms());
    for (int i = 0; i < count; ++i)
      dispatch(events[static_cast<std::size_t>(i)]);
    rdma_cm_.on_timers();
    if (Clock::now() - last_tick_ >= std::chrono::milliseconds(kTickMs)) tick();
  }
  close_everything();
}

// For ever (-1) if there is nothing that time could bring.
int ControlServer::Impl::sleep_ms() const {
  const bool ticks = !clients_.empty() || config_.idle_exit_ms >= 0;
  const auto deadline = rdma_cm_.next_deadline();
  if (!deadline) return ticks ? kTickMs : -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kTickMs));
}

void ControlServer::Impl::follow_links() {
  const std::uint64_t links = links_up_;
  for (std::size_t i = 0; i < up_.size(); ++i) {
    config_.nics[i].mtu_bytes = mtu_bytes_[i];
    const bool up = ((links >> i) & 1) != 0;
    if (up_[i] == up) continue;
    up_[i] = up;
    try {
      views_.set_link(emulator::NicId{static_cast<std::uint8_t>(i)}, up);
    } catch (const std::system_error& error) {
      log(std::string("the link state in sysfs is not up to date: ") + error.what());
    }
  }
}

void ControlServer::Impl::follow_addresses() {
  std::map<std::size_t, std::vector<emulator::NicAddress>> changed;
  {
    const std::lock_guard lock(addresses_);
    changed.swap(new_addresses_);
  }
  for (const auto& [index, addresses] : changed)
    change_addresses(index, addresses, [] {});
}

void ControlServer::Impl::dispatch(const epoll_event& event) {
  follow_links();  // first: who was told of a change finds it made
  const std::uint64_t number = event.data.u64 & ~(std::uint64_t{0xFF} << 56);
  switch (static_cast<Source>(event.data.u64 >> 56)) {
    case Source::kListener:
      accept_clients();
      return;
    case Source::kWake: {
      std::uint64_t count = 0;
      static_cast<void>(!::read(wake_.get(), &count, sizeof count));
      follow_addresses();
      return;
    }
    case Source::kShard:
      drain_shard(static_cast<std::uint32_t>(number));
      return;
    case Source::kClient:
      on_client(number, event.events);
      return;
    case Source::kClientProcess:
      drop(number, "");
      return;
    case Source::kCapture:
      capture_.run_answers();
      return;
    case Source::kRdmaCm:
      rdma_cm_.on_completions();
      return;
    case Source::kWatch: {
      const auto at = watches_.find(number);
      if (at == watches_.end()) return;
      if ((event.events & EPOLLERR) == 0) {
        at->second.has_room();
        return;
      }
      const auto closed = at->second.closed;  // which may end the watch
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, at->second.write_fd, nullptr);
      closed();
      return;
    }
  }
}

bool ControlServer::Impl::idle_time_over() const {
  if (config_.idle_exit_ms < 0 || !clients_.empty()) return false;
  return Clock::now() - idle_since_ >= std::chrono::milliseconds(config_.idle_exit_ms);
}

void ControlServer::Impl::tick() {
  last_tick_ = Clock::now();
  if (not_logged_ != 0 && config_.log)
    config_.log(std::to_string(not_logged_) + " more such lines were left out");
  logged_ = not_logged_ = 0;
  if (const std::uint64_t lost = router_.lost(); lost != lost_reported_) {
    log(std::to_string(lost - lost_reported_) + " events were lost, as an application does not read them");
    lost_reported_ = lost;
  }
  watch_for_stalls();
  if (views_.empty()) return;
  try {
    for (std::size_t i = 0; i < config_.nics.size(); ++i) {
      const emulator::NicId nic{static_cast<std::uint8_t>(i)};
      views_.refresh(nic, sum_counters(links_, nic));
    }
  } catch (const std::system_error& error) {
    log(std::string("counters in sysfs are not up to date: ") + error.what());
  }
}

// A poll thread that is inside one call for long serves nobody. The memory that it waits for belongs to one
// client.
void ControlServer::Impl::watch_for_stalls() {
  for (Shard& shard : shards_) {
    const ProcessVmMemory::Stall now = shard.memory->stall();
    if (now.pid == 0 || now.call != shard.stalled_call) {
      shard.stalled_call = now.call;
      shard.stalled_since = Clock::now();
      shard.stall_reported = false;
      continue;
    }
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - shard.stalled_since).count();
    if (config_.memory_stall_report_ms >= 0 && ms >= config_.memory_stall_report_ms &&
        !shard.stall_reported) {
      shard.stall_reported = true;
      log("memory of " + process_name(now.pid) + " does not answer; everybody else waits for it");
    }
    if (config_.memory_stall_kill_ms >= 0 && ms >= config_.memory_stall_kill_ms) {
      log("killed " + process_name(now.pid) + ": its memory did not answer for " + std::to_string(ms) +
          " ms");
      ::kill(now.pid, SIGKILL);
    }
  }
}

// Every client goes; replies are taken until each context is closed, and each capture is complete.
void ControlServer::Impl::close_everything() {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.fd(), nullptr);
  for (const auto& [id, client] : clients_)
    if (client->context) client->context->tell_fatal();
  while (!clients_.empty())
    drop(clients_.begin()->first, "");
  const auto captures_until = Clock::now() + kCaptureEnd;
  bool ports_are_open = true;
  rdma_cm_.close_ports([&ports_are_open] { ports_are_open = false; });
  while (open_contexts_ != 0 || ports_are_open || (capture_answers_ != 0 && Clock::now() < captures_until)) {
    std::array<epoll_event, kMaxEpollEvents> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), kTickMs);
    for (int i = 0; i < count; ++i)
      dispatch(events[static_cast<std::size_t>(i)]);
    watch_for_stalls();
  }
}

void ControlServer::Impl::log(const std::string& sentence) {
  if (logged_ == kMaxLogsPerTick) {
    ++not_logged_;
    return;
  }
  ++logged_;
  if (config_.log) config_.log(sentence);
}

// ---- shards ------------------------------------------------------------------------------------------

void ControlServer::Impl::submit(std::uint32_t shard, emulator::Command&& command, Continuation then) {
  const emulator::CommandId id{next_command_++};
  continuations_.emplace(static_cast<std::uint64_t>(id), std::move(then));
  shards_[shard].waiting.emplace_back(id, std::move(command));
  submit_waiting(shards_[shard]);
}

void ControlServer::Impl::submit_waiting(Shard& shard) {
  while (!shard.waiting.empty()) {
    auto& [id, command] = shard.waiting.front();
    if (!shard.link->submit(id, std::move(command))) return;
    shard.waiting.pop_front();
  }
}

void ControlServer::Impl::drain_shard(std::uint32_t index) {
  Shard& shard = shards_[index];
  std::uint64_t count = 0;
  static_cast<void>(!::read(shard.link->replies_fd(), &count, sizeof count));
  std::array<emulator::CommandReply, kMaxRepliesAtOnce> replies;
  for (std::size_t got = replies.size(); got == replies.size();) {
    got = shard.link->drain_replies(replies);
    for (std::size_t i = 0; i < got; ++i) {
      const auto at = continuations_.find(static_cast<std::uint64_t>(replies[i].id));
      if (at == continuations_.end()) continue;
      const Continuation then = std::move(at->second);
      continuations_.erase(at);
      then(std::move(replies[i]));
    }
  }
  submit_waiting(shard);
}

// ---- watches -----------------------------------------------------------------------------------------

std::uint64_t ControlServer::Impl::watch(int write_fd, std::function<void()> has_room,
                                         std::function<void()> closed) {
  const std::uint64_t id = next_watch_++;
  // Edge-triggered: once when room appears in a full pipe, once when the reader goes.
  add_to_epoll(write_fd, EPOLLOUT | EPOLLET, key(Source::kWatch, id));
  watches_.emplace(id, Watch{write_fd, std::move(has_room), std::move(closed)});
  return id;
}

void ControlServer::Impl::unwatch(std::uint64_t watch) {
  const auto at = watches_.find(watch);
  if (at == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, at->second.write_fd, nullptr);
  watches_.erase(at);
}

// ---- clients -----------------------------------------------------------------------------------------

void ControlServer::Impl::accept_clients() {
  for (std::size_t i = 0; i < kMaxMessagesAtOnce; ++i) {
    UniqueFd socket = listener_.accept();
    if (!socket) return;
    std::optional<Peer> peer = peer_of(socket.get());
    if (!peer) continue;
    if (!may_connect(config_, socket.get(), peer->credentials)) {
      log("refused process " + std::to_string(peer->credentials.pid) + " of user " +
          std::to_string(peer->credentials.uid) +
          ": neither the daemon's user nor allowed by allow_uid or allow_gid");
      continue;
    }
    if (clients_.size() >= config_.max_clients) {
      log("refused process " + std::to_string(peer->credentials.pid) + ": there are " +
          std::to_string(clients_.size()) + " clients already");
      continue;
    }
    auto client = std::make_unique<Client>();
    client->id = next_client_++;
    client->socket = std::move(socket);
    client->credentials = peer->credentials;
    client->pidfd = std::move(peer->pidfd);
    add_to_epoll(client->socket.get(), EPOLLIN, key(Source::kClient, client->id));
    if (client->pidfd) add_to_epoll(client->pidfd.get(), EPOLLIN, key(Source::kClientProcess, client->id));
    clients_.emplace(client->id, std::move(client));
  }
}

void ControlServer::Impl::on_client(std::uint64_t id, std::uint32_t events) {
  const auto at = clients_.find(id);
  if (at == clients_.end()) return;
  if ((events & EPOLLOUT) != 0) flush(*at->second);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  read_client(*at->second);
}

void ControlServer::Impl::read_client(Client& client) {
  const std::uint64_t id = client.id;
  for (std::size_t i = 0; i < kMaxMessagesAtOnce && clients_.contains(id); ++i) {
    Message message = receive(client.socket.get(), buffer_);
    switch (message.status) {
      case Message::Status::kNone:
        return;
      case Message::Status::kEnd:
        return drop(id, "");
      case Message::Status::kMalformed:
        return drop(id, message.reason);
      case Message::Status::kMessage:
        handle(client, std::move(message));
        break;
    }
  }
}

void ControlServer::Impl::handle(Client& client, Message&& message) {
  if (++client.in_flight > kMaxRequestsInFlight)
    return drop(client.id, "too many requests unanswered or answers unread");
  const ReplyTo to{client.id, message.header.id, static_cast<MessageKind>(message.header.kind)};
  if (message.header.version != kProtocolVersion) return fail(to, std::errc::protocol_not_supported);
  switch (to.kind) {
    case MessageKind::kOpenDevice:
      return open_device(client, to, message.payload);
    case MessageKind::kUverbs:
      if (!client.context) return fail(to, std::errc::no_such_device);
      return client.context->handle(to, message.sender, message.payload);
    case MessageKind::kAdmin:
      return admin(client, to, std::move(message));
    case MessageKind::kLifeline:
      return reply(to, {});
    case MessageKind::kCloseDevice:
      return close_device(client, to);
    case MessageKind::kOpenRdmaCm:
      return open_rdma_cm(client, to, message.payload);
    case MessageKind::kRdmaCm:
      return rdma_cm_command(client, to, message);
  }
  fail(to, std::errc::invalid_argument);
}

void ControlServer::Impl::open_device(Client& client, const ReplyTo& to, std::span<const std::byte> payload) {
  OpenDeviceRequest request;
  if (payload.size() != sizeof request || client.context || rdma_cm_.is_open(client.id))
    return fail(to, std::errc::invalid_argument);
  std::memcpy(&request, payload.data(), sizeof request);
  if (request.nic >= config_.nics.size()) return fail(to, std::errc::no_such_device);
  if (!client.pidfd) return fail(to, std::errc::no_such_process);  // its memory could not be reached either
  const auto least = std::min_element(shards_.begin(), shards_.end(),
                                      [](const Shard& a, const Shard& b) { return a.contexts < b.contexts; });
  const auto shard = static_cast<std::uint32_t>(least - shards_.begin());
  client.context = Context::open(*this, emulator::NicId{static_cast<std::uint8_t>(request.nic)}, shard,
                                 client.credentials, to);
  if (!client.context) return;
  ++open_contexts_;
  ++shards_[shard].contexts;
}

void ControlServer::Impl::open_rdma_cm(Client& client, const ReplyTo& to,
                                       std::span<const std::byte> payload) {
  if (client.context || rdma_cm_.is_open(client.id)) return fail(to, std::errc::invalid_argument);
  const std::string view(reinterpret_cast<const char*>(payload.data()), payload.size());
  const auto nics = view.empty() ? std::optional(~std::uint64_t{0}) : views_.nics_of(view);
  if (!nics) return fail(to, std::errc::no_such_device);
  auto reader = rdma_cm_.open(client.id, client.credentials.pid, *nics);
  if (!reader) return fail(to, reader.error());
  ReplyBody body;
  body.fds.push_back(std::move(*reader));
  reply(to, std::move(body));
}

void ControlServer::Impl::rdma_cm_command(Client& client, const ReplyTo& to, const Message& message) {
  auto response = rdma_cm_.command(client.id, message.sender.pid, message.payload);
  if (!response) return fail(to, response.error());
  reply(to, {std::move(*response), {}});
}

void ControlServer::Impl::close_device(Client& client, const ReplyTo& to) {
  if (rdma_cm_.is_open(client.id)) {
    rdma_cm_.close(client.id);
    return reply(to, {});
  }
  if (!client.context) return fail(to, std::errc::no_such_device);
  const std::shared_ptr<Context> context = std::exchange(client.context, nullptr);
  close_context(context, [this, to] { reply(to, {}); });
}

void ControlServer::Impl::close_context(const std::shared_ptr<Context>& context, std::function<void()> done) {
  const std::uint32_t shard = context->shard();
  context->close([this, shard, done = std::move(done)] {
    --open_contexts_;
    --shards_[shard].contexts;
    done();
  });
}

void ControlServer::Impl::drop(std::uint64_t id, const std::string& reason) {
  const auto at = clients_.find(id);
  if (at == clients_.end()) return;
  const std::unique_ptr<Client> client = std::move(at->second);
  clients_.erase(at);
  if (!reason.empty())
    log("closed the connection of " + process_name(client->credentials.pid) + ": " + reason);
  // The descriptors may live on in another process, and epoll would go on reporting them.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client->socket.get(), nullptr);
  ::shutdown(client->socket.get(), SHUT_RDWR);
  if (client->pidfd) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client->pidfd.get(), nullptr);
  for (const std::int64_t capture : client->captures)
    end_capture(capture, [](const CaptureControl::Totals&) {});
  if (client->context) close_context(client->context, [] {});
  rdma_cm_.close(client->id);
  if (clients_.empty()) idle_since_ = Clock::now();
}

void ControlServer::Impl::send_reply(const ReplyTo& to, std::errc error, ReplyBody&& body) {
  const auto at = clients_.find(to.client);
  if (at == clients_.end()) return;
  MessageHeader header;
  header.kind = static_cast<std::uint16_t>(to.kind);
  header.id = to.id;
  header.error = static_cast<std::int32_t>(error);
  header.length_bytes = static_cast<std::uint32_t>(body.payload.size());
  const auto head = std::as_bytes(std::span<const MessageHeader, 1>(&header, 1));
  Outgoing out;
  out.bytes.assign(head.begin(), head.end());
  out.bytes.insert(out.bytes.end(), body.payload.begin(), body.payload.end());
  out.fds = std::move(body.fds);
  at->second->queue.push_back(std::move(out));
  if (at->second->queue.size() == 1) flush(*at->second);
}

void ControlServer::Impl::flush(Client& client) {
  while (!client.queue.empty()) {
    const Outgoing& out = client.queue.front();
    const SendStatus status = send(client.socket.get(), out.bytes, out.fds);
    if (status == SendStatus::kFull) break;
    // Of a broken connection the end is reported by epoll.
    client.queue.pop_front();
    --client.in_flight;
  }
  const bool waits_for_room = !client.queue.empty();
  if (waits_for_room == client.waits_for_room) return;
  client.waits_for_room = waits_for_room;
  epoll_event event{};
  event.events = waits_for_room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = key(Source::kClient, client.id);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.socket.get(), &event);
}

// ---- admin -------------------------------------------------------------------------------------------

void ControlServer::Impl::fail_with(const ReplyTo& to, std::errc error, const std::string& sentence) {
  send_reply(to, error, {bytes_of(sentence), {}});
}

void ControlServer::Impl::reply_json(const ReplyTo& to, const json& value) {
  const std::string text = to_text(value);
  ReplyBody body;
  if (text.size() <= kMaxMessageBytes - sizeof(MessageHeader)) {
    body.payload = bytes_of(text);
  } else {
    body.fds.push_back(memfd_of(text));
    if (!body.fds[0]) return fail(to, std::errc::not_enough_memory);
  }
  reply(to, std::move(body));
}

void ControlServer::Impl::admin(Client& client, const ReplyTo& to, Message&& message) {
  const auto* const text = reinterpret_cast<const char*>(message.payload.data());
  const json request = json::parse(text, text + message.payload.size(), nullptr, false);
  if (!request.is_object() || !request.contains("op") || !request["op"].is_string())
    return fail_with(to, std::errc::invalid_argument, "not a JSON object with a text \"op\"");
  const std::uint64_t id = client.id;
  try {
    admin_op(client, to, request["op"].get<std::string>(), request, std::move(message.fds));
  } catch (const std::exception& error) {  // a disk that is full, memory that is short
    log("process " + std::to_string(message.sender.pid) + ": " + error.what());
    if (clients_.contains(id)) fail_with(to, std::errc::io_error, error.what());
  }
}

void ControlServer::Impl::admin_op(Client& client, const ReplyTo& to, const std::string& op,
                                   const json& request, std::vector<UniqueFd> fds) {
  if (op == "ping") {
    json pong = {{"pid", ::getpid()}, {"version", kVersion}};
    pong["nics"] = nics_json(config_, [this](emulator::NicId nic) { return link_up(nic); });
    return reply_json(to, pong);
  }
  if (op == "view") {
    const auto nics = nic_set(request);
    if (!nics) return fail_with(to, std::errc::no_such_device, only_these_nics(config_));
    return reply_json(to, {{"path", views_.path(*nics)}});
  }
  if (op == "show") {
    const auto what = request.find("what");
    return show(to, what != request.end() && what->is_string() ? what->get<std::string>() : "all");
  }
  if (op == "capture") return start_capture(to, request, std::move(fds));
  if (op == "capture_stop") return stop_capture(client, to, request);
  if (op == "address") return change_address(client, to, request);
  if (op == "shutdown") {
    if (client.credentials.uid != ::geteuid())
      return fail_with(to, std::errc::operation_not_permitted, "only the daemon's own user may end it");
    stopping_ = true;
    return reply_json(to, json::object());
  }
  fail_with(to, std::errc::operation_not_supported, "unknown op \"" + op + "\"");
}

// Bit n for NIC n; no list, or an empty one, means all. Nothing: a name that is not known.
std::optional<std::uint64_t> ControlServer::Impl::nic_set(const json& request) const {
  const std::uint64_t all =
      config_.nics.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << config_.nics.size()) - 1;
  const auto list = request.find("nics");
  if (list == request.end()) return all;
  if (!list->is_array()) return std::nullopt;
  std::uint64_t set = 0;
  for (const json& name : *list) {
    const auto nic =
        std::find_if(config_.nics.begin(), config_.nics.end(), [&](const emulator::NicConfig& known) {
          return name.is_string() && name.get_ref<const std::string&>() == known.name;
        });
    if (nic == config_.nics.end()) return std::nullopt;
    set |= std::uint64_t{1} << (nic - config_.nics.begin());
  }
  return set == 0 ? all : set;
}

// Of the clients, who is asking does not count.
json ControlServer::Impl::daemon_json(std::uint64_t asking) const {
  json daemon = {{"pid", ::getpid()},
                 {"version", kVersion},
                 {"socket", config_.socket_path},
                 {"clients", clients_.size() - clients_.count(asking)},
                 {"contexts", open_contexts_}};
  json shards = json::array();
  for (const Shard& shard : shards_)
    shards.push_back({{"contexts", shard.contexts}, {"memory_calls", shard.memory->calls()}});
  daemon["shards"] = std::move(shards);
  if (daemon_info_) {
    json info = json::parse(daemon_info_(), nullptr, false);
    if (info.is_object()) daemon.update(info);
  }
  return daemon;
}

void ControlServer::Impl::show(const ReplyTo& to, const std::string& what) {
  static constexpr std::array kObjects = {"qp", "cq", "srq", "mr", "mw", "ah"};
  static constexpr std::array kOthers = {"all", "nic", "cm", "counters", "daemon"};
  const auto is_one_of = [&](const auto& names) {
    return std::find(names.begin(), names.end(), what) != names.end();
  };
  if (!is_one_of(kObjects) && !is_one_of(kOthers))
    return fail_with(to, std::errc::invalid_argument,
                     "\"what\" is one of all, nic, qp, cq, srq, mr, mw, ah, cm, counters, daemon");
  // Collected from every shard, then answered.
  struct Collection {
    std::vector<std::unique_ptr<emulator::Snapshot>> shards;
    std::size_t missing = 0;
  };
  const auto collection = std::make_shared<Collection>();
  collection->shards.resize(shards_.size());
  collection->missing = shards_.size();
  const auto finish = [this, to, what, collection] {
    const bool all = what == "all";
    if (collection->shards[0]) rdma_cm_.leave_out_own(*collection->shards[0]);
    json objects = objects_json(config_, collection->shards);
    json result = json::object();
    if (all || what == "nic") {
      result["nics"] = nics_json(config_, [this](emulator::NicId nic) { return link_up(nic); });
      result["neighbours"] = std::move(objects["neighbours"]);
    }
    if (all) result["contexts"] = std::move(objects["contexts"]);
    for (const char* kind : kObjects)
      if (all || what == kind) result[std::string(kind) + "s"] = std::move(objects[std::string(kind) + "s"]);
    if (all || what == "cm") rdma_cm_.show(result);
    if (all || what == "counters") {
      for (std::size_t i = 0; i < config_.nics.size(); ++i) {
        const emulator::NicId nic{static_cast<std::uint8_t>(i)};
        json counters = counters_json(sum_counters(links_, nic));
        if (const json more = port_counters_ ? json::parse(port_counters_(nic), nullptr, false) : json();
            more.is_object())
          counters.update(more);
        result["counters"][config_.nics[i].name] = std::move(counters);
      }
    }
    if (all || what == "daemon") result["daemon"] = daemon_json(to.client);
    reply_json(to, result);
  };
  for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
    submit(shard, {{}, emulator::Inspect{}}, [collection, shard, finish](emulator::CommandReply&& reply) {
      if (auto* snapshot = std::get_if<std::unique_ptr<emulator::Snapshot>>(&reply.body))
        collection->shards[shard] = std::move(*snapshot);
      if (--collection->missing == 0) finish();
    });
  }
}

void ControlServer::Impl::change_address(Client& client, const ReplyTo& to, const json& request) {
  if (client.credentials.uid != ::geteuid())
    return fail_with(to, std::errc::operation_not_permitted,
                     "only the daemon's own user may change addresses");
  const auto text = [&](const char* name) {
    const auto found = request.find(name);
    return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string nic = text("nic"), action = text("action"), wanted = text("address");
  const auto known = std::find_if(config_.nics.begin(), config_.nics.end(),
                                  [&](const emulator::NicConfig& one) { return one.name == nic; });
  if (known == config_.nics.end()) return fail_with(to, std::errc::no_such_device, only_these_nics(config_));
  if (!known->answers_neighbours)
    return fail_with(to, std::errc::operation_not_supported,
                     "the addresses of " + nic + " are the kernel's: change them there, with ip(8)");
  const auto address = config_.parse_address(wanted);
  if (!address) return fail_with(to, std::errc::invalid_argument, address.error());
  const auto has_it = [&](const emulator::NicConfig& one) {
    const std::vector<proto::Gid> gids = emulator::gid_table(one);
    return std::find(gids.begin(), gids.end(), address->gid) != gids.end();
  };
  std::vector<emulator::NicAddress> addresses = known->addresses;
  if (action == "add") {
    const auto owner = std::find_if(config_.nics.begin(), config_.nics.end(), has_it);
    if (owner != config_.nics.end())
      return fail_with(to, std::errc::file_exists,
                       owner->name + " has the address " + address_text(address->gid) + " already");
    addresses.push_back(*address);
    if (emulator::changed_addresses(known->addresses, addresses).size() >= kLeastGidTableLength)
      return fail_with(to, std::errc::no_space_on_device, "the GID table of " + nic + " is full");
  } else if (action == "del") {
    const bool is_gone = std::erase_if(addresses, [&](const emulator::NicAddress& one) {
                           return one.gid == address->gid && one.prefix_length == address->prefix_length;
                         }) != 0;
    if (!is_gone) return fail_with(to, std::errc::address_not_available, nic + " has no address " + wanted);
  } else {
    return fail_with(to, std::errc::invalid_argument, "\"action\" is add or del");
  }
  std::erase_if(addresses, [](const emulator::NicAddress& one) { return one.gid == proto::Gid{}; });
  change_addresses(static_cast<std::size_t>(known - config_.nics.begin()), addresses,
                   [this, to] { reply_json(to, json::object()); });
}

void ControlServer::Impl::change_addresses(std::size_t index, const std::vector<emulator::NicAddress>& wanted,
                                           const std::function<void()>& done) {
  const emulator::NicId nic{static_cast<std::uint8_t>(index)};
  emulator::NicConfig& config = config_.nics[index];
  config.addresses = emulator::changed_addresses(std::move(config.addresses), wanted);
  try {
    views_.change_gids(nic);
  } catch (const std::system_error& error) {
    log(std::string("the GIDs in sysfs are not up to date: ") + error.what());
  }
  rdma_cm_.on_addresses(nic, config);
  const auto missing = std::make_shared<std::size_t>(shards_.size());
  for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
    submit(shard, {{}, emulator::ChangeAddresses{nic, config.addresses}},
           [missing, done](emulator::CommandReply&&) {
             if (--*missing == 0) done();
           });
  }
}

void ControlServer::Impl::start_capture(const ReplyTo& to, const json& request, std::vector<UniqueFd> fds) {
  const auto nics = nic_set(request);
  if (!nics) return fail_with(to, std::errc::no_such_device, only_these_nics(config_));
  if (fds.size() != 1)
    return fail_with(to, std::errc::invalid_argument, "a capture needs one file descriptor to write to");
  CaptureControl::Wanted capture;
  capture.nics = *nics;
  const auto truncate = request.find("truncate");
  capture.truncate = truncate != request.end() && truncate->is_boolean() && truncate->get<bool>();
  if (const auto wanted = request.find("snaplen"); wanted != request.end()) {
    if (!wanted->is_number_unsigned() || wanted->get<std::uint64_t>() > 0xFFFFFFFFu)
      return fail_with(to, std::errc::invalid_argument, "\"snaplen\" is a number of bytes");
    capture.snap_length_bytes = wanted->get<std::uint32_t>();
  }
  ++capture_answers_;
  capture_.start(std::move(fds[0]), capture, [this, to](std::int64_t id) {
    --capture_answers_;
    if (id < 0)
      return fail_with(to, static_cast<std::errc>(-id),
                       std::generic_category().message(static_cast<int>(-id)));
    const auto at = clients_.find(to.client);
    if (at == clients_.end()) return end_capture(id, [](const CaptureControl::Totals&) {});  // it has left
    at->second->captures.insert(id);
    reply_json(to, {{"id", id}});
  });
}

void ControlServer::Impl::end_capture(std::int64_t id,
                                      std::function<void(const CaptureControl::Totals&)> then) {
  ++capture_answers_;
  capture_.stop(id, [this, then = std::move(then)](const CaptureControl::Totals& totals) {
    --capture_answers_;
    then(totals);
  });
}

void ControlServer::Impl::stop_capture(Client& client, const ReplyTo& to, const json& request) {
  const auto id = request.find("id");
  if (id == request.end() || !id->is_number_integer() || client.captures.erase(id->get<std::int64_t>()) == 0)
    return fail_with(to, std::errc::invalid_argument, "no capture of this connection has that \"id\"");
  end_capture(id->get<std::int64_t>(), [this, to](const CaptureControl::Totals& totals) {
    json result = {{"written", totals.written}, {"lost", totals.lost}, {"bytes", totals.bytes}};
    if (totals.error != 0) result["error"] = std::generic_category().message(totals.error);
    reply_json(to, result);
  });
}

// ---- public ------------------------------------------------------------------------------------------

ControlServer::ControlServer(ServerConfig config, std::vector<ShardLink*> links, CaptureControl& capture)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(links), capture)) {}

ControlServer::~ControlServer() = default;

emulator::Memory& ControlServer::memory(std::uint32_t shard) { return *impl_->shards_[shard].memory; }

void ControlServer::on_events(std::span<const emulator::Event> events) { impl_->router_.deliver(events); }

void ControlServer::serve() { impl_->serve(); }

void ControlServer::stop() {
  impl_->stopping_ = true;
  constexpr std::uint64_t kOnce = 1;
  static_cast<void>(!::write(impl_->wake_.get(), &kOnce, sizeof kOnce));
}

void ControlServer::set_daemon_info(std::function<std::string()> json) {
  impl_->daemon_info_ = std::move(json);
}

void ControlServer::set_port_counters(std::function<std::string(emulator::NicId)> json) {
  impl_->port_counters_ = std::move(json);
}

void ControlServer::on_addresses(emulator::NicId nic, std::vector<emulator::NicAddress> addresses) {
  {
    const std::lock_guard lock(impl_->addresses_);
    impl_->new_addresses_[nic.index] = std::move(addresses);
  }
  constexpr std::uint64_t kOnce = 1;
  static_cast<void>(!::write(impl_->wake_.get(), &kOnce, sizeof kOnce));
}

void ControlServer::on_link(emulator::NicId nic, bool up) {
  const std::uint64_t bit = std::uint64_t{1} << nic.index;
  if (up)
    impl_->links_up_ |= bit;
  else
    impl_->links_up_ &= ~bit;
  constexpr std::uint64_t kOnce = 1;
  static_cast<void>(!::write(impl_->wake_.get(), &kOnce, sizeof kOnce));
}

void ControlServer::on_mtu(emulator::NicId nic, std::uint32_t mtu_bytes) {
  impl_->mtu_bytes_[nic.index] = mtu_bytes;
}

}  // namespace roci::shim
