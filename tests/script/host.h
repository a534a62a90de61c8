// What stands on the bench: one engine with one NIC, its clock, and everything that comes out of it.
//
// Nothing is lost or late unless the script says so: what the engine sends, completes and raises waits here,
// each with its time, until the script asks for it. Test code only. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "emulator/engine.h"
#include "proto/packet.h"
#include "tests/script/words.h"
#include "tests/sim/plain_memory.h"

namespace roci::scripts {

struct HostOptions {
  std::uint32_t window_packets = 128;
  std::uint32_t transmit_burst = 32;
  std::uint32_t mtu_bytes = 4200;
  emulator::Duration daemon_gap = std::chrono::milliseconds(1);
  bool ipv6 = false;
  bool knows_peer = true;
};

struct SentPacket {
  emulator::Time at;
  Bytes frame;
  proto::Packet packet;  // borrows from `frame`
  bool is_roce = true;
};
// "ARP", "ND", "IGMP", "MLD" or "OTHER": what a frame that is not RoCE is.
[[nodiscard]] std::string_view kind_of(std::span<const std::byte> frame);

struct RaisedEvent {
  emulator::Time at;
  emulator::Event event;
};

class Host {
 public:
  explicit Host(const HostOptions& options);
  ~Host();

  [[nodiscard]] const HostOptions& options() const { return options_; }
  [[nodiscard]] emulator::Engine& engine() { return *engine_; }
  [[nodiscard]] sim::PlainMemory& memory() { return memory_; }
  [[nodiscard]] const emulator::Counters& counters() const { return engine_->counters({0}); }

  // Called behind every pass of the engine: here the application polls its CQs.
  void after_each_pass(std::function<void()> then) { after_pass_ = std::move(then); }

  // One burst; what became of each frame.
  std::vector<emulator::DropReason> receive(const std::vector<Bytes>& frames);
  // The reply, if it came at once.
  std::optional<emulator::CommandReply> submit(emulator::CommandId id, emulator::Command command);
  std::optional<emulator::CommandReply> reply(emulator::CommandId id);
  void set_link(bool up);
  // The device queue is full: nothing that the engine would send is taken.
  void block_transmit(bool blocked);

  // ---- the clock
  [[nodiscard]] emulator::Time now() const { return now_; }
  // Lets the engine do what is due, without letting time pass.
  void pass();
  // Lets time pass until `end`, or until `stop` says so, asked behind each pass.
  void advance(emulator::Time end, const std::function<bool()>& stop);
  // The same, but the daemon is not scheduled meanwhile.
  void stall(emulator::Duration duration) { now_ += duration; }

  std::deque<SentPacket> packets;
  std::deque<RaisedEvent> events;
  // What is unsound in a packet that the engine sent, or in a completion; the script ends then.
  std::optional<std::string> unsound;

  // The peer says where it is.
  [[nodiscard]] Bytes arp_reply() const;

  [[nodiscard]] proto::Gid own_gid() const;
  [[nodiscard]] proto::Gid peer_gid() const;
  static constexpr proto::Mac kOwnMac{{2, 0, 0, 0, 0, 1}};
  static constexpr proto::Mac kPeerMac{{2, 0, 0, 0, 0, 2}};

 private:
  class Sink;

  HostOptions options_;
  sim::PlainMemory memory_;
  std::unique_ptr<emulator::Engine> engine_;
  std::unique_ptr<Sink> sink_;
  std::vector<emulator::CommandReply> replies_;
  std::function<void()> after_pass_ = [] {};
  emulator::Time now_{std::chrono::seconds(1)};
};

}  // namespace roci::scripts
