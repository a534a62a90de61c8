// What control.cpp hands the commands to: a function for each, by the objects it is about.
//
// Each checks all that the client says, and changes nothing where it refuses. Objects are looked up in the
// client's own context only. Not here: order and replies (control.cpp). Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <system_error>
#include <variant>

#include "emulator/shard.h"

namespace roci::emulator {

// What a command comes to: an errno, or success with what it returns.
struct Outcome {
  std::errc error{};
  decltype(CommandReply::body) body;
};
[[nodiscard]] inline Outcome refuse(std::errc error) { return {error, std::monostate{}}; }

// Whether a T, and `needed` bytes from it on, may lie there.
template <class T>
[[nodiscard]] bool fits(std::span<std::byte> bytes, std::size_t needed) {
  return bytes.size() >= needed && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0;
}

// ---- control_memory.cpp: PDs, MRs, memory windows

Outcome alloc_pd(Shard& shard, Context& context);
Outcome dealloc_pd(Shard& shard, Context& context, PdHandle handle);
Outcome reg_mr(Shard& shard, Context& context, const RegMr& command);
Outcome dereg_mr(Shard& shard, Context& context, MrHandle handle);
Outcome alloc_mw(Shard& shard, Context& context, const AllocMw& command);
Outcome dealloc_mw(Shard& shard, Context& context, MwHandle handle);

// ---- control_queues.cpp: CQs, SRQs

Outcome create_cq(Shard& shard, Context& context, const CreateCq& command);
Outcome resize_cq(Shard& shard, Context& context, const ResizeCq& command);
Outcome destroy_cq(Shard& shard, Context& context, CqHandle handle);
Outcome create_srq(Shard& shard, Context& context, const CreateSrq& command);
Outcome modify_srq(Shard& shard, Context& context, const ModifySrq& command);
Outcome query_srq(const Context& context, SrqHandle handle);
Outcome destroy_srq(Shard& shard, Context& context, SrqHandle handle);

// ---- control_qp.cpp

Outcome create_qp(Shard& shard, Context& context, const CreateQp& command);
// Nothing: the reply waits for the neighbour.
std::optional<Outcome> modify_qp(Shard& shard, Context& context, CommandId id, const ModifyQp& command,
                                 Time now);
std::optional<Outcome> resume(Shard& shard, const PendingModify& waiting, Time now);
Outcome query_qp(Context& context, QpHandle handle);
Outcome destroy_qp(Shard& shard, Context& context, QpHandle handle);
// The same for a QP that is in no multicast group.
void remove_qp(Shard& shard, Qp& qp);
// Makes the headers anew, by the QP's attributes and local GID, to a peer at that MAC.
void set_path(Shard& shard, Qp& qp, proto::Mac destination);

// ---- control_address.cpp: address handles, multicast groups, and the way to a GID

std::optional<Outcome> create_ah(Shard& shard, Context& context, CommandId id, const CreateAh& command,
                                 Time now);
std::optional<Outcome> resume(Shard& shard, const PendingAh& waiting, Time now);
Outcome destroy_ah(Shard& shard, Context& context, AhHandle handle);
void cancel_ahs(Shard& shard, const Context& context);  // those that the context waits for
void set_headers(AddressHandle& ah, const Nic& nic, proto::Mac destination);

Outcome attach(Shard& shard, Context& context, const AttachMulticast& command, Time now);
Outcome detach(Shard& shard, Context& context, const DetachMulticast& command);
void detach_all(Nic& nic, Qp& qp);

[[nodiscard]] std::errc check_address(const Nic& nic, const AddressVector& av);

// What comes of looking for a GID's MAC: it, an errno, or neither while the neighbour is being asked.
struct Resolution {
  std::optional<proto::Mac> mac;
  std::errc error{};
};
[[nodiscard]] Resolution resolve(NeighbourCache& neighbours, const proto::Gid& gid, bool is_waiting,
                                 Time now);

// ---- inspect.cpp

Outcome inspect(const Shard& shard);

}  // namespace roci::emulator
