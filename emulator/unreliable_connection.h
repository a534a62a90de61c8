// The UC service, as requester: SENDs and WRITEs as in RC, but nobody acknowledges, and nothing is sent
// again.
//
// A message is complete when its last packet is on its way. The responder's side is in responder.cpp. Thread
// rule: the engine's thread.
#pragma once

#include "emulator/shard.h"
#include "emulator/transmit_batch.h"

namespace roci::emulator {

// Plans one packet; false if there is nothing to send now.
bool plan_unreliable(Shard& shard, Qp& qp, TransmitBatch& batch);

}  // namespace roci::emulator
