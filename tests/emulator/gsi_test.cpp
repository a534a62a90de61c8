// QP1: one for each NIC, on shard 0, for MADs.
#include <algorithm>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

constexpr std::uint32_t kMad = 256;

Connection qp1(Bench& bench) { return bench.connect({.peer_qpn = 1, .qp = {.type = QpType::kGsi}}); }

std::errc create(Bench& bench, const Connection& like) {
  CreateQp command;
  command.pd = bench.client().pd();
  command.send_cq = command.recv_cq = like.cq->handle();
  command.type = static_cast<std::uint32_t>(QpType::kGsi);
  command.capabilities = {4, 4, 1, 1, 0};
  command.send_ring = like.qp->send_ring().bytes();
  command.recv_ring = like.qp->recv_ring().bytes();
  return bench.client().transact(command).error;
}

Line mad(std::size_t bytes = kMad) {
  return {.opcode = Opcode::kUdSendOnly,
          .ack_request = true,  // as rxe sets it
          .qkey = kGsiQkeyValue,
          .payload = pattern(bytes),
          .dqpn = 1};
}

}  // namespace

TEST_CASE("QP1 sends and receives MADs") {
  Bench bench;
  Connection qp = qp1(bench);
  CHECK(qp.qp->qpn().value() == 1);
  qp.recv(1);
  bench.send(qp, mad());
  bench.expect_recv(qp, {.wr_id = 1, .byte_len = 40 + kMad, .source_qpn = 1});
  CHECK(holds(bench, qp, 0x8000 + 40, pattern(kMad)));
  bench.expect_nothing();
  for (const std::uint32_t qkey : {kGsiQkeyValue, 0x80000000U}) {
    bench.post(qp, {.wr_id = 2,
                    .sges = {qp.mr.sge(0x8000 + 40, kMad)},
                    .ah = bench.peer_ah(),
                    .remote_qpn = proto::Qpn{1},
                    .remote_qkey = proto::Qkey{qkey}});
    bench.expect({.opcode = Opcode::kUdSendOnly,
                  .ack_request = false,
                  .qkey = kGsiQkeyValue,
                  .source_qpn = 1,
                  .payload = pattern(kMad),
                  .dqpn = 1});
    bench.expect(qp, {.wr_id = 2});
  }
}

TEST_CASE("QP1 takes no more than a MAD, and no other Q_Key or P_Key") {
  Bench bench;
  Connection qp = qp1(bench);
  qp.recv(1);
  bench.send(qp, mad(kMad + 1));
  CHECK(bench.last_verdict() == DropReason::kTooLong);
  Line line = mad();
  line.qkey = kQkey;
  bench.send(qp, line);
  CHECK(bench.last_verdict() == DropReason::kBadQkey);
  line = mad();
  line.edit = [](proto::Packet& packet) { packet.bth.pkey = proto::Pkey{0x8001}; };
  bench.send(qp, line);
  CHECK(bench.last_verdict() == DropReason::kBadPkey);
  line = mad();
  line.opcode = Opcode::kRcSendOnly;
  bench.send(qp, line);
  CHECK(bench.last_verdict() == DropReason::kWrongService);
  bench.expect_no_completion(qp);
  bench.post(qp, {.wr_id = 2,
                  .sges = {qp.mr.sge(0, kMad + 1)},
                  .ah = bench.peer_ah(),
                  .remote_qpn = proto::Qpn{1},
                  .remote_qkey = proto::Qkey{kGsiQkeyValue}});
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 2, .status = sim::kWcLocalLength});
  CHECK(qp.qp->state() == QpState::kSqe);
}

TEST_CASE("QP1: a second one is EBUSY, until the first is gone") {
  Bench bench;
  Connection other = bench.connect();
  Connection qp = qp1(bench);
  CHECK(create(bench, other) == std::errc::device_or_resource_busy);
  CHECK(bench.client().destroy(*qp.qp).error == std::errc{});
  bench.send(other, mad());
  CHECK(bench.last_verdict() == DropReason::kUnknownQpn);
  CHECK(create(bench, other) == std::errc{});
}

TEST_CASE("QP1 ends with its context") {
  Bench bench;
  Connection qp = qp1(bench);
  bench.client().close();
  bench.send(qp, mad());
  CHECK(bench.last_verdict() == DropReason::kUnknownQpn);
}

TEST_CASE("QP1 is on shard 0 only, and its Q_Key is not to be chosen") {
  {
    Bench bench({.shard = 1, .shard_count = 2});
    CHECK(create(bench, bench.connect()) == std::errc::operation_not_supported);
  }
  Bench bench;
  Connection qp = bench.connect({.qp = {.type = QpType::kGsi}, .state = QpState::kReset});
  CHECK(bench.client().to_datagram_state(*qp.qp, QpState::kInit, proto::Qkey{kQkey}) ==
        std::errc::invalid_argument);
  CHECK(bench.client().to_datagram_state(*qp.qp, QpState::kInit, proto::Qkey{kGsiQkeyValue}) == std::errc{});
  CHECK(bench.client().transact(AttachMulticast{qp.qp->handle(), proto::Gid::from_ipv4(0xE6010203)}).error ==
        std::errc::invalid_argument);
}
