// Small damage to an input, from a seed: the same on every platform.
//
// Of bytes: bits, values, pieces removed, repeated or taken from another input. Of text: the same with lines,
// words and numbers, so that most of it stays legible. Test code only. Pure but for the random numbers.
#pragma once

#include "tests/fuzz/target.h"
#include "tests/sim/random.h"

namespace roci::fuzz {

// `other` is where pieces are taken from; it may be the input itself.
[[nodiscard]] Input mutated_bytes(const Input& input, const Input& other, sim::Random& random);
[[nodiscard]] Input mutated_text(const Input& input, const Input& other, sim::Random& random);

}  // namespace roci::fuzz
