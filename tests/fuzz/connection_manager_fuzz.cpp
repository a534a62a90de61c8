// Fuzz target: MADs from two peers at a connection manager, between the deeds of an application and time.
//
// The input is a row of deeds. What the peers say is a whole message with some of its bytes changed, most
// often one about a conversation that there is. Aborts where a bound is passed, where an event is of no id
// that the client has, or where anything is left once the client has gone and time has passed.
#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "emulator/cm/connection_manager.h"
#include "proto/cm.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"

namespace {

using namespace roci;
using namespace roci::emulator;
using cm::IdHandle;
using proto::CommunicationId;
using roci::fuzz::Input;
using roci::fuzz::InputReader;
using roci::fuzz::require;

constexpr std::size_t kMaxDeeds = 200;
constexpr cm::ClientId kClient{1};
constexpr std::uint16_t kPort = 7;
constexpr std::array kStates = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts};
const proto::Gid kOwn = proto::Gid::from_ipv4(0x0A000001);
const std::array kPeers = {proto::Gid::from_ipv4(0x0A000002), proto::Gid::from_ipv4(0x0A000003)};

enum class Deed : std::uint8_t {
  kMessage,
  kMessageAgain,
  kRaw,
  kConnect,
  kAnswer,
  kEnd,
  kDestroy,
  kTime,
};

NicConfig nic() {
  NicConfig config;
  config.mac.bytes = {2, 0, 0, 0, 0, 1};
  config.addresses = {{kOwn, 24}};
  return config;
}
cm::Limits limits() {
  cm::Limits small;
  small.ids = 64;
  small.ids_of_client = 48;
  small.backlog = 8;
  small.time_waits = 16;
  small.mads = 32;
  return small;
}

class Scene {
 public:
  explicit Scene(InputReader& in) : in_(in), manager_({nic()}, {1, 2, 3, 4}, limits()) {
    manager_.open_client(kClient, 1);
    listen(cm::PortSpace::kTcp, QpType::kRc);
    listen(cm::PortSpace::kUdp, QpType::kUd);
  }

  void run() {
    for (std::size_t i = 0; i < kMaxDeeds && !in_.is_empty(); ++i) {
      deed(static_cast<Deed>(in_.choice(8)));
      collect();
      require(manager_.ids() <= limits().ids, "ids are bounded");
      require(manager_.conversations() <= limits().ids + limits().time_waits, "conversations are bounded");
    }
    manager_.close_client(kClient, now_);
    require(!manager_.take_event(), "no event of an id that is gone");
    for (int i = 0; i < 10'000 && manager_.next_deadline() != kNever; ++i) {
      now_ = std::max(now_, manager_.next_deadline());
      manager_.on_timers(now_);
      while (manager_.take_mad()) {
      }
    }
    require(manager_.next_deadline() == kNever, "time ends everything");
    require(manager_.conversations() == 0 && manager_.ids() == 0, "nothing is left");
  }

 private:
  void listen(cm::PortSpace space, QpType type) {
    const auto created = manager_.create(kClient, space, type);
    require(manager_.bind(kClient, created.id, {proto::Gid{}, kPort}) == std::errc{}, "the port is free");
    require(manager_.listen(kClient, created.id, 0) == std::errc{}, "and can be listened at");
    ids_.push_back(created.id);
  }

  void collect() {
    while (const auto asked = manager_.take_neighbour_request())
      manager_.on_neighbour(asked->id, in_.choice(8) == 0 ? std::errc::host_unreachable : std::errc{}, now_);
    while (const auto mad = manager_.take_mad()) {
      const auto parsed = proto::parse_cm(mad->bytes);
      require(parsed.has_value(), "what goes out can be read");
      std::visit(
          [&](const auto& message) {
            if constexpr (requires { message.local_comm_id; }) {
              if (message.local_comm_id != CommunicationId{}) heard_ = message.local_comm_id;
            } else if constexpr (std::is_same_v<std::decay_t<decltype(message)>, proto::CmSidrReq>) {
              heard_ = message.request_id;
            }
          },
          parsed->message);
    }
    while (const auto event = manager_.take_event()) {
      require(event->client == kClient, "an event is for who has the id");
      if (event->kind == cm::EventKind::kConnectRequest) {
        ids_.push_back(event->id);
      } else {
        require(std::count(ids_.begin(), ids_.end(), event->id) == 1, "an event is of an id that there is");
      }
    }
  }

  template <class Request>
  void address(Request& request, const proto::Gid& peer) {
    const proto::IpCmHeader header{proto::IpVersion::kIpv4, 99, peer, kOwn};
    header.emit(std::span{request.private_data}.template first<proto::IpCmHeader::kSize>());
  }

  // Of the kind that `choice` says, as it would be said by a peer that means well.
  proto::CmMessage message(std::size_t choice, const proto::Gid& peer) {
    const CommunicationId theirs{1u + in_.byte() % 4};
    const proto::Qpn qpn{16u + in_.byte() % 4};
    switch (choice) {
      case 0:
      case 1: {
        proto::CmReq req;
        req.local_comm_id = theirs;
        req.local_qpn = qpn;
        req.service_id = proto::service_id_of(proto::CmPortSpace::kTcp, kPort);
        req.path_packet_payload_mtu = static_cast<std::uint8_t>(1 + in_.choice(5));
        req.primary.local_gid = peer;
        req.primary.remote_gid = kOwn;
        address(req, peer);
        return req;
      }
      case 2: {
        proto::CmSidrReq req;
        req.request_id = theirs;
        req.service_id = proto::service_id_of(proto::CmPortSpace::kUdp, kPort);
        address(req, peer);
        return req;
      }
      case 3:
        return proto::CmMra{
            theirs, heard_, static_cast<proto::CmMraed>(in_.choice(3)), proto::CmTimeout{24}, {}};
      case 4: {
        proto::CmRej rej;
        rej.local_comm_id = theirs;
        rej.remote_comm_id = heard_;
        rej.reason = static_cast<proto::CmRejectReason>(in_.byte());
        return rej;
      }
      case 5: {
        proto::CmRep rep;
        rep.local_comm_id = theirs;
        rep.remote_comm_id = heard_;
        rep.local_qpn = qpn;
        return rep;
      }
      case 6:
        return proto::CmRtu{theirs, heard_, {}};
      case 7:
        return proto::CmDreq{theirs, heard_, proto::Qpn{0x200}, {}};
      case 8:
        return proto::CmDrep{theirs, heard_, {}};
      case 9: {
        proto::CmSidrRep rep;
        rep.request_id = heard_;
        rep.qpn = qpn;
        return rep;
      }
      default: {
        proto::CmLap lap;
        lap.local_comm_id = theirs;
        lap.remote_comm_id = heard_;
        return lap;
      }
    }
  }

  void say(const proto::Gid& peer, std::uint8_t changes) {
    for (std::uint8_t i = 0; i < changes % 4; ++i) {
      const std::size_t at = in_.byte();
      mad_[at] = static_cast<std::byte>(in_.byte());
    }
    const std::uint8_t odd = in_.byte();  // rarely a wrong NIC, queue pair or address
    manager_.on_mad({NicId{static_cast<std::uint8_t>(odd == 255)}, peer, odd == 254 ? peer : kOwn,
                     odd == 253 ? proto::Qpn{5} : proto::kQpnGsi, mad_},
                    now_);
  }

  IdHandle any_id() { return ids_.empty() ? IdHandle{} : ids_[in_.byte() % ids_.size()]; }

  cm::ConnectionParameters any_parameters() {
    cm::ConnectionParameters all;
    all.qpn = proto::Qpn{0x200};
    all.responder_resources = in_.byte();
    all.initiator_depth = in_.byte();
    all.private_data.length_bytes = in_.byte();
    return all;
  }

  void deed(Deed what) {
    const proto::Gid& peer = kPeers[in_.choice(kPeers.size())];
    switch (what) {
      case Deed::kMessage: {
        const auto one = message(in_.choice(11), peer);
        proto::write_cm({}, one, mad_);
        return say(peer, in_.byte());
      }
      case Deed::kMessageAgain:
        return say(peer, 0);
      case Deed::kRaw:
        in_.bytes(mad_);
        return say(peer, 0);
      case Deed::kConnect: {
        const bool is_datagram = in_.choice(4) == 0;
        const auto created = manager_.create(kClient, is_datagram ? cm::PortSpace::kUdp : cm::PortSpace::kTcp,
                                             is_datagram ? QpType::kUd : QpType::kRc);
        if (created.error != std::errc{}) return;
        ids_.push_back(created.id);
        (void)manager_.resolve_address(kClient, created.id, std::nullopt, {peer, kPort},
                                       std::chrono::seconds(1), now_);
        collect();
        (void)manager_.resolve_route(kClient, created.id, std::chrono::seconds(1), now_);
        (void)manager_.connect(kClient, created.id, any_parameters(), now_);
        return;
      }
      case Deed::kAnswer: {
        const IdHandle id = any_id();
        if (in_.choice(4) == 0) {
          (void)manager_.accept(kClient, id, std::nullopt, now_);
        } else {
          (void)manager_.accept(kClient, id, any_parameters(), now_);
        }
        const auto state = kStates[in_.choice(kStates.size())];
        (void)manager_.qp_attributes(kClient, id, state);
        return;
      }
      case Deed::kEnd: {
        const IdHandle id = any_id();
        switch (in_.choice(3)) {
          case 0:
            (void)manager_.reject(kClient, id, in_.byte(), any_parameters().private_data, now_);
            return;
          case 1:
            (void)manager_.disconnect(kClient, id, now_);
            return;
          default:
            (void)manager_.notify_established(kClient, id, now_);
            return;
        }
      }
      case Deed::kDestroy: {
        const IdHandle id = any_id();
        if (in_.choice(2) == 0 || manager_.destroy(kClient, id, now_) != std::errc{}) return;
        ids_.erase(std::remove(ids_.begin(), ids_.end(), id), ids_.end());
        return;
      }
      case Deed::kTime:
        now_ += std::chrono::milliseconds(1u << in_.choice(17));
        manager_.on_timers(now_);
        return;
    }
  }

  InputReader& in_;
  cm::ConnectionManager manager_;
  Time now_{};
  std::vector<IdHandle> ids_;
  CommunicationId heard_;  // what the manager called itself last
  std::array<std::byte, proto::kMadBytes> mad_{};
};

// Lives of connections as rows of deeds; the reader's zeros behind the end do the rest.
std::vector<Input> lives() {
  constexpr std::uint8_t kMessage = 0, kConnect = 3, kAnswer = 4, kEnd = 5, kDestroy = 6, kTime = 7;
  const auto message = [](std::uint8_t kind) {  // theirs 1, QPN 16; a REQ has an MTU, MRA and REJ one more
    Input deed{kMessage, 0, kind, 0, 0};
    if (kind <= 1 || kind == 3 || kind == 4) deed.push_back(0);
    deed.insert(deed.end(), {0, 0});
    return deed;
  };
  const auto row = [](std::initializer_list<Input> deeds) {
    Input all;
    for (const Input& deed : deeds)
      all.insert(all.end(), deed.begin(), deed.end());
    return all;
  };
  const auto accept = [](std::uint8_t id) { return Input{kAnswer, 0, id, 1, 1, 1, 0, 3}; };
  const Input connect{kConnect, 0, 1, 1, 1, 0}, connect_datagram{kConnect, 0, 0, 1, 1, 0};
  const Input later{kTime, 0, 16}, wait{kTime, 0, 10};
  return {
      row({message(0), accept(2), message(6), message(7), later}),
      row({message(0), message(0), accept(2), message(0), message(6), {kEnd, 0, 2, 1}, message(8), later}),
      row({connect, message(5), accept(2), message(5), message(7), message(7), later}),
      row({connect, wait, message(3), message(4), later}),
      row({message(2), accept(2), message(2), later}),
      row({connect_datagram, wait, message(9), later}),
      row({message(0), {kDestroy, 0, 2, 1}, message(6), message(10), later}),
  };
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {false, lives};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  InputReader in({data, size});
  Scene scene(in);
  scene.run();
  return 0;
}
