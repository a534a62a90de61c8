// A line of progress on a terminal, for files that take longer than a moment. One thread.
#pragma once

#include "tools/trace/reader.h"

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace roci::tools {

class Progress {
 public:
  Progress(bool is_on, std::string path, std::ostream& err)
      : is_on_(is_on), path_(std::move(path)), err_(err), next_(Clock::now() + kFirst) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (is_shown_) err_ << "\r\033[K" << std::flush;
  }

  // Cheap: looks at the clock for one frame in many.
  void on_frame(const CaptureReader& reader, std::uint64_t number) {
    if (!is_on_ || number % kFramesBetweenLooks != 0) return;
    const Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + kBetween;
    is_shown_ = true;
    err_ << "\r\033[K" << path_ << ": " << number << " frames";
    if (reader.file_bytes() > 0) err_ << ", " << 100 * reader.bytes_read() / reader.file_bytes() << " %";
    err_ << std::flush;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirst{1000};
  static constexpr std::chrono::milliseconds kBetween{200};
  static constexpr std::uint64_t kFramesBetweenLooks = 4096;

  bool is_on_;
  bool is_shown_ = false;
  std::string path_;
  std::ostream& err_;
  Clock::time_point next_;
};

}  // namespace roci::tools
