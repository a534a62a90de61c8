// A faulty link: takes frames, loses, repeats, delays, reorders or damages them, and says when they arrive.
//
// Faults come at rates, from a seed, or exactly: the n-th frame sent. Each kind draws from a stream of its
// own, so one that is switched off leaves the others as they were. Damage flips one bit of a RoCE frame;
// other frames (ARP, ND) have no check of their own and are never damaged. Frames lie in a pool: nothing is
// allocated for one that is sent. Virtual time only. Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "emulator/time.h"
#include "tests/sim/random.h"

namespace roci::sim {

// What is done to a run. Those of the link come first, the others are the daemon's (world.h).
enum class Fault : std::uint8_t {
  kDrop,
  kDuplicate,
  kReorder,  // this frame comes later than those behind it
  kCorrupt,
  kDelay,  // this frame and all behind it come later, in their order
  kPause,
  kShortBurst,
  kBlockedNic
};
inline constexpr std::size_t kLinkFaultCount = 5, kFaultCount = 8;
inline constexpr std::array<const char*, kFaultCount> kFaultNames = {
    "drop", "duplicate", "reorder", "corrupt", "delay", "pause", "short-burst", "blocked-nic"};
// Numbers by fault: how many, or rates per million.
using FaultNumbers = std::array<std::uint64_t, kFaultCount>;

struct LinkConfig {
  std::array<std::uint32_t, kLinkFaultCount> per_million{};     // rate of each fault
  std::map<std::uint64_t, Fault> exact;                         // by number of the frame, from 0
  emulator::Duration delay = std::chrono::microseconds(2);      // of every frame
  emulator::Duration late_by = std::chrono::microseconds(100);  // at most, what a fault makes late
};

// A frame that has arrived. Its bytes lie in the link until it is released.
struct Delivery {
  std::size_t port = 0;  // of the receiver
  std::uint32_t buffer = 0;
  std::uint32_t length_bytes = 0;
};

class FaultyLink {
 public:
  FaultyLink(LinkConfig config, Random random);

  void send(std::span<const std::byte> frame, std::size_t port, emulator::Time now);
  [[nodiscard]] emulator::Time next_delivery() const {
    return queue_.empty() ? emulator::kNever : queue_.front().at;
  }
  // The next frame that is due; to be released.
  [[nodiscard]] std::optional<Delivery> receive(emulator::Time now);
  [[nodiscard]] std::span<const std::byte> bytes(const Delivery& delivery) const {
    return {buffers_[delivery.buffer].get(), delivery.length_bytes};
  }
  // A second one of the same bytes, to be released, too.
  [[nodiscard]] Delivery copy(const Delivery& delivery);
  void release(const Delivery& delivery) { free_.push_back(delivery.buffer); }

  [[nodiscard]] std::uint64_t frames() const { return frames_; }
  [[nodiscard]] std::uint64_t faults(Fault fault) const { return counts_[static_cast<std::size_t>(fault)]; }
  // Nothing passes a cut port, in either direction for whoever sends to it.
  void cut(std::size_t port) { cut_.insert(port); }
  void mend(std::size_t port) { cut_.erase(port); }

 private:
  struct Queued {
    emulator::Time at;
    std::uint64_t sequence = 0;
    Delivery delivery;
    [[nodiscard]] bool operator<(const Queued& other) const {  // of a heap whose front is the earliest
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  [[nodiscard]] bool is_chosen(Fault fault, std::uint64_t number);
  void count(Fault fault) { ++counts_[static_cast<std::size_t>(fault)]; }
  [[nodiscard]] emulator::Duration late(Fault fault);
  Delivery store(std::span<const std::byte> frame, std::size_t port);
  void enqueue(const Delivery& delivery, emulator::Time at);

  LinkConfig config_;
  std::array<Random, kLinkFaultCount> random_;
  std::vector<Queued> queue_;  // a heap
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<std::uint32_t> free_;
  std::map<std::size_t, emulator::Time> held_until_;  // by port
  std::set<std::size_t> cut_;
  std::uint64_t sequence_ = 0, frames_ = 0;
  std::array<std::uint64_t, kLinkFaultCount> counts_{};
};

}  // namespace roci::sim
