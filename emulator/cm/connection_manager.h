// Connection management: what a kernel's ib_cm and rdma_cm do, as a value without socket, clock, thread or
// dice. Finds peers by IP address and port, and agrees with them on queue pairs [IBTA chapter 12, A11].
//
// It knows ids (rdma_cm_id), each of a client, and speaks by MADs, which whoever holds it carries to and from
// QP1; it never touches a queue pair: an application's library moves that through its states with what
// qp_attributes() says. The same inputs at the same times and the same seed give the same MADs and events.
// Two layers: `Endpoint` (endpoint.h) is one id, with addresses, port and events; `Conversation`
// (conversation.h) is what two sides said to each other under a pair of communication ids.
//
// Bounds: ids a client and in all, beyond which a peer's REQ is refused; requests that wait for an
// application's answer (a listener's backlog), beyond which a REQ is not answered, so that its retry may find
// room; conversations that outlive their id, beyond which the next is forgotten at once; MADs to be taken,
// beyond which they are lost as on a wire. Nothing else is disturbed. All that a peer sends is hostile.
// Errors are the errno that the rdma_cm device would give. Thread rule: one thread. Lifetimes: spans are lent
// for the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <variant>
#include <vector>

#include "emulator/command.h"
#include "emulator/engine.h"
#include "emulator/time.h"
#include "proto/types.h"

namespace roci::emulator::cm {

// An IP address and a port; IPv4 as ::ffff:a.b.c.d. The address of all zeros (of either family) is "any".
struct SocketAddress {
  proto::Gid ip;
  std::uint16_t port = 0;

  constexpr bool operator==(const SocketAddress&) const = default;
  [[nodiscard]] bool is_any() const;
};

// The numbers of RDMA_PS_*.
enum class PortSpace : std::uint16_t { kIpoib = 0x0002, kTcp = 0x0106, kUdp = 0x0111, kIb = 0x013F };

// Unique for the life of the manager, as the rdma_cm device names it; 0 is none.
struct IdHandle {
  std::uint32_t value = 0;
  constexpr auto operator<=>(const IdHandle&) const = default;
};
enum class ClientId : std::uint64_t {};  // one open of the rdma_cm device

// The numbers of RDMA_CM_EVENT_*.
enum class EventKind : std::uint8_t {
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kMulticastJoin = 12,
  kMulticastError = 13,
  kAddrChange = 14,
  kTimewaitExit = 15,
};

struct PrivateData {
  std::array<std::byte, 256> bytes{};
  std::uint8_t length_bytes = 0;
};

// What an application says on connecting or accepting, and is told of what the peer said (then "responder
// resources" are what this side may take, so the two are swapped [IBTA, responder resources and initiator
// depth]).
struct ConnectionParameters {
  proto::Qpn qpn;
  std::optional<proto::Qkey> qkey;  // datagrams; none: that of the port space
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t flow_control = 0;
  std::uint8_t retry_count = 0;      // 0..7, of the connecting side
  std::uint8_t rnr_retry_count = 0;  // 0..7
  bool has_srq = false;
  PrivateData private_data;
};

// How to reach a datagram peer (kEstablished of a UD id) or group (kMulticastJoin). kConnectRequest of a UD
// id carries one of which only the private data means something.
struct DatagramParameters {
  proto::Qpn qpn;
  proto::Qkey qkey;
  AddressVector av;
  PrivateData private_data;
};

struct Event {
  EventKind kind = EventKind::kAddrResolved;
  ClientId client{};
  IdHandle id;                  // kConnectRequest: the new id
  IdHandle listener;            // kConnectRequest only
  std::int32_t status = 0;      // a negative errno; kRejected: the reason of the REJ; kUnreachable of a UD id
                                // that the peer refused: the SIDR status
  std::uint64_t multicast = 0;  // kMulticastJoin, kMulticastError: the number that join() was given
  std::variant<std::monostate, ConnectionParameters, DatagramParameters> parameters;
};

// One MAD of QP1, as it lies in the payload of a datagram.
inline constexpr std::size_t kMadBytes = 256;
struct ReceivedMad {
  NicId nic;
  proto::Gid source, destination;  // of the IP header
  proto::Qpn source_qpn;
  std::span<const std::byte, kMadBytes> bytes;
};
struct OutgoingMad {
  NicId nic;
  AddressVector to;  // with the GID index that the peer knows this side by
  std::array<std::byte, kMadBytes> bytes{};
};
// Asks for the neighbour of an address; answered by on_neighbour().
struct NeighbourRequest {
  IdHandle id;
  NicId nic;
  AddressVector to;
};

// What rdma_query_* tells of an id, as far as it is known.
struct Route {
  SocketAddress source, destination;
  std::optional<NicId> nic;  // once bound to one
  AddressVector av;          // meaningful once resolved
  bool is_route_resolved = false;
};

struct QpTransition {
  std::uint32_t mask = 0;  // QpAttributeBit
  QpAttributes attributes;
};

struct Limits {
  std::uint32_t ids = 65536;  // of all clients
  std::uint32_t ids_of_client = 16384;
  std::uint32_t backlog = 1024;  // the most a listener gets, whatever it asks for
  std::uint32_t time_waits =
      16384;  // conversations that say goodbye or are remembered after their id is gone
  std::uint32_t groups_of_id = 64;
  std::uint32_t mads = 8192;               // that wait to be taken
  std::uint8_t responder_resources = 128;  // READs and ATOMICs of one QP: DeviceLimits::max_qp_rd_atom
};

class ConnectionManager {
 public:
  // `nics` as in EngineConfig, NicId is the index. `seed` is for communication ids, PSNs and ports.
  ConnectionManager(const std::vector<NicConfig>& nics, const std::uint64_t (&seed)[4], Limits limits = {});
  ~ConnectionManager();
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // ---- the wire
  void on_mad(const ReceivedMad& mad, Time now);
  void on_timers(Time now);
  [[nodiscard]] Time next_deadline() const;
  // The outcome of a NeighbourRequest; of an id that is gone: no effect.
  void on_neighbour(IdHandle id, std::errc error, Time now);

  // The NIC's addresses are those of `config` now. Ids that are bound to one that is gone stay so, in vain.
  void on_addresses(NicId nic, const NicConfig& config);

  // ---- what came of it: take one by one until there is none, after any call.
  [[nodiscard]] std::optional<OutgoingMad> take_mad();
  [[nodiscard]] std::optional<NeighbourRequest> take_neighbour_request();
  [[nodiscard]] std::optional<Event> take_event();

  // ---- clients. `nics`: those that this client sees (bit n: NIC n). Closing destroys its ids.
  void open_client(ClientId client, std::uint64_t nics);
  void close_client(ClientId client, Time now);

  // ---- ids: rdma_create_id and so on. EINVAL: not in a state for it; EBADF-like ENOENT: no such id of this
  // client.
  struct Created {
    std::errc error{};
    IdHandle id;
  };
  [[nodiscard]] Created create(ClientId client, PortSpace space, QpType type);
  // Says goodbye to a peer (DREQ or REJ) as its state wants. No event of this id is taken after it: those
  // that were not are dropped, and the ids of a listener's requests with them; requests whose event was taken
  // live on without the listener. (So whoever holds events back from an application destroys their ids.)
  [[nodiscard]] std::errc destroy(ClientId client, IdHandle id, Time now);
  // Moves an id, and its events that were not taken, to another client [rdma_migrate_id].
  [[nodiscard]] std::errc migrate(ClientId from, IdHandle id, ClientId to);

  // Port 0: any that is free. 127.0.0.1 and ::1 mean any address of this host, unless a NIC
  // has them. EADDRNOTAVAIL: no address of a NIC that the client sees; EADDRINUSE.
  [[nodiscard]] std::errc bind(ClientId client, IdHandle id, const SocketAddress& source);
  // ENETUNREACH: no NIC leads there. What needs the network ends with kAddrResolved or kAddrError.
  [[nodiscard]] std::errc resolve_address(ClientId client, IdHandle id,
                                          const std::optional<SocketAddress>& source,
                                          const SocketAddress& destination, Duration timeout, Time now);
  [[nodiscard]] std::errc resolve_route(ClientId client, IdHandle id, Duration timeout, Time now);
  // Nothing: no such id.
  [[nodiscard]] std::optional<Route> route(ClientId client, IdHandle id) const;

  // `backlog` 0: the most there is. A request counts until it is accepted, rejected or destroyed, so a short
  // one is lengthened to kLeastBacklog: an application that reads its events slowly is meant, not one that
  // answers slowly.
  static constexpr std::uint32_t kLeastBacklog = 128;
  [[nodiscard]] std::errc listen(ClientId client, IdHandle id, std::uint32_t backlog);
  [[nodiscard]] std::errc connect(ClientId client, IdHandle id, const ConnectionParameters& parameters,
                                  Time now);
  // Of the passive side: REP (or SIDR REP); of the active side after kConnectResponse: RTU, which no event
  // follows. `parameters` is none where the application's library gives none (the active side).
  [[nodiscard]] std::errc accept(ClientId client, IdHandle id,
                                 const std::optional<ConnectionParameters>& parameters, Time now);
  [[nodiscard]] std::errc reject(ClientId client, IdHandle id, std::uint8_t reason, const PrivateData& data,
                                 Time now);
  // DREQ where there is a connection; success without effect where it is already gone or not yet there.
  // A peer's DREQ is answered at once, without waiting for the application.
  [[nodiscard]] std::errc disconnect(ClientId client, IdHandle id, Time now);
  // The application saw data before the RTU arrived [IBTA, communication established].
  [[nodiscard]] std::errc notify_established(ClientId client, IdHandle id, Time now);

  // What to tell modify_qp for the next state; EINVAL: this state is not to be had now.
  struct QpAnswer {
    std::errc error{};
    QpTransition transition;
  };
  [[nodiscard]] QpAnswer qp_attributes(ClientId client, IdHandle id, QpState state) const;

  // ---- groups: `number` comes back in the event, unique within the id
  [[nodiscard]] std::errc join(ClientId client, IdHandle id, const SocketAddress& group, std::uint64_t number,
                               Time now);
  [[nodiscard]] std::errc leave(ClientId client, IdHandle id, std::uint64_t number);

  // ---- options of rdma_set_option
  [[nodiscard]] std::errc set_type_of_service(ClientId client, IdHandle id, std::uint8_t tos);
  [[nodiscard]] std::errc set_reuse_address(ClientId client, IdHandle id, bool reuse);
  [[nodiscard]] std::errc set_one_family_only(ClientId client, IdHandle id, bool only);
  [[nodiscard]] std::errc set_ack_timeout(ClientId client, IdHandle id, std::uint8_t code);

  // ---- observation
  struct IdSnapshot {
    ClientId client{};
    IdHandle id;
    PortSpace space = PortSpace::kTcp;
    const char* state = "";  // a word, for show
    SocketAddress source, destination;
    std::optional<NicId> nic;
    proto::Qpn qpn, remote_qpn;
  };
  [[nodiscard]] std::vector<IdSnapshot> snapshot() const;
  struct Counters {
    std::uint64_t mads_received = 0, mads_sent = 0;
    std::uint64_t malformed = 0;      // not a CM MAD of version 2, or a message that does not parse
    std::uint64_t unknown = 0;        // names a conversation that is not here
    std::uint64_t duplicates = 0;     // seen before and answered again
    std::uint64_t retransmitted = 0;  // by us
    std::uint64_t refused = 0;  // REQ and SIDR REQ that were rejected by us without asking an application
  };
  [[nodiscard]] const Counters& counters() const;
  [[nodiscard]] std::size_t conversations() const;  // time wait included
  [[nodiscard]] std::size_t ids() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace roci::emulator::cm
