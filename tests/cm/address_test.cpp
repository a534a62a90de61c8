// Addresses, ports and options of ids: what binds, what is found, what is refused.
#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "emulator/cm/ports.h"
#include "tests/cm/network.h"

namespace {

using namespace roci::cm_test;

constexpr ClientId kMe = Host::kApp;

// One host with three NICs: the second has the longer prefix, the third a way out.
struct Router {
  Network network;
  Host& host = network.add(nics());

  static std::vector<NicConfig> nics() {
    std::vector<NicConfig> all{nic(1, "10.0.0.1"), nic(2, "10.0.0.130"), nic(3, "192.168.1.5")};
    all[0].addresses.push_back({ip("fd00::1"), 64});
    all[1].addresses[0].prefix_length = 25;
    all[2].gateways = {ip("192.168.1.1")};
    return all;
  }
  std::errc resolve(IdHandle id, const char* to, std::optional<SocketAddress> from = std::nullopt) {
    return host.cm->resolve_address(kMe, id, from, at(to, 99), 2s, network.now);
  }
  std::errc bind(IdHandle id, const char* address, std::uint16_t port) {
    return host.cm->bind(kMe, id, at(address, port));
  }
};

struct Way {
  const char* to;
  const char* source;
  int nic;
};

}  // namespace

TEST_CASE("the NIC and source are those of the longest prefix, then the gateway's") {
  const auto expected = GENERATE(values<Way>({
      {"10.0.0.7", "10.0.0.1", 0},
      {"10.0.0.200", "10.0.0.130", 1},  // both prefixes contain it
      {"10.0.0.1", "10.0.0.1", 0},      // itself
      {"192.168.1.9", "192.168.1.5", 2},
      {"8.8.8.8", "192.168.1.5", 2},
      {"fd00::77", "fd00::1", 0},
      {"fe80::1", "fe80::ff:fe00:1", 0},
      {"239.1.2.3", "10.0.0.1", 0},
      {"ff12::5", "fd00::1", 0},
  }));
  Router router;
  CAPTURE(expected.to);
  const IdHandle id = router.host.create();
  REQUIRE(router.resolve(id, expected.to) == std::errc{});
  CHECK(router.host.expect(EventKind::kAddrResolved).id == id);
  const auto route = *router.host.cm->route(kMe, id);
  CHECK(route.source.ip == ip(expected.source));
  CHECK(route.source.port >= 32768);
  CHECK(route.source.port <= 60999);
  CHECK(route.nic == NicId{static_cast<std::uint8_t>(expected.nic)});
  CHECK(route.av.dgid == ip(expected.to));
  CHECK_FALSE(route.is_route_resolved);
  const auto gids = roci::emulator::gid_table(Router::nics()[static_cast<std::size_t>(expected.nic)]);
  CHECK(gids.at(route.av.sgid_index) == ip(expected.source));
}

TEST_CASE("what leads nowhere is refused at once") {
  Router router;
  const IdHandle id = router.host.create();
  CHECK(router.resolve(id, "127.0.0.1") == std::errc::network_unreachable);
  CHECK(router.resolve(id, "::1") == std::errc::network_unreachable);
  CHECK(router.resolve(id, "2001:db8::1") == std::errc::network_unreachable);
  CHECK(router.resolve(id, "10.0.0.7", at("10.9.9.9", 0)) == std::errc::address_not_available);
  CHECK(router.resolve(id, "10.0.0.7", at("fd00::1", 0)) == std::errc::invalid_argument);
  CHECK(router.resolve(id, "8.8.8.8", at("10.0.0.1", 0)) == std::errc::network_unreachable);
  // None of it did any harm.
  CHECK(router.resolve(id, "10.0.0.7") == std::errc{});
  CHECK(router.resolve(id, "10.0.0.7") == std::errc::invalid_argument);
  Network lonely;
  Host& host = lonely.add({nic(1, "10.0.0.1")});
  CHECK(host.cm->resolve_address(kMe, host.create(), {}, at("8.8.8.8", 1), 2s, lonely.now) ==
        std::errc::network_unreachable);
  CHECK(host.cm->resolve_address(kMe, host.create(), {}, at("::", 1), 2s, lonely.now) ==
        std::errc::network_unreachable);
}

TEST_CASE("any address as the destination is this host") {
  Router router;
  const IdHandle id = router.host.create();
  REQUIRE(router.resolve(id, "0.0.0.0") == std::errc{});
  CHECK(router.host.cm->route(kMe, id)->destination == at("10.0.0.1", 99));
  const IdHandle bound = router.host.create();
  REQUIRE(router.bind(bound, "192.168.1.5", 0) == std::errc{});
  REQUIRE(router.resolve(bound, "0.0.0.0") == std::errc{});
  CHECK(router.host.cm->route(kMe, bound)->destination == at("192.168.1.5", 99));
}

TEST_CASE("localhost is bound to as any address of this host") {
  Router router;
  const IdHandle id = router.host.create();
  REQUIRE(router.bind(id, "127.0.0.1", 4000) == std::errc{});
  CHECK(router.host.cm->route(kMe, id)->source == at("0.0.0.0", 4000));
  CHECK_FALSE(router.host.cm->route(kMe, id)->nic);
  REQUIRE(router.bind(router.host.create(), "::1", 4001) == std::errc{});
  CHECK(router.bind(router.host.create(), "127.0.0.2", 4002) == std::errc::address_not_available);
}

TEST_CASE("a neighbour that does not answer, or is known to be unreachable") {
  Router router;
  router.network.answers_neighbours = false;
  const IdHandle id = router.host.create();
  REQUIRE(router.resolve(id, "10.0.0.7") == std::errc{});
  router.network.run(1900ms);
  CHECK(router.host.events.empty());
  router.network.run(200ms);
  CHECK(router.host.expect(EventKind::kAddrError).status == -ETIMEDOUT);
  router.host.cm->on_neighbour(id, {}, router.network.now);  // too late
  REQUIRE(router.resolve(id, "10.0.0.7") == std::errc{});    // it may try again
  router.host.cm->on_neighbour(id, std::errc::host_unreachable, router.network.now);
  CHECK(router.host.expect(EventKind::kAddrError).status == -EHOSTUNREACH);
  REQUIRE(router.resolve(id, "10.0.0.8") == std::errc{});
  router.host.destroy(id);
  router.host.cm->on_neighbour(id, {}, router.network.now);
  router.network.run(5s);
  CHECK(router.host.events.empty());
  CHECK(router.host.cm->next_deadline() == roci::emulator::kNever);
}

TEST_CASE("binding: own addresses, ports that are free, and who may share one") {
  Router router;
  auto& cm = *router.host.cm;
  const auto fresh = [&] { return router.host.create(); };
  CHECK(router.bind(fresh(), "10.0.0.9", 1) == std::errc::address_not_available);
  CHECK(router.bind(fresh(), "127.0.0.2", 1) == std::errc::address_not_available);
  const IdHandle first = fresh();
  REQUIRE(router.bind(first, "10.0.0.1", 500) == std::errc{});
  CHECK(router.bind(first, "10.0.0.1", 501) == std::errc::invalid_argument);
  CHECK(router.bind(fresh(), "10.0.0.1", 500) == std::errc::address_in_use);
  CHECK(router.bind(fresh(), "0.0.0.0", 500) == std::errc::address_in_use);
  CHECK(router.bind(fresh(), "::", 500) == std::errc::address_in_use);
  CHECK(router.bind(fresh(), "10.0.0.130", 500) == std::errc{});
  CHECK(router.bind(fresh(), "fd00::1", 500) == std::errc{});
  const IdHandle datagram = router.host.create(PortSpace::kUdp, QpType::kUd);
  CHECK(router.bind(datagram, "10.0.0.1", 500) == std::errc{});  // another space
  router.host.destroy(first);
  CHECK(router.bind(fresh(), "10.0.0.1", 500) == std::errc{});

  SECTION("AFONLY") {
    const IdHandle v6 = fresh();
    REQUIRE(cm.set_one_family_only(kMe, v6, true) == std::errc{});
    REQUIRE(router.bind(v6, "::", 600) == std::errc{});
    CHECK(cm.set_one_family_only(kMe, v6, false) == std::errc::invalid_argument);
    CHECK(router.bind(fresh(), "0.0.0.0", 600) == std::errc{});
    CHECK(router.bind(fresh(), "::", 600) == std::errc::address_in_use);
  }
  SECTION("REUSEADDR") {
    const IdHandle a = fresh(), b = fresh(), c = fresh();
    REQUIRE(cm.set_reuse_address(kMe, a, true) == std::errc{});
    REQUIRE(cm.set_reuse_address(kMe, b, true) == std::errc{});
    REQUIRE(router.bind(a, "0.0.0.0", 700) == std::errc{});
    CHECK(cm.set_reuse_address(kMe, a, false) == std::errc::invalid_argument);
    REQUIRE(router.bind(b, "10.0.0.1", 700) == std::errc{});
    CHECK(router.bind(c, "10.0.0.1", 700) == std::errc::address_in_use);
    REQUIRE(cm.listen(kMe, a, 0) == std::errc{});
    CHECK(cm.listen(kMe, a, 0) == std::errc::invalid_argument);
    CHECK(cm.listen(kMe, b, 0) == std::errc::address_in_use);
    REQUIRE(cm.set_reuse_address(kMe, c, true) == std::errc{});
    CHECK(router.bind(c, "10.0.0.1", 700) == std::errc::address_in_use);  // somebody listens
    router.host.destroy(a);
    CHECK(cm.listen(kMe, b, 0) == std::errc{});
  }
}

TEST_CASE("two clients on two NICs may both have a port by wildcard") {
  Network network;
  Host& host = network.add({nic(1, "10.0.0.1"), nic(2, "10.0.0.2")});
  host.cm->open_client(ClientId{11}, 1);
  host.cm->open_client(ClientId{12}, 2);
  const IdHandle a = host.cm->create(ClientId{11}, PortSpace::kTcp, QpType::kRc).id;
  const IdHandle b = host.cm->create(ClientId{12}, PortSpace::kTcp, QpType::kRc).id;
  REQUIRE(host.cm->bind(ClientId{11}, a, at("0.0.0.0", 7)) == std::errc{});
  REQUIRE(host.cm->bind(ClientId{12}, b, at("0.0.0.0", 7)) == std::errc{});
  CHECK(host.cm->listen(ClientId{11}, a, 1) == std::errc{});
  CHECK(host.cm->listen(ClientId{12}, b, 1) == std::errc{});
  const IdHandle c = host.cm->create(ClientId{11}, PortSpace::kTcp, QpType::kRc).id;
  CHECK(host.cm->bind(ClientId{11}, c, at("10.0.0.2", 8)) == std::errc::address_not_available);
  // Each hears of what comes to its NIC.
  Host& peer = network.add({nic(3, "10.0.0.3")});
  for (const char* const to : {"10.0.0.1", "10.0.0.2"}) {
    const IdHandle id = peer.resolve(at(to, 7));
    REQUIRE(peer.cm->connect(kMe, id, parameters(0x111), network.now) == std::errc{});
    const auto request = host.expect(EventKind::kConnectRequest);
    CHECK(request.listener == (ip(to) == ip("10.0.0.1") ? a : b));
    CHECK(host.cm->reject(request.client, request.id, 0, {}, network.now) == std::errc{});
    peer.expect(EventKind::kRejected);
  }
}

TEST_CASE("a listener that names the address is asked before the one that takes all") {
  Network network;
  Host& host = network.add({nic(1, "10.0.0.1")});
  Host& peer = network.add({nic(2, "10.0.0.2")});
  auto& cm = *host.cm;
  roci::emulator::cm::Ports ports;
  using Holder = roci::emulator::cm::Ports::Holder;
  const Holder all{IdHandle{1}, ip("0.0.0.0"), 3, true, false, true};
  const Holder one{IdHandle{2}, ip("10.0.0.1"), 1, true, false, true};
  REQUIRE(ports.bind(PortSpace::kTcp, 5, all));
  CHECK_FALSE(ports.bind(PortSpace::kTcp, 5, one));  // both listen
  ports.release(PortSpace::kTcp, 5, IdHandle{1});
  ports.release(PortSpace::kTcp, 6, IdHandle{1});  // nothing there
  REQUIRE(ports.bind(PortSpace::kTcp, 5, {IdHandle{3}, ip("::"), 2, false, false, true}));
  REQUIRE(ports.bind(PortSpace::kTcp, 5, one));
  CHECK(ports.listener(PortSpace::kTcp, 5, NicId{0}, ip("10.0.0.1")) == IdHandle{2});
  CHECK(ports.listener(PortSpace::kTcp, 5, NicId{1}, ip("10.0.0.1")) == IdHandle{3});  // :: means both
  CHECK_FALSE(ports.listener(PortSpace::kTcp, 5, NicId{0}, ip("10.0.0.2")));
  CHECK_FALSE(ports.listener(PortSpace::kUdp, 5, NicId{0}, ip("10.0.0.1")));
  // Without a bind, listen() takes any address and port.
  const IdHandle id = host.create();
  REQUIRE(cm.listen(kMe, id, 5) == std::errc{});
  const auto source = cm.route(kMe, id)->source;
  CHECK(source.is_any());
  const IdHandle client = peer.resolve(at("10.0.0.1", source.port));
  REQUIRE(peer.cm->connect(kMe, client, parameters(0x111), network.now) == std::errc{});
  CHECK(host.expect(EventKind::kConnectRequest).listener == id);
}

TEST_CASE("ephemeral ports run out, and come back") {
  roci::emulator::cm::Ports ports;
  using namespace roci::emulator::cm;
  std::set<std::uint16_t> seen;
  for (std::uint32_t i = 0; i < kEphemeralPorts; ++i) {
    const auto port =
        ports.bind_any(PortSpace::kTcp, i, {IdHandle{i + 1}, ip("10.0.0.1"), 1, true, false, false});
    REQUIRE(port);
    seen.insert(*port);
  }
  CHECK(seen.size() == kEphemeralPorts);
  CHECK(*seen.begin() == 32768);
  CHECK(*seen.rbegin() == 60999);
  const Ports::Holder last{IdHandle{99999}, ip("10.0.0.1"), 1, true, false, false};
  CHECK_FALSE(ports.bind_any(PortSpace::kTcp, 0, last));  // not even shared
  CHECK(ports.bind_any(PortSpace::kTcp, 0, {IdHandle{99998}, ip("10.0.0.1"), 2, true, false, false}));
  ports.release(PortSpace::kTcp, 40000, IdHandle{40000 - 32768 + 1});
  CHECK(ports.bind_any(PortSpace::kTcp, 0, last) == 40000);
}

TEST_CASE("ids: kinds, owners, limits") {
  Network network;
  roci::emulator::cm::Limits limits;
  limits.ids = 6;
  limits.ids_of_client = 4;
  Host& host = network.add({nic(1, "10.0.0.1")}, limits);
  auto& cm = *host.cm;
  CHECK(cm.create(kMe, PortSpace::kTcp, QpType::kUd).error == std::errc::invalid_argument);
  CHECK(cm.create(kMe, PortSpace::kUdp, QpType::kRc).error == std::errc::invalid_argument);
  CHECK(cm.create(kMe, PortSpace::kTcp, QpType::kGsi).error == std::errc::invalid_argument);
  CHECK(cm.create(ClientId{5}, PortSpace::kTcp, QpType::kRc).error == std::errc::not_enough_memory);
  cm.open_client(ClientId{5}, 1);
  const IdHandle mine = host.create(PortSpace::kIb);
  (void)host.create(PortSpace::kIpoib, QpType::kUd);
  (void)host.create(PortSpace::kIb, QpType::kUd);
  (void)host.create(PortSpace::kUdp, QpType::kUd);
  CHECK(cm.create(kMe, PortSpace::kTcp, QpType::kRc).error == std::errc::not_enough_memory);
  const IdHandle theirs = cm.create(ClientId{5}, PortSpace::kTcp, QpType::kUc).id;
  CHECK(cm.create(ClientId{5}, PortSpace::kTcp, QpType::kRc).error == std::errc{});
  CHECK(cm.create(ClientId{5}, PortSpace::kTcp, QpType::kRc).error == std::errc::not_enough_memory);
  // Another's id is as good as none.
  const auto none = std::errc::no_such_file_or_directory;
  const Time now{};
  CHECK(cm.destroy(kMe, theirs, now) == none);
  CHECK(cm.bind(kMe, theirs, at("10.0.0.1", 1)) == none);
  CHECK(cm.resolve_address(kMe, theirs, {}, at("10.0.0.2", 1), 1s, now) == none);
  CHECK(cm.resolve_route(kMe, theirs, 1s, now) == none);
  CHECK_FALSE(cm.route(kMe, theirs));
  CHECK(cm.listen(kMe, theirs, 1) == none);
  CHECK(cm.connect(kMe, theirs, parameters(2), now) == none);
  CHECK(cm.accept(kMe, theirs, parameters(2), now) == none);
  CHECK(cm.reject(kMe, theirs, 0, {}, now) == none);
  CHECK(cm.disconnect(kMe, theirs, now) == none);
  CHECK(cm.join(kMe, theirs, at("239.0.0.1", 0), 1, now) == none);
  CHECK(cm.leave(kMe, theirs, 1) == none);
  CHECK(cm.migrate(kMe, theirs, ClientId{5}) == none);
  CHECK(cm.set_type_of_service(kMe, theirs, 1) == none);
  CHECK(cm.set_reuse_address(kMe, theirs, true) == none);
  CHECK(cm.set_one_family_only(kMe, theirs, true) == none);
  CHECK(cm.set_ack_timeout(kMe, theirs, 1) == none);
  // What an id in its first state does not take.
  CHECK(cm.connect(kMe, mine, parameters(2), now) == std::errc::invalid_argument);
  CHECK(cm.accept(kMe, mine, parameters(2), now) == std::errc::invalid_argument);
  CHECK(cm.reject(kMe, mine, 0, {}, now) == std::errc::invalid_argument);
  CHECK(cm.disconnect(kMe, mine, now) == std::errc::invalid_argument);
  CHECK(cm.resolve_route(kMe, mine, 1s, now) == std::errc::invalid_argument);
  CHECK(cm.join(kMe, mine, at("239.0.0.1", 0), 1, now) == std::errc::invalid_argument);
  CHECK(cm.notify_established(kMe, mine, now) == std::errc::invalid_argument);
  CHECK(cm.migrate(kMe, mine, ClientId{77}) == std::errc::invalid_argument);
  CHECK(cm.migrate(kMe, mine, ClientId{5}) == std::errc{});
  CHECK(cm.route(ClientId{5}, mine).has_value());
  cm.close_client(ClientId{5}, now);
  cm.close_client(ClientId{5}, now);
  CHECK(cm.ids() == 3);
}

TEST_CASE("an id that moves takes its events along, a listener its requests") {
  Network network;
  roci::emulator::cm::Limits limits;
  limits.ids_of_client = 3;
  Host& client = network.add({nic(1, "10.0.0.1")});
  Host& server = network.add({nic(2, "10.0.0.2")}, limits);
  const IdHandle listener = server.listen(at("10.0.0.2", 9));
  std::vector<Parcel> requests;
  network.wire = [&](Parcel& parcel) {
    requests.push_back(parcel);
    return std::vector<Duration>{};
  };
  for (std::uint32_t i = 0; i < 2; ++i) {
    const IdHandle id = client.resolve(at("10.0.0.2", 9));
    REQUIRE(client.cm->connect(kMe, id, parameters(0x111 + i), network.now) == std::errc{});
  }
  network.settle();
  network.deliver_now(server, requests.at(0));
  const auto seen = *server.cm->take_event();
  CHECK(seen.client == kMe);
  network.deliver_now(server, requests.at(1));
  constexpr ClientId kOther{2};
  server.cm->open_client(kOther, 1);
  (void)server.cm->create(kOther, PortSpace::kTcp, QpType::kRc);
  (void)server.cm->create(kOther, PortSpace::kTcp, QpType::kRc);
  CHECK(server.cm->migrate(kMe, listener, kOther) == std::errc::not_enough_memory);  // it brings one more
  server.cm->close_client(kOther, network.now);
  server.cm->open_client(kOther, 1);
  REQUIRE(server.cm->migrate(kMe, listener, kOther) == std::errc{});
  const auto unseen = *server.cm->take_event();
  CHECK(unseen.client == kOther);
  CHECK(unseen.listener == listener);
  CHECK(server.cm->accept(kOther, unseen.id, parameters(0x222), network.now) == std::errc{});
  CHECK(server.cm->accept(kMe, seen.id, parameters(0x223), network.now) == std::errc{});
}

TEST_CASE("the state of every id can be shown") {
  Network network;
  Host& client = network.add({nic(1, "10.0.0.1")});
  Host& server = network.add({nic(2, "10.0.0.2")});
  const auto state = [](Host& host, IdHandle id) -> std::string {
    for (const auto& one : host.cm->snapshot())
      if (one.id == id) return one.state;
    return "gone";
  };
  const IdHandle id = client.create();
  CHECK(state(client, id) == "idle");
  REQUIRE(client.cm->bind(kMe, id, at("10.0.0.1", 0)) == std::errc{});
  CHECK(state(client, id) == "bound");
  REQUIRE(client.cm->resolve_address(kMe, id, {}, at("10.0.0.2", 9), 2s, network.now) == std::errc{});
  CHECK(state(client, id) == "resolving");
  client.expect(EventKind::kAddrResolved);
  CHECK(state(client, id) == "address resolved");
  REQUIRE(client.cm->resolve_route(kMe, id, 2s, network.now) == std::errc{});
  CHECK(state(client, id) == "route resolved");
  const IdHandle listener = server.listen(at("10.0.0.2", 9));
  CHECK(state(server, listener) == "listening");
  client.expect(EventKind::kRouteResolved);
  REQUIRE(client.cm->connect(kMe, id, parameters(0x111), network.now) == std::errc{});
  CHECK(state(client, id) == "requesting");
  const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
  CHECK(state(server, asked) == "requested");
  REQUIRE(server.cm->accept(kMe, asked, parameters(0x222), network.now) == std::errc{});
  CHECK(state(server, asked) == "accepting");
  client.expect(EventKind::kConnectResponse);
  CHECK(state(client, id) == "accepted");
  REQUIRE(client.cm->accept(kMe, id, {}, network.now) == std::errc{});
  server.expect(EventKind::kEstablished);
  CHECK(state(client, id) == "connected");
  CHECK(state(server, asked) == "connected");
  const auto shown = server.cm->snapshot().back();
  CHECK(shown.remote_qpn == roci::proto::Qpn{0x111});
  CHECK(shown.qpn == roci::proto::Qpn{0x222});
  REQUIRE(client.cm->disconnect(kMe, id, network.now) == std::errc{});
  CHECK(state(client, id) == "disconnecting");
  client.expect(EventKind::kDisconnected);
  CHECK(state(client, id) == "time wait");
  network.run(5s);
  CHECK(state(client, id) == "over");
  client.destroy(id);
  CHECK(state(client, id) == "gone");
}
