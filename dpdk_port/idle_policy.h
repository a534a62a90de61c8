// When a poll thread that found no work shall spin on, and when it shall sleep.
//
// Spinning is only ever good while a core is to spare: then the answer comes without a wake-up. Where
// applications themselves spin on every core, each microsecond we spin is taken from the one that should
// answer (2 cores, two spinning applications: 2.6-3.8 us from kick to answer when sleeping at once, 24 us
// when spinning 20 us first). So it spins for a bounded time after the last work, and not at all while the
// machine looks crowded. A value: no clock, no system call.
#pragma once

#include <cstdint>

#include "emulator/time.h"

namespace roci::dpdk_port {

// What the edge measured about the machine since the last sample.
struct LoadSample {
  std::uint32_t runnable_threads = 0;  // of the whole machine, this thread included
  std::uint32_t online_cpus = 1;
  std::uint32_t allowed_cpus = 1;          // of this thread
  std::uint64_t involuntary_switches = 0;  // of this thread, since it started
};

class IdlePolicy {
 public:
  struct Config {
    bool never_sleep = false;  // --poll
    emulator::Duration spin_after_work = std::chrono::microseconds(50);
    emulator::Duration sample_interval = std::chrono::milliseconds(2);
    emulator::Duration crowded_hold = std::chrono::milliseconds(200);  // one crowded sample counts this long
    emulator::Duration shortest_sleep = std::chrono::microseconds(2);  // sooner deadlines are spun for
  };

  explicit IdlePolicy(Config config) : config_(config) {}

  void on_work(emulator::Time now) { last_work_ = now; }

  // Is it time to measure again? Asked only when there is nothing else to do.
  [[nodiscard]] bool wants_sample(emulator::Time now) const {
    return !config_.never_sleep && now - last_sample_ >= config_.sample_interval;
  }
  void on_sample(const LoadSample& sample, emulator::Time now) {
    const bool displaced = sample.involuntary_switches != switches_seen_ && last_sample_ != emulator::Time{};
    switches_seen_ = sample.involuntary_switches;
    last_sample_ = now;
    // More threads want to run than there are cores, or somebody had to take ours away.
    if (sample.runnable_threads > sample.online_cpus || sample.allowed_cpus < 2 || displaced) {
      crowded_until_ = now + config_.crowded_hold;
    }
  }

  // Nothing was found to do at `now`. True: sleep until `deadline` or until woken.
  [[nodiscard]] bool should_sleep(emulator::Time now, emulator::Time deadline) const {
    if (config_.never_sleep || deadline <= now + config_.shortest_sleep) return false;
    return crowded(now) || now - last_work_ >= config_.spin_after_work;
  }
  [[nodiscard]] bool crowded(emulator::Time now) const { return now < crowded_until_; }

 private:
  Config config_;
  emulator::Time last_work_{};
  emulator::Time last_sample_{};
  emulator::Time crowded_until_{};
  std::uint64_t switches_seen_ = 0;
};

}  // namespace roci::dpdk_port
