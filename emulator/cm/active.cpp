// The side that asks: REQ, and what comes back to it. MRA and REJ, which the other side hears too, are here.
#include <algorithm>

#include "emulator/cm/impl.h"

namespace roci::emulator::cm {
namespace {

constexpr std::uint16_t kPermissiveLid = 0xFFFF;  // RoCE has no LIDs [IBTA CA17-34]; Linux writes this
constexpr std::uint8_t kRate100Gbps = 16;         // IBTA, encoding of rates; what the port says of itself
constexpr std::uint8_t kCountMask = 7;            // of the retry counts

// A queue pair number that a peer may have: not of QP 0, QP 1 or a group.
constexpr bool is_usable(proto::Qpn qpn) { return qpn.value() > 1 && qpn != proto::kQpnMulticast; }

}  // namespace

std::errc ConnectionManager::Impl::connect(Endpoint& endpoint, const ConnectionParameters& parameters,
                                           Time now) {
  if (endpoint.state != Endpoint::State::kRouteResolved) return std::errc::invalid_argument;
  const std::size_t most = endpoint.is_datagram() ? proto::kIpCmSidrReqDataBytes : proto::kIpCmReqDataBytes;
  if (parameters.private_data.length_bytes > most) return std::errc::invalid_argument;
  if (!endpoint.is_datagram() && !is_usable(parameters.qpn)) return std::errc::invalid_argument;
  if (is_multicast(endpoint.destination.ip)) return std::errc::invalid_argument;
  endpoint.asked = parameters;
  endpoint.asked.responder_resources = std::min(parameters.responder_resources, limits.responder_resources);
  endpoint.asked.initiator_depth = std::min(parameters.initiator_depth, limits.responder_resources);
  endpoint.qpn = parameters.qpn;
  endpoint.state = Endpoint::State::kConnecting;
  if (endpoint.is_datagram()) {
    send_sidr_req(endpoint, now);
  } else {
    send_req(endpoint, nics.path_mtu(*endpoint.nic), now);
  }
  return {};
}

void ConnectionManager::Impl::send_req(Endpoint& endpoint, proto::PathMtu path_mtu, Time now) {
  Conversation& conversation =
      add_conversation(*endpoint.nic, endpoint.source.ip, endpoint.destination.ip, endpoint.av);
  endpoint.conversation = &conversation;
  const ConnectionParameters& asked = endpoint.asked;
  conversation.endpoint = &endpoint;
  conversation.state = Conversation::State::kReqSent;
  conversation.is_active = true;
  conversation.local_qpn = asked.qpn;
  conversation.receive_psn = proto::Psn{dice.next()};
  conversation.path_mtu = path_mtu;
  conversation.responder_resources = asked.responder_resources;
  conversation.initiator_depth = asked.initiator_depth;
  conversation.retry_count = std::min(asked.retry_count, kCountMask);
  conversation.rnr_retry_count = std::min(asked.rnr_retry_count, kCountMask);
  if (endpoint.ack_timeout) conversation.ack_timeout = proto::AckTimeout{*endpoint.ack_timeout};
  conversation.transaction_id = std::uint64_t{dice.next()} << 32 | conversation.local.value();

  proto::CmReq req;
  req.local_comm_id = conversation.local;
  req.service_id =
      proto::service_id_of(static_cast<proto::CmPortSpace>(endpoint.space), endpoint.destination.port);
  req.local_ca_guid = nics.guid(conversation.nic);
  req.local_qpn = conversation.local_qpn;
  req.responder_resources = conversation.responder_resources;
  req.initiator_depth = conversation.initiator_depth;
  req.remote_cm_response_timeout = req.local_cm_response_timeout = kResponseTimeout;
  req.transport_service_type =
      endpoint.type == QpType::kUc ? proto::CmTransportService::kUc : proto::CmTransportService::kRc;
  req.end_to_end_flow_control = asked.flow_control != 0;
  req.starting_psn = conversation.receive_psn;
  req.retry_count = conversation.retry_count;
  req.path_packet_payload_mtu = proto::code_of(path_mtu);
  req.rnr_retry_count = conversation.rnr_retry_count;
  req.max_cm_retries = kMaxCmRetries;
  req.srq = asked.has_srq;
  req.primary.local_lid = req.primary.remote_lid = kPermissiveLid;
  req.primary.local_gid = conversation.local_gid;
  req.primary.remote_gid = conversation.peer_gid;
  req.primary.packet_rate = kRate100Gbps;
  req.primary.flow_label = conversation.to.flow_label;
  req.primary.traffic_class = conversation.to.traffic_class;
  req.primary.hop_limit = conversation.to.hop_limit;
  req.primary.local_ack_timeout = conversation.ack_timeout;

  const std::span<std::byte> data{req.private_data};
  proto::IpCmHeader header;
  header.ip_version = endpoint.source.ip.is_ipv4() ? proto::IpVersion::kIpv4 : proto::IpVersion::kIpv6;
  header.source_port = endpoint.source.port;
  header.source = endpoint.source.ip;
  header.destination = endpoint.destination.ip;
  header.emit(data.first<proto::IpCmHeader::kSize>());
  const auto own = bytes_of(asked.private_data);
  std::copy(own.begin(), own.end(), data.begin() + proto::IpCmHeader::kSize);
  request(conversation, req, kMaxCmRetries, kRequestInterval, now);
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmRep& rep) {
  const auto known = conversations.find(rep.remote_comm_id.value());
  if (known == conversations.end() && rep.local_comm_id != proto::CommunicationId{}) {
    // We gave up, or never asked: the peer need not wait for an RTU.
    ++counters.unknown;
    proto::CmRej rej;
    rej.local_comm_id = rep.remote_comm_id;
    rej.remote_comm_id = rep.local_comm_id;
    rej.message_rejected = proto::CmRejected::kRep;
    rej.reason = proto::CmRejectReason::kInvalidCommunicationId;
    return answer_stranger(arrival, rej);
  }
  Conversation* const found = find(arrival, rep.remote_comm_id, rep.local_comm_id);
  if (found == nullptr) return;
  Conversation& conversation = *found;
  if (conversation.state != Conversation::State::kReqSent) {
    ++counters.duplicates;
    if (!conversation.is_active) return;
    if (conversation.state == Conversation::State::kEstablished) repeat(conversation);  // the RTU
    if (conversation.state == Conversation::State::kRepReceived) {
      say(conversation,
          proto::CmMra{conversation.local, conversation.remote, proto::CmMraed::kRep, kServiceTimeout, {}});
    }
    return;
  }
  conversation.transaction_id = arrival.transaction_id;
  if (!is_usable(rep.local_qpn) || find_by_peer(by_remote_qpn, arrival, rep.local_qpn.value()) != nullptr ||
      find_by_peer(by_remote_id, arrival, rep.local_comm_id.value()) != nullptr) {
    // It names what is connected already [IBTA 12.9.8.3.1].
    conversation.state = Conversation::State::kRepReceived;
    conversation.remote = rep.local_comm_id;
    reject(conversation, proto::CmRejectReason::kStaleConnection, {});
    return conclude(conversation, EventKind::kRejected,
                    static_cast<std::int32_t>(proto::CmRejectReason::kStaleConnection));
  }
  set_deadline(conversation, kNever);
  learn_remote(conversation, rep.local_comm_id, rep.local_qpn);
  conversation.state = Conversation::State::kRepReceived;
  conversation.send_psn = rep.starting_psn;
  conversation.initiator_depth = std::min(conversation.initiator_depth, rep.responder_resources);
  conversation.responder_resources = std::min(conversation.responder_resources, rep.initiator_depth);
  conversation.rnr_retry_count = rep.rnr_retry_count;  // each says what the other is to do
  if (!conversation.endpoint->ack_timeout)
    conversation.ack_timeout = with_delay(conversation.ack_timeout, rep.target_ack_delay);

  Endpoint& endpoint = *conversation.endpoint;
  endpoint.remote_qpn = rep.local_qpn;
  Event event;
  event.kind = EventKind::kConnectResponse;
  event.parameters = ConnectionParameters{rep.local_qpn,
                                          std::nullopt,
                                          rep.initiator_depth,
                                          rep.responder_resources,
                                          rep.end_to_end_flow_control,
                                          conversation.retry_count,
                                          rep.rnr_retry_count,
                                          rep.srq,
                                          private_data(rep.private_data)};
  raise(endpoint, event);
}

std::errc ConnectionManager::Impl::accept_rep(Endpoint& endpoint) {
  Conversation* const conversation = endpoint.conversation;
  if (conversation == nullptr || conversation->state != Conversation::State::kRepReceived)
    return std::errc::invalid_argument;
  conversation->state = Conversation::State::kEstablished;
  endpoint.state = Endpoint::State::kConnected;
  answer(*conversation, proto::CmRtu{conversation->local, conversation->remote, {}});
  return {};
}

// The peer's application takes its time. One MRA counts for each time we ask, so patience ends.
void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmMra& mra) {
  Conversation* const conversation = find(arrival, mra.remote_comm_id, mra.local_comm_id);
  if (conversation == nullptr) return;
  const bool is_due =
      mra.message_mraed == proto::CmMraed::kReq
          ? conversation->state == Conversation::State::kReqSent
          : mra.message_mraed == proto::CmMraed::kRep && conversation->state == Conversation::State::kRepSent;
  if (!is_due || conversation->is_prolonged) {
    ++counters.duplicates;
    return;
  }
  conversation->is_prolonged = true;
  const Duration patience = std::min(mra.service_timeout.duration(), kServiceTimeout.duration());
  set_deadline(*conversation, arrival.now + patience + conversation->interval);
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmRej& rej) {
  // A peer that got no answer knows no id of ours [IBTA Table 108]; one that has none yet says 0.
  if (rej.remote_comm_id == proto::CommunicationId{}) {
    Conversation* const conversation = find_by_peer(by_remote_id, arrival, rej.local_comm_id.value());
    if (conversation != nullptr && conversation->local_gid == arrival.destination &&
        conversation->state == Conversation::State::kReqReceived)
      return on_rejected(*conversation, rej, arrival.now);
  }
  const auto known = conversations.find(rej.remote_comm_id.value());
  const bool is_first = known != conversations.end() && known->second->state == Conversation::State::kReqSent;
  // Any name will do for what is not known by name yet.
  const proto::CommunicationId theirs =
      is_first && rej.local_comm_id == proto::CommunicationId{} ? rej.remote_comm_id : rej.local_comm_id;
  Conversation* const conversation = find(arrival, rej.remote_comm_id, theirs);
  if (conversation != nullptr) on_rejected(*conversation, rej, arrival.now);
}

void ConnectionManager::Impl::on_rejected(Conversation& conversation, const proto::CmRej& rej, Time now) {
  const auto tell = [&] {
    if (conversation.endpoint == nullptr) return;
    Event event;
    event.kind = EventKind::kRejected;
    event.status = static_cast<std::int32_t>(rej.reason);
    event.parameters = ConnectionParameters{};
    std::get<ConnectionParameters>(event.parameters).private_data = private_data(rej.private_data);
    settle_request(*conversation.endpoint, Endpoint::State::kOver);
    raise(*conversation.endpoint, event);
  };
  switch (conversation.state) {
    case Conversation::State::kReqSent:
      if (rej.reason == proto::CmRejectReason::kInvalidPathMtu &&
          conversation.path_mtu != proto::PathMtu::k256) {
        // The peer's port takes less: the next smaller one, under a new name.
        const auto smaller = static_cast<proto::PathMtu>(proto::bytes_of(conversation.path_mtu) / 2);
        Endpoint& endpoint = *conversation.endpoint;
        remove(conversation);
        return send_req(endpoint, smaller, now);
      }
      tell();
      return remove(conversation);
    case Conversation::State::kReqReceived:
    case Conversation::State::kRepSent:
      tell();
      return remove(conversation);
    case Conversation::State::kRepReceived:
    case Conversation::State::kEstablished:
      tell();
      return enter_time_wait(conversation, now);
    case Conversation::State::kDreqSent:  // it is gone there, which is what was asked for
      if (conversation.endpoint != nullptr) raise(*conversation.endpoint, EventKind::kDisconnected);
      return enter_time_wait(conversation, now);
    case Conversation::State::kTimeWait:
    case Conversation::State::kSidrReqSent:
    case Conversation::State::kSidrReqReceived:
    case Conversation::State::kSidrRepSent:
      ++counters.duplicates;
      return;
  }
}

}  // namespace roci::emulator::cm
