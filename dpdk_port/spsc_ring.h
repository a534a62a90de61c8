// A bounded ring between exactly two threads: one pushes, the other pops. Neither ever waits.
//
// Used for everything that crosses threads here: frames between shards, commands to a shard, replies back.
// Our own rather than rte_ring, because C++ values are moved through it, and because its ordering is in the
// language's terms, so that ThreadSanitizer can judge it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace roci::dpdk_port {

template <class T>
class SpscRing {
 public:
  // `slots`: a power of two; that many elements fit.
  explicit SpscRing(std::size_t slots) : mask_(slots - 1), elements_(std::make_unique<T[]>(slots)) {}

  // Producer. False: full, and `element` is untouched.
  [[nodiscard]] bool push(T&& element) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_seen_ > mask_) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head - tail_seen_ > mask_) return false;
    }
    elements_[head & mask_] = std::move(element);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Consumer. Moves out up to `max` elements; returns how many.
  std::size_t pop(T* out, std::size_t max) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (head_seen_ - tail < max) head_seen_ = head_.load(std::memory_order_acquire);
    std::size_t count = head_seen_ - tail;
    if (count > max) count = max;
    for (std::size_t i = 0; i < count; ++i)
      out[i] = std::move(elements_[(tail + i) & mask_]);
    if (count != 0) tail_.store(tail + count, std::memory_order_release);
    return count;
  }

  // Consumer: how many there are now at least.
  [[nodiscard]] std::size_t size() const {
    return head_.load(std::memory_order_acquire) - tail_.load(std::memory_order_relaxed);
  }

  // Any thread; a hint on all but the consumer's.
  [[nodiscard]] bool empty() const {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire);
  }

 private:
  const std::size_t mask_;
  const std::unique_ptr<T[]> elements_;
  // Indices grow without end. Each side keeps what it last saw of the other's, and looks again only when that
  // does not suffice, so that cache lines travel less often than elements.
  alignas(64) std::atomic<std::size_t> head_{0};
  std::size_t tail_seen_ = 0;
  alignas(64) std::atomic<std::size_t> tail_{0};
  std::size_t head_seen_ = 0;
};

}  // namespace roci::dpdk_port
