#include "emulator/fabric.h"

#include <cstdlib>

#include "emulator/multicast.h"
#include "emulator/steering.h"
#include "proto/ethernet.h"

namespace roci::emulator {

void Fabric::attach(NicId nic, proto::Mac mac) {
  if (nic.index >= kMaxNics) std::abort();
  attached_ |= std::uint64_t{1} << nic.index;
  macs_[nic.index] = mac;
}

std::uint64_t Fabric::destinations(NicId from, std::span<const std::byte> frame) const {
  if (frame.size() < proto::EthernetHeader::kSize) return 0;
  const proto::Mac destination = proto::load_mac(frame.data());
  if (is_group(destination))
    return is_roce_multicast(frame) ? attached_ : attached_ & ~(std::uint64_t{1} << from.index);
  for (std::size_t nic = 0; nic < kMaxNics; ++nic) {
    if (((attached_ >> nic) & 1) != 0 && macs_[nic] == destination) return std::uint64_t{1} << nic;
  }
  return 0;
}

}  // namespace roci::emulator
