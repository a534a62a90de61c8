// What a mutated source calls in place of an operator or a literal: the original, or its mutant where that
// one is switched on.
//
// One build holds all mutants; the environment variable ROCI_MUTANT=N switches number N on. What was reached
// is written to the file of ROCI_MUTANTS_REACHED, one number a line, when the program ends. In constant
// expressions the original holds. Only in the copy of the tree that tests/mutation/check makes.
#pragma once

#include <bitset>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace mutation {

class Switch {
 public:
  Switch() {
    if (const char* const number = std::getenv("ROCI_MUTANT")) active = std::atoi(number);
  }
  ~Switch() {
    const char* const path = std::getenv("ROCI_MUTANTS_REACHED");
    std::FILE* const file = path != nullptr ? std::fopen(path, "a") : nullptr;
    if (file == nullptr) return;
    for (std::size_t i = 0; i < reached.size(); ++i) {
      if (reached[i]) std::fprintf(file, "%zu\n", i);
    }
    std::fclose(file);
  }
  int active = 0;
  std::bitset<16384> reached;
};
inline Switch state;

constexpr bool on(int id) {
  if (std::is_constant_evaluated()) return false;
  state.reached[static_cast<std::size_t>(id)] = true;
  return state.active == id;
}

// A comparison; `edge` moves its boundary, `turn` says the opposite.
template <class A, class B>
constexpr bool less(int edge, int turn, const A& a, const B& b) {
  return (on(edge) ? a <= b : a < b) != on(turn);
}
template <class A, class B>
constexpr bool less_equal(int edge, int turn, const A& a, const B& b) {
  return (on(edge) ? a < b : a <= b) != on(turn);
}
template <class A, class B>
constexpr bool greater(int edge, int turn, const A& a, const B& b) {
  return (on(edge) ? a >= b : a > b) != on(turn);
}
template <class A, class B>
constexpr bool greater_equal(int edge, int turn, const A& a, const B& b) {
  return (on(edge) ? a > b : a >= b) != on(turn);
}
template <class A, class B>
constexpr bool equal(int turn, const A& a, const B& b) {
  return (a == b) != on(turn);
}
template <class A, class B>
constexpr bool not_equal(int turn, const A& a, const B& b) {
  return (a != b) != on(turn);
}
template <class A, class B>
constexpr auto plus(int id, const A& a, const B& b) -> decltype(a + b) {
  return on(id) ? static_cast<decltype(a + b)>(a - b) : a + b;
}
template <class A, class B>
constexpr auto minus(int id, const A& a, const B& b) -> decltype(a - b) {
  return on(id) ? static_cast<decltype(a - b)>(a + b) : a - b;
}
template <class T>
constexpr T constant(int id, T value) {
  return on(id) ? static_cast<T>(value + T{1}) : value;
}
constexpr bool constant(int id, bool value) { return value != on(id); }

}  // namespace mutation
