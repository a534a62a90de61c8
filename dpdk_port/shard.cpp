#include "dpdk_port/shard.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>

#include <rte_lcore.h>
#include <rte_pause.h>
#include <rte_prefetch.h>
#include <spdlog/spdlog.h>

#include "emulator/steering.h"

namespace roci::dpdk_port {

using emulator::Duration;
using emulator::kNever;
using emulator::NicId;
using emulator::Time;

namespace {

constexpr std::size_t kRxBurst = 64;  // frames given to the engine at once
constexpr std::size_t kRxBursts = 4;  // and how often in one pass
constexpr std::size_t kTxBursts = 2;  // bursts sent in one pass
constexpr std::size_t kEventBurst = 64;

// Only the owner writes; others may read it a little late.
template <class T>
void add(std::atomic<T>& counter, T amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

shim::UniqueFd make_eventfd() {
  shim::UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

void signal_eventfd(int fd) {
  const std::uint64_t one = 1;
  (void)!write(fd, &one, sizeof one);  // fails only when it is readable anyway
}

// Does not block (Linux 5.8) even if an application that shares the eventfd took O_NONBLOCK off it.
void drain_eventfd(int fd) {
  std::uint64_t count = 0;
  const iovec to{&count, sizeof count};
  if (preadv2(fd, &to, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP) (void)!read(fd, &count, sizeof count);
}

}  // namespace

Time monotonic_now() {
  return Time{std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())};
}

Shard::Shard(ShardConfig config, const Topology& topology, rte_mempool* pool, CaptureTap& tap,
             const LinkStates& links)
    : config_(config),
      topology_(topology),
      tap_(tap),
      links_(links),
      handover_(config.number, topology, tap),
      sink_(pool, handover_),
      idle_(config.idle),
      commands_(config.command_slots),
      replies_(config.command_slots),
      kick_fd_(make_eventfd()),
      replies_fd_(make_eventfd()),
      loadavg_fd_(open("/proc/loadavg", O_RDONLY | O_CLOEXEC)),
      port_back_off_(config.least_port_back_off) {}

Shard::~Shard() { stop(); }

void Shard::start(emulator::EngineConfig engine, emulator::Memory& memory, shim::ControlServer& server,
                  std::vector<Shard*> peers) {
  peers_ = std::move(peers);
  server_ = &server;
  for (std::size_t nic = 0; nic < engine.nics.size(); ++nic) {
    if (engine.nics[nic].link_up) links_seen_ |= std::uint64_t{1} << nic;
  }
  for (const NicId nic : topology_.device_nics()) {
    const Port* kernel = topology_.kernel(nic) != nullptr ? topology_.kernel(nic) : topology_.port(nic);
    const int interface = kernel->kernel_groups_interface();
    if (interface != 0 && !engine.nics[nic.index].answers_neighbours)
      groups_.push_back({nic, KernelGroups(interface)});
  }
  engine_ = std::make_unique<emulator::Engine>(std::move(engine), memory);
  running_.store(true);
  thread_ = std::thread([this] { run(); });
}

void Shard::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  kick();
  thread_.join();
}

// ---- the loop --------------------------------------------------------------------------------------

void Shard::run() {
  (void)rte_thread_register();  // an lcore id of its own, so that mbuf pools have a cache for this thread
  (void)prctl(PR_SET_TIMERSLACK, 1);  // deadlines are of microseconds, the default slack is 50 of them
  Time now = monotonic_now();
  while (!stopping_.load(std::memory_order_relaxed)) {
    passes_.store(passes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    const std::size_t work = pass(now);
    if (work != 0) {
      idle_.on_work(now);
      port_back_off_ = config_.least_port_back_off;
    } else {
      rest(now);
    }
    const Time then = std::exchange(now, monotonic_now());
    add((work != 0 ? working_ns_ : spinning_ns_), (now - then).count());
  }
  running_.store(false, std::memory_order_release);
  rte_thread_unregister();
}

std::size_t Shard::pass(Time now) {
  follow_links(now);
  sink_.set_now(now);
  const std::size_t given = commands_.size();  // their senders' doorbells are seen in this pass
  std::size_t work = handover_.receive_from_ports(now);
  work += run_frames(now);
  engine_->on_doorbells(now);
  engine_->on_timers(now);
  if (tap_.on()) {  // what is sent is later than what was received; and who has nothing to tell says so
    const Time later = monotonic_now();
    tap_.set_horizon(later);
    sink_.set_now(later);
  }
  for (std::size_t burst = 0; burst < kTxBursts; ++burst) {
    const std::size_t sent = engine_->transmit(sink_, now);
    work += sent;
    if (sent == 0) break;
  }
  // What was posted before a command was given is under way, as with a device whose doorbell is a call.
  if (const std::size_t count = run_commands(given, now); count != 0) {
    work += count;
    follow_groups();
  }
  work += handover_.send_to_ports();
  wake_touched_peers();
  deliver_results();
  return work;
}

// Those that were given frames since the last call.
void Shard::wake_touched_peers() {
  for (std::uint32_t touched = handover_.take_touched_shards(); touched != 0; touched &= touched - 1) {
    peers_[static_cast<std::size_t>(__builtin_ctz(touched))]->wake_if_asleep();
  }
}

std::size_t Shard::run_commands(std::size_t most, Time now) {
  most = std::min(most, config_.max_commands_per_pass);
  std::size_t count = 0;
  for (PendingCommand pending; count < most && commands_.pop(&pending, 1) != 0; ++count)
    engine_->submit(pending.id, std::move(pending.command), now);
  return count;
}

std::size_t Shard::run_frames(Time now) {
  std::size_t total = 0;
  for (std::size_t burst = 0; burst < kRxBursts; ++burst) {
    std::array<Delivery, kRxBurst> deliveries;
    const std::size_t count = handover_.collect(deliveries.data(), kRxBurst);
    if (count == 0) break;
    const Time seen =
        tap_.on() ? monotonic_now() : now;  // after the frames were there, so that causes come before effects
    std::array<emulator::Frame, kRxBurst> frames;
    for (std::size_t i = 0; i < count; ++i) {
      frames[i] = {bytes_of(deliveries[i].mbuf), deliveries[i].to};
      rte_prefetch0(frames[i].bytes.data());
    }
    engine_->on_frames({frames.data(), count}, now);
    if (tap_.on()) capture({deliveries.data(), count}, seen);
    for (std::size_t i = 0; i < count; ++i)
      rte_pktmbuf_free(deliveries[i].mbuf);
    total += count;
    if (count < kRxBurst) break;
  }
  return total;
}

void Shard::capture(std::span<const Delivery> deliveries, Time time) {
  tap_.set_horizon(time);
  const auto verdicts = engine_->verdicts();
  for (std::size_t i = 0; i < deliveries.size(); ++i) {
    const Delivery& delivery = deliveries[i];
    const auto bytes = bytes_of(delivery.mbuf);
    // What every shard got a copy of is shard 0's to tell; the host's own traffic on a shared interface is
    // nobody's business.
    if (config_.number != 0 && !emulator::steer(bytes, topology_.shard_count())) continue;
    if (delivery.from == kWire && verdicts[i] == emulator::DropReason::kNotRoce) continue;
    tap_.record(bytes, delivery.from, delivery.to, fate_of(verdicts[i]), time);
  }
}

void Shard::follow_links(Time now) {
  if (const std::uint32_t changes = links_.mtu_changes.load(std::memory_order_acquire);
      std::exchange(mtu_changes_seen_, changes) != changes) {
    for (const NicId nic : topology_.device_nics())
      engine_->on_mtu(nic, links_.mtu_bytes[nic.index].load(std::memory_order_relaxed), now);
  }
  const std::uint64_t up = links_.up.load(std::memory_order_relaxed);
  handover_.set_links(up);
  for (std::uint64_t changed = std::exchange(links_seen_, up) ^ up; changed != 0; changed &= changed - 1) {
    const auto nic = static_cast<std::uint8_t>(__builtin_ctzll(changed));
    engine_->on_link(NicId{nic}, ((up >> nic) & 1) != 0, now);
  }
}

void Shard::follow_groups() {
  for (Groups& groups : groups_) {
    const std::uint64_t changes = engine_->multicast_changes(groups.nic);
    if (std::exchange(groups.changes_seen, changes) == changes) continue;
    const auto wanted = engine_->multicast_groups(groups.nic);
    auto problems = groups.kernel.follow(wanted);
    for (auto& problem : topology_.port(groups.nic)->follow_groups(config_.number, wanted))
      problems.push_back(std::move(problem));
    for (const auto& problem : problems)
      spdlog::warn("{}: {}", engine_->config().nics[groups.nic.index].name, problem);
  }
}

void Shard::deliver_results() {
  std::array<emulator::Event, kEventBurst> events;
  while (const std::size_t count = engine_->drain_events(events))
    server_->on_events({events.data(), count});

  bool pushed = false;
  for (;;) {
    if (!unsent_reply_) {
      emulator::CommandReply reply;
      if (engine_->drain_replies({&reply, 1}) == 0) break;
      unsent_reply_ = std::move(reply);
    }
    if (!replies_.push(std::move(*unsent_reply_))) break;  // then it is as it was
    unsent_reply_.reset();
    pushed = true;
  }
  if (pushed) signal_eventfd(replies_fd_.get());
}

// ---- idle ------------------------------------------------------------------------------------------

void Shard::rest(Time now) {
  if (idle_.wants_sample(now)) {
    idle_.on_sample(measure_load(), now);
    crowded_.store(idle_.crowded(now), std::memory_order_relaxed);
  }
  if (idle_.should_sleep(now, deadline(now)))
    sleep(now);
  else
    rte_pause();
}

Time Shard::deadline(Time now) const {
  Time next = engine_->next_deadline();
  if (config_.number != 0) return next;
  for (const auto& [port, nics] : topology_.device_ports())
    next = std::min(next, now + (port->wake_fd() >= 0 ? config_.port_safety_net : port_back_off_));
  return next;
}

// Applications and other threads first learn that they have to wake us; then everything is looked at once
// more.
void Shard::sleep(Time now) {
  if (config_.number == 0) {
    for (const auto& [port, nics] : topology_.device_ports())
      port->prepare_to_sleep();
  }
  engine_->set_asleep(true);
  asleep_.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  engine_->on_doorbells(now);
  handover_.receive_from_ports(now);
  wake_touched_peers();
  deliver_results();
  const bool has_input = !handover_.input_is_empty() || !commands_.empty() || unsent_reply_.has_value() ||
                         stopping_.load() || links_.up.load() != links_seen_ ||
                         links_.mtu_changes.load() != mtu_changes_seen_;
  const Time until = deadline(now);
  if (!has_input && until > now) {
    if (tap_.on()) tap_.set_horizon(kNever);
    asleep_since_ns_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
    wait_for_input(until == kNever ? Duration::max() : until - now);
    port_back_off_ = std::min(port_back_off_ * 2, config_.most_port_back_off);
    if (tap_.on()) {
      tap_.set_horizon(Time{});
      std::atomic_thread_fence(std::memory_order_seq_cst);  // before the clock is read again
    }
    add(sleeps_, std::uint64_t{1});
    const auto slept = (monotonic_now() - now).count();
    asleep_since_ns_.store(0, std::memory_order_relaxed);
    add(sleeping_ns_, slept);
    add(spinning_ns_, -slept);  // the loop counts the whole pass as spinning
  }
  asleep_.store(0, std::memory_order_relaxed);
  engine_->set_asleep(false);
}

void Shard::wait_for_input(Duration limit) {
  std::array<pollfd, 1 + 2 * emulator::kMaxNics> waiting;
  std::size_t count = 0;
  waiting[count++] = {kick_fd_.get(), POLLIN, 0};
  if (config_.number == 0) {
    const auto wait_for = [&](const Port* port) {
      if (port != nullptr && port->wake_fd() >= 0) waiting[count++] = {port->wake_fd(), POLLIN, 0};
    };
    for (const auto& [port, nics] : topology_.device_ports())
      wait_for(port);
    for (const NicId nic : topology_.device_nics())
      wait_for(topology_.kernel(nic));
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec timeout{seconds.count(), (limit - seconds).count()};
  (void)ppoll(waiting.data(), count, limit == Duration::max() ? nullptr : &timeout, nullptr);
  if (waiting[0].revents != 0) drain_eventfd(kick_fd_.get());
}

LoadSample Shard::measure_load() {
  LoadSample sample;
  sample.online_cpus = static_cast<std::uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t allowed;
  sample.allowed_cpus = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                            ? static_cast<std::uint32_t>(CPU_COUNT(&allowed))
                            : 1;
  char buffer[128];  // "0.15 0.23 0.14 RUNNABLE/ALL LAST_PID"
  const ssize_t bytes = pread(loadavg_fd_.get(), buffer, sizeof buffer, 0);
  const std::string_view text(buffer, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  if (const auto end = text.find('/'); end != std::string_view::npos) {
    const auto begin = text.rfind(' ', end) + 1;
    (void)std::from_chars(text.data() + begin, text.data() + end, sample.runnable_threads);
  }
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) == 0)
    sample.involuntary_switches = static_cast<std::uint64_t>(usage.ru_nivcsw);
  involuntary_switches_.store(sample.involuntary_switches, std::memory_order_relaxed);
  return sample;
}

void Shard::kick() { signal_eventfd(kick_fd_.get()); }

void Shard::wake_if_asleep() {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // what was just handed over, before the flag is read
  if (asleep_.load(std::memory_order_relaxed) != 0 && asleep_.exchange(0) != 0) kick();
}

// ---- the control thread's side ---------------------------------------------------------------------

bool Shard::submit(emulator::CommandId id, emulator::Command&& command) {
  PendingCommand pending{id, std::move(command)};
  if (!commands_.push(std::move(pending))) {
    command = std::move(pending.command);  // NOLINT(bugprone-use-after-move): a full ring moves nothing
    return false;
  }
  wake_if_asleep();
  return true;
}

std::size_t Shard::drain_replies(std::span<emulator::CommandReply> out) {
  return replies_.pop(out.data(), out.size());
}

const emulator::Counters& Shard::counters(NicId nic) const { return engine_->counters(nic); }

Shard::Statistics Shard::statistics() const {
  Statistics all;
  all.passes = passes();
  all.sleeps = sleeps_.load(std::memory_order_relaxed);
  all.involuntary_switches = involuntary_switches_.load(std::memory_order_relaxed);
  all.lost_frames = handover_.lost();
  all.working = Duration(working_ns_.load(std::memory_order_relaxed));
  all.spinning = Duration(spinning_ns_.load(std::memory_order_relaxed));
  all.sleeping = Duration(sleeping_ns_.load(std::memory_order_relaxed));
  const std::int64_t since = asleep_since_ns_.load(std::memory_order_relaxed);
  if (since != 0) all.sleeping += monotonic_now() - Time{Duration(since)};
  all.crowded = crowded_.load(std::memory_order_relaxed);
  return all;
}

}  // namespace roci::dpdk_port
