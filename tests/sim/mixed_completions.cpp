// Mixed programs: completions and events, each of which must be one that is due.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/sim/mixed_state.h"

namespace roci::sim::mixed {

// A broken connection has its requests flushed, once behind exhausted retries; so has a datagram QP what
// stands behind one whose handle is gone.
bool MixedProgram::may_fail(const End& end, const RingCqe& cqe) {
  if (cqe.status == kWcFlushed) return end.is_broken || end.has_failed;
  if (end.has_failed) return false;
  if (end.is_broken) return end.type == QpType::kRc && cqe.status == kWcRetryExceeded;
  const auto it = std::find_if(end.pending.begin(), end.pending.end(),
                               [&](const Pending& one) { return one.wr_id == cqe.wr_id; });
  return it != end.pending.end() && it->has_lost_handle && cqe.status == kWcLocalQpOperation;
}

void MixedProgram::complete_send(End& end, const RingCqe& cqe) {
  const bool is_success = cqe.status == kWcSuccess;
  if (!is_success && !may_fail(end, cqe))
    return fail(&end, std::string(end.is_broken ? "a broken connection's send has" : "a send fails with") +
                          " status " + std::to_string(cqe.status));
  if (is_success && end.has_failed) return fail(&end, "a success behind a failure");
  if (!is_success) end.has_failed = true;
  while (!end.pending.empty()) {
    const Pending one = std::move(end.pending.front());
    end.pending.pop_front();
    const bool is_it = one.wr_id == cqe.wr_id;
    if (!is_it && one.is_signaled)
      return fail(&end, "a signaled work request does not complete, a later one does");
    if (is_it && is_success && !one.is_signaled) return fail(&end, "an unsignaled work request completes");
    if (is_it && is_success && cqe.opcode != one.opcode)
      return fail(&end, "a send completes with opcode " + std::to_string(cqe.opcode));
    // What was sent in time was told before the handle was destroyed.
    if (is_it && is_success && one.has_lost_handle)
      return fail(&end, "a datagram is sent by a handle that is gone");
    finish(end, one, !is_it || is_success);
    if (is_it) return;
  }
  fail(&end, "a completion of no work request");
}

void MixedProgram::finish(End& end, const Pending& one, bool is_success) {
  Party& party = *end.party;
  if (one.is_local) {
    if (is_success) end.window = one.opcode == kWcBindWindow ? Window::kBound : Window::kFree;
    return;
  }
  const std::span<std::byte> bytes = slot_bytes(party, one.slot);
  party.free_slots.push_back(one.slot);
  if (!is_success) {
    if (one.adds) ++end.peer->party->uncertain;
    datagrams_.erase(one.tag);  // must not arrive
    return;
  }
  std::size_t brought = 0;
  if (one.adds) {
    std::uint64_t original = 0;
    std::memcpy(&original, bytes.data(), 8);
    end.peer->party->originals.push_back(original);
    brought = 8;
  } else if (!one.brings.empty()) {
    if (!std::equal(one.brings.begin(), one.brings.end(), bytes.begin()))
      return fail(&end, "a READ or CMP_SWAP brings wrong bytes");
    brought = one.brings.size();
  }
  // All else is as it was.
  const auto rest = bytes.subspan(brought);
  const bool is_intact = brought == 0
                             ? is_content(one.tag, bytes)
                             : std::memcmp(rest.data(), noise_of(one.tag).data() + brought, rest.size()) == 0;
  if (!is_intact) fail(&end, "a send buffer has changed");
}

void MixedProgram::complete_receive(End& end, const Receive& receive, const RingCqe& cqe) {
  if (receive.end != nullptr && receive.end != &end) return fail(&end, "completes another QP's receive");
  if ((receive.end == nullptr) != end.uses_srq) return fail(&end, "completes a receive of the wrong queue");
  if (receive.end != nullptr) {
    if (end.posted.front() != cqe.wr_id) return fail(&end, "receives complete out of order");
    end.posted.pop_front();
  }
  const std::span<std::byte> bytes = slot_bytes(*end.party, receive.slot);
  end.party->free_slots.push_back(receive.slot);
  if (cqe.status != kWcSuccess) {
    if (!end.is_broken || cqe.status != kWcFlushed)
      fail(&end, "a receive fails with status " + std::to_string(cqe.status));
    return;
  }
  ++result_.messages_received;
  switch (end.type) {
    case QpType::kRc:
      return receive_reliable(end, receive, cqe, bytes);
    case QpType::kUc:
      return receive_unreliable(end, cqe, bytes);
    case QpType::kUd:
    case QpType::kGsi:
      return receive_datagram(end, receive, cqe, bytes);
  }
}

// The fields of a completion, and the bytes behind `offset`.
void MixedProgram::check_message(const End& end, const Message& message, const RingCqe& cqe,
                                 std::span<const std::byte> bytes, std::uint32_t offset) {
  if (cqe.byte_len != message.length + offset)
    return fail(&end, "byte_len is " + std::to_string(cqe.byte_len));
  if (cqe.opcode != (message.is_write ? kWcRecvWriteImm : kWcRecv))
    return fail(&end, "a receive has a wrong opcode");
  const std::uint32_t flags = (message.has_immediate ? kWcWithImm : 0U) |
                              (message.invalidates ? kWcWithInvalidate : 0U) | (offset != 0 ? kWcGrh : 0U);
  if (cqe.wc_flags != flags) return fail(&end, "wc_flags are " + std::to_string(cqe.wc_flags));
  if (message.has_immediate && __builtin_bswap32(cqe.immediate_or_invalidate) != message.immediate)
    return fail(&end, "wrong immediate data");
  if (message.invalidates && cqe.immediate_or_invalidate != message.key.value())
    return fail(&end, "wrong invalidated key");
  if (!message.is_write && !is_content(message.tag, bytes.subspan(offset, message.length)))
    return fail(&end, "wrong bytes received");
}

void MixedProgram::check_untouched(const End& end, const Receive& receive, std::span<const std::byte> bytes,
                                   std::size_t used) {
  if (used < kTagBytes) used = kTagBytes;  // where the tag stands
  if (std::memcmp(bytes.data() + used, noise_of(receive.tag).data() + used, bytes.size() - used) != 0)
    fail(&end, "bytes behind a message have changed");
}

void MixedProgram::receive_reliable(End& end, const Receive& receive, const RingCqe& cqe,
                                    std::span<const std::byte> bytes) {
  if (end.expected.empty()) return fail(&end, "a message arrives that was not sent");
  const Message message = end.expected.front();
  end.expected.pop_front();
  check_message(end, message, cqe, bytes, 0);
  check_untouched(end, receive, bytes, message.is_write ? 0 : message.length);
  if (cqe.src_qp != end.peer->qp->qpn().value()) return fail(&end, "wrong src_qp");
  if (message.invalidates) end.window = Window::kFree;
}

void MixedProgram::receive_unreliable(End& end, const RingCqe& cqe, std::span<const std::byte> bytes) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, bytes.data(), kTagBytes);
  const auto by_tag = numbers_.find(tag);
  const bool has_immediate = (cqe.wc_flags & kWcWithImm) != 0;
  if (!has_immediate && by_tag == numbers_.end()) return fail(&end, "a message arrives that was not sent");
  const std::size_t number = has_immediate ? __builtin_bswap32(cqe.immediate_or_invalidate) : by_tag->second;
  if (number >= end.sent.size()) return fail(&end, "a message arrives that was not sent");
  Message& message = end.sent[number];
  if (keeps_order_ && number < end.next_number) return fail(&end, "a message arrives again, or out of order");
  if (++message.arrivals > (repeats_ ? 2U : 1U)) return fail(&end, "a message arrives too often");
  end.next_number = number + 1;
  check_message(end, message, cqe, bytes, 0);
  const auto written = end.party->client->bytes(end.target_segment + message.offset, message.length);
  if (message.is_write && !is_content(message.tag, written)) fail(&end, "wrong bytes written");
}

void MixedProgram::receive_datagram(End& end, const Receive& receive, const RingCqe& cqe,
                                    std::span<const std::byte> bytes) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, bytes.data() + kGrhBytes, kTagBytes);
  const auto found = datagrams_.find(tag);
  if (found == datagrams_.end()) return fail(&end, "a datagram arrives that was not sent");
  Datagram& datagram = found->second;
  const bool is_for_me = datagram.destination == nullptr ? end.in_group && datagram.source != &end
                                                         : datagram.destination == &end;
  if (!is_for_me) return fail(&end, "a datagram arrives that is for another");
  if (++datagram.arrivals[&end] > (repeats_ ? 2U : 1U)) return fail(&end, "a datagram arrives too often");
  check_message(end, datagram.message, cqe, bytes, kGrhBytes);
  check_untouched(end, receive, bytes, kGrhBytes + datagram.message.length);
  if (cqe.src_qp != datagram.source->qp->qpn().value()) return fail(&end, "a datagram has a wrong src_qp");
  // The addresses: of IPv4 they end the area, of IPv6 they are all of its last 32 bytes.
  const Party& from = *datagram.source->party;
  const proto::Gid source = World::gid(from.host, from.nic, datagram.ipv6);
  const std::size_t length = datagram.ipv6 ? 16 : 4;
  const std::byte* const at = bytes.data() + kGrhBytes - 2 * length;
  if (std::memcmp(at, source.bytes.data() + 16 - length, length) != 0)
    return fail(&end, "a GRH has a wrong source");
  const proto::Gid to =
      datagram.destination == nullptr ? group() : World::gid(end.party->host, end.party->nic, datagram.ipv6);
  if (std::memcmp(at + length, to.bytes.data() + 16 - length, length) != 0)
    fail(&end, "a GRH has a wrong destination");
}

void MixedProgram::poll(Party& party) {
  hear(party);
  party.is_told = party.is_asleep = false;  // what it reads needs no event
  std::size_t found = 0;
  while (const std::optional<RingCqe> cqe = party.cq->poll()) {
    ++found;
    last_progress_ = world_->now();
    world_->mix(cqe->wr_id * 64 + cqe->status);
    const auto of = by_qpn_.find({&party, cqe->qp_num});
    if (of == by_qpn_.end()) return fail(nullptr, "a completion of a QP that is gone, or never was");
    End& end = *of->second;
    const auto receive = receives_.find(cqe->wr_id);
    if (receive == receives_.end()) {
      complete_send(end, *cqe);
    } else {
      const Receive one = receive->second;
      receives_.erase(receive);
      complete_receive(end, one, *cqe);
    }
    if (!result_.ok()) return;
  }
  // What was there when it was armed may have been read before the engine looked.
  const std::size_t old = std::min(found, party.unread_at_arm);
  party.unread_at_arm -= old;
  if (party.is_armed && found > old) fail(nullptr, "an armed CQ has a completion and raises no event");
  if (!party.is_armed && random_.chance(100'000)) arm(party);
}

void MixedProgram::arm(Party& party) {
  party.client->arm(*party.cq, CqArm::kNext);
  party.is_armed = true;
  party.unread_at_arm = party.cq->pending();
}

// The events of its context so far, each of which was asked for.
void MixedProgram::hear(Party& party) {
  std::vector<Event>& events = world_->events(party.host);
  const auto others = std::stable_partition(
      events.begin(), events.end(), [&](const Event& one) { return one.context != party.client->context(); });
  const std::vector<Event> heard(others, events.end());
  events.erase(others, events.end());
  for (const Event& one : heard) {
    world_->mix(static_cast<std::uint64_t>(one.kind));
    if (one.kind == EventKind::kCompletion) {
      if (!party.is_armed) return fail(nullptr, "a CQ raises an event that nobody asked for");
      party.is_told = true;
      party.is_armed = party.is_asleep = false;
      party.unread_at_arm = 0;
    } else if (one.kind == EventKind::kSrqLimitReached) {
      if (party.srq_limit == 0) return fail(nullptr, "an SRQ raises an event, and no limit is armed");
      // Receives are posted after this only.
      if (party.srq->posted() >= party.srq_limit)
        return fail(nullptr, "an SRQ raises its limit event with as many receives left");
      party.srq_limit = 0;
      party.awaits_limit = false;
    }
  }
  if (party.srq->posted() < party.srq_limit)
    fail(nullptr, "an SRQ has fewer receives than its limit, and raises no event");
}

// Polls, or arms the CQ without a look and sleeps: what came since the last poll must wake it at once.
void MixedProgram::listen(Party& party) {
  hear(party);
  const bool may_sleep = !party.is_armed && !party.is_told && party.cq->pending() != 0;
  if (may_sleep && random_.chance(100'000)) {
    arm(party);
    party.is_asleep = true;
    party.asleep_since = world_->now();
  }
  if (!party.is_asleep) return poll(party);
  if (world_->now() - party.asleep_since > kWakes)
    fail(nullptr, "a CQ is armed over unread completions and raises no event");
}

}  // namespace roci::sim::mixed
