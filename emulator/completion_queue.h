// Completion queues: CQEs go into the ring one by one and become visible in bursts, at the end of a pass.
//
// Data is in place before a CQE, a CQE before the producer. A full CQ is an error of the CQ: it takes no more
// completions, and its QPs go to ERR [IBTA C11-37, C9-218].
//
// Events. An armed CQ announces the next completion. As hardware does, and applications count on, it also
// announces at once what is there when it is armed, if that is neither read nor was announced before.
// Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "emulator/event_queue.h"
#include "emulator/intrusive_list.h"
#include "emulator/ring.h"
#include "emulator/shared_layout.h"

namespace roci::emulator {

struct Context;
struct Counters;

struct CompletionQueue {
  Context* context = nullptr;
  std::uint32_t handle = 0;
  Ring ring;
  std::uint32_t producer = 0;  // ours; the ring's copy is for the application
  std::uint32_t consumer = 0;  // as last read
  std::uint32_t users = 0;     // send and receive queues attached
  // The number of completions so far; at the last that wakes, the last publication, the last event.
  std::uint64_t completions = 0, woke_at = 0, published_at = 0, announced_at = 0;
  bool is_overrun = false;
  EventSource events;
  OwnedNode<CompletionQueue> dirty_node{*this};
};

// Moves what the application has not taken, in order, into another ring; the old one is not touched again.
// False: it does not fit, and nothing has changed. The application must not poll meanwhile.
[[nodiscard]] bool move_to(CompletionQueue& cq, std::span<std::byte> bytes, RingShape shape);

class Completer {
 public:
  explicit Completer(EventQueue& events) : events_(events) {}

  // `wakes`: a solicited or unsuccessful completion, which a CQ armed for those announces, too.
  void complete(CompletionQueue& cq, const RingCqe& cqe, bool wakes, Counters& counters);
  // Makes all completions since the last call visible, and raises events where asked for.
  void publish();
  // The CQ was armed when it had news: what is old may have to be announced, at the next publish().
  void look_again(CompletionQueue& cq) { dirty_.push_back(cq.dirty_node); }
  // True once after a CQ overran.
  [[nodiscard]] bool take_overrun() { return std::exchange(has_overrun_, false); }

 private:
  void publish(CompletionQueue& cq);

  EventQueue& events_;
  IntrusiveList<CompletionQueue> dirty_;
  bool has_overrun_ = false;
};

}  // namespace roci::emulator
