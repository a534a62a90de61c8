#include "emulator/fabric.h"

#include <array>
#include <vector>

#include <catch2/catch.hpp>

#include "proto/ethernet.h"
#include "proto/packet.h"

using namespace roci::emulator;
using roci::proto::Mac;

namespace {

constexpr Mac kFirst{{2, 0, 0, 0, 0, 1}}, kLast{{2, 0, 0, 0, 0, 2}};

std::array<std::byte, 60> frame_to(const Mac& mac) {
  std::array<std::byte, 60> frame{};
  roci::proto::store_mac(frame.data(), mac);
  return frame;
}

}  // namespace

TEST_CASE("the fabric forwards by destination MAC and learns nothing") {
  Fabric fabric;
  fabric.attach({0}, kFirst);
  fabric.attach({63}, kLast);
  CHECK(fabric.destinations({0}, frame_to(kLast)) == std::uint64_t{1} << 63);
  CHECK(fabric.destinations({0}, frame_to(kFirst)) == 1);  // a NIC that talks to itself
  CHECK(fabric.destinations({0}, frame_to({{2, 0, 0, 0, 0, 9}})) == 0);
  CHECK(fabric.destinations({0}, frame_to({})) == 0);
  CHECK(fabric.destinations({0}, frame_to({{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}})) == std::uint64_t{1} << 63);
  CHECK(fabric.destinations({63}, frame_to({{0x33, 0x33, 0, 0, 0, 1}})) == 1);
  CHECK(fabric.destinations({0}, std::span<const std::byte>{}) == 0);
}

TEST_CASE("RoCE multicast goes to all NICs of the fabric, the sender's own among them") {
  Fabric fabric;
  fabric.attach({0}, kFirst);
  fabric.attach({63}, kLast);
  roci::proto::Packet packet =
      roci::proto::make_packet(roci::proto::Opcode::kUdSendOnly, roci::proto::IpVersion::kIpv4);
  packet.ethernet->destination = {{0x01, 0x00, 0x5E, 1, 2, 3}};
  packet.bth.destination = roci::proto::kQpnMulticast;
  roci::proto::complete(packet);
  std::vector<std::byte> frame(roci::proto::size_of(packet));
  REQUIRE(roci::proto::emit(packet, frame) == frame.size());
  CHECK(fabric.destinations({0}, frame) == (1 | std::uint64_t{1} << 63));
}
