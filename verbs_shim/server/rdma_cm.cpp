#include "verbs_shim/server/rdma_cm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include "emulator/engine.h"
#include "verbs_shim/server/context_commands.h"
#include "verbs_shim/server/rdma_cm_numbers.h"
#include "verbs_shim/server/show.h"
#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim {
namespace {

namespace cm = emulator::cm;
using emulator::QpState;
using nlohmann::json;
using ucm::Command;

constexpr auto kInvalid = proto::Unexpected{std::errc::invalid_argument};
constexpr std::uint32_t kFirstGroup = 0x80000000;  // so that no group is called as an id is
constexpr std::uint8_t kConsumerReject = 28;       // reason of a REJ [IBTA 12.6.7.2, consumer reject]
constexpr std::uint32_t kCommEst = 4;              // IBV_EVENT_COMM_EST

emulator::Time now() { return emulator::Time{std::chrono::steady_clock::now().time_since_epoch()}; }

// The core of a command; what an older library leaves out at its end is zero.
template <class T>
T as(std::span<const std::byte> bytes) {
  T value = zeroed<T>();
  std::memcpy(static_cast<void*>(&value), bytes.data(), std::min(sizeof value, bytes.size()));
  return value;
}

template <class T>
std::vector<std::byte> response_of(const T& value) {
  const auto bytes = bytes_of(value);
  return {bytes.begin(), bytes.end()};
}

cm::IdHandle handle(std::uint32_t id) { return {id}; }
cm::ClientId client(std::uint64_t channel) { return cm::ClientId{channel}; }

bool is_connect_request(const ucm::EventRecord& record) {
  return record.event == static_cast<std::uint32_t>(cm::EventKind::kConnectRequest);
}

emulator::Duration milliseconds(std::uint32_t count) { return std::chrono::milliseconds(count); }

}  // namespace

RdmaCm::RdmaCm(ContextHost& host, const std::uint64_t (&seed)[4])
    : host_(host),
      manager_(host.config().nics, seed),
      gsi_(host, [this](const cm::ReceivedMad& mad) { manager_.on_mad(mad, now()); }),
      next_group_(kFirstGroup) {}

// ---- the wire ----------------------------------------------------------------------------------------

void RdmaCm::on_completions() {
  gsi_.on_completions();
  hand_on();
}

void RdmaCm::on_timers() {
  manager_.on_timers(now());
  hand_on();
}

std::optional<std::chrono::steady_clock::time_point> RdmaCm::next_deadline() const {
  const emulator::Time deadline = manager_.next_deadline();
  if (deadline == emulator::kNever) return std::nullopt;
  return std::chrono::steady_clock::time_point{deadline.time_since_epoch()};
}

void RdmaCm::hand_on() {
  for (bool is_any = true; is_any;) {
    is_any = false;
    while (const auto mad = manager_.take_mad()) {
      gsi_.send(*mad);
      is_any = true;
    }
    while (const auto wanted = manager_.take_neighbour_request()) {
      is_any = true;
      // The answer may come at once, and then what follows from it is handed on here.
      const auto is_now = std::make_shared<bool>(true);
      gsi_.resolve(wanted->nic, wanted->to, [this, id = wanted->id, is_now](std::errc error) {
        manager_.on_neighbour(id, error, now());
        if (!*is_now) hand_on();
      });
      *is_now = false;
    }
    while (const auto event = manager_.take_event()) {
      tell(*event);
      is_any = true;
    }
  }
}

// ---- events ------------------------------------------------------------------------------------------

bool RdmaCm::write(std::uint64_t channel, const ucm::EventRecord& record) {
  Channel* const open = find_channel(channel);
  return open != nullptr && open->pipe.push(record);
}

void RdmaCm::count(bool is_written, std::uint32_t& events) {
  if (is_written) {
    ++events;
  } else {
    ++lost_events_;
  }
}

void RdmaCm::tell(const cm::Event& event) {
  ucm::EventRecord record = zeroed<ucm::EventRecord>();
  record.id = event.id.value;
  record.event = static_cast<std::uint32_t>(event.kind);
  record.status = event.status;
  const bool is_request = event.kind == cm::EventKind::kConnectRequest;
  const std::uint32_t about = is_request ? event.listener.value : event.id.value;
  const auto at = ids_.find(about);
  if (at == ids_.end()) return;
  Id& id = at->second;
  ucm::set_parameters(record, event);

  if (event.kind == cm::EventKind::kMulticastJoin || event.kind == cm::EventKind::kMulticastError) {
    const auto group = id.groups.find(static_cast<std::uint32_t>(event.multicast));
    if (group == id.groups.end()) return;
    record.id = group->first;
    record.uid = group->second.uid;
    count(write(id.channel, record), group->second.events);
    return;
  }
  // The library knows nothing of a connection before it has accepted it.
  if (id.uid == 0 && !is_request) return;
  record.uid = id.uid;
  const bool is_written = write(id.channel, record);
  count(is_written, id.events);
  if (!is_request) return;
  if (is_written) {
    Id request;
    request.channel = id.channel;
    request.listener = about;
    ids_.emplace(event.id.value, std::move(request));
  } else {
    static_cast<void>(manager_.destroy(event.client, event.id, now()));
  }
}

std::vector<ucm::EventRecord> RdmaCm::take_back(std::uint32_t id, Id& of) {
  auto taken = channels_.at(of.channel).pipe.take_out([&](const ucm::EventRecord& record) {
    if (!is_connect_request(record)) return record.id == id || of.groups.count(record.id) != 0;
    const auto request = ids_.find(record.id);
    return request != ids_.end() && request->second.listener == id;
  });
  // The application could write to its own pipe, so that more come back than were written.
  const auto uncount = [](std::uint32_t& events) { events -= std::min(events, 1U); };
  for (const ucm::EventRecord& record : taken) {
    const auto group = of.groups.find(record.id);
    uncount(group == of.groups.end() ? of.events : group->second.events);
  }
  return taken;
}

// ---- channels ----------------------------------------------------------------------------------------

proto::Result<UniqueFd, std::errc> RdmaCm::open(std::uint64_t channel, pid_t owner, std::uint64_t nics) {
  auto ends = make_pipe();
  if (!ends) return proto::Unexpected{ends.error()};
  const auto [at, added] = channels_.emplace(
      channel,
      Channel{owner, RecordPipe<ucm::EventRecord>(std::move(ends->writer), ends->inode, kMaxQueuedEvents)});
  if (!added) return kInvalid;
  at->second.watch = host_.watch(
      at->second.pipe.write_fd(),
      [this, channel] {
        if (const auto open = channels_.find(channel); open != channels_.end()) open->second.pipe.flush();
      },
      [this, channel] { reader_gone(channel); });
  manager_.open_client(client(channel), nics);
  return std::move(ends->reader);
}

void RdmaCm::close(std::uint64_t channel) {
  Channel* const open = find_channel(channel);
  if (open == nullptr) return;
  open->is_open = false;
  // A thread of the application that waits for an event when another closes the device goes on waiting, as
  // it does on a device: it must not see the pipe end.
  if (open->has_no_reader || lingering_ == kMaxLingering) {
    drop_pipe(channel);
  } else {
    ++lingering_;
  }
  std::vector<std::uint32_t> gone;
  for (const auto& [id, entry] : ids_)
    if (entry.channel == channel) gone.push_back(id);
  for (const std::uint32_t id : gone)
    remove(id);
  manager_.close_client(client(channel), now());
  hand_on();
}

bool RdmaCm::is_open(std::uint64_t channel) const {
  const auto at = channels_.find(channel);
  return at != channels_.end() && at->second.is_open;
}

RdmaCm::Channel* RdmaCm::find_channel(std::uint64_t channel) {
  const auto at = channels_.find(channel);
  return at != channels_.end() && at->second.is_open ? &at->second : nullptr;
}

void RdmaCm::reader_gone(std::uint64_t channel) {
  const auto at = channels_.find(channel);
  if (at == channels_.end()) return;
  at->second.has_no_reader = true;
  if (at->second.is_open) return;
  --lingering_;
  drop_pipe(channel);
}

void RdmaCm::drop_pipe(std::uint64_t channel) {
  const auto at = channels_.find(channel);
  host_.unwatch(at->second.watch);
  channels_.erase(at);
}

void RdmaCm::remove(std::uint32_t id) {
  const auto at = ids_.find(id);
  for (const auto& [group, entry] : at->second.groups)
    group_owner_.erase(group);
  ids_.erase(at);
}

proto::Result<RdmaCm::Id*, std::errc> RdmaCm::find(std::uint64_t channel, std::uint32_t id) {
  const auto at = ids_.find(id);
  if (at == ids_.end()) return proto::Unexpected{std::errc::no_such_file_or_directory};
  if (at->second.channel != channel) return kInvalid;
  return &at->second;
}

// ---- commands ----------------------------------------------------------------------------------------

const RdmaCm::Row* RdmaCm::find_row(std::uint32_t command) {
  constexpr std::size_t kEvents = sizeof(ucm::EventsReported), kIdResponse = sizeof(ucm::CreateIdResponse);
  static const Row kRows[] = {
      {Command::kCreateId, sizeof(ucm::CreateId), kIdResponse, &RdmaCm::create_id},
      {Command::kDestroyId, sizeof(ucm::DestroyId), kEvents, &RdmaCm::destroy_id},
      {Command::kBindIp, sizeof(ucm::BindIp), 0, &RdmaCm::bind_ip},
      {Command::kBind, sizeof(ucm::Bind), 0, &RdmaCm::bind},
      {Command::kResolveIp, sizeof(ucm::ResolveIp), 0, &RdmaCm::resolve_ip},
      {Command::kResolveAddress, sizeof(ucm::ResolveAddress), 0, &RdmaCm::resolve_address},
      {Command::kResolveRoute, sizeof(ucm::ResolveRoute), 0, &RdmaCm::resolve_route},
      {Command::kQueryRoute, sizeof(ucm::Query), offsetof(ucm::QueryRouteResponse, device_index),
       &RdmaCm::query_route},
      {Command::kQuery, sizeof(ucm::Query), offsetof(ucm::QueryPathResponse, flags), &RdmaCm::query},
      {Command::kConnect, offsetof(ucm::Connect, ece), 0, &RdmaCm::connect},
      {Command::kListen, sizeof(ucm::Listen), 0, &RdmaCm::listen},
      {Command::kAccept, offsetof(ucm::Accept, ece), 0, &RdmaCm::accept},
      {Command::kReject, sizeof(ucm::Reject), 0, &RdmaCm::reject},
      {Command::kDisconnect, sizeof(ucm::Disconnect), 0, &RdmaCm::disconnect},
      {Command::kInitQpAttr, sizeof(ucm::InitQpAttr), sizeof(ucm::QpAttr), &RdmaCm::init_qp_attr},
      {Command::kSetOption, sizeof(ucm::SetOption), 0, &RdmaCm::set_option},
      {Command::kNotify, sizeof(ucm::Notify), 0, &RdmaCm::notify},
      {Command::kJoinIpMulticast, offsetof(ucm::JoinIpMulticast, id) + 4, kIdResponse,
       &RdmaCm::join_ip_multicast},
      {Command::kJoinMulticast, sizeof(ucm::JoinMulticast), kIdResponse, &RdmaCm::join_multicast},
      {Command::kLeaveMulticast, sizeof(ucm::DestroyId), kEvents, &RdmaCm::leave_multicast},
      {Command::kMigrateId, sizeof(ucm::MigrateId), kEvents, &RdmaCm::migrate_id},
  };
  const auto* const at = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) {
    return static_cast<std::uint32_t>(row.command) == command;
  });
  return at == std::end(kRows) ? nullptr : at;
}

proto::Result<std::vector<std::byte>, std::errc> RdmaCm::command(std::uint64_t channel, pid_t sender,
                                                                 std::span<const std::byte> payload) {
  RdmaCmRequest head;
  ucm::Header header;
  const Channel* const known = find_channel(channel);
  if (known == nullptr) return proto::Unexpected{std::errc::no_such_device};
  // A child of fork that still holds its parent's socket.
  if (known->owner != sender) return proto::Unexpected{std::errc::operation_not_permitted};
  if (payload.size() < sizeof head) return kInvalid;
  std::memcpy(&head, payload.data(), sizeof head);
  payload = payload.subspan(sizeof head);
  if (head.command_bytes < sizeof header || head.command_bytes > payload.size()) return kInvalid;
  std::memcpy(&header, payload.data(), sizeof header);
  if (sizeof header + header.in_bytes > head.command_bytes ||
      header.command > static_cast<std::uint32_t>(Command::kJoinMulticast) ||
      header.command == static_cast<std::uint32_t>(Command::kGetEvent))  // the application's own affair
    return kInvalid;
  const Row* const row = find_row(header.command);
  if (row == nullptr) return proto::Unexpected{std::errc::function_not_supported};
  if (header.in_bytes < row->request_bytes) return kInvalid;
  if (header.out_bytes < row->response_bytes) return proto::Unexpected{std::errc::no_space_on_device};
  Call call;
  call.channel = channel;
  call.core = payload.subspan(sizeof header, header.in_bytes);
  call.option = payload.subspan(head.command_bytes);
  call.other_inode = head.other_inode;
  call.out_bytes = header.out_bytes;
  Answer answer = (this->*row->handler)(call);
  hand_on();
  if (answer && answer->size() > call.out_bytes) answer->resize(call.out_bytes);
  return answer;
}

template <class Act>
RdmaCm::Answer RdmaCm::run(const Call& call, std::uint32_t id, Act act) {
  const auto known = find(call.channel, id);
  if (!known) return proto::Unexpected{known.error()};
  if (const std::errc error = act(client(call.channel), handle(id), now()); error != std::errc{})
    return proto::Unexpected{error};
  return Response{};
}

// ---- ids ---------------------------------------------------------------------------------------------

RdmaCm::Answer RdmaCm::create_id(const Call& call) {
  const auto wanted = as<ucm::CreateId>(call.core);
  const auto kind = ucm::kind_of(wanted.port_space, wanted.qp_type);
  if (!kind) return kInvalid;
  const Manager::Created created = manager_.create(client(call.channel), kind->space, kind->type);
  if (created.error != std::errc{}) return proto::Unexpected{created.error};
  Id id;
  id.channel = call.channel;
  id.uid = wanted.uid;
  ids_.emplace(created.id.value, std::move(id));
  return response_of(ucm::CreateIdResponse{created.id.value});
}

RdmaCm::Answer RdmaCm::destroy_id(const Call& call) {
  const auto wanted = as<ucm::DestroyId>(call.core);
  const auto known = find(call.channel, wanted.id);
  if (!known) return proto::Unexpected{known.error()};
  // Requests that nobody has read of are nobody's to accept.
  for (const ucm::EventRecord& record : take_back(wanted.id, **known)) {
    if (!is_connect_request(record) || ids_.count(record.id) == 0) continue;
    static_cast<void>(manager_.destroy(client(call.channel), handle(record.id), now()));
    remove(record.id);
  }
  const ucm::EventsReported reported{(*known)->events};
  static_cast<void>(manager_.destroy(client(call.channel), handle(wanted.id), now()));
  remove(wanted.id);
  return response_of(reported);
}

RdmaCm::Answer RdmaCm::migrate_id(const Call& call) {
  const auto wanted = as<ucm::MigrateId>(call.core);
  const pid_t owner = channels_.at(call.channel).owner;
  const auto from = std::find_if(channels_.begin(), channels_.end(), [&](const auto& entry) {
    const Channel& other = entry.second;
    return other.is_open && other.owner == owner && other.pipe.inode() == call.other_inode;
  });
  if (from == channels_.end()) return kInvalid;
  const auto known = find(from->first, wanted.id);
  if (!known) return proto::Unexpected{known.error()};
  Id& id = **known;
  if (from->first != call.channel) {
    const std::errc error = manager_.migrate(client(from->first), handle(wanted.id), client(call.channel));
    if (error != std::errc{}) return proto::Unexpected{error};
    const std::vector<ucm::EventRecord> unread = take_back(wanted.id, id);
    // Those that were read, whose end the library waits for before it lets go of the old channel.
    const ucm::EventsReported reported{id.events};
    id.channel = call.channel;
    for (const ucm::EventRecord& record : unread) {
      // A request that has not been read of goes with its listener.
      if (const auto request = ids_.find(record.id); is_connect_request(record) && request != ids_.end()) {
        static_cast<void>(manager_.migrate(client(from->first), handle(record.id), client(call.channel)));
        request->second.channel = call.channel;
      }
      const auto group = id.groups.find(record.id);
      count(write(call.channel, record), group == id.groups.end() ? id.events : group->second.events);
    }
    return response_of(reported);
  }
  return response_of(ucm::EventsReported{id.events});
}

// ---- addresses and routes ----------------------------------------------------------------------------

RdmaCm::Answer RdmaCm::bind_ip(const Call& call) {
  const auto wanted = as<ucm::BindIp>(call.core);
  const auto address = ucm::address_of(wanted.address.bytes);
  if (!address) return kInvalid;
  return run(call, wanted.id, [&](auto who, auto id, auto) { return manager_.bind(who, id, *address); });
}

RdmaCm::Answer RdmaCm::bind(const Call& call) {
  const auto wanted = as<ucm::Bind>(call.core);
  const auto address = ucm::address_of(wanted.address.bytes, wanted.address_bytes);
  if (!address || wanted.reserved != 0) return kInvalid;
  return run(call, wanted.id, [&](auto who, auto id, auto) { return manager_.bind(who, id, *address); });
}

RdmaCm::Answer RdmaCm::resolve_ip(const Call& call) {
  const auto wanted = as<ucm::ResolveIp>(call.core);
  const auto source = ucm::address_of(wanted.source.bytes);
  const auto destination = ucm::address_of(wanted.destination.bytes);
  if ((!source && ucm::family_of(wanted.source.bytes) != 0) || !destination) return kInvalid;
  return run(call, wanted.id, [&](auto who, auto id, auto time) {
    return manager_.resolve_address(who, id, source, *destination, milliseconds(wanted.timeout_ms), time);
  });
}

RdmaCm::Answer RdmaCm::resolve_address(const Call& call) {
  const auto wanted = as<ucm::ResolveAddress>(call.core);
  std::optional<cm::SocketAddress> source;
  if (wanted.source_bytes != 0) {
    source = ucm::address_of(wanted.source.bytes, wanted.source_bytes);
    if (!source) return kInvalid;
  }
  const auto destination = ucm::address_of(wanted.destination.bytes, wanted.destination_bytes);
  if (!destination || wanted.reserved != 0) return kInvalid;
  return run(call, wanted.id, [&](auto who, auto id, auto time) {
    return manager_.resolve_address(who, id, source, *destination, milliseconds(wanted.timeout_ms), time);
  });
}

RdmaCm::Answer RdmaCm::resolve_route(const Call& call) {
  const auto wanted = as<ucm::ResolveRoute>(call.core);
  return run(call, wanted.id, [&](auto who, auto id, auto time) {
    return manager_.resolve_route(who, id, milliseconds(wanted.timeout_ms), time);
  });
}

RdmaCm::Answer RdmaCm::query_route(const Call& call) {
  const auto wanted = as<ucm::Query>(call.core);
  if (const auto known = find(call.channel, wanted.id); !known) return proto::Unexpected{known.error()};
  const auto route = manager_.route(client(call.channel), handle(wanted.id));
  if (!route) return proto::Unexpected{std::errc::no_such_file_or_directory};
  return response_of(ucm::route_response(*route, host_.config().nics));
}

RdmaCm::Answer RdmaCm::query(const Call& call) {
  const auto wanted = as<ucm::Query>(call.core);
  if (const auto known = find(call.channel, wanted.id); !known) return proto::Unexpected{known.error()};
  const auto route = manager_.route(client(call.channel), handle(wanted.id));
  if (!route) return proto::Unexpected{std::errc::no_such_file_or_directory};
  switch (wanted.option) {
    case static_cast<std::uint32_t>(ucm::QueryOption::kAddress):
    case static_cast<std::uint32_t>(ucm::QueryOption::kGid): {
      if (call.out_bytes < offsetof(ucm::QueryAddressResponse, device_index))
        return proto::Unexpected{std::errc::no_space_on_device};
      const bool is_gid = wanted.option == static_cast<std::uint32_t>(ucm::QueryOption::kGid);
      return response_of(ucm::address_response(*route, host_.config().nics, is_gid));
    }
    case static_cast<std::uint32_t>(ucm::QueryOption::kPath): {
      auto path = response_of(ucm::path_response(*route, host_.config().nics));
      // A path that there is no room for is left out, as is the one that there is not.
      if (call.out_bytes < path.size() || !route->is_route_resolved)
        path.resize(offsetof(ucm::QueryPathResponse, flags));
      return path;
    }
    default:
      return proto::Unexpected{std::errc::function_not_supported};
  }
}

// ---- connections -------------------------------------------------------------------------------------

RdmaCm::Answer RdmaCm::connect(const Call& call) {
  const auto wanted = as<ucm::Connect>(call.core);
  if (wanted.parameters.valid == 0) return kInvalid;
  return run(call, wanted.id, [&](auto who, auto id, auto time) {
    return manager_.connect(who, id, ucm::parameters_of(wanted.parameters), time);
  });
}

RdmaCm::Answer RdmaCm::listen(const Call& call) {
  const auto wanted = as<ucm::Listen>(call.core);
  const std::uint32_t backlog = wanted.backlog < 0 ? 0 : static_cast<std::uint32_t>(wanted.backlog);
  return run(call, wanted.id, [&](auto who, auto id, auto) { return manager_.listen(who, id, backlog); });
}

RdmaCm::Answer RdmaCm::accept(const Call& call) {
  const auto wanted = as<ucm::Accept>(call.core);
  std::optional<cm::ConnectionParameters> parameters;
  if (wanted.parameters.valid != 0) parameters = ucm::parameters_of(wanted.parameters);
  Answer answer = run(call, wanted.id, [&](auto who, auto id, auto time) {
    return manager_.accept(who, id, parameters, time);
  });
  if (answer && parameters) ids_.at(wanted.id).uid = wanted.uid;
  return answer;
}

RdmaCm::Answer RdmaCm::reject(const Call& call) {
  const auto wanted = as<ucm::Reject>(call.core);
  const std::uint8_t reason = wanted.reason == 0 ? kConsumerReject : wanted.reason;
  if (reason != kConsumerReject && reason != ucm::kVendorOptionReject) return kInvalid;
  return run(call, wanted.id, [&](auto who, auto id, auto time) {
    return manager_.reject(who, id, reason,
                           ucm::private_data_of(wanted.private_data, wanted.private_data_bytes), time);
  });
}

RdmaCm::Answer RdmaCm::disconnect(const Call& call) {
  return run(call, as<ucm::Disconnect>(call.core).id,
             [&](auto who, auto id, auto time) { return manager_.disconnect(who, id, time); });
}

RdmaCm::Answer RdmaCm::init_qp_attr(const Call& call) {
  const auto wanted = as<ucm::InitQpAttr>(call.core);
  if (wanted.qp_state > static_cast<std::uint32_t>(QpState::kErr)) return kInvalid;
  if (const auto known = find(call.channel, wanted.id); !known) return proto::Unexpected{known.error()};
  const Manager::QpAnswer answer =
      manager_.qp_attributes(client(call.channel), handle(wanted.id), static_cast<QpState>(wanted.qp_state));
  if (answer.error != std::errc{}) return proto::Unexpected{answer.error};
  return response_of(ucm::qp_attr_of(answer.transition));
}

RdmaCm::Answer RdmaCm::notify(const Call& call) {
  const auto wanted = as<ucm::Notify>(call.core);
  return run(call, wanted.id, [&](auto who, auto id, auto time) {
    return wanted.event == kCommEst ? manager_.notify_established(who, id, time)
                                    : std::errc::invalid_argument;
  });
}

// A path of the application's own making (level IB) is refused: the route of a NIC follows its addresses.
RdmaCm::Answer RdmaCm::set_option(const Call& call) {
  const auto wanted = as<ucm::SetOption>(call.core);
  if (wanted.value_bytes > ucm::kMaxOptionBytes || call.option.size() != wanted.value_bytes) return kInvalid;
  const bool is_byte = wanted.name == ucm::kOptionTos || wanted.name == ucm::kOptionAckTimeout;
  if (wanted.level != ucm::kLevelId || wanted.name > ucm::kOptionAckTimeout)
    return proto::Unexpected{std::errc::function_not_supported};
  if (wanted.value_bytes != (is_byte ? 1U : 4U)) return kInvalid;
  const auto value = as<std::uint32_t>(call.option);
  const auto byte = static_cast<std::uint8_t>(value);
  return run(call, wanted.id, [&](auto who, auto id, auto) {
    switch (wanted.name) {
      case ucm::kOptionTos:
        return manager_.set_type_of_service(who, id, byte);
      case ucm::kOptionReuseAddress:
        return manager_.set_reuse_address(who, id, value != 0);
      case ucm::kOptionOneFamilyOnly:
        return manager_.set_one_family_only(who, id, value != 0);
      default:
        return manager_.set_ack_timeout(who, id, byte);
    }
  });
}

// ---- groups ------------------------------------------------------------------------------------------

RdmaCm::Answer RdmaCm::join_ip_multicast(const Call& call) {
  const auto wanted = as<ucm::JoinIpMulticast>(call.core);
  return join(call, wanted.id, wanted.uid, ucm::address_of(wanted.address.bytes));
}

RdmaCm::Answer RdmaCm::join_multicast(const Call& call) {
  const auto wanted = as<ucm::JoinMulticast>(call.core);
  constexpr std::uint16_t kSendOnly = 1;
  if (wanted.join_flags > kSendOnly) return kInvalid;
  return join(call, wanted.id, wanted.uid, ucm::address_of(wanted.address.bytes, wanted.address_bytes));
}

RdmaCm::Answer RdmaCm::join(const Call& call, std::uint32_t id, std::uint64_t uid,
                            const std::optional<cm::SocketAddress>& group) {
  if (!group) return kInvalid;
  const auto known = find(call.channel, id);
  if (!known) return proto::Unexpected{known.error()};
  while (group_owner_.count(next_group_) != 0 || next_group_ < kFirstGroup)
    next_group_ = next_group_ < kFirstGroup ? kFirstGroup : next_group_ + 1;
  const std::uint32_t number = next_group_++;
  const std::errc error = manager_.join(client(call.channel), handle(id), *group, number, now());
  if (error != std::errc{}) return proto::Unexpected{error};
  (*known)->groups.emplace(number, Group{uid, 0});
  group_owner_.emplace(number, id);
  return response_of(ucm::CreateIdResponse{number});
}

RdmaCm::Answer RdmaCm::leave_multicast(const Call& call) {
  const auto wanted = as<ucm::DestroyId>(call.core);
  const auto owner = group_owner_.find(wanted.id);
  if (owner == group_owner_.end()) return proto::Unexpected{std::errc::no_such_file_or_directory};
  const std::uint32_t id = owner->second;
  const auto known = find(call.channel, id);
  if (!known) return proto::Unexpected{known.error()};
  static_cast<void>(manager_.leave(client(call.channel), handle(id), wanted.id));
  const auto unread = channels_.at(call.channel).pipe.take_out([&](const ucm::EventRecord& record) {
    return record.id == wanted.id && !is_connect_request(record);
  });
  const std::uint32_t written = (*known)->groups.at(wanted.id).events;
  (*known)->groups.erase(wanted.id);
  group_owner_.erase(owner);
  return response_of(
      ucm::EventsReported{written - std::min(written, static_cast<std::uint32_t>(unread.size()))});
}

// ---- show --------------------------------------------------------------------------------------------

void RdmaCm::leave_out_own(emulator::Snapshot& snapshot) const {
  const auto take_out = [this](auto& objects) {
    objects.erase(std::remove_if(objects.begin(), objects.end(),
                                 [this](const auto& object) { return gsi_.owns(object.context); }),
                  objects.end());
  };
  take_out(snapshot.contexts);
  take_out(snapshot.qps);
  take_out(snapshot.mrs);
  take_out(snapshot.cqs);
  take_out(snapshot.ahs);
}

void RdmaCm::show(json& result) const {
  json ids = json::array();
  for (const Manager::IdSnapshot& id : manager_.snapshot()) {
    const auto channel = channels_.find(static_cast<std::uint64_t>(id.client));
    ids.push_back({{"id", id.id.value},
                   {"pid", channel == channels_.end() ? 0 : channel->second.owner},
                   {"port_space", ucm::name_of(id.space)},
                   {"state", id.state},
                   {"source", ucm::text_of(id.source)},
                   {"destination", ucm::text_of(id.destination)},
                   {"nic", id.nic ? json(host_.config().nics[id.nic->index].name) : json()},
                   {"qpn", id.qpn.value()},
                   {"remote_qpn", id.remote_qpn.value()}});
  }
  const Manager::Counters& seen = manager_.counters();
  const Gsi::Counters& wire = gsi_.counters();
  result["cms"] = std::move(ids);
  result["cm_counters"] = {{"channels", channels_.size() - lingering_},
                           {"conversations", manager_.conversations()},
                           {"mads_received", seen.mads_received},
                           {"mads_sent", seen.mads_sent},
                           {"malformed", seen.malformed + wire.malformed},
                           {"unknown", seen.unknown},
                           {"duplicates", seen.duplicates},
                           {"retransmitted", seen.retransmitted},
                           {"refused", seen.refused},
                           {"not_sent_no_neighbour", wire.no_neighbour},
                           {"not_sent_no_room", wire.no_room},
                           {"not_sent_link_down", wire.not_up},
                           {"events_lost", lost_events_}};
}

}  // namespace roci::shim
