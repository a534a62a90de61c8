// Exchanges of Linux's connection managers (pcaps/cm-*.pcap): we take each side in turn, hear what the other
// one said, and say what that side said. Where we differ by intent, a list below has the field and the
// reason.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "proto/packet.h"
#include "tests/cm/network.h"
#include "tests/proto/captures.h"

namespace {

using namespace roci::cm_test;
namespace proto = roci::proto;
namespace cm = roci::emulator::cm;

// "REQ.starting_psn" and so on.
const std::map<std::string, const char*> kDifferences = {
    {"REQ.transaction_id", "chosen by who asks"},
    {"REQ.local_comm_id", "random"},
    {"REQ.starting_psn", "random"},
    {"REQ.local_cm_response_timeout", "1.07 s; Linux 4.3 s"},
    {"REQ.remote_cm_response_timeout", "1.07 s; Linux 4.3 s"},
    {"REQ.primary.local_ack_timeout", "packet lifetime 0.27 s; Linux 1.07 s"},
    {"REQ.primary.flow_label", "0: the queue pairs' numbers make the UDP port; Linux hashes its ports"},
    {"REQ.primary.packet_rate", "100 Gb/s, as the port says of itself"},
    {"REP.local_comm_id", "random"},
    {"REP.starting_psn", "random"},
    {"RTU.local_comm_id", "as in REQ"},
    {"DREQ.transaction_id", "chosen by who asks"},
    {"DREQ.local_comm_id", "as in REQ or REP"},
    {"DREP.local_comm_id", "as in REQ or REP"},
    {"SIDR_REQ.transaction_id", "chosen by who asks"},
    {"SIDR_REQ.request_id", "random"},
};

struct Spoken {
  proto::Gid source, destination;
  proto::CmMad mad;
};

std::vector<Spoken> read(const std::filesystem::path& path) {
  std::vector<Spoken> all;
  const auto capture = proto::test::read_capture(path);
  for (const auto& frame : capture.frames) {
    const auto packet = proto::parse(frame, capture.link);
    if (!packet || packet->bth.destination != proto::kQpnGsi) continue;  // IGMP and the like; data
    const auto parsed = proto::parse_cm(packet->payload);
    REQUIRE(parsed);
    const auto& v4 = packet->ipv4;
    all.push_back({v4 ? proto::Gid::from_ipv4(v4->source) : packet->ipv6->source,
                   v4 ? proto::Gid::from_ipv4(v4->destination) : packet->ipv6->destination, *parsed});
  }
  return all;
}

// ---- fields, by name

using Fields = std::map<std::string, std::string>;
struct FieldList {
  Fields fields;
  std::string prefix;

  template <class T>
  void add(const std::string& name, const T& value) {
    std::string& text = fields[prefix + name];
    if constexpr (requires { value.value(); }) {
      text = std::to_string(value.value());
    } else if constexpr (requires { value.code(); }) {
      text = std::to_string(value.code());
    } else if constexpr (requires { value.begin(); }) {
      for (const auto byte : value)
        text += std::to_string(static_cast<unsigned>(byte)) + " ";
    } else {
      text = std::to_string(static_cast<std::uint64_t>(value));
    }
  }
};
#define ADD(member) list.add(#member, m.member)

void list_fields(FieldList& list, const proto::CmReq& m) {
  ADD(local_comm_id), ADD(vendor_id), ADD(service_id), ADD(local_ca_guid), ADD(local_qkey), ADD(local_qpn);
  ADD(responder_resources), ADD(local_eecn), ADD(initiator_depth), ADD(remote_eecn);
  ADD(remote_cm_response_timeout), ADD(transport_service_type), ADD(end_to_end_flow_control);
  ADD(starting_psn), ADD(local_cm_response_timeout), ADD(retry_count), ADD(partition_key);
  ADD(path_packet_payload_mtu), ADD(rdc_exists), ADD(rnr_retry_count), ADD(max_cm_retries), ADD(srq);
  ADD(extended_transport_type), ADD(private_data);
  ADD(primary.local_lid), ADD(primary.remote_lid), ADD(primary.local_gid.bytes),
      ADD(primary.remote_gid.bytes);
  ADD(primary.flow_label), ADD(primary.packet_rate), ADD(primary.traffic_class), ADD(primary.hop_limit);
  ADD(primary.sl), ADD(primary.is_subnet_local), ADD(primary.local_ack_timeout);
  list.add("alternate", static_cast<int>(m.alternate == proto::CmPath{}));
}
void list_fields(FieldList& list, const proto::CmRep& m) {
  ADD(local_comm_id), ADD(remote_comm_id), ADD(local_qkey), ADD(local_qpn), ADD(local_eecn),
      ADD(starting_psn);
  ADD(vendor_id), ADD(responder_resources), ADD(initiator_depth), ADD(target_ack_delay);
  ADD(failover_accepted), ADD(end_to_end_flow_control), ADD(rnr_retry_count), ADD(srq), ADD(local_ca_guid);
  ADD(private_data);
}
void list_fields(FieldList& list, const proto::CmRej& m) {
  ADD(local_comm_id), ADD(remote_comm_id), ADD(message_rejected), ADD(reject_info_length_bytes), ADD(reason);
  ADD(additional_reject_information), ADD(private_data);
}
void list_fields(FieldList& list, const proto::CmRtu& m) {
  ADD(local_comm_id), ADD(remote_comm_id), ADD(private_data);
}
void list_fields(FieldList& list, const proto::CmDreq& m) {
  ADD(local_comm_id), ADD(remote_comm_id), ADD(remote_qpn_eecn), ADD(private_data);
}
void list_fields(FieldList& list, const proto::CmDrep& m) {
  ADD(local_comm_id), ADD(remote_comm_id), ADD(private_data);
}
void list_fields(FieldList& list, const proto::CmSidrReq& m) {
  ADD(request_id), ADD(partition_key), ADD(service_id), ADD(private_data);
}
void list_fields(FieldList& list, const proto::CmSidrRep& m) {
  ADD(request_id), ADD(status), ADD(additional_information_length_bytes), ADD(vendor_id), ADD(qpn);
  ADD(service_id), ADD(qkey), ADD(additional_information), ADD(private_data);
}
template <class Message>
void list_fields(FieldList&, const Message&) {
  FAIL("no capture has this message");
}
#undef ADD

Fields fields_of(const proto::CmMad& mad) {
  FieldList list;
  list.prefix = std::string(proto::name_of(proto::attribute_of(mad.message))) + ".";
  list.add("transaction_id", mad.header.transaction_id);
  std::visit([&](const auto& message) { list_fields(list, message); }, mad.message);
  return list.fields;
}

// ---- one side, played again

cm::ConnectionParameters parameters_of(std::span<const std::byte> data, proto::Qpn qpn) {
  cm::ConnectionParameters all;
  all.qpn = qpn;
  // Zeros at the end are padding, as far as anybody can tell.
  while (!data.empty() && data.back() == std::byte{0})
    data = data.first(data.size() - 1);
  std::copy(data.begin(), data.end(), all.private_data.bytes.begin());
  all.private_data.length_bytes = static_cast<std::uint8_t>(data.size());
  return all;
}

class Side {
 public:
  Side(const proto::Gid& self, const std::vector<Spoken>& all) : self_(self), all_(all) {
    const bool ipv4 = self.is_ipv4();
    NicConfig config = nic(1, ipv4 ? "10.77.0.11" : "fd77::11");
    config.mac.bytes = {0x52, 0x54, 0, 0x77, 0, static_cast<std::uint8_t>(is_first() ? 1 : 2)};
    config.addresses[0].gid = self;
    host_ = &network_.add({config});
    network_.wire = [this](Parcel& parcel) {
      said_.push_back(parcel.parse());
      return std::vector<Duration>{};
    };
  }

  void play() {
    std::vector<Spoken> order = all_;
    // Both disconnected at once: what the other said was not heard yet.
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      const bool is_crossing = std::holds_alternative<proto::CmDreq>(order[i].mad.message) &&
                               std::holds_alternative<proto::CmDreq>(order[i + 1].mad.message) &&
                               order[i].source != self_ && order[i + 1].source == self_;
      if (is_crossing) std::swap(order[i], order[i + 1]);
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Spoken& one = order[i];
      // What is said again was lost the first time.
      const auto first_after = order.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      const bool is_lost = std::any_of(first_after, order.end(), [&](const Spoken& later) {
        return later.source == one.source && later.mad.message == one.mad.message;
      });
      if (one.source != self_) {
        if (is_lost) continue;
        prepare(one.mad.message);
        hear(one);
      } else {
        check(one);
      }
    }
    CHECK(said_.empty());
  }
  std::set<std::string> differences;

 private:
  void check(const Spoken& one) {
    CAPTURE(std::string(proto::name_of(proto::attribute_of(one.mad.message))));
    std::visit([&](const auto& message) { speak(message); }, one.mad.message);
    network_.settle();
    if (said_.empty()) network_.run(manager().next_deadline() - network_.now);  // what was lost is repeated
    REQUIRE_FALSE(said_.empty());
    compare(one.mad, said_.front());
    said_.erase(said_.begin());
  }
  [[nodiscard]] bool is_first() const { return self_.bytes[15] == 11 || self_.bytes[15] == 0x11; }
  cm::ConnectionManager& manager() { return *host_->cm; }
  static constexpr ClientId kApp = Host::kApp;

  // The application of the other capture's side: each of its deeds at the time of the MAD that it led to.
  void speak(const proto::CmReq& req) {
    if (names_.count(req.local_comm_id) != 0) return;  // again: time does it
    const std::span<const std::byte> data{req.private_data};
    const auto header = *proto::IpCmHeader::parse(data.first<proto::IpCmHeader::kSize>());
    const IdHandle id = host_->create();
    const auto port = proto::ip_service_of(req.service_id)->port;
    REQUIRE(manager().resolve_address(kApp, id, SocketAddress{header.source, header.source_port},
                                      {header.destination, port}, 2s, network_.now) == std::errc{});
    host_->expect(EventKind::kAddrResolved);
    REQUIRE(manager().resolve_route(kApp, id, 2s, network_.now) == std::errc{});
    host_->expect(EventKind::kRouteResolved);
    auto ask = parameters_of(data.subspan(proto::IpCmHeader::kSize), req.local_qpn);
    ask.responder_resources = req.responder_resources;
    ask.initiator_depth = req.initiator_depth;
    ask.retry_count = req.retry_count;
    ask.rnr_retry_count = req.rnr_retry_count;
    ask.flow_control = req.end_to_end_flow_control ? 1 : 0;
    ask.has_srq = req.srq;
    REQUIRE(manager().connect(kApp, id, ask, network_.now) == std::errc{});
    ids_[req.local_comm_id] = id;
    is_named_after_ = req.local_comm_id;
  }
  void speak(const proto::CmSidrReq& req) {
    const std::span<const std::byte> data{req.private_data};
    const auto header = *proto::IpCmHeader::parse(data.first<proto::IpCmHeader::kSize>());
    const IdHandle id = host_->create(PortSpace::kUdp, QpType::kUd);
    const auto port = proto::ip_service_of(req.service_id)->port;
    REQUIRE(manager().resolve_address(kApp, id, SocketAddress{header.source, header.source_port},
                                      {header.destination, port}, 2s, network_.now) == std::errc{});
    host_->expect(EventKind::kAddrResolved);
    REQUIRE(manager().resolve_route(kApp, id, 2s, network_.now) == std::errc{});
    host_->expect(EventKind::kRouteResolved);
    const auto ask = parameters_of(data.subspan(proto::IpCmHeader::kSize), proto::Qpn{});
    REQUIRE(manager().connect(kApp, id, ask, network_.now) == std::errc{});
    is_named_after_ = req.request_id;
  }
  void speak(const proto::CmRep& rep) {
    if (names_.count(rep.local_comm_id) != 0) return;
    auto answer = parameters_of(rep.private_data, rep.local_qpn);
    answer.responder_resources = rep.responder_resources;
    answer.initiator_depth = rep.initiator_depth;
    answer.rnr_retry_count = rep.rnr_retry_count;
    answer.flow_control = rep.end_to_end_flow_control ? 1 : 0;
    answer.has_srq = rep.srq;
    const IdHandle id = requests_.at(rep.remote_comm_id);
    REQUIRE(manager().accept(kApp, id, answer, network_.now) == std::errc{});
    ids_[rep.local_comm_id] = id;
    is_named_after_ = rep.local_comm_id;
  }
  void speak(const proto::CmSidrRep& rep) {
    const auto answer = parameters_of(rep.private_data, rep.qpn);
    REQUIRE(manager().accept(kApp, requests_.at(rep.request_id), answer, network_.now) == std::errc{});
  }
  void speak(const proto::CmRtu& rtu) {
    host_->expect(EventKind::kConnectResponse);
    REQUIRE(manager().accept(kApp, ids_.at(rtu.local_comm_id), std::nullopt, network_.now) == std::errc{});
  }
  void speak(const proto::CmDreq& dreq) {
    REQUIRE(manager().disconnect(kApp, ids_.at(dreq.local_comm_id), network_.now) == std::errc{});
  }
  template <class Message>
  void speak(const Message&) {}  // DREP and REJ need no application

  // Somebody listens, unless the capture says that nobody did.
  void prepare(const proto::CmMessage& message) {
    const bool is_refused = std::any_of(all_.begin(), all_.end(), [](const Spoken& one) {
      return std::holds_alternative<proto::CmRej>(one.mad.message);
    });
    if (is_listening_ || is_refused) return;
    const auto listen = [&](proto::ServiceId service, PortSpace space, QpType type) {
      (void)host_->listen({proto::Gid{}, proto::ip_service_of(service)->port}, 0, space, type);
      is_listening_ = true;
    };
    if (const auto* const req = std::get_if<proto::CmReq>(&message))
      listen(req->service_id, PortSpace::kTcp, QpType::kRc);
    if (const auto* const req = std::get_if<proto::CmSidrReq>(&message))
      listen(req->service_id, PortSpace::kUdp, QpType::kUd);
  }

  // What the peer said to the other one, with our names instead of its.
  void hear(const Spoken& one) {
    Spoken changed = one;
    const auto rename = [&](proto::CommunicationId& id) {
      const auto found = names_.find(id);
      if (found != names_.end()) id = found->second;
    };
    std::visit(
        [&](auto& message) {
          if constexpr (requires { message.remote_comm_id; }) rename(message.remote_comm_id);
          if constexpr (std::is_same_v<std::decay_t<decltype(message)>, proto::CmSidrRep>)
            rename(message.request_id);
        },
        changed.mad.message);
    Parcel parcel{one.source, one.destination, {}};
    proto::write_cm(changed.mad.header, changed.mad.message, parcel.bytes);
    network_.deliver_now(*host_, parcel);
    network_.settle();
    proto::CommunicationId asked_by;
    if (const auto* const req = std::get_if<proto::CmReq>(&one.mad.message)) asked_by = req->local_comm_id;
    if (const auto* const req = std::get_if<proto::CmSidrReq>(&one.mad.message)) asked_by = req->request_id;
    for (; asked_by != proto::CommunicationId{} && !host_->events.empty(); host_->events.pop_front())
      if (host_->events.front().kind == EventKind::kConnectRequest)
        requests_[asked_by] = host_->events.front().id;
  }

  void compare(const proto::CmMad& theirs, const proto::CmMad& ours) {
    REQUIRE(proto::attribute_of(theirs.message) == proto::attribute_of(ours.message));
    std::visit(
        [&](const auto& message) {
          if constexpr (requires { message.local_comm_id; }) {
            if (is_named_after_ != proto::CommunicationId{}) names_[is_named_after_] = message.local_comm_id;
          }
          if constexpr (std::is_same_v<std::decay_t<decltype(message)>, proto::CmSidrReq>)
            names_[is_named_after_] = message.request_id;
        },
        ours.message);
    is_named_after_ = {};
    const Fields expected = fields_of(theirs), got = fields_of(ours);
    REQUIRE(expected.size() == got.size());
    for (const auto& [name, value] : expected) {
      if (got.at(name) == value) continue;
      differences.insert(name);
      CAPTURE(name, value, got.at(name));
      CHECK(kDifferences.count(name) == 1);
    }
  }

  proto::Gid self_;
  const std::vector<Spoken>& all_;
  Network network_;
  Host* host_ = nullptr;
  std::vector<proto::CmMad> said_;
  std::map<proto::CommunicationId, proto::CommunicationId> names_;  // of the side that we play, to ours
  std::map<proto::CommunicationId, IdHandle> ids_;                  // of that side
  std::map<proto::CommunicationId, IdHandle> requests_;             // of the peer
  proto::CommunicationId is_named_after_;
  bool is_listening_ = false;
};

}  // namespace

TEST_CASE("we say what Linux says, on both sides of each exchange") {
  std::set<std::string> differences;
  std::size_t played = 0;
  for (const auto& path : proto::test::captures_in(ROCI_PCAPS)) {
    if (path.filename().string().rfind("cm-", 0) != 0) continue;
    const auto all = read(path);
    if (all.empty()) continue;  // mckey asks nobody
    for (const proto::Gid& self : {all[0].source, all[0].destination}) {
      CAPTURE(path.filename().string(), self == all[0].source);
      Side side(self, all);
      side.play();
      differences.insert(side.differences.begin(), side.differences.end());
      ++played;
    }
  }
  CHECK(played == 16);
  // The list is not longer than what was seen.
  for (const auto& [name, why] : kDifferences) {
    CAPTURE(name, why);
    CHECK(differences.count(name) == 1);
  }
}
