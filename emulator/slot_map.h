// Objects by handle: the lowest free index is the next handle, as drivers number them.
//
// Allocates on add(); for the control plane. Owns its objects. Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

namespace roci::emulator {

template <class T>
class SlotMap {
 public:
  [[nodiscard]] T* find(std::uint32_t handle) const {
    return handle < slots_.size() ? slots_[handle].get() : nullptr;
  }
  // The handle that add() will give.
  [[nodiscard]] std::uint32_t next_handle() const {
    return free_.empty() ? static_cast<std::uint32_t>(slots_.size()) : free_.top();
  }
  T& add(std::unique_ptr<T> object) {
    const std::uint32_t handle = next_handle();
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      free_.pop();
    }
    slots_[handle] = std::move(object);
    ++size_;
    return *slots_[handle];
  }
  void remove(std::uint32_t handle) {
    slots_[handle].reset();
    free_.push(handle);
    --size_;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  // Calls `visit(object)` in the order of the handles; it must neither add nor remove.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& slot : slots_) {
      if (slot != nullptr) visit(*slot);
    }
  }
  // Handles in use, for a caller that removes.
  [[nodiscard]] std::vector<std::uint32_t> handles() const {
    std::vector<std::uint32_t> used;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] != nullptr) used.push_back(static_cast<std::uint32_t>(i));
    }
    return used;
  }

 private:
  std::vector<std::unique_ptr<T>> slots_;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> free_;
  std::size_t size_ = 0;
};

}  // namespace roci::emulator
