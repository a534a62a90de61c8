// The bounded way of one shard's captured frames to the thread that writes the files.
//
// One producer, the shard, which never waits: what finds no room is lost, and counted. One consumer at a
// time. Memory is mapped twice in a row, so that no record is ever split, and is given back to the system
// when nothing is captured.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "emulator/counters.h"
#include "emulator/frame.h"
#include "emulator/time.h"

namespace roci::dpdk_port {

// The other end of a frame that came from or went to a device port.
inline constexpr emulator::NicId kWire{0xFF};

// What became of a captured frame: an engine's verdict, or a place where it was lost before any engine saw
// it.
enum class Fate : std::uint8_t {
  kNobody = 0xF0,     // no station of the fabric has that MAC
  kQueueFull = 0xF1,  // a shard's input was full
  kLinkDown = 0xF2,   // the sender's port is down
};
[[nodiscard]] constexpr Fate fate_of(emulator::DropReason reason) { return static_cast<Fate>(reason); }

class CaptureRing {
 public:
  struct Record {
    std::uint32_t record_bytes;
    std::uint32_t captured_bytes;
    std::uint32_t original_bytes;
    emulator::NicId from, to;
    Fate fate;
    std::uint8_t reserved;
    std::int64_t time_ns;  // of emulator::Time
    [[nodiscard]] std::span<const std::byte> bytes() const {
      return {reinterpret_cast<const std::byte*>(this + 1), captured_bytes};
    }
  };
  static_assert(sizeof(Record) == 24);

  CaptureRing() = default;
  ~CaptureRing();
  CaptureRing(const CaptureRing&) = delete;
  CaptureRing& operator=(const CaptureRing&) = delete;

  // Before the first put(). `bytes`: a power of two and a multiple of the page size. False: no memory.
  [[nodiscard]] bool allocate(std::size_t bytes);
  // Gives the memory's pages back; while neither side is at work.
  void release_pages();

  // Producer. False: no room, nothing was stored, and the loss is counted.
  bool put(std::span<const std::byte> frame, std::size_t snap_length_bytes, emulator::NicId from,
           emulator::NicId to, Fate fate, emulator::Time time);

  // Consumer: the oldest record, or null; it stays valid until pop().
  [[nodiscard]] const Record* front() const;
  void pop();

  // Any thread: how many of the frames from `from` to `to` were lost so far.
  [[nodiscard]] std::uint64_t lost(emulator::NicId from, emulator::NicId to) const {
    return lost_[end_index(from)][end_index(to)].load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kEnds = emulator::kMaxNics + 1;  // the NICs and the wire
  static std::size_t end_index(emulator::NicId nic) { return nic == kWire ? kEnds - 1 : nic.index; }

  std::byte* memory_ = nullptr;  // 2 * bytes_ of address space
  std::size_t bytes_ = 0;
  alignas(64) std::atomic<std::size_t> head_{0};
  alignas(64) std::atomic<std::size_t> tail_{0};
  alignas(64) std::array<std::array<std::atomic<std::uint64_t>, kEnds>, kEnds> lost_{};
};

}  // namespace roci::dpdk_port
