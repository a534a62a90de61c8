// When a poll thread spins and when it sleeps, as a table of moments.
#include "dpdk_port/idle_policy.h"

#include <catch2/catch.hpp>

using namespace roci;
using namespace roci::dpdk_port;
using namespace std::chrono_literals;
using emulator::kNever;
using emulator::Time;

namespace {
constexpr Time at(emulator::Duration since_start) { return Time{1s} + since_start; }
constexpr LoadSample kSpare{1, 4, 4, 0};
}  // namespace

TEST_CASE("with a core to spare it spins a while after the last work, then sleeps") {
  IdlePolicy idle{{}};
  idle.on_sample(kSpare, at(0us));
  idle.on_work(at(0us));
  CHECK_FALSE(idle.should_sleep(at(1us), kNever));
  CHECK_FALSE(idle.should_sleep(at(49us), kNever));
  CHECK(idle.should_sleep(at(50us), kNever));
  idle.on_work(at(60us));
  CHECK_FALSE(idle.should_sleep(at(61us), kNever));
}

TEST_CASE("with more threads than cores it sleeps at once, and tries again after a while") {
  IdlePolicy idle{{}};
  idle.on_sample({3, 2, 2, 0}, at(0us));
  idle.on_work(at(10us));
  CHECK(idle.crowded(at(11us)));
  CHECK(idle.should_sleep(at(11us), kNever));
  idle.on_sample({2, 2, 2, 0}, at(3ms));  // one calm sample does not end it
  idle.on_work(at(4ms));
  CHECK(idle.should_sleep(at(4ms) + 1us, kNever));
  idle.on_work(at(200ms));
  CHECK_FALSE(idle.should_sleep(at(200ms) + 1us, kNever));
}

TEST_CASE("losing the core against its will counts as crowded, from the second sample on") {
  IdlePolicy idle{{}};
  idle.on_sample({1, 4, 4, 17}, at(0us));  // switches from before it was looked at
  CHECK_FALSE(idle.crowded(at(1us)));
  idle.on_sample({1, 4, 4, 18}, at(2ms));
  CHECK(idle.crowded(at(2ms)));
  idle.on_sample({1, 4, 4, 18}, at(300ms));
  CHECK_FALSE(idle.crowded(at(300ms)));
}

TEST_CASE("a single allowed core is never to spare") {
  IdlePolicy idle{{}};
  idle.on_sample({1, 4, 1, 0}, at(0us));
  idle.on_work(at(0us));
  CHECK(idle.should_sleep(at(1us), kNever));
}

TEST_CASE("it does not sleep for a deadline that is nearly there") {
  IdlePolicy idle{{}};
  idle.on_sample({3, 2, 2, 0}, at(0us));
  CHECK_FALSE(idle.should_sleep(at(10us), at(9us)));
  CHECK_FALSE(idle.should_sleep(at(10us), at(12us)));
  CHECK(idle.should_sleep(at(10us), at(13us)));
}

TEST_CASE("it measures now and then, and with --poll neither measures nor sleeps") {
  IdlePolicy idle{{}};
  CHECK(idle.wants_sample(at(0us)));
  idle.on_sample(kSpare, at(0us));
  CHECK_FALSE(idle.wants_sample(at(1999us)));
  CHECK(idle.wants_sample(at(2ms)));

  IdlePolicy::Config config;
  config.never_sleep = true;
  const IdlePolicy polling{config};
  CHECK_FALSE(polling.wants_sample(at(1s)));
  CHECK_FALSE(polling.should_sleep(at(1s), kNever));
}
