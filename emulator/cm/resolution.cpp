// Addresses and ports of an id: bind, resolve, listen.
#include <algorithm>

#include "emulator/cm/impl.h"

namespace roci::emulator::cm {
namespace {

constexpr std::uint64_t bit_of(NicId nic) { return std::uint64_t{1} << nic.index; }

}  // namespace

std::errc ConnectionManager::Impl::take_port(Endpoint& endpoint, const SocketAddress& source,
                                             std::uint64_t on) {
  const Ports::Holder holder{endpoint.id, source.ip, on, endpoint.may_share_port, endpoint.one_family, false};
  std::uint16_t port = source.port;
  if (port == 0) {
    const auto free = ports.bind_any(endpoint.space, dice.below(kEphemeralPorts), holder);
    if (!free) return std::errc::address_not_available;
    port = *free;
  } else if (!ports.bind(endpoint.space, port, holder)) {
    return std::errc::address_in_use;
  }
  endpoint.source = {source.ip, port};
  endpoint.holds_port = true;
  endpoint.state = Endpoint::State::kBound;
  return {};
}

std::errc ConnectionManager::Impl::bind(Endpoint& endpoint, SocketAddress source) {
  // Localhost, unless a NIC has it, means any address of this host, as libfabric's servers count on.
  if (is_localhost(source.ip) && !nics.owner(source.ip, endpoint.nics))
    source.ip = source.ip.is_ipv4() ? proto::Gid::from_ipv4(0) : proto::Gid{};
  if (endpoint.state != Endpoint::State::kIdle) return std::errc::invalid_argument;
  if (is_any(source.ip)) return take_port(endpoint, source, endpoint.nics);
  const std::optional<NicId> nic = nics.owner(source.ip, endpoint.nics);
  if (!nic) return std::errc::address_not_available;
  if (const std::errc error = take_port(endpoint, source, bit_of(*nic)); error != std::errc{}) return error;
  endpoint.nic = nic;
  return {};
}

std::errc ConnectionManager::Impl::resolve_address(Endpoint& endpoint,
                                                   const std::optional<SocketAddress>& source,
                                                   SocketAddress destination, Duration timeout, Time now) {
  const bool was_idle = endpoint.state == Endpoint::State::kIdle;
  if (!was_idle && endpoint.state != Endpoint::State::kBound) return std::errc::invalid_argument;
  // What it is bound to, or is to be.
  SocketAddress from = was_idle ? source.value_or(SocketAddress{}) : endpoint.source;
  if (destination.is_any()) {  // this very host
    const bool ipv4 = destination.ip.is_ipv4();
    const auto own = from.is_any() ? nics.first_address(ipv4, endpoint.nics) : std::optional(from.ip);
    if (!own) return std::errc::network_unreachable;
    destination.ip = *own;
  }
  std::optional<Addressing::Choice> way;
  if (from.is_any()) {
    way = nics.to(destination.ip, endpoint.nics);
  } else {
    const std::optional<NicId> nic = nics.owner(from.ip, endpoint.nics);
    if (!nic) return std::errc::address_not_available;
    if (from.ip.is_ipv4() != destination.ip.is_ipv4()) return std::errc::invalid_argument;
    way = nics.from(*nic, from.ip, destination.ip);
  }
  if (!way) return std::errc::network_unreachable;
  if (was_idle) {
    const std::errc error = take_port(endpoint, {way->source, from.port}, bit_of(way->nic));
    if (error != std::errc{}) return error;
  }
  endpoint.nic = way->nic;
  endpoint.source.ip = way->source;
  endpoint.destination = destination;
  endpoint.av = {};
  endpoint.av.dgid = destination.ip;
  endpoint.av.sgid_index = way->sgid_index;
  endpoint.av.is_global = true;
  endpoint.state = Endpoint::State::kAddressQuery;
  if (way->is_own || is_multicast(destination.ip)) {
    finish_resolution(endpoint, {});
  } else {
    set_deadline(endpoint, now + timeout);
    neighbour_requests.push_back({endpoint.id, way->nic, endpoint.av});
  }
  return {};
}

void ConnectionManager::Impl::finish_resolution(Endpoint& endpoint, std::errc error) {
  set_deadline(endpoint, kNever);
  if (error == std::errc{}) {
    endpoint.state = Endpoint::State::kAddressResolved;
    raise(endpoint, EventKind::kAddrResolved);
  } else {
    endpoint.state = Endpoint::State::kBound;  // it may try again
    raise(endpoint, EventKind::kAddrError, -static_cast<std::int32_t>(error));
  }
}

std::errc ConnectionManager::Impl::listen(Endpoint& endpoint, std::uint32_t backlog) {
  if (endpoint.state == Endpoint::State::kIdle) {
    const std::errc error = bind(endpoint, {proto::Gid::from_ipv4(0), 0});
    if (error != std::errc{}) return error;
  }
  if (endpoint.state != Endpoint::State::kBound) return std::errc::invalid_argument;
  if (!ports.listen(endpoint.space, endpoint.source.port, endpoint.id)) return std::errc::address_in_use;
  endpoint.state = Endpoint::State::kListening;
  endpoint.backlog =
      backlog == 0 ? limits.backlog : std::min(std::max(backlog, kLeastBacklog), limits.backlog);
  return {};
}

}  // namespace roci::emulator::cm
