// Which shard a received frame belongs to, found without parsing more than a few bytes.
//
// Pure function, any thread. RoCE frames go by the destination QPN; everything that is not a frame for one QP
// (ARP, ND, ICMP, IGMP, MLD, QP1, multicast) is copied to every shard, of which only shard 0 answers
// neighbours and CM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "proto/types.h"

namespace roci::emulator {

[[nodiscard]] constexpr std::uint32_t shard_of(proto::Qpn qpn, std::uint32_t shard_count) {
  return qpn.value() % shard_count;
}
[[nodiscard]] bool is_roce(std::span<const std::byte> frame);
// RoCE to a multicast group. Its sender's NIC gets it back, for its other QPs.
[[nodiscard]] bool is_roce_multicast(std::span<const std::byte> frame);
// The shard of a frame; nothing if every shard must see it.
[[nodiscard]] std::optional<std::uint32_t> steer(std::span<const std::byte> frame, std::uint32_t shard_count);

}  // namespace roci::emulator
