// A TAP interface of the kernel that the daemon makes: what the port sends the kernel receives on it, and the
// other way round.
//
// As `tap:NAME` it is a NIC's wire, to a bridge or to the kernel as a peer. As `kernel=NAME` it is the
// kernel's share of a NIC: with the NIC's MAC and addresses, for all traffic that is not RoCE. Without DPDK's
// net_tap, which in 22.11 takes no frame above 1522 bytes, wakes by a signal, and needs privilege even for an
// interface that was made for this user. Thread rule: as port.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dpdk_port/config.h"
#include "dpdk_port/port.h"

struct rte_mempool;

namespace roci::dpdk_port {

struct TapConfig {
  std::string name;
  std::uint32_t mtu_bytes = 1500;
  // Of the kernel's side.
  std::optional<proto::Mac> mac;
  std::vector<emulator::NicAddress> addresses;
};

inline constexpr std::uint32_t kTapMbufs = 1023;

// Frames come in mbufs of `pool`, whose data room is longest_frame_bytes(). `warnings`: what works less well.
[[nodiscard]] Parsed<std::unique_ptr<Port>> open_tap(const TapConfig& config, rte_mempool* pool,
                                                     std::vector<std::string>& warnings);

}  // namespace roci::dpdk_port
