#include "tools/trace/narrator.h"

#include "proto/bytes.h"
#include "proto/cm_text.h"
#include "proto/text.h"

#include <fmt/format.h>

#include <utility>

namespace roci::tools {
namespace {

using proto::OpcodeInfo;
using proto::Operation;
using proto::Packet;
using proto::Position;
using proto::Role;

std::string_view service_name(proto::Service service) {
  switch (service) {
    case proto::Service::kRc:
      return "RC";
    case proto::Service::kUc:
      return "UC";
    case proto::Service::kRd:
      return "RD";
    case proto::Service::kUd:
      return "UD";
    case proto::Service::kCnp:
      return "CNP";
    case proto::Service::kXrc:
      return "XRC";
    case proto::Service::kVendor6:
    case proto::Service::kVendor7:
      return "vendor's";
  }
  return "";
}

std::string_view position_words(Position position) {
  switch (position) {
    case Position::kFirst:
      return "first packet of a message, ";
    case Position::kMiddle:
      return "middle packet, ";
    case Position::kLast:
      return "last packet, ";
    case Position::kOnly:
      return "";
  }
  return "";
}

std::string bytes_words(std::size_t count) { return fmt::format("{} byte{}", count, count == 1 ? "" : "s"); }

std::string where_words(std::uint64_t address, proto::Rkey rkey) {
  return fmt::format("address {:#x} of R_Key {:#x}", address, rkey.value());
}

std::string_view cm_purpose(proto::CmAttribute attribute) {
  switch (attribute) {
    case proto::CmAttribute::kReq:
      return "asks for a connection";
    case proto::CmAttribute::kMra:
      return "asks for patience";
    case proto::CmAttribute::kRej:
      return "refuses";
    case proto::CmAttribute::kRep:
      return "accepts the connection";
    case proto::CmAttribute::kRtu:
      return "is ready to use it";
    case proto::CmAttribute::kDreq:
      return "asks to disconnect";
    case proto::CmAttribute::kDrep:
      return "agrees to disconnect";
    case proto::CmAttribute::kSidrReq:
      return "asks for a datagram QP";
    case proto::CmAttribute::kSidrRep:
      return "answers who asked for a datagram QP";
    case proto::CmAttribute::kLap:
      return "offers another path";
    case proto::CmAttribute::kApr:
      return "answers the offer of another path";
  }
  return "";
}

// What the MAD of a packet says, if it is one of connection management; only which it is if it was cut.
std::string cm_words(const Packet& packet, bool is_cut) {
  if (packet.bth.destination != proto::kQpnGsi || packet.payload.size() < proto::MadHeader::kSize) return "";
  const auto header = proto::MadHeader::parse(packet.payload.first<proto::MadHeader::kSize>());
  if (header.management_class != proto::kMadClassCm) return "";
  const auto mad = proto::parse_cm(packet.payload);
  if (!mad) return fmt::format("connection manager: unreadable, {}", info(mad.error()).sentence);
  const proto::CmAttribute attribute = attribute_of(mad->message);
  return fmt::format("connection manager: {}, {}{}", proto::name_of(attribute), cm_purpose(attribute),
                     is_cut ? "" : fmt::format(" ({})", proto::cm_details(mad->message)));
}

std::string request_words(const Packet& packet, bool is_cut) {
  const OpcodeInfo& opcode = packet.opcode_info();
  const std::string carried =
      fmt::format("{}{}", position_words(opcode.position), bytes_words(packet.payload.size()));
  switch (opcode.operation) {
    case Operation::kSend: {
      std::string cm = cm_words(packet, is_cut);
      if (!cm.empty()) return cm;
      return fmt::format("SEND, {}", carried);
    }
    case Operation::kWrite:
      if (!packet.reth) return fmt::format("WRITE, {}", carried);
      return fmt::format(
          "WRITE, {}{} to {}", carried,
          opcode.ends_message() ? std::string{} : fmt::format(" of {}", packet.reth->dma_length_bytes),
          where_words(packet.reth->virtual_address, packet.reth->rkey));
    case Operation::kReadRequest:
      return fmt::format("READ request for {} from {}", bytes_words(packet.reth->dma_length_bytes),
                         where_words(packet.reth->virtual_address, packet.reth->rkey));
    case Operation::kCompareSwap:
      return fmt::format("compare and swap: if {} holds {:#x}, put {:#x} there",
                         where_words(packet.atomic_eth->virtual_address, packet.atomic_eth->rkey),
                         packet.atomic_eth->compare_data, packet.atomic_eth->swap_or_add_data);
    case Operation::kFetchAdd:
      return fmt::format("fetch and add: add {:#x} to {}", packet.atomic_eth->swap_or_add_data,
                         where_words(packet.atomic_eth->virtual_address, packet.atomic_eth->rkey));
    case Operation::kFlush:
      return fmt::format("FLUSH of {} at {}", bytes_words(packet.reth->dma_length_bytes),
                         where_words(packet.reth->virtual_address, packet.reth->rkey));
    case Operation::kAtomicWrite:
      return fmt::format("atomic WRITE, {} to {}", bytes_words(packet.payload.size()),
                         where_words(packet.reth->virtual_address, packet.reth->rkey));
    case Operation::kResync:
      return "RESYNC";
    case Operation::kCnp:
      return fmt::format("congestion notification: QP {:#x} is to send more slowly",
                         packet.bth.destination.value());
    case Operation::kReadResponse:
    case Operation::kAcknowledge:
    case Operation::kAtomicAcknowledge:
    case Operation::kReserved:
      break;
  }
  return fmt::format("reserved opcode {:#04x}", static_cast<unsigned>(packet.bth.opcode));
}

bool is_repeatable(proto::Service service) {
  return service == proto::Service::kRc || service == proto::Service::kXrc;
}

std::string milliseconds(std::chrono::nanoseconds time) {
  return fmt::format("{:g} ms", static_cast<double>(time.count()) / 1e6);
}

}  // namespace

std::size_t Narrator::KeyHash::operator()(const Key& key) const {
  std::size_t hash = key.psn.value();
  for (const proto::Gid* gid : {&key.source, &key.destination}) {
    const std::byte* at = std::as_bytes(std::span{gid->bytes}).data();
    for (std::size_t i = 0; i < 16; i += 8) {
      hash = (hash ^ proto::load_be64(at + i)) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

Story Narrator::tell(const CapturedFrame& frame) {
  JudgedFrame judged = judge_frame(frame, scratch_);
  packet_.reset();
  Story story;
  story.violations = std::move(judged.violations);
  switch (judged.kind) {
    case FrameKind::kOther: {
      const proto::Dissection dissection = proto::dissect(frame.bytes, frame.link);
      story.text = fmt::format("not RoCE: {}", info(dissection.error).sentence);
      return story;
    }
    case FrameKind::kCutShort:
      story.text = "cut by the capture within its headers";
      return story;
    case FrameKind::kBroken:
      story.text = "a RoCE packet that cannot be read on";
      return story;
    case FrameKind::kDefective:
    case FrameKind::kSound:
      break;
  }
  const Packet& packet = packet_.emplace(judged.packet);
  story.source = proto::to_text(packet.source());
  story.destination = proto::to_text(packet.destination());
  if (judged.kind == FrameKind::kDefective) {
    // Its headers may be short or damaged; the opcode's name is all that is sure to be there.
    story.text = fmt::format("{}, PSN {:#08x}, which a receiver drops", packet.opcode_info().name,
                             packet.bth.psn.value());
    return story;
  }
  switch (packet.opcode_info().role) {
    case Role::kRequest:
      story.text = tell_request(packet, frame);
      break;
    case Role::kResponse:
      story.text = tell_response(packet);
      break;
    case Role::kNotification:
      story.text = request_words(packet, frame.is_cut());
      break;
  }
  if (packet.ecn() == proto::Ecn::kCe) story.text += "; marked by a congested switch (CE)";
  if (frame.is_cut())
    story.text += fmt::format(" (the capture has {} of {} bytes)", frame.bytes.size(), frame.original_bytes);
  return story;
}

std::string Narrator::tell_request(const Packet& packet, const CapturedFrame& frame) {
  const std::uint64_t number = frame.number;
  const OpcodeInfo& opcode = packet.opcode_info();
  std::string text =
      fmt::format("{} {}", service_name(opcode.service), request_words(packet, frame.is_cut()));
  if (packet.imm_dt) text += fmt::format(", immediate {:#010x}", packet.imm_dt->value);
  if (packet.ieth) text += fmt::format(", invalidates R_Key {:#x}", packet.ieth->rkey.value());
  if (packet.deth)
    text += fmt::format(", from QP {:#x} with Q_Key {:#x}", packet.deth->source.value(),
                        packet.deth->qkey.value());
  if (packet.xrceth) text += fmt::format(", for SRQ {:#x}", packet.xrceth->srq_number);
  text += fmt::format(", PSN {:#08x}", packet.bth.psn.value());
  if (packet.bth.solicited_event) text += ", wakes the receiver (solicited event)";
  if (packet.bth.ack_request && is_repeatable(opcode.service)) text += ", asks for an acknowledgement";
  if (!is_repeatable(opcode.service)) return text;

  const Key key{packet.source(), packet.destination(), packet.bth.psn};
  const auto [found, is_new] = requests_.try_emplace(key);
  Request& request = found->second;
  if (is_new) {
    request = {number, number, packet.bth.destination, packet.bth.opcode, false};
    order_.push_back(key);
    if (order_.size() > kRememberedRequests) {
      requests_.erase(order_.front());
      order_.pop_front();
    }
  } else if (request.destination == packet.bth.destination) {
    text += fmt::format("; sent again, first in packet {}", request.first_number);
    request.last_number = number;
  } else {
    request.is_ambiguous = true;
  }
  return text;
}

const Narrator::Request* Narrator::request_answered_by(const Packet& packet) const {
  const auto found = requests_.find({packet.destination(), packet.source(), packet.bth.psn});
  return found != requests_.end() && !found->second.is_ambiguous ? &found->second : nullptr;
}

std::string Narrator::answered(const Packet& packet) const {
  const Request* request = request_answered_by(packet);
  return request != nullptr ? fmt::format(" (packet {})", request->last_number) : std::string{};
}

std::string Narrator::tell_acknowledge(const Packet& packet) const {
  const proto::Aeth& aeth = *packet.aeth;
  const std::string which = fmt::format("PSN {:#08x}{}", packet.bth.psn.value(), answered(packet));
  switch (aeth.syndrome.kind()) {
    case proto::Syndrome::Kind::kAck: {
      const auto credits = aeth.syndrome.credits().messages();
      return fmt::format(
          "ACK: everything up to {} has arrived{}", which,
          credits ? fmt::format(", {} more message{} may come", *credits, *credits == 1 ? "" : "s") : "");
    }
    case proto::Syndrome::Kind::kRnrNak:
      return fmt::format("RNR NAK: no receive is posted for {}, to be sent again after {}", which,
                         milliseconds(aeth.syndrome.rnr_timer().wait()));
    case proto::Syndrome::Kind::kNak:
      break;
    case proto::Syndrome::Kind::kReserved:
      return fmt::format("answer with the reserved syndrome {:#04x} for {}", aeth.syndrome.byte(), which);
  }
  switch (aeth.syndrome.nak_code()) {
    case proto::NakCode::kPsnSequenceError:
      return fmt::format("NAK: {} is missing, to be sent again from there on", which);
    case proto::NakCode::kInvalidRequest:
      return fmt::format("NAK: {} is an invalid request", which);
    case proto::NakCode::kRemoteAccessError:
      return fmt::format("NAK: {} may not access that memory", which);
    case proto::NakCode::kRemoteOperationalError:
      return fmt::format("NAK: the responder failed to carry out {}", which);
    case proto::NakCode::kInvalidRdRequest:
      return fmt::format("NAK: {} is an invalid RD request", which);
  }
  return "";
}

std::string Narrator::tell_response(const Packet& packet) {
  const OpcodeInfo& opcode = packet.opcode_info();
  std::string text = fmt::format("{} ", service_name(opcode.service));
  switch (opcode.operation) {
    case Operation::kAcknowledge:
      text += tell_acknowledge(packet);
      break;
    case Operation::kAtomicAcknowledge:
      text += fmt::format("ATOMIC response: the value was {:#x}, for PSN {:#08x}{}",
                          packet.atomic_ack_eth->original_data, packet.bth.psn.value(), answered(packet));
      break;
    case Operation::kReadResponse: {
      if (responses_.size() > kRememberedRequests) responses_.clear();
      Response& response =
          responses_[{packet.source(), packet.destination(), proto::Psn{packet.bth.destination.value()}}];
      const Request* request = request_answered_by(packet);
      if (request != nullptr && info(request->opcode).operation != Operation::kSend) {
        response.request_number = request->last_number;
      } else if (response.next != packet.bth.psn) {
        response.request_number = 0;
      }
      response.next = packet.bth.psn.plus(1);
      std::string_view position =
          opcode.position == Position::kFirst ? "first packet, " : position_words(opcode.position);
      text += fmt::format("READ response, {}{}, PSN {:#08x}", position, bytes_words(packet.payload.size()),
                          packet.bth.psn.value());
      if (response.request_number != 0)
        text += fmt::format(" (asked for by packet {})", response.request_number);
      break;
    }
    case Operation::kSend:
    case Operation::kWrite:
    case Operation::kReadRequest:
    case Operation::kCompareSwap:
    case Operation::kFetchAdd:
    case Operation::kFlush:
    case Operation::kAtomicWrite:
    case Operation::kResync:
    case Operation::kCnp:
    case Operation::kReserved:
      break;
  }
  if (packet.aeth)
    text += fmt::format(", {} message{} done", packet.aeth->msn.value(),
                        packet.aeth->msn.value() == 1 ? "" : "s");
  return text;
}

}  // namespace roci::tools
