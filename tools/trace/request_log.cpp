#include "tools/trace/request_log.h"

#include <fmt/format.h>

#include <algorithm>

namespace roci::tools {
namespace {

using proto::Opcode;
using proto::OpcodeInfo;
using proto::Operation;
using proto::Psn;
using proto::Service;

constexpr std::array<proto::PathMtu, 5> kPathMtus = {proto::PathMtu::k4096, proto::PathMtu::k2048,
                                                     proto::PathMtu::k1024, proto::PathMtu::k512,
                                                     proto::PathMtu::k256};

// The answer is a READ response or an ATOMIC acknowledge, not just an ACK that may be shared.
bool has_own_answer(Operation operation) {
  switch (operation) {
    case Operation::kReadRequest:
    case Operation::kCompareSwap:
    case Operation::kFetchAdd:
    case Operation::kFlush:
    case Operation::kAtomicWrite:
      return true;
    case Operation::kSend:
    case Operation::kWrite:
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
    case Operation::kResync:
    case Operation::kCnp:
    case Operation::kReserved:
      return false;
  }
  return false;
}

bool is_acknowledged(Service service) { return service == Service::kRc || service == Service::kXrc; }

bool leaves_message_open(const OpcodeInfo& opcode) { return !opcode.ends_message(); }

std::uint32_t packets_of_read(std::uint32_t length_bytes, std::uint32_t mtu_bytes) {
  return length_bytes == 0 ? 1 : (length_bytes - 1) / mtu_bytes + 1;
}

}  // namespace

RequestLog::Request RequestLog::make_request(const Sighting& seen, std::uint32_t mtu_bytes) {
  const proto::Packet& packet = seen.packet;
  const OpcodeInfo& opcode = packet.opcode_info();
  Request request;
  request.number = seen.number;
  request.time_ns = seen.time_ns;
  request.psn = packet.bth.psn;
  request.opcode = packet.bth.opcode;
  request.payload_bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (packet.reth) {
    request.dma_length = packet.reth->dma_length_bytes;
    request.address = packet.reth->virtual_address;
    request.rkey = packet.reth->rkey;
  }
  request.wants_answer =
      is_acknowledged(opcode.service) && (packet.bth.ack_request || has_own_answer(opcode.operation));
  if (opcode.operation == Operation::kReadRequest) {
    const std::uint32_t smallest = bytes_of(kPathMtus.back());
    request.span = request.dma_length <= smallest ? 1
                   : mtu_bytes != 0               ? packets_of_read(request.dma_length, mtu_bytes)
                                                  : 0;
  }
  return request;
}

RequestLog::Placed RequestLog::on_request(const Sighting& seen, const Context& context) {
  Request request = make_request(seen, context.mtu_bytes);
  if (requests_.empty()) {
    start(request, context);
    return Placed::kHere;
  }
  settle_last_span(request);
  const std::int32_t ahead = next_.distance_to(request.psn);
  const bool is_far = ahead > context.limits.psn_jump ||
                      requests_.front().psn.distance_to(request.psn) < -context.limits.psn_jump;
  if (is_far || (has_failed_ && ahead != 0)) {
    finish(std::nullopt, context);
    start(request, context);
    return Placed::kAnotherConnection;
  }
  if (ahead >= 0) {
    append(request, ahead, context);
  } else {
    place_again(request, context);
  }
  forget(context);
  return Placed::kHere;
}

void RequestLog::start(const Request& request, const Context& context) {
  requests_.clear();
  gaps_.clear();
  has_failed_ = false;
  last_answer_ns_ = request.time_ns;
  // Mid-message, the requester may be sending again what the capture has not seen the first time.
  is_start_known_ = info(request.opcode).starts_message();
  next_ = request.psn.plus(std::max<std::uint32_t>(request.span, 1));
  requests_.push_back(request);
  requests_.back().is_first_of_flow = true;
  judge_message(0, context);
}

// How many PSNs a READ takes depends on the path MTU; where that is not known, the next request tells.
void RequestLog::settle_last_span(const Request& next) {
  Request& last = requests_.back();
  if (last.span != 0) return;
  const std::int32_t distance = last.psn.distance_to(next.psn);
  if (distance <= 0) return;
  const auto steps = static_cast<std::uint32_t>(distance);
  if (is_rest_of(last, next)) {
    const std::uint32_t mtu_bytes = (last.dma_length - next.dma_length) / steps;
    if (mtu_bytes == 0) return;
    last.span = packets_of_read(last.dma_length, mtu_bytes);
    next_ = last.psn.plus(last.span);
    return;
  }
  const auto fits = [&](proto::PathMtu mtu) {
    return packets_of_read(last.dma_length, bytes_of(mtu)) == steps;
  };
  if (std::any_of(kPathMtus.begin(), kPathMtus.end(), fits)) last.span = steps;
  // If none fits, something is missing, and how much cannot be told. A PSN within the READ is a part of it
  // again.
  if (steps >= packets_of_read(last.dma_length, bytes_of(kPathMtus.front()))) next_ = next.psn;
}

// A READ that asks again for the rest of one whose response broke off.
bool RequestLog::is_rest_of(const Request& read, const Request& next) {
  return info(next.opcode).operation == Operation::kReadRequest && next.rkey == read.rkey &&
         next.dma_length < read.dma_length &&
         next.address - read.address == read.dma_length - next.dma_length;
}

void RequestLog::append(const Request& request, std::int32_t missing, const Context& context) {
  if (missing > 0) {
    open_gap(next_, static_cast<std::uint32_t>(missing), request.number, context);
  }
  next_ = request.psn.plus(std::max<std::uint32_t>(request.span, 1));
  requests_.push_back(request);
  judge_message(requests_.size() - 1, context);
}

void RequestLog::place_again(Request request, const Context& context) {
  std::erase_if(gaps_, [&](const Gap& gap) { return proto::is_within(request.psn, gap.begin, gap.count); });
  excuse_from(request.psn);
  request.is_excused = true;
  const auto partly_answered = covering_position(request.psn);
  if (partly_answered && is_rest_of(requests_[*partly_answered], request)) {
    requests_[*partly_answered].is_answered = true;
  }
  if (requests_.front().psn.distance_to(request.psn) < 0) return;  // forgotten already

  const std::size_t at = position_of(request.psn);
  const bool was_there = at < requests_.size() && requests_[at].psn == request.psn;
  if (was_there) {
    const Request& before = requests_[at];
    const OpcodeInfo& was = info(before.opcode);
    const OpcodeInfo& is = info(request.opcode);
    if (was.service == is.service && was.operation != is.operation) {
      context.report({request.number, Rule::kPsnReuse,
                      fmt::format("{} has PSN {:#08x}, which packet {} used for {}", is.name,
                                  request.psn.value(), before.number, was.name)});
    }
    request.is_answered = before.is_answered;
    request.is_first_of_flow = before.is_first_of_flow;
    requests_[at] = request;
  } else {
    requests_.insert(requests_.begin() + static_cast<std::ptrdiff_t>(at), request);
  }
  judge_message(at, context);
  judge_following(at, context);
}

void RequestLog::judge_following(std::size_t at, const Context& context) {
  for (std::size_t i = at + 1; i < requests_.size() && !requests_[i].is_linked; ++i) {
    judge_message(i, context);
    if (!requests_[i].is_linked) return;
  }
}

void RequestLog::judge_message(std::size_t at, const Context& context) {
  Request& request = requests_[at];
  const OpcodeInfo& is = info(request.opcode);
  const Request* before = at > 0 ? &requests_[at - 1] : nullptr;
  const bool is_adjacent = before != nullptr && before->span != 0 &&
                           before->psn.plus(before->span) == request.psn &&
                           info(before->opcode).service == is.service;
  request.is_linked = is_adjacent;
  bool continues = false;
  if (is_adjacent) {
    const OpcodeInfo& was = info(before->opcode);
    continues = leaves_message_open(was) && !is.starts_message() && was.operation == is.operation;
    if (leaves_message_open(was) && !continues) {
      context.report({request.number, Rule::kOpcodeSequence,
                      fmt::format("{} follows {} (packet {}), whose message has not ended", is.name, was.name,
                                  before->number)});
    } else if (!leaves_message_open(was) && !is.starts_message()) {
      context.report({request.number, Rule::kOpcodeSequence,
                      fmt::format("{} follows {} (packet {}), which leaves no message to go on with", is.name,
                                  was.name, before->number)});
    }
  }
  if (is.operation == Operation::kWrite) judge_write_length(request, continues ? before : nullptr, context);
}

void RequestLog::judge_write_length(Request& request, const Request* before, const Context& context) {
  const OpcodeInfo& is = info(request.opcode);
  if (is.starts_message()) {
    request.is_length_known = true;
    request.announced = request.dma_length;
    request.carried = request.payload_bytes;
  } else if (before != nullptr && before->is_length_known) {
    request.is_length_known = true;
    request.announced = before->announced;
    request.carried = before->carried + request.payload_bytes;
  } else {
    request.is_length_known = false;
  }
  if (!request.is_length_known) return;
  const bool is_right =
      is.ends_message() ? request.carried == request.announced : request.carried < request.announced;
  if (is_right) return;
  context.report(
      {request.number, Rule::kLengthWrite,
       fmt::format("with {} the WRITE has carried {} bytes, {}, and its RETH says {}", is.name,
                   request.carried, is.ends_message() ? "all of them" : "more follow", request.announced)});
  request.is_length_known = false;  // said once for a message
}

void RequestLog::open_gap(Psn begin, std::uint32_t count, std::uint64_t number, const Context& context) {
  const Gap gap{begin, count, number, false};
  if (context.is_nothing_between) {
    report_gap(gap, "IP ids without a gap show that nothing was sent in between", false, context);
    return;
  }
  if (context.is_something_unread || !is_start_known_) return;
  if (gaps_.size() == context.limits.gaps) {
    if (gaps_.front().is_passed) report_gap(gaps_.front(), "the responder goes on without", true, context);
    gaps_.erase(gaps_.begin());
  }
  gaps_.push_back(gap);
}

void RequestLog::report_gap(const Gap& gap, const char* why, bool needs_whole_capture,
                            const Context& context) const {
  context.report({gap.number, Rule::kPsnContinuity,
                  fmt::format("{} PSN{} before this one, from {:#08x} on, never appear{}; {}", gap.count,
                              gap.count == 1 ? "" : "s", gap.begin.value(), gap.count == 1 ? "s" : "", why),
                  needs_whole_capture});
}

void RequestLog::forget(const Context& context) {
  const auto is_settled = [](const Request& request) {
    return request.is_answered || request.is_excused || !request.wants_answer;
  };
  while (requests_.size() > context.limits.requests ||
         (requests_.size() > context.limits.answered && is_settled(requests_.front()))) {
    requests_.pop_front();
  }
}

std::size_t RequestLog::position_of(Psn psn) const {
  const auto at = std::lower_bound(
      requests_.begin(), requests_.end(), psn,
      [](const Request& request, Psn wanted) { return request.psn.distance_to(wanted) > 0; });
  return static_cast<std::size_t>(at - requests_.begin());
}

std::optional<std::size_t> RequestLog::covering_position(Psn psn) const {
  std::size_t at = position_of(psn);
  if (at == requests_.size() || requests_[at].psn != psn) {
    if (at == 0) return std::nullopt;
    --at;
  }
  const Request& request = requests_[at];
  const std::uint32_t most =
      request.span != 0 ? request.span : packets_of_read(request.dma_length, bytes_of(kPathMtus.back()));
  if (!proto::is_within(psn, request.psn, std::min<std::uint32_t>(most, 1U << 23))) return std::nullopt;
  return at;
}

const RequestLog::Request* RequestLog::covering(Psn psn) const {
  const auto at = covering_position(psn);
  return at ? &requests_[*at] : nullptr;
}

bool RequestLog::is_sent(Psn psn) const {
  if (requests_.empty() || requests_.front().psn.distance_to(psn) < 0) return false;
  const Request& last = requests_.back();
  if (last.span == 0) return last.psn.distance_to(psn) <= 0 || covering(psn) != nullptr;
  return psn.distance_to(next_) > 0;
}

bool RequestLog::is_near(Psn psn, std::int32_t reach) const {
  if (requests_.empty()) return false;
  return requests_.front().psn.distance_to(psn) >= -reach && next_.distance_to(psn) <= reach;
}

bool RequestLog::awaits(Psn psn) const {
  if (requests_.empty()) return false;
  const Request* request = covering(psn);
  if (request != nullptr) return !request->is_answered;
  return std::any_of(gaps_.begin(), gaps_.end(),
                     [&](const Gap& gap) { return proto::is_within(psn, gap.begin, gap.count); });
}

// Backwards until what earlier answers have marked; a READ or ATOMIC waits for its own answer.
void RequestLog::mark_answered_before(Psn psn) {
  for (std::size_t at = position_of(psn); at > 0; --at) {
    Request& request = requests_[at - 1];
    if (request.is_answered) return;
    if (!has_own_answer(info(request.opcode).operation)) request.is_answered = true;
  }
}

void RequestLog::excuse_from(Psn psn) {
  for (std::size_t at = requests_.size(); at > 0; --at) {
    Request& request = requests_[at - 1];
    if (psn.distance_to(request.psn) < 0) return;
    request.is_excused = true;
  }
}

void RequestLog::pass_gaps_before(Psn psn) {
  for (Gap& gap : gaps_) {
    if (gap.begin.distance_to(psn) > 0) gap.is_passed = true;
  }
}

void RequestLog::on_acknowledge(Psn psn, proto::Syndrome syndrome, std::int64_t time_ns,
                                const Context& context) {
  if (requests_.empty()) return;
  last_answer_ns_ = time_ns;
  switch (syndrome.kind()) {
    case proto::Syndrome::Kind::kAck:
      if (!is_sent(psn)) return;  // nobody asked, or it is forgotten
      if (psn.plus(1) == next_) is_start_known_ = true;
      mark_answered_before(psn.plus(1));
      pass_gaps_before(psn.plus(1));
      return;
    case proto::Syndrome::Kind::kRnrNak:
      if (!is_sent(psn)) return;
      mark_answered_before(psn);
      pass_gaps_before(psn);
      excuse_from(psn);
      return;
    case proto::Syndrome::Kind::kNak:
      break;
    case proto::Syndrome::Kind::kReserved:
      excuse_from(requests_.front().psn);
      return;
  }
  if (syndrome.nak_code() == proto::NakCode::kPsnSequenceError) {
    // The responder misses this PSN: that explains every gap that does not end before it.
    std::erase_if(gaps_, [&](const Gap& gap) { return psn.distance_to(gap.begin.plus(gap.count)) > 0; });
    mark_answered_before(psn);
    pass_gaps_before(psn);
    excuse_from(psn);
    return;
  }
  const Request* refused = covering(psn);
  if (refused == nullptr) return;
  const OpcodeInfo& opcode = info(refused->opcode);
  // Mid-message at the start of a capture means nothing by itself, unless the responder, too, knows no
  // beginning.
  if (syndrome.nak_code() == proto::NakCode::kInvalidRequest && refused->is_first_of_flow &&
      !refused->is_answered && !opcode.starts_message()) {
    context.report({refused->number, Rule::kOpcodeSequence,
                    fmt::format("{} starts the flow, and the responder calls it invalid: there was no FIRST",
                                opcode.name)});
  }
  mark_answered_before(psn);
  pass_gaps_before(psn);
  excuse_from(psn);
  has_failed_ = true;
}

void RequestLog::on_response(Psn psn, std::int64_t time_ns) {
  const auto at = covering_position(psn);
  if (!at || !has_own_answer(info(requests_[*at].opcode).operation)) return;
  last_answer_ns_ = time_ns;
  mark_answered_before(requests_[*at].psn);
  pass_gaps_before(requests_[*at].psn);
  requests_[*at].is_answered = true;
}

std::optional<RequestLog::ReadPlace> RequestLog::read_at(Psn psn) const {
  const Request* request = covering(psn);
  if (request == nullptr || info(request->opcode).operation != Operation::kReadRequest) return std::nullopt;
  return ReadPlace{static_cast<std::uint32_t>(request->psn.distance_to(psn)), request->dma_length};
}

void RequestLog::finish(std::optional<std::int64_t> last_ns, const Context& context) {
  for (const Gap& gap : gaps_) {
    if (gap.is_passed) report_gap(gap, "the responder goes on without", true, context);
  }
  if (last_ns && !has_failed_) {
    for (const Request& request : requests_) {
      // Behind a gap the responder takes nothing, so it owes nothing.
      if (!gaps_.empty() && gaps_.front().begin.distance_to(request.psn) > 0) break;
      if (!request.wants_answer || request.is_answered || request.is_excused) continue;
      const std::int64_t waited_ns = *last_ns - std::max(request.time_ns, last_answer_ns_);
      if (waited_ns < context.limits.answer_ns || request.number < context.last_unread) continue;
      context.report(
          {request.number, Rule::kAckMissing,
           fmt::format("{} with PSN {:#08x} {}, and nothing answers it in the {} ms that the connection "
                       "goes on",
                       info(request.opcode).name, request.psn.value(),
                       has_own_answer(info(request.opcode).operation) ? "needs a response" : "has AckReq set",
                       waited_ns / 1'000'000),
           true});
    }
  }
  gaps_.clear();
  requests_.clear();
}

}  // namespace roci::tools
