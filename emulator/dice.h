// The engine's source of numbers that a peer cannot guess: QPNs and keys. A ChaCha20 key stream [RFC
// 8439, 2.3].
//
// The engine is handed the seed, so the same seed gives the same numbers. Not here: where a seed comes from,
// and anything that needs a secret to stay one after the process was read. Thread rule: one owner.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace roci::emulator {

class Dice {
 public:
  // Streams of one seed are independent; a shard uses its own number.
  constexpr Dice(const std::uint64_t (&seed)[4], std::uint64_t stream) {
    for (std::size_t i = 0; i < 4; ++i) {
      key_[2 * i] = static_cast<std::uint32_t>(seed[i]);
      key_[2 * i + 1] = static_cast<std::uint32_t>(seed[i] >> 32);
    }
    nonce_ = {static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  }

  constexpr std::uint32_t next() {
    if (used_ == block_.size()) refill();
    return block_[used_++];
  }
  // Uniform in 0 .. bound - 1; `bound` is not 0. The product method: the bias is below 2^-32 * bound.
  constexpr std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>((std::uint64_t{next()} * bound) >> 32);
  }

 private:
  using Block = std::array<std::uint32_t, 16>;

  static constexpr void quarter_round(Block& x, std::size_t a, std::size_t b, std::size_t c, std::size_t d) {
    x[a] += x[b], x[d] = std::rotl(x[d] ^ x[a], 16);
    x[c] += x[d], x[b] = std::rotl(x[b] ^ x[c], 12);
    x[a] += x[b], x[d] = std::rotl(x[d] ^ x[a], 8);
    x[c] += x[d], x[b] = std::rotl(x[b] ^ x[c], 7);
  }
  constexpr void refill() {
    const Block start = {0x61707865,
                         0x3320646e,
                         0x79622d32,
                         0x6b206574,
                         key_[0],
                         key_[1],
                         key_[2],
                         key_[3],
                         key_[4],
                         key_[5],
                         key_[6],
                         key_[7],
                         static_cast<std::uint32_t>(counter_),
                         static_cast<std::uint32_t>(counter_ >> 32),
                         nonce_[0],
                         nonce_[1]};
    block_ = start;
    for (int round = 0; round < 10; ++round) {
      for (std::size_t i = 0; i < 4; ++i)
        quarter_round(block_, i, 4 + i, 8 + i, 12 + i);
      for (std::size_t i = 0; i < 4; ++i)
        quarter_round(block_, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
    }
    for (std::size_t i = 0; i < block_.size(); ++i)
      block_[i] += start[i];
    ++counter_;
    used_ = 0;
  }

  std::array<std::uint32_t, 8> key_{};
  std::array<std::uint32_t, 2> nonce_{};
  std::uint64_t counter_ = 0;
  Block block_{};
  std::size_t used_ = block_.size();
};

}  // namespace roci::emulator
