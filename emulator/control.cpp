#include "emulator/control.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "emulator/control_objects.h"

namespace roci::emulator {
namespace {

// ---- contexts --------------------------------------------------------------------------------------

Context* find_context(Shard& shard, ContextId id) {
  const auto found = std::find_if(shard.contexts.begin(), shard.contexts.end(),
                                  [&](const auto& context) { return context->id == id; });
  return found == shard.contexts.end() ? nullptr : found->get();
}

Outcome open_context(Shard& shard, const OpenContext& command) {
  if (command.nic.index >= shard.nics.size()) return refuse(std::errc::no_such_device);
  if (!fits<ControlArea>(command.control_area, kControlAreaBytes)) return refuse(std::errc::invalid_argument);
  auto context = std::make_unique<Context>();
  // Unique over all shards, as each gives out its own residue.
  context->id = {shard.next_context++ * shard.config.shard_count + shard.config.shard};
  context->nic = command.nic;
  context->client = command.client;
  context->control = new (command.control_area.data()) ControlArea{};
  context->control->magic = kControlMagic;
  context->control->version = kControlVersion;
  std::fill(std::begin(context->control->qp_state), std::end(context->control->qp_state),
            static_cast<std::uint8_t>(QpState::kDestroyed));
  context->port_events.context = context->id;
  context->port_events.user_handle = 1;  // port number
  const ContextId id = context->id;
  shard.contexts.push_back(std::move(context));
  return {{}, id};
}

Outcome close_context(Shard& shard, Context& context) {
  cancel_ahs(shard, context);
  for (const std::uint32_t handle : context.qps.handles()) {
    Qp& qp = *context.qps.find(handle);
    detach_all(shard.nic_of(qp), qp);
    remove_qp(shard, qp);
  }
  for (const std::uint32_t handle : context.ahs.handles())
    static_cast<void>(destroy_ah(shard, context, {handle}));
  for (const std::uint32_t handle : context.cqs.handles())
    static_cast<void>(destroy_cq(shard, context, {handle}));
  for (const std::uint32_t handle : context.srqs.handles())
    static_cast<void>(destroy_srq(shard, context, {handle}));
  for (const std::uint32_t handle : context.windows.handles())
    static_cast<void>(dealloc_mw(shard, context, {handle}));
  for (const std::uint32_t handle : context.regions.handles())
    static_cast<void>(dereg_mr(shard, context, {handle}));
  for (const std::uint32_t handle : context.pds.handles())
    static_cast<void>(dealloc_pd(shard, context, {handle}));
  const auto found = std::find_if(shard.contexts.begin(), shard.contexts.end(),
                                  [&](const auto& one) { return one.get() == &context; });
  shard.contexts.erase(found);
  return {};
}

// ---- dispatch --------------------------------------------------------------------------------------

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::optional<Outcome> dispatch(Shard& shard, Context& context, CommandId id, Command& command, Time now) {
  return std::visit(
      Overloaded{
          [](const OpenContext&) -> std::optional<Outcome> { return refuse(std::errc::invalid_argument); },
          [](const ChangeAddresses&) -> std::optional<Outcome> {
            return refuse(std::errc::invalid_argument);
          },
          [](const Inspect&) -> std::optional<Outcome> { return refuse(std::errc::invalid_argument); },
          [&](const CloseContext&) -> std::optional<Outcome> { return close_context(shard, context); },
          [&](const AllocPd&) -> std::optional<Outcome> { return alloc_pd(shard, context); },
          [&](const DeallocPd& c) -> std::optional<Outcome> { return dealloc_pd(shard, context, c.pd); },
          [&](const RegMr& c) -> std::optional<Outcome> { return reg_mr(shard, context, c); },
          [&](const DeregMr& c) -> std::optional<Outcome> { return dereg_mr(shard, context, c.mr); },
          [&](const CreateSrq& c) -> std::optional<Outcome> { return create_srq(shard, context, c); },
          [&](const ModifySrq& c) -> std::optional<Outcome> { return modify_srq(shard, context, c); },
          [&](const QuerySrq& c) -> std::optional<Outcome> { return query_srq(context, c.srq); },
          [&](const DestroySrq& c) -> std::optional<Outcome> { return destroy_srq(shard, context, c.srq); },
          [&](const AllocMw& c) -> std::optional<Outcome> { return alloc_mw(shard, context, c); },
          [&](const DeallocMw& c) -> std::optional<Outcome> { return dealloc_mw(shard, context, c.mw); },
          [&](const CreateCq& c) -> std::optional<Outcome> { return create_cq(shard, context, c); },
          [&](const ResizeCq& c) -> std::optional<Outcome> { return resize_cq(shard, context, c); },
          [&](const DestroyCq& c) -> std::optional<Outcome> { return destroy_cq(shard, context, c.cq); },
          [&](const CreateQp& c) -> std::optional<Outcome> { return create_qp(shard, context, c); },
          [&](const ModifyQp& c) -> std::optional<Outcome> { return modify_qp(shard, context, id, c, now); },
          [&](const QueryQp& c) -> std::optional<Outcome> { return query_qp(context, c.qp); },
          [&](const DestroyQp& c) -> std::optional<Outcome> { return destroy_qp(shard, context, c.qp); },
          [&](const CreateAh& c) -> std::optional<Outcome> { return create_ah(shard, context, id, c, now); },
          [&](const AttachMulticast& c) -> std::optional<Outcome> { return attach(shard, context, c, now); },
          [&](const DetachMulticast& c) -> std::optional<Outcome> { return detach(shard, context, c); },
          [&](const DestroyAh& c) -> std::optional<Outcome> { return destroy_ah(shard, context, c.ah); },
      },
      command.body);
}

// Answers those that need wait no longer.
template <class Pending>
void resume_all(Shard& shard, std::vector<Pending>& waiting, Time now) {
  std::erase_if(waiting, [&](const Pending& one) {
    std::optional<Outcome> outcome = resume(shard, one, now);
    if (outcome.has_value()) shard.replies.push_back({one.id, outcome->error, std::move(outcome->body)});
    return outcome.has_value();
  });
}

}  // namespace

void execute(Shard& shard, CommandId id, Command&& command, Time now) {
  std::optional<Outcome> outcome;
  if (const auto* open = std::get_if<OpenContext>(&command.body)) {
    outcome = open_context(shard, *open);
  } else if (std::holds_alternative<Inspect>(command.body)) {
    outcome = inspect(shard);
  } else if (const auto* change = std::get_if<ChangeAddresses>(&command.body)) {
    change_addresses(shard, change->nic, change->addresses);
    outcome = Outcome{};
  } else if (Context* const context = find_context(shard, command.context); context != nullptr) {
    outcome = dispatch(shard, *context, id, command, now);
  } else {
    outcome = refuse(std::errc::bad_file_descriptor);
  }
  if (outcome.has_value()) shard.replies.push_back({id, outcome->error, std::move(outcome->body)});
}

void refresh_paths(Shard& shard, const Nic& nic) {
  for (const auto& context : shard.contexts) {
    if (context->nic != nic.id) continue;
    context->qps.for_each([&](Qp& qp) {
      if (qp.headers.size() == 0) return;  // not connected
      if (const auto mac = nic.neighbours.lookup(qp.attributes.av.dgid)) set_path(shard, qp, *mac);
    });
    context->ahs.for_each([&](AddressHandle& ah) {
      if (const auto mac = nic.neighbours.lookup(ah.av.dgid)) set_headers(ah, nic, *mac);
    });
  }
}

void change_addresses(Shard& shard, NicId id, std::span<const NicAddress> addresses) {
  if (id.index >= shard.nics.size()) return;
  Nic& nic = *shard.nics[id.index];
  NicConfig& config = shard.config.nics[id.index];
  config.addresses.assign(addresses.begin(), addresses.end());
  const std::vector<proto::Gid> before = std::exchange(nic.gids, gid_table(config));
  nic.neighbours.change_addresses(config);
  if (before == nic.gids) return;  // a prefix changed at most
  for (const auto& other : shard.nics)
    other->neighbours.follow_station(nic.mac, before, nic.gids);
  for (const auto& context : shard.contexts) {
    if (context->nic != id) continue;
    context->qps.for_each(
        [&](Qp& qp) { qp.source_is_gone = qp.headers.size() != 0 && !nic.has(qp.local_gid); });
    context->ahs.for_each([&](AddressHandle& ah) { ah.source_is_gone = !nic.has(ah.source); });
    shard.events.raise(context->port_events, EventKind::kGidChange);
  }
}

void resume_commands(Shard& shard, Time now) {
  resume_all(shard, shard.creating_ahs, now);
  resume_all(shard, shard.modifying, now);
}

}  // namespace roci::emulator
