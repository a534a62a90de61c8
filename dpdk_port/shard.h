// One shard: a thread that runs an engine, and the ways in and out of it.
//
// The poll loop is Shard::pass(). Frames come from ports, from other shards and from the engine's own NICs;
// commands from the control thread over a ring; doorbells through the applications' memory. When nothing is
// left to do it spins or sleeps, as idle_policy.h says. Thread rule: the ShardLink members are the control
// thread's, the statistics anybody's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "dpdk_port/capture.h"
#include "dpdk_port/handover.h"
#include "dpdk_port/idle_policy.h"
#include "dpdk_port/kernel_groups.h"
#include "dpdk_port/link_states.h"
#include "dpdk_port/spsc_ring.h"
#include "emulator/engine.h"
#include "verbs_shim/server/server.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {

// The clock of emulator::Time in the daemon.
[[nodiscard]] emulator::Time monotonic_now();

struct ShardConfig {
  std::uint32_t number = 0;
  IdlePolicy::Config idle;
  std::size_t command_slots = 1024;
  std::size_t max_commands_per_pass = 16;
  // Ports without a wake fd are polled while asleep: soon after the last work, then less and less often. With
  // one, as a safety net.
  emulator::Duration least_port_back_off = std::chrono::microseconds(50);
  emulator::Duration most_port_back_off = std::chrono::milliseconds(1);
  emulator::Duration port_safety_net = std::chrono::milliseconds(50);
};

class Shard final : public shim::ShardLink {
 public:
  // What it did with its time; for show.
  struct Statistics {
    std::uint64_t passes = 0, sleeps = 0, involuntary_switches = 0, lost_frames = 0;
    emulator::Duration working{}, spinning{}, sleeping{};
    bool crowded = false;  // no core to spare: it sleeps at once
  };

  // All outlive it.
  Shard(ShardConfig config, const Topology& topology, rte_mempool* pool, CaptureTap& tap,
        const LinkStates& links);
  ~Shard() override;

  // The engine is made here, as its memory port is the server's. `server` and `peers` (all shards, by number)
  // outlive it.
  void start(emulator::EngineConfig engine, emulator::Memory& memory, shim::ControlServer& server,
             std::vector<Shard*> peers);
  void stop();

  [[nodiscard]] bool submit(emulator::CommandId id, emulator::Command&& command) override;
  std::size_t drain_replies(std::span<emulator::CommandReply> out) override;
  [[nodiscard]] int replies_fd() const override { return replies_fd_.get(); }
  [[nodiscard]] int kick_fd() const override { return kick_fd_.get(); }
  [[nodiscard]] const emulator::Counters& counters(emulator::NicId nic) const override;

  // Any thread.
  void wake_if_asleep();
  void kick();
  [[nodiscard]] std::uint64_t passes() const { return passes_.load(std::memory_order_acquire); }
  [[nodiscard]] bool running() const { return running_.load(std::memory_order_acquire); }
  [[nodiscard]] Statistics statistics() const;

 private:
  // Multicast groups of this shard that the kernel has to join for one of the NICs.
  struct Groups {
    emulator::NicId nic;
    KernelGroups kernel;
    std::uint64_t changes_seen = 0;
  };
  struct PendingCommand {
    emulator::CommandId id{};
    emulator::Command command;
  };

  void run();
  std::size_t pass(emulator::Time now);
  std::size_t run_commands(std::size_t most, emulator::Time now);
  std::size_t run_frames(emulator::Time now);
  void capture(std::span<const Delivery> deliveries, emulator::Time time);
  void follow_links(emulator::Time now);
  void follow_groups();
  void wake_touched_peers();
  void deliver_results();
  void rest(emulator::Time now);
  void sleep(emulator::Time now);
  void wait_for_input(emulator::Duration limit);
  [[nodiscard]] emulator::Time deadline(emulator::Time now) const;
  [[nodiscard]] LoadSample measure_load();

  const ShardConfig config_;
  const Topology& topology_;
  CaptureTap& tap_;
  const LinkStates& links_;
  Handover handover_;
  MbufSink sink_;
  IdlePolicy idle_;
  SpscRing<PendingCommand> commands_;
  SpscRing<emulator::CommandReply> replies_;
  const shim::UniqueFd kick_fd_, replies_fd_, loadavg_fd_;
  std::vector<Shard*> peers_;
  shim::ControlServer* server_ = nullptr;
  std::unique_ptr<emulator::Engine> engine_;
  std::uint64_t links_seen_ = 0;
  std::uint32_t mtu_changes_seen_ = 0;
  std::vector<Groups> groups_;
  emulator::Duration port_back_off_{};                  // by now
  std::optional<emulator::CommandReply> unsent_reply_;  // the ring to the control thread was full

  std::atomic<bool> stopping_{false};
  std::atomic<bool> running_{false};
  alignas(64) std::atomic<std::uint32_t> asleep_{0};
  alignas(64) std::atomic<std::uint64_t> passes_{0};
  std::atomic<std::uint64_t> sleeps_{0}, involuntary_switches_{0};
  std::atomic<std::int64_t> working_ns_{0}, spinning_ns_{0}, sleeping_ns_{0}, asleep_since_ns_{0};
  std::atomic<bool> crowded_{false};
  std::thread thread_;
};

}  // namespace roci::dpdk_port
