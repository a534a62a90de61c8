#include "verbs_shim/server/rdma_cm_numbers.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <variant>

#include "emulator/engine.h"
#include "verbs_shim/server/context_commands.h"
#include "verbs_shim/server/show.h"
#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim::ucm {
namespace {

namespace cm = emulator::cm;

constexpr std::size_t kInetBytes = 16, kInet6Bytes = 28;  // sockaddr_in, sockaddr_in6
constexpr std::uint8_t kExactly = 2;                      // a selector of a path record
constexpr std::uint8_t kRateCode = 6;                     // 40 Gb/s, the most that an old library knows
constexpr std::uint8_t kPacketLifeTimeCode = 18;          // 4.096 us << 18: about a second

std::uint16_t big_endian_16(std::uint16_t value) { return __builtin_bswap16(value); }
std::uint32_t big_endian_32(std::uint32_t value) { return __builtin_bswap32(value); }
std::uint64_t big_endian_64(std::uint64_t value) { return __builtin_bswap64(value); }

bool is_unset(const cm::SocketAddress& address) { return address == cm::SocketAddress{}; }

// `family_like`: what an unset address is said to be, as the kernel does of the other side of a listener.
std::size_t put_address(std::span<std::uint8_t> to, const cm::SocketAddress& address,
                        const cm::SocketAddress& family_like) {
  std::fill(to.begin(), to.end(), std::uint8_t{0});
  const cm::SocketAddress& like = is_unset(address) ? family_like : address;
  if (is_unset(like)) return 0;
  const bool is_ipv4 = like.ip.is_ipv4();
  const std::uint16_t family = is_ipv4 ? kInet : kInet6;
  const std::uint16_t port = big_endian_16(address.port);
  std::memcpy(to.data(), &family, sizeof family);
  std::memcpy(to.data() + 2, &port, sizeof port);
  if (is_ipv4) {
    std::copy(address.ip.bytes.begin() + 12, address.ip.bytes.end(), to.begin() + 4);
  } else {
    std::copy(address.ip.bytes.begin(), address.ip.bytes.end(), to.begin() + 8);
  }
  return is_ipv4 ? kInetBytes : kInet6Bytes;
}

// The GIDs that a path has, or would have.
struct Gids {
  proto::Gid source, destination;
};
Gids gids_of(const cm::Route& route, const Nics& nics) {
  if (!route.is_route_resolved || !route.nic) return {route.source.ip, route.destination.ip};
  const std::vector<proto::Gid> table = emulator::gid_table(nics[route.nic->index]);
  const std::size_t index = route.av.sgid_index;
  return {index < table.size() ? table[index] : route.source.ip, route.av.dgid};
}

std::uint8_t mtu_of(const cm::Route& route, const Nics& nics) {
  return route.nic ? mtu_code(emulator::active_path_mtu(nics[route.nic->index].mtu_bytes)) : std::uint8_t{0};
}

std::uint64_t guid(const cm::Route& route, const Nics& nics) {
  return route.nic ? big_endian_64(guid_of(nics[route.nic->index].mac)) : 0;
}

AhAttr ah_attr_of(const emulator::AddressVector& av) {
  AhAttr ah = zeroed<AhAttr>();
  std::copy(av.dgid.bytes.begin(), av.dgid.bytes.end(), ah.dgid);
  ah.flow_label = av.flow_label;
  ah.sgid_index = av.sgid_index;
  ah.hop_limit = av.hop_limit;
  ah.traffic_class = av.traffic_class;
  ah.sl = av.service_level;
  ah.is_global = 1;
  ah.port_num = 1;
  return ah;
}

// Its length byte counts to 255.
void put_private_data(std::uint8_t (&to)[kMaxPrivateData], std::uint8_t& length,
                      const cm::PrivateData& data) {
  std::memcpy(to, data.bytes.data(), data.bytes.size());
  length = data.length_bytes;
}

}  // namespace

std::optional<IdKind> kind_of(std::uint16_t port_space, std::uint8_t qp_type) {
  using emulator::QpType;
  switch (static_cast<cm::PortSpace>(port_space)) {
    case cm::PortSpace::kTcp:
      return IdKind{cm::PortSpace::kTcp, QpType::kRc};
    case cm::PortSpace::kUdp:
      return IdKind{cm::PortSpace::kUdp, QpType::kUd};
    case cm::PortSpace::kIpoib:
      return IdKind{cm::PortSpace::kIpoib, QpType::kUd};
    case cm::PortSpace::kIb:
      if (qp_type < static_cast<std::uint8_t>(QpType::kRc) ||
          qp_type > static_cast<std::uint8_t>(QpType::kUd))
        return std::nullopt;
      return IdKind{cm::PortSpace::kIb, static_cast<QpType>(qp_type)};
  }
  return std::nullopt;
}

const char* name_of(cm::PortSpace space) {
  switch (space) {
    case cm::PortSpace::kTcp:
      return "TCP";
    case cm::PortSpace::kUdp:
      return "UDP";
    case cm::PortSpace::kIpoib:
      return "IPOIB";
    case cm::PortSpace::kIb:
      return "IB";
  }
  return "?";
}

// ---- socket addresses --------------------------------------------------------------------------------

std::uint16_t family_of(std::span<const std::uint8_t> address) {
  std::uint16_t family = 0;
  std::memcpy(&family, address.data(), sizeof family);
  return family;
}

std::optional<cm::SocketAddress> address_of(std::span<const std::uint8_t> address) {
  cm::SocketAddress result;
  std::uint16_t port = 0;
  std::memcpy(&port, address.data() + 2, sizeof port);
  result.port = big_endian_16(port);
  if (family_of(address) == kInet) {
    std::uint32_t ip = 0;
    std::memcpy(&ip, address.data() + 4, sizeof ip);
    result.ip = proto::Gid::from_ipv4(big_endian_32(ip));
    return result;
  }
  if (family_of(address) != kInet6) return std::nullopt;
  std::copy_n(address.begin() + 8, result.ip.bytes.size(), result.ip.bytes.begin());
  return result;
}

std::optional<cm::SocketAddress> address_of(std::span<const std::uint8_t> address, std::size_t size_bytes) {
  if (size_bytes != (family_of(address) == kInet ? kInetBytes : kInet6Bytes)) return std::nullopt;
  return address_of(address);
}

std::string text_of(const cm::SocketAddress& address) {
  if (is_unset(address)) return "-";
  const std::string port = ':' + std::to_string(address.port);
  const std::string ip = address_text(address.ip);
  return (address.ip.is_ipv4() ? ip : '[' + ip + ']') + port;
}

// ---- routes ------------------------------------------------------------------------------------------

QueryRouteResponse route_response(const cm::Route& route, const Nics& nics) {
  auto response = zeroed<QueryRouteResponse>();
  response.node_guid = guid(route, nics);
  response.device_index = kUnknownDeviceIndex;
  response.port = route.nic ? 1 : 0;
  put_address(response.source.bytes, route.source, route.destination);
  put_address(response.destination.bytes, route.destination, route.source);
  if (!route.nic) return response;
  const Gids gids = gids_of(route, nics);
  PathRecord& path = response.paths[0];
  std::copy(gids.source.bytes.begin(), gids.source.bytes.end(), path.sgid);
  std::copy(gids.destination.bytes.begin(), gids.destination.bytes.end(), path.dgid);
  path.pkey = 0xFFFF;
  if (!route.is_route_resolved) return response;
  response.path_count = 1;
  path.flow_label = big_endian_32(route.av.flow_label);
  path.reversible = 1;
  path.mtu = mtu_of(route, nics);
  path.hop_limit = route.av.hop_limit;
  path.traffic_class = route.av.traffic_class;
  path.sl = route.av.service_level;
  path.mtu_selector = path.rate_selector = path.packet_life_time_selector = kExactly;
  path.rate = kRateCode;
  path.packet_life_time = kPacketLifeTimeCode;
  return response;
}

QueryAddressResponse address_response(const cm::Route& route, const Nics& nics, bool as_gids) {
  auto response = zeroed<QueryAddressResponse>();
  response.node_guid = guid(route, nics);
  response.device_index = kUnknownDeviceIndex;
  response.port = route.nic ? 1 : 0;
  response.pkey = 0xFFFF;
  if (!as_gids) {
    response.source_bytes =
        static_cast<std::uint16_t>(put_address(response.source.bytes, route.source, route.destination));
    response.destination_bytes =
        static_cast<std::uint16_t>(put_address(response.destination.bytes, route.destination, route.source));
    return response;
  }
  const Gids gids = gids_of(route, nics);
  const auto put_gid = [](SockAddrStorage& to, const proto::Gid& gid) {
    auto address = zeroed<SockAddrIb>();
    address.family = kInfiniband;
    address.pkey = 0xFFFF;
    std::copy(gid.bytes.begin(), gid.bytes.end(), address.gid);
    std::memcpy(to.bytes, &address, sizeof address);
  };
  put_gid(response.source, gids.source);
  put_gid(response.destination, gids.destination);
  response.source_bytes = response.destination_bytes = sizeof(SockAddrIb);
  return response;
}

// The record's layout is that of subnet administration [IBTA 15.2.5.16].
QueryPathResponse path_response(const cm::Route& route, const Nics& nics) {
  auto response = zeroed<QueryPathResponse>();
  response.path_count = route.is_route_resolved ? 1 : 0;
  response.flags = kPathFlags;
  std::uint8_t* const record = response.path_record;
  const Gids gids = gids_of(route, nics);
  std::copy(gids.destination.bytes.begin(), gids.destination.bytes.end(), record + 8);
  std::copy(gids.source.bytes.begin(), gids.source.bytes.end(), record + 24);
  const std::uint32_t flow = big_endian_32((route.av.flow_label & 0xFFFFF) << 8 | route.av.hop_limit);
  std::memcpy(record + 44, &flow, sizeof flow);
  record[48] = route.av.traffic_class;
  record[49] = 0x80;  // reversible
  record[50] = record[51] = 0xFF;
  record[53] = route.av.service_level & 0xF;
  const auto exactly = [](unsigned code) { return static_cast<std::uint8_t>(kExactly << 6 | code); };
  record[54] = exactly(mtu_of(route, nics));
  record[55] = exactly(kRateCode);
  record[56] = exactly(kPacketLifeTimeCode);
  return response;
}

// ---- connections -------------------------------------------------------------------------------------

cm::PrivateData private_data_of(std::span<const std::uint8_t> data, std::size_t length_bytes) {
  cm::PrivateData result;
  const std::size_t length = std::min({length_bytes, data.size(), result.bytes.size()});
  std::memcpy(result.bytes.data(), data.data(), length);
  result.length_bytes = static_cast<std::uint8_t>(length);
  return result;
}

cm::ConnectionParameters parameters_of(const ConnParam& wanted) {
  cm::ConnectionParameters result;
  result.qpn = proto::Qpn{wanted.qp_num & 0xFFFFFF};
  // The Q_Key is the port space's but for addresses of InfiniBand's own, which there are none of here.
  result.responder_resources = wanted.responder_resources;
  result.initiator_depth = wanted.initiator_depth;
  result.flow_control = wanted.flow_control;
  result.retry_count = wanted.retry_count & 7;
  result.rnr_retry_count = wanted.rnr_retry_count & 7;
  result.has_srq = wanted.srq != 0;
  result.private_data = private_data_of(wanted.private_data, wanted.private_data_bytes);
  return result;
}

QpAttr qp_attr_of(const cm::QpTransition& transition) {
  const emulator::QpAttributes& a = transition.attributes;
  auto attr = zeroed<QpAttr>();
  attr.mask = transition.mask;
  attr.qp_state = static_cast<std::uint32_t>(a.state);
  attr.cur_qp_state = static_cast<std::uint32_t>(a.current_state);
  attr.path_mtu = a.path_mtu_code;
  attr.qkey = a.qkey.value();
  attr.rq_psn = a.rq_psn.value();
  attr.sq_psn = a.sq_psn.value();
  attr.dest_qp_num = a.dest_qpn.value();
  attr.qp_access_flags = a.access;
  if ((transition.mask & emulator::kQpAv) != 0) attr.ah = ah_attr_of(a.av);
  attr.pkey_index = a.pkey_index;
  attr.max_rd_atomic = a.max_rd_atomic;
  attr.max_dest_rd_atomic = a.max_dest_rd_atomic;
  attr.min_rnr_timer = a.min_rnr_timer;
  attr.port_num = a.port;
  attr.timeout = a.timeout;
  attr.retry_cnt = a.retry_cnt;
  attr.rnr_retry = a.rnr_retry;
  return attr;
}

void set_parameters(EventRecord& record, const cm::Event& event) {
  if (const auto* const datagram = std::get_if<cm::DatagramParameters>(&event.parameters)) {
    UdParam& ud = record.param.ud;
    ud.qp_num = datagram->qpn.value();
    ud.qkey = datagram->qkey.value();
    ud.ah = ah_attr_of(datagram->av);
    put_private_data(ud.private_data, ud.private_data_bytes, datagram->private_data);
  } else if (const auto* const said = std::get_if<cm::ConnectionParameters>(&event.parameters)) {
    ConnParam& conn = record.param.conn;
    conn.qp_num = said->qpn.value();
    conn.srq = said->has_srq ? 1 : 0;
    conn.responder_resources = said->responder_resources;
    conn.initiator_depth = said->initiator_depth;
    conn.flow_control = said->flow_control;
    conn.retry_count = said->retry_count;
    conn.rnr_retry_count = said->rnr_retry_count;
    put_private_data(conn.private_data, conn.private_data_bytes, said->private_data);
  }
}

}  // namespace roci::shim::ucm
