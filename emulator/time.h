// Time as the engine is handed it: nanoseconds since an arbitrary start, monotonic.
//
// The engine has no clock. The daemon passes the monotonic clock, the simulator passes virtual time.
#pragma once

#include <chrono>
#include <cstdint>

namespace roci::emulator {

using Duration = std::chrono::nanoseconds;

struct EngineClock {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = Duration;
  using time_point = std::chrono::time_point<EngineClock>;
  static constexpr bool is_steady = true;
};

using Time = EngineClock::time_point;
inline constexpr Time kNever = Time::max();

}  // namespace roci::emulator
