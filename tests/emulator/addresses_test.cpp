// Addresses that come and go while QPs use them.
#include <algorithm>

#include <catch2/catch.hpp>

#include "proto/text.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;
using std::chrono::seconds;

namespace {

const std::vector<NicAddress> kBoth = {{Bench::own_gid(), 24}, {Bench::own_gid(true), 64}};
const std::vector<NicAddress> kOnlyIpv6 = {{proto::Gid{}, 128}, {Bench::own_gid(true), 64}};

void change(Bench& bench, const std::vector<NicAddress>& addresses) {
  bench.engine().on_addresses({0}, addresses, bench.now());
  bench.pass();
}

std::ptrdiff_t gid_changes(Bench& bench) {
  const auto events = bench.events();
  return std::count_if(events.begin(), events.end(),
                       [](const Event& one) { return one.kind == EventKind::kGidChange; });
}

}  // namespace

TEST_CASE("every context of the NIC is told of other GIDs, and only of those") {
  Bench bench;
  (void)bench.add_client();
  change(bench, kOnlyIpv6);
  CHECK(gid_changes(bench) == 2);
  change(bench, kOnlyIpv6);
  CHECK(gid_changes(bench) == 0);
  change(bench, {{proto::Gid{}, 128}, {Bench::own_gid(true), 48}});  // a prefix is in no GID
  CHECK(gid_changes(bench) == 0);
  change(bench, kBoth);
  CHECK(gid_changes(bench) == 2);
}

TEST_CASE("RC: without its source address a QP sends nothing, so its retries run out") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8, .retry_cnt = 1});
  change(bench, kOnlyIpv6);
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 4)}});
  bench.expect_nothing();
  CHECK(bench.counters().no_source == 1);
  bench.advance(seconds(1));
  bench.expect_nothing();
  CHECK(bench.counters().no_source == 2);
  bench.expect(qp, {.wr_id = 1, .status = sim::kWcRetryExceeded});
}

TEST_CASE("RC: an address that comes back in time is as if packets had been lost") {
  Bench bench;
  Connection qp = bench.connect({.timeout = 8, .retry_cnt = 7});
  change(bench, kOnlyIpv6);
  bench.post(qp, {.wr_id = 1, .sges = {qp.mr.sge(0, 4)}});
  bench.expect_nothing();
  change(bench, kBoth);
  REQUIRE(bench.advance_until_sent(seconds(1)));
  bench.expect({.opcode = Opcode::kRcSendOnly, .psn = kOurPsn});
  bench.send(qp, {.opcode = Opcode::kRcAcknowledge, .psn = kOurPsn});
  bench.expect(qp, {.wr_id = 1});
}

TEST_CASE("RC: what comes for an address that is gone is not for us; other addresses go on") {
  Bench bench;
  Connection qp = bench.connect();
  qp.recv(1);
  const Line line{.opcode = Opcode::kRcSendOnly, .psn = kPeerPsn, .ack_request = true, .payload = pattern(4)};
  change(bench, kOnlyIpv6);
  bench.send(qp, line);
  CHECK(bench.last_verdict() == DropReason::kNotForUs);
  bench.expect_nothing();
  change(bench, kBoth);
  bench.send(qp, line);
  bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = kPeerPsn});

  Bench ipv6({.ipv6 = true});
  Connection other = ipv6.connect();
  change(ipv6, kOnlyIpv6);
  ipv6.post(other, {.wr_id = 1, .sges = {other.mr.sge(0, 4)}});
  ipv6.expect({.opcode = Opcode::kRcSendOnly, .psn = kOurPsn});
}

TEST_CASE("UD: a datagram from an address that is gone counts as sent, and is not") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  const sim::SendWr wr{.wr_id = 1,
                       .sges = {qp.mr.sge(0, 4)},
                       .ah = bench.peer_ah(),
                       .remote_qpn = proto::Qpn{kPeerQpn},
                       .remote_qkey = proto::Qkey{kQkey}};
  change(bench, kOnlyIpv6);
  bench.post(qp, wr);
  bench.expect_nothing();
  bench.expect(qp, {.wr_id = 1});
  CHECK(bench.counters().no_source == 1);
  // Its place in the table is another address's now; the handle does not become that one's.
  change(bench, {{*proto::gid_from_text("10.9.9.9"), 24}, {Bench::own_gid(true), 64}});
  bench.post(qp, wr);
  bench.expect_nothing();
  change(bench, kBoth);
  bench.post(qp, wr);
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  CHECK(sent->packet.ipv4->source == Bench::own_gid().ipv4());
}

TEST_CASE("a free place of the GID table is nobody's") {
  Bench bench;
  const AddressVector av = bench.peer_av();
  change(bench, kOnlyIpv6);
  const PdHandle pd = std::get<PdHandle>(bench.submit({bench.client().context(), AllocPd{}}).body);
  CHECK(bench.submit({bench.client().context(), CreateAh{pd, av}}).error == std::errc::invalid_argument);
  AddressVector ipv6 = av;  // which an all-zero GID would look like
  ipv6.dgid = Bench::peer_gid(true);
  CHECK(bench.submit({bench.client().context(), CreateAh{pd, ipv6}}).error == std::errc::invalid_argument);
}

TEST_CASE("a handle that waits for its neighbour while the source address goes is refused") {
  Bench bench({.knows_peer = false});
  const PdHandle pd = std::get<PdHandle>(bench.submit({bench.client().context(), AllocPd{}}).body);
  const CommandId id = bench.submit_only({bench.client().context(), CreateAh{pd, bench.peer_av()}});
  CHECK_FALSE(bench.poll_reply(id).has_value());
  change(bench, kOnlyIpv6);
  const auto reply = bench.poll_reply(id);
  REQUIRE(reply.has_value());
  CHECK(reply->error == std::errc::invalid_argument);
  CHECK(bench.submit({bench.client().context(), DeallocPd{pd}}).error == std::errc{});  // it is not in use
}
