// Which of the writes to an application's memory ends a message: those who poll on a message's last byte rely
// on it.
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;

namespace {

using EndFlags = std::vector<bool>;

// Notes of each write whether it ends a message.
class EndWatch {
 public:
  explicit EndWatch(Bench& bench) {
    bench.memory().set_fault([this](std::uint64_t, const emulator::MemoryOp& op) {
      if (op.kind == emulator::MemoryOp::Kind::kWrite) seen_.push_back(op.ends_message);
      return false;
    });
  }
  EndFlags take() { return std::exchange(seen_, {}); }

 private:
  EndFlags seen_;
};

}  // namespace

TEST_CASE("the last write of what a peer sends ends the message") {
  Bench bench;
  Connection qp = bench.connect();
  EndWatch writes(bench);
  SECTION("SEND, scattered") {
    REQUIRE(qp.qp->post_recv({1, {qp.mr.sge(0, 100), qp.mr.sge(0x400, 200), qp.mr.sge(0x800, 300)}}));
    bench.send(qp, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)});
    CHECK(writes.take() == EndFlags{false, false});
    bench.send(qp, {.opcode = Opcode::kRcSendLast, .psn = 101, .payload = pattern(150)});
    CHECK(writes.take() == EndFlags{false, true});
    bench.expect_recv(qp, {.wr_id = 1, .byte_len = kMtu + 150});
  }
  SECTION("WRITE") {
    bench.send(qp,
               {.opcode = Opcode::kRcWriteFirst, .psn = 100, .length = kMtu + 8, .payload = pattern(kMtu)});
    bench.send(qp, {.opcode = Opcode::kRcWriteLast, .psn = 101, .payload = pattern(8)});
    bench.send(qp, {.opcode = Opcode::kRcWriteOnly, .psn = 102, .payload = pattern(8)});
    CHECK(writes.take() == EndFlags{false, true, true});
  }
  SECTION("ATOMIC WRITE") {
    bench.send(qp, {.opcode = Opcode::kRcAtomicWrite, .psn = 100, .payload = pattern(8)});
    CHECK(writes.take() == EndFlags{true});
    bench.expect({.opcode = Opcode::kRcReadResponseOnly, .psn = 100});
  }
}

TEST_CASE("the last write of what a peer answers ends the message") {
  Bench bench;
  Connection qp = bench.connect();
  EndWatch writes(bench);
  SECTION("READ, scattered") {
    bench.post(qp, {.opcode = sim::kWrRead, .sges = {qp.mr.sge(0, 300), qp.mr.sge(0x400, 100)}});
    bench.expect({.opcode = Opcode::kRcReadRequest, .psn = kOurPsn});
    bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = kOurPsn, .payload = pattern(kMtu)});
    CHECK(writes.take() == EndFlags{false});
    bench.send(qp, {.opcode = Opcode::kRcReadResponseLast, .psn = kOurPsn + 1, .payload = pattern(144)});
    CHECK(writes.take() == EndFlags{false, true});
  }
  SECTION("FETCH ADD") {
    bench.post(qp, {.opcode = sim::kWrFetchAdd, .sges = {qp.mr.sge(0, 8)}});
    bench.expect({.opcode = Opcode::kRcFetchAdd, .psn = kOurPsn});
    bench.send(qp, {.opcode = Opcode::kRcAtomicAcknowledge, .psn = kOurPsn, .original = 7});
    CHECK(writes.take() == EndFlags{true});
  }
  bench.expect(qp, {});
}

TEST_CASE("the last write of a datagram ends it, be it that of the header area") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  EndWatch writes(bench);
  qp.recv(1);
  qp.recv(2);
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(8)});
  CHECK(writes.take() == EndFlags{false, false, true});
  bench.send(qp, {.opcode = Opcode::kUdSendOnly});
  CHECK(writes.take() == EndFlags{false, true});
}
