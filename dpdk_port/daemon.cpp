#include "dpdk_port/daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "dpdk_port/capture.h"
#include "dpdk_port/eal.h"
#include "dpdk_port/handover.h"
#include "dpdk_port/interface.h"
#include "dpdk_port/kernel_sockets.h"
#include "dpdk_port/mbufs.h"
#include "dpdk_port/nics.h"
#include "dpdk_port/ports.h"
#include "dpdk_port/shard.h"
#include "dpdk_port/vlan_port.h"
#include "verbs_shim/server/server.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

using emulator::NicId;

constexpr std::uint32_t kShardMbufs = 4095;        // one less than a power of two suits a mempool best
constexpr std::uint32_t kFrameOverheadBytes = 18;  // Ethernet with a VLAN tag
constexpr int kBadConfiguration = 2, kCannotRun = 1;

NicId nic_id(std::size_t index) { return NicId{static_cast<std::uint8_t>(index)}; }

std::vector<ResolvedNic> resolve_or_throw(const std::vector<NicSpec>& specs) {
  auto nics = resolve(specs);
  if (!nics) throw StartError(kBadConfiguration, nics.error());
  return std::move(nics).value();
}

// Largest frame of any NIC.
std::uint32_t frame_bytes(const std::vector<ResolvedNic>& nics) {
  std::uint32_t largest = 0;
  for (const auto& nic : nics)
    largest = std::max(largest, nic.config.mtu_bytes + kFrameOverheadBytes);
  return largest;
}

std::size_t memory_bytes(const std::vector<ResolvedNic>& nics, std::uint32_t shards) {
  std::size_t bytes = shards * pool_bytes(kShardMbufs, frame_bytes(nics));
  for (const auto& plan : plan_ports(nics))
    bytes += port_memory_bytes(plan, nics);
  return bytes;
}

std::vector<std::string> pci_addresses(const std::vector<NicSpec>& specs) {
  std::vector<std::string> all;
  for (const auto& spec : specs) {
    if (auto address = pci_address(spec); !address.empty()) all.push_back(std::move(address));
  }
  return all;
}

rte_mempool* pool_or_throw(const std::string& name, std::uint32_t mbufs, std::uint32_t data_bytes) {
  rte_mempool* pool = make_pool(name, mbufs, data_bytes);
  if (pool == nullptr)
    throw StartError(kCannotRun, fmt::format("no memory for {} buffers of {} bytes; give EAL more by -m",
                                             mbufs, data_bytes));
  return pool;
}

// The daemon's own directory, if the socket is where it is by default; the server checks whose it is.
void make_default_directory(const std::string& socket_path) {
  if (socket_path != default_socket_path()) return;
  const auto directory = socket_path.substr(0, socket_path.rfind('/'));
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    throw StartError(kCannotRun, fmt::format("{}: {}", directory, std::generic_category().message(errno)));
  }
}

}  // namespace

// EAL from construction to destruction, behind everything that uses its memory.
struct Eal {
  explicit Eal(std::vector<std::string> arguments) {
    const EalFailure failure = start_eal(std::move(arguments));
    if (!failure.why.empty())
      throw StartError(failure.is_usage ? kBadConfiguration : kCannotRun, failure.why);
  }
  ~Eal() { stop_eal(); }
  Eal(const Eal&) = delete;
  Eal& operator=(const Eal&) = delete;
};

struct Daemon::Impl {
  explicit Impl(const DaemonConfig& config);
  ~Impl();

  void add_nics();
  void open_ports();
  std::map<std::uint16_t, Port*> add_port(std::unique_ptr<Port> port, const PortPlan& plan);
  void watch_links();
  void follow(NicId nic, PortState state);
  void follow_addresses(std::size_t index);
  [[nodiscard]] bool wait_for_pass() const;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::string port_counters(std::size_t index) const;

  const DaemonConfig config;
  std::vector<ResolvedNic> nics;  // as they are once their ports are open
  const Eal eal;
  std::vector<std::unique_ptr<Port>> ports;  // and the kernel's shares
  Topology topology;
  LinkStates link_states;
  CaptureHub capture;
  std::vector<std::unique_ptr<Shard>> shards;
  std::unique_ptr<shim::ControlServer> server;
  LinkMonitor links;
  const shim::UniqueFd end_watch_fd{eventfd(0, EFD_CLOEXEC)};
  // Of a NIC whose addresses are its interface's; the link watcher's.
  struct FollowedAddresses {
    std::vector<emulator::NicAddress> now;
    std::vector<proto::Gid> held;  // their UDP ports, by the port from the start on or by `sockets`; also of
                                   // those that are gone, as they may come back
    std::vector<shim::UniqueFd> sockets;
  };
  std::vector<FollowedAddresses> followed_addresses;
  std::thread link_watcher;
};

static CaptureHub::Config capture_config(const std::vector<ResolvedNic>& nics, std::uint32_t shards) {
  CaptureHub::Config config;
  for (const auto& nic : nics) {
    config.nic_names.push_back(nic.config.name);
    config.port_names.push_back(nic.spec.port_text);
  }
  config.shards = shards;
  config.application = "rocid " ROCI_VERSION;
  return config;
}

Daemon::Impl::Impl(const DaemonConfig& wanted)
    : config(wanted),
      nics(resolve_or_throw(wanted.nics)),
      eal(eal_arguments(memory_bytes(nics, wanted.shards), allowed_cpus(), pci_addresses(wanted.nics),
                        wanted.eal_arguments)),
      topology(wanted.shards),
      capture(capture_config(nics, wanted.shards)) {
  add_nics();
  for (std::uint32_t number = 0; number < config.shards; ++number) {
    ShardConfig shard;
    shard.number = number;
    shard.idle.never_sleep = config.poll;
    rte_mempool* pool = pool_or_throw(fmt::format("shard{}", number), kShardMbufs, frame_bytes(nics));
    shards.push_back(std::make_unique<Shard>(shard, topology, pool, capture.tap(number), link_states));
  }
  capture.set_wait_for_pass([this] { return wait_for_pass(); });

  make_default_directory(config.socket_path);
  shim::ServerConfig serving;
  serving.socket_path = config.socket_path;
  serving.allow_uids = config.allow_uids;
  serving.allow_gids = config.allow_gids;
  serving.idle_exit_ms = config.idle_exit_ms;
  serving.parse_address = parse_address;
  serving.log = [](std::string_view sentence) { spdlog::warn("{}", sentence); };
  emulator::EngineConfig engine;
  for (const auto& nic : nics) {
    engine.nics.push_back(nic.config);
    serving.port_names.push_back(nic.spec.port_text);
  }
  serving.nics = engine.nics;
  serving.limits = engine.limits;
  std::vector<shim::ShardLink*> shard_links;
  std::vector<Shard*> peers;
  for (const auto& shard : shards) {
    shard_links.push_back(shard.get());
    peers.push_back(shard.get());
  }
  try {
    server = std::make_unique<shim::ControlServer>(std::move(serving), std::move(shard_links), capture);
  } catch (const std::system_error& error) {
    throw StartError(kCannotRun, error.what());
  }
  server->set_daemon_info([this] { return describe(); });
  server->set_port_counters([this](NicId nic) { return port_counters(nic.index); });
  engine.shard_count = config.shards;
  for (std::uint32_t number = 0; number < config.shards; ++number) {
    engine.shard = number;
    if (getrandom(engine.seed, sizeof engine.seed, 0) != sizeof engine.seed)
      throw StartError(kCannotRun, "the kernel gives no random numbers");
    shards[number]->start(engine, server->memory(number), *server, peers);
  }
  for (const auto& nic : nics) {
    FollowedAddresses& followed = followed_addresses.emplace_back();
    followed.now = nic.config.addresses;
    for (const auto& address : followed.now)
      followed.held.push_back(address.gid);
  }
  link_watcher = std::thread([this] { watch_links(); });
}

Daemon::Impl::~Impl() {
  if (link_watcher.joinable()) {
    const std::uint64_t one = 1;
    (void)!write(end_watch_fd.get(), &one, sizeof one);
    link_watcher.join();
  }
  for (const auto& shard : shards)
    shard->stop();
  server.reset();  // before the shards: it holds on to their links
  capture.end();   // before the shards, too
}

void Daemon::Impl::add_nics() {
  open_ports();
  for (std::size_t i = 0; i < nics.size(); ++i) {
    const auto& nic = nics[i];
    if (nic.config.link_up) link_states.up |= std::uint64_t{1} << i;
    link_states.mtu_bytes[i] = nic.config.mtu_bytes;
    if (nic.spec.port == PortKind::kFabric) topology.add_fabric_nic(nic_id(i), nic.config.mac);
    std::string addresses;
    for (const auto& address : nic.config.addresses)
      addresses += fmt::format(" {}/{}", to_text(address.gid), address.prefix_length);
    spdlog::info("{}: {} on {}, MTU {}, link {},{}", nic.config.name, to_text(nic.config.mac),
                 nic.spec.port_text, nic.config.mtu_bytes, nic.config.link_up ? "up" : "down", addresses);
  }
}

// The port of each VLAN that its NICs are on; 0: of none.
std::map<std::uint16_t, Port*> Daemon::Impl::add_port(std::unique_ptr<Port> port, const PortPlan& plan) {
  std::vector<std::uint16_t> vlans;  // in the order of their NICs, in which the shard reads them
  for (const std::size_t i : plan.nics) {
    if (std::find(vlans.begin(), vlans.end(), nics[i].spec.vlan) == vlans.end())
      vlans.push_back(nics[i].spec.vlan);
  }
  std::map<std::uint16_t, Port*> by_vlan;
  if (vlans == std::vector<std::uint16_t>{0}) {
    by_vlan[0] = port.get();
    ports.push_back(std::move(port));
    return by_vlan;
  }
  auto views = split_by_vlan(std::move(port), vlans);
  for (std::size_t i = 0; i < views.size(); ++i) {
    by_vlan[vlans[i]] = views[i].get();
    ports.push_back(std::move(views[i]));
  }
  return by_vlan;
}

void Daemon::Impl::open_ports() {
  const auto open_or_throw = [](auto opened) {
    if (!opened) throw StartError(kCannotRun, opened.error());
    return std::move(opened).value();
  };
  const auto plans = plan_ports(nics);
  for (std::size_t number = 0; number < plans.size(); ++number) {
    const auto by_vlan = add_port(open_or_throw(open_port(plans[number], number, nics)), plans[number]);
    for (const std::size_t i : plans[number].nics) {
      Port& port = *by_vlan.at(nics[i].spec.vlan);
      if (const auto state = port.state()) nics[i].config.link_up = state->link_up;
      Port* kernel = nullptr;
      if (!nics[i].spec.kernel_interface.empty()) {
        ports.push_back(open_or_throw(open_kernel_share(nics[i])));
        kernel = ports.back().get();
      }
      topology.add_device_nic(nic_id(i), nics[i].config.mac, port, kernel);
    }
  }
  if (auto error = name_neighbours(nics); !error.empty()) throw StartError(kBadConfiguration, error);
}

// The kernel tells of its interfaces; other devices are asked now and then.
void Daemon::Impl::watch_links() {
  constexpr int kAskEveryMs = 200;
  const auto devices = topology.device_ports();
  const bool asks = std::any_of(devices.begin(), devices.end(), [](const Topology::DevicePort& each) {
    return each.port->state().has_value();
  });
  for (;;) {
    pollfd waiting[] = {{links.fd(), POLLIN, 0}, {end_watch_fd.get(), POLLIN, 0}};
    if (poll(waiting, 2, asks ? kAskEveryMs : -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents != 0) return;
    const auto for_each_on = [this](int index, auto visit) {
      for (std::size_t i = 0; i < nics.size(); ++i) {
        if (nics[i].interface.index == index) visit(i);
      }
    };
    links.read(
        [&](int index, bool up, std::uint32_t mtu_bytes) {
          for_each_on(index, [&](std::size_t i) { follow(nic_id(i), {up, mtu_bytes}); });
        },
        [&](int index) { for_each_on(index, [this](std::size_t i) { follow_addresses(i); }); });
    for (const auto& [port, its_nics] : devices) {
      const auto state = port->state();
      for (const NicId nic : its_nics) {
        if (state) follow(nic, *state);
      }
    }
  }
}

void Daemon::Impl::follow(NicId nic, PortState state) {
  const ResolvedNic& its = nics[nic.index];
  // What the NIC began with is also what its buffers have room for.
  const std::uint32_t mtu = std::clamp(state.mtu_bytes, kMinMtuBytes, its.config.mtu_bytes);
  if (state.mtu_bytes != 0 && link_states.mtu_bytes[nic.index].exchange(mtu) != mtu) {
    spdlog::info("{}: MTU {}", its.config.name, mtu);
    server->on_mtu(nic, mtu);
    ++link_states.mtu_changes;
    for (const auto& shard : shards)
      shard->kick();
  }
  const std::uint64_t bit = std::uint64_t{1} << nic.index;
  const std::uint64_t before = state.link_up ? link_states.up.fetch_or(bit) : link_states.up.fetch_and(~bit);
  if (((before & bit) != 0) == state.link_up) return;
  spdlog::info("{}: link {}", its.config.name, state.link_up ? "up" : "down");
  server->on_link(nic, state.link_up);
  for (const auto& shard : shards)
    shard->kick();
}

// Where they are the interface's own; those that the user named stay. An interface that has gone takes none
// with it.
void Daemon::Impl::follow_addresses(std::size_t index) {
  const auto& nic = nics[index];
  if (!is_on_interface(nic.spec) || !nic.spec.addresses.empty() || nic.config.answers_neighbours) return;
  const auto interface = query_interface(nic.interface.name);
  if (!interface || interface->index != nic.interface.index) return;
  FollowedAddresses& followed = followed_addresses[index];
  // A kernel tells, too, when only a lifetime has changed.
  if (std::exchange(followed.now, interface->addresses) == interface->addresses) return;
  std::string list;
  for (const auto& address : followed.now) {
    list += fmt::format(" {}/{}", to_text(address.gid), address.prefix_length);
    if (std::find(followed.held.begin(), followed.held.end(), address.gid) != followed.held.end()) continue;
    std::vector<std::string> warnings;
    for (auto& socket : hold_udp_ports({address}, warnings)) {
      followed.held.push_back(address.gid);
      followed.sockets.push_back(std::move(socket));
    }
    for (const auto& warning : warnings)
      spdlog::warn("{}: {}", nic.config.name, warning);
  }
  spdlog::info("{}: the addresses of {} are{}", nic.config.name, nic.interface.name,
               list.empty() ? " gone" : list);
  server->on_addresses(nic_id(index), followed.now);
}

// A capture that ends wants all that the shards saw so far; a pass that runs now may not have recorded its
// frames yet. One that hangs in an application's memory is not waited for: the control thread is to end that.
bool Daemon::Impl::wait_for_pass() const {
  constexpr auto kPatience = std::chrono::seconds(1);
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  std::vector<std::uint64_t> before;
  for (const auto& shard : shards)
    before.push_back(shard->passes());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    while (shards[i]->running() && shards[i]->passes() == before[i]) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      shards[i]->kick();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

std::string Daemon::Impl::port_counters(std::size_t index) const {
  nlohmann::json all = nlohmann::json::object();
  const Port* port = topology.port(nic_id(index));
  if (port == nullptr) return all.dump();
  const std::string& name = nics[index].spec.port_text;
  for (const PortCounter& counter : port->counters())
    all[name.substr(0, name.find(':'))][std::string(counter.name)] = counter.value;
  return all.dump();
}

std::string Daemon::Impl::describe() const {
  const IdlePolicy::Config idle;
  nlohmann::json all{{"version", ROCI_VERSION}, {"socket", config.socket_path}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Shard::Statistics figures = shards[i]->statistics();
    const auto milliseconds = [](emulator::Duration time) { return time / std::chrono::milliseconds(1); };
    const std::string mode =
        config.poll ? "polls"
        : figures.crowded
            ? "sleeps at once: no core to spare"
            : fmt::format("spins {} us, then sleeps", idle.spin_after_work / std::chrono::microseconds(1));
    all["poll_threads"].push_back({{"shard", i},
                                   {"idle", mode},
                                   {"passes", figures.passes},
                                   {"sleeps", figures.sleeps},
                                   {"working_ms", milliseconds(figures.working)},
                                   {"spinning_ms", milliseconds(figures.spinning)},
                                   {"sleeping_ms", milliseconds(figures.sleeping)},
                                   {"involuntary_switches", figures.involuntary_switches},
                                   {"lost_frames", figures.lost_frames}});
  }
  const ShardConfig defaults;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    const Port* port = topology.port(nic_id(i));
    const std::string wakeup = port == nullptr ? "handed over by the fabric"
                               : port->wake_fd() >= 0
                                   ? "woken by its frames"
                                   : fmt::format("polled every {} to {} us while asleep",
                                                 defaults.least_port_back_off / std::chrono::microseconds(1),
                                                 defaults.most_port_back_off / std::chrono::microseconds(1));
    all["ports"].push_back({{"nic", nics[i].config.name},
                            {"port", nics[i].spec.port_text},
                            {"mtu", link_states.mtu_bytes[i].load()},
                            {"link", ((link_states.up.load() >> i) & 1) != 0 ? "up" : "down"},
                            {"wakeup", wakeup}});
  }
  return all.dump();
}

Daemon::Daemon(const DaemonConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Daemon::~Daemon() = default;

void Daemon::serve() { impl_->server->serve(); }
void Daemon::stop() { impl_->server->stop(); }

}  // namespace roci::dpdk_port
