#include <catch2/catch.hpp>

#include "emulator/config.h"
#include "proto/text.h"

using namespace roci::emulator;
using roci::proto::PathMtu;

TEST_CASE("N01: GID 0 is the link-local address of the MAC, then one GID an address, none twice") {
  NicConfig nic;
  nic.mac = {{0x02, 0x00, 0x00, 0x12, 0x34, 0x56}};
  nic.addresses = {{*roci::proto::gid_from_text("10.0.0.1"), 24},
                   {*roci::proto::gid_from_text("fd00::1"), 64},
                   {*roci::proto::gid_from_text("fe80::ff:fe12:3456"), 64}};
  const auto table = gid_table(nic);
  REQUIRE(table.size() == 3);
  CHECK(to_text(table[0]) == "fe80::ff:fe12:3456");
  CHECK(to_text(table[1]) == "10.0.0.1");
  CHECK(to_text(table[2]) == "fd00::1");
}

TEST_CASE("V02: the active path MTU is the largest whose largest packet fits the port") {
  CHECK(active_path_mtu(9000) == PathMtu::k4096);
  CHECK(active_path_mtu(4200) == PathMtu::k4096);
  CHECK(active_path_mtu(4096 + 88) == PathMtu::k4096);
  CHECK(active_path_mtu(4096 + 87) == PathMtu::k2048);
  CHECK(active_path_mtu(1500) == PathMtu::k1024);
  CHECK(active_path_mtu(600) == PathMtu::k512);
  CHECK(active_path_mtu(576) == PathMtu::k256);
}

TEST_CASE("addresses that change: what stays keeps its GID index, a gap is filled first") {
  const auto gid = [](const char* text) { return *roci::proto::gid_from_text(text); };
  NicConfig nic;
  nic.mac = {{0x02, 0x00, 0x00, 0x12, 0x34, 0x56}};
  nic.addresses = {{gid("10.0.0.1"), 24}, {gid("10.0.0.2"), 24}, {gid("fd00::1"), 64}};
  const auto change = [&](const std::vector<NicAddress>& wanted) {
    nic.addresses = changed_addresses(nic.addresses, wanted);
    std::string list;
    for (const auto& one : gid_table(nic))
      list += (one == roci::proto::Gid{} ? "-" : to_text(one)) + " ";
    return list;
  };
  CHECK(change({{gid("fd00::1"), 64}, {gid("10.0.0.1"), 24}}) == "fe80::ff:fe12:3456 10.0.0.1 - fd00::1 ");
  CHECK(change({{gid("fd00::1"), 48}}) == "fe80::ff:fe12:3456 - - fd00::1 ");
  CHECK(nic.addresses[2].prefix_length == 48);
  CHECK(change({{gid("fd00::1"), 48}, {gid("10.0.0.9"), 24}}) == "fe80::ff:fe12:3456 10.0.0.9 - fd00::1 ");
  CHECK(change({{gid("fd00::2"), 64}, {gid("10.0.0.9"), 24}, {gid("fd00::3"), 64}, {gid("fd00::4"), 64}}) ==
        "fe80::ff:fe12:3456 10.0.0.9 fd00::2 fd00::3 fd00::4 ");
  CHECK(change({}) == "fe80::ff:fe12:3456 - - - - ");
}
