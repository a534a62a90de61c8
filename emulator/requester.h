// The requester of a connected QP: sends requests from the private copies of WQEs, and judges what comes
// back.
//
// Go-back-N: the cursor (send_index, send_psn) returns to the oldest unacknowledged packet, and everything is
// derived from it again. plan_request() and decide_response() change the Requester ahead of the memory
// operations; the caller keeps the copy to put back. Thread rule: the engine's thread.
#pragma once

#include <optional>

#include "emulator/receive_batch.h"
#include "emulator/shard.h"
#include "emulator/transmit_batch.h"

namespace roci::emulator {

// Plans one packet; false if there is nothing to send now.
bool plan_request(Shard& shard, Qp& qp, TransmitBatch& batch, Time now);
// Of a SEND or WRITE: the packet at the cursor. False: the payload's keys do not grant it.
bool plan_message_packet(Shard& shard, Qp& qp, const SendWqe& wqe, TransmitBatch& batch);
// The packet is on its way.
void commit_request(Shard& shard, Qp& qp, const PlannedPacket& packet, Time now);
// The same for services that get no acknowledgement: what is on its way is done.
void commit_unacknowledged(Shard& shard, Qp& qp, const PlannedPacket& packet);
// Its payload could not be read: the WQE fails when its turn comes. The QP's state is as it was before the
// packet.
void fail_gather(Shard& shard, Qp& qp);

// Judges an acknowledgement or a response; fills in what it does.
DropReason decide_response(Shard& shard, Qp& qp, const proto::RoceView& view, ReceivedPacket& packet,
                           ReceiveBatch& batch, Time now);
// Does it, after the memory operations.
void apply_response(Shard& shard, Qp& qp, const ReceivedPacket& packet, Time now);
// Its data could not be written. The QP's state is as it was before the packet.
void fail_scatter(Shard& shard, Qp& qp, const ReceivedPacket& packet);

// How long it waits for an acknowledgement; nothing: for ever. The local ACK timeout T is what the standard
// lets it wait at least, 4 T at most [IBTA C9-140]; a quarter more leaves room for a busy host.
[[nodiscard]] std::optional<Duration> ack_wait(const Qp& qp);
// Expired ACK timer and RNR wait.
void on_requester_timer(Shard& shard, Qp& qp, Time now);
// In SQD: raises SQ_DRAINED once nothing is in flight.
void check_drained(Shard& shard, Qp& qp);

}  // namespace roci::emulator
