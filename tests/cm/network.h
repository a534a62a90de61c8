// Hosts with connection managers, and a wire between them, in virtual time.
//
// A test says what happens to each MAD on the wire (Wire); what applications do, it does itself. Test code
// only. Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/cm/connection_manager.h"
#include "proto/cm.h"
#include "tests/sim/random.h"

namespace roci::cm_test {

using namespace std::chrono_literals;
namespace cm = emulator::cm;
using cm::ClientId;
using cm::EventKind;
using cm::IdHandle;
using cm::PortSpace;
using cm::SocketAddress;
using emulator::Duration;
using emulator::NicConfig;
using emulator::NicId;
using emulator::QpState;
using emulator::QpType;
using emulator::Time;

// "10.0.0.1" or "fd00::1"; aborts on what is neither.
[[nodiscard]] proto::Gid ip(const char* text);
[[nodiscard]] SocketAddress at(const char* text, std::uint16_t port);
// A NIC with one address of /24 or /64, and a MAC that ends in `number`.
[[nodiscard]] NicConfig nic(std::uint8_t number, const char* address, std::uint32_t mtu_bytes = 4200);
[[nodiscard]] cm::PrivateData text(const char* words);
[[nodiscard]] cm::ConnectionParameters parameters(std::uint32_t qpn, const char* words = "");
template <class Message>
[[nodiscard]] cm::OutgoingMad mad(const Message& message, std::uint64_t transaction_id = 1) {
  cm::OutgoingMad out;
  proto::MadHeader header;
  header.transaction_id = transaction_id;
  proto::write_cm(header, message, out.bytes);
  return out;
}

// A MAD on its way.
struct Parcel {
  proto::Gid source, destination;
  std::array<std::byte, proto::kMadBytes> bytes{};

  [[nodiscard]] proto::CmMad parse() const { return proto::parse_cm(bytes).value(); }
  [[nodiscard]] proto::CmAttribute attribute() const { return proto::attribute_of(parse().message); }
};

// What becomes of a MAD: after how long each copy arrives. It may change the bytes.
using Wire = std::function<std::vector<Duration>(Parcel&)>;
inline constexpr Duration kTransit = std::chrono::microseconds(10);
[[nodiscard]] inline std::vector<Duration> deliver(Parcel&) { return {kTransit}; }

class Network;

// One manager and the clients 1 (all NICs) and more, as a test opens them.
struct Host {
  std::unique_ptr<cm::ConnectionManager> cm;
  std::vector<NicConfig> nics;
  std::deque<cm::Event> events;
  Network* network = nullptr;
  static constexpr ClientId kApp{1};

  [[nodiscard]] IdHandle create(PortSpace space = PortSpace::kTcp, QpType type = QpType::kRc);
  [[nodiscard]] IdHandle listen(const SocketAddress& source, std::uint32_t backlog = 0,
                                PortSpace space = PortSpace::kTcp, QpType type = QpType::kRc);
  // Address and route, up to where connect() may come.
  [[nodiscard]] IdHandle resolve(const SocketAddress& destination, PortSpace space = PortSpace::kTcp,
                                 QpType type = QpType::kRc);
  // The next event, which is of this kind; the test fails otherwise.
  cm::Event expect(EventKind kind);
  void destroy(IdHandle id);
};

class Network {
 public:
  Time now{};
  Wire wire = deliver;
  std::vector<proto::CmAttribute> log;  // what was sent, lost or not

  explicit Network(std::uint64_t seed = 1) : seed_(seed) {}
  Host& add(std::vector<NicConfig> nics, cm::Limits limits = {});
  static constexpr std::uint16_t kPort = 7174;

  // Takes what the managers have to send and to tell, and delivers what is due.
  void settle();
  // Lets time pass, from deadline to deadline.
  void run(Duration time);
  // Until nothing is under way and no timer runs, or `most` is over.
  void run_dry(Duration most = std::chrono::hours(1));
  // Until the host has an event.
  void await(const Host& host, Duration most = std::chrono::minutes(2));
  void deliver_now(Host& host, const Parcel& parcel, NicId nic = {}, proto::Qpn source_qpn = proto::kQpnGsi);
  [[nodiscard]] std::vector<std::unique_ptr<Host>>& hosts() { return hosts_; }
  bool answers_neighbours = true;

 private:
  bool collect();
  [[nodiscard]] Time next() const;

  std::uint64_t seed_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::multimap<Time, Parcel> under_way_;
};

// Client and server, connected: what a test of the later life of a connection starts from.
struct Connected {
  IdHandle client, listener, server;
};
[[nodiscard]] Connected connect(Network& network, Host& client, Host& server, const SocketAddress& to,
                                std::uint32_t client_qpn = 0x100, std::uint32_t server_qpn = 0x200);

}  // namespace roci::cm_test
