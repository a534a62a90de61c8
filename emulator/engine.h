// The engine of one shard: the whole RoCE v2 transport as a value, without clock, thread, socket or dice.
//
// Same construction, inputs, times and seed: same frames, completions and events. An engine holds every NIC
// of the daemon and the contexts (and so the QPs) of its shard. All calls come from one thread, in any order;
// each does bounded work. Nothing allocates on the data path after the commands that made the objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "emulator/command.h"
#include "emulator/config.h"
#include "emulator/counters.h"
#include "emulator/frame.h"
#include "emulator/memory.h"
#include "emulator/time.h"
#include "proto/types.h"

namespace roci::emulator {

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
  // The NIC's addresses are `addresses` now: changed_addresses() of those it had. Contexts get kGidChange.
  // What was connected from an address that is gone stays, but sends nothing and hears nothing until that is
  // back.
  void on_addresses(NicId nic, std::span<const NicAddress> addresses, Time now);
  // The port's MTU is another. If another path MTU is the largest that fits, its link went down and up.
  void on_mtu(NicId nic, std::uint32_t mtu_bytes, Time now);
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
