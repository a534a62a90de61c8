// Private copies of work requests: one slot for each slot of the shared ring, sized when the QP is made.
//
// A request is copied from the ring once, judged, and from then on only the copy counts, also for
// retransmission. Each slot is a header (SendWqe or RecvWqe) and a tail: SGEs, inline data, or the binding of
// a memory window. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "emulator/ring.h"
#include "emulator/verbs_numbers.h"
#include "proto/opcode.h"
#include "proto/types.h"

namespace roci::emulator {

// What stands behind the last byte of a message.
enum class MessageTail : std::uint8_t { kNone, kImmediate, kInvalidate };

struct SendWqe {
  std::uint64_t wr_id = 0;
  std::uint64_t remote_address = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_or_add = 0;
  std::uint32_t length_bytes = 0;  // of the message; READ: of the answer; atomics: 8
  std::uint32_t num_sge = 0;
  proto::Rkey rkey;             // of the range at the peer; of an invalidation, there or here: its target
  std::uint32_t immediate = 0;  // as a number
  proto::Psn first_psn;
  proto::Msn ssn;               // its number among the requests that are sent
  std::uint32_t ah_number = 0;  // of a datagram, and the two below
  proto::Qpn remote_qpn;
  proto::Qkey remote_qkey;
  std::uint32_t psn_count = 1;                // READ: one for each response packet
  WcStatus local_error = WcStatus::kSuccess;  // found before it was sent: reported when its turn comes
  proto::Operation operation = proto::Operation::kSend;
  WcOpcode completes_as = WcOpcode::kSend;
  std::uint8_t flags = 0;  // SendFlags
  MessageTail tail = MessageTail::kNone;
  std::uint8_t placement_types = 0, selectivity_level = 0;  // of a FLUSH, as in its FETH

  [[nodiscard]] bool is_inline() const { return (flags & kSendInline) != 0; }
  // Runs here and takes no PSN (local_operation.h).
  [[nodiscard]] bool is_local() const {
    return completes_as == WcOpcode::kBindMw || completes_as == WcOpcode::kLocalInvalidate;
  }
  // READ, ATOMIC, ATOMIC WRITE and FLUSH: answered by a response, counted by max_rd_atomic.
  [[nodiscard]] bool is_rd_atomic() const {
    return operation != proto::Operation::kSend && operation != proto::Operation::kWrite;
  }
  [[nodiscard]] proto::Psn end_psn() const { return first_psn.plus(psn_count); }
};

struct RecvWqe {
  std::uint64_t wr_id = 0;
  std::uint64_t capacity_bytes = 0;  // sum of the SGEs
  std::uint32_t num_sge = 0;
  WcStatus local_error = WcStatus::kSuccess;
};

template <class Header>
class WorkQueue {
 public:
  WorkQueue() = default;
  WorkQueue(Ring shared, std::size_t tail_bytes)
      : ring(shared), stride_(stride(tail_bytes)), slots_(new std::byte[stride_ * shared.slots()]) {}

  [[nodiscard]] static std::size_t bytes_needed(std::uint32_t slots, std::size_t tail_bytes) {
    return stride(tail_bytes) * slots;
  }
  [[nodiscard]] Header& operator[](std::uint32_t index) const {
    return *std::launder(reinterpret_cast<Header*>(slot(index)));
  }
  // Starts a new life of the slot.
  Header& renew(std::uint32_t index) const { return *new (slot(index)) Header{}; }
  [[nodiscard]] std::byte* tail(std::uint32_t index) const { return slot(index) + sizeof(Header); }
  [[nodiscard]] std::span<const RingSge> sges(std::uint32_t index) const {
    return {reinterpret_cast<const RingSge*>(tail(index)), (*this)[index].num_sge};
  }

  Ring ring;

 private:
  static_assert(sizeof(Header) % alignof(RingSge) == 0 && std::is_trivially_destructible_v<Header>);
  static std::size_t stride(std::size_t tail_bytes) {
    return (sizeof(Header) + tail_bytes + alignof(Header) - 1) / alignof(Header) * alignof(Header);
  }
  [[nodiscard]] std::byte* slot(std::uint32_t index) const {
    return slots_.get() + stride_ * (index & ring.mask());
  }

  std::size_t stride_ = 0;
  std::unique_ptr<std::byte[]> slots_;
};

}  // namespace roci::emulator
