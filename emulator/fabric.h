// The virtual fabric: a switch that joins the NICs of one daemon. It decides; whoever owns the frames moves
// them.
//
// Learns nothing: the MACs of its ports are fixed. Unicast to a port's MAC goes there (also back to the
// sender's own port, as a NIC may talk to itself), broadcast and multicast to all other ports, RoCE multicast
// to all ports (of one NIC several QPs may be in the group), anything else nowhere. Thread rule: const after
// set-up, shared by all shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "emulator/frame.h"
#include "proto/types.h"

namespace roci::emulator {

class Fabric {
 public:
  void attach(NicId nic, proto::Mac mac);
  // Bit n set: a copy goes to NIC n. 0: nobody has that MAC.
  [[nodiscard]] std::uint64_t destinations(NicId from, std::span<const std::byte> frame) const;

 private:
  std::uint64_t attached_ = 0;
  proto::Mac macs_[kMaxNics];
};

}  // namespace roci::emulator
