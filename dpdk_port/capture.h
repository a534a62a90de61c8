// Captures: frames seen by the shards go to pcapng files, each frame once, with what became of it as a
// comment.
//
// Where it is tapped: a fabric frame when its receiver's engine has judged it, or where it was lost before; a
// device frame when sent and when received. Shards copy into a ring and go on; a thread of ours starts,
// writes and stops all captures, so that a file that blocks holds nobody but the other captures. What the
// ring or the file could not take is counted into the file's statistics block. Off costs the shards one
// branch a burst. Thread rule: as each class says.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dpdk_port/capture_ring.h"
#include "emulator/time.h"
#include "verbs_shim/server/server.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {

// What the shards look at, and what the captures want of them.
struct CaptureSwitch {
  std::atomic<bool> on{false};
  std::atomic<std::uint32_t> snap_length_bytes{0};  // the longest of all captures
};

// The shard's end. That shard's thread.
class CaptureTap {
 public:
  explicit CaptureTap(const CaptureSwitch& wanted) : wanted_(wanted) {}

  [[nodiscard]] bool on() const { return wanted_.on.load(std::memory_order_relaxed); }
  // No frame recorded from now on is older than `time`. Called in each pass while on(), or kNever before
  // sleeping and Time{} before the clock is read after it: the writer merges shards by time.
  void set_horizon(emulator::Time time) {
    horizon_.store(time.time_since_epoch().count(), std::memory_order_release);
  }
  void record(std::span<const std::byte> frame, emulator::NicId from, emulator::NicId to, Fate fate,
              emulator::Time time) {
    ring_.put(frame, wanted_.snap_length_bytes.load(std::memory_order_relaxed), from, to, fate, time);
  }

  // The writer's end.
  [[nodiscard]] CaptureRing& ring() { return ring_; }
  [[nodiscard]] const CaptureRing& ring() const { return ring_; }
  [[nodiscard]] std::int64_t horizon_ns() const { return horizon_.load(std::memory_order_acquire); }

 private:
  const CaptureSwitch& wanted_;
  CaptureRing ring_;
  std::atomic<std::int64_t> horizon_{0};
};

// The control thread's end, and the writing thread.
class CaptureHub final : public shim::CaptureControl {
 public:
  struct Config {
    std::vector<std::string> nic_names, port_names;
    std::uint32_t shards = 1;
    std::size_t ring_bytes = std::size_t{256} << 20;  // per shard, touched only while capturing
    std::uint32_t max_captures = 8;
    emulator::Duration write_interval = std::chrono::milliseconds(1);
    emulator::Duration write_patience =
        std::chrono::seconds(2);  // a pipe that takes nothing so long is given up
    std::string application = "rocid";
    // Returns once every shard has begun a pass after the call; false: one did not for a long time.
    std::function<bool()> wait_for_pass = [] { return true; };
  };
  static constexpr std::uint32_t kMaxSnapLengthBytes = 65536;

  explicit CaptureHub(Config config);
  ~CaptureHub() override;

  [[nodiscard]] CaptureTap& tap(std::uint32_t shard) { return *taps_[shard]; }
  void set_wait_for_pass(std::function<bool()> wait) { config_.wait_for_pass = std::move(wait); }

  // Ends what is left; nothing may be asked for afterwards. Before the shards go.
  void end();

  void start(shim::UniqueFd fd, const Wanted& wanted, std::function<void(std::int64_t)> then) override;
  void stop(std::int64_t id, std::function<void(const Totals&)> then) override;
  [[nodiscard]] int answers_fd() const override { return answers_fd_.get(); }
  void run_answers() override;

 private:
  struct File;
  using Job = std::function<void()>;
  void submit(Job job);
  void answer(Job answer);
  [[nodiscard]] Job next_job();
  // The rest is the writer's.
  void write_loop();
  [[nodiscard]] std::int64_t begin(shim::UniqueFd fd, const Wanted& wanted);
  [[nodiscard]] Totals finish(std::int64_t id);
  [[nodiscard]] std::int64_t horizon_ns() const;
  bool drain(std::int64_t until_ns, std::size_t most);  // false: nothing was there
  void write_record(const CaptureRing::Record& record);
  void update_switch();

  Config config_;
  CaptureSwitch switch_;
  std::vector<std::unique_ptr<CaptureTap>> taps_;
  std::mutex mutex_;  // of the next four
  std::condition_variable wake_;
  std::deque<Job> jobs_, answers_;
  bool ending_ = false;
  const shim::UniqueFd answers_fd_;
  std::vector<std::unique_ptr<File>> files_;  // the writer's, as is the consumer's side of the rings
  std::int64_t next_id_ = 1;
  std::thread writer_;  // last: uses all of the above
};

}  // namespace roci::dpdk_port
