// A packet as a line of a script has it: in proto's text form, every field optional.
//
// To be sent, what is left out has its usual value; of a packet that was seen, only what the line names is
// compared. Values are numbers already: names and relative PSNs are the runner's. Test code only. No thread
// rule.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/opcode.h"
#include "proto/packet.h"
#include "tests/script/words.h"

namespace roci::scripts {

struct PacketLine {
  std::string opcode;  // "RC_SEND_ONLY", "RESERVED_0x15"
  std::vector<std::pair<std::string, std::string>> fields;

  [[nodiscard]] const std::string* find(std::string_view key) const;
  void add_if_missing(const std::string& key, const std::string& value);
};
[[nodiscard]] std::string to_text(const PacketLine& line);
[[nodiscard]] proto::Opcode opcode_of(const PacketLine& line);  // complains about an unknown one

// The whole frame; complains about a field that the packet does not have.
[[nodiscard]] Bytes frame_of(const PacketLine& line);

struct Difference {
  std::string field, expected, seen;
};
// Empty if the packet is what the line says.
[[nodiscard]] std::vector<Difference> differences(const PacketLine& expected, const proto::Packet& seen);

}  // namespace roci::scripts
