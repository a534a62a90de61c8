// From a shared ring to a private, judged copy: the only place that reads work requests.
//
// A request that is wrong is copied all the same, with the error that it will complete with when its turn
// comes. Not here: sending, and keys that change later (each packet looks its keys up again). Thread rule:
// the engine's thread.
#pragma once

#include <cstdint>
#include <span>

#include "emulator/shard.h"

namespace roci::emulator {

// What the private copy of a send request needs behind its header.
[[nodiscard]] std::size_t send_tail_bytes(const QpCapabilities& cap);

// Copies the next send request, if one was posted, and gives it its PSNs.
bool fetch_send(Shard& shard, Qp& qp);
// Takes the next receive, if one was posted, from the QP's own queue or the SRQ: advances rq_consumer of the
// QP's state (not of its ring).
bool take_receive(Shard& shard, Qp& qp);

// Applies that: the slot in the QP's own ring is free.
void free_receive_slot(Qp& qp, std::uint32_t rq_consumer);
// Copies a receive from an element of a shared ring, and judges it.
void copy_receive(const Shard& shard, const Pd& pd, std::uint32_t max_sge, const std::byte* element,
                  const WorkQueue<RecvWqe>& to, std::uint32_t index);

// Memory operations for bytes [offset, offset + length) of a list of SGEs; each piece goes to or comes from
// `local`, one after the other. False, with `ops` as it was: the list is too short, or a key does not grant
// it.
enum class SgeUse : std::uint8_t { kGather, kScatter, kReceive };  // to send, of a response, of a receive
[[nodiscard]] bool add_sge_ops(const Shard& shard, const Qp& qp, std::span<const RingSge> sges, SgeUse use,
                               std::uint64_t offset, std::uint32_t length, std::byte* local,
                               bool ends_message, std::vector<MemoryOp>& ops);
// The payload of the send request at `index`, or a part of it: inline data at once, the rest as above.
[[nodiscard]] bool gather_payload(const Shard& shard, const Qp& qp, std::uint32_t index, std::uint32_t offset,
                                  std::uint32_t length, std::byte* payload, std::vector<MemoryOp>& ops);

}  // namespace roci::emulator
