// A connection's life, as the events and attributes that an application sees, and the MADs that carry it.
#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "emulator/qp_transitions.h"
#include "tests/cm/network.h"

namespace {

using namespace roci::cm_test;
using roci::proto::CmAttribute;
using roci::proto::CmRejectReason;

constexpr ClientId kApp = Host::kApp;
constexpr std::uint16_t kPort = Network::kPort;

struct Pair {
  Network network;
  Host& client = network.add({nic(1, "10.0.0.1")});
  Host& server = network.add({nic(2, "10.0.0.2")});
};

std::string words(const roci::emulator::cm::PrivateData& data) {
  return {reinterpret_cast<const char*>(data.bytes.data()), data.length_bytes};
}
std::string padded(const char* text, std::size_t length) {
  std::string whole(text);
  whole.resize(length, '\0');
  return whole;
}
const roci::emulator::cm::ConnectionParameters& connection(const roci::emulator::cm::Event& event) {
  return std::get<roci::emulator::cm::ConnectionParameters>(event.parameters);
}

}  // namespace

TEST_CASE_METHOD(Pair, "a connection is asked for, accepted, used and released") {
  const IdHandle listener = server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111, "hello"), network.now) == std::errc{});

  const auto request = server.expect(EventKind::kConnectRequest);
  CHECK(request.listener == listener);
  CHECK(request.status == 0);
  CHECK(connection(request).qpn == roci::proto::Qpn{0x111});
  CHECK(connection(request).responder_resources == 2);  // what the peer would start
  CHECK(connection(request).initiator_depth == 4);
  CHECK(connection(request).retry_count == 6);
  CHECK(connection(request).rnr_retry_count == 5);
  CHECK(words(connection(request).private_data) == padded("hello", 56));
  const auto route = *server.cm->route(kApp, request.id);
  CHECK(route.source == at("10.0.0.2", kPort));
  CHECK(route.destination.ip == ip("10.0.0.1"));
  CHECK(route.destination.port == client.cm->route(kApp, id)->source.port);
  CHECK(route.nic == NicId{0});
  CHECK(route.is_route_resolved);

  auto answer = parameters(0x222, "welcome");
  answer.responder_resources = 1;  // less than was asked for
  answer.initiator_depth = 9;      // more
  answer.rnr_retry_count = 3;
  REQUIRE(server.cm->accept(kApp, request.id, answer, network.now) == std::errc{});
  const auto response = client.expect(EventKind::kConnectResponse);
  CHECK(response.id == id);
  CHECK(connection(response).qpn == roci::proto::Qpn{0x222});
  CHECK(connection(response).responder_resources == 4);
  CHECK(connection(response).initiator_depth == 1);
  CHECK(words(connection(response).private_data) == padded("welcome", 196));
  // Each side says how often the other is to try.
  const auto tries = [](Host& host, IdHandle which) {
    return host.cm->qp_attributes(kApp, which, QpState::kRts).transition.attributes.rnr_retry;
  };
  CHECK(tries(client, id) == 3);
  CHECK(tries(server, request.id) == 5);

  REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
  CHECK(server.expect(EventKind::kEstablished).id == request.id);
  CHECK(client.events.empty());

  REQUIRE(client.cm->disconnect(kApp, id, network.now) == std::errc{});
  CHECK(server.expect(EventKind::kDisconnected).id == request.id);
  CHECK(client.expect(EventKind::kDisconnected).id == id);
  CHECK(server.cm->disconnect(kApp, request.id, network.now) == std::errc{});  // as applications do
  CHECK(network.log == std::vector{CmAttribute::kReq, CmAttribute::kRep, CmAttribute::kRtu,
                                   CmAttribute::kDreq, CmAttribute::kDrep});
  network.run(5s);
  CHECK(client.expect(EventKind::kTimewaitExit).id == id);
  CHECK(server.expect(EventKind::kTimewaitExit).id == request.id);
  CHECK(client.cm->conversations() == 0);
  CHECK(server.cm->conversations() == 0);
  client.destroy(id);
  server.destroy(request.id);
  server.destroy(listener);
  CHECK(client.cm->ids() == 0);
  CHECK(server.cm->ids() == 0);
  CHECK(network.log.size() == 5);
}

TEST_CASE_METHOD(Pair, "what modify_qp is told fits together, and is what the queue pair takes") {
  const QpType type = GENERATE(QpType::kRc, QpType::kUc);
  const bool is_rc = type == QpType::kRc;
  (void)server.listen(at("10.0.0.2", kPort), 0, PortSpace::kTcp, type);
  const IdHandle id = client.create(PortSpace::kTcp, type);
  const auto attributes = [&](Host& host, IdHandle which, QpState state) {
    return host.cm->qp_attributes(kApp, which, state);
  };
  CHECK(attributes(client, id, QpState::kInit).error == std::errc::invalid_argument);  // no port yet
  REQUIRE(client.cm->set_type_of_service(kApp, id, 0x28) == std::errc{});
  REQUIRE(client.cm->set_ack_timeout(kApp, id, 15) == std::errc{});
  CHECK(client.cm->set_ack_timeout(kApp, id, 32) == std::errc::invalid_argument);
  REQUIRE(client.cm->resolve_address(kApp, id, {}, at("10.0.0.2", kPort), 2s, network.now) == std::errc{});
  client.expect(EventKind::kAddrResolved);
  // The library makes the queue pair now, and cannot know what the peer will be granted.
  auto early = attributes(client, id, QpState::kInit);
  CHECK(early.error == std::errc{});
  CHECK(early.transition.attributes.access == 0);
  CHECK(attributes(client, id, QpState::kRtr).error == std::errc::invalid_argument);
  REQUIRE(client.cm->resolve_route(kApp, id, 2s, network.now) == std::errc{});
  client.expect(EventKind::kRouteResolved);
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  CHECK(attributes(client, id, QpState::kInit).error == std::errc{});
  CHECK(attributes(client, id, QpState::kRtr).error == std::errc::invalid_argument);
  const IdHandle accepted = server.expect(EventKind::kConnectRequest).id;
  REQUIRE(server.cm->accept(kApp, accepted, parameters(0x222), network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);

  for (Host* const host : {&client, &server}) {
    const IdHandle which = host == &client ? id : accepted;
    const auto init = attributes(*host, which, QpState::kInit).transition;
    const auto rtr = attributes(*host, which, QpState::kRtr).transition;
    const auto rts = attributes(*host, which, QpState::kRts).transition;
    using roci::emulator::is_transition_allowed;
    CHECK(is_transition_allowed(type, QpState::kReset, QpState::kInit, init.mask));
    CHECK(is_transition_allowed(type, QpState::kInit, QpState::kRtr, rtr.mask));
    CHECK(is_transition_allowed(type, QpState::kRtr, QpState::kRts, rts.mask));
    CHECK(init.attributes.access == (is_rc ? 2u | 4u | 8u : 2u));
    CHECK(rtr.attributes.path_mtu_code == 5);
    CHECK(rtr.attributes.av.sgid_index == 1);
    CHECK(rtr.attributes.av.traffic_class == 0x28);
    CHECK(rtr.attributes.av.hop_limit == 64);
    CHECK(rtr.attributes.av.is_global);
    if (is_rc) {
      CHECK(rts.attributes.timeout == 15);
      CHECK(rts.attributes.retry_cnt == 6);
      CHECK(rts.attributes.rnr_retry == 5);
    }
    CHECK(attributes(*host, which, QpState::kSqd).error == std::errc::invalid_argument);
  }
  const auto of = [&](Host& host, IdHandle which, QpState state) {
    return attributes(host, which, state).transition.attributes;
  };
  CHECK(of(client, id, QpState::kRtr).dest_qpn == roci::proto::Qpn{0x222});
  CHECK(of(server, accepted, QpState::kRtr).dest_qpn == roci::proto::Qpn{0x111});
  CHECK(of(client, id, QpState::kRtr).av.dgid == ip("10.0.0.2"));
  CHECK(of(server, accepted, QpState::kRtr).av.dgid == ip("10.0.0.1"));
  CHECK(of(client, id, QpState::kRtr).rq_psn == of(server, accepted, QpState::kRts).sq_psn);
  CHECK(of(client, id, QpState::kRts).sq_psn == of(server, accepted, QpState::kRtr).rq_psn);
  CHECK(of(client, id, QpState::kRtr).rq_psn != of(client, id, QpState::kRts).sq_psn);
  if (is_rc) {
    CHECK(of(client, id, QpState::kRtr).max_dest_rd_atomic == 2);
    CHECK(of(client, id, QpState::kRts).max_rd_atomic == 2);
    CHECK(of(server, accepted, QpState::kRtr).max_dest_rd_atomic == 2);
    CHECK(of(server, accepted, QpState::kRts).max_rd_atomic == 2);
  }
  CHECK(client.cm->qp_attributes(kApp, IdHandle{999}, QpState::kInit).error ==
        std::errc::no_such_file_or_directory);
}

TEST_CASE("responder resources stay within what the device has") {
  Network network;
  roci::emulator::cm::Limits limits;
  limits.responder_resources = 16;
  Host& client = network.add({nic(1, "10.0.0.1")}, limits);
  Host& server = network.add({nic(2, "10.0.0.2")}, limits);
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  auto greedy = parameters(0x111);
  greedy.responder_resources = greedy.initiator_depth = 200;
  REQUIRE(client.cm->connect(kApp, id, greedy, network.now) == std::errc{});
  const auto request = server.expect(EventKind::kConnectRequest);
  CHECK(connection(request).responder_resources == 16);
  greedy.qpn = roci::proto::Qpn{0x222};
  REQUIRE(server.cm->accept(kApp, request.id, greedy, network.now) == std::errc{});
  const auto response = client.expect(EventKind::kConnectResponse);
  CHECK(connection(response).responder_resources == 16);
  CHECK(connection(response).initiator_depth == 16);
}

TEST_CASE_METHOD(Pair, "a request is rejected with a reason and words, by either side") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;

  SECTION("the server") {
    REQUIRE(server.cm->reject(kApp, asked, 0, text("no"), network.now) == std::errc{});
    const auto event = client.expect(EventKind::kRejected);
    CHECK(event.id == id);
    CHECK(event.status == 28);
    CHECK(words(connection(event).private_data) == padded("no", 148));
    CHECK(server.cm->reject(kApp, asked, 0, {}, network.now) == std::errc::invalid_argument);
  }
  SECTION("the server, with a reason of its own") {
    REQUIRE(server.cm->reject(kApp, asked, 35, {}, network.now) == std::errc{});
    CHECK(client.expect(EventKind::kRejected).status == 35);
  }
  SECTION("the client, after the REP") {
    REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
    client.expect(EventKind::kConnectResponse);
    REQUIRE(client.cm->reject(kApp, id, 0, text("changed my mind"), network.now) == std::errc{});
    const auto event = server.expect(EventKind::kRejected);
    CHECK(event.id == asked);
    CHECK(words(connection(event).private_data) == padded("changed my mind", 148));
    CHECK(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc::invalid_argument);
  }
  CHECK(client.cm->conversations() == 0);
  CHECK(server.cm->conversations() == 0);
  CHECK(client.cm->disconnect(kApp, id, network.now) == std::errc{});
}

TEST_CASE_METHOD(Pair, "words that do not fit are refused before anything is sent") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  auto ask = parameters(0x111);
  ask.private_data.length_bytes = 57;
  CHECK(client.cm->connect(kApp, id, ask, network.now) == std::errc::invalid_argument);
  ask.private_data.length_bytes = 56;
  ask.qpn = roci::proto::Qpn{1};
  CHECK(client.cm->connect(kApp, id, ask, network.now) == std::errc::invalid_argument);
  ask.qpn = roci::proto::Qpn{2};
  CHECK(client.cm->connect(kApp, id, ask, network.now) == std::errc{});
  CHECK(client.cm->connect(kApp, id, ask, network.now) == std::errc::invalid_argument);  // once is enough
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  auto answer = parameters(0x222);
  answer.private_data.length_bytes = 197;
  CHECK(server.cm->accept(kApp, asked, answer, network.now) == std::errc::invalid_argument);
  CHECK(server.cm->accept(kApp, asked, std::nullopt, network.now) == std::errc::invalid_argument);
  CHECK(server.cm->accept(kApp, asked, parameters(0), network.now) == std::errc::invalid_argument);
  roci::emulator::cm::PrivateData words;
  words.length_bytes = 149;
  CHECK(server.cm->reject(kApp, asked, 0, words, network.now) == std::errc::invalid_argument);
  answer.private_data.length_bytes = 196;
  CHECK(server.cm->accept(kApp, asked, answer, network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);
}

TEST_CASE_METHOD(Pair, "nobody listens: the reason says so") {
  (void)server.listen(at("10.0.0.2", kPort), 0, PortSpace::kUdp, QpType::kUd);  // of another space
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  CHECK(client.expect(EventKind::kRejected).status == static_cast<int>(CmRejectReason::kInvalidServiceId));
  CHECK(server.cm->counters().refused == 1);
}

TEST_CASE_METHOD(Pair, "the transport service must be the listener's") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort), PortSpace::kTcp, QpType::kUc);
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  CHECK(client.expect(EventKind::kRejected).status ==
        static_cast<int>(CmRejectReason::kInvalidTransportType));
}

// ---- loss ------------------------------------------------------------------------------------------

TEST_CASE_METHOD(Pair, "each message may be lost once or many times") {
  const CmAttribute victim = GENERATE(CmAttribute::kReq, CmAttribute::kRep, CmAttribute::kRtu,
                                      CmAttribute::kDreq, CmAttribute::kDrep);
  const int losses = GENERATE(1, 15);
  CAPTURE(static_cast<int>(victim), losses);
  int left = losses;
  network.wire = [&](Parcel& parcel) -> std::vector<Duration> {
    if (parcel.attribute() == victim && left > 0 && left--) return {};
    return {kTransit};
  };
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  network.await(server);
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  CHECK(server.events.empty());  // it was one request
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  network.await(client);
  client.expect(EventKind::kConnectResponse);
  REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
  network.await(server);
  CHECK(server.expect(EventKind::kEstablished).id == asked);
  REQUIRE(client.cm->disconnect(kApp, id, network.now) == std::errc{});
  network.await(client);
  CHECK(server.expect(EventKind::kDisconnected).status == 0);
  const auto gone = client.expect(EventKind::kDisconnected);
  CHECK(gone.status == 0);
  CHECK(left == 0);
  network.run(60s);
  CHECK(client.cm->conversations() == 0);
  CHECK(server.cm->conversations() == 0);
}

TEST_CASE_METHOD(Pair, "a peer that never answers is given up after sixteen requests") {
  network.wire = [](Parcel&) { return std::vector<Duration>{}; };
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  const Time start = network.now;
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  network.run_dry(60s);
  CHECK(client.expect(EventKind::kUnreachable).status == -ETIMEDOUT);
  CHECK(network.now - start > 25s);
  CHECK(network.now - start < 27s);
  CHECK(std::count(network.log.begin(), network.log.end(), CmAttribute::kReq) == 16);
  CHECK(network.log.back() == CmAttribute::kRej);
  CHECK(client.cm->conversations() == 0);
  CHECK(client.cm->counters().retransmitted == 15);
}

TEST_CASE_METHOD(Pair, "a server whose REPs are not answered gives up, and says so") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  network.wire = [](Parcel& parcel) {
    return parcel.attribute() == CmAttribute::kRep ? std::vector<Duration>{} : std::vector{kTransit};
  };
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  network.run_dry(300s);
  CHECK(server.expect(EventKind::kUnreachable).id == asked);
  CHECK(client.expect(EventKind::kRejected).status == static_cast<int>(CmRejectReason::kTimeout));
  CHECK(client.cm->conversations() == 0);
  CHECK(server.cm->conversations() == 0);
}

TEST_CASE_METHOD(Pair, "a DREQ that is never answered ends the connection all the same") {
  const Connected both = connect(network, client, server, at("10.0.0.2", kPort));
  network.wire = [](Parcel&) { return std::vector<Duration>{}; };
  REQUIRE(client.cm->disconnect(kApp, both.client, network.now) == std::errc{});
  network.run_dry(60s);
  CHECK(client.expect(EventKind::kDisconnected).status == -ETIMEDOUT);
  client.expect(EventKind::kTimewaitExit);
  CHECK(client.cm->conversations() == 0);
}

// ---- slow applications -----------------------------------------------------------------------------

TEST_CASE_METHOD(Pair,
                 "a server that thinks long is waited for: its manager answers the repeated REQ with MRA") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  network.run(60s);
  CHECK(network.log == std::vector{CmAttribute::kReq, CmAttribute::kReq, CmAttribute::kMra});
  network.run(240s);
  CHECK(network.log.size() == 3 + 2 * 4);  // once in 70 s
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);
  network.run(10s);  // the client's turn to think
  CHECK(network.log.back() == CmAttribute::kMra);
  REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
  CHECK(server.expect(EventKind::kEstablished).id == asked);
}

TEST_CASE_METHOD(Pair, "one MRA counts for one request, so nobody is kept for ever") {
  network.wire = [](Parcel&) { return std::vector<Duration>{}; };
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  Parcel sent;
  network.wire = [&](Parcel& parcel) {
    sent = parcel;
    return std::vector<Duration>{};
  };
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  network.settle();
  const auto req = std::get<roci::proto::CmReq>(sent.parse().message);
  const roci::proto::CmMra mra{roci::proto::CommunicationId{9},
                               req.local_comm_id,
                               roci::proto::CmMraed::kReq,
                               roci::proto::CmTimeout{31},
                               {}};
  const auto bytes = mad(mra).bytes;
  const Time start = network.now;
  while (client.events.empty() && network.now - start < 3600s) {
    network.deliver_now(client, {ip("10.0.0.2"), ip("10.0.0.1"), bytes});
    network.run(1s);
  }
  CHECK(client.expect(EventKind::kUnreachable).status == -ETIMEDOUT);
  CHECK(network.now - start > 16 * 68s);
  CHECK(network.now - start < 16 * 72s);
}

// ---- odd orders ------------------------------------------------------------------------------------

TEST_CASE_METHOD(Pair, "data before the RTU: the application says that the connection stands") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  CHECK(server.cm->notify_established(kApp, asked, network.now) == std::errc::invalid_argument);
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);
  REQUIRE(server.cm->notify_established(kApp, asked, network.now) == std::errc{});
  server.expect(EventKind::kEstablished);
  CHECK(server.cm->notify_established(kApp, asked, network.now) == std::errc::already_connected);
  CHECK(server.cm->notify_established(kApp, IdHandle{77}, network.now) ==
        std::errc::no_such_file_or_directory);
  REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
  network.settle();
  CHECK(server.events.empty());  // the RTU is no news
  CHECK(server.cm->counters().duplicates == 1);
}

TEST_CASE_METHOD(Pair, "both sides disconnect at once") {
  const Connected both = connect(network, client, server, at("10.0.0.2", kPort));
  REQUIRE(client.cm->disconnect(kApp, both.client, network.now) == std::errc{});
  REQUIRE(server.cm->disconnect(kApp, both.server, network.now) == std::errc{});
  client.expect(EventKind::kDisconnected);
  server.expect(EventKind::kDisconnected);
  CHECK(client.events.empty());
  network.run_dry(10s);
  client.expect(EventKind::kTimewaitExit);
  server.expect(EventKind::kTimewaitExit);
  CHECK(network.log.size() == 3 + 4);
}

TEST_CASE_METHOD(Pair, "an id may be destroyed at any time, and the peer is told") {
  const IdHandle listener = server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  const auto rest = [&] {
    network.run_dry(120s);
    CHECK(client.cm->conversations() == 0);
    CHECK(server.cm->conversations() == 0);
  };
  SECTION("before it connects") {
    client.destroy(id);
    CHECK(client.cm->destroy(kApp, id, network.now) == std::errc::no_such_file_or_directory);
    return rest();
  }
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  SECTION("the client after the REQ") {
    const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
    client.destroy(id);
    const auto event = server.expect(EventKind::kRejected);
    CHECK(event.id == asked);
    CHECK(event.status == static_cast<int>(CmRejectReason::kTimeout));
    CHECK(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc::invalid_argument);
    return rest();
  }
  SECTION("the listener with a request that nobody saw") {
    (void)client.cm->take_event();
    Parcel req;
    network.wire = [&](Parcel& parcel) {
      req = parcel;
      return std::vector<Duration>{};
    };
    network.settle();
    network.wire = deliver;
    network.deliver_now(server, req);
    CHECK(server.cm->ids() == 2);
    server.destroy(listener);
    CHECK(server.cm->ids() == 0);
    CHECK_FALSE(server.cm->take_event().has_value());
    CHECK(client.expect(EventKind::kRejected).status == 28);
    return rest();
  }
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  SECTION("the listener: a request that was seen lives on") {
    server.destroy(listener);
    REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
    client.expect(EventKind::kConnectResponse);
    return;
  }
  SECTION("the server instead of an answer") {
    server.destroy(asked);
    CHECK(client.expect(EventKind::kRejected).status == 28);
    return rest();
  }
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);
  SECTION("the client after the REP") {
    client.destroy(id);
    CHECK(server.expect(EventKind::kRejected).status == 28);
    return rest();
  }
  SECTION("the server after the REP") {
    server.destroy(asked);
    CHECK(client.expect(EventKind::kRejected).status == 28);
    return rest();
  }
  SECTION("the server after the REP, and the client does not hear of it") {
    network.wire = [](Parcel& parcel) {
      return parcel.attribute() == CmAttribute::kRej && parcel.source == ip("10.0.0.2") &&
                     std::get<roci::proto::CmRej>(parcel.parse().message).reason ==
                         CmRejectReason::kConsumerReject
                 ? std::vector<Duration>{}
                 : std::vector{kTransit};
    };
    server.destroy(asked);
    network.settle();
    REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
    // Its RTU is answered: there is no such conversation.
    CHECK(client.expect(EventKind::kRejected).status ==
          static_cast<int>(CmRejectReason::kInvalidCommunicationId));
    return rest();
  }
  REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
  server.expect(EventKind::kEstablished);
  SECTION("when connected") {
    client.destroy(id);
    server.expect(EventKind::kDisconnected);
    return rest();
  }
  SECTION("while it disconnects, and DREP is lost a few times") {
    int left = 3;
    network.wire = [&](Parcel& parcel) -> std::vector<Duration> {
      if (parcel.attribute() == CmAttribute::kDrep && left > 0 && left--) return {};
      return {kTransit};
    };
    REQUIRE(client.cm->disconnect(kApp, id, network.now) == std::errc{});
    client.destroy(id);
    server.expect(EventKind::kDisconnected);
    server.destroy(asked);  // in time wait; later it is forgotten, and answers all the same
    CHECK(client.cm->conversations() == 1);
    rest();
    CHECK(left == 0);
    CHECK(client.cm->counters().retransmitted == 3);
    CHECK(client.events.empty());
  }
}

TEST_CASE_METHOD(Pair, "a late REP for a request that was given up is answered, so that the server stops") {
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  network.wire = [](Parcel&) { return std::vector<Duration>{}; };
  client.destroy(id);  // this REJ is lost
  network.settle();
  network.wire = deliver;
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  CHECK(server.expect(EventKind::kRejected).status ==
        static_cast<int>(CmRejectReason::kInvalidCommunicationId));
}

TEST_CASE_METHOD(
    Pair, "a queue pair that is connected already is stale: the old connection ends [IBTA 12.9.8.3.1]") {
  const Connected both = connect(network, client, server, at("10.0.0.2", kPort), 0x111, 0x222);
  // The client's host starts anew and forgets; its queue pair number comes up again.
  Network other(2);
  other.now = network.now;
  Host& reborn = other.add({nic(1, "10.0.0.1")});
  std::vector<Parcel> from_reborn;
  other.wire = [&](Parcel& parcel) {
    from_reborn.push_back(parcel);
    return std::vector<Duration>{};
  };
  const IdHandle id = reborn.resolve(at("10.0.0.2", kPort));
  REQUIRE(reborn.cm->connect(kApp, id, parameters(0x111), other.now) == std::errc{});
  other.settle();
  std::vector<Parcel> from_server;
  network.wire = [&](Parcel& parcel) {
    from_server.push_back(parcel);
    return std::vector<Duration>{};
  };
  network.deliver_now(server, from_reborn.at(0));
  network.settle();
  REQUIRE(from_server.size() == 2);
  CHECK(from_server[0].attribute() == CmAttribute::kDreq);
  CHECK(from_server[1].attribute() == CmAttribute::kRej);
  for (const Parcel& parcel : from_server)
    other.deliver_now(reborn, parcel);
  CHECK(reborn.expect(EventKind::kRejected).status == static_cast<int>(CmRejectReason::kStaleConnection));
  REQUIRE(from_reborn.back().attribute() == CmAttribute::kDrep);  // for what it does not know
  network.deliver_now(server, from_reborn.back());
  CHECK(server.expect(EventKind::kDisconnected).id == both.server);
  // After time wait the number is free again.
  network.run(10s);
  server.expect(EventKind::kTimewaitExit);
  const IdHandle again = reborn.resolve(at("10.0.0.2", kPort));
  REQUIRE(reborn.cm->connect(kApp, again, parameters(0x111), other.now) == std::errc{});
  other.settle();
  network.deliver_now(server, from_reborn.back());
  server.expect(EventKind::kConnectRequest);
}

// ---- the path --------------------------------------------------------------------------------------

TEST_CASE("the path MTU is the smaller one") {
  const bool client_is_smaller = GENERATE(true, false);
  Network network;
  Host& client = network.add({nic(1, "10.0.0.1", client_is_smaller ? 1500 : 9000)});
  Host& server = network.add({nic(2, "10.0.0.2", client_is_smaller ? 9000 : 1500)});
  const Connected both = connect(network, client, server, at("10.0.0.2", kPort));
  const auto code = [&](Host& host, IdHandle id) {
    return host.cm->qp_attributes(kApp, id, QpState::kRtr).transition.attributes.path_mtu_code;
  };
  CHECK(code(client, both.client) == 3);
  CHECK(code(server, both.server) == 3);
  CHECK(std::count(network.log.begin(), network.log.end(), CmAttribute::kReq) ==
        (client_is_smaller ? 1 : 3));  // 4096, 2048, 1024
}

TEST_CASE("a host reaches itself, and its NICs each other") {
  const bool is_same_nic = GENERATE(true, false);
  Network network;
  Host& host = network.add({nic(1, "10.0.0.1"), nic(2, "10.0.0.2")});
  constexpr ClientId kOther{2};
  host.cm->open_client(kOther, 1);  // sees the first NIC only
  (void)host.listen(at(is_same_nic ? "10.0.0.1" : "10.0.0.2", kPort));
  const IdHandle id = host.cm->create(kOther, PortSpace::kTcp, QpType::kRc).id;
  const auto to = at(is_same_nic ? "10.0.0.1" : "10.0.0.2", kPort);
  REQUIRE(host.cm->resolve_address(kOther, id, {}, to, 2s, network.now) == std::errc{});
  host.expect(EventKind::kAddrResolved);
  REQUIRE(host.cm->resolve_route(kOther, id, 2s, network.now) == std::errc{});
  CHECK(host.expect(EventKind::kRouteResolved).client == kOther);
  REQUIRE(host.cm->connect(kOther, id, parameters(0x111), network.now) == std::errc{});
  const auto request = host.expect(EventKind::kConnectRequest);
  CHECK(request.client == kApp);
  CHECK(host.cm->route(kApp, request.id)->nic == NicId{static_cast<std::uint8_t>(is_same_nic ? 0 : 1)});
  CHECK(host.cm->accept(kOther, request.id, parameters(0x222), network.now) ==
        std::errc::no_such_file_or_directory);  // not its id
  REQUIRE(host.cm->accept(kApp, request.id, parameters(0x222), network.now) == std::errc{});
  host.expect(EventKind::kConnectResponse);
  REQUIRE(host.cm->accept(kOther, id, std::nullopt, network.now) == std::errc{});
  host.expect(EventKind::kEstablished);
  host.cm->close_client(kOther, network.now);
  CHECK(host.expect(EventKind::kDisconnected).id == request.id);
  network.run_dry(10s);
  host.expect(EventKind::kTimewaitExit);
  CHECK(host.cm->conversations() == 0);
}

// ---- many ------------------------------------------------------------------------------------------

TEST_CASE_METHOD(Pair, "five hundred connections at once") {
  (void)server.listen(at("10.0.0.2", kPort));
  constexpr std::uint32_t kMany = 500;
  std::vector<IdHandle> ids;
  for (std::uint32_t i = 0; i < kMany; ++i)
    ids.push_back(client.resolve(at("10.0.0.2", kPort)));
  for (std::uint32_t i = 0; i < kMany; ++i)
    REQUIRE(client.cm->connect(kApp, ids[i], parameters(0x1000 + i), network.now) == std::errc{});
  for (std::uint32_t i = 0; i < kMany; ++i) {
    const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
    REQUIRE(server.cm->accept(kApp, asked, parameters(0x2000 + i), network.now) == std::errc{});
  }
  for (std::uint32_t i = 0; i < kMany; ++i) {
    const IdHandle id = client.expect(EventKind::kConnectResponse).id;
    REQUIRE(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc{});
  }
  for (std::uint32_t i = 0; i < kMany; ++i)
    server.expect(EventKind::kEstablished);
  CHECK(client.cm->counters().retransmitted == 0);
  CHECK(client.cm->conversations() == kMany);
  client.cm->close_client(kApp, network.now);
  network.run_dry(60s);
  CHECK(client.cm->conversations() == 0);
  CHECK(server.cm->conversations() == 0);
}

TEST_CASE_METHOD(Pair, "a thousand connections one after the other leave nothing") {
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const Connected both = connect(network, client, server, at("10.0.0.2", kPort), 0x100 + i, 0x2000 + i);
    REQUIRE(client.cm->disconnect(kApp, both.client, network.now) == std::errc{});
    server.expect(EventKind::kDisconnected);
    client.expect(EventKind::kDisconnected);
    client.destroy(both.client);
    server.destroy(both.server);
    server.destroy(both.listener);
  }
  CHECK(client.cm->ids() == 0);
  CHECK(client.cm->conversations() > 0);  // time waits
  network.run_dry(10s);
  CHECK(client.cm->conversations() == 0);
  CHECK(server.cm->conversations() == 0);
}

TEST_CASE_METHOD(Pair, "what comes too early or too late is refused") {
  const Connected both = connect(network, client, server, at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  REQUIRE(client.cm->connect(kApp, id, parameters(0x101), network.now) == std::errc{});
  CHECK(client.cm->accept(kApp, id, std::nullopt, network.now) == std::errc::invalid_argument);
  CHECK(client.cm->reject(kApp, id, 0, {}, network.now) == std::errc::invalid_argument);
  CHECK(client.cm->notify_established(kApp, id, network.now) == std::errc::invalid_argument);
  CHECK(client.cm->disconnect(kApp, id, network.now) == std::errc{});  // there is nothing yet
  CHECK(client.cm->accept(kApp, both.client, std::nullopt, network.now) == std::errc::invalid_argument);
  CHECK(client.cm->reject(kApp, both.client, 0, {}, network.now) == std::errc::invalid_argument);
  const auto error = [&](QpState state) { return client.cm->qp_attributes(kApp, both.client, state).error; };
  CHECK(error(QpState::kRts) == std::errc{});
  REQUIRE(client.cm->disconnect(kApp, both.client, network.now) == std::errc{});
  CHECK(error(QpState::kInit) == std::errc::invalid_argument);
  CHECK(error(QpState::kRtr) == std::errc::invalid_argument);
  CHECK(error(QpState::kRts) == std::errc::invalid_argument);
}

TEST_CASE_METHOD(Pair, "a peer that acknowledges late is given the time") {
  const int delay = GENERATE(0, 15, 16, 17, 20, 31);
  (void)server.listen(at("10.0.0.2", kPort));
  const IdHandle id = client.resolve(at("10.0.0.2", kPort));
  network.wire = [&](Parcel& parcel) {
    auto parsed = parcel.parse();
    if (auto* const rep = std::get_if<roci::proto::CmRep>(&parsed.message)) {
      CHECK(rep->target_ack_delay.code() == 15);
      rep->target_ack_delay = roci::proto::CmTimeout{static_cast<std::uint8_t>(delay)};
      roci::proto::write_cm(parsed.header, parsed.message, parcel.bytes);
    }
    return std::vector{kTransit};
  };
  REQUIRE(client.cm->connect(kApp, id, parameters(0x111), network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  REQUIRE(server.cm->accept(kApp, asked, parameters(0x222), network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);
  const auto rts = client.cm->qp_attributes(kApp, id, QpState::kRts).transition.attributes;
  // 2^17 for two packet lifetimes, and 2^delay; the next power of two that holds both.
  CHECK(rts.timeout == (delay < 16 ? 17 : delay < 31 ? std::max(17, delay) + 1 : 31));
}
