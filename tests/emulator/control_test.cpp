// The control plane: QP states, limits, errnos, objects in use, and what their end leaves behind.
#include <algorithm>

#include <catch2/catch.hpp>

#include "emulator/ring_shape.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

constexpr QpState kStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr,
                               QpState::kRts,   QpState::kSqd,  QpState::kErr};
constexpr std::uint32_t kToInit = kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags;
constexpr std::uint32_t kToRtr =
    kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer;
constexpr std::uint32_t kToRts =
    kQpState | kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpSqPsn | kQpMaxQpRdAtomic;

QpAttributes good_attributes() {
  QpAttributes attributes;
  attributes.av.dgid = Bench::peer_gid();
  attributes.av.is_global = true;
  attributes.av.sgid_index = 1;
  attributes.path_mtu_code = 1;
  attributes.dest_qpn = proto::Qpn{kPeerQpn};
  attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1;
  attributes.timeout = 14;
  attributes.retry_cnt = attributes.rnr_retry = 7;
  return attributes;
}

std::uint32_t mask_to(QpState state) {
  switch (state) {
    case QpState::kInit:
      return kToInit;
    case QpState::kRtr:
      return kToRtr;
    case QpState::kRts:
      return kToRts;
    case QpState::kReset:
    case QpState::kSqd:
    case QpState::kSqe:
    case QpState::kErr:
    case QpState::kDestroyed:
      break;
  }
  return kQpState;
}

std::errc modify(Bench& bench, Connection& qp, QpState to, std::uint32_t mask,
                 QpAttributes attributes = good_attributes()) {
  attributes.state = to;
  return bench.client().transact(ModifyQp{qp.qp->handle(), mask, attributes}).error;
}

// The reply waits for a neighbour that is not known.
CommandId submit_rtr(Bench& bench, Connection& qp) {
  QpAttributes attributes = good_attributes();
  attributes.state = QpState::kRtr;
  return bench.submit_only({bench.client().context(), ModifyQp{qp.qp->handle(), kToRtr, attributes}});
}

// A QP in that state.
Connection in_state(Bench& bench, QpState state) {
  if (state == QpState::kSqd || state == QpState::kErr) {
    Connection qp = bench.connect();
    REQUIRE(modify(bench, qp, state, kQpState) == std::errc{});
    return qp;
  }
  return bench.connect({.state = state});
}

std::errc register_mr(Bench& bench, std::uint64_t address, std::uint64_t length, std::uint32_t access,
                      std::uint64_t iova) {
  sim::Client& client = bench.client();
  return client.transact(RegMr{client.pd(), client.space(), address, length, iova, access}).error;
}

}  // namespace

TEST_CASE("QP states: each pair of states, with the attributes that it needs") {
  for (const QpState from : kStates) {
    for (const QpState to : kStates) {
      INFO("from " << static_cast<int>(from) << " to " << static_cast<int>(to));
      Bench bench;
      Connection qp = in_state(bench, from);
      REQUIRE(qp.qp->state() == from);
      const bool is_forward = (from == QpState::kReset && to == QpState::kInit) ||
                              (from == QpState::kInit && to == QpState::kRtr) ||
                              (from == QpState::kRtr && to == QpState::kRts);
      const bool goes =
          is_forward || to == QpState::kReset || (to == QpState::kErr && from != QpState::kReset) ||
          (from == QpState::kInit && to == QpState::kInit) ||
          (from == QpState::kRts && to == QpState::kRts) || (from == QpState::kRts && to == QpState::kSqd) ||
          (from == QpState::kSqd && to == QpState::kRts) || (from == QpState::kSqd && to == QpState::kSqd);
      const std::errc error =
          modify(bench, qp, to, is_forward ? mask_to(to) : static_cast<std::uint32_t>(kQpState));
      CHECK(error == (goes ? std::errc{} : std::errc::invalid_argument));
      CHECK(qp.qp->state() == (goes ? to : from));
      CHECK(bench.client().query(*qp.qp).state == (goes ? to : from));
    }
  }
}

TEST_CASE("N03: a missing attribute is EINVAL and changes nothing") {
  const std::pair<QpState, QpState> steps[] = {
      {QpState::kReset, QpState::kInit}, {QpState::kInit, QpState::kRtr}, {QpState::kRtr, QpState::kRts}};
  for (const auto& [from, to] : steps) {
    for (std::uint32_t bit = 1; bit < 32; ++bit) {
      const std::uint32_t mask = mask_to(to);
      if ((mask >> bit & 1) == 0) continue;
      Bench bench;
      Connection qp = in_state(bench, from);
      INFO("to " << static_cast<int>(to) << " without bit " << bit);
      CHECK(modify(bench, qp, to, mask & ~(1U << bit)) == std::errc::invalid_argument);
      CHECK(qp.qp->state() == from);
      CHECK(modify(bench, qp, to, mask) == std::errc{});
    }
  }
}

TEST_CASE("N03, P05: an attribute out of range is EINVAL and changes nothing") {
  using Edit = void (*)(QpAttributes&);
  const std::pair<const char*, Edit> to_rtr[] = {
      {"no GRH", [](QpAttributes& a) { a.av.is_global = false; }},
      {"no such GID index", [](QpAttributes& a) { a.av.sgid_index = 3; }},
      {"GID of the other family", [](QpAttributes& a) { a.av.sgid_index = 2; }},
      {"path MTU 0", [](QpAttributes& a) { a.path_mtu_code = 0; }},
      {"path MTU beyond 4096", [](QpAttributes& a) { a.path_mtu_code = 6; }},
      {"path MTU above the port's", [](QpAttributes& a) { a.path_mtu_code = 4; }},
      {"RNR timer", [](QpAttributes& a) { a.min_rnr_timer = 32; }},
      {"responder resources", [](QpAttributes& a) { a.max_dest_rd_atomic = 255; }},
  };
  const std::pair<const char*, Edit> to_rts[] = {
      {"rnr_retry 8", [](QpAttributes& a) { a.rnr_retry = 8; }},
      {"rnr_retry 255", [](QpAttributes& a) { a.rnr_retry = 255; }},
      {"retry_cnt 8", [](QpAttributes& a) { a.retry_cnt = 8; }},
      {"timeout 32", [](QpAttributes& a) { a.timeout = 32; }},
      {"initiator depth", [](QpAttributes& a) { a.max_rd_atomic = 255; }},
  };
  const auto refuse = [](const char* what, QpState from, QpState to, Edit edit) {
    INFO(what);
    Bench bench({.mtu_bytes = 1500});
    Connection qp = in_state(bench, from);
    QpAttributes attributes = good_attributes();
    edit(attributes);
    CHECK(modify(bench, qp, to, mask_to(to), attributes) == std::errc::invalid_argument);
    CHECK(qp.qp->state() == from);
    CHECK(modify(bench, qp, to, mask_to(to)) == std::errc{});
  };
  for (const auto& [what, edit] : to_rtr)
    refuse(what, QpState::kInit, QpState::kRtr, edit);
  for (const auto& [what, edit] : to_rts)
    refuse(what, QpState::kRtr, QpState::kRts, edit);
}

TEST_CASE("query_qp gives back what was set") {
  Bench bench;
  Connection qp = bench.connect({.peer_psn = 0x123456,
                                 .mtu = proto::PathMtu::k2048,
                                 .timeout = 17,
                                 .retry_cnt = 5,
                                 .rnr_retry = 6,
                                 .min_rnr_timer = 21});
  const QpAttributes got = bench.client().query(*qp.qp);
  CHECK(got.state == QpState::kRts);
  CHECK(got.current_state == QpState::kRts);
  CHECK(got.path_mtu_code == 4);
  CHECK(got.timeout == 17);
  CHECK(got.retry_cnt == 5);
  CHECK(got.rnr_retry == 6);
  CHECK(got.min_rnr_timer == 21);
  CHECK(got.dest_qpn == proto::Qpn{kPeerQpn});
  CHECK(got.av.dgid == Bench::peer_gid());
  CHECK(got.capabilities.max_send_wr == 64);
  CHECK(got.capabilities.max_inline_bytes == 128);
}

namespace {

// With the rings of another one, which nobody uses: for commands that are refused or counted.
std::errc create_qp(Bench& bench, Connection& like, const QpCapabilities& capabilities,
                    std::size_t send_ring_bytes = ~std::size_t{0},
                    std::size_t recv_ring_bytes = ~std::size_t{0}) {
  CreateQp create;
  create.pd = bench.client().pd();
  create.send_cq = create.recv_cq = like.cq->handle();
  create.type = static_cast<std::uint32_t>(QpType::kRc);
  create.capabilities = capabilities;
  create.send_ring = like.qp->send_ring().bytes();
  create.recv_ring = like.qp->recv_ring().bytes();
  create.send_ring = create.send_ring.first(std::min(create.send_ring.size(), send_ring_bytes));
  create.recv_ring = create.recv_ring.first(std::min(create.recv_ring.size(), recv_ring_bytes));
  return bench.client().transact(create).error;
}

}  // namespace

TEST_CASE("Q16: no more QPs and CQs than the device has, nor more private memory than a client's share") {
  BenchOptions options;
  constexpr QpCapabilities kSmall{4, 4, 1, 1, 0};
  SECTION("QPs") {
    options.limits.max_qp = 2;
    Bench bench(options);
    Connection first = bench.connect();
    CHECK(create_qp(bench, first, kSmall) == std::errc{});
    CHECK(create_qp(bench, first, kSmall) == std::errc::not_enough_memory);
    CHECK(bench.client().destroy(*first.qp).error == std::errc{});
    CHECK(create_qp(bench, first, kSmall) == std::errc{});
  }
  SECTION("CQs") {
    options.limits.max_cq = 3;
    Bench bench(options);
    Connection first = bench.connect();  // it has two
    sim::RingMemory ring(cq_ring_shape(3).bytes());
    const CreateCq create{ring.bytes(), 4, 1, 1};
    CHECK(bench.client().transact(create).error == std::errc{});
    CHECK(bench.client().transact(create).error == std::errc::not_enough_memory);
  }
  SECTION("private memory") {
    options.context_memory_bytes = 1 << 20;
    Bench bench(options);
    Connection first = bench.connect();
    std::errc error{};
    int made = 0;
    for (; error == std::errc{} && made < 1000; ++made)
      error = create_qp(bench, first, {64, 64, 4, 4, 0});
    CHECK(error == std::errc::not_enough_memory);
    CHECK(made > 10);
    CHECK(bench.client().destroy(*first.qp).error == std::errc{});
    CHECK(create_qp(bench, first, {64, 64, 4, 4, 0}) == std::errc{});
  }
}

TEST_CASE("S04: a ring that is smaller than its shape is refused") {
  Bench bench;
  Connection like = bench.connect();
  constexpr QpCapabilities kCap{4, 4, 1, 1, 0};
  const std::size_t send = send_ring_shape(kCap).bytes(), recv = recv_ring_shape(kCap).bytes();
  CHECK(create_qp(bench, like, kCap, send - 1, recv) == std::errc::invalid_argument);
  CHECK(create_qp(bench, like, kCap, send, recv - 1) == std::errc::invalid_argument);
  CHECK(create_qp(bench, like, kCap, send, recv) == std::errc{});
}

TEST_CASE("Q13: what is not offered is refused") {
  Bench bench;
  Connection qp = bench.connect();
  for (const std::uint32_t type : {0U, 5U, 8U, 9U, 10U, 255U, 0xFFFFFFFFU}) {
    CreateQp create;
    create.pd = bench.client().pd();
    create.send_cq = create.recv_cq = qp.cq->handle();
    create.type = type;
    create.capabilities = {4, 4, 1, 1, 0};
    create.send_ring = qp.qp->send_ring().bytes();
    create.recv_ring = qp.qp->recv_ring().bytes();
    INFO("type " << type);
    const std::errc error = bench.client().transact(create).error;
    CHECK((error == std::errc::operation_not_supported || error == std::errc::invalid_argument));
  }
}

TEST_CASE("Q04: what is in use is busy, and goes in the right order [IBTA C11-17]") {
  Bench bench;
  sim::Client& client = bench.client();
  Connection qp = bench.connect();
  CHECK(client.destroy(*qp.cq).error == std::errc::device_or_resource_busy);
  CHECK(client.destroy(*qp.recv_cq).error == std::errc::device_or_resource_busy);
  CHECK(client.transact(DeallocPd{client.pd()}).error == std::errc::device_or_resource_busy);
  // Still usable.
  qp.recv(1);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100});
  bench.expect_recv(qp, {.wr_id = 1});

  CHECK(client.destroy(*qp.qp).error == std::errc{});
  CHECK(qp.qp->state() == QpState::kDestroyed);
  CHECK(client.destroy(*qp.qp).error != std::errc{});  // gone
  CHECK(client.destroy(*qp.cq).error == std::errc{});
  CHECK(client.destroy(*qp.recv_cq).error == std::errc{});
  CHECK(client.transact(DeallocPd{client.pd()}).error == std::errc::device_or_resource_busy);  // the region
  client.dereg_mr(qp.mr);
  CHECK(client.transact(DeallocPd{client.pd()}).error == std::errc{});
}

TEST_CASE("M08, M09: access rights and ranges of a registration") {
  Bench bench;
  const std::uint64_t at = bench.client().allocate(0x1000);
  CHECK(register_mr(bench, at, 0x1000, kAccessLocalWrite | kAccessRemoteWrite, at) == std::errc{});
  CHECK(register_mr(bench, at, 0x1000, 0, at) == std::errc{});
  CHECK(register_mr(bench, at, 0x1000, kAccessRemoteWrite, at) == std::errc::invalid_argument);
  CHECK(register_mr(bench, at, 0x1000, kAccessRemoteAtomic, at) == std::errc::invalid_argument);
  for (std::uint32_t bit = 20; bit < 30; ++bit) {
    INFO("optional bit " << bit);
    CHECK(register_mr(bench, at, 0x1000, kAccessLocalWrite | 1U << bit, at) == std::errc{});
  }
  for (const std::uint32_t bit : {9U, 10U, 12U, 19U, 30U, 31U}) {
    INFO("bit " << bit);
    CHECK(register_mr(bench, at, 0x1000, kAccessLocalWrite | 1U << bit, at) != std::errc{});
  }
  CHECK(register_mr(bench, ~std::uint64_t{0} - 10, 0x1000, kAccessLocalWrite, 0) != std::errc{});
  CHECK(register_mr(bench, at, 0x1000, kAccessLocalWrite, ~std::uint64_t{0} - 10) != std::errc{});
}

TEST_CASE("M01: keys of dead regions are dead, and no two live ones are equal") {
  Bench bench;
  sim::Client& client = bench.client();
  Connection qp = bench.connect();
  const std::uint64_t at = client.allocate(64);
  std::vector<sim::Mr> live;
  std::vector<std::uint32_t> keys;
  for (int i = 0; i < 2000; ++i) {
    live.push_back(client.reg_mr(at, 64));
    if (live.size() > 100) {
      client.dereg_mr(live.front());
      live.erase(live.begin());
    }
  }
  for (const sim::Mr& one : live)
    keys.push_back(one.rkey.value());
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 100,
                  .ack_request = true,
                  .va = at,
                  .rkey = keys.back(),
                  .payload = pattern(8)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  const sim::Mr last = live.back();
  client.dereg_mr(last);
  bench.memory().give_up(client.space(), at, 64);
  bench.send(qp, {.opcode = Opcode::kRcWriteOnly,
                  .psn = 101,
                  .ack_request = true,
                  .va = at,
                  .rkey = last.rkey.value(),
                  .payload = pattern(8)});
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakAccess});
  CHECK(bench.memory().violations().empty());
}

TEST_CASE("a handle of another client, or of nobody, names nothing") {
  Bench bench;
  Connection qp = bench.connect();
  sim::Client& stranger = bench.add_client();
  CHECK(stranger.transact(DestroyQp{{qp.qp->handle().value + 5}}).error != std::errc{});
  CHECK(stranger.transact(DestroyQp{qp.qp->handle()}).error != std::errc{});
  CHECK(stranger.transact(DestroyCq{{0xFFFFFFFF}}).error != std::errc{});
  CHECK(stranger.transact(DeregMr{qp.mr.handle}).error != std::errc{});
  CHECK(stranger.transact(DeallocPd{{77}}).error != std::errc{});
  CHECK(stranger.transact(QueryQp{{0x80000000}}).error != std::errc{});
  CHECK(bench.submit({{4711}, AllocPd{}}).error != std::errc{});
  CHECK(bench.client().query(*qp.qp).state == QpState::kRts);
}

TEST_CASE("Q06: a full CQ is an error of the CQ and of its QPs, not a silent loss [IBTA C11-37]") {
  Bench bench;
  sim::Client& client = bench.client();
  const auto cq = client.create_cq(3, 0xCC);
  Connection qp = bench.connect();
  qp.qp = client.create_qp(*cq, *qp.recv_cq);
  client.connect(*qp.qp, bench.connect_options({}));
  for (std::uint64_t i = 0; i < 4; ++i)
    bench.post(qp, {.wr_id = i, .opcode = sim::kWrWrite, .sges = {qp.mr.sge(0, 4)}});
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1003, .msn = 4});
  const std::vector<Event> events = bench.events();
  CHECK(std::any_of(events.begin(), events.end(), [](const Event& one) {
    return one.kind == EventKind::kCqErr && one.user_handle == 0xCC;
  }));
  CHECK(qp.qp->state() == QpState::kErr);
  CHECK(bench.counters().cq_overruns >= 1);
  for (std::uint64_t i = 0; i < 3; ++i)
    bench.expect(*cq, {.wr_id = i});
  // Nor does it serve again: not that QP, and no new one in either place.
  CHECK(client.to_state(*qp.qp, QpState::kReset) == std::errc{});
  CHECK(client.to_init(*qp.qp, 0) == std::errc::invalid_argument);
  sim::RingMemory send(send_ring_shape({1, 1, 1, 1, 0}).bytes()),
      recv(recv_ring_shape({1, 1, 1, 1, 0}).bytes());
  CreateQp create;
  create.pd = client.pd();
  create.send_cq = cq->handle();
  create.recv_cq = qp.recv_cq->handle();
  create.type = static_cast<std::uint32_t>(QpType::kRc);
  create.capabilities = {1, 1, 1, 1, 0};
  create.send_ring = send.bytes();
  create.recv_ring = recv.bytes();
  CHECK(client.transact(create).error == std::errc::invalid_argument);
  std::swap(create.send_cq, create.recv_cq);
  CHECK(client.transact(create).error == std::errc::invalid_argument);
  create.recv_cq = create.send_cq;  // neither is the overrun one
  CHECK(client.transact(create).error == std::errc{});
}

TEST_CASE("a QP that fails while its RTR waits for the neighbour stays in ERR") {
  Bench bench({.knows_peer = false});
  sim::Client& client = bench.client();
  const auto cq = client.create_cq(1);
  Connection waiting = bench.connect({.state = QpState::kReset});
  Connection other = bench.connect({.state = QpState::kReset});
  for (Connection* const one : {&waiting, &other}) {
    one->qp = client.create_qp(*cq, *cq);
    REQUIRE(client.to_init(*one->qp, 0) == std::errc{});
  }
  const CommandId id = submit_rtr(bench, waiting);
  CHECK_FALSE(bench.poll_reply(id).has_value());
  other.recv(1);
  other.recv(2);
  REQUIRE(client.to_state(*other.qp, QpState::kErr) == std::errc{});  // both are flushed, the CQ takes one
  REQUIRE(bench.counters().cq_overruns == 1);
  REQUIRE(waiting.qp->state() == QpState::kErr);
  bench.receive({peer_arp_reply()});
  const auto answer = bench.poll_reply(id);
  REQUIRE(answer.has_value());
  CHECK(answer->error == std::errc::invalid_argument);
  CHECK(waiting.qp->state() == QpState::kErr);
  CHECK(client.query(*waiting.qp).dest_qpn == proto::Qpn{});  // nor has an attribute changed
}

TEST_CASE(
    "a ModifyQp that waits for the neighbour is cancelled by one to ERR or RESET, but not by a refused one") {
  Bench bench({.knows_peer = false});
  Connection qp = bench.connect({.state = QpState::kInit});
  const CommandId id = submit_rtr(bench, qp);
  CHECK(modify(bench, qp, QpState::kErr, kQpState | kQpQkey) == std::errc::invalid_argument);
  CHECK(modify(bench, qp, QpState::kReset, kQpState | kQpPort) == std::errc::invalid_argument);
  CHECK(modify(bench, qp, QpState::kInit, kToInit) == std::errc::device_or_resource_busy);
  CHECK_FALSE(bench.poll_reply(id).has_value());
  std::errc wanted = std::errc::operation_canceled;
  SECTION("refused") {
    bench.receive({peer_arp_reply()});
    CHECK(qp.qp->state() == QpState::kRtr);
    wanted = std::errc{};
  }
  SECTION("to ERR") { CHECK(modify(bench, qp, QpState::kErr, kQpState) == std::errc{}); }
  SECTION("to RESET, and from there on again") {
    CHECK(modify(bench, qp, QpState::kReset, kQpState) == std::errc{});
    CHECK(modify(bench, qp, QpState::kInit, kToInit) == std::errc{});
  }
  SECTION("destroyed") { CHECK(bench.client().destroy(*qp.qp).error == std::errc{}); }
  SECTION("closed") { bench.client().close(); }
  const auto answer = bench.poll_reply(id);
  REQUIRE(answer.has_value());
  CHECK(answer->error == wanted);
}

TEST_CASE("Q09: RESET makes nothing, drains both rings, and the QP works again") {
  Bench bench;
  sim::Client& client = bench.client();
  Connection qp = bench.connect();
  qp.recv(1);
  qp.recv(2);
  bench.post(qp, {.wr_id = 5, .sges = {qp.mr.sge(0, 4)}});
  REQUIRE(client.to_state(*qp.qp, QpState::kReset) == std::errc{});
  bench.expect_no_completion(qp);
  CHECK(qp.qp->send_queued() == 0);
  CHECK(qp.qp->recv_queued() == 0);
  while (bench.take().has_value())
    continue;
  client.connect(*qp.qp, bench.connect_options({.our_psn = 5000, .peer_psn = 6000}));
  qp.recv(3);
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true});  // of its former life
  bench.send(qp, {.opcode = Opcode::kRcSendOnly, .psn = 6000, .ack_request = true});
  std::optional<Sent> last;
  while (auto sent = bench.take())
    last = std::move(sent);
  REQUIRE(last.has_value());
  CHECK(last->packet.bth.psn.value() == 6000);
  CHECK(last->packet.aeth->msn.value() == 1);
  bench.expect_recv(qp, {.wr_id = 3});
  bench.post(qp, {.wr_id = 6, .sges = {qp.mr.sge(0, 4)}});
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 5000});
}

TEST_CASE("nothing is touched once the reply to a close or destroy is there") {
  Bench bench;
  sim::Client& client = bench.client();
  Connection qp = bench.connect();
  Connection other = bench.connect({.peer_qpn = 0x333});
  for (std::uint64_t i = 0; i < 4; ++i)
    qp.recv(i);
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 2000)}});
  const Bytes late = bench.frame(
      qp, {.opcode = Opcode::kRcSendOnly, .psn = 100, .ack_request = true, .payload = pattern(8)});
  REQUIRE(client.destroy(*qp.qp).error == std::errc{});
  qp.qp.reset();  // the rings are freed: a sanitizer would see a touch
  bench.receive({late});
  CHECK(bench.last_verdict() == DropReason::kUnknownQpn);
  other.recv(1);
  bench.post(other, {.wr_id = 1, .sges = {other.mr.sge(0, 2000)}});
  client.close();
  bench.memory().give_up(client.space());
  while (bench.take().has_value())
    continue;
  bench.receive({late});
  bench.advance(std::chrono::seconds(3));
  bench.expect_nothing();
  CHECK(bench.memory().violations().empty());
}

TEST_CASE("QPNs and keys differ from shard to shard and cannot be told from each other") {
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    Bench bench({.shard = shard, .shard_count = 2});
    std::vector<std::uint32_t> qpns;
    for (int i = 0; i < 50; ++i)
      qpns.push_back(bench.connect({.state = QpState::kReset}).qp->qpn().value());
    for (const std::uint32_t qpn : qpns) {
      CHECK(qpn % 2 == shard);
      CHECK(qpn > 1);
      CHECK(qpn < 0xFFFFFF);
    }
    int steps_of_one = 0;
    for (std::size_t i = 1; i < qpns.size(); ++i)
      steps_of_one += qpns[i] == qpns[i - 1] + 2 ? 1 : 0;
    CHECK(steps_of_one < 5);
  }
}
