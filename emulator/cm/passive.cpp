// The side that is asked: REQ, the application's answer, RTU.
#include <algorithm>

#include "emulator/cm/impl.h"

namespace roci::emulator::cm {
namespace {

constexpr std::uint8_t kUsualHopLimit = 64;

// The port space and port that a service id of the RDMA IP CM service names. IPOIB has 0 where others have 1.
struct Service {
  PortSpace space;
  std::uint16_t port;
};
std::optional<Service> service_of(proto::ServiceId id) {
  for (const PortSpace space : {PortSpace::kTcp, PortSpace::kUdp, PortSpace::kIb, PortSpace::kIpoib})
    if (id.value() >> 16 == static_cast<std::uint64_t>(space))
      return Service{space, static_cast<std::uint16_t>(id.value())};
  return std::nullopt;
}

std::optional<QpType> type_of(proto::CmTransportService service) {
  switch (service) {
    case proto::CmTransportService::kRc:
      return QpType::kRc;
    case proto::CmTransportService::kUc:
      return QpType::kUc;
    case proto::CmTransportService::kRd:
    case proto::CmTransportService::kExtended:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

Endpoint* ConnectionManager::Impl::find_listener(const Arrival& arrival, proto::ServiceId service_id) {
  const std::optional<Service> service = service_of(service_id);
  if (!service) return nullptr;
  const auto id = ports.listener(service->space, service->port, arrival.nic, arrival.destination);
  return id ? find(*id) : nullptr;
}

bool ConnectionManager::Impl::has_room(const Endpoint& listener) {
  return listener.requests.size() < listener.backlog;
}

// In the order: what is asked for, whether it can be had, whether there is room for it.
ConnectionManager::Impl::Asked ConnectionManager::Impl::who_is_asked(const Arrival& arrival,
                                                                     const proto::CmReq& req) {
  using Reason = proto::CmRejectReason;
  const std::optional<QpType> type = type_of(req.transport_service_type);
  if (!type) return {nullptr, Reason::kInvalidTransportType};
  Endpoint* const listener = find_listener(arrival, req.service_id);
  if (listener == nullptr || listener->is_datagram()) return {nullptr, Reason::kInvalidServiceId};
  if (listener->type != *type) return {nullptr, Reason::kInvalidTransportType};
  // Data goes where the REQ came from, or anybody could turn us on somebody else.
  if (req.primary.local_gid != arrival.source || req.primary.remote_gid != arrival.destination)
    return {nullptr, Reason::kInvalidPrimaryGid};
  const auto path_mtu = proto::path_mtu_from_code(req.path_packet_payload_mtu);
  if (!path_mtu || *path_mtu > nics.path_mtu(arrival.nic)) return {nullptr, Reason::kInvalidPathMtu};
  if (req.local_qpn.value() <= 1 || req.local_qpn == proto::kQpnMulticast)
    return {nullptr, Reason::kUnsupportedRequest};
  if (Conversation* const old = find_by_peer(by_remote_qpn, arrival, req.local_qpn.value())) {
    // The peer's queue pair has a new life; ours is told so [IBTA 12.9.8.3.1].
    if (old->state == Conversation::State::kEstablished) disconnect(*old, arrival.now);
    return {nullptr, Reason::kStaleConnection};
  }
  if (!has_room(*listener)) return {};
  return {listener, std::nullopt};
}

Endpoint* ConnectionManager::Impl::add_request(Endpoint& listener, const Arrival& arrival, std::uint16_t port,
                                               const proto::IpCmHeader& header) {
  Endpoint* const endpoint = add_endpoint(listener.client, listener.space, listener.type);
  if (endpoint == nullptr) return nullptr;
  endpoint->nics = listener.nics;
  endpoint->state = Endpoint::State::kRequested;
  endpoint->nic = arrival.nic;
  endpoint->source = {header.destination, port};
  endpoint->destination = {header.source, header.source_port};
  endpoint->av.dgid = arrival.source;
  endpoint->av.sgid_index = arrival.sgid_index;
  endpoint->av.is_global = true;
  endpoint->listener = listener.id;
  endpoint->is_told = false;
  endpoint->type_of_service = listener.type_of_service;
  endpoint->ack_timeout = listener.ack_timeout;
  listener.requests.insert(endpoint->id);
  return endpoint;
}

void ConnectionManager::Impl::settle_request(Endpoint& endpoint, Endpoint::State state) {
  endpoint.state = state;
  if (endpoint.listener) find(*endpoint.listener)->requests.erase(endpoint.id);
  endpoint.listener.reset();
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmReq& req) {
  if (req.local_comm_id == proto::CommunicationId{}) {
    ++counters.malformed;
    return;
  }
  if (Conversation* const known = find_by_peer(by_remote_id, arrival, req.local_comm_id.value())) {
    if (known->remote_qpn == req.local_qpn) return on_repeated_req(*known);
    // One id for two queue pairs: the older one was, or the peer is confused.
  }
  const auto refuse = [&](proto::CmRejectReason reason) {
    ++counters.refused;
    proto::CmRej rej;
    rej.remote_comm_id = req.local_comm_id;
    rej.reason = reason;
    answer_stranger(arrival, rej);
  };
  const Asked asked = who_is_asked(arrival, req);
  if (asked.reason) return refuse(*asked.reason);
  if (asked.listener == nullptr) {
    ++counters.refused;  // silently: there may be room when the peer asks again
    return;
  }
  const std::span<const std::byte> data{req.private_data};
  const auto header = proto::IpCmHeader::parse(data.first<proto::IpCmHeader::kSize>());
  if (!header || header->source != arrival.source || header->destination != arrival.destination)
    return refuse(proto::CmRejectReason::kUnsupportedRequest);
  if (find_by_peer(by_remote_id, arrival, req.local_comm_id.value()) != nullptr)
    return refuse(proto::CmRejectReason::kDuplicateLocalCommunicationId);
  Endpoint* const endpoint = add_request(*asked.listener, arrival, service_of(req.service_id)->port, *header);
  if (endpoint == nullptr) return refuse(proto::CmRejectReason::kNoResources);

  endpoint->remote_qpn = req.local_qpn;
  endpoint->av.flow_label = req.primary.flow_label;
  endpoint->av.traffic_class = req.primary.traffic_class;
  endpoint->av.hop_limit = req.primary.hop_limit == 0 ? kUsualHopLimit : req.primary.hop_limit;
  Conversation& conversation =
      add_conversation(arrival.nic, arrival.destination, arrival.source, endpoint->av);
  endpoint->conversation = &conversation;
  conversation.endpoint = endpoint;
  conversation.state = Conversation::State::kReqReceived;
  learn_remote(conversation, req.local_comm_id, req.local_qpn);
  conversation.send_psn = req.starting_psn;
  conversation.receive_psn = proto::Psn{dice.next()};  // which a library asks for before it accepts
  conversation.path_mtu = *proto::path_mtu_from_code(req.path_packet_payload_mtu);
  conversation.responder_resources = req.initiator_depth;
  conversation.initiator_depth = req.responder_resources;
  conversation.retry_count = req.retry_count;
  conversation.rnr_retry_count = req.rnr_retry_count;
  if (req.primary.local_ack_timeout.duration()) conversation.ack_timeout = req.primary.local_ack_timeout;
  if (endpoint->ack_timeout) conversation.ack_timeout = proto::AckTimeout{*endpoint->ack_timeout};
  conversation.transaction_id = arrival.transaction_id;
  conversation.interval = bounded(req.local_cm_response_timeout.code());
  conversation.retries_left = req.max_cm_retries;

  Event event;
  event.kind = EventKind::kConnectRequest;
  event.listener = asked.listener->id;
  event.parameters = ConnectionParameters{req.local_qpn,
                                          std::nullopt,
                                          req.initiator_depth,
                                          req.responder_resources,
                                          req.end_to_end_flow_control,
                                          req.retry_count,
                                          req.rnr_retry_count,
                                          req.srq,
                                          private_data(data.subspan(proto::IpCmHeader::kSize))};
  raise(*endpoint, event);
}

void ConnectionManager::Impl::on_repeated_req(Conversation& conversation) {
  ++counters.duplicates;
  if (conversation.state == Conversation::State::kReqReceived) {
    say(conversation,
        proto::CmMra{conversation.local, conversation.remote, proto::CmMraed::kReq, kServiceTimeout, {}});
  } else if (conversation.state == Conversation::State::kRepSent) {
    repeat(conversation);
  }
}

std::errc ConnectionManager::Impl::accept_req(Endpoint& endpoint, const ConnectionParameters& parameters,
                                              Time now) {
  if (endpoint.conversation == nullptr || parameters.qpn.value() <= 1) return std::errc::invalid_argument;
  Conversation& conversation = *endpoint.conversation;
  const bool is_datagram = endpoint.is_datagram();
  const std::size_t most = is_datagram ? std::tuple_size_v<decltype(proto::CmSidrRep::private_data)>
                                       : std::tuple_size_v<decltype(proto::CmRep::private_data)>;
  if (parameters.private_data.length_bytes > most) return std::errc::invalid_argument;
  endpoint.qpn = parameters.qpn;
  if (is_datagram) {
    if (parameters.qkey) endpoint.qkey = *parameters.qkey;
    settle_request(endpoint, Endpoint::State::kConnected);
    answer_sidr(conversation, proto::CmSidrStatus::kValid, parameters.qpn, endpoint.qkey,
                parameters.private_data, now);
    return {};
  }
  settle_request(endpoint, Endpoint::State::kAccepted);
  conversation.state = Conversation::State::kRepSent;
  conversation.local_qpn = parameters.qpn;
  // No more than what the application, the peer and the device take.
  conversation.responder_resources = std::min(
      {conversation.responder_resources, parameters.responder_resources, limits.responder_resources});
  conversation.initiator_depth =
      std::min({conversation.initiator_depth, parameters.initiator_depth, limits.responder_resources});

  proto::CmRep rep;
  rep.local_comm_id = conversation.local;
  rep.remote_comm_id = conversation.remote;
  rep.local_qpn = conversation.local_qpn;
  rep.starting_psn = conversation.receive_psn;
  rep.responder_resources = conversation.responder_resources;
  rep.initiator_depth = conversation.initiator_depth;
  rep.target_ack_delay = kTargetAckDelay;
  rep.end_to_end_flow_control = parameters.flow_control != 0;
  rep.rnr_retry_count = std::min<std::uint8_t>(parameters.rnr_retry_count, 7);
  rep.srq = parameters.has_srq;
  rep.local_ca_guid = nics.guid(conversation.nic);
  const auto own = bytes_of(parameters.private_data);
  std::copy(own.begin(), own.end(), rep.private_data.begin());
  request(conversation, rep, conversation.retries_left, conversation.interval, now);
  return {};
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmRtu& rtu) {
  if (conversations.count(rtu.remote_comm_id.value()) == 0 && rtu.local_comm_id != proto::CommunicationId{}) {
    // We gave up while it was on its way: the peer must not believe in this connection.
    ++counters.unknown;
    proto::CmRej rej;
    rej.local_comm_id = rtu.remote_comm_id;
    rej.remote_comm_id = rtu.local_comm_id;
    rej.message_rejected = proto::CmRejected::kNone;
    rej.reason = proto::CmRejectReason::kInvalidCommunicationId;
    return answer_stranger(arrival, rej);
  }
  Conversation* const conversation = find(arrival, rtu.remote_comm_id, rtu.local_comm_id);
  if (conversation == nullptr) return;
  if (conversation->state == Conversation::State::kRepSent) {
    establish(*conversation);
  } else {
    ++counters.duplicates;
  }
}

void ConnectionManager::Impl::establish(Conversation& conversation) {
  conversation.state = Conversation::State::kEstablished;
  set_deadline(conversation, kNever);
  conversation.endpoint->state = Endpoint::State::kConnected;
  raise(*conversation.endpoint, EventKind::kEstablished);
}

}  // namespace roci::emulator::cm
