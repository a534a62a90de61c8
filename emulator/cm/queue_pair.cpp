// What an application's library is to tell modify_qp, as the kernel's ib_cm and rdma_cm have it.
#include "emulator/cm/impl.h"

namespace roci::emulator::cm {
namespace {

// Whether the two sides know each other's queue pairs.
bool is_agreed(const Conversation& conversation, bool with_peer) {
  switch (conversation.state) {
    case Conversation::State::kReqSent:
      return !with_peer;
    case Conversation::State::kReqReceived:
    case Conversation::State::kRepSent:
    case Conversation::State::kRepReceived:
    case Conversation::State::kEstablished:
      return true;
    case Conversation::State::kDreqSent:
    case Conversation::State::kTimeWait:
    case Conversation::State::kSidrReqSent:
    case Conversation::State::kSidrReqReceived:
    case Conversation::State::kSidrRepSent:
      return false;
  }
  return false;
}

}  // namespace

ConnectionManager::QpAnswer ConnectionManager::Impl::qp_attributes(const Endpoint& endpoint,
                                                                   QpState state) const {
  QpAnswer answer;
  QpAttributes& attributes = answer.transition.attributes;
  std::uint32_t& mask = answer.transition.mask;
  const Conversation* const conversation = endpoint.conversation;
  const QpAnswer none{std::errc::invalid_argument, {}};
  if (!endpoint.nic) return none;  // no port is chosen yet
  const bool is_rc = endpoint.type == QpType::kRc;
  attributes.state = state;
  mask = kQpState;
  if (state == QpState::kInit) {
    attributes.pkey_index = 0;
    attributes.port = 1;
    mask |= kQpPkeyIndex | kQpPort;
    if (endpoint.is_datagram()) {
      attributes.qkey = endpoint.qkey;
      mask |= kQpQkey;
      return answer;
    }
    mask |= kQpAccessFlags;
    if (conversation == nullptr) return answer;  // before connect(): rights come with RTR
    if (!is_agreed(*conversation, false)) return none;
    attributes.access = kAccessRemoteWrite;
    if (is_rc && conversation->responder_resources != 0)
      attributes.access |= kAccessRemoteRead | kAccessRemoteAtomic;
    return answer;
  }
  if (state != QpState::kRtr && state != QpState::kRts) return none;
  if (endpoint.is_datagram()) {
    if (state == QpState::kRts) mask |= kQpSqPsn;
    return answer;
  }
  if (conversation == nullptr || !is_agreed(*conversation, true)) return none;
  if (state == QpState::kRtr) {
    attributes.av = conversation->to;
    attributes.path_mtu_code = proto::code_of(conversation->path_mtu);
    attributes.dest_qpn = conversation->remote_qpn;
    attributes.rq_psn = conversation->receive_psn;
    mask |= kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn;
    if (!is_rc) return answer;
    attributes.max_dest_rd_atomic = conversation->responder_resources;
    mask |= kQpMaxDestRdAtomic | kQpMinRnrTimer;
    return answer;
  }
  attributes.sq_psn = conversation->send_psn;
  mask |= kQpSqPsn;
  if (!is_rc) return answer;
  attributes.timeout = conversation->ack_timeout.code();
  attributes.retry_cnt = conversation->retry_count;
  attributes.rnr_retry = conversation->rnr_retry_count;
  attributes.max_rd_atomic = conversation->initiator_depth;
  mask |= kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic;
  return answer;
}

}  // namespace roci::emulator::cm
