#include "proto/header_template.h"

#include "proto/bytes.h"
#include "proto/ip.h"
#include "proto/ipv4.h"
#include "proto/ipv6.h"
#include "proto/udp.h"

#include <cassert>
#include <cstring>

namespace roci::proto {

HeaderTemplate::HeaderTemplate(const Path& path, Qpn destination, Pkey pkey) : is_ipv6_(path.is_ipv6()) {
  const std::uint16_t ip_ethertype = is_ipv6_ ? kEthertypeIpv6 : kEthertypeIpv4;
  const std::span<std::byte> out{bytes_};
  const EthernetHeader ethernet{path.destination_mac, path.source_mac,
                                path.vlan_control ? kEthertypeVlan : ip_ethertype};
  ethernet.emit(out.first<EthernetHeader::kSize>());
  std::size_t at = EthernetHeader::kSize;
  if (path.vlan_control) {
    store_be16(&bytes_[at], *path.vlan_control);
    store_be16(&bytes_[at + 2], ip_ethertype);
    at += VlanTag::kSize;
  }
  ip_offset_ = static_cast<std::uint8_t>(at);
  if (is_ipv6_) {
    Ipv6Header ip;
    ip.traffic_class = path.traffic_class;
    ip.flow_label = path.flow_label;
    ip.hop_limit = path.hop_limit;
    ip.source = path.source;
    ip.destination = path.destination;
    ip.emit(out.subspan(at).first<Ipv6Header::kSize>());
    at += Ipv6Header::kSize;
  } else {
    assert(path.source.is_ipv4());
    Ipv4Header ip;
    ip.traffic_class = path.traffic_class;
    ip.time_to_live = path.hop_limit;
    ip.source = path.source.ipv4();
    ip.destination = path.destination.ipv4();
    ip.emit(out.subspan(at).first<Ipv4Header::kSize>());
    ip_checksum_base_ = checksum_add(0, out.subspan(at, Ipv4Header::kSize));
    at += Ipv4Header::kSize;
  }
  const UdpHeader udp{path.udp_source_port, kRoceV2Port, 0, 0};  // checksum 0 [IBTA A17.3.2.4]
  udp.emit(out.subspan(at).first<UdpHeader::kSize>());
  at += UdpHeader::kSize;
  Bth bth;
  bth.pkey = pkey;
  bth.destination = destination;
  bth.emit(out.subspan(at).first<Bth::kSize>());
  size_ = static_cast<std::uint8_t>(at + Bth::kSize);
}

void HeaderTemplate::set_destination(Qpn destination) {
  std::byte* bth = &bytes_[size_ - Bth::kSize];
  store_8_24(bth + 4, 0, destination.value());
}

void HeaderTemplate::set_source_port(std::uint16_t port) {
  store_be16(&bytes_[size_ - Bth::kSize - UdpHeader::kSize], port);  // the UDP checksum stays 0
}

std::size_t HeaderTemplate::emit(std::span<std::byte> out, const PerPacket& packet) const {
  assert(size_ != 0 && out.size() >= size_);
  std::byte* at = out.data();
  std::memcpy(at, bytes_.data(), size_);

  const std::size_t bth_offset = size_ - Bth::kSize;
  const std::size_t udp_offset = bth_offset - UdpHeader::kSize;
  const std::size_t udp_length = UdpHeader::kSize + Bth::kSize + packet.bytes_behind_bth + Icrc::kSize;
  assert(udp_length <= 0xFFFF - Ipv4Header::kSize);
  std::byte* ip = at + ip_offset_;
  if (is_ipv6_) {
    store_be16(ip + 4, static_cast<std::uint16_t>(udp_length));
  } else {
    const auto total_length = static_cast<std::uint16_t>(Ipv4Header::kSize + udp_length);
    std::uint32_t sum = ip_checksum_base_ + total_length + packet.ip_identification;
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    store_be16(ip + 2, total_length);
    store_be16(ip + 4, packet.ip_identification);
    store_be16(ip + 10, static_cast<std::uint16_t>(~sum));
  }
  store_be16(at + udp_offset + 4, static_cast<std::uint16_t>(udp_length));

  std::byte* bth = at + bth_offset;
  store_u8(bth, static_cast<std::uint8_t>(packet.opcode));
  store_u8(bth + 1,
           static_cast<std::uint8_t>((packet.solicited_event ? 0x80 : 0) |
                                     (packet.migration_request ? 0x40 : 0) | ((packet.pad_count & 3) << 4)));
  store_u8(bth + Bth::kEcnByte, packet.becn ? 0x40 : 0);
  store_8_24(bth + 8, packet.ack_request ? 0x80 : 0, packet.psn.value());
  return size_;
}

Icrc HeaderTemplate::icrc_over(std::span<const std::byte> headers) const {
  const std::span<const std::byte> from_ip = headers.subspan(ip_offset_);
  return is_ipv6_ ? Icrc::over_ipv6(from_ip) : Icrc::over_ipv4(from_ip);
}

}  // namespace roci::proto
