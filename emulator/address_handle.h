// Address handles: where datagrams go. The headers up to the BTH stand ready in each.
//
// Not here: finding the destination's MAC (neighbour.h), and who may use a handle (datagram.h). Thread rule:
// the engine's thread.
#pragma once

#include <cstdint>

#include "emulator/command.h"
#include "emulator/memory_region.h"
#include "proto/header_template.h"
#include "proto/types.h"

namespace roci::emulator {

// The path that an address vector describes, to a destination at that MAC.
[[nodiscard]] inline proto::Path path_to(const AddressVector& av, const proto::Gid& source,
                                         proto::Mac source_mac, proto::Mac destination_mac) {
  proto::Path path;
  path.source_mac = source_mac;
  path.destination_mac = destination_mac;
  path.source = source;
  path.destination = av.dgid;
  path.traffic_class = av.traffic_class & 0xFC;  // no congestion management, no ECT [IBTA CA17-5, CA17-14]
  path.hop_limit = av.hop_limit == 0 ? 64 : av.hop_limit;  // 0 means that nobody cared
  path.flow_label = av.flow_label & 0xFFFFF;
  return path;
}

struct AddressHandle {
  Pd* pd = nullptr;
  std::uint32_t handle = 0;
  AddressVector av;
  proto::Gid source;
  bool source_is_gone = false;    // the NIC lost it
  proto::HeaderTemplate headers;  // destination QP and source port are set for each packet
};

}  // namespace roci::emulator
