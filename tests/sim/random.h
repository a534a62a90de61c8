// Random numbers of the simulator: splitmix64, the same on every platform and library.
//
// Plain value; whoever needs a stream of its own forks one. No thread rule.
#pragma once

#include <cstddef>
#include <cstdint>

namespace roci::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // Uniform in low .. high, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + next() % (high - low + 1); }
  std::uint32_t between32(std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint32_t>(between(low, high));
  }
  std::size_t index(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  // True that many times in a million.
  bool chance(std::uint32_t per_million) { return next() % 1'000'000 < per_million; }
  Random fork() { return Random{next()}; }

 private:
  std::uint64_t state_;
};

}  // namespace roci::sim
