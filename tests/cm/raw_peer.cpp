#include "tests/cm/raw_peer.h"

#include <catch2/catch.hpp>

namespace roci::cm_test {
namespace {

constexpr const char* kOwn = "10.0.0.1";
constexpr const char* kPeer = "10.0.0.2";

}  // namespace

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::kAddrResolved:
      return "address resolved";
    case EventKind::kAddrError:
      return "address error";
    case EventKind::kRouteResolved:
      return "route resolved";
    case EventKind::kRouteError:
      return "route error";
    case EventKind::kConnectRequest:
      return "request";
    case EventKind::kConnectResponse:
      return "response";
    case EventKind::kConnectError:
      return "connect error";
    case EventKind::kUnreachable:
      return "unreachable";
    case EventKind::kRejected:
      return "rejected";
    case EventKind::kEstablished:
      return "established";
    case EventKind::kDisconnected:
      return "disconnected";
    case EventKind::kDeviceRemoval:
      return "device removal";
    case EventKind::kMulticastJoin:
      return "join";
    case EventKind::kMulticastError:
      return "multicast error";
    case EventKind::kAddrChange:
      return "address change";
    case EventKind::kTimewaitExit:
      return "time wait exit";
  }
  return "";
}

const char* name_of(Stage stage) {
  constexpr const char* kNames[kStages] = {
      "REQ sent",  "REP received", "active",    "REQ received",  "REP sent",          "passive",
      "DREQ sent", "time wait",    "forgotten", "SIDR_REQ sent", "SIDR_REQ received", "SIDR_REP sent"};
  return kNames[static_cast<std::size_t>(stage)];
}

RawPeer::RawPeer(cm::Limits limits) : host_(network_.add({nic(1, kOwn)}, limits)) {
  network_.wire = [this](Parcel& parcel) {
    heard_.push_back(parcel.parse().message);
    return std::vector<Duration>{};
  };
  (void)host_.listen(at(kOwn, kPort));
  (void)host_.listen(at(kOwn, kPort), 0, PortSpace::kUdp, QpType::kUd);
}

proto::CmReq RawPeer::req(proto::CommunicationId id, proto::Qpn qpn) const {
  proto::CmReq req;
  req.local_comm_id = id;
  req.service_id = proto::service_id_of(proto::CmPortSpace::kTcp, kPort);
  req.local_qpn = qpn;
  req.responder_resources = req.initiator_depth = 1;
  req.remote_cm_response_timeout = req.local_cm_response_timeout = proto::CmTimeout{20};
  req.starting_psn = proto::Psn{0x1234};
  req.retry_count = req.rnr_retry_count = 7;
  req.path_packet_payload_mtu = 3;
  req.max_cm_retries = 15;
  req.primary.local_gid = ip(kPeer);
  req.primary.remote_gid = ip(kOwn);
  req.primary.hop_limit = 64;
  req.primary.local_ack_timeout = proto::AckTimeout{19};
  const proto::IpCmHeader header{proto::IpVersion::kIpv4, 5555, ip(kPeer), ip(kOwn)};
  header.emit(std::span{req.private_data}.first<proto::IpCmHeader::kSize>());
  return req;
}

proto::CmSidrReq RawPeer::sidr_req(proto::CommunicationId id) const {
  proto::CmSidrReq req;
  req.request_id = id;
  req.service_id = proto::service_id_of(proto::CmPortSpace::kUdp, kPort);
  const proto::IpCmHeader header{proto::IpVersion::kIpv4, 5555, ip(kPeer), ip(kOwn)};
  header.emit(std::span{req.private_data}.first<proto::IpCmHeader::kSize>());
  return req;
}

proto::CmRep RawPeer::rep() const {
  proto::CmRep rep;
  rep.local_comm_id = kId;
  rep.remote_comm_id = ours_;
  rep.local_qpn = kQpn;
  rep.responder_resources = rep.initiator_depth = 1;
  return rep;
}

std::vector<proto::CmMessage> RawPeer::every_message() const {
  proto::CmRej rej;
  rej.local_comm_id = kId;
  rej.remote_comm_id = ours_;
  proto::CmSidrRep sidr_rep;
  sidr_rep.request_id = ours_;
  sidr_rep.qpn = kQpn;
  proto::CmLap lap;
  lap.local_comm_id = kId;
  lap.remote_comm_id = ours_;
  proto::CmApr apr;
  apr.local_comm_id = kId;
  apr.remote_comm_id = ours_;
  return {req(),
          proto::CmMra{kId, ours_, proto::CmMraed::kReq, proto::CmTimeout{24}, {}},
          rej,
          rep(),
          proto::CmRtu{kId, ours_, {}},
          proto::CmDreq{kId, ours_, kOurQpn, {}},
          proto::CmDrep{kId, ours_, {}},
          sidr_req(),
          sidr_rep,
          lap,
          apr};
}

void RawPeer::say_from(const proto::Gid& source, const proto::CmMessage& message, proto::Qpn source_qpn) {
  last_word_ = word();
  network_.deliver_now(host_, {source, ip(kOwn), mad(message).bytes}, {}, source_qpn);
  network_.settle();
}

void RawPeer::say(const proto::CmMessage& message) { say_from(ip(kPeer), message); }

std::vector<proto::CmMessage> RawPeer::heard() {
  network_.settle();
  return std::exchange(heard_, {});
}

std::string RawPeer::word() const {
  for (const auto& one : host_.cm->snapshot())
    if (one.id == id_) return one.state;
  return "gone";
}

std::string RawPeer::outcome() {
  std::string words;
  const auto add = [&](const std::string& word) { words += words.empty() ? word : " " + word; };
  for (const proto::CmMessage& message : heard()) {
    std::string one{proto::name_of(proto::attribute_of(message))};
    if (const auto* const rej = std::get_if<proto::CmRej>(&message))
      one += " " + std::to_string(static_cast<int>(rej->reason));
    add(one);
  }
  while (!host_.events.empty()) {
    add(std::string("+") + name_of(host_.events.front().kind));
    host_.events.pop_front();
  }
  if (word() != last_word_) add(">" + word());
  return words.empty() ? "-" : words;
}

void RawPeer::reach(Stage stage) {
  const bool is_active = stage <= Stage::kActive || stage == Stage::kSidrReqSent;
  const bool is_datagram = stage >= Stage::kSidrReqSent;
  const PortSpace space = is_datagram ? PortSpace::kUdp : PortSpace::kTcp;
  if (is_active) {
    id_ = host_.resolve(at(kPeer, 99), space, is_datagram ? QpType::kUd : QpType::kRc);
    REQUIRE(cm().connect(Host::kApp, id_, parameters(kOurQpn.value()), network_.now) == std::errc{});
    const auto sent = heard().at(0);
    if (is_datagram) {
      ours_ = std::get<proto::CmSidrReq>(sent).request_id;
      return;
    }
    ours_ = std::get<proto::CmReq>(sent).local_comm_id;
    if (stage == Stage::kReqSent) return;
    say(rep());
    host_.expect(EventKind::kConnectResponse);
    if (stage == Stage::kRepReceived) return;
    REQUIRE(cm().accept(Host::kApp, id_, std::nullopt, network_.now) == std::errc{});
    (void)heard();
    return;
  }
  if (is_datagram) {
    say(sidr_req());
  } else {
    say(req());
  }
  id_ = host_.expect(EventKind::kConnectRequest).id;
  if (stage == Stage::kReqReceived) {
    say(req());  // its own MRA tells our name
    ours_ = std::get<proto::CmMra>(heard().at(0)).local_comm_id;
    return;
  }
  if (stage == Stage::kSidrReqReceived) return;
  REQUIRE(cm().accept(Host::kApp, id_, parameters(kOurQpn.value()), network_.now) == std::errc{});
  const auto sent = heard().at(0);
  if (is_datagram) return;
  ours_ = std::get<proto::CmRep>(sent).local_comm_id;
  if (stage == Stage::kRepSent) return;
  say(proto::CmRtu{kId, ours_, {}});
  host_.expect(EventKind::kEstablished);
  if (stage == Stage::kPassive) return;
  REQUIRE(cm().disconnect(Host::kApp, id_, network_.now) == std::errc{});
  (void)heard();
  if (stage == Stage::kDreqSent) return;
  say(proto::CmDrep{kId, ours_, {}});
  host_.expect(EventKind::kDisconnected);
  if (stage == Stage::kTimeWait) return;
  network_.run(10s);
  host_.expect(EventKind::kTimewaitExit);
}

}  // namespace roci::cm_test
