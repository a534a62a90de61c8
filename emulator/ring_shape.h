// Sizes of the shared rings: how many slots of how many bytes a queue of given capabilities has.
//
// The engine and whoever lays out a context's memory (the shim's server, the simulator) must agree on these,
// so they are computed here only. An element is a power of two, as rdma_user_rxe.h has it. Pure functions, no
// thread rule.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "emulator/command.h"
#include "emulator/shared_layout.h"

namespace roci::emulator {

struct RingShape {
  std::uint32_t log2_element_bytes = 0;
  std::uint32_t slots = 0;  // a power of two; one more than can be used

  [[nodiscard]] constexpr std::size_t bytes() const {
    return kRingDataOffset + (std::size_t{slots} << log2_element_bytes);
  }
};

[[nodiscard]] constexpr RingShape ring_shape(std::uint32_t entries, std::size_t element_bytes) {
  return {static_cast<std::uint32_t>(std::bit_width(std::bit_ceil(element_bytes)) - 1),
          std::bit_ceil(entries + 1)};
}
[[nodiscard]] constexpr RingShape send_ring_shape(const QpCapabilities& cap) {
  const std::size_t tail = std::max<std::size_t>(cap.max_send_sge * sizeof(RingSge), cap.max_inline_bytes);
  return ring_shape(cap.max_send_wr, sizeof(RingSendWqe) + tail);
}
[[nodiscard]] constexpr RingShape recv_ring_shape(const QpCapabilities& cap) {
  return ring_shape(cap.max_recv_wr, sizeof(RingRecvWqe) + cap.max_recv_sge * sizeof(RingSge));
}
[[nodiscard]] constexpr RingShape srq_ring_shape(std::uint32_t max_wr, std::uint32_t max_sge) {
  return ring_shape(max_wr, sizeof(RingRecvWqe) + max_sge * sizeof(RingSge));
}
[[nodiscard]] constexpr RingShape cq_ring_shape(std::uint32_t entries) {
  return ring_shape(entries, std::size_t{1} << kLog2CqeBytes);
}

}  // namespace roci::emulator
