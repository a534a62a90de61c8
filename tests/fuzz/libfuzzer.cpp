// What a target needs besides itself to run under libFuzzer: text is mutated by lines, and the inputs that
// code makes are written to a folder by `PROGRAM --seeds FOLDER`, for a corpus.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/target.h"

using namespace roci::fuzz;

extern "C" {
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned int seed);
std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t one_size,
                                      const std::uint8_t* other, std::size_t other_size, std::uint8_t* out,
                                      std::size_t max_size, unsigned int seed);
int LLVMFuzzerInitialize(int* argc, char*** argv);

static std::size_t store(const Input& input, std::uint8_t* out, std::size_t max_size) {
  const std::size_t size = std::min(input.size(), max_size);
  std::copy_n(input.begin(), size, out);
  return size;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                    unsigned int seed) {
  roci::sim::Random random(seed);
  if (!kTarget.is_text || random.index(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  const Input input(data, data + size);
  return store(mutated_text(input, input, random), data, max_size);
}

std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t one_size,
                                      const std::uint8_t* other, std::size_t other_size, std::uint8_t* out,
                                      std::size_t max_size, unsigned int seed) {
  roci::sim::Random random(seed);
  const Input input(one, one + one_size), from(other, other + other_size);
  return store(kTarget.is_text ? mutated_text(input, from, random) : mutated_bytes(input, from, random), out,
               max_size);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--seeds") != 0) return 0;
  const std::vector<Input> seeds = kTarget.seeds == nullptr ? std::vector<Input>{} : kTarget.seeds();
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream file(std::string((*argv)[2]).append("/seed-").append(std::to_string(i)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seeds[i].data()), static_cast<std::streamsize>(seeds[i].size()));
    if (!file.flush()) std::exit(1);
  }
  std::exit(0);
}
}
