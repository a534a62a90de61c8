// Ids, conversations, timers, and the border: what the others of this folder have in common.
#include <algorithm>
#include <cerrno>

#include "emulator/cm/impl.h"

namespace roci::emulator::cm {

using proto::CmMessage;
using proto::CommunicationId;

// ---- ids -------------------------------------------------------------------------------------------

Endpoint* ConnectionManager::Impl::find(IdHandle id) {
  const auto found = endpoints.find(id.value);
  return found == endpoints.end() ? nullptr : found->second.get();
}

Endpoint* ConnectionManager::Impl::find(ClientId client, IdHandle id) {
  Endpoint* const endpoint = find(id);
  return endpoint != nullptr && endpoint->client == client ? endpoint : nullptr;
}

Endpoint* ConnectionManager::Impl::add_endpoint(ClientId client, PortSpace space, QpType type) {
  const auto owner = clients.find(static_cast<std::uint64_t>(client));
  if (owner == clients.end() || endpoints.size() >= limits.ids) return nullptr;
  if (owner->second.ids.size() >= limits.ids_of_client) return nullptr;
  do {  // after four billion ids some are still in use
    ++last_id;
  } while (last_id == 0 || endpoints.count(last_id) != 0);
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->id = IdHandle{last_id};
  endpoint->client = client;
  endpoint->nics = owner->second.nics;
  endpoint->space = space;
  endpoint->type = type;
  owner->second.ids.insert(endpoint->id);
  return endpoints.emplace(last_id, std::move(endpoint)).first->second.get();
}

void ConnectionManager::Impl::remove_endpoint(Endpoint& endpoint, Time now) {
  const std::set<IdHandle> requests = endpoint.requests;
  for (const IdHandle id : requests) {
    Endpoint& request = *find(id);
    if (request.is_told) {
      request.listener.reset();
    } else {
      remove_endpoint(request, now);
    }
  }
  if (endpoint.listener) find(*endpoint.listener)->requests.erase(endpoint.id);
  if (endpoint.holds_port) ports.release(endpoint.space, endpoint.source.port, endpoint.id);
  set_deadline(endpoint, kNever);
  if (endpoint.conversation != nullptr) abandon(*endpoint.conversation, now);
  clients.at(static_cast<std::uint64_t>(endpoint.client)).ids.erase(endpoint.id);
  endpoints.erase(endpoint.id.value);
}

std::errc ConnectionManager::Impl::migrate(Endpoint& endpoint, ClientId to) {
  const auto target = clients.find(static_cast<std::uint64_t>(to));
  if (target == clients.end()) return std::errc::invalid_argument;
  // Events are raised for whoever has the id when they are taken; those of a listener bring ids with them.
  std::vector<Endpoint*> moving{&endpoint};
  for (const IdHandle id : endpoint.requests) {
    Endpoint* const request = find(id);
    if (!request->is_told) moving.push_back(request);
  }
  if (target->second.ids.size() + moving.size() > limits.ids_of_client) return std::errc::not_enough_memory;
  for (Endpoint* const one : moving) {
    clients.at(static_cast<std::uint64_t>(one->client)).ids.erase(one->id);
    one->client = to;
    target->second.ids.insert(one->id);
  }
  return {};
}

void ConnectionManager::Impl::set_deadline(Endpoint& endpoint, Time when) {
  deadlines.move(kOfEndpoint + endpoint.id.value, endpoint.deadline, when);
}

// ---- conversations ---------------------------------------------------------------------------------

Conversation& ConnectionManager::Impl::add_conversation(NicId nic, const proto::Gid& local,
                                                        const proto::Gid& peer, const AddressVector& to) {
  auto conversation = std::make_unique<Conversation>();
  std::uint32_t id = 0;
  do {  // a peer cannot guess it
    id = dice.next();
  } while (id == 0 || conversations.count(id) != 0);
  conversation->local = CommunicationId{id};
  conversation->nic = nic;
  conversation->local_gid = local;
  conversation->peer_gid = peer;
  conversation->to = to;
  return *conversations.emplace(id, std::move(conversation)).first->second;
}

void ConnectionManager::Impl::remove(Conversation& conversation) {
  const auto forget = [&](std::map<Peer, CommunicationId>& names, std::uint32_t number) {
    const auto found = names.find(conversation.peer(number));
    if (found != names.end() && found->second == conversation.local) names.erase(found);
  };
  forget(by_remote_id, conversation.remote.value());
  forget(by_request_id, conversation.remote.value());
  forget(by_remote_qpn, conversation.remote_qpn.value());
  set_deadline(conversation, kNever);
  if (conversation.endpoint != nullptr) conversation.endpoint->conversation = nullptr;
  if (conversation.is_detached) --detached;
  conversations.erase(conversation.local.value());
}

void ConnectionManager::Impl::detach(Conversation& conversation) {
  conversation.endpoint->conversation = nullptr;
  conversation.endpoint = nullptr;
  if (detached >= limits.time_waits) return remove(conversation);
  conversation.is_detached = true;
  ++detached;
}

void ConnectionManager::Impl::learn_remote(Conversation& conversation, CommunicationId id, proto::Qpn qpn) {
  conversation.remote = id;
  conversation.remote_qpn = qpn;
  by_remote_id[conversation.peer(id.value())] = conversation.local;
  by_remote_qpn[conversation.peer(qpn.value())] = conversation.local;
}

void ConnectionManager::Impl::set_deadline(Conversation& conversation, Time when) {
  deadlines.move(conversation.local.value(), conversation.deadline, when);
}

Conversation* ConnectionManager::Impl::find(const Arrival& arrival, CommunicationId ours,
                                            CommunicationId theirs) {
  const auto found = conversations.find(ours.value());
  if (found != conversations.end()) {
    Conversation& one = *found->second;
    const bool is_from_peer =
        one.nic == arrival.nic && one.peer_gid == arrival.source && one.local_gid == arrival.destination;
    const bool is_named =
        one.remote == CommunicationId{} ? theirs != CommunicationId{} : one.remote == theirs;
    if (is_from_peer && is_named && !one.is_datagram()) return &one;
  }
  ++counters.unknown;
  return nullptr;
}

Conversation* ConnectionManager::Impl::find_by_peer(const std::map<Peer, CommunicationId>& names,
                                                    const Arrival& arrival, std::uint32_t number) {
  const auto found = names.find({arrival.nic.index, arrival.source, number});
  return found == names.end() ? nullptr : conversations.at(found->second.value()).get();
}

// ---- what goes out ---------------------------------------------------------------------------------

void ConnectionManager::Impl::push(NicId nic, const AddressVector& to,
                                   std::span<const std::byte, proto::kMadBytes> bytes) {
  if (mads.size() >= limits.mads) return;
  OutgoingMad& mad = mads.emplace_back();
  mad.nic = nic;
  mad.to = to;
  std::copy(bytes.begin(), bytes.end(), mad.bytes.begin());
}

void ConnectionManager::Impl::say(const Conversation& conversation, const CmMessage& message) {
  std::array<std::byte, proto::kMadBytes> bytes{};
  proto::MadHeader header;
  header.transaction_id = conversation.transaction_id;
  proto::write_cm(header, message, bytes);
  push(conversation.nic, conversation.to, bytes);
}

void ConnectionManager::Impl::answer(Conversation& conversation, const CmMessage& message) {
  proto::MadHeader header;
  header.transaction_id = conversation.transaction_id;
  proto::write_cm(header, message, conversation.last_mad);
  repeat(conversation);
}

void ConnectionManager::Impl::request(Conversation& conversation, const CmMessage& message,
                                      std::uint8_t retries, Duration interval, Time now) {
  answer(conversation, message);
  conversation.interval = interval;
  conversation.retries_left = retries;
  set_deadline(conversation, now + interval);
}

void ConnectionManager::Impl::repeat(Conversation& conversation) {
  conversation.is_prolonged = false;
  push(conversation.nic, conversation.to, conversation.last_mad);
}

void ConnectionManager::Impl::answer_stranger(const Arrival& arrival, const CmMessage& message) {
  AddressVector to;
  to.dgid = arrival.source;
  to.sgid_index = arrival.sgid_index;
  to.is_global = true;
  std::array<std::byte, proto::kMadBytes> bytes{};
  proto::MadHeader header;
  header.transaction_id = arrival.transaction_id;
  proto::write_cm(header, message, bytes);
  push(arrival.nic, to, bytes);
}

void ConnectionManager::Impl::raise(const Endpoint& endpoint, Event event) {
  event.id = endpoint.id;
  events.push_back(event);
}

void ConnectionManager::Impl::raise(const Endpoint& endpoint, EventKind kind, std::int32_t status) {
  Event event;
  event.kind = kind;
  event.status = status;
  if (kind == EventKind::kRejected) event.parameters = ConnectionParameters{};  // with no words
  raise(endpoint, event);
}

void ConnectionManager::Impl::conclude(Conversation& conversation, EventKind kind, std::int32_t status) {
  if (conversation.endpoint != nullptr) {
    settle_request(*conversation.endpoint, Endpoint::State::kOver);
    raise(*conversation.endpoint, kind, status);
  }
  remove(conversation);
}

// ---- what comes in ---------------------------------------------------------------------------------

void ConnectionManager::Impl::on_mad(const ReceivedMad& mad, Time now) {
  ++counters.mads_received;
  const auto index = nics.has(mad.nic) ? nics.sgid_index(mad.nic, mad.destination) : std::nullopt;
  const auto parsed = proto::parse_cm(mad.bytes);
  if (!index || mad.source_qpn != proto::kQpnGsi || !parsed) {
    ++counters.malformed;
    return;
  }
  const Arrival arrival{mad.nic, mad.source, mad.destination, *index, parsed->header.transaction_id, now};
  std::visit([&](const auto& message) { on(arrival, message); }, parsed->message);
}

void ConnectionManager::Impl::on_timers(Time now) {
  while (deadlines.next() <= now) {
    const std::uint64_t key = deadlines.first();
    if (key >= kOfEndpoint) {
      finish_resolution(*endpoints.at(static_cast<std::uint32_t>(key - kOfEndpoint)), std::errc::timed_out);
    } else {
      on_timeout(*conversations.at(static_cast<std::uint32_t>(key)), now);
    }
  }
}

void ConnectionManager::Impl::on_timeout(Conversation& conversation, Time now) {
  switch (conversation.state) {
    case Conversation::State::kReqSent:
    case Conversation::State::kRepSent:
    case Conversation::State::kDreqSent:
    case Conversation::State::kSidrReqSent:
      if (conversation.retries_left == 0) return give_up(conversation, now);
      --conversation.retries_left;
      ++counters.retransmitted;
      repeat(conversation);
      return set_deadline(conversation, now + conversation.interval);
    case Conversation::State::kTimeWait:
      if (conversation.endpoint != nullptr) raise(*conversation.endpoint, EventKind::kTimewaitExit);
      return remove(conversation);
    case Conversation::State::kSidrRepSent:
      return remove(conversation);
    case Conversation::State::kReqReceived:
    case Conversation::State::kRepReceived:
    case Conversation::State::kEstablished:
    case Conversation::State::kSidrReqReceived:
      return set_deadline(conversation, kNever);  // they wait for no time
  }
}

void ConnectionManager::Impl::give_up(Conversation& conversation, Time now) {
  if (conversation.state == Conversation::State::kDreqSent) {
    if (conversation.endpoint != nullptr) raise(*conversation.endpoint, EventKind::kDisconnected, -ETIMEDOUT);
    return enter_time_wait(conversation, now);
  }
  if (!conversation.is_datagram()) reject(conversation, proto::CmRejectReason::kTimeout, {});
  conclude(conversation, EventKind::kUnreachable, -ETIMEDOUT);
}

}  // namespace roci::emulator::cm
