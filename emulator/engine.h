// The engine of one shard: the whole RoCE v2 transport as a value, without clock, thread, socket or dice.
//
// Same construction, inputs, times and seed: same frames, completions and events. An engine holds every NIC
// of the daemon and the contexts (and so the QPs) of its shard. All calls come from one thread, in any order;
// each does bounded work. Nothing allocates on the data path after the commands that made the objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulator/command.h"
#include "emulator/counters.h"
#include "emulator/frame.h"
#include "emulator/memory.h"
#include "emulator/time.h"
#include "proto/types.h"

namespace roci::emulator {

struct NicAddress {
  proto::Gid gid;                   // IPv4 as ::ffff:a.b.c.d
  std::uint8_t prefix_length = 24;  // in bits of the address's own family: on-link prefix
};

struct NicConfig {
  std::string name;  // "rxe0"
  proto::Mac mac;
  std::vector<NicAddress> addresses;
  std::uint32_t mtu_bytes = 4200;  // of IP packets on the port; the active path MTU is the largest that fits
  bool answers_neighbours = true;  // ARP, ND and ICMP echo for `addresses`; false where a kernel owns them
  std::optional<proto::Gid>
      gateway;  // for GIDs of its family that are not on link; none: those are unreachable
  bool link_up = true;
  // Neighbours known without asking: static entries of the configuration and the NICs on the same fabric.
  struct Neighbour {
    proto::Gid gid;
    proto::Mac mac;
  };
  std::vector<Neighbour> neighbours;
};

// GID table as Soft-RoCE builds it: 0 is link-local IPv6 made from the MAC, then one entry per address.
[[nodiscard]] std::vector<proto::Gid> gid_table(const NicConfig& nic);
// The largest path MTU whose largest packet fits into `mtu_bytes`.
[[nodiscard]] proto::PathMtu active_path_mtu(std::uint32_t mtu_bytes);

// Limits of a device, as query_device reports and the engine enforces them.
struct DeviceLimits {
  std::uint32_t max_qp = 16384, max_qp_wr = 16384, max_sge = 32, max_inline_bytes = 512;
  std::uint32_t max_cq = 16384, max_cqe = 65536, max_mr = 262144, max_pd = 16384;
  std::uint64_t max_mr_bytes = std::uint64_t{1} << 47;
  std::uint32_t max_qp_rd_atom = 128, max_qp_init_rd_atom = 128;
  std::uint32_t max_message_bytes = 0x80000000u;
  std::uint32_t max_srq = 8192, max_srq_wr = 16384, max_srq_sge = 32;
  std::uint32_t max_mw = 65536, max_ah = 65536;
  std::uint32_t max_mcast_grp = 8192, max_mcast_qp_attach = 64;  // groups; QPs of one group

  [[nodiscard]] constexpr bool allow(const QpCapabilities& asked) const {
    return asked.max_send_wr <= max_qp_wr && asked.max_recv_wr <= max_qp_wr &&
           asked.max_send_sge <= max_sge && asked.max_recv_sge <= max_sge &&
           asked.max_inline_bytes <= max_inline_bytes;
  }
};

struct EngineConfig {
  std::uint32_t shard = 0;
  std::uint32_t shard_count = 1;
  std::vector<NicConfig> nics;
  DeviceLimits limits;                   // per NIC and shard
  std::uint64_t seed[4] = {1, 2, 3, 4};  // for QPNs and keys; the daemon takes it from getrandom
  std::uint32_t transmit_burst = 32;     // frames per transmit() call
  std::uint32_t window_packets = 128;    // most PSNs in flight per QP
  std::uint64_t context_memory_bytes = std::uint64_t{256} << 20;  // private WQE storage a context may take
  Duration daemon_gap =
      std::chrono::milliseconds(1);  // a longer gap between passes is credited to running timers
  Duration neighbour_timeout = std::chrono::milliseconds(1000);  // RTR fails with ETIMEDOUT after 3 of these
};

class Engine {
 public:
  // `memory` must outlive the engine. The configuration was validated; a broken one is a broken invariant.
  Engine(EngineConfig config, Memory& memory);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- data path. `now` never goes back; order within a pass: frames, doorbells, timers, transmit.
  // Any number of frames; at most kMaxRxBurst are handled as one batch.
  void on_frames(std::span<const Frame> rx, Time now);
  // What became of each frame of the last on_frames() call, in its order; valid until the next.
  [[nodiscard]] std::span<const DropReason> verdicts() const;
  void on_doorbells(Time now);
  void on_timers(Time now);
  // Sends at most one burst; returns the frames sent. 0: nothing to send now, or the sink took none.
  std::size_t transmit(TxSink& sink, Time now);
  // When on_timers() or transmit() has something to do next without further input; kNever if nothing pends;
  // not later than `now` of the last call if work is ready now.
  [[nodiscard]] Time next_deadline() const;

  // ---- control plane
  void submit(CommandId id, Command command, Time now);
  // Moves out up to out.size() replies / events; returns how many.
  std::size_t drain_replies(std::span<CommandReply> out);
  std::size_t drain_events(std::span<Event> out);
  void on_link(NicId nic, bool up, Time now);
  // Multicast groups that QPs of the NIC, of this shard, are attached to: a port that filters must join them.
  // Good until the next call of submit(); the count grows whenever they changed.
  [[nodiscard]] std::span<const proto::Gid> multicast_groups(NicId nic) const;
  [[nodiscard]] std::uint64_t multicast_changes(NicId nic) const;

  // ---- idle: tell every context's application to kick (true) or not; after true, call on_doorbells once
  // more.
  void set_asleep(bool asleep);

  // ---- observation, from the engine's thread
  [[nodiscard]] const Counters& counters(NicId nic) const;
  [[nodiscard]] const EngineConfig& config() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace roci::emulator
