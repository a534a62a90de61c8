// Protocol tests as packet traces: send this packet, expect that one; a field left out means "usual" when
// sending and "any" when expecting.
//
// One engine with one NIC stands on the bench; the test is the peer, the application and the clock. Nothing
// is lost or late unless the test says so. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulator/engine.h"
#include "proto/packet.h"
#include "tests/sim/plain_memory.h"
#include "tests/sim/verbs.h"

namespace roci::script {

using proto::Opcode;
using Bytes = std::vector<std::byte>;

// `count` bytes that differ from each other and, by `first`, from those of another message.
[[nodiscard]] Bytes pattern(std::size_t count, unsigned first = 1);

// AETH syndromes, as they are on the wire.
inline constexpr std::uint8_t kNakSequence = 0x60, kNakInvalid = 0x61, kNakAccess = 0x62,
                              kNakOperational = 0x63;
[[nodiscard]] constexpr std::uint8_t rnr(std::uint8_t timer) {
  return static_cast<std::uint8_t>(0x20 | timer);
}

struct Line {
  Opcode opcode{};
  std::optional<std::uint32_t> psn{};
  std::optional<bool> ack_request{};       // sending: no
  std::optional<bool> solicited{};         // sending: no
  std::optional<std::uint8_t> syndrome{};  // sending: an ACK without credit limit
  std::optional<bool> is_ack{};            // expecting: an ACK syndrome of any credits, or not
  std::optional<std::uint32_t> msn{};
  std::optional<std::uint64_t> va{};
  std::optional<std::uint32_t> rkey{};
  std::optional<std::uint32_t> length{};  // of the RETH; sending: that of the payload
  std::optional<std::uint32_t> imm{};
  std::optional<std::uint32_t> invalidates{};  // R_Key of the IETH
  std::optional<std::uint64_t> compare{};
  std::optional<std::uint64_t> swap_or_add{};
  std::optional<std::uint64_t> original{};
  std::optional<std::uint32_t> qkey{};        // sending: kQkey
  std::optional<std::uint32_t> source_qpn{};  // of the DETH; sending: the peer's
  std::optional<Bytes> payload{};
  std::optional<std::size_t> payload_bytes{};  // expecting: its size only
  std::optional<std::uint32_t> dqpn{};         // sending: the QP's; expecting: any
  std::function<void(proto::Packet&)> edit{};  // sending: last change before lengths and ICRC are computed
  std::function<void(Bytes& frame)> damage{};  // sending: of the finished frame
};

struct Sent {
  emulator::Time at;
  std::vector<std::byte> frame;
  proto::Packet packet;  // borrows from `frame`
};

struct Completion {
  std::optional<std::uint64_t> wr_id{};
  std::optional<std::uint32_t> status{};  // success unless given
  std::optional<std::uint32_t> opcode{};
  std::optional<std::uint32_t> byte_len{};
  std::optional<std::uint32_t> imm{};
  std::optional<std::uint32_t> source_qpn{};   // of a datagram
  std::optional<std::uint32_t> invalidated{};  // key that the peer ended
};

struct BenchOptions {
  std::uint32_t window_packets = 128;
  std::uint32_t transmit_burst = 32;
  emulator::Duration daemon_gap = std::chrono::milliseconds(1);
  bool knows_peer = true;  // as a static neighbour
  bool answers_neighbours = true;
  bool ipv6 = false;
  std::uint32_t mtu_bytes = 4200;
  emulator::DeviceLimits limits{};
  std::uint64_t context_memory_bytes = emulator::EngineConfig{}.context_memory_bytes;
  std::uint32_t shard = 0, shard_count = 1;
};

// What the peer is: packets come from it and go to it.
inline constexpr std::uint32_t kPeerQpn = 0x222222;
inline constexpr std::uint32_t kOurPsn = 1000;  // the engine's first, as requester
inline constexpr std::uint32_t kPeerPsn = 100;  // the peer's first, which the engine expects
inline constexpr std::uint32_t kQkey = 0x11111111, kGsiQkeyValue = 0x80010000;

inline constexpr std::uint32_t kGrh = 40;  // bytes before a received datagram's payload

class Bench;

// One connected QP, or one for datagrams, its queues and memory.
struct Connection {
  std::unique_ptr<sim::Cq> cq;
  std::unique_ptr<sim::Cq> recv_cq;  // for receives
  std::unique_ptr<sim::Qp> qp;
  sim::Mr mr;  // 64 KiB, all rights
  std::uint32_t peer_qpn = kPeerQpn;

  // A receive of that many bytes at the region's `offset`.
  void recv(std::uint64_t wr_id, std::uint32_t bytes = 4096, std::uint64_t offset = 0x8000);
};

constexpr std::uint32_t kMtu = 256;  // bytes, of a ConnectionOptions left alone

struct ConnectionOptions {
  std::uint32_t peer_qpn = kPeerQpn;
  std::uint32_t our_psn = kOurPsn, peer_psn = kPeerPsn;
  proto::PathMtu mtu = proto::PathMtu::k256;
  std::uint8_t timeout = 14, retry_cnt = 3, rnr_retry = 3, min_rnr_timer = 12;
  std::uint8_t traffic_class = 0, hop_limit = 64;
  std::uint32_t flow_label = 0;
  std::uint8_t max_rd_atomic = 4, max_dest_rd_atomic = 4;
  std::uint32_t access =
      emulator::kAccessRemoteWrite | emulator::kAccessRemoteRead | emulator::kAccessRemoteAtomic;
  sim::QpOptions qp{};
  emulator::QpState state = emulator::QpState::kRts;  // how far it is taken
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options = {});

  // ---- the application
  sim::Client& client() { return *client_; }
  sim::Client& add_client();
  Connection connect(const ConnectionOptions& options = {}) { return connect(*client_, options); }
  Connection connect(sim::Client& client, const ConnectionOptions& options);
  // An address handle for the peer.
  emulator::AhHandle peer_ah() { return client_->create_ah(peer_av()); }
  [[nodiscard]] emulator::AddressVector peer_av() const;
  // A UD QP.
  Connection connect_datagrams(emulator::QpState state = emulator::QpState::kRts) {
    ConnectionOptions options;
    options.qp.type = emulator::QpType::kUd;
    options.state = state;
    return connect(options);
  }
  sim::ConnectOptions connect_options(const ConnectionOptions& options) const;
  // Posts and lets the engine work.
  void post(Connection& connection, const sim::SendWr& wr);
  // Of what is queued the engine sends one burst, and no more.
  void ring_and_transmit_once(Connection& connection);
  void expect(Connection& connection, const Completion& completion) { expect(*connection.cq, completion); }
  void expect_recv(Connection& connection, const Completion& completion) {
    expect(*connection.recv_cq, completion);
  }
  void expect(sim::Cq& cq, const Completion& completion);
  void expect_no_completion(Connection& connection);
  [[nodiscard]] std::vector<emulator::Event> events();       // since the last call
  emulator::CommandReply submit(emulator::Command command);  // and wait, without letting time pass
  // Without waiting: the reply comes by poll_reply().
  emulator::CommandId submit_only(emulator::Command command);
  std::optional<emulator::CommandReply> poll_reply(emulator::CommandId id);

  // ---- the peer
  [[nodiscard]] Bytes frame(const Connection& connection, const Line& line) const;
  void send(const Connection& connection, const Line& line) { receive({frame(connection, line)}); }
  // Several frames in one burst.
  void receive(const std::vector<Bytes>& frames);
  void expect(const Line& line);
  void expect_nothing();
  // The next packet sent, taken out.
  [[nodiscard]] std::optional<Sent> take();
  // Why the engine dropped the last frame; kAccepted if it did not.
  [[nodiscard]] emulator::DropReason last_verdict() const { return last_verdict_; }

  // ---- the clock
  [[nodiscard]] emulator::Time now() const { return now_; }
  // Lets the engine do what is due, and sends what it has, without letting time pass.
  void pass();
  // Lets time pass; the engine is called at each of its deadlines.
  void advance(emulator::Duration duration);
  // The same until a packet is sent; false if none is within that time.
  bool advance_until_sent(emulator::Duration limit);
  // The same, but the daemon is not scheduled meanwhile.
  void stall(emulator::Duration duration) { now_ += duration; }
  [[nodiscard]] emulator::Engine& engine() { return *engine_; }
  [[nodiscard]] sim::PlainMemory& memory() { return memory_; }
  [[nodiscard]] const emulator::Counters& counters() const { return engine_->counters({0}); }
  [[nodiscard]] std::uint64_t dropped(emulator::DropReason reason) const {
    return counters().dropped[static_cast<std::size_t>(reason)];
  }

  [[nodiscard]] static proto::Gid own_gid(bool ipv6 = false);
  [[nodiscard]] static proto::Gid peer_gid(bool ipv6 = false);
  static constexpr proto::Mac kOwnMac{{2, 0, 0, 0, 0, 1}};
  static constexpr proto::Mac kPeerMac{{2, 0, 0, 0, 0, 2}};

 private:
  class Sink;

  void advance_one_step(emulator::Time end);

  BenchOptions options_;
  sim::PlainMemory memory_;
  std::unique_ptr<emulator::Engine> engine_;
  std::shared_ptr<Sink> sink_;
  std::deque<Sent> sent_;
  std::vector<emulator::CommandReply> replies_;
  std::vector<emulator::Event> events_;
  std::vector<std::unique_ptr<sim::Client>> clients_;
  sim::Client* client_ = nullptr;
  emulator::Time now_{std::chrono::seconds(1)};
  emulator::DropReason last_verdict_ = emulator::DropReason::kAccepted;
  std::uint64_t next_command_ = 1;
};

// The peer's answer to the engine's ARP request.
[[nodiscard]] Bytes peer_arp_reply();

// Whether the connection's region holds these bytes at the offset.
[[nodiscard]] bool holds(Bench& bench, const Connection& connection, std::uint64_t offset,
                         const Bytes& wanted);

}  // namespace roci::script
