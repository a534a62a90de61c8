// The requests of one flow (RC, UC or XRC) by PSN, and the rules between them: continuity, reuse, order
// within a message, the length of a WRITE, the answer that was asked for.
//
// Told of requests as they are sent and of what the other side answered. Retransmission, loss and a capture
// that begins or ends anywhere are no failures: what cannot be told is not reported. Not here: who answers
// whom (conversation.h). One thread.
#pragma once

#include "proto/packet.h"
#include "proto/psn.h"
#include "tools/trace/check_limits.h"
#include "tools/trace/finding.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace roci::tools {

struct Sighting {
  std::uint64_t number;
  std::int64_t time_ns;
  const proto::Packet& packet;
};

class RequestLog {
 public:
  struct Context {
    const Report& report;
    const Limits& limits;
    std::uint32_t mtu_bytes;    // of the flow, 0 if not known
    std::uint64_t last_unread;  // number of the last frame that could not be read, of whatever flow
    bool is_something_unread;   // such a frame came since the last packet of this flow
    bool is_nothing_between;    // the sender's IP ids prove that it sent nothing between this packet and the
                                // last
  };
  // kAnotherConnection: the PSN is so far off that the QPN must have been used again; the log starts anew.
  enum class Placed : std::uint8_t { kHere, kAnotherConnection };
  Placed on_request(const Sighting& seen, const Context& context);

  // An answer with this PSN could be for one of these requests.
  [[nodiscard]] bool awaits(proto::Psn psn) const;
  void on_acknowledge(proto::Psn psn, proto::Syndrome syndrome, std::int64_t time_ns, const Context& context);
  // A READ response or ATOMIC acknowledge.
  void on_response(proto::Psn psn, std::int64_t time_ns);
  // The READ that a response with this PSN belongs to: how many packets in, and how many bytes were asked
  // for.
  struct ReadPlace {
    std::uint32_t packets_before;
    std::uint32_t length_bytes;
  };
  [[nodiscard]] std::optional<ReadPlace> read_at(proto::Psn psn) const;

  // No more will come. `last_ns`: when the connection was last seen alive; no value if its answers are not in
  // the capture.
  void finish(std::optional<std::int64_t> last_ns, const Context& context);
  [[nodiscard]] std::size_t size() const { return requests_.size(); }
  [[nodiscard]] bool is_near(proto::Psn psn, std::int32_t reach) const;

 private:
  struct Request {
    std::uint64_t number = 0;
    std::int64_t time_ns = 0;
    proto::Psn psn;
    proto::Opcode opcode = proto::Opcode::kRcSendOnly;
    std::uint32_t span = 1;  // PSNs; 0: a READ of an unknown path MTU
    std::uint32_t payload_bytes = 0;
    std::uint32_t dma_length = 0;  // of the RETH, as are the next two
    std::uint64_t address = 0;
    proto::Rkey rkey;
    std::uint64_t carried = 0;    // bytes of the message up to this packet, if its length is known
    std::uint64_t announced = 0;  // bytes of the whole message
    bool is_length_known = false;
    bool is_linked = false;  // judged together with the packet before
    bool wants_answer = false;
    bool is_answered = false;
    bool is_excused = false;  // sent again, or refused: no answer is owed to this one
    bool is_first_of_flow = false;
  };
  struct Gap {
    proto::Psn begin;
    std::uint32_t count;
    std::uint64_t number;  // of the packet behind it
    bool is_passed;        // the responder went on as if nothing were missing
  };

  [[nodiscard]] static Request make_request(const Sighting& seen, std::uint32_t mtu_bytes);
  void start(const Request& request, const Context& context);
  void settle_last_span(const Request& next);
  [[nodiscard]] static bool is_rest_of(const Request& read, const Request& next);
  void append(const Request& request, std::int32_t missing, const Context& context);
  void place_again(Request request, const Context& context);
  void judge_message(std::size_t at, const Context& context);
  void judge_following(std::size_t at, const Context& context);
  void judge_write_length(Request& request, const Request* before, const Context& context);
  void open_gap(proto::Psn begin, std::uint32_t count, std::uint64_t number, const Context& context);
  void report_gap(const Gap& gap, const char* why, bool needs_whole_capture, const Context& context) const;
  void forget(const Context& context);
  // The first request at or behind `psn`.
  [[nodiscard]] std::size_t position_of(proto::Psn psn) const;
  [[nodiscard]] std::optional<std::size_t> covering_position(proto::Psn psn) const;
  [[nodiscard]] const Request* covering(proto::Psn psn) const;
  void mark_answered_before(proto::Psn psn);
  void excuse_from(proto::Psn psn);
  void pass_gaps_before(proto::Psn psn);
  [[nodiscard]] bool is_sent(proto::Psn psn) const;

  std::deque<Request> requests_;  // in PSN order
  std::vector<Gap> gaps_;
  proto::Psn next_;  // of the next new request
  std::int64_t last_answer_ns_ = 0;
  bool is_start_known_ = false;  // no request from before the capture can be in a gap
  bool has_failed_ = false;      // a NAK ended the connection
};

}  // namespace roci::tools
