#include "tests/proto/support.h"

#include "proto/header_template.h"
#include "proto/roce_view.h"

#include <catch2/catch.hpp>

using namespace roci::proto;
using namespace roci::proto::test;

// The template and Packet are two ways to write the same frame.
TEST_CASE("a template writes what a completed Packet of the same fields writes") {
  Dice dice{5};
  for (int round = 0; round < 2000; ++round) {
    INFO("round " << round << " of seed 5");
    const bool is_ipv6 = dice.one_in(2);
    Path path;
    path.source_mac = load_mac(dice.bytes(6).data());
    path.destination_mac = load_mac(dice.bytes(6).data());
    if (dice.one_in(2)) path.vlan_control = static_cast<std::uint16_t>(dice.bits(16));
    path.source =
        is_ipv6 ? load_gid(dice.bytes(16).data()) : Gid::from_ipv4(static_cast<std::uint32_t>(dice.bits(32)));
    path.destination =
        is_ipv6 ? load_gid(dice.bytes(16).data()) : Gid::from_ipv4(static_cast<std::uint32_t>(dice.bits(32)));
    path.traffic_class = static_cast<std::uint8_t>(dice.bits(8));
    path.hop_limit = static_cast<std::uint8_t>(dice.bits(8));
    path.flow_label = static_cast<std::uint32_t>(dice.bits(20));
    path.udp_source_port = static_cast<std::uint16_t>(dice.bits(16));
    const Pkey pkey{static_cast<std::uint16_t>(dice.bits(16))};
    const Qpn destination{static_cast<std::uint32_t>(dice.bits(24))};

    HeaderTemplate headers{path, dice.one_in(2) ? destination : Qpn{7}, pkey};
    headers.set_destination(destination);
    const Bytes payload = dice.bytes(dice.below(300));
    HeaderTemplate::PerPacket fields;
    fields.opcode = Opcode::kRcWriteOnly;
    fields.solicited_event = dice.one_in(2);
    fields.ack_request = dice.one_in(2);
    fields.migration_request = dice.one_in(2);
    fields.becn = dice.one_in(2);
    fields.pad_count = static_cast<std::uint8_t>(-payload.size() & 3U);
    fields.psn = Psn{static_cast<std::uint32_t>(dice.bits(24))};
    fields.ip_identification = static_cast<std::uint16_t>(dice.bits(16));
    fields.bytes_behind_bth = static_cast<std::uint16_t>(Reth::kSize + payload.size() + fields.pad_count);
    const auto reth = dice.header<Reth>();

    Packet packet = make_packet(fields.opcode, is_ipv6 ? IpVersion::kIpv6 : IpVersion::kIpv4);
    packet.ethernet->source = path.source_mac;
    packet.ethernet->destination = path.destination_mac;
    if (path.vlan_control) {
      packet.vlan_count = 1;
      packet.vlan_tags[0].priority = static_cast<std::uint8_t>(*path.vlan_control >> 13);
      packet.vlan_tags[0].drop_eligible = (*path.vlan_control & 0x1000) != 0;
      packet.vlan_tags[0].vlan_id = *path.vlan_control & 0xFFF;
    }
    if (is_ipv6) {
      packet.ipv6->traffic_class = path.traffic_class;
      packet.ipv6->flow_label = path.flow_label;
      packet.ipv6->hop_limit = path.hop_limit;
      packet.ipv6->source = path.source;
      packet.ipv6->destination = path.destination;
    } else {
      packet.ipv4->traffic_class = path.traffic_class;
      packet.ipv4->identification = fields.ip_identification;
      packet.ipv4->time_to_live = path.hop_limit;
      packet.ipv4->source = path.source.ipv4();
      packet.ipv4->destination = path.destination.ipv4();
    }
    packet.udp->source_port = path.udp_source_port;
    packet.bth.solicited_event = fields.solicited_event;
    packet.bth.ack_request = fields.ack_request;
    packet.bth.migration_request = fields.migration_request;
    packet.bth.becn = fields.becn;
    packet.bth.pkey = pkey;
    packet.bth.destination = destination;
    packet.bth.psn = fields.psn;
    packet.reth = reth;
    packet.payload = payload;
    complete(packet);

    // As the transmit path does it: headers, extension, payload, pad, ICRC.
    Bytes frame(headers.size() + fields.bytes_behind_bth + Icrc::kSize);
    const std::span<std::byte> out{frame};
    std::size_t at = headers.emit(out, fields);
    REQUIRE(at == headers.size());
    reth.emit(out.subspan(at).first<Reth::kSize>());
    at += Reth::kSize;
    Icrc icrc = headers.icrc_over(out.first(at));
    std::copy(payload.begin(), payload.end(), frame.begin() + static_cast<std::ptrdiff_t>(at));
    icrc.update(out.subspan(at, payload.size() + fields.pad_count));
    icrc.store(out.last<Icrc::kSize>());
    REQUIRE(frame == frame_of(packet));

    RoceView view;
    if (!is_ipv6 || (!path.source.is_ipv4() && !path.destination.is_ipv4())) {
      REQUIRE(parse_roce(frame, view) == ParseError::kNone);
      CHECK(icrc_matches(view));
      CHECK(view.reth() == reth);
    }
  }
}

TEST_CASE("template sizes") {
  Path path;
  path.source = path.destination = Gid::from_ipv4(1);
  CHECK(HeaderTemplate{path, Qpn{1}}.size() == 54);
  path.vlan_control = 1;
  CHECK(HeaderTemplate{path, Qpn{1}}.size() == 58);
  path.source = path.destination = Gid{};
  CHECK(HeaderTemplate{path, Qpn{1}}.size() == 78);
  CHECK(HeaderTemplate{}.size() == 0);
}
