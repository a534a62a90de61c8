// What the kernel says of its groups, on the loopback interface.
#include "dpdk_port/kernel_groups.h"

#include <net/if.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

namespace roci::dpdk_port {
namespace {

using proto::Gid;

constexpr std::uint32_t kGroup = 0xEF4D0000;  // 239.77.0.0

bool kernel_is_in(std::string_view hex) {
  std::stringstream text;
  text << std::ifstream("/proc/net/igmp").rdbuf();
  return text.str().find(hex) != std::string::npos;
}

TEST_CASE("the kernel is in just the groups that it is told of") {
  KernelGroups groups(static_cast<int>(if_nametoindex("lo")));
  std::vector<Gid> wanted;
  for (std::uint32_t i = 1; i <= 30; ++i)  // more than one socket may join
    wanted.push_back(Gid::from_ipv4(kGroup + i));
  CHECK_FALSE(kernel_is_in("01004DEF"));
  CHECK(groups.follow(wanted).empty());
  CHECK(kernel_is_in("01004DEF"));  // as /proc has it, the last byte first
  CHECK(kernel_is_in("1E004DEF"));
  wanted.erase(wanted.begin());
  CHECK(groups.follow(wanted).empty());
  CHECK_FALSE(kernel_is_in("01004DEF"));
  CHECK(kernel_is_in("02004DEF"));
  CHECK(groups.follow({}).empty());
  CHECK_FALSE(kernel_is_in("02004DEF"));
}

TEST_CASE("a group that the kernel does not join is told of once") {
  KernelGroups groups(0x7FFFFFFF);
  const Gid group = Gid::from_ipv4(kGroup + 99);
  const auto problems = groups.follow({&group, 1});
  REQUIRE(problems.size() == 1);
  CHECK(problems.front().find("239.77.0.99: No such device") != std::string::npos);
  CHECK(groups.follow({&group, 1}).empty());
}

}  // namespace
}  // namespace roci::dpdk_port
