// The rdma_cm character device: what an open of it can ask, answered by the connection manager, and the
// events it reads.
//
// Each open is a channel, and a client of the manager, with a pipe of its own. Here is what the manager does
// not know: the ABI's structs, the numbers that the application gave its ids (uid), and how many events of an
// id the application has read, on which its library waits when it destroys the id [UVERBS.md, section 1].
// Commands are answered at once. MADs and neighbours go by way of Gsi. Control thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "emulator/cm/connection_manager.h"
#include "proto/result.h"
#include "verbs_shim/protocol.h"
#include "verbs_shim/rdma_cm_abi.h"
#include "verbs_shim/server/context.h"
#include "verbs_shim/server/gsi.h"
#include "verbs_shim/server/record_pipe.h"

namespace roci::shim {

class RdmaCm {
 public:
  // Events of a channel that are not read; of more, requests to connect are refused, and others are lost.
  static constexpr std::size_t kMaxQueuedEvents = 16384;
  // Pipes of closed channels from which a thread still reads.
  static constexpr std::size_t kMaxLingering = 1024;

  RdmaCm(ContextHost& host, const std::uint64_t (&seed)[4]);
  RdmaCm(const RdmaCm&) = delete;
  RdmaCm& operator=(const RdmaCm&) = delete;

  // The wire, of every NIC.
  void open_ports() { gsi_.open(); }
  void close_ports(const std::function<void()>& done) { gsi_.close(done); }
  [[nodiscard]] int events_fd() const { return gsi_.events_fd(); }  // readable: on_completions()
  void on_completions();
  void on_timers();
  // When on_timers() has something to do; nothing: never.
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> next_deadline() const;

  // The NIC's addresses are those of `config` now.
  void on_addresses(emulator::NicId nic, const emulator::NicConfig& config) {
    manager_.on_addresses(nic, config);
  }

  // ---- channels. `channel` is of the caller's choice and never used again; `nics`: those it may use (bit n:
  // NIC n). Returns what the application reads events from.
  [[nodiscard]] proto::Result<UniqueFd, std::errc> open(std::uint64_t channel, pid_t owner,
                                                        std::uint64_t nics);
  [[nodiscard]] bool is_open(std::uint64_t channel) const;
  // Its peers are told. No effect on a channel that is not open.
  void close(std::uint64_t channel);
  // A kRdmaCm message: RdmaCmRequest, the command, and what it refers to. The response is empty where the
  // command has none.
  [[nodiscard]] proto::Result<std::vector<std::byte>, std::errc> command(std::uint64_t channel, pid_t sender,
                                                                         std::span<const std::byte> payload);

  // Takes out of a snapshot of shard 0 what is the daemon's own and no client's.
  void leave_out_own(emulator::Snapshot& snapshot) const;
  // For show: "cms", and "cm_counters".
  void show(nlohmann::json& result) const;

 private:
  using Bytes = std::span<const std::byte>;
  using Response = std::vector<std::byte>;
  using Answer = proto::Result<Response, std::errc>;
  using Manager = emulator::cm::ConnectionManager;

  struct Channel {
    pid_t owner = 0;
    RecordPipe<ucm::EventRecord> pipe;
    std::uint64_t watch = 0;
    bool is_open = true;         // false: only the pipe is left
    bool has_no_reader = false;  // any more
  };
  struct Group {
    std::uint64_t uid = 0;
    std::uint32_t events = 0;  // as below
  };
  struct Id {
    std::uint64_t channel = 0;
    std::uint64_t uid = 0;       // 0: a connection that is not accepted yet, of which nothing is told
    std::uint32_t listener = 0;  // whose request it came by; 0: none
    std::uint32_t events = 0;    // written to pipes, and not taken back
    std::map<std::uint32_t, Group> groups;
  };
  struct Call {
    std::uint64_t channel = 0;
    Bytes core, option;
    std::uint64_t other_inode = 0;
    std::size_t out_bytes = 0;
  };
  using Handler = Answer (RdmaCm::*)(const Call&);
  struct Row {
    ucm::Command command;
    std::size_t request_bytes;   // least size
    std::size_t response_bytes;  // least room
    Handler handler;
  };
  static const Row* find_row(std::uint32_t command);

  Answer create_id(const Call& call);
  Answer destroy_id(const Call& call);
  Answer bind_ip(const Call& call);
  Answer bind(const Call& call);
  Answer resolve_ip(const Call& call);
  Answer resolve_address(const Call& call);
  Answer resolve_route(const Call& call);
  Answer query_route(const Call& call);
  Answer query(const Call& call);
  Answer connect(const Call& call);
  Answer listen(const Call& call);
  Answer accept(const Call& call);
  Answer reject(const Call& call);
  Answer disconnect(const Call& call);
  Answer init_qp_attr(const Call& call);
  Answer set_option(const Call& call);
  Answer notify(const Call& call);
  Answer join_ip_multicast(const Call& call);
  Answer join_multicast(const Call& call);
  Answer leave_multicast(const Call& call);
  Answer migrate_id(const Call& call);

  // An id of the channel, or why there is none.
  [[nodiscard]] proto::Result<Id*, std::errc> find(std::uint64_t channel, std::uint32_t id);
  // Runs `act(client, handle, now)` on an id of the channel; no response.
  template <class Act>
  Answer run(const Call& call, std::uint32_t id, Act act);
  Answer join(const Call& call, std::uint32_t id, std::uint64_t uid,
              const std::optional<emulator::cm::SocketAddress>& group);
  void remove(std::uint32_t id);
  [[nodiscard]] Channel* find_channel(std::uint64_t channel);
  void reader_gone(std::uint64_t channel);
  void drop_pipe(std::uint64_t channel);
  // The unread events of an id and its groups are taken out of its pipe, and not counted any more.
  std::vector<ucm::EventRecord> take_back(std::uint32_t id, Id& of);

  // Hands on what the manager wants done, until there is nothing.
  void hand_on();
  void tell(const emulator::cm::Event& event);
  [[nodiscard]] bool write(std::uint64_t channel, const ucm::EventRecord& record);
  void count(bool is_written, std::uint32_t& events);

  ContextHost& host_;
  Manager manager_;
  Gsi gsi_;
  std::unordered_map<std::uint64_t, Channel> channels_;
  std::unordered_map<std::uint32_t, Id> ids_;
  std::unordered_map<std::uint32_t, std::uint32_t> group_owner_;  // a group's handle -> the id
  std::uint32_t next_group_ = 0;
  std::size_t lingering_ = 0;
  std::uint64_t lost_events_ = 0;
};

}  // namespace roci::shim
