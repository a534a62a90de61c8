// A queue pair: attributes, the state of its requester and of its responder, its queues and its place in
// lists.
//
// Requester and Responder are plain values: a batch of frames or a burst being planned changes them ahead of
// the memory operations, and puts the saved copy back where an operation failed. Everything else changes only
// when a packet is applied or committed. Not here: any rule. Thread rule: the engine's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulator/command.h"
#include "emulator/completion_queue.h"
#include "emulator/event_queue.h"
#include "emulator/intrusive_list.h"
#include "emulator/memory_region.h"
#include "emulator/memory_window.h"
#include "emulator/time.h"
#include "emulator/work_queue.h"
#include "proto/aeth.h"
#include "proto/header_template.h"
#include "proto/opcode.h"
#include "proto/types.h"

namespace roci::emulator {

inline constexpr Time kNoWait = Time::min();

// PSNs from one to the other going forward, 0 .. 2^24-1.
[[nodiscard]] constexpr std::uint32_t steps(proto::Psn from, proto::Psn to) {
  return (to.value() - from.value()) & proto::Psn::kMask;
}

// Send WQEs are named by their index in the ring: [sq_consumer, sq_fetched) are copied and not completed,
// `send_index` is the one to send from next. oldest_unacked_psn lies in the WQE at sq_consumer, send_psn in
// the one at send_index.
struct Requester {
  std::uint32_t sq_consumer = 0;
  std::uint32_t sq_fetched = 0;
  std::uint32_t send_index = 0;
  proto::Psn oldest_unacked_psn;
  proto::Psn send_psn;   // behind next_psn while packets are sent again
  proto::Psn next_psn;   // of the next packet never sent before
  proto::Psn fetch_psn;  // first PSN of the next WQE to be copied
  std::uint32_t rd_atomic_outstanding = 0;
  std::uint32_t response_psns = 0;  // in flight for responses only: of READs, all but one each
  std::uint32_t packets_since_ack_request = 0;
  std::uint8_t retries_left = 0;
  std::uint8_t rnr_retries_left = 0;
  bool went_back = false;  // already, for the gap at went_back_psn
  proto::Psn went_back_psn;
  // End-to-end credits [IBTA 9.7.7.2]. Requests are numbered from 1, as the responder's MSN counts them; up
  // to credit_limit each is known to find a receive. One more may go to find out, and until the packet that
  // takes the receive is acknowledged, nothing new follows it.
  proto::Msn fetched_ssn;  // of the WQE that was copied last
  proto::Msn credit_limit{1};
  bool is_credit_limited = true;
  bool is_probing = false;
  proto::Psn probe_psn;
  Time not_before = kNoWait;  // RNR wait; pacing belongs here too

  [[nodiscard]] std::uint32_t in_flight() const { return steps(oldest_unacked_psn, next_psn); }
  [[nodiscard]] std::uint32_t packets_in_flight() const { return in_flight() - response_psns; }
  [[nodiscard]] bool is_beyond_credit(proto::Msn ssn) const {
    return is_credit_limited && credit_limit.distance_to(ssn) > 0;
  }
};

struct Responder {
  proto::Psn expected_psn;
  proto::Msn msn;
  std::uint32_t rq_consumer = 0;  // index of the next receive to take
  bool nak_sent = false;          // for expected_psn: a sequence NAK or RNR NAK
  bool in_message = false;        // between FIRST and LAST of `message`
  bool has_receive = false;       // the receive at rq_consumer - 1 is taken and not completed
  bool is_established = false;    // a packet was accepted since RTR
  proto::Operation message = proto::Operation::kSend;
  std::uint32_t message_bytes = 0;  // so far
  std::uint32_t write_length_bytes = 0;
  std::uint64_t write_address = 0;  // of the message's first byte
  proto::Rkey write_rkey;
  std::uint64_t resources_taken = 0;  // requests to be answered so far; the n-th is resources[n % size]
};

struct SharedReceiveQueue;

struct Speculation {
  Requester requester;
  Responder responder;
  bool failed = false;  // a packet of this batch moves the QP to ERR
};

// A READ, ATOMIC, ATOMIC WRITE or FLUSH that the responder answers, kept until max_dest_rd_atomic newer ones
// displaced it.
struct ResponderResource {
  std::uint64_t number = 0;
  proto::Operation operation = proto::Operation::kReadRequest;
  bool is_pending = false;  // something of it is still to be sent
  bool is_replay = false;   // asked for again
  proto::Psn first_psn;
  std::uint32_t psn_count = 1;
  proto::Psn run_psn;               // READ: where this run of responses starts (a retry starts later)
  proto::Psn send_psn;              // next response
  proto::Psn end_psn;               // behind the run
  std::uint32_t run_end_bytes = 0;  // of the message
  std::uint64_t address = 0;
  std::uint64_t original = 0;  // ATOMIC
  proto::Rkey rkey;
  proto::Syndrome syndrome;  // of its responses: an ACK
  proto::Msn msn;
};

// The one acknowledgement that waits behind all pending resources. A later one covers an earlier one.
struct PendingReply {
  bool is_pending = false;
  proto::Syndrome syndrome;
  proto::Psn psn;
  proto::Msn msn;
};

struct QpStatistics {
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0, retransmitted = 0;
};

struct Qp {
  Qp(Context& of, std::uint32_t slot, proto::Qpn number) : context(&of), handle(slot), qpn(number) {}

  Context* context;
  std::uint32_t handle;
  proto::Qpn qpn;
  Pd* pd = nullptr;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;  // then `rq` has private slots only, for what was taken from it
  Pd* recv_pd = nullptr;              // of the receives: the SRQ's or its own
  NicId nic;
  QpType type = QpType::kRc;
  proto::Service service = proto::Service::kRc;  // of the type; kUd for QP1, too
  QpState state = QpState::kReset;
  bool signal_all = false;
  bool is_modifying = false;      // a ModifyQp waits for the neighbour
  bool answers_in_error = false;  // in ERR: what the responder still owes, up to the NAK, is sent
  QpAttributes attributes;
  std::uint32_t path_mtu_bytes = 256;
  std::uint16_t ip_identification = 0;
  std::uint16_t datagram_source_port = 0;
  std::uint32_t attachments = 0;  // to multicast groups
  proto::Gid local_gid;
  bool source_is_gone = false;  // the NIC lost local_gid
  proto::HeaderTemplate headers;

  WorkQueue<SendWqe> sq;
  WorkQueue<RecvWqe> rq;
  std::uint64_t private_bytes = 0;  // accounted to the context

  Requester requester;
  Responder responder;
  bool failed = false;                       // see Speculation
  std::vector<ResponderResource> resources;  // max_dest_rd_atomic of them
  std::uint64_t first_owed = 0;              // no resource with a lower number is pending
  PendingReply reply;

  Time ack_deadline = kNever;
  std::int32_t response_deficit_bytes = 0;
  std::int32_t request_deficit_bytes = 0;
  // Within one batch or burst: it is listed, an operation of it failed, what was planned behind is void.
  bool is_touched = false;
  bool is_cancelled = false;
  bool requests_void = false;
  bool responses_void = false;
  std::uint32_t timer_index = 0;
  Time timer_deadline = kNever;  // kNever: not in the heap
  QpStatistics statistics;
  IntrusiveList<MemoryWindow> windows;  // of type 2, that it bound
  EventSource events;
  OwnedNode<Qp> ready_node{*this};
  OwnedNode<Qp> error_node{*this};

  [[nodiscard]] Speculation save() const { return {requester, responder, failed}; }
  void restore(const Speculation& saved) {
    requester = saved.requester;
    responder = saved.responder;
    failed = saved.failed;
  }
  [[nodiscard]] proto::PathMtu path_mtu() const { return static_cast<proto::PathMtu>(path_mtu_bytes); }
  // When on_requester_timer() has something to do.
  [[nodiscard]] Time next_deadline() const {
    return requester.not_before != kNoWait ? std::min(ack_deadline, requester.not_before) : ack_deadline;
  }
  // What becomes of the QP in this batch counts already.
  [[nodiscard]] bool can_receive() const {
    return !failed && (state == QpState::kRtr || state == QpState::kRts || state == QpState::kSqd ||
                       state == QpState::kSqe);
  }
  [[nodiscard]] bool can_send() const {
    return !failed && (state == QpState::kRts || state == QpState::kSqd);
  }
  // Queues are flushed as they fill: both in ERR, the send queue in SQE.
  [[nodiscard]] bool flushes() const { return state == QpState::kErr || state == QpState::kSqe; }
  [[nodiscard]] bool is_datagram() const { return service == proto::Service::kUd; }
  [[nodiscard]] ResponderResource& resource(std::uint64_t number) {
    return resources[number % resources.size()];
  }
  [[nodiscard]] bool owes_responses() const { return first_owed != responder.resources_taken; }
  [[nodiscard]] bool is_retransmitting() const { return requester.send_psn != requester.next_psn; }
};

}  // namespace roci::emulator
