// What an engine is made from: its NICs and their addresses, the limits of a device, sizes and times.
//
// Whoever fills it in validates it. Not here: reading it from a file (dpdk_port). Values, no thread rule.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/command.h"
#include "emulator/time.h"
#include "proto/types.h"

namespace roci::emulator {

struct NicConfig {
  std::string name;  // "rxe0"
  proto::Mac mac;
  std::vector<NicAddress> addresses;
  std::uint32_t mtu_bytes = 4200;  // of IP packets on the port; the active path MTU is the largest that fits
  bool answers_neighbours = true;  // ARP, ND and ICMP echo for `addresses`; false where a kernel owns them
  // A kernel also finds the way to each peer, and no frame leaves as one: every unicast GID of the addresses'
  // families is reached at its made_up_mac(), nobody is asked.
  bool kernel_finds_neighbours = false;
  // For GIDs that are not on link; of each family one at most. Without: those are unreachable.
  std::vector<proto::Gid> gateways;
  [[nodiscard]] std::optional<proto::Gid> gateway(bool ipv4) const;
  bool link_up = true;
  // Neighbours known without asking: static entries of the configuration and the NICs on the same fabric.
  struct Neighbour {
    proto::Gid gid;
    proto::Mac mac;
  };
  std::vector<Neighbour> neighbours;
};

// GID table as Soft-RoCE builds it: 0 is link-local IPv6 made from the MAC, then one entry per address; zero
// where one was removed.
[[nodiscard]] std::vector<proto::Gid> gid_table(const NicConfig& nic);
// `addresses` after they became those of `wanted`: what stays keeps its place, and so its GID's index; what
// is new takes the first free place, as in a kernel's table (which waits until nobody uses the old GID any
// more; here users keep the GID, but not its index).
[[nodiscard]] std::vector<NicAddress> changed_addresses(std::vector<NicAddress> addresses,
                                                        const std::vector<NicAddress>& wanted);
// A MAC for a station whose own is not known: the same for the same GID, never zero, of one station, locally
// administered; different for different IPv4 addresses.
[[nodiscard]] proto::Mac made_up_mac(const proto::Gid& gid);
// The largest path MTU whose largest packet fits into `mtu_bytes`.
[[nodiscard]] proto::PathMtu active_path_mtu(std::uint32_t mtu_bytes);

// Limits of a device, as query_device reports and the engine enforces them.
struct DeviceLimits {
  std::uint32_t max_qp = 16384, max_qp_wr = 16384, max_sge = 32, max_inline_bytes = 512;
  std::uint32_t max_cq = 16384, max_cqe = 65536, max_mr = 262144, max_pd = 16384;
  std::uint64_t max_mr_bytes = std::uint64_t{1} << 47;
  std::uint32_t max_qp_rd_atom = 128, max_qp_init_rd_atom = 128;
  std::uint32_t max_message_bytes = 0x80000000u;
  std::uint32_t max_srq = 8192, max_srq_wr = 16384, max_srq_sge = 32;
  std::uint32_t max_mw = 65536, max_ah = 65536;
  std::uint32_t max_mcast_grp = 8192, max_mcast_qp_attach = 64;  // groups; QPs of one group

  [[nodiscard]] constexpr bool allow(const QpCapabilities& asked) const {
    return asked.max_send_wr <= max_qp_wr && asked.max_recv_wr <= max_qp_wr &&
           asked.max_send_sge <= max_sge && asked.max_recv_sge <= max_sge &&
           asked.max_inline_bytes <= max_inline_bytes;
  }
};

struct EngineConfig {
  std::uint32_t shard = 0;
  std::uint32_t shard_count = 1;
  std::vector<NicConfig> nics;
  DeviceLimits limits;                   // per NIC and shard
  std::uint64_t seed[4] = {1, 2, 3, 4};  // for QPNs and keys; the daemon takes it from getrandom
  std::uint32_t transmit_burst = 32;     // frames per transmit() call
  std::uint32_t window_packets = 128;    // most PSNs in flight per QP
  std::uint64_t context_memory_bytes = std::uint64_t{256} << 20;  // private WQE storage a context may take
  Duration daemon_gap =
      std::chrono::milliseconds(1);  // a longer gap between passes is credited to running timers
  Duration neighbour_timeout = std::chrono::milliseconds(1000);  // RTR fails with ETIMEDOUT after 3 of these
};

}  // namespace roci::emulator
