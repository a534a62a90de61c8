#include "tests/emulator/script.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <catch2/catch.hpp>

#include "proto/ethernet.h"
#include "proto/text.h"
#include "tests/sim/soundness.h"

namespace roci::script {

using namespace emulator;
using sim::Client;

namespace {

constexpr std::size_t kFrameBytes = 9216;
constexpr std::size_t kMaxPasses = 100'000;

void check(bool holds, const std::string& what, const std::string& wanted, const std::string& got) {
  INFO("expected " << wanted);
  INFO("got      " << got);
  INFO(what);
  CHECK(holds);
}

template <class T>
void compare(const char* field, const std::optional<T>& wanted, const T& got, const std::string& packet) {
  if (wanted.has_value() && *wanted != got) {
    check(false, std::string("field ") + field, std::to_string(+*wanted),
          std::to_string(+got) + " in " + packet);
  }
}

std::string name_of(Opcode opcode) { return std::string(proto::info(opcode).short_name); }

}  // namespace

Bytes pattern(std::size_t count, unsigned first) {
  Bytes bytes(count);
  unsigned value = first * 37;
  for (std::byte& one : bytes) {
    one = static_cast<std::byte>(value ^ (value >> 8));
    ++value;
  }
  return bytes;
}

Bytes peer_arp_reply() {
  Bytes frame(60);
  proto::store_mac(frame.data(), Bench::kOwnMac);
  proto::store_mac(frame.data() + 6, Bench::kPeerMac);
  proto::store_be16(frame.data() + 12, proto::kEthertypeArp);
  proto::store_be64(frame.data() + 14, 0x0001'0800'0604'0002);
  proto::store_mac(frame.data() + 22, Bench::kPeerMac);
  proto::store_be32(frame.data() + 28, Bench::peer_gid().ipv4());
  proto::store_mac(frame.data() + 32, Bench::kOwnMac);
  proto::store_be32(frame.data() + 38, Bench::own_gid().ipv4());
  return frame;
}

void Connection::recv(std::uint64_t wr_id, std::uint32_t bytes, std::uint64_t offset) {
  REQUIRE(qp->post_recv({wr_id, {mr.sge(offset, bytes)}}));
}

class Bench::Sink final : public TxSink {
 public:
  Sink(std::deque<Sent>& sent, const Time& now)
      : sent_(sent), now_(now), storage_(64 * kFrameBytes), frames_(64) {}

  std::span<TxFrame> reserve(std::size_t max) override {
    const std::size_t count = std::min(max, frames_.size());
    for (std::size_t i = 0; i < count; ++i)
      frames_[i] = {storage_.data() + i * kFrameBytes, kFrameBytes, 0, {}};
    return std::span{frames_}.first(count);
  }
  void commit(std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      Sent& one = sent_.emplace_back();
      one.at = now_;
      one.frame.assign(frames_[i].data, frames_[i].data + frames_[i].length_bytes);
      proto::Dissection dissection = proto::dissect(one.frame, proto::LinkType::kEthernet);
      one.packet = dissection.packet;
      // Whatever the test is about, what goes out is sound.
      if (!proto::is_other_traffic(dissection.error)) {
        const std::optional<std::string> fault = sim::unsound(dissection);
        INFO(fault.value_or("sound"));
        CHECK(!fault);
      }
    }
  }
  std::uint64_t blocked_nics() const override { return 0; }

 private:
  std::deque<Sent>& sent_;
  const Time& now_;
  std::vector<std::byte> storage_;
  std::vector<TxFrame> frames_;
};

proto::Gid Bench::own_gid(bool ipv6) {
  proto::Gid gid = proto::Gid::from_ipv4(0x0A000001);
  if (ipv6) gid.bytes = {0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return gid;
}
proto::Gid Bench::peer_gid(bool ipv6) {
  proto::Gid gid = own_gid(ipv6);
  gid.bytes[15] = 2;
  return gid;
}

Bench::Bench(const BenchOptions& options) : options_(options) {
  EngineConfig config;
  config.shard = options.shard;
  config.shard_count = options.shard_count;
  config.window_packets = options.window_packets;
  config.transmit_burst = options.transmit_burst;
  config.daemon_gap = options.daemon_gap;
  config.limits = options.limits;
  config.context_memory_bytes = options.context_memory_bytes;
  NicConfig nic;
  nic.name = "rxe0";
  nic.mac = kOwnMac;
  nic.addresses = {{own_gid(), 24}, {own_gid(true), 64}};
  nic.mtu_bytes = options.mtu_bytes;
  nic.answers_neighbours = options.answers_neighbours;
  if (options.knows_peer) nic.neighbours = {{peer_gid(), kPeerMac}, {peer_gid(true), kPeerMac}};
  config.nics.push_back(nic);
  engine_ = std::make_unique<Engine>(config, memory_);
  sink_ = std::make_shared<Sink>(sent_, now_);
  client_ = &add_client();
}

// ---- the application -------------------------------------------------------------------------------

Client& Bench::add_client() {
  clients_.push_back(std::make_unique<Client>(
      memory_, [this](Command command) { return submit(std::move(command)); }, NicId{0}, "test"));
  return *clients_.back();
}

CommandId Bench::submit_only(Command command) {
  const CommandId id{next_command_++};
  engine_->submit(id, std::move(command), now_);
  pass();
  return id;
}

std::optional<CommandReply> Bench::poll_reply(CommandId id) {
  const auto found =
      std::find_if(replies_.begin(), replies_.end(), [&](const CommandReply& one) { return one.id == id; });
  if (found == replies_.end()) return std::nullopt;
  CommandReply reply = std::move(*found);
  replies_.erase(found);
  return reply;
}

CommandReply Bench::submit(Command command) {
  std::optional<CommandReply> reply = poll_reply(submit_only(std::move(command)));
  if (!reply.has_value()) {
    FAIL("a command is not answered at once");
    std::abort();
  }
  return std::move(*reply);
}

sim::ConnectOptions Bench::connect_options(const ConnectionOptions& options) const {
  sim::ConnectOptions to;
  to.dgid = peer_gid(options_.ipv6);
  to.sgid_index = options_.ipv6 ? 2 : 1;
  to.dest_qpn = proto::Qpn{options.peer_qpn};
  to.sq_psn = proto::Psn{options.our_psn};
  to.rq_psn = proto::Psn{options.peer_psn};
  to.mtu = options.mtu;
  to.access = options.access;
  to.max_rd_atomic = options.max_rd_atomic;
  to.max_dest_rd_atomic = options.max_dest_rd_atomic;
  to.min_rnr_timer = options.min_rnr_timer;
  to.timeout = options.timeout;
  to.retry_cnt = options.retry_cnt;
  to.rnr_retry = options.rnr_retry;
  to.traffic_class = options.traffic_class;
  to.hop_limit = options.hop_limit;
  to.flow_label = options.flow_label;
  return to;
}

AddressVector Bench::peer_av() const {
  AddressVector av;
  av.dgid = peer_gid(options_.ipv6);
  av.sgid_index = options_.ipv6 ? 2 : 1;
  av.is_global = true;
  return av;
}

Connection Bench::connect(Client& client, const ConnectionOptions& options) {
  Connection made;
  made.cq = client.create_cq(200, 0xC0);
  made.recv_cq = client.create_cq(200, 0xC1);
  sim::QpOptions qp = options.qp;
  made.qp = client.create_qp(*made.cq, *made.recv_cq, qp);
  made.mr = client.new_mr(0x10000);
  made.peer_qpn = options.peer_qpn;
  const sim::ConnectOptions to = connect_options(options);
  if (options.state == QpState::kReset) return made;
  if (options.qp.type == QpType::kUd || options.qp.type == QpType::kGsi) {
    for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
      const proto::Qkey qkey{options.qp.type == QpType::kGsi ? kGsiQkeyValue : kQkey};
      REQUIRE(client.to_datagram_state(*made.qp, state, qkey, proto::Psn{options.our_psn}) == std::errc{});
      if (state == options.state) break;
    }
    return made;
  }
  REQUIRE(client.to_init(*made.qp, to.access) == std::errc{});
  if (options.state == QpState::kInit) return made;
  REQUIRE(client.to_rtr(*made.qp, to) == std::errc{});
  if (options.state == QpState::kRtr) return made;
  REQUIRE(client.to_rts(*made.qp, to) == std::errc{});
  return made;
}

void Bench::post(Connection& connection, const sim::SendWr& wr) {
  REQUIRE(connection.qp->post_send(wr));
  pass();
}

void Bench::ring_and_transmit_once(Connection& connection) {
  REQUIRE(connection.qp->ring_doorbell());
  engine_->on_doorbells(now_);
  engine_->transmit(*sink_, now_);
}

void Bench::expect(sim::Cq& cq, const Completion& wanted) {
  const std::optional<RingCqe> cqe = cq.poll();
  INFO("completion wanted: wr_id " << wanted.wr_id.value_or(0) << " status "
                                   << wanted.status.value_or(sim::kWcSuccess));
  REQUIRE(cqe.has_value());
  const std::optional<std::string> fault = sim::unsound(*cqe);
  INFO(fault.value_or("sound"));
  CHECK(!fault);
  CHECK(cqe->status == wanted.status.value_or(sim::kWcSuccess));
  if (wanted.wr_id) CHECK(cqe->wr_id == *wanted.wr_id);
  if (wanted.opcode) CHECK(cqe->opcode == *wanted.opcode);
  if (wanted.byte_len) CHECK(cqe->byte_len == *wanted.byte_len);
  if (wanted.source_qpn) CHECK(cqe->src_qp == *wanted.source_qpn);
  if (wanted.imm) {
    CHECK((cqe->wc_flags & sim::kWcWithImm) != 0);
    CHECK(__builtin_bswap32(cqe->immediate_or_invalidate) == *wanted.imm);
  }
  CHECK(((cqe->wc_flags & sim::kWcWithInvalidate) != 0) == wanted.invalidated.has_value());
  if (wanted.invalidated) CHECK(cqe->immediate_or_invalidate == *wanted.invalidated);
}

void Bench::expect_no_completion(Connection& connection) {
  CHECK(connection.cq->pending() == 0);
  CHECK(connection.recv_cq->pending() == 0);
}

std::vector<Event> Bench::events() { return std::exchange(events_, {}); }

// ---- the peer --------------------------------------------------------------------------------------

Bytes Bench::frame(const Connection& connection, const Line& line) const {
  const proto::OpcodeInfo& opcode = proto::info(line.opcode);
  proto::Packet packet =
      proto::make_packet(line.opcode, options_.ipv6 ? proto::IpVersion::kIpv6 : proto::IpVersion::kIpv4);
  packet.ethernet->source = kPeerMac;
  packet.ethernet->destination = kOwnMac;
  if (packet.ipv4) {
    packet.ipv4->source = peer_gid().ipv4();
    packet.ipv4->destination = own_gid().ipv4();
  }
  if (packet.ipv6) {
    packet.ipv6->source = peer_gid(true);
    packet.ipv6->destination = own_gid(true);
  }
  packet.udp->source_port = 0xC123;
  packet.bth.destination = proto::Qpn{line.dqpn.value_or(connection.qp->qpn().value())};
  packet.bth.psn = proto::Psn{line.psn.value_or(0)};
  packet.bth.ack_request = line.ack_request.value_or(false);
  packet.bth.solicited_event = line.solicited.value_or(false);
  const Bytes payload = line.payload.value_or(Bytes{});
  packet.payload = payload;
  if (opcode.has(proto::Extension::kDeth)) {
    packet.deth = proto::Deth{proto::Qkey{line.qkey.value_or(kQkey)}, 0,
                              proto::Qpn{line.source_qpn.value_or(connection.peer_qpn)}};
  }
  if (opcode.has(proto::Extension::kReth)) {
    packet.reth = proto::Reth{line.va.value_or(connection.mr.iova),
                              proto::Rkey{line.rkey.value_or(connection.mr.rkey.value())},
                              line.length.value_or(static_cast<std::uint32_t>(payload.size()))};
  }
  if (opcode.has(proto::Extension::kAtomicEth)) {
    packet.atomic_eth = proto::AtomicEth{line.va.value_or(connection.mr.iova),
                                         proto::Rkey{line.rkey.value_or(connection.mr.rkey.value())},
                                         line.swap_or_add.value_or(0), line.compare.value_or(0)};
  }
  if (opcode.has(proto::Extension::kAeth)) {
    packet.aeth =
        proto::Aeth{proto::Syndrome{line.syndrome.value_or(0x1F)}, proto::Msn{line.msn.value_or(0)}};
  }
  if (opcode.has(proto::Extension::kAtomicAckEth))
    packet.atomic_ack_eth = proto::AtomicAckEth{line.original.value_or(0)};
  if (opcode.has(proto::Extension::kImmDt)) packet.imm_dt = proto::ImmDt{line.imm.value_or(0)};
  if (opcode.has(proto::Extension::kIeth))
    packet.ieth = proto::Ieth{proto::Rkey{line.invalidates.value_or(0)}};
  if (line.edit) line.edit(packet);
  proto::complete(packet);
  Bytes bytes(proto::size_of(packet));
  REQUIRE(proto::emit(packet, bytes) == bytes.size());
  if (line.damage) line.damage(bytes);
  return bytes;
}

void Bench::receive(const std::vector<Bytes>& frames) {
  std::vector<Frame> lent;
  for (const Bytes& one : frames)
    lent.push_back({one, {0}});
  engine_->on_frames(lent, now_);
  if (!engine_->verdicts().empty()) last_verdict_ = engine_->verdicts().back();
  pass();
}

std::optional<Sent> Bench::take() {
  if (sent_.empty()) return std::nullopt;
  Sent first = std::move(sent_.front());
  sent_.pop_front();
  return first;
}

void Bench::expect(const Line& wanted) {
  const std::optional<Sent> sent = take();
  INFO("expected " << name_of(wanted.opcode) << " psn "
                   << (wanted.psn ? std::to_string(*wanted.psn) : "any"));
  REQUIRE(sent.has_value());
  const proto::Packet& got = sent->packet;
  const std::string text = proto::to_text(got);
  if (got.bth.opcode != wanted.opcode) return check(false, "opcode", name_of(wanted.opcode), text);
  compare("psn", wanted.psn, got.bth.psn.value(), text);
  compare("ack_request", wanted.ack_request, got.bth.ack_request, text);
  compare("solicited", wanted.solicited, got.bth.solicited_event, text);
  compare("dqpn", wanted.dqpn, got.bth.destination.value(), text);
  if (got.aeth) {
    compare("syndrome", wanted.syndrome, got.aeth->syndrome.byte(), text);
    compare("is_ack", wanted.is_ack, got.aeth->syndrome.kind() == proto::Syndrome::Kind::kAck, text);
    compare("msn", wanted.msn, got.aeth->msn.value(), text);
  }
  if (got.deth) {
    compare("qkey", wanted.qkey, got.deth->qkey.value(), text);
    compare("source_qpn", wanted.source_qpn, got.deth->source.value(), text);
  }
  if (got.reth) {
    compare("va", wanted.va, got.reth->virtual_address, text);
    compare("rkey", wanted.rkey, got.reth->rkey.value(), text);
    compare("length", wanted.length, got.reth->dma_length_bytes, text);
  }
  if (got.atomic_eth) {
    compare("va", wanted.va, got.atomic_eth->virtual_address, text);
    compare("rkey", wanted.rkey, got.atomic_eth->rkey.value(), text);
    compare("compare", wanted.compare, got.atomic_eth->compare_data, text);
    compare("swap_or_add", wanted.swap_or_add, got.atomic_eth->swap_or_add_data, text);
  }
  if (got.atomic_ack_eth) compare("original", wanted.original, got.atomic_ack_eth->original_data, text);
  if (got.ieth) compare("invalidates", wanted.invalidates, got.ieth->rkey.value(), text);
  if (got.imm_dt) compare("imm", wanted.imm, got.imm_dt->value, text);
  compare("payload_bytes", wanted.payload_bytes, got.payload.size(), text);
  if (wanted.payload) {
    const bool same =
        std::equal(wanted.payload->begin(), wanted.payload->end(), got.payload.begin(), got.payload.end());
    check(same, "payload", std::to_string(wanted.payload->size()) + " bytes", text);
  }
}

void Bench::expect_nothing() {
  if (sent_.empty()) return;
  check(false, "a packet too many", "nothing", proto::to_text(sent_.front().packet));
}

// ---- the clock -------------------------------------------------------------------------------------

void Bench::pass() {
  engine_->on_doorbells(now_);
  engine_->on_timers(now_);
  for (std::size_t i = 0; i < kMaxPasses && engine_->transmit(*sink_, now_) != 0; ++i)
    continue;
  CommandReply replies[8];
  for (std::size_t got = 0; (got = engine_->drain_replies(replies)) != 0;) {
    for (std::size_t i = 0; i < got; ++i)
      replies_.push_back(std::move(replies[i]));
  }
  Event events[8];
  for (std::size_t got = 0; (got = engine_->drain_events(events)) != 0;)
    events_.insert(events_.end(), events, events + got);
  CHECK(memory_.violations().empty());
}

void Bench::advance_one_step(Time end) {
  // A poll loop would call far more often; once a gap is enough for the engine to see that the daemon runs.
  now_ = std::min({end, now_ + options_.daemon_gap, std::max(engine_->next_deadline(), now_ + Duration(1))});
  pass();
}

void Bench::advance(Duration duration) {
  for (const Time end = now_ + duration; now_ < end;)
    advance_one_step(end);
}

bool Bench::advance_until_sent(Duration limit) {
  for (const Time end = now_ + limit; now_ < end && sent_.empty();)
    advance_one_step(end);
  return !sent_.empty();
}

bool holds(Bench& bench, const Connection& connection, std::uint64_t offset, const Bytes& wanted) {
  const auto got = bench.client().bytes(connection.mr, offset, wanted.size());
  return std::equal(wanted.begin(), wanted.end(), got.begin());
}

}  // namespace roci::script
