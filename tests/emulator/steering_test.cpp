#include "emulator/steering.h"

#include <vector>

#include <catch2/catch.hpp>

#include "proto/packet.h"

using namespace roci;
using emulator::steer;
using proto::Opcode;

namespace {

std::vector<std::byte> roce_to(std::uint32_t qpn, proto::IpVersion version, std::uint8_t vlan_tags = 0) {
  proto::Packet packet = proto::make_packet(Opcode::kRcSendOnly, version);
  packet.bth.destination = proto::Qpn{qpn};
  packet.vlan_count = vlan_tags;
  proto::complete(packet);
  std::vector<std::byte> frame(proto::size_of(packet));
  CHECK(proto::emit(packet, frame) == frame.size());
  return frame;
}

}  // namespace

TEST_CASE("a RoCE frame goes to the shard of its destination QPN") {
  for (const proto::IpVersion version : {proto::IpVersion::kIpv4, proto::IpVersion::kIpv6}) {
    for (std::uint8_t tags = 0; tags <= 2; ++tags) {
      for (const std::uint32_t qpn : {2U, 17U, 0x123456U, 0xFFFFFEU}) {
        for (const std::uint32_t shards : {1U, 2U, 3U, 8U}) {
          INFO("qpn " << qpn << " shards " << shards << " tags " << unsigned{tags});
          CHECK(steer(roce_to(qpn, version, tags), shards) == qpn % shards);
        }
      }
    }
  }
}

TEST_CASE("what is for no QP of one shard goes to every shard") {
  const auto every = std::optional<std::uint32_t>{};
  CHECK(steer(roce_to(0, proto::IpVersion::kIpv4), 2) == every);
  CHECK(steer(roce_to(1, proto::IpVersion::kIpv6), 2) == every);
  CHECK(steer(roce_to(0xFFFFFF, proto::IpVersion::kIpv4), 2) == every);
  std::vector<std::byte> arp(60);
  proto::store_be16(arp.data() + 12, proto::kEthertypeArp);
  CHECK(steer(arp, 2) == every);
  CHECK(steer(arp, 1) == 0U);
  for (const std::uint8_t protocol : {proto::kProtocolIcmp, proto::kProtocolIgmp, proto::kProtocolUdp}) {
    std::vector<std::byte> frame = roce_to(3, proto::IpVersion::kIpv4);
    proto::store_u8(frame.data() + 14 + 9, protocol);
    CHECK(steer(frame, 2) == (protocol != proto::kProtocolUdp ? every : std::optional<std::uint32_t>{1}));
  }
  std::vector<std::byte> mld = roce_to(3, proto::IpVersion::kIpv6);
  proto::store_u8(mld.data() + 14 + 6, proto::kHopByHopOptions);
  CHECK(steer(mld, 2) == every);
}

TEST_CASE("RoCE multicast is told from unicast, and from what is no RoCE") {
  std::vector<std::byte> frame = roce_to(0xFFFFFF, proto::IpVersion::kIpv4);
  CHECK_FALSE(emulator::is_roce_multicast(frame));
  proto::store_mac(frame.data(), {{0x01, 0x00, 0x5E, 1, 2, 3}});
  CHECK(emulator::is_roce_multicast(frame));
  proto::store_u8(frame.data() + 14 + 9, proto::kProtocolIgmp);
  CHECK_FALSE(emulator::is_roce_multicast(frame));
  std::vector<std::byte> other = roce_to(7, proto::IpVersion::kIpv6);
  proto::store_mac(other.data(), {{0x33, 0x33, 0, 0, 0, 1}});
  CHECK_FALSE(emulator::is_roce_multicast(other));
  CHECK_FALSE(emulator::is_roce_multicast({}));
}

TEST_CASE("S01: a frame cut anywhere goes to one shard, which drops it, and nothing is read behind it") {
  for (const proto::IpVersion version : {proto::IpVersion::kIpv4, proto::IpVersion::kIpv6}) {
    const std::vector<std::byte> whole = roce_to(3, version, 1);
    const std::size_t bth_end = 14 + 4 + (version == proto::IpVersion::kIpv4 ? 20U : 40U) + 8 + 12;
    for (std::size_t length = 0; length < bth_end; ++length) {
      const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
      INFO("length " << length);
      CHECK(steer(cut, 2) == 0U);
    }
  }
}
