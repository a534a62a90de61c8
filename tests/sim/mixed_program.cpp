#include "tests/sim/mixed_program.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/sim/mixed_state.h"

namespace roci::sim::mixed {

using std::chrono::microseconds;
using std::chrono::seconds;

ProgramResult MixedProgram::run() {
  choose();
  build();
  world_->set_application([this](Time now) { return application(now); });
  last_progress_ = world_->now();
  const auto over = [&] { return !result_.ok() || done() || world_->now() - last_progress_ > kHang; };
  while (result_.ok() && !done() && world_->now() - last_progress_ <= kHang) {
    // A command must not be given within a step.
    const Time until = world_->now() + microseconds(random_.between32(20, 2000));
    const bool goes_on = world_->run_until([&] { return over() || world_->now() >= until; }, seconds(3600));
    if (!goes_on) world_->run_for(microseconds(50));
    if (result_.ok()) disturb();
  }
  if (result_.ok() && !done()) fail(nullptr, "hangs" + describe());
  if (result_.ok()) {
    world_->set_application({});
    world_->run_for(seconds(1));
    for (const std::unique_ptr<Party>& party : parties_)
      poll(*party);
    check_end();
  }
  collect(*world_, config_, result_);
  return result_;
}

void MixedProgram::fail(const End* end, const std::string& what) {
  if (result_.failure.empty()) result_.failure = (end == nullptr ? std::string{} : end->name + ": ") + what;
}

void MixedProgram::choose() {
  config_.seed = random_.next();
  config_.shards = options_.shards;
  config_.hosts = random_.between32(2, 4);
  config_.nics = random_.between32(1, 2);
  config_.static_neighbours = random_.chance(700'000);
  config_.transmit_burst = random_.between32(1, 64);
  config_.window_packets = random_.between32(4, 200);
  choose_faults(config_, options_, random_.fork());
  constexpr proto::PathMtu kMtus[] = {proto::PathMtu::k256, proto::PathMtu::k512, proto::PathMtu::k1024,
                                      proto::PathMtu::k2048, proto::PathMtu::k4096};
  mtu_ = kMtus[random_.index(5)];
  eagerness_ = random_.between32(50'000, 900'000);
  const auto& rates = config_.link.per_million;
  repeats_ = rates[static_cast<std::size_t>(Fault::kDuplicate)] != 0;
  keeps_order_ = !repeats_ && rates[static_cast<std::size_t>(Fault::kReorder)] == 0;
  result_.setting = std::to_string(config_.hosts) + " hosts, " + std::to_string(config_.nics) + " NICs, " +
                    std::to_string(config_.shards) + " shards, MTU " + std::to_string(proto::bytes_of(mtu_)) +
                    ", " + describe_faults(config_);
}

Time MixedProgram::application(Time now) {
  for (const std::unique_ptr<Party>& party : parties_) {
    listen(*party);
    if (!result_.ok()) return kNever;
  }
  for (const std::unique_ptr<End>& end : ends_) {
    if (end->is_gone || end->party->is_asleep) continue;
    for (int i = 0; i < 4 && random_.chance(eagerness_) && result_.ok(); ++i)
      post(*end);
    if (!end->is_broken && !end->uses_srq && random_.chance(eagerness_ / 2)) {
      for (std::size_t i = random_.index(4) + 1; i != 0; --i)
        post_receive(*end->party, end.get());
    }
  }
  for (const std::unique_ptr<Party>& party : parties_) {
    if (party->is_asleep || party->awaits_limit || !random_.chance(eagerness_ / 2)) continue;
    for (std::size_t i = random_.index(6) + 1; i != 0 && party->srq->posted() < party->srq_max_wr; --i)
      post_receive(*party, nullptr);
  }
  const bool wants = std::any_of(ends_.begin(), ends_.end(), [](const std::unique_ptr<End>& end) {
    return !end->is_gone && (end->to_post != 0 || !end->expected.empty());
  });
  return wants ? now + microseconds(random_.between32(1, 100)) : kNever;
}

bool MixedProgram::done() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const std::unique_ptr<End>& end) {
    return end->is_gone ||
           (end->is_broken ? end->pending.empty() && end->posted.empty()
                           : end->to_post == 0 && end->pending.empty() && end->expected.empty());
  });
}

std::string MixedProgram::describe() const {
  std::string text;
  for (const std::unique_ptr<End>& end : ends_) {
    if (end->is_gone) continue;
    text += "\n  " + end->name + (end->is_broken ? " (broken)" : "") + ": to post " +
            std::to_string(end->to_post) + ", pending " + std::to_string(end->pending.size()) +
            ", receives " + std::to_string(end->posted.size()) + ", messages to come " +
            std::to_string(end->expected.size()) + ", state " +
            std::to_string(static_cast<unsigned>(end->qp->state()));
  }
  return text;
}

void MixedProgram::check_end() {
  for (const std::unique_ptr<End>& end : ends_) {
    if (end->is_gone || end->is_broken || end->peer == nullptr) continue;
    if (end->qp->state() != QpState::kRts) fail(end.get(), "is not in RTS at the end");
    const std::span<std::byte> target = end->party->client->bytes(end->target_segment, kTargetBytes);
    if (end->type == QpType::kRc) {
      if (!std::equal(target.begin(), target.end(), end->model.begin()))
        fail(end.get(), "a byte of its target is wrong");
    } else {
      check_written(*end, target);
    }
  }
  for (const std::unique_ptr<Party>& party : parties_) {
    if (party->cq->pending() != 0) fail(nullptr, "completions are left over");
    check_counter(*party);
  }
  for (unsigned host = 0; host < config_.hosts; ++host) {
    for (unsigned shard = 0; shard < config_.shards; ++shard) {
      for (std::uint8_t nic = 0; nic < config_.nics; ++nic) {
        const Counters& counters = world_->engine(host, shard).counters({nic});
        if (counters.dropped[static_cast<std::size_t>(DropReason::kBadQkey)] != 0)
          fail(nullptr, "a datagram came with a wrong Q_Key");
      }
    }
  }
}

// UC: each packet of a WRITE is there or not; what no WRITE named is as it was.
void MixedProgram::check_written(End& end, std::span<std::byte> target) {
  for (const Message& message : end.sent) {
    if (!message.is_write) continue;
    std::vector<std::byte> wanted(message.length);
    write_content(message.tag, wanted);
    for (std::uint32_t at = 0; at < message.length; at += proto::bytes_of(mtu_)) {
      const std::uint32_t bytes = std::min<std::uint32_t>(proto::bytes_of(mtu_), message.length - at);
      const std::byte* const now = target.data() + message.offset + at;
      if (std::memcmp(now, wanted.data() + at, bytes) != 0 &&
          std::memcmp(now, end.model.data() + message.offset + at, bytes) != 0) {
        return fail(&end, "a packet of a WRITE is there in part");
      }
    }
  }
  if (!std::equal(target.begin() + end.written, target.end(), end.model.begin() + end.written))
    fail(&end, "bytes that no WRITE names have changed");
}

void MixedProgram::check_counter(Party& party) {
  std::uint64_t value = 0;
  std::memcpy(&value, party.client->bytes(party.counter, 0, 8).data(), 8);
  std::sort(party.originals.begin(), party.originals.end());
  if (std::adjacent_find(party.originals.begin(), party.originals.end()) != party.originals.end())
    return fail(nullptr, "two ATOMICs got the same value");
  const bool fits = value >= party.originals.size() && value <= party.originals.size() + party.uncertain;
  if (!fits) fail(nullptr, "a counter that ATOMICs add to has a wrong sum");
}

}  // namespace roci::sim::mixed

namespace roci::sim {

ProgramResult run_mixed_program(const ProgramOptions& options) { return mixed::MixedProgram(options).run(); }

}  // namespace roci::sim
