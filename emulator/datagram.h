// The UD service: one packet a message, to any QP, without acknowledgement. Also what QP1 speaks.
//
// A send is complete when it is on its way; what it cannot deliver is dropped and counted by the receiver. A
// send that fails takes the QP to SQE, in which it goes on receiving. Thread rule: the engine's thread.
#pragma once

#include "emulator/receive_batch.h"
#include "emulator/shard.h"
#include "emulator/transmit_batch.h"

namespace roci::emulator {

// In front of the payload of each received datagram: the IP header [IBTA 11.4.1.2, A17.4.5.2].
inline constexpr std::uint32_t kGrhAreaBytes = 40;

// QP1 is a UD QP with a Q_Key and a size of its own [IBTA, general services: MADs].
inline constexpr proto::Qkey kGsiQkey{0x80010000};
inline constexpr std::uint32_t kMadBytes = 256;

// The same for all datagrams of a QP, and spread over QPs, so that paths are shared and order is kept.
[[nodiscard]] constexpr std::uint16_t datagram_source_port(proto::Qpn qpn) {
  return static_cast<std::uint16_t>(0xC000 + ((qpn.value() * 0x61C88647U) >> 18));
}

// Plans one datagram; false if there is nothing to send now.
bool plan_datagram(Shard& shard, Qp& qp, TransmitBatch& batch);

// Judges a datagram for this QP; fills in what it does.
DropReason decide_datagram(Shard& shard, Qp& qp, const proto::RoceView& view, ReceivedPacket& packet,
                           ReceiveBatch& batch);
// Does it, after the memory operations.
void apply_datagram(Shard& shard, Qp& qp, const ReceivedPacket& packet);
// The receive's memory could not be reached. The QP's state is as it was before the packet.
void fail_datagram(Shard& shard, Qp& qp, const ReceivedPacket& packet);

}  // namespace roci::emulator
