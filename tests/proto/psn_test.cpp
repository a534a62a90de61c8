#include "proto/psn.h"
#include "proto/types.h"

#include <catch2/catch.hpp>

using namespace roci::proto;

TEST_CASE("a PSN keeps 24 bits") {
  CHECK(Psn{0x1000000}.value() == 0);
  CHECK(Psn{0xFFFFFFFF}.value() == 0xFFFFFF);
  CHECK(Psn{0xFFFFFF}.plus(1) == Psn{0});
  CHECK(Psn{0}.plus(-1) == Psn{0xFFFFFF});
  CHECK(Psn{5}.plus(std::int64_t{1} << 40) == Psn{5});
}

TEST_CASE("distance and plus are inverses at every one of the 2^24 distances") {
  for (const Psn from : {Psn{0}, Psn{1}, Psn{0x7FFFFF}, Psn{0x800000}, Psn{0xFFFFFE}, Psn{0xABCDEF}}) {
    std::uint32_t wrong = 0;
    for (std::int32_t steps = -0x800000; steps < 0x800000; ++steps) {
      const Psn to = from.plus(steps);
      const std::int32_t back = to.distance_to(from);
      // The farthest PSN is as far either way; both directions call it -2^23.
      const bool is_symmetric = steps == -0x800000 ? back == steps : back == -steps;
      if (from.distance_to(to) != steps || !is_symmetric || to.plus(-steps) != from) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("distance tells before from after across the wrap") {
  CHECK(Psn{0xFFFFFF}.distance_to(Psn{0}) == 1);
  CHECK(Psn{0}.distance_to(Psn{0xFFFFFF}) == -1);
  CHECK(Psn{0}.distance_to(Psn{0x7FFFFF}) == 0x7FFFFF);
  CHECK(Psn{0}.distance_to(Psn{0x800000}) == -0x800000);
}

TEST_CASE("a range of PSNs may wrap") {
  CHECK(is_within(Psn{0xFFFFFF}, Psn{0xFFFFFE}, 4));
  CHECK(is_within(Psn{1}, Psn{0xFFFFFE}, 4));
  CHECK_FALSE(is_within(Psn{2}, Psn{0xFFFFFE}, 4));
  CHECK_FALSE(is_within(Psn{0xFFFFFD}, Psn{0xFFFFFE}, 4));
  CHECK_FALSE(is_within(Psn{9}, Psn{9}, 0));
}

TEST_CASE("packets of a message") {
  for (const PathMtu mtu : {PathMtu::k256, PathMtu::k512, PathMtu::k1024, PathMtu::k2048, PathMtu::k4096}) {
    const std::uint32_t bytes = bytes_of(mtu);
    CHECK(packet_count(0, mtu) == 1);
    CHECK(packet_count(1, mtu) == 1);
    CHECK(packet_count(bytes, mtu) == 1);
    CHECK(packet_count(bytes + 1, mtu) == 2);
    CHECK(packet_count(7 * bytes, mtu) == 7);
    CHECK(packet_count(0xFFFFFFFF, mtu) == 0xFFFFFFFF / bytes + 1);
  }
}

TEST_CASE("a GID holds an IPv4 address in mapped form [IBTA A17.4.1.1]") {
  const Gid gid = Gid::from_ipv4(0x0A4D000B);
  CHECK(gid.is_ipv4());
  CHECK(gid.ipv4() == 0x0A4D000B);
  Gid other = gid;
  other.bytes[0] = 1;
  CHECK_FALSE(other.is_ipv4());
}
