#include <memory>
#include <span>
#include <vector>

#include "emulator/address_handle.h"
#include "emulator/control_objects.h"
#include "emulator/multicast.h"

namespace roci::emulator {
namespace {

constexpr std::uint8_t kServiceLevels = 8;  // the others are reserved [IBTA CA16-18, A17.4.2]

// All checks are done and it is counted. Nothing: the neighbour is being asked.
std::optional<Outcome> try_create_ah(Shard& shard, Context& context, Pd& pd, const AddressVector& av,
                                     bool is_waiting, Time now) {
  Nic& nic = *shard.nics[context.nic.index];
  Resolution found = resolve(nic.neighbours, av.dgid, is_waiting, now);
  if (is_waiting && check_address(nic, av) != std::errc{})  // the source address went meanwhile
    found = {std::nullopt, std::errc::invalid_argument};
  if (found.mac.has_value()) {
    auto owned = std::make_unique<AddressHandle>();
    owned->pd = &pd;
    owned->handle = context.ahs.next_handle();
    owned->av = av;
    owned->source = nic.gids[av.sgid_index];
    set_headers(*owned, nic, *found.mac);
    return Outcome{{}, AhHandle{context.ahs.add(std::move(owned)).handle}};
  }
  if (found.error == std::errc{}) return std::nullopt;
  --nic.ah_count;
  --pd.users;
  return refuse(found.error);
}

std::errc detach(Nic& nic, Qp& qp, const proto::Gid& group) {
  const auto [error, is_last, is_done] = nic.groups.detach(group, qp);
  qp.attachments -= is_done ? 1U : 0U;
  if (is_last) nic.neighbours.leave(group);
  return error;
}

}  // namespace

std::errc check_address(const Nic& nic, const AddressVector& av) {
  const bool is_ok = av.is_global &&  // [IBTA A17.4.2]
                     av.port == 1 && av.sgid_index < nic.gids.size() &&
                     nic.gids[av.sgid_index] != proto::Gid{} &&
                     nic.gids[av.sgid_index].is_ipv4() == av.dgid.is_ipv4() && av.dgid != proto::Gid{} &&
                     av.service_level < kServiceLevels;
  return is_ok ? std::errc{} : std::errc::invalid_argument;
}

Resolution resolve(NeighbourCache& neighbours, const proto::Gid& gid, bool is_waiting, Time now) {
  if (const std::optional<proto::Mac> mac = neighbours.lookup(gid)) return {mac, {}};
  switch (is_waiting ? neighbours.state(gid) : neighbours.request(gid, now)) {
    case NeighbourState::kUnreachable:
      return {std::nullopt, std::errc::network_unreachable};
    case NeighbourState::kFailed:
      return {std::nullopt, std::errc::timed_out};
    case NeighbourState::kUnknown:  // its entry gave way to others
      neighbours.request(gid, now);
      break;
    case NeighbourState::kKnown:
    case NeighbourState::kPending:
      break;
  }
  return {};
}

// ---- address handles -------------------------------------------------------------------------------

void set_headers(AddressHandle& ah, const Nic& nic, proto::Mac destination) {
  ah.headers = proto::HeaderTemplate{path_to(ah.av, ah.source, nic.mac, destination), {}};
}

std::optional<Outcome> create_ah(Shard& shard, Context& context, CommandId id, const CreateAh& command,
                                 Time now) {
  Pd* const pd = context.pds.find(command.pd.value);
  if (pd == nullptr) return refuse(std::errc::invalid_argument);
  AddressVector av = command.av;
  // A handle made from a completion has the packet's kind there (datagram.cpp).
  av.service_level %= kServiceLevels;
  Nic& nic = *shard.nics[context.nic.index];
  if (const std::errc error = check_address(nic, av); error != std::errc{}) return refuse(error);
  if (nic.ah_count == shard.config.limits.max_ah) return refuse(std::errc::not_enough_memory);
  ++nic.ah_count;
  ++pd->users;
  std::optional<Outcome> outcome = try_create_ah(shard, context, *pd, av, false, now);
  if (!outcome.has_value()) shard.creating_ahs.push_back({id, &context, pd, av});
  return outcome;
}

// Never busy [IBTA 11.2.2].
Outcome destroy_ah(Shard& shard, Context& context, AhHandle handle) {
  const AddressHandle* const ah = context.ahs.find(handle.value);
  if (ah == nullptr) return refuse(std::errc::invalid_argument);
  --ah->pd->users;
  --shard.nics[context.nic.index]->ah_count;
  context.ahs.remove(handle.value);
  return {};
}

void cancel_ahs(Shard& shard, const Context& context) {
  for (std::size_t i = shard.creating_ahs.size(); i-- > 0;) {
    const PendingAh& waiting = shard.creating_ahs[i];
    if (waiting.context != &context) continue;
    --waiting.pd->users;
    --shard.nics[context.nic.index]->ah_count;
    shard.replies.push_back({waiting.id, std::errc::operation_canceled, std::monostate{}});
    shard.creating_ahs.erase(shard.creating_ahs.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::optional<Outcome> resume(Shard& shard, const PendingAh& waiting, Time now) {
  return try_create_ah(shard, *waiting.context, *waiting.pd, waiting.av, true, now);
}

// ---- multicast -------------------------------------------------------------------------------------

Outcome attach(Shard& shard, Context& context, const AttachMulticast& command, Time now) {
  Qp* const qp = context.qps.find(command.qp.value);
  if (qp == nullptr || qp->type != QpType::kUd || !is_multicast(command.group))
    return refuse(std::errc::invalid_argument);
  Nic& nic = shard.nic_of(*qp);
  const auto [error, is_first, is_new] = nic.groups.attach(
      command.group, *qp, shard.config.limits.max_mcast_grp, shard.config.limits.max_mcast_qp_attach);
  if (error != std::errc{}) return refuse(error);
  qp->attachments += is_new ? 1U : 0U;
  if (is_first) nic.neighbours.join(command.group, now);
  return {};
}

Outcome detach(Shard& shard, Context& context, const DetachMulticast& command) {
  Qp* const qp = context.qps.find(command.qp.value);
  if (qp == nullptr) return refuse(std::errc::invalid_argument);
  return refuse(detach(shard.nic_of(*qp), *qp, command.group));
}

void detach_all(Nic& nic, Qp& qp) {
  const std::span<const proto::Gid> all = nic.groups.groups();
  const std::vector<proto::Gid> groups(all.begin(), all.end());
  for (const proto::Gid& group : groups) {
    if (qp.attachments == 0) return;
    static_cast<void>(detach(nic, qp, group));  // it need not be in each
  }
}

}  // namespace roci::emulator
