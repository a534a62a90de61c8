// A faulty link: takes frames, loses, repeats, delays, reorders or damages them, and says when they arrive.
//
// Faults come at rates, from a seed, or exactly: the n-th frame sent. Damage flips one bit of a RoCE frame;
// other frames (ARP, ND) have no check of their own and are never damaged. Virtual time only. Thread rule:
// one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "emulator/time.h"
#include "tests/sim/random.h"

namespace roci::sim {

enum class Fault : std::uint8_t { kDrop, kDuplicate, kReorder, kCorrupt };
inline constexpr std::size_t kFaultCount = 4;
inline constexpr std::array<const char*, kFaultCount> kFaultNames = {"dropped", "duplicated", "reordered",
                                                                     "corrupted"};

struct LinkConfig {
  std::array<std::uint32_t, kFaultCount> per_million{};         // rate of each fault
  std::map<std::uint64_t, Fault> exact;                         // by number of the frame, from 0
  emulator::Duration delay = std::chrono::microseconds(2);      // of every frame
  emulator::Duration late_by = std::chrono::microseconds(100);  // at most, what is reordered or repeated
};

struct Delivery {
  std::size_t port = 0;  // of the receiver
  std::vector<std::byte> frame;
};

class FaultyLink {
 public:
  FaultyLink(LinkConfig config, Random random) : config_(std::move(config)), random_(random) {}

  void send(std::span<const std::byte> frame, std::size_t port, emulator::Time now);
  [[nodiscard]] emulator::Time next_delivery() const {
    return queue_.empty() ? emulator::kNever : queue_.begin()->first.first;
  }
  // The next frame that is due.
  [[nodiscard]] std::optional<Delivery> receive(emulator::Time now);

  [[nodiscard]] std::uint64_t frames() const { return frames_; }
  [[nodiscard]] std::uint64_t faults(Fault fault) const { return counts_[static_cast<std::size_t>(fault)]; }
  // Both ways, from now on; what is under way arrives.
  void set_rates(const std::array<std::uint32_t, kFaultCount>& per_million) {
    config_.per_million = per_million;
  }
  // Nothing passes a cut port, in either direction for whoever sends to it.
  void cut(std::size_t port) { cut_.insert(port); }
  void mend(std::size_t port) { cut_.erase(port); }

 private:
  bool happens(Fault fault, std::uint64_t number);
  void enqueue(std::vector<std::byte> frame, std::size_t port, emulator::Time at) {
    queue_.emplace(std::pair{at, sequence_++}, Delivery{port, std::move(frame)});
  }

  LinkConfig config_;
  Random random_;
  std::map<std::pair<emulator::Time, std::uint64_t>, Delivery> queue_;
  std::set<std::size_t> cut_;
  std::uint64_t sequence_ = 0, frames_ = 0;
  std::array<std::uint64_t, kFaultCount> counts_{};
};

}  // namespace roci::sim
