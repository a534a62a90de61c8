// What a fuzz target is to those that drive it: libFuzzer (libfuzzer.cpp), or a plain program (replay.cpp).
//
// A target is one file that defines kTarget and LLVMFuzzerTestOneInput. The latter takes any bytes, and
// aborts with a sentence where a property does not hold; what it does depends on these bytes only. Test code
// only. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace roci::fuzz {

using Input = std::vector<std::uint8_t>;

struct Target {
  bool is_text = false;                     // it is mutated by lines and numbers, otherwise by bytes
  std::vector<Input> (*seeds)() = nullptr;  // inputs that code makes; null: all come from files
};
extern const Target kTarget;

inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property does not hold: %s\n", property);
  std::abort();
}

}  // namespace roci::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
