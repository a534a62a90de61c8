#include "tests/sim/link.h"

#include "proto/parse_error.h"
#include "proto/roce_view.h"

namespace roci::sim {

using emulator::Duration;
using emulator::Time;

bool FaultyLink::happens(Fault fault, std::uint64_t number) {
  const auto exact = config_.exact.find(number);
  const bool chosen = exact != config_.exact.end() && exact->second == fault;
  const bool random = random_.chance(config_.per_million[static_cast<std::size_t>(fault)]);
  if (chosen || random) ++counts_[static_cast<std::size_t>(fault)];
  return chosen || random;
}

void FaultyLink::send(std::span<const std::byte> frame, std::size_t port, Time now) {
  const std::uint64_t number = frames_++;
  if (cut_.count(port) != 0) return;
  if (happens(Fault::kDrop, number)) return;

  std::vector<std::byte> copy(frame.begin(), frame.end());
  const auto late = [&] {
    return Duration(
        static_cast<std::int64_t>(random_.between(1, static_cast<std::uint64_t>(config_.late_by.count()))));
  };
  if (happens(Fault::kDuplicate, number)) enqueue(copy, port, now + config_.delay + late());
  Time at = now + config_.delay;
  if (happens(Fault::kReorder, number)) at += late();
  proto::RoceView view;
  if (proto::parse_roce(frame, view) == proto::ParseError::kNone && happens(Fault::kCorrupt, number)) {
    const std::size_t bit = random_.index(copy.size() * 8);
    copy[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  enqueue(std::move(copy), port, at);
}

std::optional<Delivery> FaultyLink::receive(Time now) {
  if (next_delivery() > now) return std::nullopt;
  return std::move(queue_.extract(queue_.begin()).mapped());
}

}  // namespace roci::sim
