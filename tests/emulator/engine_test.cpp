// The engine as its owner sees it: sleep, link state, counters, snapshots, deadlines, and what it is besides
// RDMA.
#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "proto/ethernet.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;
using std::chrono::seconds;

namespace {

Bytes arp_request() {
  Bytes frame(60);
  proto::store_mac(frame.data(), {{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}});
  proto::store_mac(frame.data() + 6, Bench::kPeerMac);
  proto::store_be16(frame.data() + 12, proto::kEthertypeArp);
  proto::store_be64(frame.data() + 14, 0x0001'0800'0604'0001);
  proto::store_mac(frame.data() + 22, Bench::kPeerMac);
  proto::store_be32(frame.data() + 28, Bench::peer_gid().ipv4());
  proto::store_be32(frame.data() + 38, Bench::own_gid().ipv4());
  return frame;
}

}  // namespace

TEST_CASE("asleep: every context's control area says so, and a doorbell rung before is still seen") {
  Bench bench;
  sim::Client& other = bench.add_client();
  Connection qp = bench.connect();
  CHECK(bench.client().control().asleep == 0);
  REQUIRE(qp.qp->post_send({.wr_id = 1, .sges = {qp.mr.sge(0, 4)}}));
  bench.engine().set_asleep(true);
  CHECK(bench.client().control().asleep == 1);
  CHECK(other.control().asleep == 1);
  bench.pass();
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1000});
  bench.engine().set_asleep(false);
  CHECK(bench.client().control().asleep == 0);
  CHECK(other.control().asleep == 0);
}

TEST_CASE("a link that goes down or comes up is an event of each context") {
  Bench bench;
  (void)bench.add_client();
  const auto count = [&](EventKind kind) {
    const auto events = bench.events();
    return std::count_if(events.begin(), events.end(), [&](const Event& one) { return one.kind == kind; });
  };
  bench.engine().on_link({0}, false, bench.now());
  bench.pass();
  CHECK(count(EventKind::kPortErr) == 2);
  bench.engine().on_link({0}, false, bench.now());  // no change
  bench.pass();
  CHECK(count(EventKind::kPortErr) == 0);
  bench.engine().on_link({0}, true, bench.now());
  bench.pass();
  CHECK(count(EventKind::kPortActive) == 2);
}

TEST_CASE("another path MTU is told as a link that went down and up") {
  Bench bench;
  (void)bench.add_client();
  const auto kinds = [&] {
    std::vector<EventKind> all;
    for (const Event& one : bench.events())
      all.push_back(one.kind);
    bench.pass();
    return all;
  };
  bench.engine().on_mtu({0}, 1500, bench.now());
  bench.pass();
  const auto told = kinds();
  CHECK(std::count(told.begin(), told.end(), EventKind::kPortErr) == 2);
  CHECK(std::count(told.begin(), told.end(), EventKind::kPortActive) == 2);
  bench.engine().on_mtu({0}, 1400, bench.now());  // 1024 as before
  bench.pass();
  CHECK(kinds().empty());
  bench.engine().on_link({0}, false, bench.now());
  bench.pass();
  (void)kinds();
  bench.engine().on_mtu({0}, 4200, bench.now());  // nobody is told of a link that is down
  bench.pass();
  CHECK(kinds().empty());
}

TEST_CASE("an idle engine wants nothing, and one that waits says until when") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 14});
  bench.pass();
  CHECK(bench.engine().next_deadline() == kNever);
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 4)}});
  const Duration left = bench.engine().next_deadline() - bench.now();
  CHECK(left > std::chrono::milliseconds(60));
  CHECK(left < std::chrono::milliseconds(4 * 68));
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000});
  CHECK(bench.engine().next_deadline() == kNever);
}

TEST_CASE("counters: frames and bytes both ways, each received frame has one fate") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  std::uint64_t received = 0, received_bytes = 0;
  const auto receive = [&](const Bytes& frame) {
    ++received;
    received_bytes += frame.size();
    bench.receive({frame});
  };
  receive(bench.frame(
      qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(10)}));
  receive(bench.frame(
      qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(10)}));
  receive(bench.frame(qp, {.opcode = Opcode::kRcSendOnly, .psn = 150}));
  receive(Bytes(20));
  receive(arp_request());
  std::uint64_t sent = 0, sent_bytes = 0, roce = 0;
  while (const auto one = bench.take()) {
    ++sent;
    sent_bytes += one->frame.size();
    roce += proto::load_be16(one->frame.data() + 12) == proto::kEthertypeArp ? 0U : 1U;
  }
  const Counters& counters = bench.counters();
  CHECK(counters.rx_frames == received);
  CHECK(counters.rx_bytes == received_bytes);
  CHECK(counters.rx_roce_packets == 3);
  CHECK(counters.tx_frames == sent);
  CHECK(counters.tx_bytes == sent_bytes);
  CHECK(counters.tx_roce_packets == roce);
  CHECK(counters.arp_replies_sent == 1);
  std::uint64_t fates = 0;
  for (const std::uint64_t one : counters.dropped)
    fates += one;
  CHECK(fates == received);
}

TEST_CASE("ARP is answered by shard 0 only, and not where a kernel owns the addresses") {
  for (const bool answers : {true, false}) {
    for (std::uint32_t shard = 0; shard < 2; ++shard) {
      Bench bench({.answers_neighbours = answers, .shard = shard, .shard_count = 2});
      bench.receive({arp_request()});
      CHECK(bench.take().has_value() == (answers && shard == 0));
    }
  }
}

TEST_CASE("W11: the UDP source port is constant for a QP, at least 0xC000, and spread over QPs") {
  Bench bench;
  std::set<std::uint16_t> ports;
  for (std::uint32_t i = 0; i < 64; ++i) {
    Connection qp = bench.connect({.peer_qpn = 0x222222 + 17 * i});
    std::set<std::uint16_t> of_one;
    for (std::uint64_t n = 0; n < 3; ++n) {
      bench.post(qp, {.wr_id = n, .opcode = sim::kWrWrite, .sges = {qp.mr.sge(0, 4)}});
      const auto sent = bench.take();
      REQUIRE(sent.has_value());
      of_one.insert(sent->packet.udp->source_port);
    }
    REQUIRE(of_one.size() == 1);
    CHECK(*of_one.begin() >= 0xC000);
    ports.insert(*of_one.begin());
  }
  CHECK(ports.size() > 56);
}

TEST_CASE(
    "what is sent: MigReq 1, default P_Key, DF, no reserved bit, the traffic class and hop limit of the AV") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 4)}});
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  const proto::Packet& packet = sent->packet;
  CHECK(packet.bth.migration_request);
  CHECK(packet.bth.pkey == proto::kDefaultPkey);
  CHECK(packet.bth.transport_version == 0);
  CHECK_FALSE(packet.bth.fecn);
  CHECK_FALSE(packet.bth.becn);
  CHECK(packet.bth.reserved6 == 0);
  CHECK(packet.bth.reserved7 == 0);
  REQUIRE(packet.ipv4.has_value());
  CHECK(packet.ipv4->dont_fragment);
  CHECK(packet.ipv4->time_to_live == 64);
  CHECK(packet.ipv4->source == Bench::own_gid().ipv4());
  CHECK(packet.ipv4->destination == Bench::peer_gid().ipv4());
  CHECK(packet.udp->checksum == 0);
  CHECK(packet.ethernet->source == Bench::kOwnMac);
  CHECK(packet.ethernet->destination == Bench::kPeerMac);
}

TEST_CASE("RC and UC: traffic class, hop limit and flow label are those of the address, both ways") {
  const auto [type, ipv6] =
      GENERATE(table<QpType, bool>({{QpType::kRc, false}, {QpType::kRc, true}, {QpType::kUc, true}}));
  Bench bench({.ipv6 = ipv6});
  ConnectionOptions options;
  options.qp.type = type;
  options.traffic_class = 0x6B;  // the ECN bits are not the application's
  options.hop_limit = 9;
  options.flow_label = 0x12345;
  Connection qp = bench.connect(options);
  const auto expect_path = [&, is_ipv6 = ipv6] {
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    const proto::Packet& packet = sent->packet;
    CHECK((is_ipv6 ? packet.ipv6->traffic_class : packet.ipv4->traffic_class) == 0x68);
    CHECK((is_ipv6 ? packet.ipv6->hop_limit : packet.ipv4->time_to_live) == 9);
    if (is_ipv6) CHECK(packet.ipv6->flow_label == 0x12345);
    CHECK(packet.udp->source_port == (0xC000 | (0x2345 ^ (0x12345 >> 14))));
  };
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 4)}});
  expect_path();
  if (type != QpType::kRc) return;
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = kPeerPsn, .ack_request = true});
  expect_path();
}

TEST_CASE("a snapshot lists what is there") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 4)}});
  const CommandReply reply = bench.submit({{}, Inspect{}});
  const auto& snapshot = std::get<std::unique_ptr<Snapshot>>(reply.body);
  REQUIRE(snapshot != nullptr);
  REQUIRE(snapshot->contexts.size() == 1);
  CHECK(snapshot->contexts[0].client == "test");
  CHECK(snapshot->contexts[0].pds == 1);
  REQUIRE(snapshot->qps.size() == 1);
  const QpSnapshot& one = snapshot->qps[0];
  CHECK(one.qpn == qp.qp->qpn());
  CHECK(one.state == QpState::kRts);
  CHECK(one.next_psn.value() == 1001);
  CHECK(one.oldest_unacked_psn.value() == 1000);
  CHECK(one.expected_psn.value() == 100);
  CHECK(one.send_queue_depth == 1);
  CHECK(one.recv_queue_depth == 1);
  CHECK(one.packets_sent == 1);
  CHECK(snapshot->mrs.size() == 1);
  CHECK(snapshot->cqs.size() == 2);
  CHECK(snapshot->neighbours.size() == 2);
}

TEST_CASE("IPv6 works as IPv4 does") {
  Bench bench({.ipv6 = true});
  Connection qp = bench.connect();
  qp.recv(1);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(33)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  bench.expect_recv(qp, {.wr_id = 1, .byte_len = 33});
  bench.post(qp, {.wr_id = 2, .sges = {qp.mr.sge(0, 5)}});
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  REQUIRE(sent->packet.ipv6.has_value());
  CHECK(sent->packet.ipv6->destination == Bench::peer_gid(true));
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000});
  bench.expect(qp, {.wr_id = 2});
}
