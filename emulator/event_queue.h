// Events on their way to the clients: each object remembers what is pending, so the queue never grows beyond
// the objects, however often something happens.
//
// At most one completion event and one of each asynchronous kind wait per object. Thread rule: the engine's
// thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "emulator/command.h"
#include "emulator/intrusive_list.h"

namespace roci::emulator {

struct EventSource {
  ContextId context;
  std::uint64_t user_handle = 0;
  std::uint64_t channel = 0;
  std::uint32_t object = 0;
  std::uint32_t pending = 0;  // a bit for each kind
  OwnedNode<EventSource> node{*this};
};

class EventQueue {
 public:
  void raise(EventSource& source, EventKind kind) {
    source.pending |= std::uint32_t{1} << bit_of(kind);
    waiting_.push_back(source.node);
  }
  std::size_t drain(std::span<Event> out) {
    std::size_t count = 0;
    while (count < out.size() && !waiting_.is_empty()) {
      EventSource& source = waiting_.front();
      const auto bit = static_cast<unsigned>(std::countr_zero(source.pending));
      source.pending &= source.pending - 1;
      if (source.pending == 0) source.node.unlink();
      const EventKind kind = bit == kCompletionBit ? EventKind::kCompletion : static_cast<EventKind>(bit);
      out[count++] = {kind, source.context, source.user_handle,
                      kind == EventKind::kCompletion ? source.channel : 0, source.object};
    }
    return count;
  }

 private:
  static constexpr unsigned kCompletionBit = 31;
  static constexpr unsigned bit_of(EventKind kind) {
    return kind == EventKind::kCompletion ? kCompletionBit : static_cast<unsigned>(kind);
  }
  IntrusiveList<EventSource> waiting_;
};

}  // namespace roci::emulator
