// The UC service: what is sent without acknowledgement, and what becomes of messages that arrive in part.
#include <algorithm>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

Connection connect(Bench& bench, ConnectionOptions options = {}) {
  options.qp.type = QpType::kUc;
  return bench.connect(options);
}

sim::SendWr send_of(const Connection& qp, std::uint32_t bytes, std::uint64_t wr_id = 1) {
  return {.wr_id = wr_id, .sges = {qp.mr.sge(0, bytes)}};
}

}  // namespace

// ---- requester -------------------------------------------------------------------------------------

TEST_CASE("UC: a SEND of several packets is complete when the last is sent; no AckReq, no timer") {
  Bench bench;
  Connection qp = connect(bench);
  sim::SendWr wr = send_of(qp, 2 * kMtu + 5);
  wr.opcode = sim::kWrSendImm;
  wr.immediate = 77;
  wr.flags |= sim::kSolicited;
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kUcSendFirst, .psn = kOurPsn, .ack_request = false, .payload_bytes = kMtu});
  bench.expect({.opcode = Opcode::kUcSendMiddle, .psn = kOurPsn + 1, .ack_request = false});
  bench.expect({.opcode = Opcode::kUcSendLastImmediate,
                .psn = kOurPsn + 2,
                .ack_request = false,
                .solicited = true,
                .imm = 77,
                .payload_bytes = 5,
                .dqpn = kPeerQpn});
  bench.expect(qp, {.wr_id = 1, .opcode = sim::kWcSend});
  CHECK(bench.engine().next_deadline() == kNever);
  bench.advance(std::chrono::seconds(10));
  bench.expect_nothing();
}

TEST_CASE("UC: WRITE, with and without immediate data") {
  Bench bench;
  Connection qp = connect(bench);
  sim::SendWr wr = send_of(qp, kMtu + 1);
  wr.opcode = sim::kWrWrite;
  wr.remote_address = 0x1000;
  wr.rkey = proto::Rkey{9};
  bench.post(qp, wr);
  bench.expect(
      {.opcode = Opcode::kUcWriteFirst, .psn = kOurPsn, .va = 0x1000, .rkey = 9, .length = kMtu + 1});
  bench.expect({.opcode = Opcode::kUcWriteLast, .psn = kOurPsn + 1, .payload_bytes = 1});
  wr.opcode = sim::kWrWriteImm;
  wr.immediate = 5;
  wr.sges[0].length_bytes = 3;
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kUcWriteOnlyImmediate, .psn = kOurPsn + 2, .length = 3, .imm = 5});
  bench.expect(qp, {.opcode = sim::kWcWrite});
  bench.expect(qp, {.opcode = sim::kWcWrite});
}

TEST_CASE("UC: more packets than a window or a burst, all in order") {
  Bench bench({.window_packets = 4, .transmit_burst = 8});
  Connection qp = connect(bench);
  bench.post(qp, send_of(qp, 100 * kMtu));
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.bth.psn.value() == kOurPsn + i);
  }
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("Q13: UC has no READ and no ATOMIC [IBTA Table 44]") {
  for (const std::uint32_t opcode :
       {sim::kWrRead, sim::kWrCompareSwap, sim::kWrFetchAdd, sim::kWrSendInvalidate}) {
    Bench bench;
    Connection qp = connect(bench);
    sim::SendWr wr = send_of(qp, 8);
    wr.opcode = opcode;
    bench.post(qp, wr);
    bench.expect_nothing();
    bench.expect(qp, {.wr_id = 1, .status = sim::kWcLocalQpOperation});
    CHECK(qp.qp->state() == QpState::kSqe);
  }
}

TEST_CASE("UC: a send that fails amid its message leads to SQE, and the next message goes on from there") {
  Bench bench;
  Connection qp = connect(bench);
  std::uint64_t reads = 0;
  bench.memory().set_fault([&](std::uint64_t, const MemoryOp&) { return ++reads == 3; });
  REQUIRE(qp.qp->queue_send(send_of(qp, 4, 1)));
  REQUIRE(qp.qp->queue_send(send_of(qp, 3 * kMtu, 2)));
  REQUIRE(qp.qp->queue_send(send_of(qp, 4, 3)));
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  bench.expect({.opcode = Opcode::kUcSendOnly, .psn = kOurPsn});
  bench.expect({.opcode = Opcode::kUcSendFirst, .psn = kOurPsn + 1});
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 1});
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcLocalProtection});
  bench.expect(qp, {.wr_id = 3, .status = sim::kWcFlushed});
  REQUIRE(qp.qp->state() == QpState::kSqe);
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kRts) == std::errc{});
  bench.post(qp, send_of(qp, 4, 4));
  bench.expect({.opcode = Opcode::kUcSendOnly, .psn = kOurPsn + 2});
  bench.expect(qp, {.wr_id = 4});
}

TEST_CASE("UC: SQD finishes the message that was begun, then says so") {
  Bench bench({.transmit_burst = 2});
  Connection qp = connect(bench);
  REQUIRE(qp.qp->queue_send(send_of(qp, 5 * kMtu, 1)));
  REQUIRE(qp.qp->queue_send(send_of(qp, 4, 2)));
  bench.ring_and_transmit_once(qp);
  ModifyQp modify{qp.qp->handle(), kQpState | kQpEnSqdAsyncNotify, {}};
  modify.attributes.state = QpState::kSqd;
  modify.attributes.en_sqd_async_notify = true;
  REQUIRE(bench.client().transact(modify).error == std::errc{});
  for (std::uint32_t i = 0; i < 5; ++i) {
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.bth.psn.value() == kOurPsn + i);
  }
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 1});
  bench.expect_no_completion(qp);
  const auto events = bench.events();
  CHECK(std::count_if(events.begin(), events.end(),
                      [](const Event& one) { return one.kind == EventKind::kSqDrained; }) == 1);
  CHECK_FALSE(bench.client().query(*qp.qp).sq_draining);
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kRts) == std::errc{});
  bench.pass();
  bench.expect({.opcode = Opcode::kUcSendOnly, .psn = kOurPsn + 5});
}

TEST_CASE("UC: the region of a SEND goes amid the message") {
  Bench bench({.transmit_burst = 2});
  Connection qp = connect(bench);
  REQUIRE(qp.qp->queue_send(send_of(qp, 3 * kMtu, 1)));
  bench.ring_and_transmit_once(qp);
  bench.client().dereg_mr(qp.mr);
  bench.pass();
  bench.expect({.opcode = Opcode::kUcSendFirst, .psn = kOurPsn});
  bench.expect({.opcode = Opcode::kUcSendMiddle, .psn = kOurPsn + 1});
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcLocalProtection});
  CHECK(qp.qp->state() == QpState::kSqe);
}

TEST_CASE("UC: SQD holds what is in error, RTS tells it") {
  Bench bench;
  Connection qp = connect(bench);
  sim::SendWr bad = send_of(qp, 4, 2);
  bad.sges[0].lkey = proto::Lkey{0x77};
  REQUIRE(qp.qp->queue_send(send_of(qp, 4, 1)));
  REQUIRE(qp.qp->queue_send(bad));
  bench.ring_and_transmit_once(qp);  // looks at the second, whose turn it is not yet
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kSqd) == std::errc{});
  bench.expect(qp, {.wr_id = 1});
  bench.expect_no_completion(qp);
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kRts) == std::errc{});
  bench.pass();
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcLocalProtection});
  CHECK(qp.qp->state() == QpState::kSqe);
}

// ---- responder -------------------------------------------------------------------------------------

TEST_CASE("UC: a SEND and a WRITE of several packets arrive; nothing is answered [W08]") {
  Bench bench;
  Connection qp = connect(bench);
  const Bytes all = pattern(2 * kMtu);
  const Bytes first(all.begin(), all.begin() + kMtu), last(all.begin() + kMtu, all.end());
  qp.recv(1);
  bench.send(qp, {.opcode = Opcode::kUcSendFirst, .psn = 100, .ack_request = true, .payload = first});
  bench.send(qp, {.opcode = Opcode::kUcSendLast, .psn = 101, .ack_request = true, .payload = last});
  bench.expect_recv(qp, {.wr_id = 1, .opcode = sim::kWcRecv, .byte_len = 2 * kMtu});
  CHECK(holds(bench, qp, 0x8000, all));
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kUcWriteFirst, .psn = 102, .length = 2 * kMtu, .payload = first});
  bench.send(qp, {.opcode = Opcode::kUcWriteLastImmediate, .psn = 103, .imm = 6, .payload = last});
  bench.expect_recv(qp, {.wr_id = 2, .opcode = sim::kWcRecvWriteImm, .byte_len = 2 * kMtu, .imm = 6});
  CHECK(holds(bench, qp, 0, all));
  bench.expect_nothing();
}

TEST_CASE("UC: a lost packet takes its message with it, and the receive is for the next one") {
  Bench bench;
  Connection qp = connect(bench);
  qp.recv(1);
  qp.recv(2);
  const auto send = [&](Opcode opcode, std::uint32_t psn, std::size_t bytes) {
    bench.send(qp, {.opcode = opcode, .psn = psn, .payload = pattern(bytes)});
  };
  SECTION("the middle") {
    send(Opcode::kUcSendFirst, 100, kMtu);
    send(Opcode::kUcSendLast, 102, 4);
    CHECK(bench.dropped(DropReason::kOutOfSequence) == 1);
  }
  SECTION("the first") {
    send(Opcode::kUcSendMiddle, 101, kMtu);
    send(Opcode::kUcSendLast, 102, 4);
    CHECK(bench.dropped(DropReason::kOutOfSequence) == 2);
    CHECK(qp.qp->recv_queued() == 2);
  }
  SECTION("the last") { send(Opcode::kUcSendFirst, 100, kMtu); }
  SECTION("the last, and what follows has its PSN") {
    send(Opcode::kUcSendFirst, 100, kMtu);
    send(Opcode::kUcSendFirst, 101, kMtu);
  }
  SECTION("the first of another kind") {
    send(Opcode::kUcSendFirst, 100, kMtu);
    send(Opcode::kUcWriteMiddle, 101, kMtu);
    CHECK(bench.dropped(DropReason::kOutOfSequence) == 1);
    send(Opcode::kUcSendLast, 102, kMtu);
    CHECK(bench.dropped(DropReason::kOutOfSequence) == 2);
  }
  SECTION("many messages") {}
  bench.expect_no_completion(qp);
  send(Opcode::kUcSendFirst, 500, kMtu);
  send(Opcode::kUcSendLast, 501, 9);
  bench.expect_recv(qp, {.wr_id = 1, .byte_len = kMtu + 9});
  CHECK(holds(bench, qp, 0x8000, pattern(kMtu)));
  send(Opcode::kUcSendOnly, 7, 3);  // an earlier PSN is as good
  bench.expect_recv(qp, {.wr_id = 2, .byte_len = 3});
  bench.expect_no_completion(qp);
  bench.expect_nothing();
  CHECK(qp.qp->state() == QpState::kRts);
}

TEST_CASE("UC: what is not allowed is dropped and counted, with its message, and the QP goes on") {
  Bench bench;
  Connection qp = connect(bench);
  DropReason reason = DropReason::kRefused;
  Line line{.opcode = Opcode::kUcWriteOnly, .psn = 100, .payload = pattern(8)};
  SECTION("R_Key") { line.rkey = 1; }
  SECTION("bounds") { line.va = qp.mr.iova + 0x10000; }
  SECTION("more than the RETH says [R03]") { line.length = 4; }
  SECTION("FIRST is not full [R03]") {
    line.opcode = Opcode::kUcWriteFirst;
    line.length = 1000;
  }
  SECTION("ONLY above the path MTU [R03]") { line.payload = pattern(kMtu + 4); }
  SECTION("no receive") {
    line.opcode = Opcode::kUcSendOnly;
    reason = DropReason::kNoReceive;
  }
  SECTION("a receive too short") {
    qp.recv(1, 7);
    line.opcode = Opcode::kUcSendOnly;
  }
  SECTION("memory that is not there") {
    bench.memory().set_fault([](std::uint64_t number, const MemoryOp&) { return number == 0; });
  }
  SECTION("a reserved opcode") {
    line.opcode = static_cast<Opcode>(0x3F);
    reason = DropReason::kUnknownOpcode;
  }
  SECTION("another service") {
    line.opcode = Opcode::kRcWriteOnly;
    reason = DropReason::kWrongService;
  }
  bench.send(qp, line);
  CHECK(bench.dropped(reason) == 1);
  CHECK(bench.events().empty());
  bench.expect_nothing();
  bench.expect_no_completion(qp);
  CHECK(qp.qp->state() == QpState::kRts);
  bench.send(qp, {.opcode = Opcode::kUcWriteOnly, .psn = 200, .payload = pattern(12)});
  CHECK(holds(bench, qp, 0, pattern(12)));
  qp.recv(2, 20);
  bench.send(qp, {.opcode = Opcode::kUcSendOnly, .psn = 201, .payload = pattern(5)});
  CHECK(qp.recv_cq->pending() == 1);
}

TEST_CASE("UC: rights of the QP count") {
  Bench bench;
  Connection qp = connect(bench, {.access = kAccessRemoteRead});
  bench.send(qp, {.opcode = Opcode::kUcWriteOnly, .psn = 100, .payload = pattern(8)});
  CHECK(bench.dropped(DropReason::kRefused) == 1);
  CHECK(holds(bench, qp, 0, Bytes(8)));
}

TEST_CASE("UC: a receive in error completes so, and the QP goes to ERR") {
  Bench bench;
  Connection qp = connect(bench);
  SECTION("its key") { REQUIRE(qp.qp->post_recv({1, {{qp.mr.iova, 100, proto::Lkey{1}}}})); }
  SECTION("its memory") {
    qp.recv(1);
    bench.memory().set_fault([](std::uint64_t, const MemoryOp&) { return true; });
  }
  bench.send(qp, {.opcode = Opcode::kUcSendOnly, .psn = 100, .payload = pattern(8)});
  bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcLocalProtection});
  CHECK(bench.dropped(DropReason::kReceiveError) == 1);
  CHECK(qp.qp->state() == QpState::kErr);
  bench.expect_nothing();
}

TEST_CASE("UC: a zero-length WRITE needs no key [IBTA C9-88], and COMM_EST comes with the first packet") {
  Bench bench;
  Connection qp = connect(bench, {.state = QpState::kRtr});
  bench.send(qp, {.opcode = Opcode::kUcWriteOnly, .psn = 100, .rkey = 1, .length = 0});
  CHECK(bench.last_verdict() == DropReason::kAccepted);
  const auto events = bench.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == EventKind::kCommEst);
}

TEST_CASE("UC: two QPs of one NIC, what one sends the other receives") {
  Bench bench;
  Connection a = connect(bench, {.state = QpState::kInit}), b = connect(bench, {.state = QpState::kInit});
  const auto join = [&](Connection& from, Connection& to) {
    sim::ConnectOptions options = bench.connect_options({});
    options.dgid = Bench::own_gid();
    options.dest_qpn = to.qp->qpn();
    options.rq_psn = options.sq_psn = proto::Psn{0xFFFFFE};
    REQUIRE(bench.client().to_rtr(*from.qp, options) == std::errc{});
    REQUIRE(bench.client().to_rts(*from.qp, options) == std::errc{});
  };
  join(a, b);
  join(b, a);
  b.recv(5);
  const Bytes data = pattern(5 * kMtu + 1);
  std::copy(data.begin(), data.end(), bench.client().bytes(a.mr, 0, data.size()).begin());
  bench.post(a, send_of(a, static_cast<std::uint32_t>(data.size())));
  std::vector<Bytes> frames;
  while (const auto sent = bench.take())
    frames.push_back(sent->frame);
  bench.receive(frames);
  bench.expect_recv(b, {.wr_id = 5, .byte_len = static_cast<std::uint32_t>(data.size())});
  CHECK(holds(bench, b, 0x8000, data));
}
