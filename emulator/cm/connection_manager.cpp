// The interface: finds the id, checks that its state allows what is asked, and passes on.
#include "emulator/cm/connection_manager.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "emulator/cm/impl.h"

namespace roci::emulator::cm {
namespace {

const char* word_for(const Endpoint& endpoint) {
  if (const Conversation* const conversation = endpoint.conversation) {
    switch (conversation->state) {
      case Conversation::State::kReqSent:
      case Conversation::State::kSidrReqSent:
        return "requesting";
      case Conversation::State::kReqReceived:
      case Conversation::State::kSidrReqReceived:
        return "requested";
      case Conversation::State::kRepSent:
        return "accepting";
      case Conversation::State::kRepReceived:
        return "accepted";
      case Conversation::State::kEstablished:
        return "connected";
      case Conversation::State::kDreqSent:
        return "disconnecting";
      case Conversation::State::kTimeWait:
        return "time wait";
      case Conversation::State::kSidrRepSent:
        break;  // the datagram id itself says more
    }
  }
  switch (endpoint.state) {
    case Endpoint::State::kIdle:
      return "idle";
    case Endpoint::State::kBound:
      return "bound";
    case Endpoint::State::kAddressQuery:
      return "resolving";
    case Endpoint::State::kAddressResolved:
      return "address resolved";
    case Endpoint::State::kRouteResolved:
      return "route resolved";
    case Endpoint::State::kListening:
      return "listening";
    case Endpoint::State::kConnecting:
    case Endpoint::State::kRequested:
    case Endpoint::State::kAccepted:
    case Endpoint::State::kConnected:
      return "connected";
    case Endpoint::State::kOver:
      return "over";
  }
  return "";
}

}  // namespace

bool SocketAddress::is_any() const { return cm::is_any(ip); }

ConnectionManager::ConnectionManager(const std::vector<NicConfig>& nics, const std::uint64_t (&seed)[4],
                                     Limits limits)
    : impl_(std::make_unique<Impl>(nics, seed, limits)) {}
ConnectionManager::~ConnectionManager() = default;

void ConnectionManager::on_mad(const ReceivedMad& mad, Time now) { impl_->on_mad(mad, now); }
void ConnectionManager::on_timers(Time now) { impl_->on_timers(now); }
Time ConnectionManager::next_deadline() const { return impl_->deadlines.next(); }
void ConnectionManager::on_neighbour(IdHandle id, std::errc error, Time) {
  Endpoint* const endpoint = impl_->find(id);
  if (endpoint != nullptr && endpoint->state == Endpoint::State::kAddressQuery)
    impl_->finish_resolution(*endpoint, error);
}

std::optional<OutgoingMad> ConnectionManager::take_mad() {
  if (impl_->mads.empty()) return std::nullopt;
  const OutgoingMad mad = impl_->mads.front();
  impl_->mads.pop_front();
  ++impl_->counters.mads_sent;
  return mad;
}

std::optional<NeighbourRequest> ConnectionManager::take_neighbour_request() {
  if (impl_->neighbour_requests.empty()) return std::nullopt;
  const NeighbourRequest request = impl_->neighbour_requests.front();
  impl_->neighbour_requests.pop_front();
  return request;
}

std::optional<Event> ConnectionManager::take_event() {
  while (!impl_->events.empty()) {
    Event event = impl_->events.front();
    impl_->events.pop_front();
    Endpoint* const endpoint = impl_->find(event.id);
    if (endpoint == nullptr) continue;  // destroyed since
    event.client = endpoint->client;
    endpoint->is_told = true;
    return event;
  }
  return std::nullopt;
}

void ConnectionManager::on_addresses(NicId nic, const NicConfig& config) { impl_->nics.change(nic, config); }

void ConnectionManager::open_client(ClientId client, std::uint64_t nics) {
  impl_->clients[static_cast<std::uint64_t>(client)].nics = nics;
}

void ConnectionManager::close_client(ClientId client, Time now) {
  const auto found = impl_->clients.find(static_cast<std::uint64_t>(client));
  if (found == impl_->clients.end()) return;
  while (!found->second.ids.empty())
    impl_->remove_endpoint(*impl_->find(*found->second.ids.begin()), now);
  impl_->clients.erase(found);
}

ConnectionManager::Created ConnectionManager::create(ClientId client, PortSpace space, QpType type) {
  const bool is_datagram_space = space == PortSpace::kUdp || space == PortSpace::kIpoib;
  if (type != QpType::kRc && type != QpType::kUc && type != QpType::kUd)
    return {std::errc::invalid_argument, {}};
  if (space != PortSpace::kIb && is_datagram_space != (type == QpType::kUd))
    return {std::errc::invalid_argument, {}};
  const Endpoint* const endpoint = impl_->add_endpoint(client, space, type);
  if (endpoint == nullptr) return {std::errc::not_enough_memory, {}};
  return {{}, endpoint->id};
}

std::errc ConnectionManager::destroy(ClientId client, IdHandle id, Time now) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  impl_->remove_endpoint(*endpoint, now);
  return {};
}

std::errc ConnectionManager::migrate(ClientId from, IdHandle id, ClientId to) {
  Endpoint* const endpoint = impl_->find(from, id);
  return endpoint == nullptr ? std::errc::no_such_file_or_directory : impl_->migrate(*endpoint, to);
}

std::errc ConnectionManager::bind(ClientId client, IdHandle id, const SocketAddress& source) {
  Endpoint* const endpoint = impl_->find(client, id);
  return endpoint == nullptr ? std::errc::no_such_file_or_directory : impl_->bind(*endpoint, source);
}

std::errc ConnectionManager::resolve_address(ClientId client, IdHandle id,
                                             const std::optional<SocketAddress>& source,
                                             const SocketAddress& destination, Duration timeout, Time now) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  return impl_->resolve_address(*endpoint, source, destination, timeout, now);
}

// RoCE has no subnet administrator to ask: the route is the address.
std::errc ConnectionManager::resolve_route(ClientId client, IdHandle id, Duration, Time) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  if (endpoint->state != Endpoint::State::kAddressResolved) return std::errc::invalid_argument;
  endpoint->state = Endpoint::State::kRouteResolved;
  endpoint->av.traffic_class = endpoint->type_of_service;
  impl_->raise(*endpoint, EventKind::kRouteResolved);
  return {};
}

std::optional<Route> ConnectionManager::route(ClientId client, IdHandle id) const {
  const Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::nullopt;
  return Route{
      endpoint->source, endpoint->destination, endpoint->nic, endpoint->av,
      endpoint->state >= Endpoint::State::kRouteResolved && endpoint->state != Endpoint::State::kListening};
}

std::errc ConnectionManager::listen(ClientId client, IdHandle id, std::uint32_t backlog) {
  Endpoint* const endpoint = impl_->find(client, id);
  return endpoint == nullptr ? std::errc::no_such_file_or_directory : impl_->listen(*endpoint, backlog);
}

std::errc ConnectionManager::connect(ClientId client, IdHandle id, const ConnectionParameters& parameters,
                                     Time now) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  return impl_->connect(*endpoint, parameters, now);
}

std::errc ConnectionManager::accept(ClientId client, IdHandle id,
                                    const std::optional<ConnectionParameters>& parameters, Time now) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  if (endpoint->state == Endpoint::State::kConnecting) return impl_->accept_rep(*endpoint);
  if (endpoint->state != Endpoint::State::kRequested || !parameters) return std::errc::invalid_argument;
  return impl_->accept_req(*endpoint, *parameters, now);
}

std::errc ConnectionManager::reject(ClientId client, IdHandle id, std::uint8_t reason,
                                    const PrivateData& data, Time now) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  Conversation* const conversation = endpoint->conversation;
  if (conversation == nullptr) return std::errc::invalid_argument;
  if (conversation->state == Conversation::State::kSidrReqReceived) {
    if (data.length_bytes > std::tuple_size_v<decltype(proto::CmSidrRep::private_data)>)
      return std::errc::invalid_argument;
    impl_->settle_request(*endpoint, Endpoint::State::kOver);
    impl_->answer_sidr(*conversation, proto::CmSidrStatus::kRejected, {}, {}, data, now);
    return {};
  }
  if (conversation->state != Conversation::State::kReqReceived &&
      conversation->state != Conversation::State::kRepReceived)
    return std::errc::invalid_argument;
  if (data.length_bytes > std::tuple_size_v<decltype(proto::CmRej::private_data)>)
    return std::errc::invalid_argument;
  impl_->reject(
      *conversation,
      reason == 0 ? proto::CmRejectReason::kConsumerReject : static_cast<proto::CmRejectReason>(reason),
      data);
  impl_->settle_request(*endpoint, Endpoint::State::kOver);
  impl_->remove(*conversation);
  return {};
}

std::errc ConnectionManager::disconnect(ClientId client, IdHandle id, Time now) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  if (endpoint->state < Endpoint::State::kConnecting) return std::errc::invalid_argument;
  Conversation* const conversation = endpoint->conversation;
  if (conversation != nullptr && conversation->state == Conversation::State::kEstablished)
    impl_->disconnect(*conversation, now);
  return {};
}

std::errc ConnectionManager::notify_established(ClientId client, IdHandle id, Time) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  Conversation* const conversation = endpoint->conversation;
  if (conversation == nullptr || endpoint->is_datagram()) return std::errc::invalid_argument;
  if (conversation->state == Conversation::State::kEstablished) return std::errc::already_connected;
  if (conversation->state != Conversation::State::kRepSent) return std::errc::invalid_argument;
  impl_->establish(*conversation);
  return {};
}

ConnectionManager::QpAnswer ConnectionManager::qp_attributes(ClientId client, IdHandle id,
                                                             QpState state) const {
  const Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return {std::errc::no_such_file_or_directory, {}};
  return impl_->qp_attributes(*endpoint, state);
}

std::errc ConnectionManager::join(ClientId client, IdHandle id, const SocketAddress& group,
                                  std::uint64_t number, Time) {
  Endpoint* const endpoint = impl_->find(client, id);
  return endpoint == nullptr ? std::errc::no_such_file_or_directory : impl_->join(*endpoint, group, number);
}

std::errc ConnectionManager::leave(ClientId client, IdHandle id, std::uint64_t number) {
  Endpoint* const endpoint = impl_->find(client, id);
  const bool was_there = endpoint != nullptr && endpoint->groups.erase(number) != 0;
  return was_there ? std::errc{} : std::errc::no_such_file_or_directory;
}

std::errc ConnectionManager::set_type_of_service(ClientId client, IdHandle id, std::uint8_t tos) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  endpoint->type_of_service = tos;
  return {};
}

std::errc ConnectionManager::set_reuse_address(ClientId client, IdHandle id, bool reuse) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  if (endpoint->state != Endpoint::State::kIdle) return std::errc::invalid_argument;
  endpoint->may_share_port = reuse;
  return {};
}

std::errc ConnectionManager::set_one_family_only(ClientId client, IdHandle id, bool only) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  if (endpoint->state != Endpoint::State::kIdle) return std::errc::invalid_argument;
  endpoint->one_family = only;
  return {};
}

std::errc ConnectionManager::set_ack_timeout(ClientId client, IdHandle id, std::uint8_t code) {
  Endpoint* const endpoint = impl_->find(client, id);
  if (endpoint == nullptr) return std::errc::no_such_file_or_directory;
  if (endpoint->is_datagram() || code > proto::AckTimeout::kMask) return std::errc::invalid_argument;
  endpoint->ack_timeout = code;
  return {};
}

std::vector<ConnectionManager::IdSnapshot> ConnectionManager::snapshot() const {
  std::vector<IdSnapshot> all;
  for (const auto& [number, endpoint] : impl_->endpoints) {
    all.push_back({endpoint->client, endpoint->id, endpoint->space, word_for(*endpoint), endpoint->source,
                   endpoint->destination, endpoint->nic, endpoint->qpn, endpoint->remote_qpn});
  }
  std::sort(all.begin(), all.end(), [](const IdSnapshot& a, const IdSnapshot& b) { return a.id < b.id; });
  return all;
}

const ConnectionManager::Counters& ConnectionManager::counters() const { return impl_->counters; }
std::size_t ConnectionManager::conversations() const { return impl_->conversations.size(); }
std::size_t ConnectionManager::ids() const { return impl_->endpoints.size(); }

}  // namespace roci::emulator::cm
