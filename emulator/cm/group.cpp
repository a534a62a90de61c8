// Multicast groups. RoCE has no subnet administrator that would give one a Q_Key: all know the same. The
// queue pair joins on the wire when its owner attaches it (multicast.h).
#include "emulator/cm/impl.h"

namespace roci::emulator::cm {

std::errc ConnectionManager::Impl::join(Endpoint& endpoint, const SocketAddress& group,
                                        std::uint64_t number) {
  if (!endpoint.nic || !endpoint.is_datagram() || !is_multicast(group.ip)) return std::errc::invalid_argument;
  if (endpoint.groups.size() >= limits.groups_of_id) return std::errc::not_enough_memory;
  if (!endpoint.groups.emplace(number, group.ip).second) return std::errc::invalid_argument;
  AddressVector av;
  av.dgid = group.ip;
  av.sgid_index = nics.sgid_index(*endpoint.nic, endpoint.source.ip).value_or(0);
  av.traffic_class = endpoint.type_of_service;
  av.is_global = true;
  Event event;
  event.kind = EventKind::kMulticastJoin;
  event.multicast = number;
  event.parameters = DatagramParameters{proto::kQpnMulticast, endpoint.qkey, av, {}};
  raise(endpoint, event);
  return {};
}

}  // namespace roci::emulator::cm
