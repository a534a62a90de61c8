#include "tests/sim/link.h"

#include <algorithm>
#include <cstring>

#include "proto/parse_error.h"
#include "proto/roce_view.h"

namespace roci::sim {

using emulator::Duration;
using emulator::Time;

namespace {
constexpr std::size_t kBufferBytes = 9216;
}

FaultyLink::FaultyLink(LinkConfig config, Random random)
    : config_(std::move(config)),
      random_{random.fork(), random.fork(), random.fork(), random.fork(), random.fork()} {}

bool FaultyLink::is_chosen(Fault fault, std::uint64_t number) {
  const auto index = static_cast<std::size_t>(fault);
  if (random_[index].chance(config_.per_million[index])) return true;
  if (config_.exact.empty()) return false;
  const auto exact = config_.exact.find(number);
  return exact != config_.exact.end() && exact->second == fault;
}

Duration FaultyLink::late(Fault fault) {
  const auto most = static_cast<std::uint64_t>(config_.late_by.count());
  return Duration(static_cast<std::int64_t>(random_[static_cast<std::size_t>(fault)].between(1, most)));
}

Delivery FaultyLink::store(std::span<const std::byte> frame, std::size_t port) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(buffers_.size()));
    buffers_.emplace_back(new std::byte[kBufferBytes]);
  }
  const Delivery delivery{port, free_.back(), static_cast<std::uint32_t>(frame.size())};
  free_.pop_back();
  std::memcpy(buffers_[delivery.buffer].get(), frame.data(), frame.size());
  return delivery;
}

void FaultyLink::enqueue(const Delivery& delivery, Time at) {
  if (!held_until_.empty()) {
    const auto held = held_until_.find(delivery.port);
    if (held != held_until_.end()) at = std::max(at, held->second);
  }
  queue_.push_back({at, sequence_++, delivery});
  std::push_heap(queue_.begin(), queue_.end());
}

void FaultyLink::send(std::span<const std::byte> frame, std::size_t port, Time now) {
  const std::uint64_t number = frames_++;
  if (cut_.count(port) != 0) return;
  if (is_chosen(Fault::kDrop, number)) return count(Fault::kDrop);

  Time at = now + config_.delay;
  if (is_chosen(Fault::kDelay, number)) {
    count(Fault::kDelay);
    held_until_[port] = std::max(held_until_[port], at + late(Fault::kDelay));
  }
  if (is_chosen(Fault::kDuplicate, number)) {
    count(Fault::kDuplicate);
    enqueue(store(frame, port), at + late(Fault::kDuplicate));
  }
  if (is_chosen(Fault::kReorder, number)) {
    count(Fault::kReorder);
    at += late(Fault::kReorder);
  }
  const Delivery delivery = store(frame, port);
  proto::RoceView view;
  if (is_chosen(Fault::kCorrupt, number) && proto::parse_roce(frame, view) == proto::ParseError::kNone) {
    count(Fault::kCorrupt);
    const std::size_t bit = random_[static_cast<std::size_t>(Fault::kCorrupt)].index(frame.size() * 8);
    buffers_[delivery.buffer][bit / 8] ^= std::byte{1} << (bit % 8);
  }
  enqueue(delivery, at);
}

std::optional<Delivery> FaultyLink::receive(Time now) {
  if (next_delivery() > now) return std::nullopt;
  std::pop_heap(queue_.begin(), queue_.end());
  const Delivery delivery = queue_.back().delivery;
  queue_.pop_back();
  return delivery;
}

Delivery FaultyLink::copy(const Delivery& delivery) { return store(bytes(delivery), delivery.port); }

}  // namespace roci::sim
