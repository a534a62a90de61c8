#include "tests/sim/program.h"

#include <algorithm>
#include <cstring>

namespace roci::sim {

using namespace emulator;
using std::chrono::microseconds;

namespace {

// The highest rate, per million: of frames, of passes, of bursts, of bursts. Losses are such that seven
// retries in vain, which end a connection rightly, are not to be expected within 100 million packets.
constexpr std::array<std::uint32_t, kFaultCount> kHighest = {30'000, 60'000, 100'000, 30'000,
                                                             30'000, 30'000, 500'000, 400'000};

}  // namespace

void choose_faults(WorldConfig& config, const ProgramOptions& options, Random random) {
  const std::size_t mood = random.index(8);
  const std::uint32_t chance = mood == 0 ? 0 : mood <= 2 ? 300'000 : 800'000;
  std::array<std::uint32_t, kFaultCount> rates{};
  for (std::size_t i = 0; i < kFaultCount; ++i) {
    const bool is_on = random.chance(i < kLinkFaultCount ? chance : 600'000);
    const std::uint32_t rate = kHighest[i] >> random.index(5);  // rare as often as frequent
    if (is_on && options.has(static_cast<Fault>(i))) rates[i] = rate;
  }
  std::copy_n(rates.begin(), kLinkFaultCount, config.link.per_million.begin());
  config.pause_per_million = rates[static_cast<std::size_t>(Fault::kPause)];
  config.short_burst_per_million = rates[static_cast<std::size_t>(Fault::kShortBurst)];
  config.blocked_nic_per_million = rates[static_cast<std::size_t>(Fault::kBlockedNic)];
  config.link.delay = Duration(random.between32(200, 20'000));
  config.link.late_by = microseconds(random.between32(1, 300));
}

std::string describe_faults(const WorldConfig& config) {
  std::string text = "faults per million:";
  const auto add = [&](Fault fault, std::uint32_t rate) {
    if (rate != 0)
      text += ' ' + std::string(kFaultNames[static_cast<std::size_t>(fault)]) + ' ' + std::to_string(rate);
  };
  for (std::size_t i = 0; i < kLinkFaultCount; ++i)
    add(static_cast<Fault>(i), config.link.per_million[i]);
  add(Fault::kPause, config.pause_per_million);
  add(Fault::kShortBurst, config.short_burst_per_million);
  add(Fault::kBlockedNic, config.blocked_nic_per_million);
  return text;
}

bool is_clean(const LinkConfig& link) { return link.per_million == decltype(link.per_million){}; }

std::span<const std::byte> noise() {
  static const std::vector<std::byte> bytes = [] {
    Random random(1);
    std::vector<std::byte> all(std::size_t{1} << 20);
    for (std::byte& one : all)
      one = static_cast<std::byte>(random.next());
    return all;
  }();
  return bytes;
}

void fill_noise(Random& random, std::span<std::byte> bytes) {
  std::memcpy(bytes.data(), noise().data() + random.index(noise().size() - bytes.size() + 1), bytes.size());
}

void collect(World& world, const WorldConfig& config, ProgramResult& result) {
  for (unsigned host = 0; host < config.hosts; ++host) {
    for (unsigned node = 0; node < config.shards * config.nics; ++node) {
      const NicId nic{static_cast<std::uint8_t>(node % config.nics)};
      const Counters& counters = world.engine(host, node / config.nics).counters(nic);
      result.retransmitted += counters.retransmitted_packets;
      result.ack_timeouts += counters.ack_timeouts;
      result.rnr_naks += counters.rnr_naks_sent;
      result.sequence_naks += counters.sequence_naks_sent;
    }
  }
  for (std::size_t i = 0; i < kLinkFaultCount; ++i)
    result.faults[i] = world.link().faults(static_cast<Fault>(i));
  result.counts = world.counts();
  result.faults[static_cast<std::size_t>(Fault::kPause)] = result.counts.pauses;
  result.faults[static_cast<std::size_t>(Fault::kShortBurst)] = result.counts.short_bursts;
  result.faults[static_cast<std::size_t>(Fault::kBlockedNic)] = result.counts.blocked;
  result.virtual_time = world.now().time_since_epoch();
  result.trace_hash = world.trace_hash();
  const std::vector<std::string> violations = world.violations();
  if (result.ok() && !violations.empty())
    result.failure = violations.front() + " (" + std::to_string(violations.size()) + " such)";
}

}  // namespace roci::sim
