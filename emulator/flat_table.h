// A map from unpredictable 32-bit numbers (QPNs, keys) to objects: open addressing, one cache line a lookup.
//
// The numbers come from Dice, so their low bits are as good as a hash. Grows on insert, which is a command
// and may allocate; find() never does. Owns nothing. Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace roci::emulator {

template <class T>
class FlatTable {
 public:
  [[nodiscard]] T* find(std::uint32_t number) const {
    for (std::size_t i = number & mask();; i = (i + 1) & mask()) {
      const Slot& slot = slots_[i];
      if (slot.number == number || slot.value == nullptr) return slot.value;
    }
  }
  // `number` is not in the table yet.
  void insert(std::uint32_t number, T& value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    place({number, &value});
    ++size_;
  }
  // Closes the gap, so that no search stops early and no tombstones gather.
  void erase(std::uint32_t number) {
    std::size_t hole = number & mask();
    while (slots_[hole].number != number || slots_[hole].value == nullptr) {
      if (slots_[hole].value == nullptr) return;
      hole = (hole + 1) & mask();
    }
    for (std::size_t i = (hole + 1) & mask(); slots_[i].value != nullptr; i = (i + 1) & mask()) {
      const std::size_t home = slots_[i].number & mask();
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;  // it would stand before its home
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = {};
    --size_;
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Slot {
    std::uint32_t number = 0;
    T* value = nullptr;
  };
  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  void place(Slot slot) {
    std::size_t i = slot.number & mask();
    while (slots_[i].value != nullptr)
      i = (i + 1) & mask();
    slots_[i] = slot;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.value != nullptr) place(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::size_t size_ = 0;
};

}  // namespace roci::emulator
