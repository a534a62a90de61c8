// A packet as one line of text, readable aloud, and back:
//   RC_SEND_ONLY from=10.0.0.1 to=10.0.0.2 dqpn=0x11 psn=100 a=1 len=4 data=01020304
//
// A field that has its usual value is left out, so what is computed (lengths, checksums, ICRC) shows only
// when wrong. A CM message is told in words behind a '#', where reading ends. Not here: sentences for people
// (tools explain). Allocates; not for the data path. No thread rule.
#pragma once

#include "proto/packet.h"
#include "proto/result.h"
#include "proto/types.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace roci::proto {

enum class TextDetail {
  kHeaders,  // payload as its length only
  kAll,      // payload bytes too: from_text() gives back the same packet
};
[[nodiscard]] std::string to_text(const Packet& packet, TextDetail detail = TextDetail::kHeaders);

// A packet with the bytes that it borrows. Moving keeps the borrow valid, so it cannot be copied.
class OwnedPacket {
 public:
  OwnedPacket() = default;
  OwnedPacket(OwnedPacket&&) = default;
  OwnedPacket& operator=(OwnedPacket&&) = default;
  OwnedPacket(const OwnedPacket&) = delete;
  OwnedPacket& operator=(const OwnedPacket&) = delete;
  ~OwnedPacket() = default;

  [[nodiscard]] const Packet& packet() const { return packet_; }
  [[nodiscard]] Packet& packet() { return packet_; }
  void own_payload(std::vector<std::byte> bytes);
  void own_trailer(std::vector<std::byte> bytes);

 private:
  Packet packet_;
  std::vector<std::byte> payload_;
  std::vector<std::byte> trailer_;
};

struct TextError {
  std::string message;  // one sentence that names the word at fault
};
// Fields left out have their usual value; `len=64` without `data=` is 64 zero bytes.
[[nodiscard]] Result<OwnedPacket, TextError> from_text(std::string_view line);

// "02:00:00:00:00:01"; "10.0.0.1" for a mapped IPv4 address, else IPv6 notation. The inverses accept just
// that.
[[nodiscard]] std::string to_text(const Mac& mac);
[[nodiscard]] std::string to_text(const Gid& gid);
[[nodiscard]] std::optional<Mac> mac_from_text(std::string_view text);
[[nodiscard]] std::optional<Gid> gid_from_text(std::string_view text);

}  // namespace roci::proto
