// The ring between two threads: order, bounds, values that can only be moved. Run under ThreadSanitizer as
// well.
#include "dpdk_port/spsc_ring.h"

#include <catch2/catch.hpp>

#include <cstdint>
#include <memory>
#include <thread>

using roci::dpdk_port::SpscRing;

TEST_CASE("a full ring refuses and leaves the element alone") {
  SpscRing<std::unique_ptr<int>> ring(2);
  CHECK(ring.empty());
  REQUIRE(ring.push(std::make_unique<int>(1)));
  REQUIRE(ring.push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  CHECK_FALSE(ring.push(std::move(third)));
  REQUIRE(third != nullptr);

  std::unique_ptr<int> out[3];
  REQUIRE(ring.pop(out, 1) == 1);
  CHECK(*out[0] == 1);
  CHECK(ring.size() == 1);
  REQUIRE(ring.push(std::move(third)));
  REQUIRE(ring.pop(out, 3) == 2);
  CHECK(*out[0] == 2);
  CHECK(*out[1] == 3);
  CHECK(ring.pop(out, 3) == 0);
  CHECK(ring.size() == 0);
  CHECK(ring.empty());
}

TEST_CASE("two threads: everything arrives once and in order") {
  constexpr std::uint64_t kCount = 200000;
  SpscRing<std::uint64_t> ring(64);
  std::thread producer([&ring] {
    for (std::uint64_t i = 0; i < kCount;) {
      if (ring.push(std::uint64_t{i}))
        ++i;
      else
        std::this_thread::yield();
    }
  });
  std::uint64_t expected = 0;
  bool in_order = true;
  while (expected < kCount) {
    std::uint64_t out[16];
    const std::size_t got = ring.pop(out, 16);
    if (got == 0) std::this_thread::yield();
    for (std::size_t i = 0; i < got; ++i)
      in_order = in_order && out[i] == expected++;
  }
  producer.join();
  CHECK(in_order);
  CHECK(ring.empty());
}
