// Result<T, E>: a value or the reason why there is none, with the names of std::expected (C++23).
//
// Not here: monadic chaining; callers test and return. Reading the absent side is a broken invariant
// and aborts. Plain values, no thread rule.
#pragma once

#include <cstdlib>
#include <utility>
#include <variant>

namespace roci::proto {

template <class E>
struct Unexpected {
  E error;
};
template <class E>
Unexpected(E) -> Unexpected<E>;

template <class T, class E>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Unexpected<E> why) : state_(std::in_place_index<1>, std::move(why.error)) {}

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  [[nodiscard]] explicit operator bool() const { return has_value(); }
  [[nodiscard]] T& value() & { return *need(std::get_if<0>(&state_)); }
  [[nodiscard]] const T& value() const& { return *need(std::get_if<0>(&state_)); }
  [[nodiscard]] T&& value() && { return std::move(value()); }
  [[nodiscard]] const E& error() const { return *need(std::get_if<1>(&state_)); }
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] const T* operator->() const { return &value(); }

 private:
  template <class P>
  static P* need(P* side) {
    if (side == nullptr) std::abort();
    return side;
  }
  std::variant<T, E> state_;
};

}  // namespace roci::proto
