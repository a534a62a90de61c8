// RDMA Extended Transport Header: where in remote memory and how much, on WRITE and READ [IBTA 5.2.6].
//
// Not here: bounds and rights (emulator). Plain value, no thread rule.
#pragma once

#include "proto/bytes.h"
#include "proto/types.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace roci::proto {

struct Reth {
  static constexpr std::size_t kSize = 16;

  std::uint64_t virtual_address = 0;
  Rkey rkey;
  std::uint32_t dma_length_bytes = 0;

  [[nodiscard]] static Reth parse(std::span<const std::byte, kSize> in) {
    return {load_be64(in.data()), Rkey{load_be32(in.data() + 8)}, load_be32(in.data() + 12)};
  }
  void emit(std::span<std::byte, kSize> out) const {
    store_be64(out.data(), virtual_address);
    store_be32(out.data() + 8, rkey.value());
    store_be32(out.data() + 12, dma_length_bytes);
  }
  bool operator==(const Reth&) const = default;
};

}  // namespace roci::proto
