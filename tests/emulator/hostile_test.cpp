// S04: an application that scribbles on what it shares with the engine. It may hurt itself only.
#include <algorithm>
#include <bit>
#include <cstring>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"
#include "tests/sim/random.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

RingSendWqe& wqe(Connection& qp, std::uint32_t slot) {
  return *reinterpret_cast<RingSendWqe*>(qp.qp->send_ring().slot(slot));
}

// A bystander of another client sends, and is answered.
void expect_undisturbed(Bench& bench, Connection& bystander, std::uint32_t psn) {
  while (bench.take().has_value())
    continue;
  bench.post(bystander, {.wr_id = psn, .sges = {bystander.mr.sge(0, 8)}});
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = psn, .payload_bytes = 8});
  bench.send(bystander, {.opcode = Opcode::kRcAcknowledge, .psn = psn});
  bench.expect(bystander, {.wr_id = psn});
}

}  // namespace

TEST_CASE("S04: a bad send WQE completes with an error, the QP goes to ERR, the peer sees nothing") {
  Bench bench;
  Connection qp = bench.connect();
  sim::Client& other = bench.add_client();
  Connection bystander = bench.connect(other, {.peer_qpn = 0x333});
  sim::SendWr wr{.wr_id = 9, .sges = {qp.mr.sge(0, 100)}, .remote_address = 0x7000, .rkey = proto::Rkey{1}};
  std::uint32_t status = sim::kWcLocalQpOperation;
  const auto post_damaged = [&](auto damage) {
    REQUIRE(qp.qp->queue_send(wr));
    damage(wqe(qp, 0));
    REQUIRE(qp.qp->ring_doorbell());
    bench.pass();
  };
  RingSge* const sge =
      reinterpret_cast<RingSge*>(reinterpret_cast<std::byte*>(&wqe(qp, 0)) + sizeof(RingSendWqe));
  SECTION("num_sge 0xffff") {
    post_damaged([](RingSendWqe& one) { one.dma.num_sge = 0xFFFF; });
  }
  SECTION("num_sge 2^32-1") {
    post_damaged([](RingSendWqe& one) { one.dma.num_sge = 0xFFFFFFFF; });
  }
  SECTION("one more SGE than granted") {
    post_damaged([](RingSendWqe& one) { one.dma.num_sge = 5; });
  }
  SECTION("opcode 200") {
    post_damaged([](RingSendWqe& one) { one.opcode = 200; });
  }
  SECTION("an opcode that is not offered") {
    post_damaged([](RingSendWqe& one) { one.opcode = sim::kWrTso; });
  }
  SECTION("a bind with nonsense for keys") {
    status = sim::kWcMwBind;
    post_damaged([](RingSendWqe& one) {
      one.opcode = sim::kWrBindWindow;
      std::memset(&one.wr, 0xFF, sizeof one.wr);
    });
  }
  SECTION("inline and longer than granted") {
    post_damaged([](RingSendWqe& one) {
      one.send_flags |= sim::kInline;
      one.dma.num_sge = 0;
      one.dma.length_bytes = 0xFFFFFFFF;
    });
  }
  SECTION("inline READ") {
    post_damaged([](RingSendWqe& one) {
      one.send_flags |= sim::kInline;
      one.opcode = sim::kWrRead;
    });
  }
  SECTION("bad L_Key") {
    status = sim::kWcLocalProtection;
    post_damaged([&](RingSendWqe&) { sge->lkey ^= 1; });
  }
  SECTION("an SGE beyond its region") {
    status = sim::kWcLocalProtection;
    post_damaged([&](RingSendWqe&) { sge->length_bytes = 0x10001; });
  }
  SECTION("an SGE that wraps") {
    status = sim::kWcLocalProtection;
    post_damaged([&](RingSendWqe&) { sge->address = ~std::uint64_t{0} - 50; });
  }
  SECTION("an ATOMIC into 4 bytes") {
    wr.opcode = sim::kWrFetchAdd;
    wr.sges[0].length_bytes = 4;
    status = 0;  // either kind of local error
    post_damaged([](RingSendWqe&) {});
  }
  bench.expect_nothing();
  const auto cqe = qp.cq->poll();
  REQUIRE(cqe.has_value());
  CHECK(cqe->wr_id == 9);
  if (status != 0) CHECK(cqe->status == status);
  CHECK(cqe->status != sim::kWcSuccess);
  CHECK(qp.qp->state() == QpState::kErr);
  expect_undisturbed(bench, bystander, 1000);
  CHECK(bench.memory().violations().empty());
}

TEST_CASE("S04: lengths are summed without overflow; more than the device moves is a local length error") {
  Bench bench;
  Connection qp = bench.connect();
  sim::SendWr wr{.wr_id = 9, .sges = {qp.mr.sge(0, 0x10000)}};
  wr.sges.resize(4, wr.sges[0]);
  REQUIRE(qp.qp->queue_send(wr));
  RingSge* const sge =
      reinterpret_cast<RingSge*>(reinterpret_cast<std::byte*>(&wqe(qp, 0)) + sizeof(RingSendWqe));
  for (int i = 0; i < 4; ++i)
    sge[i].length_bytes = 0x40000004;  // 2^32 and 16
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  bench.expect_nothing();
  const auto cqe = qp.cq->poll();
  REQUIRE(cqe.has_value());
  CHECK((cqe->status == sim::kWcLocalLength || cqe->status == sim::kWcLocalProtection));
}

TEST_CASE(
    "the length is the sum of the SGEs, whatever dma.length says; other fields of the DMA state are "
    "ignored") {
  Bench bench;
  Connection qp = bench.connect();
  REQUIRE(qp.qp->queue_send({.wr_id = 9, .sges = {qp.mr.sge(0, 100)}}));
  RingDma& dma = wqe(qp, 0).dma;
  dma.length_bytes = 7;
  dma.resid = 0xFFFFFFFF;
  dma.cur_sge = 200;
  dma.sge_offset = 0xFFFF;
  REQUIRE(qp.qp->ring_doorbell());
  bench.pass();
  bench.expect({.opcode = Opcode::kRcSendOnly, .payload_bytes = 100});
}

TEST_CASE("a request is copied once: what the application changes later is not looked at") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8});
  bench.post(qp, {.wr_id = 9,
                  .opcode = sim::kWrWrite,
                  .sges = {qp.mr.sge(0, 16)},
                  .remote_address = 0x7000,
                  .rkey = proto::Rkey{5}});
  bench.expect({.opcode = Opcode::kRcWriteOnly, .psn = 1000, .va = 0x7000, .rkey = 5, .length = 16});
  std::memset(qp.qp->send_ring().slot(0), 0xFF, 256);
  bench.advance(std::chrono::milliseconds(3));
  bench.expect({.opcode = Opcode::kRcWriteOnly, .psn = 1000, .va = 0x7000, .rkey = 5, .length = 16});
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000});
  bench.expect(qp, {.wr_id = 9});
}

TEST_CASE("S04: zero SGEs are legal, also where none are granted") {
  Bench bench;
  sim::QpOptions options;
  options.capabilities = {4, 4, 0, 0, 0};
  Connection qp = bench.connect({.qp = options});
  bench.post(qp, {.wr_id = 1});
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1000, .payload_bytes = 0});
  REQUIRE(qp.qp->post_recv({2, {}}));
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true});
  bench.expect_recv(qp, {.wr_id = 2, .byte_len = 0});
}

TEST_CASE("S04: a bad receive WQE: local error here, remote operational error there") {
  Bench bench;
  Connection qp = bench.connect();
  sim::Client& other = bench.add_client();
  Connection bystander = bench.connect(other, {.peer_qpn = 0x333});
  qp.recv(1);
  RingRecvWqe& recv = *reinterpret_cast<RingRecvWqe*>(qp.qp->recv_ring().slot(0));
  SECTION("num_sge 0xffff") { recv.dma.num_sge = 0xFFFF; }
  SECTION("num_sge 2^32-1") { recv.dma.num_sge = 0xFFFFFFFF; }
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(8)});
  const auto cqe = qp.recv_cq->poll();
  REQUIRE(cqe.has_value());
  CHECK(cqe->wr_id == 1);
  CHECK(cqe->status != sim::kWcSuccess);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakOperational});
  CHECK(qp.qp->state() == QpState::kErr);
  expect_undisturbed(bench, bystander, 1000);
}

TEST_CASE("S04: indices and shapes in ring headers are never trusted") {
  for (const std::uint32_t garbage : {0xFFFFFFFFU, 0x80000000U, 128U, 63U, 0U}) {
    for (int field = 0; field < 12; ++field) {
      INFO("field " << field << " = " << garbage);
      Bench bench;
      Connection qp = bench.connect();
      sim::Client& other = bench.add_client();
      Connection bystander = bench.connect(other, {.peer_qpn = 0x333});
      qp.recv(1);
      REQUIRE(qp.qp->queue_send({.wr_id = 9, .sges = {qp.mr.sge(0, 100)}}));
      RingHeader* const headers[] = {&qp.qp->send_ring().header(), &qp.qp->recv_ring().header(),
                                     &qp.recv_cq->ring().header()};
      RingHeader* const header = headers[field / 4];
      std::uint32_t* const fields[] = {&header->producer, &header->consumer, &header->index_mask,
                                       &header->log2_element_bytes};
      *fields[field % 4] = garbage;
      REQUIRE(qp.qp->ring_doorbell());
      bench.pass();
      bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(8)});
      bench.advance(std::chrono::milliseconds(1));
      expect_undisturbed(bench, bystander, 1000);
      CHECK(bench.memory().violations().empty());
      CHECK(bench.client().destroy(*qp.qp).error == std::errc{});
    }
  }
}

TEST_CASE("doorbells of QPs that do not exist, or are not in RTS, ring nothing") {
  Bench bench;
  Connection qp = bench.connect({.state = QpState::kRtr});
  REQUIRE(qp.qp->queue_send({.wr_id = 9, .sges = {qp.mr.sge(0, 100)}}));
  ControlArea& control = bench.client().control();
  std::memset(control.doorbells, 0xFF, sizeof control.doorbells);
  std::memset(control.doorbell_summary, 0xFF, sizeof control.doorbell_summary);
  for (int i = 0; i < 1000; ++i)
    bench.pass();
  bench.expect_nothing();
  bench.expect_no_completion(qp);
  // Not a hang either: another client's doorbell gets through.
  sim::Client& other = bench.add_client();
  Connection bystander = bench.connect(other, {.peer_qpn = 0x333});
  std::memset(control.doorbells, 0xFF, sizeof control.doorbells);
  std::memset(control.doorbell_summary, 0xFF, sizeof control.doorbell_summary);
  REQUIRE(bystander.qp->post_send({.wr_id = 1, .sges = {bystander.mr.sge(0, 8)}}));
  for (int i = 0; i < 1000; ++i)
    bench.pass();
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1000});
}

TEST_CASE("S04: random scribbling over everything shared, with traffic") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Bench bench;
    sim::Client& other = bench.add_client();
    Connection bystander = bench.connect(other, {.peer_qpn = 0x333});
    std::vector<Connection> victims;
    for (std::uint32_t i = 0; i < 4; ++i)
      victims.push_back(bench.connect({.peer_qpn = 0x400 + i}));
    std::uint32_t psn = 1000;
    for (int round = 0; round < 100; ++round) {
      Connection& qp = victims[random.index(victims.size())];
      const std::span<std::byte> areas[] = {qp.qp->send_ring().bytes(), qp.qp->recv_ring().bytes(),
                                            qp.cq->ring().bytes(),
                                            std::as_writable_bytes(std::span{&bench.client().control(), 1})};
      const std::span<std::byte> area = areas[random.index(4)];
      for (std::size_t n = random.index(40); n != 0; --n) {
        const std::size_t at = random.chance(500'000) ? random.index(std::min<std::size_t>(area.size(), 1024))
                                                      : random.index(area.size());
        area[at] = static_cast<std::byte>(random.next());
      }
      bench.client().control().doorbells[0] = ~std::uint64_t{0};
      bench.client().control().doorbell_summary[0] = ~std::uint64_t{0};
      bench.pass();
      bench.send(qp, {.opcode = Opcode::kRcSendOnly,
                      .psn = 100 + static_cast<std::uint32_t>(round),
                      .ack_request = true,
                      .payload = pattern(8)});
      bench.send(
          qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000 + static_cast<std::uint32_t>(random.index(3))});
      if (round % 10 == 9) expect_undisturbed(bench, bystander, psn++);
    }
    CHECK(bench.memory().violations().empty());
    bench.client().close();
    bench.memory().give_up(bench.client().space());
    bench.advance(std::chrono::milliseconds(100));
    CHECK(bench.memory().violations().empty());
  }
}
