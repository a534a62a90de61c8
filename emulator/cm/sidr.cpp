// Datagrams: which queue pair of a host answers for a service [IBTA, service id resolution].
#include <algorithm>

#include "emulator/cm/impl.h"

namespace roci::emulator::cm {

void ConnectionManager::Impl::send_sidr_req(Endpoint& endpoint, Time now) {
  Conversation& conversation =
      add_conversation(*endpoint.nic, endpoint.source.ip, endpoint.destination.ip, endpoint.av);
  endpoint.conversation = &conversation;
  conversation.endpoint = &endpoint;
  conversation.state = Conversation::State::kSidrReqSent;
  conversation.is_active = true;
  conversation.transaction_id = std::uint64_t{dice.next()} << 32 | conversation.local.value();
  proto::CmSidrReq req;
  req.request_id = conversation.local;
  req.service_id =
      proto::service_id_of(static_cast<proto::CmPortSpace>(endpoint.space), endpoint.destination.port);
  const std::span<std::byte> data{req.private_data};
  proto::IpCmHeader header;
  header.ip_version = endpoint.source.ip.is_ipv4() ? proto::IpVersion::kIpv4 : proto::IpVersion::kIpv6;
  header.source_port = endpoint.source.port;
  header.source = endpoint.source.ip;
  header.destination = endpoint.destination.ip;
  header.emit(data.first<proto::IpCmHeader::kSize>());
  const auto own = bytes_of(endpoint.asked.private_data);
  std::copy(own.begin(), own.end(), data.begin() + proto::IpCmHeader::kSize);
  request(conversation, req, kMaxCmRetries, kRequestInterval, now);
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmSidrReq& req) {
  if (Conversation* const known = find_by_peer(by_request_id, arrival, req.request_id.value())) {
    ++counters.duplicates;
    if (known->state == Conversation::State::kSidrRepSent) repeat(*known);
    return;
  }
  const auto refuse = [&](proto::CmSidrStatus status) {
    ++counters.refused;
    proto::CmSidrRep rep;
    rep.request_id = req.request_id;
    rep.status = status;
    rep.service_id = req.service_id;
    answer_stranger(arrival, rep);
  };
  Endpoint* const listener = find_listener(arrival, req.service_id);
  if (listener == nullptr || !listener->is_datagram())
    return refuse(proto::CmSidrStatus::kServiceIdNotSupported);
  const std::span<const std::byte> data{req.private_data};
  const auto header = proto::IpCmHeader::parse(data.first<proto::IpCmHeader::kSize>());
  if (!header || header->source != arrival.source || header->destination != arrival.destination)
    return refuse(proto::CmSidrStatus::kRejected);
  if (!has_room(*listener)) {
    ++counters.refused;  // silently, as with REQ
    return;
  }
  Endpoint* const endpoint = add_request(*listener, arrival, listener->source.port, *header);
  if (endpoint == nullptr) return refuse(proto::CmSidrStatus::kNoQp);
  Conversation& conversation =
      add_conversation(arrival.nic, arrival.destination, arrival.source, endpoint->av);
  endpoint->conversation = &conversation;
  conversation.endpoint = endpoint;
  conversation.state = Conversation::State::kSidrReqReceived;
  conversation.remote = req.request_id;
  conversation.service_id = req.service_id;
  conversation.transaction_id = arrival.transaction_id;
  by_request_id[conversation.peer(req.request_id.value())] = conversation.local;
  Event event;
  event.kind = EventKind::kConnectRequest;
  event.listener = listener->id;
  event.parameters =
      DatagramParameters{{}, {}, endpoint->av, private_data(data.subspan(proto::IpCmHeader::kSize))};
  raise(*endpoint, event);
}

void ConnectionManager::Impl::answer_sidr(Conversation& conversation, proto::CmSidrStatus status,
                                          proto::Qpn qpn, proto::Qkey qkey, const PrivateData& data,
                                          Time now) {
  conversation.state = Conversation::State::kSidrRepSent;
  proto::CmSidrRep rep;
  rep.request_id = conversation.remote;
  rep.status = status;
  rep.qpn = qpn;
  rep.service_id = conversation.service_id;
  rep.qkey = qkey;
  const auto own = bytes_of(data);
  std::copy(own.begin(), own.end(), rep.private_data.begin());
  answer(conversation, rep);
  set_deadline(conversation, now + kSidrLinger);
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmSidrRep& rep) {
  const auto found = conversations.find(rep.request_id.value());
  Conversation* const conversation = found == conversations.end() ? nullptr : found->second.get();
  if (conversation == nullptr || conversation->state != Conversation::State::kSidrReqSent ||
      conversation->nic != arrival.nic || conversation->peer_gid != arrival.source ||
      conversation->local_gid != arrival.destination) {
    ++counters.unknown;
    return;
  }
  if (rep.status != proto::CmSidrStatus::kValid)
    return conclude(*conversation, EventKind::kUnreachable, static_cast<std::int32_t>(rep.status));
  Endpoint& endpoint = *conversation->endpoint;
  endpoint.state = Endpoint::State::kConnected;
  endpoint.remote_qpn = rep.qpn;
  Event event;
  event.kind = EventKind::kEstablished;
  event.parameters = DatagramParameters{rep.qpn, rep.qkey, endpoint.av, private_data(rep.private_data)};
  raise(endpoint, event);
  remove(*conversation);
}

}  // namespace roci::emulator::cm
