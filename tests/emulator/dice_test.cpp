#include "emulator/dice.h"

#include <set>

#include <catch2/catch.hpp>

using roci::emulator::Dice;

namespace {
constexpr std::uint64_t kSeed[4] = {0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x1716151413121110,
                                    0x1f1e1d1c1b1a1918};
}

TEST_CASE("the dice are the ChaCha20 key stream, as OpenSSL computes it") {
  Dice dice(kSeed, 0);
  CHECK(dice.next() == 0x7d2bfd39);
  CHECK(dice.next() == 0x6a19c5d9);
  for (int word = 2; word < 16; ++word)
    (void)dice.next();
  CHECK(dice.next() == 0x3142b818);  // the second block
  CHECK(Dice(kSeed, 5).next() == 0x4a19004f);
}

TEST_CASE("a bounded throw reaches every value and none beyond") {
  Dice dice(kSeed, 1);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 1000; ++i)
    seen.insert(dice.below(7));
  CHECK(seen == std::set<std::uint32_t>{0, 1, 2, 3, 4, 5, 6});
}
