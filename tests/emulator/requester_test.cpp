// What the requester side of an RC QP sends, and does with answers, silence and refusals.
#include <algorithm>
#include <cstring>

#include <catch2/catch.hpp>

#include "proto/ack_timeout.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using emulator::DropReason;
using emulator::Duration;
using emulator::QpState;
using emulator::Time;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

sim::SendWr send(const Connection& qp, std::uint64_t id, std::uint32_t bytes,
                 std::uint32_t flags = sim::kSignaled) {
  sim::SendWr wr;
  wr.wr_id = id;
  wr.opcode = sim::kWrSend;
  wr.flags = flags;
  wr.sges = {qp.mr.sge(0, bytes)};
  return wr;
}
sim::SendWr rdma(const Connection& qp, std::uint64_t id, sim::WrOpcode opcode, std::uint32_t bytes,
                 std::uint32_t flags = sim::kSignaled) {
  sim::SendWr wr = send(qp, id, bytes, flags);
  wr.opcode = opcode;
  wr.remote_address = 0x7000;
  wr.rkey = proto::Rkey{0x99};
  return wr;
}
Line ack(std::uint32_t psn, std::uint32_t msn = 0) {
  return {.opcode = Opcode::kRcAcknowledge, .psn = psn, .msn = msn};
}
Line nak(std::uint32_t psn, std::uint8_t syndrome) {
  return {.opcode = Opcode::kRcAcknowledge, .psn = psn, .syndrome = syndrome};
}

Bytes fill(Bench& bench, const Connection& qp, std::size_t bytes) {
  const Bytes data = pattern(bytes, 5);
  std::copy(data.begin(), data.end(), bench.client().bytes(qp.mr, 0, bytes).begin());
  return data;
}
Bytes part(const Bytes& data, std::size_t from, std::size_t to) {
  return Bytes(data.begin() + static_cast<std::ptrdiff_t>(from),
               data.begin() + static_cast<std::ptrdiff_t>(to));
}

}  // namespace

TEST_CASE("messages are cut at the path MTU; the last packet asks for an ACK") {
  Bench bench;
  Connection qp = bench.connect();
  const Bytes data = fill(bench, qp, 2 * kMtu + 3);
  SECTION("SEND") {
    bench.post(qp, send(qp, 1, 2 * kMtu + 3));
    bench.expect(
        {.opcode = Opcode::kRcSendFirst, .psn = 1000, .payload = part(data, 0, kMtu), .dqpn = kPeerQpn});
    bench.expect({.opcode = Opcode::kRcSendMiddle, .psn = 1001, .payload = part(data, kMtu, 2 * kMtu)});
    bench.expect({.opcode = Opcode::kRcSendLast,
                  .psn = 1002,
                  .ack_request = true,
                  .payload = part(data, 2 * kMtu, data.size())});
  }
  SECTION("WRITE with immediate, solicited") {
    sim::SendWr wr = rdma(qp, 1, sim::kWrWriteImm, 2 * kMtu + 3, sim::kSignaled | sim::kSolicited);
    wr.immediate = 0xAABBCCDD;
    bench.post(qp, wr);
    bench.expect({.opcode = Opcode::kRcWriteFirst,
                  .psn = 1000,
                  .solicited = false,
                  .va = 0x7000,
                  .rkey = 0x99,
                  .length = 2 * kMtu + 3});
    bench.expect({.opcode = Opcode::kRcWriteMiddle, .psn = 1001});
    bench.expect({.opcode = Opcode::kRcWriteLastImmediate,
                  .psn = 1002,
                  .ack_request = true,
                  .solicited = true,
                  .imm = 0xAABBCCDD});
  }
  bench.expect_nothing();
  bench.expect_no_completion(qp);
  bench.send(qp, ack(1002, 1));
  bench.expect(qp, {.wr_id = 1});
  bench.expect_no_completion(qp);
}

TEST_CASE("W01: pad bytes make the payload a multiple of four and are not data") {
  for (const std::uint32_t bytes : {0U, 1U, 2U, 3U, 4U, 5U, 18U}) {
    Bench bench;
    Connection qp = bench.connect();
    const Bytes data = fill(bench, qp, bytes);
    bench.post(qp, send(qp, 1, bytes));
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.bth.pad_count == (4 - bytes % 4) % 4);
    CHECK(std::equal(data.begin(), data.end(), sent->packet.payload.begin(), sent->packet.payload.end()));
  }
}

TEST_CASE("Q14: inline data is what was there when it was posted, whatever the L_Key") {
  Bench bench;
  Connection qp = bench.connect();
  const Bytes data = fill(bench, qp, 100);
  sim::SendWr wr = send(qp, 1, 0, sim::kSignaled | sim::kInline);
  wr.sges = {{qp.mr.iova, 60, proto::Lkey{0}}, {qp.mr.iova + 60, 40, proto::Lkey{0xFFFFFFFF}}};
  REQUIRE(qp.qp->post_send(wr));
  std::ranges::fill(bench.client().bytes(qp.mr, 0, 100), std::byte{0});
  bench.pass();
  bench.expect({.opcode = Opcode::kRcSendOnly, .payload = data});
}

TEST_CASE("READ: request, responses into the SGEs, completion with the length") {
  Bench bench;
  Connection qp = bench.connect();
  sim::SendWr wr = rdma(qp, 1, sim::kWrRead, 0);
  wr.sges = {qp.mr.sge(10, 300), qp.mr.sge(1000, 300)};
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1000, .va = 0x7000, .rkey = 0x99, .length = 600});
  bench.expect_nothing();
  const Bytes data = pattern(600, 9);
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = part(data, 0, 256)});
  bench.send(qp, {.opcode = Opcode::kRcReadResponseMiddle, .psn = 1001, .payload = part(data, 256, 512)});
  bench.expect_no_completion(qp);
  bench.send(qp,
             {.opcode = Opcode::kRcReadResponseLast, .psn = 1002, .msn = 1, .payload = part(data, 512, 600)});
  bench.expect(qp, {.wr_id = 1, .opcode = sim::kWcRead, .byte_len = 600});
  CHECK(holds(bench, qp, 10, part(data, 0, 300)));
  CHECK(holds(bench, qp, 1000, part(data, 300, 600)));
  CHECK(holds(bench, qp, 310, Bytes(690)));
  CHECK(holds(bench, qp, 1300, Bytes(690)));
  // The next request takes the PSN behind the responses.
  bench.post(qp, send(qp, 2, 4));
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1003});
}

// Its header is a cache line that the application polls.
TEST_CASE("a response that completes nothing does not write to the send queue's ring") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, rdma(qp, 1, sim::kWrRead, 600));
  std::uint32_t& consumer = qp.qp->send_ring().header().consumer;
  consumer = 7;  // which only the engine would change
  const Bytes data = pattern(600, 9);
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = part(data, 0, 256)});
  bench.send(qp, {.opcode = Opcode::kRcReadResponseMiddle, .psn = 1001, .payload = part(data, 256, 512)});
  CHECK(consumer == 7);
  bench.send(qp,
             {.opcode = Opcode::kRcReadResponseLast, .psn = 1002, .msn = 1, .payload = part(data, 512, 600)});
  CHECK(consumer == 1);
  bench.expect(qp, {.wr_id = 1, .opcode = sim::kWcRead, .byte_len = 600});
}

TEST_CASE("atomics: request fields and the result in host order") {
  Bench bench;
  Connection qp = bench.connect();
  sim::SendWr wr = rdma(qp, 1, sim::kWrCompareSwap, 8);
  wr.compare_add = 0x1122334455667788;
  wr.swap = 42;
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kRcCompareSwap,
                .psn = 1000,
                .va = 0x7000,
                .rkey = 0x99,
                .compare = 0x1122334455667788,
                .swap_or_add = 42});
  bench.send(qp,
             {.opcode = Opcode::kRcAtomicAcknowledge, .psn = 1000, .msn = 1, .original = 0xA1A2A3A4A5A6A7A8});
  bench.expect(qp, {.wr_id = 1, .opcode = sim::kWcCompareSwap, .byte_len = 8});
  std::uint64_t result = 0;
  std::memcpy(&result, bench.client().bytes(qp.mr, 0, 8).data(), 8);
  CHECK(result == 0xA1A2A3A4A5A6A7A8);
  wr.opcode = sim::kWrFetchAdd;
  wr.compare_add = 5;
  bench.post(qp, wr);
  bench.expect({.opcode = Opcode::kRcFetchAdd, .psn = 1001, .swap_or_add = 5});
}

TEST_CASE("one ACK completes all before; unsignaled requests complete silently") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, rdma(qp, 1, sim::kWrWrite, 4));
  bench.post(qp, rdma(qp, 2, sim::kWrWrite, 4, 0));
  bench.post(qp, rdma(qp, 3, sim::kWrWrite, 4));
  bench.send(qp, ack(1002, 3));
  bench.expect(qp, {.wr_id = 1});
  bench.expect(qp, {.wr_id = 3});
  bench.expect_no_completion(qp);
  CHECK(qp.qp->send_queued() == 0);
  bench.send(qp, ack(1002, 3));  // repeated: nothing new
  CHECK(bench.last_verdict() == DropReason::kStaleAck);
  bench.expect_no_completion(qp);
}

TEST_CASE("an ACK of what was not sent is a ghost") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, send(qp, 1, 4));
  bench.send(qp, ack(1001, 1));
  CHECK(bench.last_verdict() == DropReason::kGhostAck);
  bench.send(qp, nak(1005, kNakAccess));
  CHECK(bench.last_verdict() == DropReason::kGhostAck);
  bench.expect_no_completion(qp);
  CHECK(qp.qp->state() == QpState::kRts);
  bench.send(qp, ack(1000, 1));
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("PSN wrap within a message") {
  Bench bench;
  Connection qp = bench.connect({.our_psn = 0xFFFFFF});
  bench.post(qp, send(qp, 1, 3 * kMtu));
  bench.expect({.opcode = Opcode::kRcSendFirst, .psn = 0xFFFFFF});
  bench.expect({.opcode = Opcode::kRcSendMiddle, .psn = 0});
  bench.expect({.opcode = Opcode::kRcSendLast, .psn = 1});
  bench.send(qp, ack(0xFFFFFF));
  bench.expect_no_completion(qp);
  bench.send(qp, ack(1, 1));
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("P10: a sequence NAK makes it go back to that packet, with the same opcodes") {
  Bench bench;
  Connection qp = bench.connect();
  const Bytes data = fill(bench, qp, 5 * kMtu);
  bench.post(qp, rdma(qp, 1, sim::kWrWrite, 5 * kMtu));
  for (int i = 0; i < 5; ++i)
    REQUIRE(bench.take().has_value());
  bench.send(qp, nak(1003, kNakSequence));
  bench.expect({.opcode = Opcode::kRcWriteMiddle, .psn = 1003, .payload = part(data, 3 * kMtu, 4 * kMtu)});
  bench.expect({.opcode = Opcode::kRcWriteLast,
                .psn = 1004,
                .ack_request = true,
                .payload = part(data, 4 * kMtu, 5 * kMtu)});
  bench.expect_nothing();
  CHECK(bench.counters().retransmitted_packets == 2);
  bench.send(qp, ack(1004, 1));
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("P02: an ACK beyond a READ is an implied NAK of the READ") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, rdma(qp, 40, sim::kWrWrite, 4));
  bench.post(qp, rdma(qp, 41, sim::kWrRead, 4));
  bench.post(qp, rdma(qp, 42, sim::kWrWrite, 4));
  for (int i = 0; i < 3; ++i)
    REQUIRE(bench.take().has_value());
  bench.send(qp, ack(1002, 3));
  bench.expect(qp, {.wr_id = 40});
  bench.expect_no_completion(qp);
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1001, .va = 0x7000, .length = 4});
  bench.expect({.opcode = Opcode::kRcWriteOnly, .psn = 1002});
  bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1001, .msn = 2, .payload = pattern(4)});
  bench.expect(qp, {.wr_id = 41, .opcode = sim::kWcRead});
  bench.send(qp, ack(1002, 3));
  bench.expect(qp, {.wr_id = 42});
  bench.expect_no_completion(qp);
}

TEST_CASE("P02: a READ asked again in part accepts FIRST or ONLY, and MIDDLE or LAST") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 10});  // 4.2 ms
  const Bytes data = pattern(4 * kMtu, 3);
  bench.post(qp, rdma(qp, 1, sim::kWrRead, 4 * kMtu));
  REQUIRE(bench.take().has_value());
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = part(data, 0, kMtu)});
  bench.send(qp,
             {.opcode = Opcode::kRcReadResponseMiddle, .psn = 1001, .payload = part(data, kMtu, 2 * kMtu)});
  REQUIRE(bench.advance_until_sent(milliseconds(20)));
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1002, .va = 0x7000 + 2 * kMtu, .length = 2 * kMtu});
  SECTION("restarted") {
    bench.send(
        qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1002, .payload = part(data, 2 * kMtu, 3 * kMtu)});
    bench.send(
        qp, {.opcode = Opcode::kRcReadResponseLast, .psn = 1003, .payload = part(data, 3 * kMtu, 4 * kMtu)});
  }
  SECTION("continued") {
    bench.send(
        qp,
        {.opcode = Opcode::kRcReadResponseMiddle, .psn = 1002, .payload = part(data, 2 * kMtu, 3 * kMtu)});
    bench.send(
        qp, {.opcode = Opcode::kRcReadResponseLast, .psn = 1003, .payload = part(data, 3 * kMtu, 4 * kMtu)});
  }
  bench.expect(qp, {.wr_id = 1, .byte_len = 4 * kMtu});
  CHECK(holds(bench, qp, 0, data));
}

TEST_CASE(
    "P17: retry_cnt 3 is four transmissions, each wait from one to four timeouts, then flush [IBTA C9-140]") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 10, .retry_cnt = 3});
  for (std::uint64_t i = 0; i < 4; ++i)
    bench.post(qp, send(qp, i, 4));
  bench.advance(seconds(1));
  std::vector<Time> tries;
  while (const auto sent = bench.take()) {
    if (sent->packet.bth.psn.value() == 1000) tries.push_back(sent->at);
  }
  REQUIRE(tries.size() == 4);
  const Duration timeout = *proto::AckTimeout{10}.duration();
  for (std::size_t i = 1; i < tries.size(); ++i) {
    CHECK(tries[i] - tries[i - 1] >= timeout);
    CHECK(tries[i] - tries[i - 1] <= 4 * timeout);
  }
  bench.expect(qp, {.wr_id = 0, .status = sim::kWcRetryExceeded});
  for (std::uint64_t i = 1; i < 4; ++i)
    bench.expect(qp, {.wr_id = i, .status = sim::kWcFlushed});
  bench.expect_no_completion(qp);
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(bench.counters().retry_exceeded == 1);
}

TEST_CASE("P17: timeout 0 waits for ever") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 0});
  bench.post(qp, send(qp, 1, 4));
  REQUIRE(bench.take().has_value());
  bench.advance(seconds(100));
  bench.expect_nothing();
  bench.expect_no_completion(qp);
  bench.send(qp, ack(1000, 1));
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("the retry budget is refilled by progress") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8, .retry_cnt = 1});
  bench.post(qp, send(qp, 1, 4 * kMtu));
  for (std::uint32_t psn = 1000; psn < 1004; ++psn) {
    while (bench.take().has_value())
      continue;
    REQUIRE(bench.advance_until_sent(milliseconds(10)));  // the one retry that it has
    bench.expect({.opcode = psn == 1000   ? Opcode::kRcSendFirst
                            : psn == 1003 ? Opcode::kRcSendLast
                                          : Opcode::kRcSendMiddle,
                  .psn = psn});
    bench.send(qp, ack(psn, psn == 1003 ? 1 : 0));
  }
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("P07: no retransmission on a clean link, though the daemon pauses") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8});  // 1.05 ms
  for (std::uint64_t i = 0; i < 50; ++i) {
    bench.post(qp, send(qp, i, 4));
    // The ACK is there in time, the daemon is not.
    bench.stall(milliseconds(20));
    bench.send(qp, ack(static_cast<std::uint32_t>(1000 + i), static_cast<std::uint32_t>(i + 1)));
    bench.expect(qp, {.wr_id = i});
  }
  // A pause before any answer is credited to the timer, too.
  bench.post(qp, send(qp, 99, 4));
  bench.stall(milliseconds(20));
  bench.pass();
  CHECK(bench.counters().retransmitted_packets == 0);
  CHECK(bench.counters().ack_timeouts == 0);
  CHECK(bench.counters().daemon_gaps > 0);
}

TEST_CASE("P07: an ACK held back for three timeouts: one retry at a time, and progress stops the timer") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 14, .retry_cnt = 7});  // 67 ms
  bench.post(qp, send(qp, 1, 4));
  bench.advance(milliseconds(60));
  CHECK(bench.counters().retransmitted_packets == 0);
  bench.send(qp, ack(1000, 1));
  bench.advance(seconds(2));
  CHECK(bench.counters().retransmitted_packets == 0);
  // Each READ response starts the timer anew.
  bench.post(qp, rdma(qp, 2, sim::kWrRead, 4 * kMtu));
  const Opcode kinds[] = {Opcode::kRcReadResponseFirst, Opcode::kRcReadResponseMiddle,
                          Opcode::kRcReadResponseMiddle, Opcode::kRcReadResponseLast};
  for (std::uint32_t i = 0; i < 4; ++i) {
    bench.advance(milliseconds(60));
    bench.send(qp, {.opcode = kinds[i], .psn = 1001 + i, .payload = pattern(kMtu)});
  }
  CHECK(bench.counters().retransmitted_packets == 0);
  CHECK(bench.counters().ack_timeouts == 0);
}

TEST_CASE("P04: after an RNR NAK it waits at least the timer; success if a receive comes in time") {
  Bench bench;
  Connection qp = bench.connect({.rnr_retry = 3});
  bench.post(qp, send(qp, 1, 4));
  REQUIRE(bench.take().has_value());
  for (int i = 0; i < 2; ++i) {
    bench.send(qp, nak(1000, rnr(12)));  // 0.64 ms
    const Time start = bench.now();
    bench.expect_nothing();
    bench.advance(microseconds(639));
    bench.expect_nothing();
    bench.advance(milliseconds(5));
    const auto again = bench.take();
    REQUIRE(again.has_value());
    CHECK(again->packet.bth.psn.value() == 1000);
    CHECK(again->at - start >= microseconds(640));
    bench.expect_nothing();
  }
  bench.send(qp, ack(1000, 1));
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("an RNR wait that is over is over, though so many end at once that no timer said so") {
  constexpr std::size_t kQps = 300;  // more than one pass looks at
  Bench bench;
  std::vector<Connection> qps;
  for (std::size_t i = 0; i < kQps; ++i) {
    qps.push_back(bench.connect({.timeout = 0, .rnr_retry = 7}));
    bench.post(qps.back(), send(qps.back(), 1, 4));
  }
  for (const Connection& qp : qps)
    bench.send(qp, nak(1000, rnr(1)));
  while (bench.take().has_value())
    continue;
  bench.advance(microseconds(9));
  bench.expect_nothing();
  bench.stall(microseconds(2));
  // A doorbell brings those to send again that the timers do not get to.
  for (const Connection& qp : qps)
    REQUIRE(qp.qp->post_send(send(qp, 2, 4)));
  bench.pass();
  while (bench.take().has_value())
    continue;
  std::vector<Bytes> naks;
  for (const Connection& qp : qps)
    naks.push_back(bench.frame(qp, nak(1000, rnr(1))));
  bench.receive(naks);
  CHECK(bench.dropped(DropReason::kStaleAck) == 0);
}

TEST_CASE("P04: rnr_retry 3 is four attempts, then RNR_RETRY_EXC") {
  Bench bench;
  Connection qp = bench.connect({.rnr_retry = 3});
  bench.post(qp, send(qp, 1, 4));
  bench.post(qp, send(qp, 2, 4));
  int attempts = 0;
  for (int i = 0; i < 10 && qp.qp->state() == QpState::kRts; ++i) {
    bool is_there = false;
    while (const auto sent = bench.take())
      is_there = is_there || sent->packet.bth.psn.value() == 1000;
    REQUIRE(is_there);
    ++attempts;
    bench.send(qp, nak(1000, rnr(1)));
    bench.advance(milliseconds(1));
  }
  CHECK(attempts == 4);
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcRnrRetryExceeded});
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcFlushed});
  CHECK(qp.qp->state() == QpState::kErr);
}

TEST_CASE("losses between RNR NAKs do not add up to exhausted retries") {
  Bench bench;
  Connection qp = bench.connect({.retry_cnt = 1, .rnr_retry = 7});
  bench.post(qp, send(qp, 1, 4));
  for (int i = 0; i < 5; ++i) {
    REQUIRE(bench.take().has_value());  // lost
    bench.advance(milliseconds(100));
    REQUIRE(bench.take().has_value());
    bench.send(qp, nak(1000, rnr(1)));
    bench.advance(milliseconds(1));
  }
  REQUIRE(bench.take().has_value());
  bench.expect_nothing();
  CHECK(qp.qp->state() == QpState::kRts);
  bench.advance(seconds(2));  // nobody answers any more
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcRetryExceeded});
}

TEST_CASE("P05: rnr_retry 7 never gives up, and destroying the QP amid the wait is prompt") {
  Bench bench;
  Connection qp = bench.connect({.rnr_retry = 7});
  bench.post(qp, send(qp, 1, 4));
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(bench.take().has_value());
    bench.send(qp, nak(1000, rnr(1)));
    bench.advance(milliseconds(1));
  }
  CHECK(qp.qp->state() == QpState::kRts);
  bench.send(qp, nak(1000, rnr(0)));  // 655 ms
  CHECK(bench.client().destroy(*qp.qp).error == std::errc{});
}

TEST_CASE("the ACK timer does not cut an RNR wait short") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8, .retry_cnt = 0});  // 1 ms, no retry
  bench.post(qp, send(qp, 1, 4));
  REQUIRE(bench.take().has_value());
  bench.send(qp, nak(1000, rnr(26)));  // 81.92 ms
  bench.advance(milliseconds(80));
  bench.expect_nothing();
  CHECK(qp.qp->state() == QpState::kRts);
  bench.advance(microseconds(2500));
  REQUIRE(bench.take().has_value());
  bench.send(qp, ack(1000, 1));
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("terminal NAKs: status, flush of what is behind, QP in ERR [IBTA 9.9.2.2]") {
  const std::pair<std::uint8_t, std::uint32_t> kCases[] = {{kNakInvalid, sim::kWcRemoteInvalidRequest},
                                                           {kNakAccess, sim::kWcRemoteAccess},
                                                           {kNakOperational, sim::kWcRemoteOperation}};
  for (const auto& [syndrome, status] : kCases) {
    Bench bench;
    Connection qp = bench.connect();
    qp.recv(77);
    bench.post(qp, send(qp, 1, 4));
    bench.post(qp, send(qp, 2, 4, 0));  // unsignaled: an error completes it all the same
    bench.post(qp, send(qp, 3, 4));
    bench.send(qp, nak(1001, syndrome));  // acknowledges what is before
    bench.expect(qp, {.wr_id = 1});
    bench.expect(qp, {.wr_id = 2, .status = status});
    bench.expect(qp, {.wr_id = 3, .status = sim::kWcFlushed});
    bench.expect_recv(qp, {.wr_id = 77, .status = sim::kWcFlushed});
    CHECK(qp.qp->state() == QpState::kErr);
    bench.advance(seconds(1));
    bench.expect_no_completion(qp);
  }
}

TEST_CASE("a NAK amid READ responses ends the READ [IBTA 9.7.5.1.3]") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, rdma(qp, 1, sim::kWrRead, 3 * kMtu));
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = pattern(kMtu)});
  bench.send(qp, nak(1001, kNakOperational));
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcRemoteOperation});
  CHECK(qp.qp->state() == QpState::kErr);
}

TEST_CASE("READ responses that do not fit: never a wrong byte, never a success") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8, .retry_cnt = 0});
  bench.post(qp, rdma(qp, 1, sim::kWrRead, 2 * kMtu));
  SECTION("LAST too short") {
    bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = pattern(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcReadResponseLast, .psn = 1001, .payload = pattern(kMtu - 8)});
  }
  SECTION("LAST too long for the buffer") {
    bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = pattern(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcReadResponseLast, .psn = 1001, .payload = pattern(kMtu + 8)});
  }
  SECTION("ONLY where two packets were asked for") {
    bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1000, .payload = pattern(kMtu)});
  }
  SECTION("an ATOMIC's answer") {
    bench.send(qp, {.opcode = Opcode::kRcAtomicAcknowledge, .psn = 1000, .original = 5});
  }
  bench.advance(milliseconds(100));
  const auto cqe = qp.cq->poll();
  REQUIRE(cqe.has_value());
  CHECK(cqe->wr_id == 1);
  CHECK(cqe->status != sim::kWcSuccess);
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(holds(bench, qp, 2 * kMtu, Bytes(1024)));
}

TEST_CASE("READ responses out of order, twice, or for nothing") {
  Bench bench;
  Connection qp = bench.connect();
  const Bytes data = pattern(2 * kMtu, 8);
  bench.post(qp, rdma(qp, 1, sim::kWrRead, 2 * kMtu));
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1000});
  bench.send(qp,
             {.opcode = Opcode::kRcReadResponseOnly, .psn = 1007, .payload = pattern(4)});  // of no request
  CHECK(bench.last_verdict() != DropReason::kAccepted);
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = part(data, 0, kMtu)});
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst,
                  .psn = 1000,
                  .payload = pattern(kMtu, 77)});  // again, other bytes
  CHECK(bench.last_verdict() != DropReason::kAccepted);
  bench.send(qp, {.opcode = Opcode::kRcReadResponseLast, .psn = 1001, .payload = part(data, kMtu, 2 * kMtu)});
  bench.expect(qp, {.wr_id = 1});
  CHECK(holds(bench, qp, 0, data));
  bench.send(qp, {.opcode = Opcode::kRcReadResponseLast, .psn = 1001, .payload = pattern(kMtu, 78)});
  CHECK(bench.last_verdict() != DropReason::kAccepted);
  CHECK(holds(bench, qp, 0, data));
  bench.expect_no_completion(qp);
}

TEST_CASE(
    "P14: a fence waits for earlier READs and ATOMICs, all of them, and for nothing else [IBTA 10.8.3.3]") {
  Bench bench;
  Connection qp = bench.connect();
  SECTION("READs") {
    bench.post(qp, rdma(qp, 1, sim::kWrRead, 4));
    bench.post(qp, rdma(qp, 2, sim::kWrRead, 4));
    bench.post(qp, rdma(qp, 3, sim::kWrWrite, 4));
    bench.post(qp, send(qp, 4, 4, sim::kSignaled | sim::kFence));
    for (int i = 0; i < 3; ++i)
      REQUIRE(bench.take().has_value());
    bench.expect_nothing();
    bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1000, .payload = pattern(4)});
    bench.expect_nothing();
    bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1001, .payload = pattern(4)});
    bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1003});  // the WRITE is still unacknowledged
  }
  SECTION("an ATOMIC") {
    bench.post(qp, rdma(qp, 1, sim::kWrFetchAdd, 8));
    bench.post(qp, send(qp, 2, 4, sim::kSignaled | sim::kFence));
    bench.expect({.opcode = Opcode::kRcFetchAdd});
    bench.expect_nothing();
    bench.send(qp, {.opcode = Opcode::kRcAtomicAcknowledge, .psn = 1000});
    bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1001});
  }
  SECTION("a WRITE only") {
    bench.post(qp, rdma(qp, 1, sim::kWrWrite, 4));
    bench.post(qp, send(qp, 2, 4, sim::kSignaled | sim::kFence));
    bench.expect({.opcode = Opcode::kRcWriteOnly, .psn = 1000});
    bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1001});
  }
}

TEST_CASE("no more READs and ATOMICs under way than max_rd_atomic") {
  Bench bench;
  Connection qp = bench.connect({.max_rd_atomic = 2});
  for (std::uint64_t i = 0; i < 3; ++i)
    bench.post(qp, rdma(qp, i, sim::kWrRead, 4));
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1000});
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1001});
  bench.expect_nothing();
  bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1000, .payload = pattern(4)});
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1002});
}

TEST_CASE("no more packets under way than the window") {
  Bench bench({.window_packets = 8});
  Connection qp = bench.connect();
  bench.post(qp, send(qp, 1, 30 * kMtu));
  std::uint32_t last = 0;
  std::size_t sent = 0;
  bool asked = false;
  while (const auto packet = bench.take()) {
    ++sent;
    last = packet->packet.bth.psn.value();
    asked = asked || packet->packet.bth.ack_request;
  }
  CHECK(sent == 8);
  CHECK(asked);  // or no ACK would ever open the window
  bench.send(qp, ack(last));
  sent = 0;
  while (bench.take().has_value())
    ++sent;
  CHECK(sent == 8);
}

TEST_CASE("Q01: one error completion, then flushed ones, as often as one posts") {
  Bench bench;
  Connection qp = bench.connect();
  bench.post(qp, send(qp, 0, 4));
  bench.send(qp, nak(1000, kNakAccess));
  bench.expect(qp, {.wr_id = 0, .status = sim::kWcRemoteAccess});
  for (std::uint64_t i = 1; i < 300; ++i) {
    bench.post(qp, rdma(qp, i, sim::kWrWrite, 4, 0));
    bench.advance(milliseconds(2));
    bench.expect(qp, {.wr_id = i, .status = sim::kWcFlushed});
  }
  bench.expect_no_completion(qp);
}

TEST_CASE("Q03: an error completion has wr_id, status and QPN, in the order of each QP") {
  Bench bench;
  sim::Client& client = bench.client();
  const auto cq = client.create_cq(200);
  Connection qps[3];
  for (Connection& one : qps) {
    one = bench.connect();
    one.qp = client.create_qp(*cq, *cq);
    client.connect(*one.qp, bench.connect_options({.peer_qpn = kPeerQpn}));
    for (std::uint64_t i = 0; i < 16; ++i)
      one.recv(100 + i);
    for (std::uint64_t i = 0; i < 16; ++i)
      REQUIRE(one.qp->post_send(send(one, i, 4)));
  }
  bench.pass();
  for (Connection& one : qps)
    REQUIRE(client.to_state(*one.qp, QpState::kErr) == std::errc{});
  bench.advance(milliseconds(5));
  std::uint64_t next_send[3] = {}, next_recv[3] = {100, 100, 100};
  std::size_t count = 0;
  while (const auto cqe = cq->poll()) {
    ++count;
    CHECK(cqe->status == sim::kWcFlushed);
    const auto of = std::find_if(qps, qps + 3,
                                 [&](const Connection& one) { return one.qp->qpn().value() == cqe->qp_num; });
    REQUIRE(of != qps + 3);
    std::uint64_t& next = cqe->wr_id < 100 ? next_send[of - qps] : next_recv[of - qps];
    CHECK(cqe->wr_id == next);
    ++next;
  }
  CHECK(count == 96);
}

TEST_CASE("Q08: ERR flushes both queues, finished ones stay, later markers come last") {
  Bench bench;
  Connection qp = bench.connect();
  for (std::uint64_t i = 0; i < 8; ++i)
    qp.recv(100 + i);
  for (std::uint64_t i = 0; i < 8; ++i)
    REQUIRE(qp.qp->post_send(send(qp, i, 4)));
  bench.pass();
  bench.send(qp, ack(1001, 2));
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kErr) == std::errc{});
  REQUIRE(qp.qp->post_send(send(qp, 8, 4)));
  qp.recv(108);
  bench.advance(milliseconds(5));  // post_recv rings nothing
  for (std::uint64_t i = 0; i < 9; ++i)
    bench.expect(qp, {.wr_id = i, .status = i < 2 ? sim::kWcSuccess : sim::kWcFlushed});
  for (std::uint64_t i = 0; i < 9; ++i)
    bench.expect_recv(qp, {.wr_id = 100 + i, .status = sim::kWcFlushed});
  bench.expect_no_completion(qp);
}

TEST_CASE("RTR to an unknown neighbour waits for it, and others do not wait") {
  Bench bench({.knows_peer = false});
  sim::Client& client = bench.client();
  Connection waiting = bench.connect({.state = QpState::kInit});
  const sim::ConnectOptions to = bench.connect_options({});
  emulator::ModifyQp modify{waiting.qp->handle(),
                            emulator::kQpState | emulator::kQpAv | emulator::kQpPathMtu |
                                emulator::kQpDestQpn | emulator::kQpRqPsn | emulator::kQpMaxDestRdAtomic |
                                emulator::kQpMinRnrTimer,
                            {}};
  modify.attributes.state = QpState::kRtr;
  modify.attributes.av.dgid = to.dgid;
  modify.attributes.av.is_global = true;
  modify.attributes.av.sgid_index = to.sgid_index;
  modify.attributes.path_mtu_code = 1;
  modify.attributes.dest_qpn = to.dest_qpn;
  const emulator::CommandId id = bench.submit_only({client.context(), modify});
  CHECK_FALSE(bench.poll_reply(id).has_value());
  (void)client.new_mr(64);  // another command, answered meanwhile
  auto request = bench.take();
  REQUIRE(request.has_value());
  REQUIRE(request->frame.size() == 60);
  CHECK(proto::load_be16(request->frame.data() + 12) == proto::kEthertypeArp);

  SECTION("the answer comes") {
    bench.receive({peer_arp_reply()});
    const auto answer = bench.poll_reply(id);
    REQUIRE(answer.has_value());
    CHECK(answer->error == std::errc{});
    CHECK(waiting.qp->state() == QpState::kRtr);
  }
  SECTION("N01: nobody answers") {
    bench.advance(milliseconds(2900));
    CHECK_FALSE(bench.poll_reply(id).has_value());
    bench.advance(milliseconds(200));
    const auto answer = bench.poll_reply(id);
    REQUIRE(answer.has_value());
    CHECK(answer->error == std::errc::timed_out);
    CHECK(waiting.qp->state() == QpState::kInit);
  }
  SECTION("the client goes away meanwhile") {
    client.close();
    bench.memory().give_up(client.space());
    bench.advance(seconds(4));
  }
}

TEST_CASE("a timer is due at the deadline that the engine names, not later") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 10});
  SECTION("of the ACK") { bench.post(qp, rdma(qp, 1, sim::kWrWrite, 4)); }
  SECTION("of an RNR NAK") {
    bench.post(qp, send(qp, 1, 4));
    bench.send(qp, nak(1000, rnr(1)));
  }
  REQUIRE(bench.take().has_value());
  const Time due = bench.engine().next_deadline();
  REQUIRE(bench.advance_until_sent(seconds(1)));
  CHECK(bench.take()->at == due);
}

TEST_CASE("the longest READ takes half of the PSN space, and what follows waits [IBTA 9.7.2]") {
  constexpr std::uint32_t kHalfOfAll = 1U << 23;
  constexpr std::uint32_t kBytes = kHalfOfAll * kMtu;
  Bench bench;
  sim::Client& client = bench.client();
  Connection qp = bench.connect();
  const std::uint64_t address = client.allocate(64);  // the rest is not touched
  const auto region = client.transact(
      emulator::RegMr{client.pd(), client.space(), address, kBytes, address, emulator::kAccessLocalWrite});
  REQUIRE(region.error == std::errc{});
  sim::SendWr read = rdma(qp, 1, sim::kWrRead, 4);
  read.sges = {{address, kBytes, std::get<emulator::RegMrReply>(region.body).lkey}};
  bench.post(qp, read);
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1000, .length = kBytes});
  bench.post(qp, rdma(qp, 2, sim::kWrWrite, 4));
  bench.expect_nothing();
}
