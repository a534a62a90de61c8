// The rules that one packet can break by itself, whatever came before it.
//
// Pure functions: a frame in, what it is and what is wrong with it out. Not here: rules between packets
// (conversation.h). No thread rule.
#pragma once

#include "proto/packet.h"
#include "tools/trace/reader.h"
#include "tools/trace/rules.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace roci::tools {

struct Violation {
  Rule rule;
  std::string text;  // one sentence with the figures of this packet
};

enum class FrameKind : std::uint8_t {
  kOther,      // not RoCE or InfiniBand, or a fragment of which nobody can tell
  kCutShort,   // RoCE perhaps, but the capture cut it within its headers: nothing can be told
  kBroken,     // RoCE, and its framing so wrong that the BTH cannot be found or trusted
  kDefective,  // the BTH is legible, but a receiver drops the packet: ICRC, TVer, opcode or length
  kSound,      // a receiver gets as far as looking at its QP; lesser violations are possible
};

struct JudgedFrame {
  FrameKind kind = FrameKind::kOther;
  proto::Packet packet;  // of kSound whole, of kDefective up to the BTH; lends from the frame or the scratch
  std::vector<Violation> violations;
};

// Where a cut frame is laid out at its full length, zeros in place of what is missing.
using Scratch = std::vector<std::byte>;

[[nodiscard]] JudgedFrame judge_frame(const CapturedFrame& frame, Scratch& scratch);

// FIRST and MIDDLE: they fill a path MTU.
[[nodiscard]] bool is_full_position(const proto::OpcodeInfo& opcode);

}  // namespace roci::tools
