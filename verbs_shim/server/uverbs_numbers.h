// What a device and its port say about themselves in the numbers of the verbs ABI, and the sizes the ABI
// gives to the driver's part of a command. One place for all of it; the values are Soft-RoCE's where nothing
// speaks against.
//
// Not here: limits that a configuration sets (emulator::DeviceLimits). Plain values, no thread rule.
#pragma once

#include <rdma/ib_user_verbs.h>

#include <cstddef>
#include <cstdint>

#include "proto/types.h"

namespace roci::shim {

// The driver's part of responses [rdma_user_rxe.h]. CREATE_CQ and RESIZE_CQ: mi.
struct MmapInfo {
  std::uint64_t offset = 0;
  std::uint32_t size_bytes = 0;
  std::uint32_t pad = 0;
};
static_assert(sizeof(MmapInfo) == 16);

// CREATE_QP: rq_mi, sq_mi.
struct QpMmapInfo {
  MmapInfo recv, send;
};
static_assert(sizeof(QpMmapInfo) == 32);

// CREATE_SRQ and CREATE_XSRQ: mi, srq_num.
struct SrqMmapInfo {
  MmapInfo ring;
  std::uint32_t srq_number = 0, reserved = 0;
};
static_assert(sizeof(SrqMmapInfo) == 24);

// CREATE_AH: what work requests call the address handle.
struct AhNumber {
  std::uint32_t ah_number = 0, reserved = 0;
};
static_assert(sizeof(AhNumber) == 8);

inline constexpr std::uint32_t kVendorId = 0xFFFFFF;
inline constexpr std::uint64_t kPageSizes = 0xFFFFF000;  // every power of two from 4 KiB
inline constexpr std::uint32_t kCompletionVectors = 1;
inline constexpr std::uint8_t kCaAckDelayCode = 15;  // 4.096 us << 15 = 134 ms [rdma_rxe reports the same]
inline constexpr std::uint16_t kPkeyTableLength = 1;
inline constexpr std::size_t kLeastGidTableLength = 16;  // what no address fills is empty, and no error

// Bits of device_cap_flags: IBV_DEVICE_*.
inline constexpr std::uint32_t kCapUdAvPortEnforce = 1u << 6;
inline constexpr std::uint32_t kCapPortActiveEvent = 1u << 10;
inline constexpr std::uint32_t kCapSystemImageGuid = 1u << 11;
inline constexpr std::uint32_t kCapRcRnrNakGeneration = 1u << 12;
inline constexpr std::uint32_t kCapSrqResize = 1u << 13;
inline constexpr std::uint32_t kCapMemoryWindow = 1u << 17;
inline constexpr std::uint32_t kCapMemoryManagement = 1u << 21;  // local invalidate, SEND with invalidate
inline constexpr std::uint32_t kCapMemoryWindowType2B = 1u << 24;
inline constexpr std::uint32_t kDeviceCapabilities =
    kCapUdAvPortEnforce | kCapPortActiveEvent | kCapSystemImageGuid | kCapRcRnrNakGeneration | kCapSrqResize |
    kCapMemoryWindow | kCapMemoryManagement | kCapMemoryWindowType2B;

inline constexpr std::uint32_t kAtomicHca = 1;  // IBV_ATOMIC_HCA: atomic among the operations of this device

inline constexpr std::uint32_t kPortCmSupported = 1u << 16;  // IBV_PORT_CM_SUP
inline constexpr std::uint32_t kPortIpBasedGids = 1u << 26;  // IBV_PORT_IP_BASED_GIDS
inline constexpr std::uint32_t kPortCapabilities = kPortCmSupported | kPortIpBasedGids;

// State of a port: the ABI's number, and how sysfs writes it.
struct PortState {
  std::uint8_t number;
  const char* text;
};
inline constexpr PortState kPortDown{1, "1: DOWN"};
inline constexpr PortState kPortActive{4, "4: ACTIVE"};
inline constexpr PortState kPhysicalPolling{2, "2: Polling"};
inline constexpr PortState kPhysicalLinkUp{5, "5: LinkUp"};
[[nodiscard]] constexpr PortState port_state(bool up) { return up ? kPortActive : kPortDown; }
[[nodiscard]] constexpr PortState physical_state(bool up) { return up ? kPhysicalLinkUp : kPhysicalPolling; }

// 100 Gb/s: four lanes of EDR.
inline constexpr std::uint8_t kActiveWidth = 2;   // 4X
inline constexpr std::uint8_t kActiveSpeed = 32;  // EDR, 25 Gb/s a lane
inline constexpr char kRateText[] = "100 Gb/sec (4X EDR)";
inline constexpr std::uint8_t kLinkLayerEthernet = 2;
inline constexpr std::uint8_t kVirtualLanes = 1;
inline constexpr std::uint8_t kMaxMtuCode = 5;  // 4096

[[nodiscard]] constexpr std::uint8_t mtu_code(proto::PathMtu mtu) {
  switch (mtu) {
    case proto::PathMtu::k256:
      return 1;
    case proto::PathMtu::k512:
      return 2;
    case proto::PathMtu::k1024:
      return 3;
    case proto::PathMtu::k2048:
      return 4;
    case proto::PathMtu::k4096:
      return 5;
  }
  return 0;
}

// EUI-64 of a MAC as Soft-RoCE makes it: the universal/local bit inverted, ff:fe in the middle.
[[nodiscard]] constexpr std::uint64_t guid_of(const proto::Mac& mac) {
  const auto& b = mac.bytes;
  const std::uint8_t eui[8] = {static_cast<std::uint8_t>(b[0] ^ 2), b[1], b[2], 0xFF, 0xFE, b[3], b[4], b[5]};
  std::uint64_t value = 0;
  for (const std::uint8_t byte : eui)
    value = (value << 8) | byte;
  return value;
}

inline constexpr std::uint32_t kSrqTypeBasic = 0;  // IBV_SRQT_BASIC

// Bits of MODIFY_SRQ: IBV_SRQ_*.
inline constexpr std::uint32_t kSrqMaxWr = 1, kSrqLimit = 2;

// Masks of IBV_QP_* bits that MODIFY_QP and EX_MODIFY_QP may carry; others are EOPNOTSUPP.
inline constexpr std::uint32_t kLegacyModifyMask = (1u << 21) - 1;
inline constexpr std::uint32_t kExtendedModifyMask = kLegacyModifyMask | (1u << 25);

}  // namespace roci::shim
