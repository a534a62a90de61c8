// Shared receive queues: who takes from them, what comes back, the limit, errors, and moving to another ring.
#include <algorithm>

#include <catch2/catch.hpp>

#include "emulator/ring_shape.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using emulator::DropReason;
using emulator::EventKind;
using emulator::QpState;

namespace {

constexpr std::uint32_t kDepth = 7;  // a ring of 8 slots

struct SrqStage {
  Bench bench;
  std::unique_ptr<sim::Srq> srq = bench.client().create_srq(kDepth);
  Connection a = connect(0x2A), b = connect(0x2B);

  Connection connect(std::uint32_t peer_qpn) {
    sim::QpOptions qp;
    qp.srq = srq->handle();
    return bench.connect({.peer_qpn = peer_qpn, .qp = qp});
  }
  bool post(std::uint64_t id, std::uint32_t bytes = 600) {
    return srq->post_recv({id, {a.mr.sge(0x400 * (id % 32), bytes)}});
  }
  Line send(std::uint32_t psn, std::size_t bytes = 16) const {
    return {.opcode = Opcode::kRcSendOnly, .psn = psn, .ack_request = true, .payload = pattern(bytes)};
  }
  Line ack(std::uint32_t psn) const { return {.opcode = Opcode::kRcAcknowledge, .psn = psn, .is_ack = true}; }
  emulator::SrqSnapshot look() {
    const auto reply = bench.client().transact(emulator::Inspect{});
    return std::get<std::unique_ptr<emulator::Snapshot>>(reply.body)->srqs.at(0);
  }
  std::errc set_limit(std::uint32_t limit) {
    return bench.client().transact(emulator::ModifySrq{srq->handle(), limit, 0, {}}).error;
  }
  std::uint32_t limit() {
    return std::get<emulator::QuerySrqReply>(bench.client().transact(emulator::QuerySrq{srq->handle()}).body)
        .limit;
  }
  std::size_t count(EventKind kind) {
    const auto events = bench.events();
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(), [&](const auto& one) { return one.kind == kind; }));
  }
};

}  // namespace

TEST_CASE("messages of every QP take the receives in the order in which they begin") {
  SrqStage s;
  for (std::uint64_t id = 1; id <= 3; ++id)
    REQUIRE(s.post(id));
  // a's message begins first and ends last.
  s.bench.send(s.a, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)});
  s.bench.send(s.b, s.send(100));
  s.bench.send(s.b,
               {.opcode = Opcode::kRcWriteOnlyImmediate, .psn = 101, .imm = 0x55, .payload = pattern(4)});
  CHECK(s.look().depth == 0);
  s.bench.send(s.a, {.opcode = Opcode::kRcSendLast, .psn = 101, .payload = pattern(8)});
  s.bench.expect_recv(s.b, {.wr_id = 2, .opcode = sim::kWcRecv, .byte_len = 16});
  s.bench.expect_recv(s.b, {.wr_id = 3, .opcode = sim::kWcRecvWriteImm, .imm = 0x55});
  s.bench.expect_recv(s.a, {.wr_id = 1, .byte_len = kMtu + 8});
  const auto got = s.bench.client().bytes(s.a.mr, 0x400, kMtu);
  const Bytes wanted = pattern(kMtu);
  CHECK(std::equal(wanted.begin(), wanted.end(), got.begin()));
}

TEST_CASE("a WRITE with immediate takes its receive when it ends, a plain WRITE none") {
  SrqStage s;
  REQUIRE(s.post(1));
  s.bench.send(s.a, {.opcode = Opcode::kRcWriteOnly, .psn = 100, .payload = pattern(4)});
  CHECK(s.look().depth == 1);
}

TEST_CASE("an empty one is answered by RNR NAK, and the retry takes what was posted meanwhile") {
  SrqStage s;
  s.bench.send(s.a, s.send(100));
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = rnr(12)});
  REQUIRE(s.post(4));
  s.bench.send(s.a, s.send(100));
  s.bench.expect(s.ack(100));
  s.bench.expect_recv(s.a, {.wr_id = 4});
}

TEST_CASE("a taken receive frees its slot in the ring at once, round and round") {
  SrqStage s;
  std::uint32_t psn = 100;
  for (std::uint64_t id = 0; id < 40; ++id, ++psn) {
    while (s.post(id)) {
    }
    CHECK(s.look().depth == kDepth);
    Connection& qp = id % 2 == 0 ? s.a : s.b;
    s.bench.send(qp, s.send(100 + static_cast<std::uint32_t>(id / 2)));
    CHECK(s.look().depth == kDepth - 1);
    REQUIRE(qp.recv_cq->poll().has_value());
  }
}

TEST_CASE("the limit event is raised once, when fewer are left, and the limit is disarmed") {
  SrqStage s;
  for (std::uint64_t id = 0; id < 5; ++id)
    REQUIRE(s.post(id));
  REQUIRE(s.set_limit(4) == std::errc{});
  CHECK(s.limit() == 4);
  s.bench.send(s.a, s.send(100));
  CHECK(s.count(EventKind::kSrqLimitReached) == 0);  // 4 are not fewer than 4
  s.bench.send(s.b, s.send(100));
  const auto events = s.bench.events();
  const auto found = std::find_if(events.begin(), events.end(),
                                  [](const auto& one) { return one.kind == EventKind::kSrqLimitReached; });
  REQUIRE(found != events.end());
  CHECK(found->user_handle == 0x5);
  CHECK(found->object == s.srq->handle().value);
  CHECK(s.limit() == 0);
  s.bench.send(s.b, s.send(101));
  CHECK(s.count(EventKind::kSrqLimitReached) == 0);
  REQUIRE(s.set_limit(2) == std::errc{});  // armed again
  s.bench.send(s.b, s.send(102));
  CHECK(s.count(EventKind::kSrqLimitReached) == 1);
}

TEST_CASE("a limit armed above what is posted raises its event at once") {
  SrqStage s;
  REQUIRE(s.set_limit(1) == std::errc{});
  CHECK(s.count(EventKind::kSrqLimitReached) == 1);
  CHECK(s.limit() == 0);
  for (std::uint64_t id = 0; id < 3; ++id)
    REQUIRE(s.post(id));
  REQUIRE(s.set_limit(3) == std::errc{});  // 3 are not fewer than 3
  CHECK(s.count(EventKind::kSrqLimitReached) == 0);
  REQUIRE(s.set_limit(4) == std::errc{});
  CHECK(s.count(EventKind::kSrqLimitReached) == 1);
  s.bench.send(s.a, s.send(100));
  CHECK(s.count(EventKind::kSrqLimitReached) == 0);
}

TEST_CASE("Q08: ERR flushes what the QP had taken, nothing else, and raises the last-WQE event") {
  SrqStage s;
  for (std::uint64_t id = 1; id <= 3; ++id)
    REQUIRE(s.post(id));
  s.bench.send(s.a, {.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)});
  REQUIRE(s.bench.client().to_state(*s.a.qp, QpState::kErr) == std::errc{});
  s.bench.expect_recv(s.a, {.wr_id = 1, .status = sim::kWcFlushed});
  s.bench.expect_no_completion(s.a);
  CHECK(s.look().depth == 2);
  const auto events = s.bench.events();
  CHECK(std::count_if(events.begin(), events.end(), [&](const auto& one) {
          return one.kind == EventKind::kQpLastWqeReached && one.object == s.a.qp->handle().value;
        }) == 1);
  s.bench.advance(std::chrono::milliseconds(50));  // queues in ERR are looked at again and again
  CHECK(s.look().depth == 2);
  CHECK(s.count(EventKind::kQpLastWqeReached) == 0);
  s.bench.send(s.b, s.send(100));
  s.bench.expect_recv(s.b, {.wr_id = 2});
}

TEST_CASE("the same event if nothing was taken [IBTA o11-5.2.5]; none without an SRQ") {
  SrqStage s;
  REQUIRE(s.bench.client().to_state(*s.a.qp, QpState::kErr) == std::errc{});
  CHECK(s.count(EventKind::kQpLastWqeReached) == 1);
  Connection own = s.bench.connect({.peer_qpn = 0x333});
  REQUIRE(s.bench.client().to_state(*own.qp, QpState::kErr) == std::errc{});
  CHECK(s.count(EventKind::kQpLastWqeReached) == 0);
}

TEST_CASE("receives of packets that are cancelled go back, and are taken first") {
  SrqStage s;
  for (std::uint64_t id = 1; id <= 6; ++id)
    REQUIRE(s.post(id));
  // In one burst a takes 1, 3, 4, b takes 2; a's first cannot be placed.
  s.bench.memory().set_fault(
      [&](std::uint64_t, const emulator::MemoryOp& op) { return op.address == s.a.mr.address + 0x400; });
  REQUIRE(s.set_limit(4) == std::errc{});
  s.bench.receive({s.bench.frame(s.a, s.send(100)), s.bench.frame(s.b, s.send(100)),
                   s.bench.frame(s.a, s.send(101)), s.bench.frame(s.a, s.send(102))});
  s.bench.memory().set_fault({});
  s.bench.expect_recv(s.a, {.wr_id = 1, .status = sim::kWcLocalProtection});
  s.bench.expect_no_completion(s.a);
  s.bench.expect_recv(s.b, {.wr_id = 2});
  CHECK(s.look().depth == 4);
  CHECK(s.count(EventKind::kSrqLimitReached) == 0);  // as they were never taken
  for (std::uint32_t i = 0; i < 4; ++i) {
    s.bench.send(s.b, s.send(101 + i));
    s.bench.expect_recv(s.b, {.wr_id = 3 + i});
  }
  CHECK(s.count(EventKind::kSrqLimitReached) == 1);
}

TEST_CASE("M04: receives are judged by the SRQ's PD, not by the QP's") {
  Bench bench;
  sim::Client& client = bench.client();
  const auto pd = std::get<emulator::PdHandle>(client.transact(emulator::AllocPd{}).body);
  const auto srq = client.create_srq(kDepth, 4, pd);
  sim::QpOptions options;
  options.srq = srq->handle();
  Connection qp = bench.connect({.qp = options});
  const sim::Mr mr =
      client.reg_mr(client.allocate(0x1000), 0x1000, sim::Client::kAllRights, std::nullopt, pd);
  REQUIRE(srq->post_recv({1, {mr.sge(0, 64)}}));
  REQUIRE(srq->post_recv({2, {qp.mr.sge(0, 64)}}));
  const Line line{.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(16)};
  bench.send(qp, line);
  bench.expect_recv(qp, {.wr_id = 1});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .is_ack = true});
  Line next = line;
  next.psn = 101;
  bench.send(qp, next);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakOperational});
  bench.expect_recv(qp, {.wr_id = 2, .status = sim::kWcLocalProtection});
}

TEST_CASE("S04: a hostile ring harms its own QPs only") {
  SrqStage s;
  SECTION("more SGEs than granted") {
    REQUIRE(s.post(1));
    reinterpret_cast<emulator::RingRecvWqe*>(s.srq->ring().slot(0))->dma.num_sge = 0xFFFF;
    s.bench.send(s.a, s.send(100));
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakOperational});
    s.bench.expect_recv(s.a, {.wr_id = 1, .status = sim::kWcLocalQpOperation});
  }
  SECTION("indices and header of nonsense") {
    s.srq->ring().header().producer = 0xFFFFFFFD;
    s.srq->ring().header().consumer = 0xDEADBEEF;
    s.srq->ring().header().index_mask = 0xFFFFFFFF;
    s.srq->ring().header().log2_element_bytes = 31;
    for (std::uint32_t i = 0; i < 20; ++i)
      s.bench.send(s.a, s.send(100 + i));
    CHECK(s.look().depth <= kDepth);
  }
  CHECK(s.count(EventKind::kSrqErr) == 0);
  Connection own = s.bench.connect({.peer_qpn = 0x333});
  own.recv(9);
  s.bench.send(own, s.send(100));
  s.bench.expect_recv(own, {.wr_id = 9});
}

TEST_CASE("moved to another ring, it keeps what is posted, in order") {
  SrqStage s;
  for (std::uint64_t id = 0; id < 7; ++id)
    REQUIRE(s.post(id));
  for (std::uint32_t i = 0; i < 4; ++i)
    s.bench.send(s.a, s.send(100 + i));
  REQUIRE(s.post(7));
  REQUIRE(s.post(8));  // 4 to 8 wait, over the end of the ring
  SECTION("larger") { REQUIRE(s.srq->resize(s.bench.client(), 31) == std::errc{}); }
  SECTION("smaller, but large enough") { REQUIRE(s.srq->resize(s.bench.client(), 5) == std::errc{}); }
  SECTION("too small: it stays as it is") {
    CHECK(s.srq->resize(s.bench.client(), 3) == std::errc::invalid_argument);
  }
  for (std::uint32_t i = 0; i < 4; ++i)
    s.bench.expect_recv(s.a, {.wr_id = i});
  for (std::uint32_t i = 0; i < 5; ++i) {
    s.bench.send(s.b, s.send(100 + i));
    s.bench.expect_recv(s.b, {.wr_id = 4 + i});
  }
  REQUIRE(s.post(20));
  s.bench.send(s.b, s.send(105));
  s.bench.expect_recv(s.b, {.wr_id = 20});
}

TEST_CASE("one invalid attribute, and nothing changes [IBTA 11.2.3.3]") {
  SrqStage s;
  for (std::uint64_t id = 0; id < kDepth; ++id)
    REQUIRE(s.post(id));
  REQUIRE(s.set_limit(3) == std::errc{});
  CHECK(s.set_limit(kDepth + 1) == std::errc::invalid_argument);
  CHECK(s.srq->resize(s.bench.client(), 2) == std::errc::invalid_argument);  // below the limit
  sim::RingMemory ring(emulator::srq_ring_shape(31, 4).bytes());
  const auto modify = [&](std::uint32_t limit, std::uint32_t max_wr, std::span<std::byte> bytes) {
    return s.bench.client().transact(emulator::ModifySrq{s.srq->handle(), limit, max_wr, bytes}).error;
  };
  CHECK(modify(32, 31, ring.bytes()) == std::errc::invalid_argument);
  CHECK(modify(2, 0, ring.bytes()) == std::errc::invalid_argument);
  CHECK(modify(2, 1u << 20, ring.bytes()) == std::errc::invalid_argument);
  CHECK(modify(2, 31, ring.bytes().first(100)) == std::errc::invalid_argument);
  CHECK(s.limit() == 3);
  CHECK(s.look().max_wr == kDepth);
  CHECK(modify(5, 31, ring.bytes()) == std::errc{});
  CHECK(s.limit() == 5);
  CHECK(s.look().max_wr == 31);
}

TEST_CASE("Q04: made and destroyed with errnos") {
  Bench bench;
  sim::Client& client = bench.client();
  sim::RingMemory ring(emulator::srq_ring_shape(7, 4).bytes());
  const auto create = [&](emulator::CreateSrq command) { return client.transact(command).error; };
  CHECK(create({{99}, 7, 4, 0, ring.bytes(), 0}) == std::errc::invalid_argument);
  CHECK(create({client.pd(), 0, 4, 0, ring.bytes(), 0}) == std::errc::invalid_argument);
  CHECK(create({client.pd(), 7, 33, 0, ring.bytes(), 0}) == std::errc::invalid_argument);
  CHECK(create({client.pd(), 8, 4, 0, ring.bytes(), 0}) == std::errc::invalid_argument);  // 16 slots
  CHECK(create({client.pd(), 7, 4, 8, ring.bytes(), 0}) == std::errc::invalid_argument);
  const auto srq = client.create_srq(7);
  CHECK(client.transact(emulator::DeallocPd{client.pd()}).error == std::errc::device_or_resource_busy);
  sim::QpOptions options;
  options.srq = srq->handle();
  Connection qp = bench.connect({.qp = options});
  CHECK(client.transact(emulator::DestroySrq{srq->handle()}).error == std::errc::device_or_resource_busy);
  REQUIRE(client.destroy(*qp.qp).error == std::errc{});
  CHECK(client.transact(emulator::DestroySrq{srq->handle()}).error == std::errc{});
  CHECK(client.transact(emulator::DestroySrq{srq->handle()}).error == std::errc::invalid_argument);
  CHECK(client.transact(emulator::QuerySrq{srq->handle()}).error == std::errc::invalid_argument);
  CHECK(client.transact(emulator::ModifySrq{srq->handle(), 1, 0, {}}).error == std::errc::invalid_argument);
  const auto left = client.create_srq(7);
  client.close();
}
