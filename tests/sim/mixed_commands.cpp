// Mixed programs: what is resized, armed, destroyed and made anew amid the traffic.
#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/sim/mixed_state.h"

namespace roci::sim::mixed {

void MixedProgram::disturb() {
  for (const WantedHandle& one : std::exchange(wanted_handles_, {})) {
    if (!has_lost_sends(*one.party)) make_handle(one);
  }
  if (random_.chance(30'000)) {
    Party& party = *parties_[random_.index(parties_.size())];
    party.old_rings.push_back(party.client->resize(*party.cq, random_.between32(3000, 8000)));
    fill_noise(random_, party.old_rings.back().bytes());
  }
  for (const std::unique_ptr<Party>& party : parties_) {
    if (random_.chance(150'000)) change_srq(*party);
    if (!result_.ok()) return;
  }
  if (random_.chance(300'000) && !handles_.empty()) retire_handle();
  if (result_.ok()) destroy_handles();
  if (random_.chance(10'000)) break_connection();
  for (const std::unique_ptr<End>& end : ends_) {
    if (end->is_broken && !end->is_gone && end->peer != nullptr) bury(*end);
    if (end->has_failed && !end->is_broken && end->pending.empty()) resume(*end);
  }
}

// A datagram QP goes on when what stood behind the failure is flushed.
void MixedProgram::resume(End& end) {
  if (end.qp->state() != QpState::kSqe) return fail(&end, "a send fails, and the QP is not in SQE");
  if (end.party->client->to_state(*end.qp, QpState::kRts) != std::errc{})
    return fail(&end, "leaving SQE is refused");
  end.has_failed = false;
}

// Moves it, or arms its limit. What does not fit is refused, and changes nothing.
void MixedProgram::change_srq(Party& party) {
  hear(party);  // by now; the command comes next
  if (!result_.ok()) return;
  const std::uint32_t limit_now = party.srq_limit;
  const CommandReply reply = party.client->transact(QuerySrq{party.srq->handle()});
  hear(party);
  if (!result_.ok()) return;
  const QuerySrqReply& now = std::get<QuerySrqReply>(reply.body);
  if (now.max_wr != party.srq_max_wr || now.limit != limit_now)
    return fail(nullptr, "query_srq tells another size or limit");
  const std::uint32_t posted = party.srq->posted();
  if (random_.chance(500'000)) {
    const std::uint32_t max_wr = random_.between32(4, kQueue * 4);
    const bool fits = max_wr >= posted && max_wr >= party.srq_limit;
    RingMemory old;
    const std::errc error = party.srq->resize(*party.client, max_wr, &old);
    if ((error == std::errc{}) != fits) return fail(nullptr, "resizing an SRQ is judged wrongly");
    if (!fits) return;
    party.srq_max_wr = max_wr;
    party.old_rings.push_back(std::move(old));
    fill_noise(random_, party.old_rings.back().bytes());
  } else {
    const std::uint32_t soon = posted - std::min(posted, random_.between32(0, 2));
    const std::uint32_t limit = random_.chance(500'000) ? soon : random_.between32(0, party.srq_max_wr + 1);
    const bool fits = limit <= party.srq_max_wr;
    if (fits) {
      party.srq_limit = limit;
      party.awaits_limit = limit != 0 && random_.chance(500'000);
    }
    if ((party.srq->set_limit(*party.client, limit) == std::errc{}) != fits)
      return fail(nullptr, "the limit of an SRQ is judged wrongly");
    hear(party);
  }
}

// The next datagram makes another. Some have just been posted by it.
void MixedProgram::retire_handle() {
  const auto one = handles_.begin() + static_cast<std::ptrdiff_t>(random_.index(handles_.size()));
  for (const std::unique_ptr<End>& end : ends_) {
    const bool posts = end->party == one->party && end->peer == nullptr && !end->party->is_asleep;
    for (int i = 0; posts && i < 4 && random_.chance(500'000); ++i)
      post(*end);
  }
  retired_handles_.push_back(*one);
  handles_.erase(one);
}

// A handle goes when no send uses it, though what was sent by it may be under way; or amid them, and what
// is not sent by then fails.
void MixedProgram::destroy_handles() {
  for (const MadeHandle& handle : std::exchange(retired_handles_, {})) {
    const auto each_use = [&](auto&& visit) {
      for (const std::unique_ptr<End>& end : ends_) {
        for (Pending& one : end->pending) {
          if (end->party == handle.party && one.ah.has_value() && one.ah->value == handle.ah.value)
            visit(one);
        }
      }
    };
    bool is_used = false;
    each_use([&](Pending&) { is_used = true; });
    if (is_used && !random_.chance(600'000)) {
      retired_handles_.push_back(handle);
      continue;
    }
    poll(*handle.party);  // what was sent so far
    if (!result_.ok()) return;
    each_use([](Pending& one) { one.has_lost_handle = true; });
    if (handle.party->client->destroy(handle.ah) != std::errc{})
      return fail(nullptr, "destroying an address handle is refused");
  }
}

// Its queued sends name handles by numbers that the next handle may get.
bool MixedProgram::has_lost_sends(const Party& party) const {
  return std::any_of(ends_.begin(), ends_.end(), [&](const std::unique_ptr<End>& end) {
    return end->party == &party && end->qp->send_queued() != 0 &&
           std::any_of(end->pending.begin(), end->pending.end(),
                       [](const Pending& one) { return one.has_lost_handle; });
  });
}

void MixedProgram::break_connection() {
  End& end = *ends_[random_.index(ends_.size())];
  if (end.peer == nullptr || end.is_broken || end.peer->is_broken) return;
  end.is_broken = end.peer->is_broken = true;
  if (random_.chance(500'000)) {
    destroy(end);
  } else if (end.party->client->to_state(*end.qp, QpState::kErr) != std::errc{}) {
    return fail(&end, "modify to ERR is refused");
  }
  if (result_.ok() && end.peer->party->client->to_state(*end.peer->qp, QpState::kErr) != std::errc{})
    fail(end.peer, "modify to ERR is refused");
  if (random_.chance(800'000)) connect();
}

// A broken QP has told everything: it goes, and its memory.
void MixedProgram::bury(End& end) {
  poll(*end.party);
  // What was done unsignaled before the QP broke is not told.
  const bool all_silent = std::none_of(end.pending.begin(), end.pending.end(),
                                       [](const Pending& one) { return one.is_signaled; });
  if (all_silent && end.qp->send_queued() == 0 && !end.has_failed) {
    for (const Pending& one : std::exchange(end.pending, {}))
      finish(end, one, true);
  }
  if (result_.ok() && end.pending.empty() && end.posted.empty()) destroy(end);
}

void MixedProgram::destroy(End& end) {
  Party& party = *end.party;
  const std::errc error = party.client->destroy(*end.qp).error;
  if (error != std::errc{})
    return fail(&end, "destroy is refused with errno " + std::to_string(static_cast<int>(error)));
  poll(party);  // what came before the reply
  if (!result_.ok()) return;
  by_qpn_.erase({&party, end.qp->qpn().value()});
  end.is_gone = true;
  for (const Pending& one : end.pending) {
    if (one.adds) ++end.peer->party->uncertain;
    if (!one.is_local) party.free_slots.push_back(one.slot);
  }
  end.pending.clear();
  for (const std::uint64_t id : end.posted) {
    party.free_slots.push_back(receives_.at(id).slot);
    receives_.erase(id);
  }
  end.posted.clear();
  if (end.window != Window::kNone && party.client->transact(DeallocMw{end.mw.handle}).error != std::errc{}) {
    return fail(&end, "dealloc_mw is refused");
  }
  party.client->dereg_mr(end.target);
  party.client->memory().give_up(party.client->space(), end.target.address, end.target.length_bytes);
}

}  // namespace roci::sim::mixed
