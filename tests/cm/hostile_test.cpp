// Peers that mean no good, and more of everything than there is room for.
#include <algorithm>
#include <cstddef>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cm/raw_peer.h"

namespace {

using namespace roci::cm_test;
namespace proto = roci::proto;
using roci::emulator::cm::Limits;

constexpr std::uint32_t kFlood = 100'000;

// A REQ or SIDR_REQ of one of 1,000 hosts, all different.
template <class Request>
void send_as(RawPeer& peer, Request request, std::uint32_t number) {
  const proto::Gid source = proto::Gid::from_ipv4(0x0A000000 + 0x100 + number % 1000);
  const proto::IpCmHeader header{proto::IpVersion::kIpv4, 5555, source, ip("10.0.0.1")};
  header.emit(std::span{request.private_data}.template first<proto::IpCmHeader::kSize>());
  if constexpr (std::is_same_v<Request, proto::CmReq>) request.primary.local_gid = source;
  peer.cm().on_mad({NicId{0}, source, ip("10.0.0.1"), proto::kQpnGsi, mad(request).bytes},
                   peer.network().now);
}

}  // namespace

TEST_CASE("a flood of REQs fills the backlog and nothing else") {
  RawPeer peer;
  peer.reach(Stage::kPassive);
  for (std::uint32_t i = 0; i < kFlood; ++i)
    send_as(peer, peer.req(proto::CommunicationId{1000 + i}, proto::Qpn{1000 + i}), i);
  CHECK(peer.cm().conversations() == 1 + 1024);
  CHECK(peer.cm().ids() == 3 + 1024);
  CHECK(peer.cm().counters().refused == kFlood - 1024);
  CHECK(peer.heard().empty());  // who floods is not answered
  // The connection that stands is as it was.
  peer.say(proto::CmDreq{RawPeer::kId, peer.ours(), RawPeer::kOurQpn, {}});
  const auto heard = peer.heard();
  REQUIRE(heard.size() == 1);
  CHECK(std::holds_alternative<proto::CmDrep>(heard[0]));
  // Room comes back when the application answers.
  auto& events = peer.host().events;
  REQUIRE(events.size() == 1024 + 1);
  CHECK(peer.cm().reject(Host::kApp, events.front().id, 0, {}, peer.network().now) == std::errc{});
  send_as(peer, peer.req(proto::CommunicationId{1}, proto::Qpn{500}), 999);
  CHECK(peer.cm().conversations() == 1 + 1024);
  peer.cm().close_client(Host::kApp, peer.network().now);
  peer.network().run_dry();
  CHECK(peer.cm().conversations() == 0);
}

TEST_CASE("a flood of SIDR_REQs fills the backlog and nothing else") {
  RawPeer peer;
  for (std::uint32_t i = 0; i < kFlood; ++i)
    send_as(peer, peer.sidr_req(proto::CommunicationId{1000 + i}), i);
  CHECK(peer.cm().conversations() == 1024);
  CHECK(peer.cm().counters().refused == kFlood - 1024);
  peer.cm().close_client(Host::kApp, peer.network().now);
  peer.network().run_dry();
  CHECK(peer.cm().conversations() == 0);
}

TEST_CASE("answers that nobody takes are lost beyond a limit") {
  Limits limits;
  limits.mads = 100;
  RawPeer peer(limits);
  auto req = peer.req();
  req.service_id = proto::ServiceId{7};
  for (std::uint32_t i = 0; i < kFlood; ++i)
    send_as(peer, req, i);
  CHECK(peer.heard().size() == 100);
  CHECK(peer.cm().counters().mads_sent == 100);
  CHECK(peer.cm().conversations() == 0);
  peer.say(req);
  CHECK(peer.heard().size() == 1);
}

TEST_CASE("no more ids: a request is rejected") {
  Limits limits;
  limits.ids = 3;
  RawPeer peer(limits);
  peer.say(peer.req());
  peer.host().expect(EventKind::kConnectRequest);
  peer.say(peer.req(proto::CommunicationId{0x78}, proto::Qpn{0x101}));
  CHECK(static_cast<int>(std::get<proto::CmRej>(peer.heard().at(0)).reason) == 3);
  CHECK(peer.cm().conversations() == 1);
}

TEST_CASE("a request that finds no room is repeated until it does") {
  Limits limits;
  limits.backlog = 2;
  Network network;
  Host& server = network.add({nic(1, "10.0.0.1")}, limits);
  Host& client = network.add({nic(2, "10.0.0.2")});
  (void)server.listen(at("10.0.0.1", 7), 5);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const IdHandle id = client.resolve(at("10.0.0.1", 7));
    REQUIRE(client.cm->connect(Host::kApp, id, parameters(0x100 + i), network.now) == std::errc{});
  }
  network.settle();
  CHECK(server.events.size() == 2);
  CHECK(server.cm->counters().refused == 2);
  for (std::uint32_t i = 0; i < 4; ++i) {
    network.await(server);
    const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
    REQUIRE(server.cm->accept(Host::kApp, asked, parameters(0x200 + i), network.now) == std::errc{});
    client.expect(EventKind::kConnectResponse);
  }
  CHECK(client.events.empty());
}

TEST_CASE("a short backlog has room for those that are being answered") {
  RawPeer peer;
  const IdHandle listener = peer.host().listen(at("10.0.0.1", 8), 1);
  auto req = peer.req();
  req.service_id = proto::service_id_of(proto::CmPortSpace::kTcp, 8);
  for (std::uint32_t i = 0; i < 200; ++i) {
    req.local_comm_id = proto::CommunicationId{i + 1};
    req.local_qpn = proto::Qpn{i + 2};
    peer.say(req);
  }
  CHECK(peer.cm().conversations() == roci::emulator::cm::ConnectionManager::kLeastBacklog);
  peer.host().destroy(listener);
}

TEST_CASE("conversations that outlive their ids are forgotten beyond a limit") {
  Limits limits;
  limits.time_waits = 10;
  Network network;
  Host& client = network.add({nic(1, "10.0.0.1")}, limits);
  Host& server = network.add({nic(2, "10.0.0.2")});
  (void)server.listen(at("10.0.0.2", 7));
  std::vector<IdHandle> ids;
  for (std::uint32_t i = 0; i < 50; ++i) {
    const IdHandle id = ids.emplace_back(client.resolve(at("10.0.0.2", 7)));
    REQUIRE(client.cm->connect(Host::kApp, id, parameters(0x100 + i), network.now) == std::errc{});
    const IdHandle asked = server.expect(EventKind::kConnectRequest).id;
    REQUIRE(server.cm->accept(Host::kApp, asked, parameters(0x200 + i), network.now) == std::errc{});
    client.expect(EventKind::kConnectResponse);
    REQUIRE(client.cm->accept(Host::kApp, id, std::nullopt, network.now) == std::errc{});
    server.expect(EventKind::kEstablished);
  }
  const auto close_half = [&](std::size_t half) {
    for (std::size_t i = half * 25; i < half * 25 + 25; ++i)
      client.destroy(ids[i]);
    CHECK(client.cm->conversations() == 10 + 25 * (1 - half));
    network.settle();  // each said its DREQ once
    CHECK(std::count_if(server.events.begin(), server.events.end(), [](const auto& e) {
            return e.kind == EventKind::kDisconnected;
          }) == static_cast<std::ptrdiff_t>(25 + 25 * half));
    network.run_dry();
    CHECK(client.cm->conversations() == 25 * (1 - half));
  };
  close_half(0);
  close_half(1);  // there is room again
  CHECK(server.cm->conversations() == 0);
}

TEST_CASE("a peer that rejects every path MTU runs out of them") {
  RawPeer peer;
  peer.reach(Stage::kReqSent);
  proto::CmRej rej;
  rej.reason = proto::CmRejectReason::kInvalidPathMtu;
  rej.remote_comm_id = peer.ours();
  std::size_t tries = 1;
  peer.say(rej);
  for (auto heard = peer.heard(); !heard.empty(); heard = peer.heard(), ++tries) {
    rej.remote_comm_id = std::get<proto::CmReq>(heard.at(0)).local_comm_id;
    peer.say(rej);
  }
  CHECK(tries == 5);
  CHECK(peer.host().expect(EventKind::kRejected).status == 26);
  CHECK(peer.cm().conversations() == 0);
}

TEST_CASE("a REP that promises more than was asked for is not believed") {
  RawPeer peer;
  peer.reach(Stage::kReqSent);  // asks for 4 and 2
  auto rep = peer.rep();
  rep.initiator_depth = rep.responder_resources = 255;
  peer.say(rep);
  const auto get = [&](QpState state) {
    return peer.cm().qp_attributes(Host::kApp, peer.id(), state).transition.attributes;
  };
  CHECK(get(QpState::kRtr).max_dest_rd_atomic == 4);
  CHECK(get(QpState::kRts).max_rd_atomic == 2);
}

TEST_CASE("a message to another address of the same NIC is about nothing") {
  Network network;
  auto two = nic(1, "10.0.0.1");
  two.addresses.push_back({ip("10.0.0.11"), 24});
  Host& server = network.add({two});
  Host& client = network.add({nic(2, "10.0.0.2")});
  std::vector<Parcel> sent;
  network.wire = [&](Parcel& parcel) {
    sent.push_back(parcel);
    return deliver(parcel);
  };
  const Connected both = connect(network, client, server, at("10.0.0.1", 7));
  const auto rtu = std::get<proto::CmRtu>(sent.back().parse().message);
  Parcel dreq{ip("10.0.0.2"), ip("10.0.0.11"), {}};
  dreq.bytes = mad(proto::CmDreq{rtu.local_comm_id, rtu.remote_comm_id, proto::Qpn{0x200}, {}}).bytes;
  network.deliver_now(server, dreq);
  network.settle();
  CHECK(server.events.empty());
  dreq.destination = ip("10.0.0.1");
  network.deliver_now(server, dreq);
  CHECK(server.expect(EventKind::kDisconnected).id == both.server);
}
