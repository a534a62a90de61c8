// Datagram ids: service id resolution, and groups.
#include <cerrno>
#include <cstring>

#include <catch2/catch.hpp>

#include "emulator/qp_transitions.h"
#include "tests/cm/network.h"

namespace {

using namespace roci::cm_test;
using roci::proto::CmAttribute;
using roci::proto::Qkey;
using roci::proto::Qpn;
using Datagram = roci::emulator::cm::DatagramParameters;

constexpr ClientId kUser = Host::kApp;
constexpr roci::proto::Qkey kUdpQkey{0x01234567};

struct DatagramPair {
  Network network;
  Host& client = network.add({nic(1, "10.0.0.1")});
  Host& server = network.add({nic(2, "10.0.0.2")});
  IdHandle listener = server.listen(at("10.0.0.2", 7), 0, PortSpace::kUdp, QpType::kUd);
  IdHandle id = client.resolve(at("10.0.0.2", 7), PortSpace::kUdp, QpType::kUd);

  void ask(const char* words = "") {
    REQUIRE(client.cm->connect(kUser, id, parameters(0x111, words), network.now) == std::errc{});
  }
};

}  // namespace

TEST_CASE_METHOD(DatagramPair, "a datagram service is resolved to a queue pair") {
  ask("hi");
  const auto request = server.expect(EventKind::kConnectRequest);
  CHECK(request.listener == listener);
  const auto& asked = std::get<Datagram>(request.parameters);
  CHECK(asked.private_data.length_bytes == 180);
  CHECK(std::memcmp(asked.private_data.bytes.data(), "hi", 3) == 0);
  CHECK(server.cm->route(kUser, request.id)->destination.ip == ip("10.0.0.1"));

  auto answer = parameters(0x222, "here");
  if (GENERATE(true, false)) answer.qkey = Qkey{0x77};
  REQUIRE(server.cm->accept(kUser, request.id, answer, network.now) == std::errc{});
  const auto event = client.expect(EventKind::kEstablished);
  CHECK(event.id == id);
  const auto& found = std::get<Datagram>(event.parameters);
  CHECK(found.qpn == Qpn{0x222});
  CHECK(found.qkey == answer.qkey.value_or(kUdpQkey));
  CHECK(found.av.dgid == ip("10.0.0.2"));
  CHECK(found.av.sgid_index == 1);
  CHECK(found.private_data.length_bytes == 136);
  CHECK(std::memcmp(found.private_data.bytes.data(), "here", 5) == 0);
  CHECK(network.log == std::vector{CmAttribute::kSidrReq, CmAttribute::kSidrRep});
  CHECK(client.cm->conversations() == 0);
  CHECK(client.cm->disconnect(kUser, id, network.now) == std::errc{});
  CHECK(client.cm->notify_established(kUser, id, network.now) == std::errc::invalid_argument);
  network.run_dry(60s);
  CHECK(server.cm->conversations() == 0);
  CHECK(server.events.empty());
}

TEST_CASE_METHOD(DatagramPair, "the queue pair of a datagram id gets its Q_Key with INIT") {
  using roci::emulator::is_transition_allowed;
  const auto get = [&](QpState state) { return client.cm->qp_attributes(kUser, id, state).transition; };
  CHECK(get(QpState::kInit).attributes.qkey == kUdpQkey);
  CHECK(is_transition_allowed(QpType::kUd, QpState::kReset, QpState::kInit, get(QpState::kInit).mask));
  CHECK(is_transition_allowed(QpType::kUd, QpState::kInit, QpState::kRtr, get(QpState::kRtr).mask));
  CHECK(is_transition_allowed(QpType::kUd, QpState::kRtr, QpState::kRts, get(QpState::kRts).mask));
  CHECK(client.cm->set_ack_timeout(kUser, id, 14) == std::errc::invalid_argument);
}

TEST_CASE_METHOD(DatagramPair, "a datagram service that is not there, or refuses, or is silent") {
  const auto ends_with = [&](int status) {
    network.await(client);
    const auto event = client.expect(EventKind::kUnreachable);
    CHECK(event.id == id);
    CHECK(event.status == status);
    CHECK(client.cm->conversations() == 0);
    network.run_dry(60s);
    CHECK(server.cm->conversations() == 0);
  };
  SECTION("no listener") {
    server.destroy(listener);
    ask();
    ends_with(1);
  }
  SECTION("refused") {
    ask();
    const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
    roci::emulator::cm::PrivateData words;
    words.length_bytes = 137;
    CHECK(server.cm->reject(kUser, asked, 0, words, network.now) == std::errc::invalid_argument);
    REQUIRE(server.cm->reject(kUser, asked, 0, text("no"), network.now) == std::errc{});
    ends_with(2);
  }
  SECTION("destroyed instead of an answer") {
    ask();
    server.destroy(server.expect(EventKind::kConnectRequest).id);
    ends_with(2);
  }
  SECTION("no more ids") {
    // The client of the listener has no room for one more.
    for (auto created = server.cm->create(kUser, PortSpace::kTcp, QpType::kRc); created.error == std::errc{};
         created = server.cm->create(kUser, PortSpace::kTcp, QpType::kRc)) {
    }
    ask();
    ends_with(3);
  }
  SECTION("silence") {
    network.wire = [](Parcel&) { return std::vector<Duration>{}; };
    ask();
    ends_with(-ETIMEDOUT);
    CHECK(network.log == std::vector<CmAttribute>(16, CmAttribute::kSidrReq));
  }
}

TEST_CASE_METHOD(DatagramPair, "an answer that is lost is said again, and the application is asked once") {
  int left = 2;
  network.wire = [&](Parcel& parcel) -> std::vector<Duration> {
    if (parcel.attribute() == CmAttribute::kSidrRep && left > 0 && left--) return {};
    return {kTransit};
  };
  ask();
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  network.run(3s);  // repeated before there is an answer
  CHECK(network.log.size() == 2);
  REQUIRE(server.cm->accept(kUser, asked, parameters(0x222), network.now) == std::errc{});
  network.await(client);
  CHECK(std::get<Datagram>(client.expect(EventKind::kEstablished).parameters).qpn == Qpn{0x222});
  CHECK(server.events.empty());
  server.destroy(asked);
  network.run_dry(60s);
  CHECK(server.cm->conversations() == 0);
}

TEST_CASE_METHOD(DatagramPair, "words that do not fit a datagram's request") {
  auto ask = parameters(0);
  ask.private_data.length_bytes = 181;
  CHECK(client.cm->connect(kUser, id, ask, network.now) == std::errc::invalid_argument);
  ask.private_data.length_bytes = 180;
  CHECK(client.cm->connect(kUser, id, ask, network.now) == std::errc{});
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  auto answer = parameters(0x222);
  answer.private_data.length_bytes = 137;
  CHECK(server.cm->accept(kUser, asked, answer, network.now) == std::errc::invalid_argument);
}

TEST_CASE("groups are joined without asking anybody") {
  Network network;
  Host& host = network.add({nic(1, "10.0.0.1")});
  auto& cm = *host.cm;
  const IdHandle id = host.create(PortSpace::kUdp, QpType::kUd);
  const auto group = at(GENERATE("239.1.2.3", "ff12::7"), 0);
  CHECK(cm.join(kUser, id, group, 5, network.now) == std::errc::invalid_argument);  // on which NIC?
  REQUIRE(cm.resolve_address(kUser, id, at("10.0.0.1", 0), at("239.1.2.3", 0), 1s, network.now) ==
          std::errc{});
  host.expect(EventKind::kAddrResolved);
  REQUIRE(cm.set_type_of_service(kUser, id, 0x20) == std::errc{});
  REQUIRE(cm.join(kUser, id, group, 5, network.now) == std::errc{});
  const auto event = host.expect(EventKind::kMulticastJoin);
  CHECK(event.multicast == 5);
  const auto& joined = std::get<Datagram>(event.parameters);
  CHECK(joined.qpn == roci::proto::kQpnMulticast);
  CHECK(joined.qkey == kUdpQkey);
  CHECK(joined.av.dgid == group.ip);
  CHECK(joined.av.sgid_index == 1);
  CHECK(joined.av.traffic_class == 0x20);
  CHECK(cm.join(kUser, id, group, 5, network.now) == std::errc::invalid_argument);  // the number is taken
  CHECK(cm.join(kUser, id, at("10.0.0.9", 0), 6, network.now) == std::errc::invalid_argument);
  for (std::uint64_t number = 100; number < 163; ++number)
    REQUIRE(cm.join(kUser, id, group, number, network.now) == std::errc{});
  CHECK(cm.join(kUser, id, group, 163, network.now) == std::errc::not_enough_memory);
  CHECK(cm.leave(kUser, id, 5) == std::errc{});
  CHECK(cm.leave(kUser, id, 5) == std::errc::no_such_file_or_directory);
  // A group cannot be connected to.
  REQUIRE(cm.resolve_route(kUser, id, 1s, network.now) == std::errc{});
  CHECK(cm.connect(kUser, id, parameters(2), network.now) == std::errc::invalid_argument);
}
