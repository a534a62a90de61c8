// The engine's end of a shared ring: masked indices with the right ordering, elements by index.
//
// The header is the application's to scribble on, so only its producer (of work queues) or consumer (of CQs)
// is ever read, masked; slots and element size are our own. Who reads an element copies it once and judges
// the copy. Thread rule: the engine's thread, against the application's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "emulator/ring_shape.h"
#include "emulator/shared_layout.h"

namespace roci::emulator {

class Ring {
 public:
  Ring() = default;
  // `bytes` holds shape.bytes() at least. Writes the header: an empty ring.
  Ring(std::span<std::byte> bytes, RingShape shape)
      : base_(bytes.data()), mask_(shape.slots - 1), shift_(shape.log2_element_bytes) {
    RingHeader header{};
    header.log2_element_bytes = shape.log2_element_bytes;
    header.index_mask = mask_;
    std::memcpy(base_, &header, sizeof header);
  }

  // Indices only: for private slots that are filled from elsewhere.
  [[nodiscard]] static Ring without_memory(std::uint32_t slots) {
    Ring ring;
    ring.mask_ = slots - 1;
    return ring;
  }

  [[nodiscard]] std::uint32_t mask() const { return mask_; }
  [[nodiscard]] std::uint32_t slots() const { return mask_ + 1; }
  [[nodiscard]] std::size_t element_bytes() const { return std::size_t{1} << shift_; }
  [[nodiscard]] std::byte* element(std::uint32_t index) const {
    return base_ + kRingDataOffset + (std::size_t{index & mask_} << shift_);
  }
  [[nodiscard]] std::uint32_t after(std::uint32_t index) const { return (index + 1) & mask_; }
  [[nodiscard]] std::uint32_t before(std::uint32_t index) const { return (index - 1) & mask_; }
  [[nodiscard]] std::uint32_t distance(std::uint32_t from, std::uint32_t to) const {
    return (to - from) & mask_;
  }

  [[nodiscard]] std::uint32_t load_producer() const { return load(offsetof(RingHeader, producer)); }
  [[nodiscard]] std::uint32_t load_consumer() const { return load(offsetof(RingHeader, consumer)); }
  void store_producer(std::uint32_t index) { store(offsetof(RingHeader, producer), index); }
  void store_consumer(std::uint32_t index) { store(offsetof(RingHeader, consumer), index); }

 private:
  [[nodiscard]] std::uint32_t* word(std::size_t offset) const {
    return reinterpret_cast<std::uint32_t*>(base_ + offset);
  }
  [[nodiscard]] std::uint32_t load(std::size_t offset) const {
    return __atomic_load_n(word(offset), __ATOMIC_ACQUIRE) & mask_;
  }
  void store(std::size_t offset, std::uint32_t index) {
    __atomic_store_n(word(offset), index & mask_, __ATOMIC_RELEASE);
  }

  std::byte* base_ = nullptr;
  std::uint32_t mask_ = 0;
  std::uint32_t shift_ = 0;
};

}  // namespace roci::emulator
