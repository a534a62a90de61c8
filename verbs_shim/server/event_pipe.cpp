#include "verbs_shim/server/event_pipe.h"

#include <algorithm>
#include <optional>

namespace roci::shim {
namespace {

using emulator::EventKind;

// Of a number that came from the application's end of the pipe: it may be none of ours.
std::optional<ObjectClass> class_of(std::uint32_t type) {
  if (type > static_cast<std::uint32_t>(EventKind::kCompletion)) return std::nullopt;
  switch (static_cast<EventKind>(type)) {
    case EventKind::kCqErr:
    case EventKind::kCompletion:
      return ObjectClass::kCq;
    case EventKind::kQpFatal:
    case EventKind::kQpReqErr:
    case EventKind::kQpAccessErr:
    case EventKind::kCommEst:
    case EventKind::kSqDrained:
    case EventKind::kQpLastWqeReached:
      return ObjectClass::kQp;
    case EventKind::kSrqErr:
    case EventKind::kSrqLimitReached:
      return ObjectClass::kSrq;
    case EventKind::kPortActive:
    case EventKind::kPortErr:
    case EventKind::kGidChange:
      return ObjectClass::kPort;
  }
  return std::nullopt;
}

}  // namespace

proto::Result<EventPipe::Ends, std::errc> EventPipe::create(Record record) {
  auto ends = make_pipe();
  if (!ends) return proto::Unexpected{ends.error()};
  UniqueFd reader = std::move(ends->reader);
  return Ends{std::shared_ptr<EventPipe>(new EventPipe(record, std::move(*ends))), std::move(reader)};
}

void EventPipe::watch(ObjectClass object, std::uint64_t element) {
  const std::lock_guard guard(mutex_);
  written_.emplace(Key{object, element}, 0);
}

bool EventPipe::push(ObjectClass object, std::uint64_t element, std::uint32_t type) {
  const std::lock_guard guard(mutex_);
  const auto watched = written_.find({object, element});
  if (watched == written_.end()) return true;
  if (pipe_.is_full()) return false;
  if (pipe_.push(Event{element, type, 0})) ++watched->second;
  return true;
}

void EventPipe::flush() {
  const std::lock_guard guard(mutex_);
  pipe_.flush();
}

std::uint32_t EventPipe::purge(ObjectClass object, std::uint64_t element) {
  const std::lock_guard guard(mutex_);
  const Key key{object, element};
  const auto watched = written_.find(key);
  if (watched == written_.end()) return 0;
  const std::uint32_t written = watched->second;
  written_.erase(watched);
  if (written == 0) return 0;
  const auto taken = static_cast<std::uint32_t>(
      pipe_.take_out([&](const Event& event) { return is_of(event, key); }).size());
  return written - std::min(written, taken);
}

bool EventPipe::is_of(const Event& event, const Key& key) const {
  const std::uint32_t type =
      record_ == Record::kCompletion ? static_cast<std::uint32_t>(EventKind::kCompletion) : event.type;
  return event.element == key.second && class_of(type) == key.first;
}

// ---- router ------------------------------------------------------------------------------------------

void EventRouter::add_channel(std::uint64_t channel, std::shared_ptr<EventPipe> pipe) {
  const std::unique_lock guard(mutex_);
  channels_[channel] = std::move(pipe);
}

void EventRouter::remove_channel(std::uint64_t channel) {
  const std::unique_lock guard(mutex_);
  channels_.erase(channel);
}

void EventRouter::add_context(emulator::ContextId context, std::shared_ptr<EventPipe> async_pipe) {
  const std::unique_lock guard(mutex_);
  contexts_[context.value] = std::move(async_pipe);
}

void EventRouter::remove_context(emulator::ContextId context) {
  const std::unique_lock guard(mutex_);
  contexts_.erase(context.value);
}

std::shared_ptr<EventPipe> EventRouter::find(const emulator::Event& event) {
  const std::shared_lock guard(mutex_);
  if (event.kind == EventKind::kCompletion) {
    const auto at = channels_.find(event.channel);
    return at == channels_.end() ? nullptr : at->second;
  }
  const auto at = contexts_.find(event.context.value);
  return at == contexts_.end() ? nullptr : at->second;
}

void EventRouter::deliver(std::span<const emulator::Event> events) {
  for (const emulator::Event& event : events) {
    const std::shared_ptr<EventPipe> pipe = find(event);
    const auto type = static_cast<std::uint32_t>(event.kind);
    if (pipe && !pipe->push(class_of(type).value(), event.user_handle, type))
      lost_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace roci::shim
