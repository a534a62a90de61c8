// Random applications on three hosts over a wire that loses, repeats, reorders and spoils, from a seed.
//
// At the end both sides of each connection agree, or the one that has it is told as soon as it speaks; and
// when the applications have gone, nothing is left. ROCI_CM_SEED=n runs that seed alone.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cm/network.h"
#include "tests/cm/raw_peer.h"

namespace {

using namespace roci::cm_test;
namespace cm = roci::emulator::cm;
using roci::proto::Qpn;
using roci::sim::Random;

struct Weather {
  const char* name;
  std::uint32_t loss, repetition, delay, damage;  // of a million
};
constexpr Weather kWeathers[] = {
    {"fair", 0, 0, 0, 0},
    {"rain", 100'000, 100'000, 300'000, 0},
    {"storm", 700'000, 200'000, 500'000, 0},
    {"acid rain", 100'000, 100'000, 300'000, 100'000},
};

enum class Phase { kNew, kConnecting, kAsked, kResponded, kAccepting, kConnected, kClosing, kOver };

struct Known {
  Phase phase = Phase::kNew;
  Qpn qpn, remote_qpn;
  std::size_t peer_host = 0;
  bool is_told_gone = false, is_exited = false, is_datagram = false;
};

class Program {
 public:
  Program(std::uint64_t seed, const Weather& weather)
      : random_(seed), weather_(weather), network_(seed), app_(kHosts) {
    network_.wire = [this](Parcel& parcel) { return fate(parcel); };
    for (std::uint8_t i = 0; i < kHosts; ++i) {
      const std::string address = "10.0.0." + std::to_string(i + 1);
      Host& host = network_.add({nic(static_cast<std::uint8_t>(i + 1), address.c_str())});
      (void)host.listen(at("0.0.0.0", kPort));
      (void)host.listen(at("0.0.0.0", kPort), 0, PortSpace::kUdp, QpType::kUd);
    }
  }

  void run() {
    const std::uint32_t steps = random_.between32(10, 80);
    for (std::uint32_t i = 0; i < steps; ++i) {
      step();
      network_.run(std::chrono::milliseconds(random_.chance(200'000) ? random_.between(0, 4000)
                                                                     : random_.between(0, 20)));
      hear();
    }
    calm_down();
    if (weather_.damage == 0) judge();
    for (const auto& host : network_.hosts())
      host->cm->close_client(Host::kApp, network_.now);
    network_.run_dry();
    for (const auto& host : network_.hosts()) {
      CHECK(host->cm->conversations() == 0);
      CHECK(host->cm->ids() == 0);
      CHECK(host->cm->next_deadline() == roci::emulator::kNever);
    }
  }

 private:
  static constexpr std::size_t kHosts = 3;
  static constexpr std::uint16_t kPort = 7;

  std::vector<Duration> fate(Parcel& parcel) {
    std::vector<Duration> copies;
    if (random_.chance(weather_.damage))
      parcel.bytes[random_.index(parcel.bytes.size())] ^= static_cast<std::byte>(random_.between(1, 255));
    const std::size_t count = random_.chance(weather_.repetition) ? 2 : 1;
    for (std::size_t i = 0; i < count; ++i) {
      if (random_.chance(weather_.loss)) continue;
      copies.push_back(random_.chance(weather_.delay)
                           ? Duration(std::chrono::milliseconds(random_.between(1, 3000)))
                           : kTransit);
    }
    return copies;
  }

  Host& host(std::size_t index) { return *network_.hosts()[index]; }
  cm::ConnectionParameters any_parameters() {
    auto all = parameters(next_qpn_++);
    all.responder_resources = static_cast<std::uint8_t>(random_.between(0, 200));
    all.initiator_depth = static_cast<std::uint8_t>(random_.between(0, 200));
    all.rnr_retry_count = static_cast<std::uint8_t>(random_.between(0, 7));
    return all;
  }

  // One deed of one application.
  void step() {
    const std::size_t index = random_.index(kHosts);
    auto& known = app_[index];
    auto& manager = *host(index).cm;
    if (known.empty() || random_.chance(300'000)) {
      const std::size_t to = random_.index(kHosts);
      const bool is_datagram = random_.chance(200'000);
      const auto created = manager.create(Host::kApp, is_datagram ? PortSpace::kUdp : PortSpace::kTcp,
                                          is_datagram ? QpType::kUd : QpType::kRc);
      REQUIRE(created.error == std::errc{});
      known[created.id].peer_host = to;
      known[created.id].is_datagram = is_datagram;
      const auto address = at(("10.0.0." + std::to_string(to + 1)).c_str(), kPort);
      REQUIRE(manager.resolve_address(Host::kApp, created.id, {}, address, 2s, network_.now) == std::errc{});
      return;
    }
    auto it = known.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_.index(known.size())));
    const IdHandle id = it->first;
    Known& self = it->second;
    if (random_.chance(80'000)) {
      REQUIRE(manager.destroy(Host::kApp, id, network_.now) == std::errc{});
      known.erase(it);
      return;
    }
    switch (self.phase) {
      case Phase::kAsked:
        if (random_.chance(200'000)) {
          REQUIRE(manager.reject(Host::kApp, id, 0, text("no"), network_.now) == std::errc{});
          self.phase = Phase::kOver;
        } else {
          const auto answer = any_parameters();
          self.qpn = answer.qpn;
          REQUIRE(manager.accept(Host::kApp, id, answer, network_.now) == std::errc{});
          self.phase = self.is_datagram ? Phase::kOver : Phase::kAccepting;
        }
        return;
      case Phase::kResponded:
        if (random_.chance(100'000)) {
          REQUIRE(manager.reject(Host::kApp, id, 0, {}, network_.now) == std::errc{});
          self.phase = Phase::kOver;
        } else {
          REQUIRE(manager.accept(Host::kApp, id, std::nullopt, network_.now) == std::errc{});
          self.phase = Phase::kConnected;
        }
        return;
      case Phase::kConnected:
        if (random_.chance(300'000)) {
          REQUIRE(manager.disconnect(Host::kApp, id, network_.now) == std::errc{});
          self.phase = Phase::kClosing;
        }
        return;
      case Phase::kNew:
      case Phase::kConnecting:
      case Phase::kAccepting:
      case Phase::kClosing:
      case Phase::kOver:
        return;
    }
  }

  void hear() {
    for (std::size_t i = 0; i < kHosts; ++i) {
      auto& events = host(i).events;
      while (!events.empty()) {
        const cm::Event event = events.front();
        events.pop_front();
        on_event(i, event);
      }
    }
  }

  void on_event(std::size_t index, const cm::Event& event) {
    auto& known = app_[index];
    CAPTURE(name_of(event.kind), index, event.id.value);
    if (event.kind != EventKind::kConnectRequest && known.count(event.id) == 0) {
      // Destroyed while the event was on its way through this test.
      return;
    }
    auto& manager = *host(index).cm;
    Known& self = known[event.id];
    switch (event.kind) {
      case EventKind::kAddrResolved:
        REQUIRE(manager.resolve_route(Host::kApp, event.id, 2s, network_.now) == std::errc{});
        return;
      case EventKind::kRouteResolved: {
        const auto ask = any_parameters();
        self.qpn = ask.qpn;
        REQUIRE(manager.connect(Host::kApp, event.id, ask, network_.now) == std::errc{});
        self.phase = Phase::kConnecting;
        return;
      }
      case EventKind::kConnectRequest: {
        CHECK(self.phase == Phase::kNew);
        self.phase = Phase::kAsked;
        const auto route = *manager.route(Host::kApp, event.id);
        self.peer_host = route.destination.ip.ipv4() % 256 - 1;
        self.is_datagram = std::holds_alternative<cm::DatagramParameters>(event.parameters);
        if (!self.is_datagram) self.remote_qpn = std::get<cm::ConnectionParameters>(event.parameters).qpn;
        return;
      }
      case EventKind::kConnectResponse:
        CHECK(self.phase == Phase::kConnecting);
        self.phase = Phase::kResponded;
        self.remote_qpn = std::get<cm::ConnectionParameters>(event.parameters).qpn;
        return;
      case EventKind::kEstablished:
        CHECK(self.phase == (self.is_datagram ? Phase::kConnecting : Phase::kAccepting));
        self.phase = self.is_datagram ? Phase::kOver : Phase::kConnected;
        return;
      case EventKind::kRejected:
        // The peer of one that closes may have forgotten it: then DISCONNECTED is what is said.
        CHECK((self.phase != Phase::kNew && self.phase != Phase::kClosing && self.phase != Phase::kOver));
        // Without loss nobody is rejected after all was agreed upon, but by who leaves.
        self.phase = Phase::kOver;
        return;
      case EventKind::kUnreachable:
        CHECK((self.phase == Phase::kConnecting || self.phase == Phase::kAccepting));
        if (!self.is_datagram) CHECK(weather_.loss + weather_.damage > 0);
        self.phase = Phase::kOver;
        return;
      case EventKind::kDisconnected:
        CHECK((self.phase == Phase::kConnected || self.phase == Phase::kClosing ||
               self.phase == Phase::kAccepting || self.phase == Phase::kResponded));
        CHECK_FALSE(self.is_told_gone);
        self.is_told_gone = true;
        self.phase = Phase::kOver;
        return;
      case EventKind::kTimewaitExit:
        CHECK(self.phase == Phase::kOver);
        CHECK_FALSE(self.is_exited);
        self.is_exited = true;
        return;
      case EventKind::kAddrError:
      case EventKind::kRouteError:
      case EventKind::kConnectError:
      case EventKind::kDeviceRemoval:
      case EventKind::kMulticastJoin:
      case EventKind::kMulticastError:
      case EventKind::kAddrChange:
        FAIL("nothing can bring this event");
    }
  }

  // Everybody answers what is asked, until all timers have run out.
  void calm_down() {
    for (int second = 0; second < 300; ++second) {
      network_.run(1s);
      hear();
      for (std::size_t i = 0; i < kHosts; ++i) {
        for (auto& [id, self] : app_[i]) {
          if (self.phase == Phase::kAsked) {
            const auto answer = any_parameters();
            self.qpn = answer.qpn;
            REQUIRE(host(i).cm->accept(Host::kApp, id, answer, network_.now) == std::errc{});
            self.phase = self.is_datagram ? Phase::kOver : Phase::kAccepting;
          } else if (self.phase == Phase::kResponded) {
            REQUIRE(host(i).cm->accept(Host::kApp, id, std::nullopt, network_.now) == std::errc{});
            self.phase = Phase::kConnected;
          }
        }
      }
    }
    network_.run_dry();
    hear();
  }

  const Known* partner(const Known& self) const {
    for (const auto& [id, other] : app_[self.peer_host])
      if (other.qpn == self.remote_qpn && !other.is_datagram) return &other;
    return nullptr;
  }

  void judge() {
    for (std::size_t i = 0; i < kHosts; ++i) {
      for (const auto& [id, self] : app_[i]) {
        CAPTURE(i, id.value, static_cast<int>(self.phase));
        CHECK((self.phase == Phase::kConnected || self.phase == Phase::kOver));
        if (self.phase != Phase::kConnected) continue;
        const Known* const other = partner(self);
        if (other == nullptr || other->phase == Phase::kOver) {
          // The other is gone, and what told of it was lost.
          CHECK(weather_.loss > 0);
          continue;
        }
        CHECK(other->phase == Phase::kConnected);
        CHECK(other->remote_qpn == self.qpn);
        ++agreed_;
        check_attributes(i, id, self, *other);
      }
    }
  }

  void check_attributes(std::size_t index, IdHandle id, const Known& self, const Known& other) {
    IdHandle other_id;
    for (const auto& [candidate, known] : app_[self.peer_host])
      if (&known == &other) other_id = candidate;
    const auto get = [&](std::size_t on, IdHandle which, QpState state) {
      const auto answer = host(on).cm->qp_attributes(Host::kApp, which, state);
      CHECK(answer.error == std::errc{});
      return answer.transition.attributes;
    };
    const auto rtr = get(index, id, QpState::kRtr);
    const auto rts = get(self.peer_host, other_id, QpState::kRts);
    CHECK(rtr.rq_psn == rts.sq_psn);
    CHECK(rtr.max_dest_rd_atomic >= rts.max_rd_atomic);
    CHECK(rtr.max_dest_rd_atomic <= 128);
    CHECK(rtr.dest_qpn == other.qpn);
    CHECK(rtr.path_mtu_code == 5);
  }

  Random random_;
  const Weather& weather_;
  Network network_;
  std::vector<std::map<IdHandle, Known>> app_;
  std::uint32_t next_qpn_ = 0x100;

 public:
  std::size_t agreed_ = 0;
};

}  // namespace

TEST_CASE("random applications agree, whatever the weather") {
  std::uint64_t first = 1, count = 1000;
  if (const char* const one = std::getenv("ROCI_CM_SEED")) {
    first = std::strtoull(one, nullptr, 0);
    count = 1;
  }
  for (const Weather& weather : kWeathers) {
    std::size_t agreed = 0;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      CAPTURE(weather.name, "ROCI_CM_SEED=" + std::to_string(seed));
      Program program(seed, weather);
      program.run();
      agreed += program.agreed_;
    }
    CAPTURE(weather.name);
    if (weather.damage == 0 && count > 1) CHECK(agreed > count / 10);  // it was about something
  }
}

TEST_CASE("the same seed gives the same MADs and events") {
  const auto run = [] {
    Network network(7);
    Host& client = network.add({nic(1, "10.0.0.1")});
    Host& server = network.add({nic(2, "10.0.0.2")});
    std::vector<std::byte> all;
    network.wire = [&](Parcel& parcel) {
      all.insert(all.end(), parcel.bytes.begin(), parcel.bytes.end());
      return std::vector{kTransit};
    };
    (void)connect(network, client, server, at("10.0.0.2", 7));
    return all;
  };
  CHECK(run() == run());
}
