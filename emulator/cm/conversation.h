// What two sides said to each other under a pair of communication ids [IBTA chapter 12, figures 135, 136].
//
// A value that the manager's handlers move on; it outlives its id while it says goodbye and in time wait.
// Found by its own id, and by what the peer calls it: see Peer. No thread rule.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "emulator/cm/connection_manager.h"
#include "proto/ack_timeout.h"
#include "proto/cm.h"

namespace roci::emulator::cm {

struct Endpoint;

// ---- times. An answer is due after about 1.07 s and two packet lifetimes: a quarter of the 6.2 s that Linux
// waits, as networks of this kind have no subnet manager and lose packets rather than delay them. With 15
// retries an unreachable peer is given up after 26 s, and one slow application is still waited for: it is the
// peer's connection manager that answers (MRA), not the application.
inline constexpr proto::CmTimeout kResponseTimeout{18};
inline constexpr std::uint8_t kMaxCmRetries = 15;
inline constexpr proto::CmTimeout kPacketLifetime{16};  // 0.27 s
// What the applications' queue pairs get: two lifetimes, and no delay for the acknowledgement.
inline constexpr proto::AckTimeout kAckTimeout{17};
// What a queue pair of ours takes to acknowledge, as query_device says, too: 0.13 s, as the daemon may wait
// for a core that long.
inline constexpr proto::CmTimeout kTargetAckDelay{15};
inline constexpr Duration kRequestInterval = kResponseTimeout.duration() + 2 * kPacketLifetime.duration();
// How long our applications may think about a REQ or REP, as Linux says: 69 s. We believe a peer no more.
inline constexpr proto::CmTimeout kServiceTimeout{24};
// A datagram peer that did not hear our answer asks again for as long: Linux after 4.3 s.
inline constexpr Duration kSidrLinger = proto::CmTimeout{21}.duration();

// What a peer says of its own times, within reason: it can neither make us flood nor remember for hours.
[[nodiscard]] constexpr Duration bounded(std::uint8_t code) {
  return proto::CmTimeout{std::clamp<std::uint8_t>(code, 16, 20)}.duration();
}

// The ACK timeout towards a peer that takes `delay` to acknowledge: the sum, rounded up to a code.
[[nodiscard]] constexpr proto::AckTimeout with_delay(proto::AckTimeout timeout, proto::CmTimeout delay) {
  if (delay.code() + 1 < timeout.code()) return timeout;
  return proto::AckTimeout{static_cast<std::uint8_t>(
      std::min(std::max(timeout.code(), delay.code()) + 1, int{proto::AckTimeout::kMask}))};
}

// The peer's name for a conversation. Its address is that of the IP header: nobody can speak for another.
struct Peer {
  std::uint8_t nic = 0;
  proto::Gid gid;
  std::uint32_t number = 0;  // its communication id, request id, or QPN
  constexpr auto operator<=>(const Peer&) const = default;
};

struct Conversation {
  enum class State : std::uint8_t {
    kReqSent,
    kReqReceived,  // the application is asked
    kRepSent,
    kRepReceived,  // the application's library moves its queue pair
    kEstablished,
    kDreqSent,
    kTimeWait,
    kSidrReqSent,
    kSidrReqReceived,  // the application is asked
    kSidrRepSent,      // remembered, to answer again
  };

  proto::CommunicationId local, remote;  // remote 0: not known yet
  State state = State::kReqSent;
  bool is_active = false;  // this side asked
  NicId nic;
  proto::Gid local_gid, peer_gid;
  AddressVector to;              // for MADs and, as it is, for the queue pair
  Endpoint* endpoint = nullptr;  // none: its id is gone
  bool is_detached = false;      // so it counts as one that outlives its id

  // ---- what was agreed on for the queue pairs, as ours has it
  proto::Qpn local_qpn, remote_qpn;
  proto::Psn receive_psn, send_psn;  // that the peer starts with, that we start with
  proto::PathMtu path_mtu = proto::PathMtu::k256;
  std::uint8_t responder_resources = 0, initiator_depth = 0;
  std::uint8_t retry_count = 0, rnr_retry_count = 0;
  proto::AckTimeout ack_timeout = kAckTimeout;

  // ---- what was said last. A request is repeated until it is answered; an answer, when it is asked for
  // again.
  std::array<std::byte, proto::kMadBytes> last_mad{};
  std::uint64_t transaction_id = 0;  // of the exchange that goes on
  proto::ServiceId service_id;       // SIDR
  Duration interval = kRequestInterval;
  std::uint8_t retries_left = 0;
  bool is_prolonged = false;  // an MRA came since it was said last
  Time deadline = kNever;

  [[nodiscard]] Peer peer(std::uint32_t number) const { return {nic.index, peer_gid, number}; }
  [[nodiscard]] bool is_datagram() const { return state >= State::kSidrReqSent; }
};

}  // namespace roci::emulator::cm
