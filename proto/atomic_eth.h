// Atomic Extended Transport Header, on CmpSwap and FetchAdd requests [IBTA 5.2.7].
//
// FetchAdd ignores compare_data. Not here: alignment and execution (emulator). Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct AtomicEth {
  static constexpr std::size_t kSize = 28;

  std::uint64_t virtual_address = 0;
  Rkey rkey;
  std::uint64_t swap_or_add_data = 0;
  std::uint64_t compare_data = 0;

  [[nodiscard]] static AtomicEth parse(std::span<const std::byte, kSize> in) {
    return {load_be64(in.data()), Rkey{load_be32(in.data() + 8)}, load_be64(in.data() + 12),
            load_be64(in.data() + 20)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_be64(out.data(), virtual_address);
    store_be32(out.data() + 8, rkey.value());
    store_be64(out.data() + 12, swap_or_add_data);
    store_be64(out.data() + 20, compare_data);
  }
  bool operator==(const AtomicEth&) const = default;
};

}  // namespace roci::proto
