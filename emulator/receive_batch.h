// One batch of received packets between deciding and applying: verdict, saved state and effects of each.
//
// Packets are decided in order against the QP's speculative state, their memory operations run in one batch,
// then they are applied in order. Where an operation of packet k of a QP fails, the state saved before k
// comes back, k gets its error, and what is behind it in the same QP is cancelled. Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/counters.h"
#include "emulator/memory.h"
#include "emulator/qp.h"
#include "emulator/verbs_numbers.h"
#include "proto/aeth.h"
#include "proto/roce_view.h"

namespace roci::emulator {

// What a request does to the responder when it is applied.
struct RequestEffect {
  PendingReply reply;              // ACK, NAK or RNR NAK; none if not is_pending
  bool fills_receive = false;      // with its payload
  bool takes_receive = false;      // the ring's consumer follows rq_consumer
  bool completes_receive = false;  // with the fields below
  MessageTail tail = MessageTail::kNone;
  bool wakes = false;            // solicited event
  bool establishes = false;      // the first packet since RTR
  bool is_fatal = false;         // the QP goes to ERR
  bool queues_resource = false;  // what a response answers was accepted: that is the acknowledgement
  WcStatus status = WcStatus::kSuccess;
  WcOpcode opcode = WcOpcode::kReceive;
  std::uint32_t rq_consumer = 0;  // after this packet
  std::uint32_t byte_len = 0;
  std::uint32_t immediate = 0;  // or the key that was invalidated
  proto::Qpn source_qpn;        // datagrams: who sent it, and over what
  bool is_ipv6 = false;
  std::optional<std::uint64_t> atomic_resource;  // the number of the one that the original value goes to
  std::optional<EventKind> event;                // is raised for the QP
};

// What a response does to the requester when it is applied.
struct ResponseEffect {
  std::uint32_t first_done = 0;  // index of the first WQE that completes with success
  std::uint32_t done_count = 0;
  bool is_head_done_by_data = false;    // the last of them
  bool is_progress = false;             // something was acknowledged for the first time
  bool restarts = false;                // the cursor went back: the ACK timer starts with the next packet
  WcStatus error = WcStatus::kSuccess;  // of the WQE behind those; the QP goes to ERR
};

struct ReceivedPacket {
  Qp* qp = nullptr;  // null: dropped before a QP was found
  bool is_request = false;
  bool is_copy = false;  // of the multicast packet before it, for one of the group's QPs
  DropReason verdict = DropReason::kAccepted;
  std::uint32_t first_op = 0;
  std::uint32_t op_count = 0;
  proto::Psn psn;
  Speculation before;  // valid if op_count is not 0
  RequestEffect request;
  ResponseEffect response;
};

struct ReceiveBatch {
  std::vector<ReceivedPacket> packets;
  std::vector<MemoryOp> ops;
  std::vector<Qp*> touched;
};

}  // namespace roci::emulator
