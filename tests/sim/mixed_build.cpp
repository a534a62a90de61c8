// Mixed programs: hosts, contexts, QPs and what connects them.
#include <algorithm>
#include <utility>

#include "tests/sim/mixed_state.h"

namespace roci::sim::mixed {

void MixedProgram::build() {
  world_ = std::make_unique<World>(config_);
  for (unsigned host = 0; host < config_.hosts; ++host) {
    for (unsigned nic = 0; nic < config_.nics; ++nic) {
      for (unsigned shard = 0; shard < config_.shards; ++shard)
        add_party(host, nic, shard);
    }
  }
  const unsigned connections = random_.between32(1, 2 * options_.max_connections);
  for (unsigned i = 0; i < connections; ++i)
    connect();
  for (const std::unique_ptr<Party>& party : parties_) {
    if (random_.chance(500'000)) add_datagram_end(*party, QpType::kUd);
  }
  for (std::size_t i = 0; i < parties_.size(); i += config_.shards) {  // QP1 is on shard 0
    if (random_.chance(500'000)) add_datagram_end(*parties_[i], QpType::kGsi);
  }
}

void MixedProgram::add_party(unsigned host, unsigned nic, unsigned shard) {
  parties_.push_back(std::make_unique<Party>());
  Party& party = *parties_.back();
  party.host = host;
  party.nic = nic;
  party.client = &world_->add_client(host, shard, nic);
  party.cq = party.client->create_cq(4000);
  party.srq = party.client->create_srq(party.srq_max_wr);
  party.arena = party.client->new_mr(kSlots * kSlotBytes);
  for (std::uint32_t i = 0; i < kSlots; ++i)
    party.free_slots.push_back(i);
  party.counter = party.client->new_mr(8);
}

End& MixedProgram::add_end(Party& party, QpType type, const char* kind) {
  ends_.push_back(std::make_unique<End>());
  End& end = *ends_.back();
  end.name = std::string(kind) + " QP " + std::to_string(ends_.size());
  end.party = &party;
  end.type = type;
  end.uses_srq = type != QpType::kUc && random_.chance(400'000);
  end.signal_all = random_.chance(200'000);
  QpOptions options;
  options.capabilities = {kQueue, end.uses_srq ? 0 : kQueue, 3, end.uses_srq ? 0U : 3U, 64};
  options.signal_all = end.signal_all;
  options.type = type;
  if (end.uses_srq) options.srq = party.srq->handle();
  end.qp = party.client->create_qp(*party.cq, *party.cq, options);
  end.to_post = std::max(1U, options_.operations / 3);
  if (!by_qpn_.emplace(std::pair{&party, end.qp->qpn().value()}, &end).second)
    fail(&end, "the QPN is in use");
  return end;
}

void MixedProgram::add_target(End& end) {
  Client& client = *end.party->client;
  end.target_segment = client.allocate(kTargetBytes);
  fill_noise(random_, client.bytes(end.target_segment, kTargetBytes));
  const std::span<std::byte> bytes = client.bytes(end.target_segment, kTargetBytes);
  end.model.assign(bytes.begin(), bytes.end());
  end.target = client.reg_mr(end.target_segment, kTargetBytes,
                             Client::kAllRights | kAccessMwBind | kAccessFlushGlobal);
  if (end.type != QpType::kRc) return;
  end.mw_type = random_.chance(500'000) ? MwType::kType1 : MwType::kType2;
  end.mw = client.alloc_mw(end.mw_type);
  end.window = Window::kFree;
}

void MixedProgram::connect() {
  Party& left = *parties_[random_.index(parties_.size())];
  Party& right = *parties_[random_.index(parties_.size())];
  if (left.host == right.host && left.nic == right.nic) return;
  const QpType type = random_.chance(600'000) ? QpType::kRc : QpType::kUc;
  End& a = add_end(left, type, type == QpType::kRc ? "RC" : "UC");
  End& b = add_end(right, type, type == QpType::kRc ? "RC" : "UC");
  a.peer = &b;
  b.peer = &a;
  const bool ipv6 = random_.chance(400'000);
  ConnectOptions to_b, to_a;
  to_b.dgid = World::gid(right.host, right.nic, ipv6);
  to_a.dgid = World::gid(left.host, left.nic, ipv6);
  to_b.dest_qpn = b.qp->qpn();
  to_a.dest_qpn = a.qp->qpn();
  to_b.sq_psn = to_a.rq_psn = proto::Psn{0xFFFFFF - random_.between32(0, 400)};
  to_a.sq_psn = to_b.rq_psn = proto::Psn{random_.between32(0, 0xFFFFFF)};
  for (ConnectOptions* one : {&to_a, &to_b}) {
    one->mtu = mtu_;
    if (type == QpType::kRc) one->access |= kAccessFlushGlobal;
    one->sgid_index = ipv6 ? 2 : 1;
    one->min_rnr_timer = static_cast<std::uint8_t>(random_.between32(1, 14));
    one->timeout = static_cast<std::uint8_t>(random_.between32(12, 14));
  }
  left.client->connect(*a.qp, to_b);
  right.client->connect(*b.qp, to_a);
  add_target(a);
  add_target(b);
}

proto::Qkey MixedProgram::qkey_of(QpType type) { return type == QpType::kGsi ? kGsiQkey : kQkey; }

void MixedProgram::add_datagram_end(Party& party, QpType type) {
  End& end = add_end(party, type, type == QpType::kGsi ? "GSI" : "UD");
  for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    const std::errc error =
        party.client->to_datagram_state(*end.qp, state, qkey_of(type), proto::Psn{0xFFFFF0});
    if (error != std::errc{}) fail(&end, "a transition is refused");
  }
  end.in_group = type == QpType::kUd && random_.chance(600'000);
  if (end.in_group &&
      party.client->transact(AttachMulticast{end.qp->handle(), group()}).error != std::errc{}) {
    fail(&end, "attaching is refused");
  }
}

proto::Gid MixedProgram::group() { return proto::Gid::from_ipv4(0xEF010203); }

std::optional<AhHandle> MixedProgram::find_handle(const Party& from, const proto::Gid& gid) const {
  const auto found = std::find_if(handles_.begin(), handles_.end(), [&](const MadeHandle& one) {
    return one.party == &from && one.gid == gid;
  });
  return found == handles_.end() ? std::nullopt : std::optional{found->ah};
}

void MixedProgram::make_handle(const WantedHandle& wanted) {
  if (find_handle(*wanted.party, wanted.gid).has_value()) return;  // wanted twice
  AddressVector av;
  av.dgid = wanted.gid;
  av.is_global = true;
  av.sgid_index = wanted.ipv6 ? 2 : 1;
  handles_.push_back({wanted.party, wanted.gid, wanted.party->client->create_ah(av)});
}

}  // namespace roci::sim::mixed
