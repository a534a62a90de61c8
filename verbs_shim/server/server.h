// The daemon's control side: one thread that serves clients' sockets and turns uverbs commands into engine
// commands.
//
// The daemon constructs it, runs serve() on a thread of its own, and calls on_events() from the shard
// threads. The server owns clients, their memory (memfds), channels (pipes), sysfs views and address spaces;
// the engine knows only handles. Thread rule: as each member says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/command.h"
#include "emulator/config.h"
#include "emulator/counters.h"
#include "emulator/memory.h"
#include "proto/result.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::shim {

// The way from the control thread to one shard's engine. The daemon implements it with two SPSC rings and an
// eventfd.
class ShardLink {
 public:
  ShardLink() = default;
  ShardLink(const ShardLink&) = delete;
  ShardLink& operator=(const ShardLink&) = delete;
  virtual ~ShardLink() = default;

  // Control thread. False: the ring is full and `command` untouched; try again after replies were drained.
  // Wakes the shard.
  [[nodiscard]] virtual bool submit(emulator::CommandId id, emulator::Command&& command) = 0;
  virtual std::size_t drain_replies(std::span<emulator::CommandReply> out) = 0;
  // Readable when replies wait (an eventfd; the server reads it).
  [[nodiscard]] virtual int replies_fd() const = 0;
  // What applications write to, to wake the shard (an eventfd; the server passes duplicates).
  [[nodiscard]] virtual int kick_fd() const = 0;
  // Counters of this shard's engine; any thread, values may be a pass old.
  [[nodiscard]] virtual const emulator::Counters& counters(emulator::NicId nic) const = 0;
};

// Capture, as the daemon's edge offers it. A file may block whoever writes to it, so a thread of its own does
// the work; the answers are called on the control thread, from run_answers(). Control thread.
class CaptureControl {
 public:
  CaptureControl() = default;
  CaptureControl(const CaptureControl&) = delete;
  CaptureControl& operator=(const CaptureControl&) = delete;
  virtual ~CaptureControl() = default;

  struct Wanted {
    std::uint64_t nics = 0;  // bit n: NIC n
    std::uint32_t snap_length_bytes = 0;
    bool truncate = false;  // empty the file first, once nothing else stands against the capture
  };
  struct Totals {
    std::uint64_t written = 0, lost = 0, bytes = 0;
    int error = 0;  // the errno with which the file took no more
  };
  // Writes pcapng to `fd`, which is closed at the end. `then` is given an id, or a negative errno.
  virtual void start(UniqueFd fd, const Wanted& wanted, std::function<void(std::int64_t)> then) = 0;
  // Everything seen before the call is in the file when `then` is called.
  virtual void stop(std::int64_t id, std::function<void(const Totals&)> then) = 0;
  // Readable when answers wait.
  [[nodiscard]] virtual int answers_fd() const = 0;
  virtual void run_answers() = 0;
};

struct ServerConfig {
  std::string socket_path;  // directory checked: ours, mode 0700 (or opened by allow_*)
  std::vector<emulator::NicConfig> nics;
  std::vector<std::string> port_names;  // of each NIC, for show: "fabric", "af_packet:eth0"
  emulator::DeviceLimits limits;
  std::vector<std::uint32_t> allow_uids, allow_gids;  // beside our own uid
  std::int64_t idle_exit_ms = -1;  // private daemon: end this long after the last client left; -1 = never
  std::uint32_t max_clients = 1024;
  // A call into a client's memory that takes longer is reported, and the client killed (memory that never
  // answers: userfaultfd, FUSE); -1 = never.
  std::int64_t memory_stall_report_ms = 2000;
  std::int64_t memory_stall_kill_ms = 30000;
  // An address as a user writes it, 10.0.0.5/24; the error is a sentence.
  std::function<proto::Result<emulator::NicAddress, std::string>(std::string_view)> parse_address;
  // One sentence per noteworthy thing, at most a few a second; on the control thread.
  std::function<void(std::string_view)> log;
};

class ControlServer {
 public:
  // Binds the socket; throws std::system_error with a sentence if it cannot. `links` and `capture` outlive
  // it. Ignores SIGPIPE and raises the soft limit of open files to the hard one, for the whole process.
  ControlServer(ServerConfig config, std::vector<ShardLink*> links, CaptureControl& capture);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // The memory port of one shard's engine (process_vm); used by that shard's thread only. Lives as long as
  // the server.
  [[nodiscard]] emulator::Memory& memory(std::uint32_t shard);
  // Shard threads: writes events into the channels' pipes. Never blocks.
  void on_events(std::span<const emulator::Event> events);
  // Control thread: returns after stop() or the idle time, with every client gone and every context closed
  // (the shards must still run).
  void serve();
  // Any thread, also a signal handler's.
  void stop();
  // More to show about the daemon itself (idle behaviour, shards, ports): a JSON object's text; called on the
  // control thread.
  void set_daemon_info(std::function<std::string()> json);
  // More counters of a NIC, those of its port: a JSON object's text; called on the control thread.
  void set_port_counters(std::function<std::string(emulator::NicId)> json);
  // NIC link state as shown in sysfs views; any thread.
  void on_link(emulator::NicId nic, bool up);
  // The addresses that a kernel's interface, whose the NIC's are, has now; any thread.
  void on_addresses(emulator::NicId nic, std::vector<emulator::NicAddress> addresses);
  void on_mtu(emulator::NicId nic, std::uint32_t mtu_bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace roci::shim
