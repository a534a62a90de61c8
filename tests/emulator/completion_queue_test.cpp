// CQs. Events: one for each arming, for what is new. Resize: what waits is moved in order, what does not fit
// is refused, the old ring is left alone.
#include <algorithm>

#include <catch2/catch.hpp>

#include "emulator/ring_shape.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

// Completions from `first` on, one a datagram.
void complete(Bench& bench, Connection& qp, AhHandle ah, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t id = first; id < first + count; ++id) {
    bench.post(qp, {.wr_id = id,
                    .sges = {qp.mr.sge(0, 4)},
                    .ah = ah,
                    .remote_qpn = proto::Qpn{kPeerQpn},
                    .remote_qkey = proto::Qkey{kQkey}});
    REQUIRE(bench.take().has_value());
  }
}

void expect_ids(Bench& bench, Connection& qp, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t id = first; id < first + count; ++id)
    bench.expect(qp, {.wr_id = id});
}

std::errc resize(Bench& bench, const Connection& qp, sim::RingMemory& ring, std::uint32_t slots) {
  return bench.client().transact(ResizeCq{qp.cq->handle(), ring.bytes(), slots}).error;
}

}  // namespace

TEST_CASE("Q19: events: one for each arming, solicited ones only where asked") {
  Bench bench;
  sim::Client& client = bench.client();
  const auto cq = client.create_cq(50, 0xC0, 0x77);
  Connection qp = bench.connect();
  qp.qp = client.create_qp(*cq, *cq);
  client.connect(*qp.qp, bench.connect_options({}));
  for (std::uint64_t i = 0; i < 8; ++i)
    qp.recv(i);
  const auto completions = [&] {
    const auto events = bench.events();
    return std::count_if(events.begin(), events.end(),
                         [](const Event& one) { return one.kind == EventKind::kCompletion; });
  };
  std::uint32_t psn = 100;
  const auto arrive = [&](bool solicited) {
    bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = psn++, .solicited = solicited});
  };
  const auto arm = [&](CqArm how) {
    client.arm(*cq, how);
    bench.pass();
  };
  const auto poll = [&] {
    while (cq->poll()) {
    }
  };
  arrive(true);
  CHECK(completions() == 0);  // not armed
  poll();
  arm(CqArm::kNext);
  CHECK(completions() == 0);  // it has been read
  arrive(false);
  arrive(false);
  CHECK(completions() == 1);
  poll();
  arm(CqArm::kSolicited);
  arrive(false);
  CHECK(completions() == 0);
  arrive(true);
  CHECK(completions() == 1);
}

TEST_CASE("what a CQ holds when it is armed is announced at once, unless it was before") {
  Bench bench;
  sim::Client& client = bench.client();
  const auto cq = client.create_cq(50, 0xC0, 0x77);
  Connection qp = bench.connect();
  qp.qp = client.create_qp(*cq, *cq);
  client.connect(*qp.qp, bench.connect_options({}));
  for (std::uint64_t i = 0; i < 32; ++i)
    qp.recv(i);
  std::uint32_t psn = 100;
  const auto arrive = [&](bool solicited) {
    bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = psn++, .solicited = solicited});
  };
  const auto events_of_arming = [&](CqArm how) {
    client.arm(*cq, how);
    bench.pass();
    return bench.events().size();
  };
  const auto read = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      REQUIRE(cq->poll().has_value());
  };
  SECTION("the next one") {
    arrive(false);
    CHECK(events_of_arming(CqArm::kNext) == 1);
    // Announced, whether read or not: armed again it waits for the next.
    CHECK(events_of_arming(CqArm::kNext) == 0);
    read(1);
    arrive(false);
    CHECK(bench.events().size() == 1);
    // What has come since then counts, what has been read does not.
    arrive(false);
    arrive(false);
    CHECK(events_of_arming(CqArm::kNext) == 1);
    read(3);
    arrive(false);
    read(1);
    CHECK(events_of_arming(CqArm::kNext) == 0);
  }
  SECTION("a solicited one") {
    arrive(true);
    arrive(false);
    CHECK(events_of_arming(CqArm::kSolicited) == 1);
    arrive(false);
    CHECK(events_of_arming(CqArm::kSolicited) == 0);
    arrive(true);
    CHECK(bench.events().size() == 1);
    arrive(true);
    arrive(false);
    read(5);  // the last solicited one is read, the one behind it is not
    CHECK(events_of_arming(CqArm::kSolicited) == 0);
    CHECK(events_of_arming(CqArm::kNext) == 1);
  }
  SECTION("one that is read before the engine looks needs no event, and the CQ stays armed") {
    arrive(false);
    client.arm(*cq, CqArm::kNext);
    read(1);
    bench.pass();
    CHECK(bench.events().empty());
    arrive(false);
    CHECK(bench.events().size() == 1);
  }
  SECTION("in a ring that was resized") {
    arrive(false);
    arrive(false);
    read(1);
    const sim::RingMemory old = client.resize(*cq, 7);
    CHECK(events_of_arming(CqArm::kNext) == 1);
    read(1);
    arrive(false);
    read(1);
    CHECK(events_of_arming(CqArm::kNext) == 0);
  }
}

TEST_CASE("Q06: resized with completions waiting, none is lost, doubled or out of order") {
  Bench bench;
  Connection qp = bench.connect({.qp = {.type = QpType::kUd}});
  const AhHandle ah = bench.peer_ah();
  std::uint64_t made = 0, taken = 0;
  std::vector<sim::RingMemory> old;
  for (const std::uint32_t entries : {1024U, 8U, 64U, 7U, 7U, 300U, 15U}) {
    complete(bench, qp, ah, made, 5);
    made += 5;
    const std::uint64_t wanted = std::min<std::uint64_t>(made - taken, 3);
    expect_ids(bench, qp, taken, made - taken - wanted);
    taken = made - wanted;
    old.push_back(bench.client().resize(*qp.cq, entries));
    std::fill(old.back().bytes().begin(), old.back().bytes().end(), std::byte{0xEE});
    CHECK(qp.cq->pending() == wanted);
    complete(bench, qp, ah, made, 4);
    made += 4;
    expect_ids(bench, qp, taken, 5);
    taken += 5;
  }
  expect_ids(bench, qp, taken, made - taken);
  bench.expect_no_completion(qp);
  for (sim::RingMemory& ring : old) {
    const auto bytes = ring.bytes();
    CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{0xEE}; }));
  }
}

TEST_CASE("Q06: fewer entries than wait is EINVAL and changes nothing; as many fit") {
  Bench bench;
  Connection qp = bench.connect({.qp = {.type = QpType::kUd}});
  const AhHandle ah = bench.peer_ah();
  complete(bench, qp, ah, 0, 7);
  sim::RingMemory ring(cq_ring_shape(7).bytes());
  complete(bench, qp, ah, 7, 1);
  CHECK(resize(bench, qp, ring, 8) == std::errc::invalid_argument);
  const auto bytes = ring.bytes();
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte one) { return one == std::byte{}; }));
  complete(bench, qp, ah, 8, 1);
  expect_ids(bench, qp, 0, 2);
  const sim::RingMemory old = bench.client().resize(*qp.cq, 7);  // 7 wait: full
  expect_ids(bench, qp, 2, 7);
  complete(bench, qp, ah, 9, 7);
  expect_ids(bench, qp, 9, 7);
}

TEST_CASE("Q06: a CQ made too small overruns as any other") {
  Bench bench;
  Connection qp = bench.connect({.qp = {.type = QpType::kUd}});
  const AhHandle ah = bench.peer_ah();
  const sim::RingMemory old = bench.client().resize(*qp.cq, 3);
  complete(bench, qp, ah, 0, 3);
  CHECK(bench.events().empty());
  complete(bench, qp, ah, 3, 1);
  const auto events = bench.events();
  CHECK(std::any_of(events.begin(), events.end(),
                    [](const Event& one) { return one.kind == EventKind::kCqErr; }));
  CHECK(qp.qp->state() == QpState::kErr);
  expect_ids(bench, qp, 0, 3);
}

TEST_CASE("a CQ that is armed when it is resized still tells") {
  Bench bench;
  Connection qp = bench.connect({.qp = {.type = QpType::kUd}});
  const AhHandle ah = bench.peer_ah();
  bench.client().arm(*qp.cq, CqArm::kNext);
  const sim::RingMemory old = bench.client().resize(*qp.cq, 100);
  CHECK(bench.events().empty());
  complete(bench, qp, ah, 0, 1);
  const auto events = bench.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == EventKind::kCompletion);
}

TEST_CASE("resize: what is no ring of a CQ is EINVAL") {
  Bench bench;
  Connection qp = bench.connect();
  sim::RingMemory ring(cq_ring_shape(15).bytes());
  CHECK(resize(bench, qp, ring, 0) == std::errc::invalid_argument);
  CHECK(resize(bench, qp, ring, 12) == std::errc::invalid_argument);
  CHECK(resize(bench, qp, ring, 32) == std::errc::invalid_argument);  // longer than the memory
  CHECK(resize(bench, qp, ring, 1U << 31) == std::errc::invalid_argument);
  CHECK(bench.client().transact(ResizeCq{{99}, ring.bytes(), 16}).error == std::errc::invalid_argument);
  CHECK(bench.client().transact(ResizeCq{qp.cq->handle(), ring.bytes().subspan(1), 8}).error ==
        std::errc::invalid_argument);
  CHECK(resize(bench, qp, ring, 16) == std::errc{});
}

TEST_CASE("resize: a consumer out of range moves no more than the ring has") {
  Bench bench;
  Connection qp = bench.connect({.qp = {.type = QpType::kUd}});
  const AhHandle ah = bench.peer_ah();
  complete(bench, qp, ah, 0, 3);
  qp.cq->ring().header().consumer = 0xFFFFFF04;
  sim::RingMemory ring(cq_ring_shape(255).bytes());
  CHECK(resize(bench, qp, ring, 256) == std::errc{});
  CHECK(ring.header().producer < 256);
  sim::RingMemory small(cq_ring_shape(15).bytes());
  ring.header().consumer = ring.header().producer + 1;
  CHECK(resize(bench, qp, small, 16) == std::errc::invalid_argument);
}
