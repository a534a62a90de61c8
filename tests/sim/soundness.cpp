#include "tests/sim/soundness.h"

#include <algorithm>

#include "proto/text.h"
#include "tests/sim/verbs.h"

namespace roci::sim {
namespace {

using proto::Extension;
using proto::OpcodeInfo;
using proto::Packet;

struct Rule {
  const char* fault;
  bool is_broken;
};

// Null if all hold.
template <std::size_t N>
const char* first_broken(const Rule (&rules)[N]) {
  const auto* const broken = std::find_if(rules, rules + N, [](const Rule& one) { return one.is_broken; });
  return broken == rules + N ? nullptr : broken->fault;
}

bool has_reserved_bits(const Packet& packet) {
  return packet.bth.transport_version != 0 || packet.bth.reserved6 != 0 || packet.bth.reserved7 != 0 ||
         (packet.deth && packet.deth->reserved8 != 0) || (packet.feth && packet.feth->reserved26 != 0) ||
         std::any_of(packet.pad.begin(), packet.pad.end(), [](std::byte one) { return one != std::byte{0}; });
}

// A message is acknowledged as a whole, so its last packet asks.
bool must_request_ack(const OpcodeInfo& info) {
  return info.service == proto::Service::kRc && info.role == proto::Role::kRequest && info.ends_message();
}
bool may_request_ack(const OpcodeInfo& info) {
  return info.service == proto::Service::kRc && info.role == proto::Role::kRequest;
}
// What completes a receive.
bool may_be_solicited(const OpcodeInfo& info) {
  return (info.operation == proto::Operation::kSend && info.ends_message()) || info.has(Extension::kImmDt);
}

bool is_wrong_syndrome(const Packet& packet) {
  if (!packet.aeth) return false;
  const proto::Syndrome::Kind kind = packet.aeth->syndrome.kind();
  if (packet.opcode_info().operation == proto::Operation::kAcknowledge)
    return kind == proto::Syndrome::Kind::kReserved;
  return kind != proto::Syndrome::Kind::kAck;  // data comes with an ACK only
}

}  // namespace

std::optional<std::string> unsound(const proto::Dissection& dissection) {
  const Packet& packet = dissection.packet;
  if (dissection.error != proto::ParseError::kNone) return "no sound packet: " + proto::to_text(packet);
  const OpcodeInfo& info = packet.opcode_info();
  const Rule rules[] = {
      {"ICRC", !proto::icrc_matches(packet)},
      {"reserved bits", has_reserved_bits(packet)},
      {"MigReq is not set", !packet.bth.migration_request},
      {"congestion is reported", packet.bth.fecn || packet.bth.becn},
      {"AckReq is not set", must_request_ack(info) && !packet.bth.ack_request},
      {"AckReq is set", !may_request_ack(info) && packet.bth.ack_request},
      {"SE is set", !may_be_solicited(info) && packet.bth.solicited_event},
      {"syndrome", is_wrong_syndrome(packet)},
  };
  const char* const fault = first_broken(rules);
  if (fault == nullptr) return std::nullopt;
  return std::string(fault) + ": " + proto::to_text(packet);
}

std::optional<std::string> unsound(const emulator::RingCqe& cqe) {
  const bool is_datagram = (cqe.wc_flags & kWcGrh) != 0;
  const bool has_value = (cqe.wc_flags & (kWcWithImm | kWcWithInvalidate)) != 0;
  const bool is_empty = cqe.status == kWcFlushed;
  const Rule rules[] = {
      {"reserved fields",
       cqe.pkey_index != 0 || cqe.slid != 0 || cqe.dlid_path_bits != 0 || cqe.reserved != 0},
      {"port", cqe.port_num != 1},
      {"QP number", cqe.qp_num == 0},
      {"vendor_err is not the status", cqe.vendor_err != cqe.status},
      {"unknown flags", (cqe.wc_flags & ~(kWcGrh | kWcWithImm | kWcWithInvalidate)) != 0},
      {"flags of a failure", cqe.status != kWcSuccess && cqe.wc_flags != 0},
      {"both immediate and key", (cqe.wc_flags & kWcWithImm) != 0 && (cqe.wc_flags & kWcWithInvalidate) != 0},
      {"a value without its flag", !has_value && cqe.immediate_or_invalidate != 0},
      {"service level", is_datagram ? cqe.sl != 0x09 && cqe.sl != 0x0A : cqe.sl != 0},
      {"fields of a flushed request", is_empty && (cqe.opcode != 0 || cqe.byte_len != 0 || cqe.src_qp != 0)},
  };
  const char* const fault = first_broken(rules);
  if (fault == nullptr) return std::nullopt;
  return std::string(fault) + ": completion of wr_id " + std::to_string(cqe.wr_id) + " with status " +
         std::to_string(cqe.status);
}

}  // namespace roci::sim
