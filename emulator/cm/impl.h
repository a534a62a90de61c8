// The manager's tables and what its parts share. Each part is a file: resolution.cpp (addresses, ports),
// active.cpp, passive.cpp, release.cpp, sidr.cpp (what is said and heard, in that order of a connection's
// life), queue_pair.cpp, group.cpp, manager.cpp (ids, conversations, timers), connection_manager.cpp (the
// interface).
//
// Thread rule: one thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "emulator/cm/addressing.h"
#include "emulator/cm/connection_manager.h"
#include "emulator/cm/conversation.h"
#include "emulator/cm/endpoint.h"
#include "emulator/cm/ports.h"
#include "emulator/dice.h"
#include "proto/cm.h"

namespace roci::emulator::cm {

// A MAD that parsed, with what an answer needs.
struct Arrival {
  NicId nic;
  proto::Gid source, destination;
  std::uint8_t sgid_index = 0;
  std::uint64_t transaction_id = 0;
  Time now;
};

// What happens when, of any number of things, in order.
class Deadlines {
 public:
  // Moves one from `old` to `when`; kNever is none.
  void move(std::uint64_t key, Time& old, Time when) {
    if (old != kNever) order_.erase({old, key});
    old = when;
    if (when != kNever) order_.emplace(when, key);
  }
  [[nodiscard]] Time next() const { return order_.empty() ? kNever : order_.begin()->first; }
  [[nodiscard]] std::uint64_t first() const { return order_.begin()->second; }

 private:
  std::set<std::pair<Time, std::uint64_t>> order_;
};

struct ConnectionManager::Impl {
  struct Client {
    std::uint64_t nics = 0;
    std::set<IdHandle> ids;
  };

  Impl(const std::vector<NicConfig>& configs, const std::uint64_t (&seed)[4], Limits bounds)
      : nics(configs), dice(seed, kStream), limits(bounds) {}

  // ---- manager.cpp: clients and ids
  [[nodiscard]] Endpoint* find(ClientId client, IdHandle id);
  [[nodiscard]] Endpoint* find(IdHandle id);
  [[nodiscard]] Endpoint* add_endpoint(ClientId client, PortSpace space, QpType type);  // null: no more
  void remove_endpoint(Endpoint& endpoint, Time now);                                   // says goodbye
  [[nodiscard]] std::errc migrate(Endpoint& endpoint, ClientId to);
  void set_deadline(Endpoint& endpoint, Time when);

  // ---- manager.cpp: conversations
  [[nodiscard]] Conversation& add_conversation(NicId nic, const proto::Gid& local, const proto::Gid& peer,
                                               const AddressVector& to);
  void remove(Conversation& conversation);
  // Its id goes on without it, or goes; within the bound it is remembered until its deadline.
  void detach(Conversation& conversation);
  void learn_remote(Conversation& conversation, proto::CommunicationId id, proto::Qpn qpn);
  void set_deadline(Conversation& conversation, Time when);
  // The one that is meant, and that the sender may speak for; counts those that are not.
  [[nodiscard]] Conversation* find(const Arrival& arrival, proto::CommunicationId ours,
                                   proto::CommunicationId theirs);
  [[nodiscard]] Conversation* find_by_peer(const std::map<Peer, proto::CommunicationId>& names,
                                           const Arrival& arrival, std::uint32_t number);

  // ---- manager.cpp: what goes out
  // Sends and remembers. A request starts an exchange of its own, and is repeated `retries` times.
  void request(Conversation& conversation, const proto::CmMessage& message, std::uint8_t retries,
               Duration interval, Time now);
  void answer(Conversation& conversation, const proto::CmMessage& message);  // is remembered
  void say(const Conversation& conversation, const proto::CmMessage& message);
  void repeat(Conversation& conversation);
  void answer_stranger(const Arrival& arrival, const proto::CmMessage& message);
  void push(NicId nic, const AddressVector& to, std::span<const std::byte, proto::kMadBytes> bytes);
  void raise(const Endpoint& endpoint, EventKind kind, std::int32_t status = 0);
  void raise(const Endpoint& endpoint, Event event);
  // The id's conversation ends with this event; it may not be remembered.
  void conclude(Conversation& conversation, EventKind kind, std::int32_t status);

  // ---- manager.cpp: what comes in
  void on_mad(const ReceivedMad& mad, Time now);
  void on_timers(Time now);
  void on_timeout(Conversation& conversation, Time now);
  void give_up(Conversation& conversation, Time now);

  // ---- resolution.cpp
  [[nodiscard]] std::errc bind(Endpoint& endpoint, SocketAddress source);
  [[nodiscard]] std::errc take_port(Endpoint& endpoint, const SocketAddress& source, std::uint64_t on);
  [[nodiscard]] std::errc resolve_address(Endpoint& endpoint, const std::optional<SocketAddress>& source,
                                          SocketAddress destination, Duration timeout, Time now);
  void finish_resolution(Endpoint& endpoint, std::errc error);
  [[nodiscard]] std::errc listen(Endpoint& endpoint, std::uint32_t backlog);

  // ---- active.cpp
  [[nodiscard]] std::errc connect(Endpoint& endpoint, const ConnectionParameters& parameters, Time now);
  void send_req(Endpoint& endpoint, proto::PathMtu path_mtu, Time now);
  [[nodiscard]] std::errc accept_rep(Endpoint& endpoint);
  void on(const Arrival& arrival, const proto::CmRep& rep);
  void on(const Arrival& arrival, const proto::CmMra& mra);
  void on(const Arrival& arrival, const proto::CmRej& rej);
  void on_rejected(Conversation& conversation, const proto::CmRej& rej, Time now);

  // ---- passive.cpp
  void on(const Arrival& arrival, const proto::CmReq& req);
  void on_repeated_req(Conversation& conversation);
  // Who is asked for; what a REJ says otherwise. Null and no reason: no answer at all.
  struct Asked {
    Endpoint* listener = nullptr;
    std::optional<proto::CmRejectReason> reason;
  };
  [[nodiscard]] Asked who_is_asked(const Arrival& arrival, const proto::CmReq& req);
  [[nodiscard]] Endpoint* find_listener(const Arrival& arrival, proto::ServiceId service);
  [[nodiscard]] static bool has_room(const Endpoint& listener);
  // The new id of a request; null: no more.
  [[nodiscard]] Endpoint* add_request(Endpoint& listener, const Arrival& arrival, std::uint16_t port,
                                      const proto::IpCmHeader& header);
  void settle_request(Endpoint& endpoint, Endpoint::State state);  // it waits for the application no more
  [[nodiscard]] std::errc accept_req(Endpoint& endpoint, const ConnectionParameters& parameters, Time now);
  void on(const Arrival& arrival, const proto::CmRtu& rtu);
  void establish(Conversation& conversation);

  // ---- release.cpp
  void reject(Conversation& conversation, proto::CmRejectReason reason, const PrivateData& data);
  void disconnect(Conversation& conversation, Time now);
  void abandon(Conversation& conversation, Time now);  // its id goes
  void enter_time_wait(Conversation& conversation, Time now);
  void on(const Arrival& arrival, const proto::CmDreq& dreq);
  void on(const Arrival& arrival, const proto::CmDrep& drep);
  void on(const Arrival& arrival, const proto::CmLap& lap);
  void on(const Arrival& arrival, const proto::CmApr& apr);

  // ---- sidr.cpp
  void send_sidr_req(Endpoint& endpoint, Time now);
  void on(const Arrival& arrival, const proto::CmSidrReq& req);
  void on(const Arrival& arrival, const proto::CmSidrRep& rep);
  void answer_sidr(Conversation& conversation, proto::CmSidrStatus status, proto::Qpn qpn, proto::Qkey qkey,
                   const PrivateData& data, Time now);

  // ---- queue_pair.cpp, group.cpp
  [[nodiscard]] QpAnswer qp_attributes(const Endpoint& endpoint, QpState state) const;
  [[nodiscard]] std::errc join(Endpoint& endpoint, const SocketAddress& group, std::uint64_t number);

  static constexpr std::uint64_t kStream = 0x636D;  // of the dice: "cm"

  Addressing nics;
  Dice dice;
  Limits limits;
  Counters counters;

  std::unordered_map<std::uint64_t, Client> clients;
  std::unordered_map<std::uint32_t, std::unique_ptr<Endpoint>> endpoints;
  std::uint32_t last_id = 0;
  Ports ports;

  // Ordered maps where a peer chooses the key: no choice of it makes them slow.
  std::unordered_map<std::uint32_t, std::unique_ptr<Conversation>> conversations;  // by our id
  std::map<Peer, proto::CommunicationId> by_remote_id, by_remote_qpn, by_request_id;
  std::size_t detached = 0;  // conversations without id

  Deadlines deadlines;  // key: our communication id, or kOfEndpoint + id
  static constexpr std::uint64_t kOfEndpoint = std::uint64_t{1} << 32;

  std::deque<OutgoingMad> mads;
  std::deque<NeighbourRequest> neighbour_requests;
  std::deque<Event> events;
};

// ---- private data
[[nodiscard]] inline std::span<const std::byte> bytes_of(const PrivateData& data) {
  return std::span{data.bytes}.first(data.length_bytes);
}
[[nodiscard]] inline PrivateData private_data(std::span<const std::byte> bytes) {
  PrivateData data;
  std::copy(bytes.begin(), bytes.end(), data.bytes.begin());
  data.length_bytes = static_cast<std::uint8_t>(bytes.size());
  return data;
}

}  // namespace roci::emulator::cm
