// How conversations end: REJ, DREQ and DREP, time wait; and alternate paths, which are refused.
#include "emulator/cm/impl.h"
#include "proto/bytes.h"

namespace roci::emulator::cm {

void ConnectionManager::Impl::reject(Conversation& conversation, proto::CmRejectReason reason,
                                     const PrivateData& data) {
  proto::CmRej rej;
  rej.local_comm_id = conversation.local;
  rej.remote_comm_id = conversation.remote;
  rej.message_rejected = conversation.state == Conversation::State::kReqReceived   ? proto::CmRejected::kReq
                         : conversation.state == Conversation::State::kRepReceived ? proto::CmRejected::kRep
                                                                                   : proto::CmRejected::kNone;
  rej.reason = reason;
  if (reason == proto::CmRejectReason::kTimeout) {  // from whom, as no id of the receiver's may be known
    proto::store_be64(rej.additional_reject_information.data(), nics.guid(conversation.nic));
    rej.reject_info_length_bytes = 8;
  }
  const auto own = bytes_of(data);
  std::copy(own.begin(), own.end(), rej.private_data.begin());
  say(conversation, rej);
}

void ConnectionManager::Impl::disconnect(Conversation& conversation, Time now) {
  conversation.state = Conversation::State::kDreqSent;
  conversation.transaction_id = std::uint64_t{dice.next()} << 32 | conversation.local.value();
  request(conversation, proto::CmDreq{conversation.local, conversation.remote, conversation.remote_qpn, {}},
          kMaxCmRetries, kRequestInterval, now);
}

void ConnectionManager::Impl::abandon(Conversation& conversation, Time now) {
  switch (conversation.state) {
    case Conversation::State::kReqSent:
      reject(conversation, proto::CmRejectReason::kTimeout, {});
      return remove(conversation);
    case Conversation::State::kReqReceived:
    case Conversation::State::kRepReceived:
    case Conversation::State::kRepSent:
      reject(conversation, proto::CmRejectReason::kConsumerReject, {});
      return remove(conversation);
    case Conversation::State::kEstablished:
      disconnect(conversation, now);
      return detach(conversation);
    case Conversation::State::kDreqSent:
    case Conversation::State::kTimeWait:
    case Conversation::State::kSidrRepSent:
      return detach(conversation);
    case Conversation::State::kSidrReqSent:
      return remove(conversation);
    case Conversation::State::kSidrReqReceived:
      answer_sidr(conversation, proto::CmSidrStatus::kRejected, {}, {}, {}, now);
      return detach(conversation);
  }
}

// Twice the time a packet may be under way, and what the peer takes to acknowledge: the ACK timeout says it.
void ConnectionManager::Impl::enter_time_wait(Conversation& conversation, Time now) {
  conversation.state = Conversation::State::kTimeWait;
  if (conversation.endpoint != nullptr) conversation.endpoint->state = Endpoint::State::kOver;
  set_deadline(conversation, now + bounded(conversation.ack_timeout.code()));
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmDreq& dreq) {
  if (conversations.count(dreq.remote_comm_id.value()) == 0 &&
      dreq.local_comm_id != proto::CommunicationId{}) {
    ++counters.unknown;  // forgotten already; a DREP was lost
    return answer_stranger(arrival, proto::CmDrep{dreq.remote_comm_id, dreq.local_comm_id, {}});
  }
  Conversation* const conversation = find(arrival, dreq.remote_comm_id, dreq.local_comm_id);
  if (conversation == nullptr) return;
  const auto release = [&] {
    conversation->transaction_id = arrival.transaction_id;
    answer(*conversation, proto::CmDrep{conversation->local, conversation->remote, {}});
  };
  if (dreq.remote_qpn_eecn != conversation->local_qpn) {
    ++counters.unknown;
    return;
  }
  switch (conversation->state) {
    case Conversation::State::kRepSent:  // the RTU was lost
    case Conversation::State::kRepReceived:
    case Conversation::State::kEstablished:
    case Conversation::State::kDreqSent:
      release();
      if (conversation->endpoint != nullptr) raise(*conversation->endpoint, EventKind::kDisconnected);
      return enter_time_wait(*conversation, arrival.now);
    case Conversation::State::kTimeWait:
      ++counters.duplicates;
      return release();
    case Conversation::State::kReqSent:
    case Conversation::State::kReqReceived:
    case Conversation::State::kSidrReqSent:
    case Conversation::State::kSidrReqReceived:
    case Conversation::State::kSidrRepSent:
      ++counters.unknown;  // there is no connection yet
      return;
  }
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmDrep& drep) {
  Conversation* const conversation = find(arrival, drep.remote_comm_id, drep.local_comm_id);
  if (conversation == nullptr) return;
  if (conversation->state != Conversation::State::kDreqSent) {
    ++counters.duplicates;
    return;
  }
  if (conversation->endpoint != nullptr) raise(*conversation->endpoint, EventKind::kDisconnected);
  enter_time_wait(*conversation, arrival.now);
}

void ConnectionManager::Impl::on(const Arrival& arrival, const proto::CmLap& lap) {
  Conversation* const conversation = find(arrival, lap.remote_comm_id, lap.local_comm_id);
  if (conversation == nullptr) return;
  if (conversation->state != Conversation::State::kEstablished) {
    ++counters.unknown;
    return;
  }
  proto::CmApr apr;
  apr.local_comm_id = conversation->local;
  apr.remote_comm_id = conversation->remote;
  apr.ap_status = proto::CmApStatus::kNotSupported;
  // The RTU stays what is repeated.
  conversation->transaction_id = arrival.transaction_id;
  say(*conversation, apr);
}

// Never asked for.
void ConnectionManager::Impl::on(const Arrival&, const proto::CmApr&) { ++counters.unknown; }

}  // namespace roci::emulator::cm
