// The simulated world: hosts whose engines exchange frames over a faulty link, in virtual time.
//
// A host has NICs and one engine a shard. Time jumps from one event to the next: a frame that arrives, a
// deadline of an engine, the end of a pause of the daemon, the next wish of the application. Everything comes
// from one seed: same configuration, same trace hash. Every frame that an engine sends is parsed and its ICRC
// checked. Nothing is allocated for a frame. Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator/engine.h"
#include "tests/sim/link.h"
#include "tests/sim/plain_memory.h"
#include "tests/sim/random.h"
#include "tests/sim/verbs.h"

namespace roci::sim {

struct WorldConfig {
  std::uint64_t seed = 1;
  unsigned hosts = 2;
  unsigned shards = 1;
  unsigned nics = 1;  // a host
  std::uint32_t mtu_bytes = 4200;
  LinkConfig link;
  bool static_neighbours = true;        // else ARP and ND must find them
  std::uint32_t pause_per_million = 0;  // of passes: the daemon is not scheduled for a while
  emulator::Duration min_pause{1}, max_pause = std::chrono::milliseconds(5);
  std::uint32_t short_burst_per_million = 0;  // of bursts: the sink lends fewer buffers, perhaps none
  std::uint32_t blocked_nic_per_million = 0;  // of bursts: a NIC's queue is full
  std::uint32_t transmit_burst = 32, window_packets = 128;
};

struct WorldCounts {
  std::uint64_t passes = 0, pauses = 0, short_bursts = 0, blocked = 0, frames = 0, bytes = 0;
  std::array<std::uint64_t, 256> sent{}, accepted{};  // by opcode; those that an engine took
};

class World {
 public:
  explicit World(WorldConfig config);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] emulator::Time now() const { return now_; }
  [[nodiscard]] emulator::Engine& engine(unsigned host, unsigned shard = 0) {
    return *node(host, shard).engine;
  }
  [[nodiscard]] PlainMemory& memory(unsigned host) { return *memories_[host]; }
  [[nodiscard]] FaultyLink& link() { return link_; }
  // IPv4 by default: GID index 1; IPv6: index 2.
  [[nodiscard]] static proto::Gid gid(unsigned host, unsigned nic = 0, bool ipv6 = false);
  [[nodiscard]] static proto::Mac mac(unsigned host, unsigned nic = 0);
  [[nodiscard]] std::size_t port(unsigned host, unsigned nic = 0) const { return host * config_.nics + nic; }

  // A context of a NIC on a shard of a host; lives as long as the world, or until it is removed.
  Client& add_client(unsigned host, unsigned shard = 0, unsigned nic = 0);
  // Closes the context; its memory and control area are given back, so whoever touches them is found out.
  void remove_client(Client& client);
  // Any command, and its reply.
  emulator::CommandReply command(unsigned host, unsigned shard, emulator::Command command) {
    return transact(node(host, shard), std::move(command));
  }
  // Events raised so far by the engines of that host; the caller may clear it.
  [[nodiscard]] std::vector<emulator::Event>& events(unsigned host) { return events_[host]; }

  // Runs after every step and says when it wants to run next at the latest.
  void set_application(std::function<emulator::Time(emulator::Time now)> application) {
    application_ = std::move(application);
    application_at_ = emulator::kNever;
  }
  // Goes to the next event; false if none will ever come.
  bool step();
  // Until the condition holds: true. False if nothing can happen any more, or virtual time runs out.
  bool run_until(const std::function<bool()>& done, emulator::Duration limit);
  void run_for(emulator::Duration duration);

  // Of all frames sent and whatever was mixed in.
  [[nodiscard]] std::uint64_t trace_hash() const { return hash_; }
  void mix(std::uint64_t value);
  [[nodiscard]] const WorldCounts& counts() const { return counts_; }
  // Every frame sent is shown to this before the link has it.
  void set_tap(std::function<void(unsigned host, std::span<const std::byte> frame)> tap) {
    tap_ = std::move(tap);
  }
  // What was wrong with frames that were sent, and what the memories' checkers found.
  [[nodiscard]] std::vector<std::string> violations() const;

 private:
  class Sink;
  struct Node {
    unsigned host = 0, shard = 0;
    std::unique_ptr<emulator::Engine> engine;
    std::vector<Delivery> received;  // waits for a pass
    emulator::Time free_at{};        // the next pass is not before
    bool has_commands = false;
    std::vector<emulator::CommandReply> replies;
  };

  Node& node(unsigned host, unsigned shard) { return nodes_[host * config_.shards + shard]; }
  [[nodiscard]] emulator::Time wants_pass(const Node& node) const;
  void pass(Node& node);
  void transmitted(Node& node, const emulator::TxFrame& frame);
  emulator::CommandReply transact(Node& node, emulator::Command command);
  void show(Node& node);  // what has arrived, to the engine
  [[nodiscard]] bool has_doorbell(const Node& node) const;

  WorldConfig config_;
  Random random_;
  FaultyLink link_;
  emulator::Time now_{};
  std::vector<std::unique_ptr<PlainMemory>> memories_;  // by host
  std::vector<std::vector<emulator::Event>> events_;
  std::vector<Node> nodes_;
  std::unique_ptr<Sink> sink_;
  struct Opened {
    std::size_t node;
    std::unique_ptr<Client> client;
  };
  std::vector<Opened> clients_;
  std::function<emulator::Time(emulator::Time)> application_;
  emulator::Time application_at_ = emulator::kNever;
  bool in_command_ = false;
  std::uint64_t next_command_ = 1;
  std::uint64_t hash_ = 0x9E3779B97F4A7C15;
  WorldCounts counts_;
  std::function<void(unsigned, std::span<const std::byte>)> tap_;
  std::vector<std::string> violations_;
};

}  // namespace roci::sim
