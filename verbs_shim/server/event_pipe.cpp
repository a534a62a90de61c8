#include "verbs_shim/server/event_pipe.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

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
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return proto::Unexpected{last_error()};
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  struct stat status = {};
  if (::fcntl(writer.get(), F_SETFL, O_NONBLOCK) != 0 || ::fstat(writer.get(), &status) != 0)
    return proto::Unexpected{last_error()};
  return Ends{std::shared_ptr<EventPipe>(new EventPipe(record, std::move(writer), status.st_ino)),
              std::move(reader)};
}

EventPipe::EventPipe(Record record, UniqueFd write_fd, ino_t inode)
    : record_(record), write_fd_(std::move(write_fd)), inode_(inode) {}

void EventPipe::watch(ObjectClass object, std::uint64_t element) {
  const std::lock_guard guard(mutex_);
  written_.emplace(Key{object, element}, 0);
}

void EventPipe::push(ObjectClass object, std::uint64_t element, std::uint32_t type) {
  const std::lock_guard guard(mutex_);
  const auto watched = written_.find({object, element});
  if (watched == written_.end()) return;
  const Event event{element, type, 0};
  if (!queue_.empty() || !write_record(event)) {
    if (queue_.empty() && errno != EAGAIN) return;  // the application closed its end
    if (queue_.size() == kMaxQueued) return;
    queue_.push_back(event);
  }
  ++watched->second;
}

void EventPipe::flush() {
  const std::lock_guard guard(mutex_);
  while (!queue_.empty() && write_record(queue_.front()))
    queue_.pop_front();
}

std::uint32_t EventPipe::purge(ObjectClass object, std::uint64_t element) {
  const std::lock_guard guard(mutex_);
  const Key key{object, element};
  const auto watched = written_.find(key);
  if (watched == written_.end()) return 0;
  std::uint32_t written = watched->second;
  written_.erase(watched);
  if (written == 0) return 0;
  const auto keep =
      std::remove_if(queue_.begin(), queue_.end(), [&](const Event& e) { return is_of(e, key); });
  written -= static_cast<std::uint32_t>(queue_.end() - keep);
  queue_.erase(keep, queue_.end());
  return written - std::min(written, take_out_unread(key));
}

// Reads the pipe empty and writes back what is not of `key`. The application may read at the same time: each
// record goes to one of the two.
std::uint32_t EventPipe::take_out_unread(const Key& key) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", write_fd_.get());
  const UniqueFd reader(::open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!reader) return 0;
  std::vector<Event> kept;
  std::uint32_t taken = 0;
  std::byte bytes[4096];
  for (std::size_t calls = 0; calls < kMaxQueued; ++calls) {
    const ssize_t length = ::read(reader.get(), bytes, sizeof bytes);
    if (length <= 0) break;
    for (std::size_t at = 0; at + record_bytes() <= static_cast<std::size_t>(length); at += record_bytes()) {
      Event event;
      std::memcpy(&event, bytes + at, record_bytes());
      if (is_of(event, key)) {
        ++taken;
      } else {
        kept.push_back(event);
      }
    }
  }
  std::size_t back = 0;
  while (queue_.empty() && back < kept.size() && write_record(kept[back]))
    ++back;
  queue_.insert(queue_.begin(), kept.begin() + static_cast<std::ptrdiff_t>(back), kept.end());
  return taken;
}

bool EventPipe::is_of(const Event& event, const Key& key) const {
  const std::uint32_t type =
      record_ == Record::kCompletion ? static_cast<std::uint32_t>(EventKind::kCompletion) : event.type;
  return event.element == key.second && class_of(type) == key.first;
}

// Whole or not at all, as it is shorter than PIPE_BUF.
bool EventPipe::write_record(const Event& event) {
  return ::write(write_fd_.get(), &event, record_bytes()) == static_cast<ssize_t>(record_bytes());
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
    if (pipe) pipe->push(class_of(type).value(), event.user_handle, type);
  }
}

}  // namespace roci::shim
