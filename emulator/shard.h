// Everything one engine has, and what its parts share: NICs, contexts, tables, lists, timers.
//
// The parts are functions over a Shard: control (commands), requester and responder, datagram and
// unreliable_connection (the other services), work_requests and local_operation, shared_receive_queue,
// qp_error, and engine (the passes). Thread rule: the engine's thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "emulator/config.h"
#include "emulator/context.h"
#include "emulator/counters.h"
#include "emulator/dice.h"
#include "emulator/event_queue.h"
#include "emulator/flat_table.h"
#include "emulator/memory.h"
#include "emulator/memory_region.h"
#include "emulator/multicast.h"
#include "emulator/neighbour.h"
#include "emulator/qp.h"
#include "emulator/timers.h"

namespace roci::emulator {

// Bounds of what one call does.
inline constexpr std::size_t kMaxRxBurst = 64;            // frames handled as one batch
inline constexpr std::size_t kMaxDoorbellVisits = 256;    // QPs visited by one on_doorbells()
inline constexpr std::size_t kMaxTransmitVisits = 128;    // QPs visited by one transmit()
inline constexpr std::size_t kMaxTimerVisits = 256;       // expirations handled by one on_timers()
inline constexpr std::uint32_t kMaxFlushPerVisit = 256;   // WQEs of one queue of a QP flushed at once
inline constexpr std::uint32_t kMaxLocalOperations = 64;  // binds and invalidations of a QP run at once
inline constexpr std::int32_t kQuantumBytes = 16 * 1024;  // what a QP may send each time its turn comes
// Private slots for receives from an SRQ: one for each packet of a batch, one that an earlier message holds.
inline constexpr std::uint32_t kTakenSlots = std::bit_ceil(static_cast<std::uint32_t>(kMaxRxBurst) + 1);
// post_recv rings no doorbell, so queues of QPs in ERR are looked at again this often while the engine is
// idle; the interval doubles while nothing is found.
inline constexpr Duration kMinErrorPoll = std::chrono::milliseconds(1);
inline constexpr Duration kMaxErrorPoll = std::chrono::milliseconds(16);

struct Nic {
  Nic(const EngineConfig& config, std::size_t index)
      : id{static_cast<std::uint8_t>(index)},
        mac(config.nics[index].mac),
        gids(gid_table(config.nics[index])),
        mtu(active_path_mtu(config.nics[index].mtu_bytes)),
        is_up(config.nics[index].link_up),
        neighbours(config.nics[index], config.neighbour_timeout,
                   config.shard == 0 && config.nics[index].answers_neighbours) {}

  [[nodiscard]] bool has(const proto::Gid& gid) const {
    return gid != proto::Gid{} && std::find(gids.begin(), gids.end(), gid) != gids.end();
  }

  NicId id;
  proto::Mac mac;
  std::vector<proto::Gid> gids;  // zero: a free place
  proto::PathMtu mtu;
  bool is_up;
  NeighbourCache neighbours;
  MulticastGroups groups;          // of the shard's QPs
  Qp* gsi = nullptr;               // QP1, which is in no table of QPNs, as each NIC has one; shard 0
  std::uint64_t seen_changes = 0;  // of the neighbours
  Counters counters;
  std::uint32_t qp_count = 0, cq_count = 0, mr_count = 0, mw_count = 0, pd_count = 0, ah_count = 0,
                srq_count = 0;
};

// A ModifyQp whose reply waits for the neighbour.
struct PendingModify {
  CommandId id;
  Qp* qp = nullptr;
  ModifyQp command;
};
// The same for CreateAh. It counts as an AH already, of its NIC and among the users of its PD.
struct PendingAh {
  CommandId id;
  Context* context = nullptr;
  Pd* pd = nullptr;
  AddressVector av;
};

struct Shard {
  Shard(EngineConfig with, Memory& port)
      : config(std::move(with)), memory(port), dice(config.seed, config.shard), completer(events) {
    for (std::size_t i = 0; i < config.nics.size(); ++i)
      nics.push_back(std::make_unique<Nic>(config, i));
  }

  [[nodiscard]] Nic& nic_of(const Qp& qp) { return *nics[qp.nic.index]; }
  // The QP may have something to send.
  void activate(Qp& qp) { ready.push_back(qp.ready_node); }
  // To be called whenever the QP's deadline may have changed.
  void update_timer(Qp& qp) { timers.set(qp, qp.next_deadline()); }

  EngineConfig config;
  Memory& memory;
  Dice dice;
  std::vector<std::unique_ptr<Nic>> nics;
  std::vector<std::unique_ptr<Context>> contexts;  // in the order they opened
  std::uint32_t next_context = 1;
  FlatTable<Qp> qps;  // by QPN
  KeyTable keys;
  EventQueue events;
  Completer completer;
  Timers timers;
  IntrusiveList<Qp> ready;     // have something to send, perhaps; served in turn
  IntrusiveList<Qp> in_error;  // queues are flushed as they fill
  std::vector<PendingModify> modifying;
  std::vector<PendingAh> creating_ahs;
  std::deque<CommandReply> replies;
  Time error_poll_at = kNever;
  Duration error_poll_interval = kMinErrorPoll;
};

}  // namespace roci::emulator
