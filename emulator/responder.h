// The responder of a connected QP: judges requests in the standard's order, and sends acknowledgements and
// responses. UC is judged alike, but answers nothing: what is wrong or lost takes its message with it.
//
// decide_request() changes the Responder ahead of the memory operations; the caller keeps the copy to put
// back. READs, ATOMICs, ATOMIC WRITEs and FLUSHes become entries of the responder resources, whose responses
// plan_response() makes in PSN order over many bursts. Thread rule: the engine's thread.
#pragma once

#include "emulator/receive_batch.h"
#include "emulator/shard.h"
#include "emulator/transmit_batch.h"

namespace roci::emulator {

// Judges a request packet; fills in what it does. A reserved opcode of the QP's service is an invalid
// request.
DropReason decide_request(Shard& shard, Qp& qp, const proto::RoceView& view, ReceivedPacket& packet,
                          ReceiveBatch& batch);
// Does it, after the memory operations.
void apply_request(Shard& shard, Qp& qp, const ReceivedPacket& packet, const ReceiveBatch& batch);
// Its memory could not be reached. The QP's state is as it was before the packet. Returns what became of it.
DropReason fail_request(Shard& shard, Qp& qp, const ReceivedPacket& packet);

// Plans one response or acknowledgement; false if none is due.
bool plan_response(Shard& shard, Qp& qp, TransmitBatch& batch);
// The data of a READ response could not be read.
void fail_response(Shard& shard, Qp& qp, proto::Psn psn);

}  // namespace roci::emulator
