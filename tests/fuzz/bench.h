// One engine and a peer, for targets that go beyond scripts: commands that are waited for, and packets that a
// few bytes choose.
//
// Test code only. Thread rule: one thread.
#pragma once

#include <optional>

#include "emulator/command.h"
#include "proto/opcode.h"
#include "proto/types.h"
#include "tests/script/host.h"
#include "tests/sim/verbs.h"

namespace roci::fuzz {

inline constexpr proto::Qkey kQkey{0x11111111};

struct PeerPacket {
  proto::Opcode opcode{};
  proto::Qpn destination;
  proto::Psn psn;
  std::uint64_t address = 0;  // of a request that has one
  proto::Rkey rkey{};
  std::uint32_t length_bytes = 0;
  std::uint8_t syndrome = 0x1F;
  std::size_t payload_bytes = 0;
  bool ack_request = true;
};

class Bench {
 public:
  [[nodiscard]] scripts::Host& host() { return host_; }
  [[nodiscard]] sim::PlainMemory& memory() { return host_.memory(); }

  // The reply, however long it takes; the engine owes one.
  emulator::CommandReply transact(emulator::Command command);
  // For sim::Client.
  [[nodiscard]] sim::Client::Transact client_transact();
  void advance(emulator::Duration duration);
  [[nodiscard]] scripts::Bytes frame(const PeerPacket& packet) const;
  void receive(const PeerPacket& packet) { static_cast<void>(host_.receive({frame(packet)})); }

  // Aborts if the engine did what it must never.
  void check();

 private:
  scripts::Host host_{scripts::HostOptions{}};
  std::uint64_t next_command_ = 1;
};

}  // namespace roci::fuzz
