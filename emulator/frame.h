// Frames at the engine's border: what it is lent to read, and what it fills to send.
//
// A frame starts at the Ethernet header and ends behind the ICRC, without FCS. NICs of one daemon are
// numbered from 0. Thread rule: everything here is used by the one thread that runs the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::emulator {

// Index of a NIC in its daemon, the same in every shard.
struct NicId {
  std::uint8_t index = 0;
  constexpr bool operator==(const NicId&) const = default;
};
inline constexpr std::size_t kMaxNics = 64;

// A received frame, lent for the call that carries it.
struct Frame {
  std::span<const std::byte> bytes;
  NicId nic;
};

// An empty buffer lent by a TxSink, to be filled with one frame.
struct TxFrame {
  std::byte* data = nullptr;
  std::uint32_t capacity_bytes = 0;
  std::uint32_t length_bytes = 0;  // set by the engine
  NicId nic;                       // set by the engine
};

// Where a burst of frames goes. One reserve/commit pair a burst, so a virtual call costs nothing that
// can be measured.
class TxSink {
 public:
  TxSink() = default;
  TxSink(const TxSink&) = delete;
  TxSink& operator=(const TxSink&) = delete;
  virtual ~TxSink() = default;

  // Lends up to `max` buffers, each large enough for the largest frame of any NIC; fewer, or none,
  // where buffers are short. The loan ends at commit().
  [[nodiscard]] virtual std::span<TxFrame> reserve(std::size_t max) = 0;
  // The first `count` lent frames are sent in this order; the others go back unused.
  virtual void commit(std::size_t count) = 0;
  // Bit n set: NIC n takes no frame now (its device queue is full). Read once a burst, before reserve().
  [[nodiscard]] virtual std::uint64_t blocked_nics() const = 0;
};

}  // namespace roci::emulator
