// A connection's life, as the events and attributes that an application sees, and the MADs that carry it.
#include <cerrno>

#include <catch2/catch.hpp>

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

TEST_CASE("a connection is asked for, accepted, used and released") {
  Pair pair;
  auto& [network, client, server] = pair;
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
