#include "emulator/engine.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>

#include "emulator/control.h"
#include "emulator/datagram.h"
#include "emulator/local_operation.h"
#include "emulator/qp_error.h"
#include "emulator/receive_batch.h"
#include "emulator/requester.h"
#include "emulator/responder.h"
#include "emulator/shard.h"
#include "emulator/shared_receive_queue.h"
#include "emulator/transmit_batch.h"
#include "emulator/unreliable_connection.h"
#include "proto/ethernet.h"
#include "proto/icrc.h"
#include "proto/roce_view.h"

namespace roci::emulator {
namespace {

// Without a call of memcmp.
bool is_same(const proto::Gid& a, const proto::Gid& b) {
  const auto half = [](const proto::Gid& gid, std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, gid.bytes.data() + at, sizeof value);
    return value;
  };
  return half(a, 0) == half(b, 0) && half(a, 8) == half(b, 8);
}

bool matches_default_pkey(proto::Pkey pkey) { return (pkey.value() & 0x7FFF) == 0x7FFF; }  // [IBTA 10.9.3]

// kOk, or why the first of a packet's operations that failed did.
MemoryOp::Result outcome_of(const std::vector<MemoryOp>& ops, std::uint32_t first, std::uint32_t count) {
  const auto end = ops.begin() + first + count;
  const auto failed = std::find_if(ops.begin() + first, end,
                                   [](const MemoryOp& op) { return op.result != MemoryOp::Result::kOk; });
  return failed == end ? MemoryOp::Result::kOk : failed->result;
}

// All else is framing that does not fit together.
DropReason reason_of(proto::ParseError error) {
  if (error == proto::ParseError::kIpOptions) return DropReason::kIpOptions;
  if (error == proto::ParseError::kIpFragment) return DropReason::kIpFragment;
  if (error == proto::ParseError::kTransportVersion) return DropReason::kBadTver;
  return DropReason::kMalformed;
}

// The ICRC is right; what else is remarkable is counted.
bool is_intact(const proto::RoceView& view, Counters& counters) {
  if (!proto::icrc_matches(view)) return false;
  counters.no_df += view.dont_fragment ? 0U : 1U;
  counters.ecn_marked += view.ecn() == proto::Ecn::kCe ? 1U : 0U;
  return true;
}

}  // namespace

struct Engine::Impl : Shard {
  Impl(EngineConfig with, Memory& port)
      : Shard(std::move(with), port), burst(config.transmit_burst, config.limits.max_sge + 1) {
    // The last packet of a batch may be for a whole group.
    batch.packets.reserve(kMaxRxBurst + config.limits.max_mcast_qp_attach);
    batch.ops.reserve((kMaxRxBurst + config.limits.max_mcast_qp_attach) *
                      (config.limits.max_sge + 3));  // a datagram is placed in 3 pieces
    batch.touched.reserve(kMaxRxBurst + config.limits.max_mcast_qp_attach);
    verdicts.reserve(kMaxRxBurst);
  }

  void note_time(Time now);
  void credit_gap(Time now);
  [[nodiscard]] Time next_deadline() const;

  std::size_t receive(std::span<const Frame> frames, Time now);
  DropReason decide(const Frame& frame, ReceivedPacket& packet, Time now);
  DropReason decide_multicast(Nic& nic, const proto::RoceView& view, bool is_reserved, Time now);
  DropReason decide_for(Qp& qp, const proto::RoceView& view, ReceivedPacket& packet, Time now);
  void apply(Time now);

  void follow_neighbours(Time now);
  void ring(Context& context, std::uint32_t slot);
  void visit_doorbells(Context& context, std::size_t& budget);
  void poll_error_queues(Time now);

  void plan_burst(std::uint64_t blocked);
  bool plan_turn(Qp& qp);
  std::size_t finish_burst(Time now);
  void void_behind(PlannedPacket& packet, MemoryOp::Result outcome);
  void seal(const PlannedPacket& packet, TxFrame& frame);
  void end_pass();

  ReceiveBatch batch;
  TransmitBatch burst;
  std::vector<DropReason> verdicts;
  Time now_ = Time::min();
  Duration gap_credit{0};
  bool doorbells_left = false;
  std::size_t doorbell_turn = 0;  // context that is served first
};

// ---- time ------------------------------------------------------------------------------------------

// The daemon was away if it comes back later than it was due (which it is not after sleep with nothing to
// do). Running timers are not to pay for the time since the last pass: answers may have come in it, or their
// senders have been away, too.
void Engine::Impl::note_time(Time now) {
  assert(now >= now_);
  if (now_ != Time::min() && now - now_ > config.daemon_gap) {
    const Time due = std::max(now_, next_deadline());
    if (due < now && now - due > config.daemon_gap) gap_credit += now - now_;
  }
  now_ = now;
}

void Engine::Impl::credit_gap(Time now) {
  const Duration credit = std::exchange(gap_credit, Duration{0});
  if (credit == Duration{0}) return;
  for (const auto& nic : nics)
    ++nic->counters.daemon_gaps;
  timers.postpone_all([&](Qp& qp) {
    if (qp.ack_deadline != kNever) {
      const Time anew = now + ack_wait(qp).value_or(Duration{0});
      qp.ack_deadline = std::max(qp.ack_deadline, std::min(qp.ack_deadline + credit, anew));
    }
    return qp.next_deadline();
  });
}

Time Engine::Impl::next_deadline() const {
  if (!ready.is_empty() || doorbells_left) return now_;
  Time earliest = timers.next();
  if (!in_error.is_empty()) earliest = std::min(earliest, error_poll_at);
  for (const auto& nic : nics) {
    if (nic->neighbours.has_frame()) return now_;
    earliest = std::min(earliest, nic->neighbours.next_deadline());
  }
  return earliest;
}

// ---- receiving -------------------------------------------------------------------------------------

// One batch; returns the frames that were in it.
std::size_t Engine::Impl::receive(std::span<const Frame> frames, Time now) {
  batch.packets.clear();
  batch.ops.clear();
  std::size_t count = 0;
  for (; count < frames.size() && batch.packets.size() < kMaxRxBurst; ++count) {
    ReceivedPacket& packet = batch.packets.emplace_back();
    packet.first_op = static_cast<std::uint32_t>(batch.ops.size());
    packet.verdict = decide(frames[count], packet, now);
    packet.op_count = static_cast<std::uint32_t>(batch.ops.size()) - packet.first_op;
  }
  if (!batch.ops.empty()) memory.execute(batch.ops);
  apply(now);
  const Frame* frame = frames.data();
  for (const ReceivedPacket& packet : batch.packets) {
    if (packet.is_copy) continue;
    verdicts.push_back(packet.verdict);
    if (frame->nic.index < nics.size())
      ++nics[frame->nic.index]->counters.dropped[static_cast<std::size_t>(packet.verdict)];
    ++frame;
  }
  return count;
}

// From the outside in: whose frame, whole, intact, for which QP, from its peer; then what the QP says.
DropReason Engine::Impl::decide(const Frame& frame, ReceivedPacket& packet, Time now) {
  if (frame.nic.index >= nics.size()) return DropReason::kNotForUs;
  Nic& nic = *nics[frame.nic.index];
  Counters& counters = nic.counters;
  ++counters.rx_frames;
  counters.rx_bytes += frame.bytes.size();

  proto::RoceView view;
  const proto::ParseError error = proto::parse_roce(frame.bytes, view);
  if (proto::is_other_traffic(error)) return nic.neighbours.on_frame(frame.bytes);
  ++counters.rx_roce_packets;
  const bool is_reserved = error == proto::ParseError::kReservedOpcode;
  if (error != proto::ParseError::kNone && !is_reserved) return reason_of(error);
  const bool is_ours = view.destination_mac == nic.mac;
  if (!is_ours && !is_group(view.destination_mac)) return DropReason::kNotForUs;
  if (view.is_in_vlan) return DropReason::kVlan;  // a priority tag, with VLAN 0, is none [IEEE 802.1Q]
  if (!is_ours) return decide_multicast(nic, view, is_reserved, now);
  const proto::Qpn qpn = view.bth.destination;
  Qp* const qp = qpn == proto::kQpnGsi ? nic.gsi : qps.find(qpn.value());
  const bool is_own =
      qp != nullptr && !qp->source_is_gone && is_same(view.destination, qp->local_gid);  // most often
  if (!is_own && !nic.has(view.destination)) return DropReason::kNotForUs;
  if (!is_intact(view, counters)) return DropReason::kBadIcrc;

  const proto::OpcodeInfo& info = view.opcode_info();
  if (qpn.value() == 0) return DropReason::kQp0;  // [IBTA CA17-33]
  if (qp == nullptr || qp->nic != frame.nic) return DropReason::kUnknownQpn;
  if (info.service == proto::Service::kCnp && info.is_known) {
    ++counters.cnp_received;
    return DropReason::kAccepted;
  }
  if (info.service != qp->service || (is_reserved && info.service != proto::Service::kRc))
    return is_reserved ? DropReason::kUnknownOpcode : DropReason::kWrongService;
  if (!qp->can_receive()) return DropReason::kQpState;
  const bool is_from_anyone = qp->is_datagram();
  if (!is_from_anyone && (!is_own || !is_same(view.source, qp->attributes.av.dgid)))
    return DropReason::kWrongPeer;
  if (!matches_default_pkey(view.bth.pkey)) return DropReason::kBadPkey;
  return decide_for(*qp, view, packet, now);
}

// A copy for each QP of the group but the one that sent it. The frame is accepted if one of them is.
DropReason Engine::Impl::decide_multicast(Nic& nic, const proto::RoceView& view, bool is_reserved, Time now) {
  const bool is_consistent = view.bth.destination == proto::kQpnMulticast && is_multicast(view.destination) &&
                             view.destination_mac == multicast_mac(view.destination);
  if (!is_consistent) return DropReason::kNotForUs;
  if (!is_intact(view, nic.counters)) return DropReason::kBadIcrc;
  if (is_reserved) return DropReason::kUnknownOpcode;
  if (view.opcode_info().service != proto::Service::kUd) return DropReason::kWrongService;
  if (!matches_default_pkey(view.bth.pkey)) return DropReason::kBadPkey;
  const proto::Qpn source = view.deth().source;
  DropReason verdict = DropReason::kNotAttached;
  bool is_taken = false;
  for (Qp* const qp : nic.groups.members(view.destination)) {
    if (view.source_mac == nic.mac && qp->qpn == source) continue;
    ReceivedPacket& copy = batch.packets.emplace_back();
    copy.is_copy = true;
    copy.first_op = static_cast<std::uint32_t>(batch.ops.size());
    copy.verdict = qp->can_receive() ? decide_for(*qp, view, copy, now) : DropReason::kQpState;
    copy.op_count = static_cast<std::uint32_t>(batch.ops.size()) - copy.first_op;
    verdict = copy.verdict;
    is_taken |= verdict == DropReason::kAccepted;
    ++(verdict == DropReason::kAccepted ? nic.counters.multicast_copies : nic.counters.multicast_losses);
  }
  return is_taken ? DropReason::kAccepted : verdict;
}

// It may be for this QP: what do its requester, responder or datagrams say?
DropReason Engine::Impl::decide_for(Qp& qp, const proto::RoceView& view, ReceivedPacket& packet, Time now) {
  ++qp.statistics.packets_received;
  qp.statistics.bytes_received += view.payload_bytes;
  packet.qp = &qp;
  packet.psn = view.bth.psn;
  packet.before = qp.save();
  packet.is_request = view.opcode_info().role == proto::Role::kRequest;
  if (!std::exchange(qp.is_touched, true)) batch.touched.push_back(&qp);
  if (qp.is_datagram()) return decide_datagram(*this, qp, view, packet, batch);
  return packet.is_request ? decide_request(*this, qp, view, packet, batch)
                           : decide_response(*this, qp, view, packet, batch, now);
}

void Engine::Impl::apply(Time now) {
  for (ReceivedPacket& packet : batch.packets) {
    if (packet.qp == nullptr) continue;
    Qp& qp = *packet.qp;
    if (qp.is_cancelled) {
      packet.verdict = DropReason::kCancelled;
      return_shared_receive(qp, packet.request);
      continue;
    }
    const MemoryOp::Result outcome = outcome_of(batch.ops, packet.first_op, packet.op_count);
    if (outcome != MemoryOp::Result::kOk) {
      // Behind it the QP was decided on as if it had gone well. One of UC, which stays up, loses those
      // packets.
      qp.is_cancelled = true;
      qp.restore(packet.before);
      if (outcome == MemoryOp::Result::kGone) {
        packet.verdict = DropReason::kOwnerGone;  // as silent as a QP that is not there
        enter_error(*this, qp);
      } else if (qp.is_datagram()) {
        packet.verdict = DropReason::kReceiveError;
        fail_datagram(*this, qp, packet);
      } else if (packet.is_request) {
        packet.verdict = fail_request(*this, qp, packet);
      } else {
        fail_scatter(*this, qp, packet);
      }
    } else if (qp.is_datagram()) {
      apply_datagram(*this, qp, packet);
    } else if (packet.is_request) {
      apply_request(*this, qp, packet, batch);
    } else {
      apply_response(*this, qp, packet, now);
    }
  }
  for (Qp* qp : batch.touched) {
    qp->is_touched = qp->is_cancelled = false;
    if (qp->srq != nullptr) check_limit(*this, *qp->srq);
    update_timer(*qp);
  }
  batch.touched.clear();
  end_pass();
}

// Completions become visible, and whatever they caused.
void Engine::Impl::end_pass() {
  handle_overruns(*this);
  completer.publish();
}

// Commands that wait for a MAC, and connections whose peer has another one now.
void Engine::Impl::follow_neighbours(Time now) {
  bool has_changed = false;
  for (const auto& nic : nics) {
    const std::uint64_t changes = nic->neighbours.changes();
    if (std::exchange(nic->seen_changes, changes) == changes) continue;
    has_changed = true;
    refresh_paths(*this, *nic);
  }
  if (has_changed) resume_commands(*this, now);
}

// ---- doorbells -------------------------------------------------------------------------------------

void Engine::Impl::ring(Context& context, std::uint32_t slot) {
  if (slot >= cq_doorbell(0)) {
    if (CompletionQueue* const cq = context.cqs.find(slot - cq_doorbell(0))) completer.look_again(*cq);
    return;
  }
  Qp* const qp = context.qps.find(slot);
  if (qp == nullptr) return;
  if (qp->flushes()) {
    flush(*this, *qp);
  } else if (qp->can_send()) {
    activate(*qp);
  }
}

// Swaps words of the two-level bitmap to zero and visits the bits that were set, while `budget` lasts.
void Engine::Impl::visit_doorbells(Context& context, std::size_t& budget) {
  ControlArea& control = *context.control;
  for (std::size_t group = 0; group < std::size(control.doorbell_summary); ++group) {
    std::uint64_t* const summary = &control.doorbell_summary[group];
    if (__atomic_load_n(summary, __ATOMIC_RELAXED) == 0) continue;
    std::uint64_t words = __atomic_exchange_n(summary, 0, __ATOMIC_ACQ_REL);
    while (words != 0 && budget > 0) {
      const auto word = static_cast<std::size_t>(std::countr_zero(words));
      words &= words - 1;
      std::uint64_t bits =
          __atomic_exchange_n(&control.doorbells[group * kDoorbellsPerWord + word], 0, __ATOMIC_ACQ_REL);
      for (; bits != 0; bits &= bits - 1) {
        const std::size_t slot = group * kDoorbellsPerSummary + word * kDoorbellsPerWord +
                                 static_cast<std::size_t>(std::countr_zero(bits));
        if (budget > 0) --budget;
        ring(context, static_cast<std::uint32_t>(slot));
      }
    }
    if (words != 0) {  // the rest is for the next pass
      __atomic_fetch_or(summary, words, __ATOMIC_ACQ_REL);
      doorbells_left = true;
    }
  }
}

void Engine::Impl::poll_error_queues(Time now) {
  if (in_error.is_empty()) {
    error_poll_at = kNever;
    return;
  }
  bool found = false;
  Qp* const first = &in_error.front();
  for (std::size_t visits = 0; visits < kMaxDoorbellVisits; ++visits) {
    Qp& qp = in_error.front();
    if (visits > 0 && &qp == first) break;
    found |= flush(*this, qp);
    in_error.rotate(qp.error_node);
  }
  if (found) {
    error_poll_interval = kMinErrorPoll;
    error_poll_at = now;  // there may be more
  } else if (error_poll_at <= now || error_poll_at == kNever) {
    error_poll_at = now + error_poll_interval;
    error_poll_interval = std::min(2 * error_poll_interval, kMaxErrorPoll);
  }
}

// ---- sending ---------------------------------------------------------------------------------------

void Engine::Impl::plan_burst(std::uint64_t blocked) {
  for (const auto& nic : nics) {
    if ((blocked >> nic->id.index & 1) != 0) continue;
    while (!burst.is_full() && nic->neighbours.has_frame()) {
      TxFrame& frame = burst.frames[burst.packets.size()];
      const std::size_t length = nic->neighbours.emit({frame.data, frame.capacity_bytes});
      if (length == 0) break;
      frame.nic = nic->id;
      burst.packets.emplace_back().length_bytes = static_cast<std::uint32_t>(length);
    }
    nic->counters.arp_replies_sent = nic->neighbours.replies_sent();
  }
  for (std::size_t visits = 0; visits < kMaxTransmitVisits && !burst.is_full() && !ready.is_empty();
       ++visits) {
    Qp& qp = ready.front();
    if ((blocked >> qp.nic.index & 1) != 0) {
      ready.rotate(qp.ready_node);
    } else if (plan_turn(qp)) {
      if (!burst.is_full()) ready.rotate(qp.ready_node);  // else its turn goes on in the next burst
    } else {
      qp.ready_node.unlink();
    }
  }
}

// A QP's turn in the deficit round robin: a quantum for its responses and one for its requests. False: it has
// nothing more to send now.
bool Engine::Impl::plan_turn(Qp& qp) {
  const auto spend = [&](std::int32_t& deficit, auto plan) {
    if (deficit <= 0) deficit += kQuantumBytes;
    while (deficit > 0) {
      if (burst.is_full()) return true;
      if (!plan()) {
        deficit = 0;
        return false;
      }
      deficit -= static_cast<std::int32_t>(burst.packets.back().length_bytes);
    }
    return true;
  };
  if (qp.is_datagram())
    return spend(qp.request_deficit_bytes, [&] { return plan_datagram(*this, qp, burst); });
  const bool more_local = run_local_operations(*this, qp);
  if (qp.service == proto::Service::kUc)
    return spend(qp.request_deficit_bytes, [&] { return plan_unreliable(*this, qp, burst); }) || more_local;
  const bool more_responses =
      spend(qp.response_deficit_bytes, [&] { return plan_response(*this, qp, burst); });
  const bool more_requests =
      spend(qp.request_deficit_bytes, [&] { return plan_request(*this, qp, burst, now_); });
  return more_responses || more_requests || more_local;
}

// The payload of this packet could not be read: it and what was planned behind it in that half of the QP is
// void.
void Engine::Impl::void_behind(PlannedPacket& packet, MemoryOp::Result outcome) {
  Qp& qp = *packet.qp;
  ++nic_of(qp).counters.memory_faults;
  if (outcome == MemoryOp::Result::kGone) {
    qp.requests_void = qp.responses_void = true;
    if (qp.state != QpState::kErr || qp.answers_in_error) enter_error(*this, qp);
    return;
  }
  if (packet.kind == PlannedPacket::Kind::kResponse) {
    qp.responses_void = true;
    if (qp.state != QpState::kErr || qp.answers_in_error) fail_response(*this, qp, packet.psn);
    return;
  }
  qp.requests_void = true;
  if (qp.flushes()) return;
  const std::uint32_t completed = qp.requester.sq_consumer;  // by what was sent before it in this burst
  qp.requester = packet.before;
  qp.requester.sq_consumer = completed;
  fail_gather(*this, qp);
}

void Engine::Impl::seal(const PlannedPacket& packet, TxFrame& frame) {
  constexpr std::size_t kMaskedBytes =
      proto::EthernetHeader::kSize + 128;  // headers and a little more: few pieces are fast
  const std::span<const std::byte> covered{frame.data, packet.length_bytes - proto::Icrc::kSize};
  const std::size_t head = std::min(covered.size(), kMaskedBytes);
  proto::Icrc icrc = packet.headers->icrc_over(covered.first(head));
  icrc.update(covered.subspan(head))
      .store(std::span<std::byte, proto::Icrc::kSize>{frame.data + covered.size(), proto::Icrc::kSize});
}

std::size_t Engine::Impl::finish_burst(Time now) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < burst.packets.size(); ++i) {
    PlannedPacket& packet = burst.packets[i];
    TxFrame& frame = burst.frames[kept];
    Qp* const qp = packet.qp;
    if (qp != nullptr) {
      const bool is_response = packet.kind == PlannedPacket::Kind::kResponse;
      if (is_response ? qp->responses_void : qp->requests_void) continue;
      const MemoryOp::Result outcome = outcome_of(burst.ops, packet.first_op, packet.op_count);
      if (outcome != MemoryOp::Result::kOk) {
        void_behind(packet, outcome);
        continue;
      }
    }
    const NicId from = qp != nullptr ? qp->nic : burst.frames[i].nic;
    if (kept != i) std::memcpy(frame.data, burst.frames[i].data, packet.length_bytes);
    Counters& counters = nics[from.index]->counters;
    if (packet.is_lost) {
      ++counters.no_source;
    } else {
      frame.nic = from;
      frame.length_bytes = packet.length_bytes;
      ++kept;
      ++counters.tx_frames;
      counters.tx_bytes += packet.length_bytes;
      if (qp == nullptr) continue;
      seal(packet, frame);
      ++counters.tx_roce_packets;
      ++qp->statistics.packets_sent;
      qp->statistics.bytes_sent += packet.length_bytes;
    }
    if (packet.kind != PlannedPacket::Kind::kRequest) continue;
    if (qp->service == proto::Service::kRc) {
      commit_request(*this, *qp, packet, now);
    } else {
      commit_unacknowledged(*this, *qp, packet);
    }
  }
  for (const PlannedPacket& packet : burst.packets) {
    if (packet.qp != nullptr) packet.qp->requests_void = packet.qp->responses_void = false;
  }
  return kept;
}

// ---- the interface ---------------------------------------------------------------------------------

Engine::Engine(EngineConfig config, Memory& memory)
    : impl_(std::make_unique<Impl>(std::move(config), memory)) {}
Engine::~Engine() = default;

void Engine::on_frames(std::span<const Frame> rx, Time now) {
  impl_->note_time(now);
  impl_->verdicts.clear();
  while (!rx.empty())
    rx = rx.subspan(impl_->receive(rx, now));
  impl_->follow_neighbours(now);
}

std::span<const DropReason> Engine::verdicts() const { return impl_->verdicts; }

void Engine::on_doorbells(Time now) {
  Impl& engine = *impl_;
  engine.note_time(now);
  engine.doorbells_left = false;
  std::size_t budget = kMaxDoorbellVisits;
  const std::size_t count = engine.contexts.size();
  for (std::size_t i = 0; i < count; ++i) {
    engine.visit_doorbells(*engine.contexts[(engine.doorbell_turn + i) % count], budget);
  }
  ++engine.doorbell_turn;
  engine.poll_error_queues(now);
  engine.end_pass();
}

void Engine::on_timers(Time now) {
  Impl& engine = *impl_;
  engine.note_time(now);
  engine.credit_gap(now);
  for (std::size_t visits = 0; visits < kMaxTimerVisits; ++visits) {
    Qp* const qp = engine.timers.first_due(now);
    if (qp == nullptr) break;
    on_requester_timer(engine, *qp, now);
  }
  for (const auto& nic : engine.nics)
    nic->neighbours.on_timers(now);
  engine.follow_neighbours(now);
  if (engine.error_poll_at <= now) engine.poll_error_queues(now);
  engine.end_pass();
}

std::size_t Engine::transmit(TxSink& sink, Time now) {
  Impl& engine = *impl_;
  engine.note_time(now);
  const bool asks = std::any_of(engine.nics.begin(), engine.nics.end(),
                                [](const auto& nic) { return nic->neighbours.has_frame(); });
  if (engine.ready.is_empty() && !asks) return 0;
  const std::uint64_t blocked = sink.blocked_nics();
  engine.burst.start(sink.reserve(engine.config.transmit_burst));
  if (engine.burst.frames.empty()) return 0;
  engine.plan_burst(blocked);
  if (!engine.burst.ops.empty()) engine.memory.execute(engine.burst.ops);
  const std::size_t sent = engine.finish_burst(now);
  sink.commit(sent);
  engine.end_pass();
  return sent;
}

Time Engine::next_deadline() const { return impl_->next_deadline(); }

void Engine::submit(CommandId id, Command command, Time now) {
  impl_->note_time(now);
  execute(*impl_, id, std::move(command), now);
  impl_->end_pass();
}

std::size_t Engine::drain_replies(std::span<CommandReply> out) {
  std::size_t count = 0;
  for (; count < out.size() && !impl_->replies.empty(); ++count) {
    out[count] = std::move(impl_->replies.front());
    impl_->replies.pop_front();
  }
  return count;
}

std::size_t Engine::drain_events(std::span<Event> out) { return impl_->events.drain(out); }

void Engine::on_link(NicId nic, bool up, Time now) {
  impl_->note_time(now);
  if (nic.index >= impl_->nics.size() || std::exchange(impl_->nics[nic.index]->is_up, up) == up) return;
  for (const auto& context : impl_->contexts) {
    if (context->nic == nic)
      impl_->events.raise(context->port_events, up ? EventKind::kPortActive : EventKind::kPortErr);
  }
}

void Engine::on_addresses(NicId nic, std::span<const NicAddress> addresses, Time now) {
  impl_->note_time(now);
  change_addresses(*impl_, nic, addresses);
  impl_->follow_neighbours(now);
}

void Engine::on_mtu(NicId nic, std::uint32_t mtu_bytes, Time now) {
  if (nic.index >= impl_->nics.size()) return;
  Nic& port = *impl_->nics[nic.index];
  const proto::PathMtu mtu = active_path_mtu(mtu_bytes);
  if (std::exchange(port.mtu, mtu) == mtu || !port.is_up) return;
  on_link(nic, false, now);
  on_link(nic, true, now);
}

std::span<const proto::Gid> Engine::multicast_groups(NicId nic) const {
  return impl_->nics[nic.index]->groups.groups();
}
std::uint64_t Engine::multicast_changes(NicId nic) const { return impl_->nics[nic.index]->groups.changes(); }

void Engine::set_asleep(bool asleep) {
  for (const auto& context : impl_->contexts) {
    __atomic_store_n(&context->control->asleep, asleep ? 1U : 0U, __ATOMIC_RELAXED);
  }
  // The application's side: ring, fence, look whether we sleep. Ours: say so, fence, look at the doorbells.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

const Counters& Engine::counters(NicId nic) const { return impl_->nics[nic.index]->counters; }
const EngineConfig& Engine::config() const { return impl_->config; }

}  // namespace roci::emulator
