// The UD service: address handles, datagrams out and in, and what a failed send leaves behind.
#include <algorithm>
#include <cstring>
#include <set>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

// 4 KiB from the region's start to the peer.
sim::SendWr to_peer(Bench& bench, const Connection& qp, std::uint32_t bytes, std::uint64_t wr_id = 1) {
  return {.wr_id = wr_id,
          .sges = {qp.mr.sge(0, bytes)},
          .ah = bench.peer_ah(),
          .remote_qpn = proto::Qpn{kPeerQpn},
          .remote_qkey = proto::Qkey{kQkey}};
}

void fill(Bench& bench, const Connection& qp, std::uint64_t offset, const Bytes& with) {
  std::copy(with.begin(), with.end(), bench.client().bytes(qp.mr, offset, with.size()).begin());
}

std::size_t handles(Bench& bench) {
  const CommandReply reply = bench.submit({{}, Inspect{}});
  return std::get<std::unique_ptr<Snapshot>>(reply.body)->ahs.size();
}

// Of six requests, 0 to 5: three are sent and complete, one fails, the rest is flushed.
void expect_fourth_fails(Bench& bench, Connection& qp) {
  bench.expect_nothing();
  for (const std::uint64_t id : {0U, 1U, 2U})
    bench.expect(qp, {.wr_id = id});
  bench.expect(qp, {.wr_id = 3, .status = sim::kWcLocalProtection});
  for (const std::uint64_t id : {4U, 5U})
    bench.expect(qp, {.wr_id = id, .status = sim::kWcFlushed});
}

}  // namespace

// ---- sending ---------------------------------------------------------------------------------------

TEST_CASE("UD: a SEND is one packet and complete when it is sent") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  fill(bench, qp, 0, pattern(100));
  bench.post(qp, to_peer(bench, qp, 100));
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  const proto::Packet& packet = sent->packet;
  CHECK(packet.bth.opcode == Opcode::kUdSendOnly);
  CHECK(packet.bth.psn.value() == kOurPsn);
  CHECK(packet.bth.destination.value() == kPeerQpn);
  CHECK_FALSE(packet.bth.ack_request);  // W08
  CHECK(packet.bth.migration_request);
  CHECK(packet.deth->qkey.value() == kQkey);
  CHECK(packet.deth->source == qp.qp->qpn());
  CHECK(packet.ethernet->destination == Bench::kPeerMac);
  CHECK(std::equal(packet.payload.begin(), packet.payload.end(), pattern(100).begin()));
  bench.expect(qp, {.wr_id = 1, .opcode = sim::kWcSend});
  CHECK(qp.qp->send_queued() == 0);
  CHECK(bench.engine().next_deadline() == kNever);  // nothing is awaited
}

TEST_CASE("UD: immediate data, solicited event, inline data, no data; PSNs count packets") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  fill(bench, qp, 0, pattern(64));
  sim::SendWr wr = to_peer(bench, qp, 64);
  wr.opcode = sim::kWrSendImm;
  wr.immediate = 0x01020304;
  wr.flags |= sim::kSolicited;
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kUdSendOnlyImmediate,
                .psn = kOurPsn,
                .solicited = true,
                .imm = 0x01020304,
                .payload = pattern(64)});
  wr = to_peer(bench, qp, 30, 2);
  wr.flags |= sim::kInline;
  wr.sges[0].lkey = {};  // not looked at
  REQUIRE(qp.qp->queue_send(wr));
  fill(bench, qp, 0, Bytes(64));
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  bench.expect(
      {.opcode = Opcode::kUdSendOnly, .psn = kOurPsn + 1, .solicited = false, .payload = pattern(30)});
  wr = to_peer(bench, qp, 0, 3);
  wr.sges.clear();
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kUdSendOnly, .psn = kOurPsn + 2, .payload_bytes = 0});
  for (const std::uint64_t id : {1U, 2U, 3U})
    bench.expect(qp, {.wr_id = id});
}

TEST_CASE("UD: a Q_Key with the top bit set stands for the QP's own") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  sim::SendWr wr = to_peer(bench, qp, 4);
  wr.remote_qkey = proto::Qkey{0x80000000};
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kUdSendOnly, .qkey = kQkey});
  wr.remote_qkey = proto::Qkey{0x7FFFFFFF};
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kUdSendOnly, .qkey = 0x7FFFFFFF});
}

TEST_CASE("UD: the header is the address handle's, the source port the QP's") {
  Bench bench({.ipv6 = true});
  Connection qp = bench.connect_datagrams();
  AddressVector av = bench.peer_av();
  av.traffic_class = 0x6B;  // the ECN bits are not the application's
  av.hop_limit = 9;
  av.flow_label = 0x12345;
  sim::SendWr wr = to_peer(bench, qp, 4);
  wr.ah = bench.client().create_ah(av);
  bench.post(qp, wr);
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  REQUIRE(sent->packet.ipv6.has_value());
  CHECK(sent->packet.ipv6->traffic_class == 0x68);
  CHECK(sent->packet.ipv6->hop_limit == 9);
  CHECK(sent->packet.ipv6->flow_label == 0x12345);
  CHECK(sent->packet.ipv6->source == Bench::own_gid(true));
  CHECK(sent->packet.ipv6->destination == Bench::peer_gid(true));
  CHECK(sent->packet.udp->source_port == 0xC000 + (qp.qp->qpn().value() * 0x61C88647U >> 18));
  CHECK(sent->packet.udp->checksum == 0);
}

TEST_CASE("W11: datagrams of many QPs spread over source ports, over one address handle, too") {
  Bench bench;
  std::set<std::uint16_t> ports;
  sim::SendWr wr;
  for (int i = 0; i < 64; ++i) {
    Connection qp = bench.connect_datagrams();
    wr = to_peer(bench, qp, 4);
    bench.post(qp, wr);
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.udp->source_port >= 0xC000);
    ports.insert(sent->packet.udp->source_port);
  }
  CHECK(ports.size() > 56);
}

TEST_CASE("UD: a burst of datagrams over two handles keeps order and completes each once") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  AddressVector other = bench.peer_av();
  other.hop_limit = 3;
  const AhHandle handle[] = {bench.peer_ah(), bench.client().create_ah(other)};
  for (std::uint64_t i = 0; i < 60; ++i) {
    sim::SendWr wr = to_peer(bench, qp, 16, i);
    wr.ah = handle[i % 2];
    wr.remote_qpn = proto::Qpn{static_cast<std::uint32_t>(0x100 + i)};
    REQUIRE(qp.qp->queue_send(wr));
  }
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  for (std::uint32_t i = 0; i < 60; ++i) {
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.bth.psn.value() == kOurPsn + i);
    CHECK(sent->packet.bth.destination.value() == 0x100 + i);
    CHECK(sent->packet.ipv4->time_to_live == (i % 2 == 0 ? 64 : 3));
    bench.expect(qp, {.wr_id = i});
  }
  bench.expect_nothing();
}

// ---- send errors -----------------------------------------------------------------------------------

TEST_CASE("UD: a message longer than the path MTU is not sent, and takes the QP to SQE") {
  Bench bench({.mtu_bytes = 1500});  // path MTU 1024
  Connection qp = bench.connect_datagrams();
  bench.post(qp, to_peer(bench, qp, 1024, 1));
  bench.expect({.opcode = Opcode::kUdSendOnly, .payload_bytes = 1024});
  bench.expect(qp, {.wr_id = 1});
  bench.post(qp, to_peer(bench, qp, 1025, 2));
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcLocalLength});
  CHECK(qp.qp->state() == QpState::kSqe);
}

TEST_CASE("Q13, M04: what a UD QP may not send is an error of that send, and nobody sees it [IBTA C10-10]") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  sim::SendWr wr = to_peer(bench, qp, 8);
  std::uint32_t status = sim::kWcLocalQpOperation;
  SECTION("WRITE") { wr.opcode = sim::kWrWrite; }
  SECTION("READ") { wr.opcode = sim::kWrRead; }
  SECTION("ATOMIC") { wr.opcode = sim::kWrFetchAdd; }
  SECTION("TSO") { wr.opcode = sim::kWrTso; }
  SECTION("no address handle") { wr.ah = {0xFFFFFFFF}; }
  SECTION("a wrong address handle") { wr.ah = {100}; }
  SECTION("an address handle of another PD") {
    const PdHandle pd = std::get<PdHandle>(bench.client().transact(AllocPd{}).body);
    wr.ah = std::get<AhHandle>(bench.client().transact(CreateAh{pd, bench.peer_av()}).body);
  }
  SECTION("a wrong lkey") {
    wr.sges[0].lkey = proto::Lkey{1};
    status = sim::kWcLocalProtection;
  }
  SECTION("memory that is not there") {
    bench.memory().set_fault([](std::uint64_t, const MemoryOp& op) { return op.length_bytes == 8; });
    status = sim::kWcLocalProtection;
  }
  bench.post(qp, wr);
  bench.pass();
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 1, .status = status});
  CHECK(qp.qp->state() == QpState::kSqe);
}

TEST_CASE("UD: a failed send completes behind what was sent before it, and flushes what is behind it") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  for (std::uint64_t i = 0; i < 6; ++i) {
    sim::SendWr wr = to_peer(bench, qp, 8, i);
    if (i == 3) wr.sges[0].lkey = proto::Lkey{1};
    REQUIRE(qp.qp->queue_send(wr));
  }
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  for (std::uint32_t i = 0; i < 3; ++i)
    bench.expect({.opcode = Opcode::kUdSendOnly, .psn = kOurPsn + i});
  expect_fourth_fails(bench, qp);
}

TEST_CASE("UD: memory that fails in a burst completes what was sent before it") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  for (std::uint64_t i = 0; i < 6; ++i)
    REQUIRE(qp.qp->queue_send(to_peer(bench, qp, static_cast<std::uint32_t>(8 + i), i)));
  bench.memory().set_fault([](std::uint64_t, const MemoryOp& op) { return op.length_bytes == 11; });
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  for (std::uint32_t i = 0; i < 3; ++i)
    bench.expect({.opcode = Opcode::kUdSendOnly, .psn = kOurPsn + i, .payload_bytes = 8 + i});
  expect_fourth_fails(bench, qp);
  bench.expect_no_completion(qp);
}

TEST_CASE("SQE: the send queue is flushed, receiving goes on, and RTS is the way back") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  qp.recv(7);
  sim::SendWr bad = to_peer(bench, qp, 8);
  bad.sges[0].lkey = proto::Lkey{1};
  bench.post(qp, bad);
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcLocalProtection});
  REQUIRE(qp.qp->state() == QpState::kSqe);
  bench.post(qp, to_peer(bench, qp, 8, 2));  // also what is posted now
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcFlushed});
  CHECK(bench.client().query(*qp.qp).state == QpState::kSqe);

  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(5)});
  bench.expect_recv(qp, {.wr_id = 7, .byte_len = kGrh + 5});

  REQUIRE(qp.qp->queue_send(to_peer(bench, qp, 8, 3)));  // no doorbell: flushed at the latest by the way back
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kRts) == std::errc{});
  bench.expect(qp, {.wr_id = 3, .status = sim::kWcFlushed});
  bench.post(qp, to_peer(bench, qp, 8, 4));
  bench.expect({.opcode = Opcode::kUdSendOnly, .psn = kOurPsn, .payload_bytes = 8});
  bench.expect(qp, {.wr_id = 4});
  bench.expect_no_completion(qp);
}

TEST_CASE("SQE to ERR flushes the receive queue, too") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  qp.recv(7);
  sim::SendWr bad = to_peer(bench, qp, 8);
  bad.sges[0].lkey = proto::Lkey{1};
  bench.post(qp, bad);
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcLocalProtection});
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kErr) == std::errc{});
  bench.expect_recv(qp, {.wr_id = 7, .status = sim::kWcFlushed});
}

TEST_CASE("UD: nothing is sent in SQD, which is drained at once, and sending goes on in RTS") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  ModifyQp modify{qp.qp->handle(), kQpState | kQpEnSqdAsyncNotify, {}};
  modify.attributes.state = QpState::kSqd;
  modify.attributes.en_sqd_async_notify = true;
  REQUIRE(bench.client().transact(modify).error == std::errc{});
  const auto events = bench.events();
  CHECK(std::any_of(events.begin(), events.end(),
                    [](const Event& one) { return one.kind == EventKind::kSqDrained; }));
  bench.post(qp, to_peer(bench, qp, 8));
  bench.expect_nothing();
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kRts) == std::errc{});
  bench.pass();
  bench.expect({.opcode = Opcode::kUdSendOnly, .psn = kOurPsn});
}

// ---- receiving -------------------------------------------------------------------------------------

TEST_CASE("D01: a datagram over IPv4: 20 bytes of no meaning, the IPv4 header, the payload") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  fill(bench, qp, 0x8000, Bytes(200, std::byte{0xFF}));
  qp.recv(7, 140);
  const Bytes frame = bench.frame(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(100)});
  bench.receive({frame});
  const auto cqe = qp.recv_cq->poll();
  REQUIRE(cqe.has_value());
  CHECK(cqe->wr_id == 7);
  CHECK(cqe->status == sim::kWcSuccess);
  CHECK(cqe->opcode == sim::kWcRecv);
  CHECK(cqe->byte_len == kGrh + 100);
  CHECK(cqe->wc_flags == sim::kWcGrh);
  CHECK(cqe->src_qp == kPeerQpn);
  CHECK(cqe->qp_num == qp.qp->qpn().value());
  CHECK(cqe->pkey_index == 0);
  CHECK(cqe->sl == 0x0A);
  CHECK(holds(bench, qp, 0x8000, Bytes(20)));
  const Bytes header(frame.begin() + 14, frame.begin() + 34);
  CHECK(holds(bench, qp, 0x8000 + 20, header));
  CHECK(proto::internet_checksum(header) == 0);
  CHECK(holds(bench, qp, 0x8000 + kGrh, pattern(100)));
  CHECK(holds(bench, qp, 0x8000 + kGrh + 100, Bytes(60, std::byte{0xFF})));
  bench.expect_nothing();  // W08: no ACK
}

TEST_CASE("D01: a datagram over IPv6: the IPv6 header, the payload") {
  Bench bench({.ipv6 = true});
  Connection qp = bench.connect_datagrams();
  qp.recv(7);
  const Bytes frame =
      bench.frame(qp, {.opcode = Opcode::kUdSendOnlyImmediate, .imm = 0xABCD, .payload = pattern(64)});
  bench.receive({frame});
  const auto cqe = qp.recv_cq->poll();
  REQUIRE(cqe.has_value());
  CHECK(cqe->byte_len == kGrh + 64);
  CHECK(cqe->sl == 0x09);
  CHECK(cqe->wc_flags == (sim::kWcGrh | sim::kWcWithImm));
  CHECK(__builtin_bswap32(cqe->immediate_or_invalidate) == 0xABCD);
  CHECK(holds(bench, qp, 0x8000, Bytes(frame.begin() + 14, frame.begin() + 54)));
  CHECK(holds(bench, qp, 0x8000 + kGrh, pattern(64)));
}

TEST_CASE("UD: a receive of several pieces takes header and payload across them") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  REQUIRE(qp.qp->post_recv({1, {qp.mr.sge(0x8000, 30), qp.mr.sge(0x9000, 20), qp.mr.sge(0xA000, 100)}}));
  const Bytes frame = bench.frame(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(50)});
  bench.receive({frame});
  bench.expect_recv(qp, {.wr_id = 1, .byte_len = kGrh + 50});
  Bytes all(20);
  all.insert(all.end(), frame.begin() + 14, frame.begin() + 34);
  const Bytes payload = pattern(50);
  all.insert(all.end(), payload.begin(), payload.end());
  CHECK(holds(bench, qp, 0x8000, Bytes(all.begin(), all.begin() + 30)));
  CHECK(holds(bench, qp, 0x9000, Bytes(all.begin() + 30, all.begin() + 50)));
  CHECK(holds(bench, qp, 0xA000, Bytes(all.begin() + 50, all.end())));
}

TEST_CASE("UD: what cannot be taken is dropped and counted, and the QP goes on") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  SECTION("another Q_Key") {
    qp.recv(7);
    bench.send(qp, {.opcode = Opcode::kUdSendOnly, .qkey = kQkey + 1, .payload = pattern(4)});
    CHECK(bench.dropped(DropReason::kBadQkey) == 1);
  }
  SECTION("no receive") {
    bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(4)});
    CHECK(bench.dropped(DropReason::kNoReceive) == 1);
    qp.recv(7);
  }
  SECTION("longer than the receive, which stays [IBTA C9-205]") {
    qp.recv(7, 50);
    bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(11)});
    bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(12)});
    CHECK(bench.dropped(DropReason::kTooLong) == 2);
  }
  SECTION("another service") {
    qp.recv(7);
    bench.send(qp, {.opcode = Opcode::kRcSendOnly, .payload = pattern(4)});
    CHECK(bench.dropped(DropReason::kWrongService) == 1);
  }
  SECTION("S03: a reserved opcode") {
    qp.recv(7);
    bench.send(qp, {.opcode = static_cast<Opcode>(0x6F), .payload = pattern(4)});
    CHECK(bench.dropped(DropReason::kUnknownOpcode) == 1);
  }
  SECTION("another P_Key") {
    qp.recv(7);
    bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(4), .edit = [](proto::Packet& packet) {
                      packet.bth.pkey = proto::Pkey{0x8001};
                    }});
    CHECK(bench.dropped(DropReason::kBadPkey) == 1);
  }
  bench.expect_nothing();
  bench.expect_no_completion(qp);
  CHECK(qp.qp->state() == QpState::kRts);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(8)});
  bench.expect_recv(qp, {.wr_id = 7, .byte_len = kGrh + 8});
}

TEST_CASE("UD: longer than the path MTU is dropped [IBTA C9-205]") {
  Bench bench({.mtu_bytes = 600});  // path MTU 512
  Connection qp = bench.connect_datagrams();
  qp.recv(7);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(513)});
  CHECK(bench.dropped(DropReason::kTooLong) == 1);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(512)});
  bench.expect_recv(qp, {.wr_id = 7, .byte_len = kGrh + 512});
}

TEST_CASE("UD: datagrams come from anyone, in any order, and an AckReq is not answered") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  for (std::uint64_t i = 0; i < 3; ++i)
    qp.recv(i);
  const std::uint32_t psns[] = {500, 3, 0xFFFFFF};
  for (std::uint32_t i = 0; i < 3; ++i) {
    bench.send(qp, {.opcode = Opcode::kUdSendOnly,
                    .psn = psns[i],
                    .ack_request = true,
                    .source_qpn = 0x300 + i,
                    .payload = pattern(4),
                    .edit = [i](proto::Packet& packet) { packet.ipv4->source = 0x0B000001 + i; }});
    bench.expect_recv(qp, {.wr_id = i, .source_qpn = 0x300 + i});
  }
  bench.expect_nothing();
}

TEST_CASE("UD: a receive in error completes so, and the QP goes to ERR") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  SECTION("its key") { REQUIRE(qp.qp->post_recv({1, {{qp.mr.iova, 100, proto::Lkey{1}}}})); }
  SECTION("its memory") {
    qp.recv(1);
    bench.memory().set_fault([](std::uint64_t, const MemoryOp&) { return true; });
  }
  SECTION("its memory, and it waited for a shorter datagram") {
    qp.recv(1, 50);
    bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(11)});
    bench.memory().set_fault([](std::uint64_t, const MemoryOp&) { return true; });
  }
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(4)});
  bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcLocalProtection});
  bench.expect_recv(qp, {.wr_id = 2, .status = sim::kWcFlushed});
  bench.expect_no_completion(qp);
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(bench.dropped(DropReason::kReceiveError) == 1);
  bench.expect_nothing();
}

TEST_CASE("UD: a receive that waits for a shorter datagram is flushed like others") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  qp.recv(1, 50);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(11)});
  CHECK(qp.qp->recv_queued() == 0);  // taken
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kErr) == std::errc{});
  bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcFlushed});
}

TEST_CASE("UD: a burst for one QP is as one by one, also where a receive fails in the middle") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  std::vector<Bytes> frames;
  for (std::uint64_t i = 0; i < 5; ++i) {
    qp.recv(i, 4096, 0x8000 + 0x200 * i);
    frames.push_back(bench.frame(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(8 + i)}));
  }
  bench.memory().set_fault([](std::uint64_t, const MemoryOp& op) { return op.length_bytes == 11; });
  bench.receive(frames);
  for (std::uint32_t i = 0; i < 3; ++i)
    bench.expect_recv(qp, {.wr_id = i, .byte_len = kGrh + 8 + i});
  bench.expect_recv(qp, {.wr_id = 3, .status = sim::kWcLocalProtection});
  bench.expect_recv(qp, {.wr_id = 4, .status = sim::kWcFlushed});
  bench.expect_no_completion(qp);
}

TEST_CASE("UD: states below RTR drop, RTR receives") {
  for (const QpState state : {QpState::kReset, QpState::kInit, QpState::kRtr}) {
    Bench bench;
    Connection qp = bench.connect_datagrams(state);
    if (state != QpState::kReset) qp.recv(1);
    bench.send(
        qp,
        {.opcode = Opcode::kUdSendOnly, .qkey = state == QpState::kReset ? 0 : kQkey, .payload = pattern(4)});
    CHECK((bench.last_verdict() == DropReason::kAccepted) == (state == QpState::kRtr));
  }
}

TEST_CASE("UD: two QPs of one NIC reach each other") {
  Bench bench;
  Connection from = bench.connect_datagrams(), to = bench.connect_datagrams();
  to.recv(9);
  fill(bench, from, 0, pattern(200));
  AddressVector av = bench.peer_av();
  av.dgid = Bench::own_gid();
  sim::SendWr wr = to_peer(bench, from, 200);
  wr.ah = bench.client().create_ah(av);
  wr.remote_qpn = to.qp->qpn();
  bench.post(from, wr);
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  CHECK(sent->packet.ethernet->destination == Bench::kOwnMac);
  bench.receive({sent->frame});
  bench.expect_recv(to, {.wr_id = 9, .byte_len = kGrh + 200, .source_qpn = from.qp->qpn().value()});
  CHECK(holds(bench, to, 0x8000 + kGrh, pattern(200)));
}

TEST_CASE("Q09: RESET empties a UD QP, which then works anew") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  qp.recv(1, 50);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(11)});
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kReset) == std::errc{});
  for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts})
    REQUIRE(bench.client().to_datagram_state(*qp.qp, state, proto::Qkey{5}) == std::errc{});
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .qkey = 5, .payload = pattern(11)});
  bench.expect_recv(qp, {.wr_id = 2});
  bench.post(qp, to_peer(bench, qp, 4));
  bench.expect({.opcode = Opcode::kUdSendOnly, .psn = 0});
}

// ---- address handles -------------------------------------------------------------------------------

TEST_CASE("address handles: what is wrong is EINVAL") {
  Bench bench;
  const AddressVector good = bench.peer_av();
  const auto create = [&](AddressVector av) {
    return bench.client().transact(CreateAh{bench.client().pd(), av}).error;
  };
  AddressVector bad = good;
  SECTION("no GRH [IBTA A17.4.2]") { bad.is_global = false; }
  SECTION("no such GID index") { bad.sgid_index = 9; }
  SECTION("GID of the other family") { bad.sgid_index = 2; }
  SECTION("no destination") { bad.dgid = {}; }
  SECTION("port") { bad.port = 2; }
  CHECK(create(bad) == std::errc::invalid_argument);
  CHECK(bench.client().transact(CreateAh{{77}, good}).error == std::errc::invalid_argument);
  CHECK(handles(bench) == 0);
  AddressVector from_completion = good;
  from_completion.service_level = 0x0A;  // as wc.sl has it
  CHECK(create(from_completion) == std::errc{});
  CHECK(handles(bench) == 1);
}

TEST_CASE("address handles: destroyed while a WQE names one, in use by none, of a PD that is busy") {
  Bench bench;
  sim::Client& client = bench.client();
  const PdHandle pd = std::get<PdHandle>(client.transact(AllocPd{}).body);
  const AhHandle ah = std::get<AhHandle>(client.transact(CreateAh{pd, bench.peer_av()}).body);
  CHECK(client.transact(DeallocPd{pd}).error == std::errc::device_or_resource_busy);
  CHECK(client.transact(DestroyAh{ah}).error == std::errc{});
  CHECK(client.transact(DestroyAh{ah}).error == std::errc::invalid_argument);
  CHECK(client.transact(DeallocPd{pd}).error == std::errc{});

  Connection qp = bench.connect_datagrams();
  sim::SendWr wr = to_peer(bench, qp, 8);
  bench.post(qp, wr);
  CHECK(client.transact(DestroyAh{wr.ah}).error == std::errc{});  // [IBTA 11.2.2]
  bench.expect({.opcode = Opcode::kUdSendOnly});
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("address handles: the reply waits for the neighbour") {
  Bench bench({.knows_peer = false});
  const Command create{bench.client().context(), CreateAh{bench.client().pd(), bench.peer_av()}};
  const CommandId id = bench.submit_only(create);
  CHECK_FALSE(bench.poll_reply(id).has_value());
  REQUIRE(bench.take().has_value());  // who has it?
  SECTION("which answers") {
    bench.receive({peer_arp_reply()});
    const auto reply = bench.poll_reply(id);
    REQUIRE(reply.has_value());
    REQUIRE(reply->error == std::errc{});
    Connection qp = bench.connect_datagrams();
    sim::SendWr wr = to_peer(bench, qp, 8);
    wr.ah = std::get<AhHandle>(reply->body);
    bench.post(qp, wr);
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.ethernet->destination == Bench::kPeerMac);
  }
  SECTION("which does not") {
    bench.advance(std::chrono::seconds(4));
    const auto reply = bench.poll_reply(id);
    REQUIRE(reply.has_value());
    CHECK(reply->error == std::errc::timed_out);
    CHECK(handles(bench) == 0);
    CHECK(bench.client().transact(DeallocPd{bench.client().pd()}).error == std::errc{});
  }
  SECTION("and the client goes") {
    bench.client().close();
    const auto reply = bench.poll_reply(id);
    REQUIRE(reply.has_value());
    CHECK(reply->error == std::errc::operation_canceled);
    bench.receive({peer_arp_reply()});
    CHECK(handles(bench) == 0);
  }
}

TEST_CASE("commands that wait for neighbours: each is answered when its own is") {
  Bench bench({.knows_peer = false});
  sim::Client& client = bench.client();
  Connection first = bench.connect({.state = QpState::kInit});
  Connection second = bench.connect({.state = QpState::kInit});
  AddressVector silent = bench.peer_av();
  silent.dgid.bytes[15] = 77;
  const auto modify = [&](const Connection& qp, const AddressVector& av) {
    ModifyQp command{
        qp.qp->handle(),
        kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer,
        {}};
    command.attributes.state = QpState::kRtr;
    command.attributes.av = av;
    command.attributes.path_mtu_code = 1;
    command.attributes.dest_qpn = proto::Qpn{kPeerQpn};
    return bench.submit_only({client.context(), command});
  };
  const auto create = [&](const AddressVector& av) {
    return bench.submit_only({client.context(), CreateAh{client.pd(), av}});
  };
  const CommandId waiting[] = {modify(first, silent), create(silent)};
  const CommandId answered[] = {modify(second, bench.peer_av()), create(bench.peer_av())};
  bench.receive({peer_arp_reply()});
  for (const CommandId id : answered) {
    const auto reply = bench.poll_reply(id);
    REQUIRE(reply.has_value());
    CHECK(reply->error == std::errc{});
  }
  for (const CommandId id : waiting)
    CHECK_FALSE(bench.poll_reply(id).has_value());
  bench.advance(std::chrono::seconds(4));
  for (const CommandId id : waiting) {
    const auto reply = bench.poll_reply(id);
    REQUIRE(reply.has_value());
    CHECK(reply->error == std::errc::timed_out);
  }
  CHECK(first.qp->state() == QpState::kInit);
  CHECK(second.qp->state() == QpState::kRtr);
}

TEST_CASE("address handles: multicast MACs are computed, never asked for") {
  Bench bench;
  AddressVector av = bench.peer_av();
  av.dgid = proto::Gid::from_ipv4(0xE6818283);
  Connection qp = bench.connect_datagrams();
  sim::SendWr wr = to_peer(bench, qp, 8);
  SECTION("IPv4") {}
  SECTION("IPv6") {
    av.dgid = Bench::peer_gid(true);
    av.dgid.bytes[0] = 0xFF;
    av.sgid_index = 2;
  }
  wr.ah = bench.client().create_ah(av);
  bench.post(qp, wr);
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  const proto::Mac mac =
      av.dgid.is_ipv4() ? proto::Mac{{1, 0, 0x5E, 1, 0x82, 0x83}} : proto::Mac{{0x33, 0x33, 0, 0, 0, 2}};
  CHECK(sent->packet.ethernet->destination == mac);
}

TEST_CASE("address handles: nowhere to go is ENETUNREACH") {
  Bench bench;
  AddressVector av = bench.peer_av();
  av.dgid = proto::Gid::from_ipv4(0x08080808);  // not on link, no gateway
  CHECK(bench.client().transact(CreateAh{bench.client().pd(), av}).error == std::errc::network_unreachable);
  CHECK(handles(bench) == 0);
}
