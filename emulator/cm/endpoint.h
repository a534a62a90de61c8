// One id of a client (rdma_cm_id): addresses, a port, and what the client did with it so far.
//
// Not here: the exchange with a peer (conversation.h), which it has while it connects and after. No thread
// rule.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "emulator/cm/connection_manager.h"

namespace roci::emulator::cm {

struct Conversation;

inline constexpr proto::Qkey kRdmaUdpQkey{0x01234567};  // RDMA_UDP_QKEY, of ids that name none

struct Endpoint {
  enum class State : std::uint8_t {
    kIdle,
    kBound,
    kAddressQuery,
    kAddressResolved,
    kRouteResolved,
    kListening,
    kConnecting,  // the active side: REQ or SIDR_REQ sent, or REP received
    kRequested,   // the passive side: the application is asked
    kAccepted,    // the passive side: REP sent
    kConnected,   // of datagrams: the peer's queue pair is known
    kOver,        // rejected, unreachable or disconnected
  };

  IdHandle id;
  ClientId client{};
  std::uint64_t nics = 0;  // those that its client saw when it made the id
  PortSpace space = PortSpace::kTcp;
  QpType type = QpType::kRc;
  State state = State::kIdle;

  SocketAddress source, destination;
  bool holds_port = false;
  std::optional<NicId> nic;
  AddressVector av;
  Time deadline = kNever;  // of kAddressQuery

  bool may_share_port = false, one_family = false;
  std::uint8_t type_of_service = 0;
  std::optional<std::uint8_t> ack_timeout;
  proto::Qkey qkey = kRdmaUdpQkey;
  std::map<std::uint64_t, proto::Gid> groups;

  std::uint32_t backlog = 0;         // kListening
  std::set<IdHandle> requests;       // kListening: those in kRequested
  std::optional<IdHandle> listener;  // kRequested: whose backlog it is part of
  bool is_told = true;               // false: its kConnectRequest was not taken yet

  Conversation* conversation = nullptr;  // none: not yet, or no more
  ConnectionParameters asked;            // by connect(), for a second try
  proto::Qpn qpn, remote_qpn;

  [[nodiscard]] bool is_datagram() const { return type == QpType::kUd; }
};

}  // namespace roci::emulator::cm
