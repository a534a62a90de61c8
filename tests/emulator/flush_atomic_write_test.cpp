// ATOMIC WRITE and FLUSH: requests of one packet that a READ response of no bytes answers.
#include <algorithm>
#include <cstring>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using emulator::QpState;

namespace {

constexpr std::uint8_t kGlobal = 1, kPersistent = 2;
constexpr std::uint8_t kRange = 0, kWholeRegion = 1;

struct FlushStage {
  Bench bench;
  Connection qp = bench.connect(
      {.access = sim::Client::kAllRights | emulator::kAccessFlushGlobal | emulator::kAccessFlushPersistent});
  sim::Mr mr = bench.client().new_mr(0x1000, sim::Client::kAllRights | emulator::kAccessFlushGlobal);

  Line atomic_write(std::uint32_t psn, std::uint64_t offset, Bytes payload, std::uint32_t length = 8) const {
    return {.opcode = Opcode::kRcAtomicWrite,
            .psn = psn,
            .ack_request = true,
            .va = mr.iova + offset,
            .rkey = mr.rkey.value(),
            .length = length,
            .payload = std::move(payload)};
  }
  Line flush(std::uint32_t psn, std::uint64_t offset, std::uint32_t length, std::uint8_t placement = kGlobal,
             std::uint8_t selectivity = kRange) const {
    return {.opcode = Opcode::kRcFlush,
            .psn = psn,
            .va = mr.iova + offset,
            .rkey = mr.rkey.value(),
            .length = length,
            .edit = [=](proto::Packet& packet) {
              packet.feth = proto::Feth{placement, selectivity, 0};
            }};
  }
  Line answer(std::uint32_t psn, std::uint32_t msn) const {
    return {
        .opcode = Opcode::kRcReadResponseOnly, .psn = psn, .is_ack = true, .msn = msn, .payload_bytes = 0};
  }
  Line refusal(std::uint32_t psn, std::uint8_t syndrome) const {
    return {.opcode = Opcode::kRcAcknowledge, .psn = psn, .syndrome = syndrome};
  }
  bool holds(std::uint64_t offset, const Bytes& wanted) {
    const auto got = bench.client().bytes(mr, offset, wanted.size());
    return std::equal(wanted.begin(), wanted.end(), got.begin());
  }
  sim::SendWr wr(sim::WrOpcode opcode, std::uint64_t id) const {
    sim::SendWr one;
    one.wr_id = id;
    one.opcode = opcode;
    one.remote_address = 0x7000;
    one.rkey = proto::Rkey{0x99};
    return one;
  }
};

}  // namespace

TEST_CASE("ATOMIC WRITE puts its 8 bytes, once, and a duplicate draws the same answer") {
  FlushStage s;
  s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(8, 3)));
  s.bench.expect(s.answer(100, 1));
  CHECK(s.holds(0x10, pattern(8, 3)));
  std::ranges::fill(s.bench.client().bytes(s.mr, 0x10, 8), std::byte{0});
  s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(8, 3)));
  s.bench.expect(s.answer(100, 1));
  CHECK(s.holds(0x10, Bytes(8)));  // not executed again
  s.bench.expect_nothing();
}

TEST_CASE("R08: an ATOMIC WRITE is of 8 aligned bytes, else an invalid request [IBTA oA19-28]") {
  FlushStage s;
  SECTION("no bytes") { s.bench.send(s.qp, s.atomic_write(100, 0x10, {}, 0)); }
  SECTION("4 bytes") { s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(4), 4)); }
  SECTION("7 bytes") { s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(7), 7)); }
  SECTION("9 bytes") { s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(9), 9)); }
  SECTION("16 bytes") { s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(16), 16)); }
  SECTION("8 bytes that say 16") { s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(8), 16)); }
  SECTION("8 bytes that say 0") { s.bench.send(s.qp, s.atomic_write(100, 0x10, pattern(8), 0)); }
  SECTION("not aligned") { s.bench.send(s.qp, s.atomic_write(100, 0x14, pattern(8))); }
  s.bench.expect(s.refusal(100, kNakInvalid));
  CHECK(s.holds(0, Bytes(0x40)));
  CHECK(s.qp.qp->state() == QpState::kErr);
}

TEST_CASE("an ATOMIC WRITE needs remote write [IBTA A19.4.5.3]") {
  FlushStage s;
  SECTION("of the region") {
    const sim::Mr mr = s.bench.client().new_mr(0x100, emulator::kAccessRemoteRead);
    Line line = s.atomic_write(100, 0, pattern(8));
    line.va = mr.iova;
    line.rkey = mr.rkey.value();
    s.bench.send(s.qp, line);
    s.bench.expect(s.refusal(100, kNakAccess));
  }
  SECTION("within the region") {
    s.bench.send(s.qp, s.atomic_write(100, 0x1000, pattern(8)));
    s.bench.expect(s.refusal(100, kNakAccess));
  }
  SECTION("of the QP") {
    Connection other = s.bench.connect({.peer_qpn = 0x333, .access = emulator::kAccessRemoteRead});
    s.bench.send(other, s.atomic_write(100, 0, pattern(8)));
    s.bench.expect(s.refusal(100, kNakInvalid));
  }
}

TEST_CASE("FLUSH is answered when the writes before it are done [IBTA oA19-1, oA19-2]") {
  FlushStage s;
  const Line write{.opcode = Opcode::kRcWriteOnly,
                   .psn = 100,
                   .va = s.mr.iova,
                   .rkey = s.mr.rkey.value(),
                   .payload = pattern(100)};
  s.bench.receive({s.bench.frame(s.qp, write), s.bench.frame(s.qp, s.flush(101, 0, 100))});
  s.bench.expect(s.answer(101, 2));
  CHECK(s.holds(0, pattern(100)));
  s.bench.send(s.qp, s.flush(101, 0, 100));  // a duplicate [IBTA oA19-14]
  s.bench.expect(s.answer(101, 2));
  s.bench.send(s.qp, s.flush(102, 0xFFFF0000, 0, kGlobal, kWholeRegion));  // the range says nothing
  s.bench.expect(s.answer(102, 3));
  s.bench.expect_nothing();
}

TEST_CASE("FLUSH always validates its key, and what it asks for [IBTA oA19-13]") {
  FlushStage s;
  std::uint8_t syndrome = kNakAccess;
  Line line = s.flush(100, 0, 0);
  SECTION("no bytes and a bad key") { line.rkey = s.mr.rkey.value() ^ 1; }
  SECTION("no bytes of another place") { line.va = s.mr.iova - 1; }
  SECTION("beyond the region") { line.length = 0x1001; }
  SECTION("a region that does not have the placement") { line.rkey = s.qp.mr.rkey.value(); }
  SECTION("persistence, which no region has") { line = s.flush(100, 0, 8, kPersistent); }
  SECTION("both") { line = s.flush(100, 0, 8, kGlobal | kPersistent); }
  SECTION("no placement") {
    syndrome = kNakInvalid;
    line = s.flush(100, 0, 8, 0);
  }
  SECTION("a reserved placement") {
    syndrome = kNakInvalid;
    line = s.flush(100, 0, 8, 4);
  }
  SECTION("a reserved selectivity") {
    syndrome = kNakInvalid;
    line = s.flush(100, 0, 8, kGlobal, 2);
  }
  SECTION("payload") {
    syndrome = kNakInvalid;
    line.payload = pattern(4);
  }
  SECTION("longer than a message") {
    syndrome = kNakInvalid;
    line.length = 0x80000001;
  }
  s.bench.send(s.qp, line);
  s.bench.expect(s.refusal(100, syndrome));
  CHECK(s.qp.qp->state() == QpState::kErr);
}

TEST_CASE("a region cannot promise persistence: application memory is not ours to make durable") {
  Bench bench;
  sim::Client& client = bench.client();
  const emulator::RegMr reg{client.pd(), client.space(), 0x10000,
                            0x1000,      0x10000,        emulator::kAccessFlushPersistent};
  CHECK(client.transact(reg).error == std::errc::operation_not_supported);
}

TEST_CASE("each takes a responder resource [IBTA oA19-9]: more than granted is an invalid request") {
  Bench bench;
  Connection qp = bench.connect({.max_dest_rd_atomic = 0});
  bench.send(qp, {.opcode = Opcode::kRcAtomicWrite, .psn = 100, .payload = pattern(8)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakInvalid});
}

TEST_CASE("requester: ATOMIC WRITE and FLUSH on the wire, and their completions") {
  FlushStage s;
  sim::SendWr write = s.wr(sim::kWrAtomicWrite, 1);
  const Bytes data = pattern(8, 7);
  std::memcpy(&write.atomic_write, data.data(), 8);
  s.bench.post(s.qp, write);
  s.bench.expect({.opcode = Opcode::kRcAtomicWrite,
                  .psn = 1000,
                  .ack_request = true,
                  .va = 0x7000,
                  .rkey = 0x99,
                  .length = 8,
                  .payload = data});
  sim::SendWr flush = s.wr(sim::kWrFlush, 2);
  flush.sges = {s.mr.sge(0, 0x123)};
  flush.placement = kGlobal;
  flush.selectivity = kWholeRegion;
  s.bench.post(s.qp, flush);
  const auto sent = s.bench.take();
  REQUIRE(sent.has_value());
  CHECK(sent->packet.bth.opcode == Opcode::kRcFlush);
  CHECK_FALSE(sent->packet.bth.solicited_event);  // [IBTA oA19-6]
  CHECK(sent->packet.feth->placement_types == kGlobal);
  CHECK(sent->packet.feth->selectivity_level == kWholeRegion);
  CHECK(sent->packet.reth->dma_length_bytes == 0x123);
  s.bench.send(s.qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1000, .msn = 1});
  s.bench.expect(s.qp, {.wr_id = 1, .opcode = sim::kWcAtomicWrite});
  s.bench.expect_no_completion(s.qp);
  s.bench.send(s.qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1001, .msn = 2});
  s.bench.expect(s.qp, {.wr_id = 2, .opcode = sim::kWcFlush});
}

TEST_CASE("requester: they count as outstanding READs, and a fence waits for them") {
  Bench bench;
  Connection qp = bench.connect({.max_rd_atomic = 1});
  sim::SendWr write;
  write.opcode = sim::kWrAtomicWrite;
  write.remote_address = 0x7000;
  REQUIRE(qp.qp->queue_send(write));
  REQUIRE(qp.qp->queue_send(write));
  sim::SendWr send;
  send.flags |= sim::kFence;
  send.sges = {qp.mr.sge(0, 4)};
  bench.post(qp, send);
  bench.expect({.opcode = Opcode::kRcAtomicWrite, .psn = 1000});
  bench.expect_nothing();
  bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1000, .msn = 1});
  bench.expect({.opcode = Opcode::kRcAtomicWrite, .psn = 1001});
  bench.expect_nothing();
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1001, .msn = 2});  // an implied NAK
  bench.expect({.opcode = Opcode::kRcAtomicWrite, .psn = 1001});
  bench.send(qp, {.opcode = Opcode::kRcReadResponseOnly, .psn = 1001, .msn = 2});
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1002});
}

TEST_CASE("requester: none may be posted where no READ may") {
  Bench bench;
  Connection qp = bench.connect({.max_rd_atomic = 0});
  sim::SendWr write;
  write.wr_id = 3;
  write.opcode = sim::kWrAtomicWrite;
  bench.post(qp, write);
  bench.expect(qp, {.wr_id = 3, .status = sim::kWcLocalQpOperation});
}

TEST_CASE("requester: a response of another kind than the request at the head is a bad one") {
  Bench bench;
  Connection qp = bench.connect();
  sim::SendWr wr;
  wr.wr_id = 1;
  wr.remote_address = 0x7000;
  wr.sges = {qp.mr.sge(0, 8)};
  Line line{.opcode = Opcode::kRcReadResponseOnly, .psn = 1000, .payload = pattern(8)};
  SECTION("READ data for a SEND") { wr.opcode = sim::kWrSend; }
  SECTION("ATOMIC data for a READ") {
    wr.opcode = sim::kWrRead;
    line.opcode = Opcode::kRcAtomicAcknowledge;
    line.payload.reset();
  }
  SECTION("READ data for an ATOMIC") { wr.opcode = sim::kWrFetchAdd; }
  SECTION("READ data for an ATOMIC WRITE") { wr.opcode = sim::kWrAtomicWrite; }
  SECTION("ATOMIC data for an ATOMIC WRITE") {
    wr.opcode = sim::kWrAtomicWrite;
    line.opcode = Opcode::kRcAtomicAcknowledge;
    line.payload.reset();
  }
  SECTION("READ data with a NAK") {
    wr.opcode = sim::kWrRead;
    line.syndrome = kNakAccess;
  }
  SECTION("ATOMIC data with an RNR NAK") {
    wr.opcode = sim::kWrFetchAdd;
    line = {.opcode = Opcode::kRcAtomicAcknowledge, .psn = 1000, .syndrome = rnr(1)};
  }
  bench.post(qp, wr);
  REQUIRE(bench.take().has_value());
  bench.send(qp, line);
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcBadResponse});
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(std::ranges::all_of(bench.client().bytes(qp.mr, 0, 8),
                            [](std::byte one) { return one == std::byte{0}; }));
}

TEST_CASE("requester: a large READ does not hold up what is behind it") {
  Bench bench;
  Connection qp = bench.connect();
  sim::SendWr read;
  read.wr_id = 1;
  read.opcode = sim::kWrRead;
  read.remote_address = 0x7000;
  read.sges = {qp.mr.sge(0, 200 * kMtu)};  // more responses than the window has packets
  REQUIRE(qp.qp->queue_send(read));
  sim::SendWr write;
  write.wr_id = 2;
  write.opcode = sim::kWrWrite;
  write.remote_address = 0x7000;
  write.sges = {qp.mr.sge(0, 128 * kMtu)};
  REQUIRE(qp.qp->queue_send(write));
  bench.post(qp, write);
  bench.expect({.opcode = Opcode::kRcReadRequest, .psn = 1000});
  // The READ request takes one of 128 packets, whatever it will bring.
  for (std::uint32_t i = 0; i < 127; ++i) {
    const auto sent = bench.take();
    REQUIRE(sent.has_value());
    CHECK(sent->packet.bth.psn.value() == 1200 + i);
  }
  bench.expect_nothing();
  // Responses make no room: the request is outstanding until the last.
  bench.send(qp, {.opcode = Opcode::kRcReadResponseFirst, .psn = 1000, .payload = pattern(kMtu)});
  bench.expect_nothing();
}
