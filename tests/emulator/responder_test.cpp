// What the responder side of an RC QP does with requests.
#include <algorithm>
#include <cstring>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using emulator::DropReason;
using emulator::EventKind;
using emulator::QpState;

namespace {

std::uint64_t word(Bench& bench, const Connection& one, std::uint64_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, bench.client().bytes(one.mr, offset, 8).data(), 8);
  return value;
}
void set_word(Bench& bench, const Connection& one, std::uint64_t offset, std::uint64_t value) {
  std::memcpy(bench.client().bytes(one.mr, offset, 8).data(), &value, 8);
}
void expect_no_write(Bench& bench, const Connection& one) { CHECK(holds(bench, one, 0, Bytes(0x10000))); }

}  // namespace

TEST_CASE("a SEND of one packet: data, completion, ACK") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(7);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(18)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true, .msn = 1, .dqpn = kPeerQpn});
  bench.expect_recv(qp, {.wr_id = 7, .opcode = sim::kWcRecv, .byte_len = 18});
  CHECK(holds(bench, qp, 0x8000, pattern(18)));
  CHECK(holds(bench, qp, 0x8000 + 18, Bytes(64)));  // pad is not data
  bench.expect_nothing();
}

TEST_CASE("no ACK unless one is asked for, then one for all before") {
  Bench bench;
  Connection qp = bench.connect();
  for (std::uint64_t i = 0; i < 3; ++i)
    qp.recv(i);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 101});
  bench.expect_nothing();
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 102, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .msn = 3});
  bench.expect_nothing();
}

TEST_CASE("SEND and WRITE of several packets, with immediate data") {
  Bench bench;
  Connection qp = bench.connect();
  const Bytes all = pattern(2 * kMtu + 5);
  const Bytes first(all.begin(), all.begin() + kMtu), middle(all.begin() + kMtu, all.begin() + 2 * kMtu),
      last(all.begin() + 2 * kMtu, all.end());
  qp.recv(1);
  SECTION("SEND") {
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = first});
    bench.send(qp, {.opcode = Opcode::kRcSendMiddle, .psn = 101, .payload = middle});
    bench.expect_no_completion(qp);
    bench.send(qp, {.opcode = Opcode::kRcSendLastImmediate,
                    .psn = 102,
                    .ack_request = true,
                    .imm = 0x01020304,
                    .payload = last});
    bench.expect_recv(qp, {.wr_id = 1, .opcode = sim::kWcRecv, .byte_len = 2 * kMtu + 5, .imm = 0x01020304});
    CHECK(holds(bench, qp, 0x8000, all));
  }
  SECTION("WRITE") {
    bench.send(qp, {.opcode = Opcode::kRcWriteFirst,
                    .psn = 100,
                    .va = qp.mr.iova + 3,
                    .length = 2 * kMtu + 5,
                    .payload = first});
    bench.send(qp, {.opcode = Opcode::kRcWriteMiddle, .psn = 101, .payload = middle});
    bench.send(qp, {.opcode = Opcode::kRcWriteLastImmediate,
                    .psn = 102,
                    .ack_request = true,
                    .imm = 0x01020304,
                    .payload = last});
    bench.expect_recv(
        qp, {.wr_id = 1, .opcode = sim::kWcRecvWriteImm, .byte_len = 2 * kMtu + 5, .imm = 0x01020304});
    CHECK(holds(bench, qp, 3, all));
    CHECK(holds(bench, qp, 0x8000, Bytes(64)));
  }
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .msn = 1});
}

TEST_CASE("P15: MSN counts whole messages [IBTA C9-148]") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  const auto ack = [&](std::uint32_t psn, std::uint32_t msn) {
    bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = psn, .msn = msn});
  };
  // Three packets of a WRITE: unchanged until the last.
  bench.send(qp, {.opcode = Opcode::kRcWriteFirst,
                  .psn = 100,
                  .ack_request = true,
                  .length = 3 * kMtu,
                  .payload = pattern(kMtu)});
  ack(100, 0);
  bench.send(qp,
             {.opcode = Opcode::kRcWriteMiddle, .psn = 101, .ack_request = true, .payload = pattern(kMtu)});
  ack(101, 0);
  bench.send(qp, {.opcode = Opcode::kRcWriteLast, .psn = 102, .ack_request = true, .payload = pattern(kMtu)});
  ack(102, 1);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 103, .ack_request = true, .payload = pattern(4)});
  ack(103, 2);
  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 104, .length = 8});
  bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 104, .msn = 3, .payload_bytes = 8});
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 105, .ack_request = true});  // of no bytes
  ack(105, 4);
  bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 106});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 106, .msn = 5});
  // Never for a duplicate.
  bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 106});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 106, .msn = 5});
  bench.expect_nothing();
}

TEST_CASE("a gap draws one sequence NAK, and the next gap another") {
  Bench bench;
  Connection qp = bench.connect();
  for (std::uint64_t i = 0; i < 6; ++i)
    qp.recv(i);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 102, .ack_request = true});
  CHECK(bench.last_verdict() == DropReason::kOutOfSequence);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakSequence, .msn = 1});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 103, .ack_request = true});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 104, .ack_request = true});
  bench.expect_nothing();
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 101, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true, .msn = 2});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 104});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .syndrome = kNakSequence, .msn = 2});
  bench.expect_nothing();
  CHECK(bench.counters().sequence_naks_sent == 2);
}

TEST_CASE("PSN wrap: gaps and duplicates on either side of zero") {
  Bench bench;
  Connection qp = bench.connect({.peer_psn = 0xFFFFFE});
  for (std::uint64_t i = 0; i < 4; ++i)
    qp.recv(i);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 0xFFFFFE});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 0xFFFFFF, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 0xFFFFFF, .msn = 2});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 1});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 0, .syndrome = kNakSequence});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 0});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 0xFFFFFF, .ack_request = true});
  CHECK(bench.last_verdict() == DropReason::kDuplicate);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 0, .msn = 3});
}

TEST_CASE("a duplicate SEND or WRITE is acknowledged again, not executed [IBTA C9-105]") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .payload = pattern(8, 1)});
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 101, .ack_request = true, .payload = pattern(8, 2)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .msn = 2});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(8, 3)});
  CHECK(bench.last_verdict() == DropReason::kDuplicate);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true, .msn = 2});
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 101, .ack_request = true, .payload = pattern(8, 4)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true, .msn = 2});
  CHECK(holds(bench, qp, 0, pattern(8, 2)));
  bench.expect_recv(qp, {.wr_id = 1});
  bench.expect_no_completion(qp);
  CHECK(bench.counters().duplicate_requests == 2);
}

TEST_CASE("P09: a duplicate atomic is answered from the saved result, executed once") {
  Bench bench;
  Connection qp = bench.connect();
  set_word(bench, qp, 0, 41);
  set_word(bench, qp, 8, 7);
  bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 100, .swap_or_add = 1});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 100, .msn = 1, .original = 41});
  bench.send(
      qp,
      {.opcode = Opcode::kRcCompareSwap, .psn = 101, .va = qp.mr.iova + 8, .compare = 7, .swap_or_add = 9});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 101, .original = 7});
  bench.send(
      qp,
      {.opcode = Opcode::kRcCompareSwap, .psn = 102, .va = qp.mr.iova + 8, .compare = 7, .swap_or_add = 5});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 102, .original = 9});  // did not match
  bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 103, .swap_or_add = 100});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 103, .original = 42});
  // max_dest_rd_atomic is 4: all four are still known.
  bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 100, .swap_or_add = 1});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 100, .original = 41});
  bench.send(
      qp,
      {.opcode = Opcode::kRcCompareSwap, .psn = 101, .va = qp.mr.iova + 8, .compare = 7, .swap_or_add = 9});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 101, .original = 7});
  CHECK(word(bench, qp, 0) == 142);
  CHECK(word(bench, qp, 8) == 9);
  bench.expect_nothing();
}

TEST_CASE("READ: response packets, and a duplicate is executed again, also from its middle") {
  Bench bench;
  Connection qp = bench.connect();
  const Bytes data = pattern(3 * kMtu - 6);
  std::copy(data.begin(), data.end(), bench.client().bytes(qp.mr, 0, data.size()).begin());
  const auto part = [&](std::size_t from, std::size_t to) {
    return Bytes(data.begin() + static_cast<std::ptrdiff_t>(from),
                 data.begin() + static_cast<std::ptrdiff_t>(to));
  };
  const std::uint32_t length = static_cast<std::uint32_t>(data.size());

  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .length = length});
  bench.expect({.opcode = Opcode::kRcReadResponseFirst,
                .psn = 100,
                .is_ack = true,
                .msn = 1,
                .payload = part(0, kMtu)});
  bench.expect({.opcode = Opcode::kRcReadResponseMiddle, .psn = 101, .payload = part(kMtu, 2 * kMtu)});
  bench.expect(
      {.opcode = Opcode::kRcReadResponseLast, .psn = 102, .msn = 1, .payload = part(2 * kMtu, length)});
  bench.expect_nothing();

  // Asked again from the second packet on: address advanced, length shortened.
  bench.send(
      qp, {.opcode = Opcode::kRcReadRequest, .psn = 101, .va = qp.mr.iova + kMtu, .length = length - kMtu});
  bench.expect({.opcode = Opcode::kRcReadResponseFirst, .psn = 101, .payload = part(kMtu, 2 * kMtu)});
  bench.expect({.opcode = Opcode::kRcReadResponseLast, .psn = 102, .payload = part(2 * kMtu, length)});
  bench.expect_nothing();
  // The next request counts on from behind the response.
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 103, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 103, .msn = 2});
}

TEST_CASE("no R_Key check for RDMA of no bytes [IBTA C9-88]") {
  Bench bench;
  Connection qp = bench.connect();
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .ack_request = true, .va = 0, .rkey = 0x12345});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true, .msn = 1});
  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 101, .va = 0, .rkey = 0x12345, .length = 0});
  bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 101, .msn = 2, .payload_bytes = 0});
}

TEST_CASE("RNR: NAK with the timer, the same PSN later") {
  Bench bench;
  Connection qp = bench.connect({.min_rnr_timer = 9});
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(4)});
  CHECK(bench.last_verdict() == DropReason::kRnr);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = rnr(9), .msn = 0});
  qp.recv(1);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(4)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true, .msn = 1});
  bench.expect_recv(qp, {.wr_id = 1, .byte_len = 4});
  // A WRITE with immediate needs a receive too, and writes nothing without one.
  bench.send(qp, {.opcode = Opcode::kRcWriteOnlyImmediate, .psn = 101, .payload = pattern(4)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = rnr(9), .msn = 1});
  CHECK(bench.counters().rnr_naks_sent == 2);
}

TEST_CASE("R02: a bad R_Key is a remote access error and an asynchronous event [IBTA C9-222.1.1]") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  qp.recv(2);
  const std::uint32_t wrong = qp.mr.rkey.value() ^ 1;
  const auto has_access_event = [&] {
    const auto events = bench.events();
    return std::any_of(events.begin(), events.end(), [&](const emulator::Event& one) {
      return one.kind == EventKind::kQpAccessErr && one.object == qp.qp->handle().value;
    });
  };
  SECTION("WRITE") {
    bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .rkey = wrong, .payload = pattern(8)});
    CHECK(has_access_event());
  }
  SECTION("READ") {
    bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .rkey = wrong, .length = 8});
    CHECK(has_access_event());
  }
  SECTION("FETCH_ADD") {
    bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 100, .rkey = wrong});
    CHECK(has_access_event());
  }
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess, .msn = 0});
  CHECK(qp.qp->state() == QpState::kErr);
  bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcFlushed});
  bench.expect_recv(qp, {.wr_id = 2, .status = sim::kWcFlushed});
  // Once in ERR it answers no more.
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .ack_request = true, .payload = pattern(8)});
  CHECK(bench.last_verdict() == DropReason::kQpState);
  bench.expect_nothing();
  expect_no_write(bench, qp);
}

TEST_CASE("R02: for a WRITE with immediate the error is the receive's") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  bench.send(qp, {.opcode = Opcode::kRcWriteOnlyImmediate,
                  .psn = 100,
                  .rkey = qp.mr.rkey.value() ^ 1,
                  .payload = pattern(8)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
  const auto cqe = qp.recv_cq->poll();
  REQUIRE(cqe.has_value());
  CHECK(cqe->wr_id == 1);
  CHECK(cqe->status != sim::kWcSuccess);
}

TEST_CASE("R07: address ranges that wrap, and rights that are missing") {
  Bench bench;
  Connection qp = bench.connect();
  SECTION("WRITE around the end of the address space") {
    bench.send(qp, {.opcode = Opcode::kRcWriteFirst,
                    .psn = 100,
                    .va = 0xFFFFFFFFFFFFFC00,
                    .length = 0x400,
                    .payload = pattern(kMtu)});
  }
  SECTION("READ that wraps into the region") {
    bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .va = qp.mr.iova - 8, .length = 16});
  }
  SECTION("READ with a length that wraps") {
    bench.send(
        qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .va = qp.mr.iova + 0xFFFF, .length = 0x80000000});
  }
  SECTION("one byte too many") {
    bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .va = qp.mr.iova + 1, .length = 0x10000});
  }
  SECTION("no remote write") {
    const sim::Mr other =
        bench.client().new_mr(64, emulator::kAccessLocalWrite | emulator::kAccessRemoteRead);
    bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                    .psn = 100,
                    .va = other.iova,
                    .rkey = other.rkey.value(),
                    .payload = pattern(8)});
  }
  SECTION("M04: another PD") {
    const auto pd = std::get<emulator::PdHandle>(bench.client().transact(emulator::AllocPd{}).body);
    const sim::Mr other =
        bench.client().reg_mr(bench.client().allocate(64), 64, sim::Client::kAllRights, std::nullopt, pd);
    bench.send(qp, {.opcode = Opcode::kRcReadRequest,
                    .psn = 100,
                    .va = other.iova,
                    .rkey = other.rkey.value(),
                    .length = 8});
  }
  SECTION("another client") {
    sim::Client& stranger = bench.add_client();
    const sim::Mr other = stranger.new_mr(64);
    bench.send(qp, {.opcode = Opcode::kRcReadRequest,
                    .psn = 100,
                    .va = other.iova,
                    .rkey = other.rkey.value(),
                    .length = 8});
  }
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
  bench.expect_nothing();
  expect_no_write(bench, qp);
}

TEST_CASE("a copy of a READ that comes when its key has ended does not end the connection") {
  Bench bench;
  Connection qp = bench.connect();
  const sim::Mr region = bench.client().new_mr(0x1000);
  const Line read{.opcode = Opcode::kRcReadRequest,
                  .psn = 100,
                  .va = region.iova,
                  .rkey = region.rkey.value(),
                  .length = 8};
  bench.send(qp, read);
  bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 100});
  bench.client().dereg_mr(region);
  // Whoever still waits is told; the NAK is stale for who does not.
  bench.send(qp, read);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
  CHECK(qp.qp->state() == QpState::kRts);
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 101, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true});
}

TEST_CASE("the NAK of a READ that was repeated too late leaves the ACK that waits") {
  Bench bench;
  Connection qp = bench.connect();
  const std::uint64_t address = bench.client().allocate(0x1000);
  const sim::Mr region = bench.client().reg_mr(address, 0x1000);
  const Line read{
      .opcode = Opcode::kRcReadRequest, .psn = 100, .va = address, .rkey = region.rkey.value(), .length = 8};
  bench.send(qp, read);
  bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 100});
  bench.client().dereg_mr(region);
  // In one burst, so that the ACK still waits when the late copy comes.
  bench.receive({bench.frame(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 101, .ack_request = true}),
                 bench.frame(qp, read)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true});
  bench.expect_nothing();
}

TEST_CASE("R07: a duplicate READ is judged again, and a region may end with the address space") {
  Bench bench;
  Connection qp = bench.connect();
  const std::uint64_t address = bench.client().allocate(0x1000);
  const sim::Mr top = bench.client().reg_mr(address, 0x1000, sim::Client::kAllRights, 0xFFFFFFFFFFFFF000);
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 100,
                  .ack_request = true,
                  .va = 0xFFFFFFFFFFFFFFF8,
                  .rkey = top.rkey.value(),
                  .payload = pattern(8)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  bench.send(qp, {.opcode = Opcode::kRcReadRequest,
                  .psn = 101,
                  .va = 0xFFFFFFFFFFFFFFF8,
                  .rkey = top.rkey.value(),
                  .length = 8});
  bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 101, .payload = pattern(8)});
  bench.send(qp, {.opcode = Opcode::kRcReadRequest,
                  .psn = 101,
                  .va = 0xFFFFFFFFFFFFFC00,
                  .rkey = top.rkey.value(),
                  .length = 0x400 + 8});
  const auto answer = bench.take();
  if (answer.has_value()) {
    REQUIRE(answer->packet.aeth.has_value());
    CHECK(answer->packet.aeth->syndrome.byte() == kNakAccess);
  }
  bench.expect_nothing();
}

TEST_CASE("R03: lengths that do not fit [IBTA C9-92, C9-94]") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  qp.recv(2);
  std::uint32_t psn = 100;
  SECTION("FIRST not full") {
    bench.send(qp,
               {.opcode = Opcode::kRcWriteFirst, .psn = psn, .length = 1000, .payload = pattern(kMtu - 4)});
  }
  SECTION("MIDDLE not full") {
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = psn++, .payload = pattern(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcSendMiddle, .psn = psn, .payload = pattern(kMtu - 4)});
  }
  SECTION("LAST above the MTU") {
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = psn++, .payload = pattern(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcSendLast, .psn = psn, .payload = pattern(kMtu + 4)});
  }
  SECTION("LAST of no bytes") {
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = psn++, .payload = pattern(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcSendLast, .psn = psn});
  }
  SECTION("ONLY above the MTU") {
    bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = psn, .payload = pattern(kMtu + 1)});
  }
  SECTION("ONLY with more than the RETH says") {
    bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = psn, .length = 7, .payload = pattern(8)});
  }
  SECTION("ONLY with less than the RETH says") {
    bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = psn, .length = 9, .payload = pattern(8)});
  }
  SECTION("more packets than the RETH says") {
    bench.send(qp,
               {.opcode = Opcode::kRcWriteFirst, .psn = psn++, .length = kMtu + 8, .payload = Bytes(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcWriteMiddle, .psn = psn, .payload = pattern(kMtu)});
  }
  SECTION("LAST with more than is left") {
    bench.send(qp,
               {.opcode = Opcode::kRcWriteFirst, .psn = psn++, .length = kMtu + 8, .payload = Bytes(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcWriteLast, .psn = psn, .payload = pattern(9)});
  }
  SECTION("LAST with less than is left") {
    bench.send(qp,
               {.opcode = Opcode::kRcWriteFirst, .psn = psn++, .length = kMtu + 8, .payload = Bytes(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcWriteLast, .psn = psn, .payload = pattern(7)});
  }
  SECTION("a READ of more than 2^31 bytes") {
    bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = psn, .length = 0x80000001});
  }
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = psn, .syndrome = kNakInvalid});
  bench.expect_nothing();
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(holds(bench, qp, 0, Bytes(0x8000)));  // the target; a SEND's receive may hold its first packet
}

TEST_CASE("opcode sequence: what may not follow is an invalid request") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  qp.recv(2);
  std::uint32_t psn = 100;
  const Bytes full = pattern(kMtu);
  SECTION("MIDDLE without FIRST") {
    bench.send(qp, {.opcode = Opcode::kRcSendMiddle, .psn = psn, .payload = full});
  }
  SECTION("LAST without FIRST") {
    bench.send(qp, {.opcode = Opcode::kRcWriteLast, .psn = psn, .payload = full});
  }
  SECTION("ONLY amid a SEND") {
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = psn++, .payload = full});
    bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = psn, .payload = full});
  }
  SECTION("READ amid a WRITE") {
    bench.send(qp, {.opcode = Opcode::kRcWriteFirst, .psn = psn++, .length = 2 * kMtu, .payload = full});
    bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = psn, .length = 8});
  }
  SECTION("WRITE continues a SEND") {
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = psn++, .payload = full});
    bench.send(qp, {.opcode = Opcode::kRcWriteLast, .psn = psn, .payload = full});
  }
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = psn, .syndrome = kNakInvalid});
  CHECK(qp.qp->state() == QpState::kErr);
}

TEST_CASE("atomics: alignment [IBTA 9.4.5] and rights") {
  Bench bench;
  Connection qp = bench.connect();
  SECTION("misaligned") {
    bench.send(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 100, .va = qp.mr.iova + 4, .swap_or_add = 1});
    bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakInvalid});
  }
  SECTION("a region without remote atomic") {
    const sim::Mr other =
        bench.client().new_mr(64, emulator::kAccessLocalWrite | emulator::kAccessRemoteWrite);
    bench.send(qp, {.opcode = Opcode::kRcFetchAdd,
                    .psn = 100,
                    .va = other.iova,
                    .rkey = other.rkey.value(),
                    .swap_or_add = 1});
    bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
  }
  CHECK(qp.qp->state() == QpState::kErr);
  expect_no_write(bench, qp);
}

TEST_CASE("a receive that is too short: invalid request here, local length error there") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1, 300);
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)});
  bench.send(qp, {.opcode = Opcode::kRcSendLast, .psn = 101, .payload = pattern(45)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakInvalid});
  bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcLocalLength});
  bench.expect_recv(qp, {.wr_id = 2, .status = sim::kWcFlushed});
  CHECK(holds(bench, qp, 0x8000 + 300, Bytes(64)));
}

TEST_CASE("receive memory that is gone: remote operational error there, local protection error here") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  bench.memory().set_fault([](std::uint64_t, const emulator::MemoryOp&) { return true; });
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .payload = pattern(8)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakOperational});
  bench.expect_recv(qp, {.wr_id = 1, .status = sim::kWcLocalProtection});
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(bench.counters().memory_faults == 1);
}

TEST_CASE("an application that has ended is silent: no NAK, the peer's retries run out") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  bench.memory().set_gone();
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(8)});
  bench.expect_nothing();
  CHECK(qp.qp->state() == QpState::kErr);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(8)});
  bench.expect_nothing();
}

TEST_CASE("a READ from an application that has ended is silent, too") {
  Bench bench;
  Connection qp = bench.connect();
  bench.memory().set_gone();
  bench.send(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100, .length = 8});
  bench.expect_nothing();
  CHECK(qp.qp->state() == QpState::kErr);
}

TEST_CASE("R05: after ERR amid a message nothing is executed, all receives are flushed once") {
  Bench bench;
  Connection qp = bench.connect();
  for (std::uint64_t i = 0; i < 60; ++i)
    qp.recv(i);
  bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)});
  REQUIRE(bench.client().to_state(*qp.qp, QpState::kErr) == std::errc{});
  bench.send(qp, {.opcode = Opcode::kRcSendLast, .psn = 101, .ack_request = true, .payload = pattern(4)});
  bench.expect_nothing();
  for (std::uint64_t i = 0; i < 60; ++i)
    bench.expect_recv(qp, {.wr_id = i, .status = sim::kWcFlushed});
  bench.expect_no_completion(qp);
}

TEST_CASE("S03: all 256 opcodes to an RC QP, with right and wrong ICRC") {
  for (unsigned value = 0; value < 256; ++value) {
    const auto opcode = static_cast<Opcode>(value);
    const proto::OpcodeInfo& info = proto::info(opcode);
    INFO("opcode 0x" << std::hex << value << " " << info.name);
    Bench bench;
    Connection qp = bench.connect();
    qp.recv(1);
    const std::size_t payload = info.payload == proto::PayloadRule::kNone         ? 0
                                : info.payload == proto::PayloadRule::kEightBytes ? 8
                                                                                  : kMtu;
    // Behind a reserved opcode there is something, too.
    const Line line{.opcode = opcode,
                    .psn = 100,
                    .ack_request = true,
                    .length = payload == 0
                                  ? 8U
                                  : static_cast<std::uint32_t>(
                                        info.position == proto::Position::kFirst ? 2 * payload : payload),
                    .payload = pattern(payload)};
    Line wrong = line;
    wrong.damage = [](Bytes& frame) { frame.back() ^= std::byte{1}; };
    bench.send(qp, wrong);
    CHECK(bench.last_verdict() != DropReason::kAccepted);
    bench.expect_nothing();
    CHECK(qp.qp->state() == QpState::kRts);

    bench.send(qp, line);
    if (value >= 0x20) {  // another transport: silent; a CNP is of none, and taken
      CHECK((bench.last_verdict() == DropReason::kAccepted) == (opcode == Opcode::kCnp));
      bench.expect_nothing();
      CHECK(qp.qp->state() == QpState::kRts);
    } else if (!info.is_known || info.operation == proto::Operation::kFlush) {
      // Reserved, or not granted.
      bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakInvalid});
    } else if (info.role == proto::Role::kResponse) {
      bench.expect_nothing();
      CHECK(qp.qp->state() == QpState::kRts);
    } else if (!info.starts_message()) {
      bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakInvalid});
    } else if (info.has(proto::Extension::kIeth)) {  // there is no such key
      bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
    } else {
      const auto answer = bench.take();
      REQUIRE(answer.has_value());
      CHECK(qp.qp->state() == QpState::kRts);
    }
    bench.expect_nothing();
  }
}

TEST_CASE("S01: a frame of a VLAN is not for an untagged NIC; a priority tag changes nothing") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  const auto tagged = [](std::uint16_t id) {
    return [id](proto::Packet& packet) {
      packet.vlan_count = 1;
      packet.vlan_tags[0].priority = 5;
      packet.vlan_tags[0].vlan_id = id;
    };
  };
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = kPeerPsn, .payload = Bytes(4), .edit = tagged(7)});
  CHECK(bench.last_verdict() == DropReason::kVlan);
  bench.expect_nothing();
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = kPeerPsn, .payload = Bytes(4), .edit = tagged(0)});
  CHECK(bench.last_verdict() == DropReason::kAccepted);
  bench.expect_recv(qp, {.wr_id = 1});
}

TEST_CASE("S03: any opcode to QPN 0, 1 and one that nobody has is silent") {
  Bench bench;
  Connection qp = bench.connect();
  for (const std::uint32_t qpn : {0U, 1U, 0xFFFFFFU, qp.qp->qpn().value() ^ 1U}) {
    for (unsigned value = 0; value < 256; ++value) {
      bench.send(qp, {.opcode = static_cast<Opcode>(value), .psn = 100, .ack_request = true, .dqpn = qpn});
      CHECK(bench.last_verdict() != DropReason::kAccepted);
    }
  }
  bench.expect_nothing();
  CHECK(bench.counters().dropped[static_cast<std::size_t>(DropReason::kQp0)] > 0);
  CHECK(bench.counters().dropped[static_cast<std::size_t>(DropReason::kUnknownQpn)] > 0);
}

TEST_CASE("S01: a packet cut anywhere is dropped without an answer, and so is any flipped bit") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  const Bytes whole = bench.frame(
      qp, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .ack_request = true, .payload = pattern(21)});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO("length " << length);
    bench.receive({Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length))});
    CHECK(bench.last_verdict() != DropReason::kAccepted);
    bench.expect_nothing();
    if (length < 14 + 20) continue;
    // The same with an IP and UDP length that pretend to fit.
    Bytes fitted(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    proto::store_be16(fitted.data() + 16, static_cast<std::uint16_t>(length - 14));
    if (length >= 14 + 28) proto::store_be16(fitted.data() + 38, static_cast<std::uint16_t>(length - 34));
    proto::store_be16(fitted.data() + 24, 0);
    proto::store_be16(fitted.data() + 24, proto::internet_checksum(std::span{fitted}.subspan(14, 20)));
    bench.receive({fitted});
    CHECK(bench.last_verdict() != DropReason::kAccepted);
    bench.expect_nothing();
  }
  // Whatever the ICRC covers: everything but the Ethernet header, TOS, TTL, checksums and the BTH's ECN byte.
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    const std::size_t at = bit / 8;
    if (at < 14 || at == 15 || at == 22 || at == 40 || at == 41 || at == 46) continue;
    Bytes flipped = whole;
    flipped[at] ^= std::byte{1} << (bit % 8);
    INFO("bit " << bit);
    bench.receive({flipped});
    CHECK(bench.last_verdict() != DropReason::kAccepted);
    bench.expect_nothing();
  }
  expect_no_write(bench, qp);
  bench.receive({whole});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
}

TEST_CASE("dropped without an answer: wrong P_Key, transport version, peer, MAC, fragments, options") {
  Bench bench;
  Connection qp = bench.connect();
  const auto drop = [&](DropReason reason, std::function<void(proto::Packet&)> edit) {
    bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                    .psn = 100,
                    .ack_request = true,
                    .payload = pattern(4),
                    .edit = std::move(edit)});
    CHECK(bench.last_verdict() == reason);
    CHECK(bench.counters().dropped[static_cast<std::size_t>(reason)] == 1);
    bench.expect_nothing();
  };
  drop(DropReason::kBadPkey, [](proto::Packet& packet) { packet.bth.pkey = proto::Pkey{0x8001}; });
  drop(DropReason::kBadTver, [](proto::Packet& packet) { packet.bth.transport_version = 1; });
  drop(DropReason::kWrongPeer, [](proto::Packet& packet) { packet.ipv4->source += 1; });
  drop(DropReason::kIpFragment, [](proto::Packet& packet) { packet.ipv4->more_fragments = true; });
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 100,
                  .ack_request = true,
                  .edit = [](proto::Packet& packet) { packet.ethernet->destination.bytes[5] ^= 1; }});
  CHECK(bench.last_verdict() == DropReason::kNotForUs);
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 100,
                  .ack_request = true,
                  .edit = [](proto::Packet& packet) { packet.ipv4->destination += 7; }});
  CHECK(bench.last_verdict() == DropReason::kNotForUs);
  bench.expect_nothing();
  expect_no_write(bench, qp);
  // A limited member of the default partition may talk to a full one [IBTA 10.9.3].
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 100,
                  .ack_request = true,
                  .edit = [](proto::Packet& packet) { packet.bth.pkey = proto::Pkey{0x7FFF}; }});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
}

TEST_CASE(
    "W06: FECN, BECN, reserved bits, MigReq, source port, ECN and DF do not matter to a receiver [IBTA "
    "CA17-29]") {
  Bench bench;
  Connection qp = bench.connect();
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 100,
                  .ack_request = true,
                  .payload = pattern(5),
                  .edit = [](proto::Packet& packet) {
                    packet.bth.fecn = packet.bth.becn = true;
                    packet.bth.reserved6 = 0x3F;
                    packet.bth.reserved7 = 0x7F;
                    packet.bth.migration_request = false;
                    packet.udp->source_port = 1234;
                    packet.udp->checksum = 0x5555;
                    packet.ipv4->traffic_class = 3;
                    packet.ipv4->dont_fragment = false;
                    packet.ipv4->time_to_live = 1;
                  }});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  CHECK(holds(bench, qp, 0, pattern(5)));
  CHECK(bench.counters().no_df == 1);
  CHECK(bench.counters().ecn_marked == 1);
}

TEST_CASE("packets for a QP below RTR are dropped; RTR answers already") {
  Bench bench;
  Connection reset = bench.connect({.state = QpState::kReset});
  bench.send(reset, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .ack_request = true});
  CHECK(bench.last_verdict() == DropReason::kQpState);
  Connection init = bench.connect({.state = QpState::kInit});
  bench.send(init, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .ack_request = true});
  CHECK(bench.last_verdict() == DropReason::kQpState);
  bench.expect_nothing();
  Connection rtr = bench.connect({.state = QpState::kRtr});
  rtr.recv(1);
  bench.send(rtr, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true, .msn = 1});
  const auto events = bench.events();
  CHECK(std::count_if(events.begin(), events.end(),
                      [](const emulator::Event& one) { return one.kind == EventKind::kCommEst; }) == 1);
}

TEST_CASE("READs: one more than max_dest_rd_atomic in a burst is NAKed behind the answers to the others") {
  Bench bench;
  Connection qp = bench.connect({.max_dest_rd_atomic = 2});
  std::vector<Bytes> burst;
  for (std::uint32_t i = 0; i < 3; ++i) {
    burst.push_back(
        bench.frame(qp, {.opcode = Opcode::kRcReadRequest, .psn = 100 + 4 * i, .length = 4 * kMtu}));
  }
  bench.receive(burst);
  for (std::uint32_t psn = 100; psn < 108; ++psn) {
    const auto packet = bench.take();
    REQUIRE(packet.has_value());
    CHECK(packet->packet.bth.psn.value() == psn);
  }
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 108, .syndrome = kNakInvalid});
  bench.expect_nothing();
}

TEST_CASE("ATOMICs: one more than max_dest_rd_atomic in a burst is NAKed behind the answers to the others") {
  Bench bench;
  Connection qp = bench.connect({.max_dest_rd_atomic = 2});
  std::vector<Bytes> burst;
  for (std::uint32_t i = 0; i < 3; ++i) {
    burst.push_back(
        bench.frame(qp, {.opcode = Opcode::kRcFetchAdd, .psn = 100 + i, .va = qp.mr.iova, .swap_or_add = 1}));
  }
  bench.receive(burst);
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 100, .original = 0});
  bench.expect({.opcode = Opcode::kRcAtomicAcknowledge, .psn = 101, .original = 1});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .syndrome = kNakInvalid});
  bench.expect_nothing();
}

TEST_CASE("two READs in one burst of responses: the memory of one fails, the other is answered") {
  Bench bench;
  Connection bad = bench.connect();
  Connection good = bench.connect({.peer_qpn = 0x333});
  bench.memory().set_fault(
      [&](std::uint64_t, const emulator::MemoryOp& op) { return op.address == bad.mr.iova; });
  const auto read = [&](const Connection& qp) {
    return bench.frame(qp, {.opcode = Opcode::kRcReadRequest,
                            .psn = 100,
                            .va = qp.mr.iova,
                            .rkey = qp.mr.rkey.value(),
                            .length = 8});
  };
  bench.receive({read(bad), read(good)});
  bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 100, .dqpn = 0x333});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakOperational, .dqpn = kPeerQpn});
}
