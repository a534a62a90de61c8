// Every message in every state of a conversation, and every message that a stranger sends into one.
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "tests/cm/raw_peer.h"

namespace {

using namespace roci::cm_test;
namespace proto = roci::proto;

constexpr std::size_t kMessages = 11;

// What is sent, +events, >the state of the id if that changed. An MRA moves a deadline only.
// clang-format off
constexpr const char* kOutcomes[kStages][kMessages] = {
    // REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR
    {"+request", "-", "+rejected >over", "+response >accepted", "-", "-", "-", "+request", "-", "-", "-"},  // REQ sent
    {"-", "-", "+rejected >time wait", "MRA", "-", "DREP +disconnected >time wait", "-", "+request", "-", "-", "-"},  // REP received
    {"-", "-", "+rejected >time wait", "RTU", "-", "DREP +disconnected >time wait", "-", "+request", "-", "APR", "-"},  // active
    {"MRA", "-", "+rejected >over", "-", "-", "-", "-", "+request", "-", "-", "-"},  // REQ received
    {"REP", "-", "+rejected >over", "-", "+established >connected", "DREP +disconnected >time wait", "-", "+request", "-", "-", "-"},  // REP sent
    {"-", "-", "+rejected >time wait", "-", "-", "DREP +disconnected >time wait", "-", "+request", "-", "APR", "-"},  // passive
    {"-", "-", "+disconnected >time wait", "-", "-", "DREP +disconnected >time wait", "+disconnected >time wait", "+request", "-", "-", "-"},  // DREQ sent
    {"-", "-", "-", "-", "-", "DREP", "-", "+request", "-", "-", "-"},  // time wait
    {"+request", "-", "-", "REJ 6", "REJ 6", "DREP", "-", "+request", "-", "-", "-"},  // forgotten
    {"+request", "-", "-", "-", "-", "-", "-", "+request", "+established >connected", "-", "-"},  // SIDR_REQ sent
    {"+request", "-", "-", "REJ 6", "REJ 6", "DREP", "-", "-", "-", "-", "-"},  // SIDR_REQ received
    {"+request", "-", "-", "REJ 6", "REJ 6", "DREP", "-", "SIDR_REP", "-", "-", "-"},  // SIDR_REP sent
};
// clang-format on

std::string name(const proto::CmMessage& message) {
  return std::string(proto::name_of(proto::attribute_of(message)));
}

// Whether it opens a conversation rather than speak of one.
bool is_opening(const proto::CmMessage& message) {
  return std::holds_alternative<proto::CmReq>(message) || std::holds_alternative<proto::CmSidrReq>(message);
}

// The same message with another name for the receiver's side, or for the sender's.
proto::CmMessage rename(proto::CmMessage message, bool ours) {
  const auto other = [](proto::CommunicationId& id) { id = proto::CommunicationId{id.value() ^ 0x5A5A}; };
  std::visit(
      [&](auto& one) {
        if constexpr (requires { one.remote_comm_id; }) {
          other(ours ? one.remote_comm_id : one.local_comm_id);
        } else if constexpr (requires { one.request_id; }) {
          other(one.request_id);
        }
      },
      message);
  return message;
}

}  // namespace

TEST_CASE("every message in every state") {
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    for (std::size_t i = 0; i < kMessages; ++i) {
      RawPeer peer;
      peer.reach(static_cast<Stage>(stage));
      const auto message = peer.every_message().at(i);
      CAPTURE(name_of(static_cast<Stage>(stage)), name(message));
      peer.say(message);
      CHECK(peer.outcome() == kOutcomes[stage][i]);
      // Whatever it was, it ends well.
      peer.cm().close_client(Host::kApp, peer.network().now);
      peer.network().run_dry();
      CHECK(peer.cm().conversations() == 0);
      CHECK(peer.cm().ids() == 0);
    }
  }
}

TEST_CASE("nobody speaks for another: address, names and queue pair must be right") {
  const std::set<std::string> answers{"-", "DREP", "REJ 6"};  // to what is not known, and without effect
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    for (std::size_t i = 0; i < kMessages; ++i) {
      for (int what = 0; what < 5; ++what) {
        RawPeer peer;
        peer.reach(static_cast<Stage>(stage));
        const auto message = peer.every_message().at(i);
        if (is_opening(message) && what < 3) continue;
        CAPTURE(name_of(static_cast<Stage>(stage)), name(message), what);
        switch (what) {
          case 0:
            peer.say_from(ip("10.0.0.66"), message);
            break;
          case 1:
            peer.say(rename(message, true));
            break;
          case 2:
            // Until the peer has answered, any name is its own.
            if (stage == static_cast<std::size_t>(Stage::kReqSent)) continue;
            peer.say(rename(message, false));
            break;
          case 3:
            peer.say_from(ip("10.0.0.2"), message, proto::Qpn{2});
            break;
          case 4:  // to an address that is not the NIC's
            peer.cm().on_mad({NicId{0}, ip("10.0.0.2"), ip("10.0.0.9"), proto::kQpnGsi, mad(message).bytes},
                             peer.network().now);
            break;
        }
        // outcome() speaks of the state before say_from(), so "no word" is "nothing happened".
        if (what == 4) {
          CHECK(peer.heard().empty());
          CHECK(peer.host().events.empty());
        } else {
          CHECK(answers.count(peer.outcome()) == 1);
        }
        const auto& counters = peer.cm().counters();
        CHECK(counters.malformed + counters.unknown > 0);
      }
    }
  }
}

TEST_CASE("a MAD that says nothing of sense is counted") {
  RawPeer peer;
  peer.reach(Stage::kPassive);
  auto& cm = peer.cm();
  const auto bytes = mad(peer.req()).bytes;
  const auto send = [&](std::size_t at, int value, NicId nic = {}) {
    auto bad = bytes;
    bad[at] = static_cast<std::byte>(value);
    cm.on_mad({nic, ip("10.0.0.2"), ip("10.0.0.1"), proto::kQpnGsi, bad}, peer.network().now);
  };
  send(0, 2);            // base version
  send(1, 3);            // another class
  send(2, 1);            // version of the class
  send(3, 1);            // method
  send(17, 0x40);        // attribute
  send(0, 1, NicId{1});  // no such NIC
  auto nameless = peer.req(proto::CommunicationId{0});
  peer.say(nameless);
  CHECK(cm.counters().malformed == 7);
  CHECK(cm.counters().mads_received == 7 + 2);
  CHECK(peer.outcome() == "-");
}

TEST_CASE("a REQ is judged before anybody is asked") {
  struct Case {
    const char* what;
    int reason;
    void (*change)(proto::CmReq&);
  };
  constexpr Case kCases[] = {
      {"reliable datagrams", 9,
       [](proto::CmReq& r) { r.transport_service_type = proto::CmTransportService::kRd; }},
      {"XRC", 9, [](proto::CmReq& r) { r.transport_service_type = proto::CmTransportService::kExtended; }},
      {"UC to a listener of RC", 9,
       [](proto::CmReq& r) { r.transport_service_type = proto::CmTransportService::kUc; }},
      {"no service of ours", 8, [](proto::CmReq& r) { r.service_id = proto::ServiceId{0x1234567890}; }},
      {"a port where nobody listens", 8,
       [](proto::CmReq& r) { r.service_id = proto::service_id_of(proto::CmPortSpace::kTcp, 8); }},
      {"the datagram port", 8,
       [](proto::CmReq& r) {
         r.service_id = proto::service_id_of(proto::CmPortSpace::kUdp, RawPeer::kPort);
       }},
      {"data to somebody else", 12, [](proto::CmReq& r) { r.primary.local_gid = ip("10.0.0.66"); }},
      {"data from somewhere else", 12, [](proto::CmReq& r) { r.primary.remote_gid = ip("10.0.0.66"); }},
      {"path MTU 0", 26, [](proto::CmReq& r) { r.path_packet_payload_mtu = 0; }},
      {"path MTU 6", 26, [](proto::CmReq& r) { r.path_packet_payload_mtu = 6; }},
      {"QP 0", 5, [](proto::CmReq& r) { r.local_qpn = proto::Qpn{0}; }},
      {"QP 1", 5, [](proto::CmReq& r) { r.local_qpn = proto::Qpn{1}; }},
      {"the QP of groups", 5, [](proto::CmReq& r) { r.local_qpn = proto::kQpnMulticast; }},
      {"another version of the header", 5, [](proto::CmReq& r) { r.private_data[0] = std::byte{0x10}; }},
      {"a header from somebody else", 5, [](proto::CmReq& r) { r.private_data[19] = std::byte{66}; }},
      {"a header to somebody else", 5, [](proto::CmReq& r) { r.private_data[35] = std::byte{66}; }},
  };
  for (const Case& one : kCases) {
    CAPTURE(one.what);
    RawPeer peer;
    auto req = peer.req();
    one.change(req);
    peer.say(req);
    const auto heard = peer.heard();
    REQUIRE(heard.size() == 1);
    const auto& rej = std::get<proto::CmRej>(heard[0]);
    CHECK(static_cast<int>(rej.reason) == one.reason);
    CHECK(rej.remote_comm_id == RawPeer::kId);
    CHECK(rej.local_comm_id == proto::CommunicationId{0});
    CHECK(rej.message_rejected == proto::CmRejected::kReq);
    CHECK(peer.cm().conversations() == 0);
    CHECK(peer.cm().counters().refused == 1);
  }
}

TEST_CASE("a SIDR_REQ with a header that does not belong to its sender") {
  RawPeer peer;
  auto req = peer.sidr_req();
  req.private_data[19] = std::byte{66};
  peer.say(req);
  CHECK(static_cast<int>(std::get<proto::CmSidrRep>(peer.heard().at(0)).status) == 2);
  CHECK(peer.cm().conversations() == 0);
}

TEST_CASE("one communication id for two queue pairs, two communication ids for one queue pair") {
  const Stage stage = GENERATE(Stage::kReqReceived, Stage::kRepSent, Stage::kPassive, Stage::kTimeWait);
  RawPeer peer;
  peer.reach(stage);
  peer.say(peer.req(RawPeer::kId, proto::Qpn{0x101}));
  CHECK(peer.outcome() == "REJ 30");
  peer.say(peer.req(proto::CommunicationId{0x78}));
  CHECK(peer.outcome() == (stage == Stage::kPassive ? "DREQ REJ 10 >disconnecting" : "REJ 10"));
}

TEST_CASE("a REP that names a queue pair that is connected already") {
  RawPeer peer;
  peer.reach(Stage::kPassive);  // with kQpn
  auto& host = peer.host();
  const IdHandle id = host.resolve(at("10.0.0.2", 99));
  REQUIRE(host.cm->connect(Host::kApp, id, parameters(0x300), peer.network().now) == std::errc{});
  proto::CmRep rep = peer.rep();
  rep.local_comm_id = proto::CommunicationId{0x99};
  rep.remote_comm_id = std::get<proto::CmReq>(peer.heard().at(0)).local_comm_id;
  peer.say(rep);
  CHECK(static_cast<int>(std::get<proto::CmRej>(peer.heard().at(0)).reason) == 10);
  const auto event = host.expect(EventKind::kRejected);
  CHECK(event.id == id);
  CHECK(event.status == 10);
  CHECK(std::get<roci::emulator::cm::ConnectionParameters>(event.parameters).private_data.length_bytes == 0);
  CHECK(peer.cm().conversations() == 1);
}

TEST_CASE("a DREQ for another queue pair than ours is not obeyed") {
  RawPeer peer;
  peer.reach(Stage::kPassive);
  peer.say(proto::CmDreq{RawPeer::kId, peer.ours(), proto::Qpn{0x201}, {}});
  CHECK(peer.outcome() == "-");
  CHECK(peer.cm().counters().unknown == 1);
}

TEST_CASE("a REJ from who gave up asking names us not at all") {
  RawPeer peer;
  peer.reach(Stage::kReqReceived);
  proto::CmRej rej;
  rej.local_comm_id = RawPeer::kId;
  rej.reason = proto::CmRejectReason::kTimeout;
  rej.message_rejected = proto::CmRejected::kNone;
  peer.say_from(ip("10.0.0.66"), rej);
  CHECK(peer.outcome() == "-");
  peer.say(rej);
  CHECK(peer.outcome() == "+rejected >over");
  CHECK(peer.cm().conversations() == 0);
}

TEST_CASE("times that a peer names are believed within reason") {
  const std::uint8_t code = GENERATE(std::uint8_t{0}, std::uint8_t{31});
  RawPeer peer;
  auto req = peer.req();
  req.local_cm_response_timeout = proto::CmTimeout{code};
  req.primary.local_ack_timeout = proto::AckTimeout{code};
  req.primary.hop_limit = 0;
  peer.say(req);
  const IdHandle id = peer.host().expect(EventKind::kConnectRequest).id;
  REQUIRE(peer.cm().accept(Host::kApp, id, parameters(0x200), peer.network().now) == std::errc{});
  const auto wait = peer.cm().next_deadline() - peer.network().now;
  CHECK(wait >= 260ms);
  CHECK(wait <= 4300ms);
  const auto get = [&](QpState state) {
    return peer.cm().qp_attributes(Host::kApp, id, state).transition.attributes;
  };
  CHECK(get(QpState::kRts).timeout == (code == 0 ? 17 : 31));  // never without a timeout
  CHECK(get(QpState::kRtr).av.hop_limit == 64);
  const auto rep = std::get<proto::CmRep>(peer.heard().at(0));
  peer.say(proto::CmRtu{RawPeer::kId, rep.local_comm_id, {}});
  peer.say(proto::CmDreq{RawPeer::kId, rep.local_comm_id, proto::Qpn{0x200}, {}});
  CHECK(peer.cm().next_deadline() - peer.network().now <= 4300ms);  // time wait
}
