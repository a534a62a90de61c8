// One burst being planned: headers stand in the lent frames, payload follows by memory operations, then the
// ICRC.
//
// Not here: which packets (requester.cpp, responder.cpp) and whose turn it is (engine.cpp). Thread rule: the
// engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "emulator/frame.h"
#include "emulator/memory.h"
#include "emulator/qp.h"
#include "proto/header_template.h"
#include "proto/icrc.h"
#include "proto/opcode.h"

namespace roci::emulator {

// Writes an extension header; returns where the next goes.
template <class Header>
std::byte* emit_extension(std::byte* at, const Header& header) {
  header.emit(std::span<std::byte, Header::kSize>{at, Header::kSize});
  return at + Header::kSize;
}

struct PlannedPacket {
  enum class Kind : std::uint8_t { kRequest, kResponse, kNeighbour };

  Qp* qp = nullptr;                                // null for kNeighbour
  const proto::HeaderTemplate* headers = nullptr;  // the QP's, or those of a datagram's address handle
  Kind kind = Kind::kNeighbour;
  bool is_retransmission = false;
  bool is_lost = false;  // the NIC lost its source address: counts as sent, and is not
  std::uint32_t first_op = 0;
  std::uint32_t op_count = 0;
  std::uint32_t length_bytes = 0;  // of the frame, ICRC included
  proto::Psn psn;
  Requester before;  // kRequest: the requester as it was before this packet was planned
};

class TransmitBatch {
 public:
  TransmitBatch(std::size_t max_packets, std::size_t max_ops_per_packet) {
    packets.reserve(max_packets);
    ops.reserve(max_packets * max_ops_per_packet);
  }
  void start(std::span<TxFrame> lent) {
    frames = lent;
    packets.clear();
    ops.clear();
  }
  [[nodiscard]] bool is_full() const { return packets.size() == frames.size(); }
  [[nodiscard]] std::byte* next_data() const { return frames[packets.size()].data; }

  // The header up to the BTH of the next frame; extension headers and payload go behind it. `behind_bth`
  // counts both. Returns where the extension headers go.
  std::byte* start_packet(Qp& qp, proto::Opcode opcode, proto::Psn psn, std::uint32_t behind_bth,
                          bool ack_request, bool solicited) const {
    return start_packet(qp, qp.headers, opcode, psn, behind_bth, ack_request, solicited);
  }
  std::byte* start_packet(Qp& qp, const proto::HeaderTemplate& headers, proto::Opcode opcode, proto::Psn psn,
                          std::uint32_t behind_bth, bool ack_request, bool solicited) const {
    const TxFrame& frame = frames[packets.size()];
    const std::uint32_t pad = pad_of(behind_bth);
    proto::HeaderTemplate::PerPacket packet;
    packet.opcode = opcode;
    packet.psn = psn;
    packet.ack_request = ack_request;
    packet.solicited_event = solicited;
    packet.pad_count = static_cast<std::uint8_t>(pad);
    packet.ip_identification = qp.ip_identification++;
    packet.bytes_behind_bth = static_cast<std::uint16_t>(behind_bth + pad);
    return frame.data + headers.emit({frame.data, frame.capacity_bytes}, packet);
  }
  // Ends what start_packet() began. The ops behind `first_op` fill the payload.
  PlannedPacket& add(Qp& qp, PlannedPacket::Kind kind, proto::Psn psn, std::uint32_t behind_bth,
                     std::size_t first_op) {
    return add(qp, qp.headers, kind, psn, behind_bth, first_op);
  }
  PlannedPacket& add(Qp& qp, const proto::HeaderTemplate& headers, PlannedPacket::Kind kind, proto::Psn psn,
                     std::uint32_t behind_bth, std::size_t first_op) {
    PlannedPacket& packet = packets.emplace_back();
    packet.qp = &qp;
    packet.headers = &headers;
    packet.is_lost = qp.source_is_gone;
    packet.kind = kind;
    packet.psn = psn;
    packet.first_op = static_cast<std::uint32_t>(first_op);
    packet.op_count = static_cast<std::uint32_t>(ops.size() - first_op);
    packet.length_bytes =
        static_cast<std::uint32_t>(headers.size() + behind_bth + pad_of(behind_bth) + proto::Icrc::kSize);
    std::byte* const pad = frames[packets.size() - 1].data + headers.size() + behind_bth;
    std::memset(pad, 0, pad_of(behind_bth));
    return packet;
  }

  std::span<TxFrame> frames;
  std::vector<PlannedPacket> packets;  // packets[i] is in frames[i]
  std::vector<MemoryOp> ops;

 private:
  // Headers are multiples of 4 bytes, so the payload alone decides.
  static constexpr std::uint32_t pad_of(std::uint32_t behind_bth) { return (0 - behind_bth) & 3; }
};

}  // namespace roci::emulator
