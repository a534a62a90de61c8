// Commands: every object a client makes, changes and destroys, and the checks that keep clients apart.
//
// Thread rule: the engine's thread.
#pragma once

#include <span>

#include "emulator/shard.h"

namespace roci::emulator {

// Executes the command; the reply is queued at once, or later if it waits for a neighbour.
void execute(Shard& shard, CommandId id, Command&& command, Time now);
// Takes over what the NIC's neighbours told of themselves: connections follow a peer whose MAC has changed.
void refresh_paths(Shard& shard, const Nic& nic);
// See Engine::on_addresses().
void change_addresses(Shard& shard, NicId nic, std::span<const NicAddress> addresses);
// Looks again at the commands that wait for a neighbour.
void resume_commands(Shard& shard, Time now);

}  // namespace roci::emulator
