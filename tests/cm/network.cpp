#include "tests/cm/network.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <catch2/catch.hpp>

namespace roci::cm_test {

proto::Gid ip(const char* text) {
  proto::Gid gid;
  in_addr v4{};
  if (inet_pton(AF_INET, text, &v4) == 1) return proto::Gid::from_ipv4(ntohl(v4.s_addr));
  if (inet_pton(AF_INET6, text, gid.bytes.data()) != 1) std::abort();
  return gid;
}

SocketAddress at(const char* text, std::uint16_t port) { return {ip(text), port}; }

NicConfig nic(std::uint8_t number, const char* address, std::uint32_t mtu_bytes) {
  NicConfig config;
  config.name = "rxe0";
  config.mac.bytes = {2, 0, 0, 0, 0, number};
  const proto::Gid gid = ip(address);
  config.addresses = {{gid, static_cast<std::uint8_t>(gid.is_ipv4() ? 24 : 64)}};
  config.mtu_bytes = mtu_bytes;
  return config;
}

cm::PrivateData text(const char* words) {
  cm::PrivateData data;
  data.length_bytes = static_cast<std::uint8_t>(std::strlen(words));
  std::memcpy(data.bytes.data(), words, data.length_bytes);
  return data;
}

cm::ConnectionParameters parameters(std::uint32_t qpn, const char* words) {
  cm::ConnectionParameters all;
  all.qpn = proto::Qpn{qpn};
  all.responder_resources = 4;
  all.initiator_depth = 2;
  all.retry_count = 6;
  all.rnr_retry_count = 5;
  all.private_data = text(words);
  return all;
}

// ---- hosts -----------------------------------------------------------------------------------------

IdHandle Host::create(PortSpace space, QpType type) {
  const auto created = cm->create(kApp, space, type);
  REQUIRE(created.error == std::errc{});
  return created.id;
}

IdHandle Host::listen(const SocketAddress& source, std::uint32_t backlog, PortSpace space, QpType type) {
  const IdHandle id = create(space, type);
  REQUIRE(cm->bind(kApp, id, source) == std::errc{});
  REQUIRE(cm->listen(kApp, id, backlog) == std::errc{});
  return id;
}

IdHandle Host::resolve(const SocketAddress& destination, PortSpace space, QpType type) {
  const IdHandle id = create(space, type);
  REQUIRE(cm->resolve_address(kApp, id, std::nullopt, destination, 2s, network->now) == std::errc{});
  REQUIRE(expect(EventKind::kAddrResolved).id == id);
  REQUIRE(cm->resolve_route(kApp, id, 2s, network->now) == std::errc{});
  REQUIRE(expect(EventKind::kRouteResolved).id == id);
  return id;
}

cm::Event Host::expect(EventKind kind) {
  network->settle();
  REQUIRE_FALSE(events.empty());
  const cm::Event event = events.front();
  events.pop_front();
  REQUIRE(static_cast<int>(event.kind) == static_cast<int>(kind));
  return event;
}

void Host::destroy(IdHandle id) { REQUIRE(cm->destroy(kApp, id, network->now) == std::errc{}); }

// ---- the wire --------------------------------------------------------------------------------------

Host& Network::add(std::vector<NicConfig> nics, cm::Limits limits) {
  auto host = std::make_unique<Host>();
  host->nics = nics;
  host->network = this;
  const std::uint64_t seed[4] = {seed_, hosts_.size(), 3, 4};
  host->cm = std::make_unique<cm::ConnectionManager>(std::move(nics), seed, limits);
  host->cm->open_client(Host::kApp, ~std::uint64_t{0});
  return *hosts_.emplace_back(std::move(host));
}

void Network::deliver_now(Host& host, const Parcel& parcel, NicId nic, proto::Qpn source_qpn) {
  host.cm->on_mad({nic, parcel.source, parcel.destination, source_qpn, parcel.bytes}, now);
}

bool Network::collect() {
  bool any = false;
  for (const auto& host : hosts_) {
    while (const auto asked = host->cm->take_neighbour_request()) {
      any = true;
      if (answers_neighbours) host->cm->on_neighbour(asked->id, {}, now);
    }
    while (const auto out = host->cm->take_mad()) {
      any = true;
      Parcel parcel;
      parcel.source = emulator::gid_table(host->nics[out->nic.index]).at(out->to.sgid_index);
      parcel.destination = out->to.dgid;
      parcel.bytes = out->bytes;
      log.push_back(parcel.attribute());
      for (const Duration after : wire(parcel))
        under_way_.emplace(now + after, parcel);
    }
    while (auto event = host->cm->take_event()) {
      any = true;
      host->events.push_back(std::move(*event));
    }
  }
  return any;
}

void Network::settle() {
  while (true) {
    if (collect()) continue;
    if (under_way_.empty() || under_way_.begin()->first > now + kTransit) return;
    now = std::max(now, under_way_.begin()->first);
    const Parcel parcel = under_way_.begin()->second;
    under_way_.erase(under_way_.begin());
    for (const auto& host : hosts_) {
      for (std::size_t i = 0; i < host->nics.size(); ++i) {
        const auto gids = emulator::gid_table(host->nics[i]);
        if (std::find(gids.begin(), gids.end(), parcel.destination) != gids.end())
          deliver_now(*host, parcel, NicId{static_cast<std::uint8_t>(i)});
      }
    }
  }
}

Time Network::next() const {
  Time first = under_way_.empty() ? emulator::kNever : under_way_.begin()->first;
  for (const auto& host : hosts_)
    first = std::min(first, host->cm->next_deadline());
  return first;
}

void Network::run(Duration time) {
  const Time end = now + time;
  settle();
  while (next() <= end) {
    now = std::max(now, next());
    for (const auto& host : hosts_)
      host->cm->on_timers(now);
    settle();
  }
  now = std::max(now, end);
}

void Network::run_dry(Duration most) {
  const Time end = now + most;
  settle();
  while (next() < end) {
    run(next() - now);
  }
}

void Network::await(const Host& host, Duration most) {
  const Time end = now + most;
  settle();
  while (host.events.empty() && next() < end)
    run(next() - now);
}

Connected connect(Network& network, Host& client, Host& server, const SocketAddress& to,
                  std::uint32_t client_qpn, std::uint32_t server_qpn) {
  Connected both;
  both.listener = server.listen(to);
  both.client = client.resolve(to);
  REQUIRE(client.cm->connect(Host::kApp, both.client, parameters(client_qpn), network.now) == std::errc{});
  both.server = server.expect(EventKind::kConnectRequest).id;
  REQUIRE(server.cm->accept(Host::kApp, both.server, parameters(server_qpn), network.now) == std::errc{});
  client.expect(EventKind::kConnectResponse);
  REQUIRE(client.cm->accept(Host::kApp, both.client, std::nullopt, network.now) == std::errc{});
  REQUIRE(server.expect(EventKind::kEstablished).id == both.server);
  return both;
}

}  // namespace roci::cm_test
