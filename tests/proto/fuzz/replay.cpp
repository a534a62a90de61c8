// Drives a libFuzzer target without libFuzzer: built-in inputs (every opcode in every framing, and its text),
// files given as arguments, and N seeded mutations of each. Same seed, same inputs.
//
//   proto_fuzz_replay [--mutations N] [--seed S] [FILE...]
#include "tests/proto/support.h"

#include "proto/text.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using namespace roci::proto;
using namespace roci::proto::test;
using Input = std::vector<std::uint8_t>;

constexpr std::uint8_t kText = 5;  // what packet_fuzz.cpp takes for text

Input input_of(std::uint8_t choice, std::span<const std::byte> bytes) {
  Input input{choice};
  for (const std::byte one : bytes)
    input.push_back(std::to_integer<std::uint8_t>(one));
  return input;
}

std::vector<Input> built_in_inputs(Dice& dice) {
  std::vector<Input> inputs;
  for (unsigned value = 0; value < 256; ++value) {
    const auto opcode = static_cast<Opcode>(value);
    if (!info(opcode).is_known && value % 16 != 15) continue;
    for (const Shape shape : kShapes) {
      const Bytes payload = dice.bytes(4 * dice.below(5));
      const Packet packet = random_packet(dice, opcode, shape, payload);
      const std::string line = to_text(packet, TextDetail::kAll);
      inputs.push_back(input_of(packet.link == LinkType::kInfiniBand ? 3 : 0, frame_of(packet)));
      inputs.push_back(input_of(kText, std::as_bytes(std::span{line})));
    }
  }
  return inputs;
}

void mutate(Input& input, Dice& dice) {
  for (std::uint64_t changes = 1 + dice.below(4); changes > 0 && !input.empty(); --changes) {
    const std::size_t at = dice.below(input.size());
    switch (dice.below(5)) {
      case 0:
        input[at] ^= static_cast<std::uint8_t>(1U << dice.below(8));
        break;
      case 1:
        input[at] = static_cast<std::uint8_t>(dice.bits(8));
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at),
                     static_cast<std::uint8_t>(dice.bits(8)));
        break;
      default:
        input.erase(input.begin() + static_cast<std::ptrdiff_t>(at));
        break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t mutations = 100;
  std::uint32_t seed = 1;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--mutations" && i + 1 < argc) {
      mutations = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && i + 1 < argc) {
      seed = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else {
      files.emplace_back(word);
    }
  }
  std::printf("replay: proto_fuzz_replay --mutations %llu --seed %u\n",
              static_cast<unsigned long long>(mutations), seed);
  std::fflush(stdout);

  Dice dice{seed};
  std::vector<Input> inputs = built_in_inputs(dice);
  for (const std::string& path : files) {
    std::ifstream file{path, std::ios::binary};
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      return 2;
    }
    inputs.emplace_back(std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{});
  }
  std::uint64_t runs = 0;
  for (const Input& input : inputs) {
    LLVMFuzzerTestOneInput(input.data(), input.size());
    for (std::uint64_t i = 0; i < mutations; ++i) {
      Input mutated = input;
      mutate(mutated, dice);
      LLVMFuzzerTestOneInput(mutated.data(), mutated.size());
      ++runs;
    }
  }
  std::printf("%zu inputs, %llu mutations: every property holds\n", inputs.size(),
              static_cast<unsigned long long>(runs));
  return 0;
}
