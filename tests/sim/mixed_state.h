// The inside of mixed_program.h: what the program knows of its parties, QPs, requests and messages, and its
// class, whose parts are in files of their own. No other file includes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/sim/mixed_program.h"

// A namespace of its own: its names are those of other programs, too, with which it may be compiled as one.
namespace roci::sim::mixed {

using namespace emulator;

inline constexpr std::uint32_t kMaxMessage = 8000, kTagBytes = 8, kGrhBytes = 40;
inline constexpr std::uint32_t kSlotBytes = 9000, kSlots = 160;  // of a party, for sends and receives
inline constexpr std::uint32_t kTargetBytes = 48 * 1024;         // what a peer reads and writes
inline constexpr std::uint32_t kQueue = 24;
inline constexpr proto::Qkey kQkey{0x1234}, kGsiQkey{0x80010000};
inline constexpr std::uint32_t kOwnQkeyBit = 0x80000000;
inline constexpr std::uint32_t kMadBytes = 256;              // the most that QP1 sends
inline constexpr Duration kHang = std::chrono::seconds(40);  // of virtual time without a completion
// Many times the longest pause of a daemon.
inline constexpr Duration kWakes = std::chrono::milliseconds(200);

struct End;

// A context of a NIC on a shard, with what its QPs share.
struct Party {
  unsigned host = 0, nic = 0;
  Client* client = nullptr;
  std::unique_ptr<Cq> cq;
  std::vector<RingMemory> old_rings;  // of the CQ and the SRQ; not to be touched
  std::unique_ptr<Srq> srq;
  std::uint32_t srq_max_wr = kQueue * 2;
  std::uint32_t srq_limit = 0;  // armed; 0: no event is to come
  bool awaits_limit = false;    // posts to the SRQ when its event has come
  Mr arena;
  std::vector<std::uint32_t> free_slots;
  Mr counter;                              // that peers add to
  std::vector<std::uint64_t> originals;    // what they got
  std::uint64_t uncertain = 0;             // additions that may have been executed
  bool is_armed = false, is_told = false;  // told: by an event, and has not polled since
  std::size_t unread_at_arm = 0;
  bool is_asleep = false;  // does nothing until an event comes
  Time asleep_since{};
};

// What a receive must find.
struct Message {
  std::uint64_t tag = 0;
  std::uint32_t length = 0;
  bool is_write = false, has_immediate = false, invalidates = false;
  std::uint32_t immediate = 0;
  proto::Rkey key{};         // invalidated
  std::uint32_t offset = 0;  // UC WRITE: in the target
  unsigned arrivals = 0;     // UC
};

struct Datagram {
  Message message;
  const End* source = nullptr;
  const End* destination = nullptr;  // null: the group
  bool ipv6 = false;
  std::map<const End*, unsigned> arrivals;
};

struct Pending {
  std::uint64_t wr_id = 0;
  std::uint32_t opcode = kWcSend;  // of its completion
  bool is_signaled = false;
  bool adds = false;  // to the peer's counter
  bool uses_window = false;
  std::uint32_t slot = 0;
  std::uint32_t length = 0;
  std::uint64_t tag = 0;          // what the slot holds
  std::vector<std::byte> brings;  // what a READ or CMP_SWAP does
  std::optional<AhHandle> ah;     // of a datagram
  bool has_lost_handle = false;   // that was destroyed before it was told to be sent
  std::uint32_t offset = 0;       // of a READ
  bool is_local = false;          // bind or invalidation: no slot
};

struct Receive {
  Party* party = nullptr;
  End* end = nullptr;  // null: of the SRQ
  std::uint32_t slot = 0;
  std::uint32_t capacity = 0;
  std::uint64_t tag = 0;  // what the slot held
};

enum class Window { kNone, kFree, kBinding, kBound, kInvalidating };

struct End {
  std::string name;
  Party* party = nullptr;
  QpType type = QpType::kRc;
  std::unique_ptr<Qp> qp;
  End* peer = nullptr;
  bool uses_srq = false, signal_all = false, in_group = false;
  std::deque<Pending> pending;
  std::deque<std::uint64_t> posted;  // own receives
  std::deque<Message> expected;      // RC: to arrive here
  std::vector<Message> sent;         // UC: sent to here, by number
  std::size_t next_number = 0;       // UC: not before this one, if the link keeps the order
  std::uint64_t target_segment = 0;
  Mr target;
  std::vector<std::byte> model;  // RC: of the target
  std::uint32_t written = 0;     // UC: bytes that were ever written to
  Mw mw;
  MwType mw_type = MwType::kType1;
  Window window = Window::kNone;
  unsigned to_post = 0;
  bool is_broken = false, has_failed = false, is_gone = false;
};

// Address handles of a party; made by a command, hence not within a step.
struct WantedHandle {
  Party* party;
  proto::Gid gid;
  bool ipv6;
};
struct MadeHandle {
  Party* party;
  proto::Gid gid;
  AhHandle ah;
};

class MixedProgram {
 public:
  explicit MixedProgram(const ProgramOptions& options) : options_(options), random_(options.seed * 2 + 1) {}

  ProgramResult run();

 private:
  // mixed_program.cpp: the course of it, and what must hold at its end
  void fail(const End* end, const std::string& what);
  void choose();
  Time application(Time now);
  bool done() const;
  std::string describe() const;
  void check_end();
  void check_written(End& end, std::span<std::byte> target);
  void check_counter(Party& party);

  // mixed_build.cpp: hosts, contexts, QPs and what connects them
  void build();
  void add_party(unsigned host, unsigned nic, unsigned shard);
  End& add_end(Party& party, QpType type, const char* kind);
  void add_target(End& end);
  void connect();
  static proto::Qkey qkey_of(QpType type);
  void add_datagram_end(Party& party, QpType type);
  static proto::Gid group();
  std::optional<AhHandle> find_handle(const Party& from, const proto::Gid& gid) const;
  void make_handle(const WantedHandle& wanted);

  // mixed_post.cpp: requests, and what they must come to
  std::span<std::byte> slot_bytes(const Party& party, std::uint32_t slot);
  static void write_content(std::uint64_t tag, std::span<std::byte> out);
  static bool is_content(std::uint64_t tag, std::span<const std::byte> bytes);
  static std::span<const std::byte> noise_of(std::uint64_t tag);
  std::uint32_t take_slot(Party& party, std::uint64_t tag);
  std::vector<Sge> pieces(const Party& party, std::uint32_t slot, std::uint32_t length);
  std::uint32_t choose_length();
  void post(End& end);
  void send_from_slot(End& end, SendWr& wr, Pending& pending);
  bool make_reliable(End& end, SendWr& wr, Pending& pending);
  bool make_local(End& end, SendWr& wr, Pending& pending);
  bool make_unreliable(End& end, SendWr& wr, Pending& pending);
  bool make_datagram(End& end, SendWr& wr, Pending& pending);
  void post_receive(Party& party, End* end);

  // mixed_completions.cpp: completions and events
  static bool may_fail(const End& end, const RingCqe& cqe);
  void complete_send(End& end, const RingCqe& cqe);
  void finish(End& end, const Pending& one, bool is_success);
  void complete_receive(End& end, const Receive& receive, const RingCqe& cqe);
  void check_message(const End& end, const Message& message, const RingCqe& cqe,
                     std::span<const std::byte> bytes, std::uint32_t offset);
  void check_untouched(const End& end, const Receive& receive, std::span<const std::byte> bytes,
                       std::size_t used);
  void receive_reliable(End& end, const Receive& receive, const RingCqe& cqe,
                        std::span<const std::byte> bytes);
  void receive_unreliable(End& end, const RingCqe& cqe, std::span<const std::byte> bytes);
  void receive_datagram(End& end, const Receive& receive, const RingCqe& cqe,
                        std::span<const std::byte> bytes);
  void poll(Party& party);
  void arm(Party& party);
  void hear(Party& party);
  void listen(Party& party);

  // mixed_commands.cpp: what changes meanwhile
  void disturb();
  void resume(End& end);
  void change_srq(Party& party);
  void retire_handle();
  void destroy_handles();
  bool has_lost_sends(const Party& party) const;
  void break_connection();
  void bury(End& end);
  void destroy(End& end);

  ProgramOptions options_;
  Random random_;
  ProgramResult result_;
  WorldConfig config_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Party>> parties_;
  std::vector<std::unique_ptr<End>> ends_;  // also those that are gone
  std::map<std::pair<Party*, std::uint32_t>, End*> by_qpn_;
  std::vector<MadeHandle>
      handles_;  // in the order in which they were made, which is the same in every replay
  std::vector<WantedHandle> wanted_handles_;
  std::vector<MadeHandle> retired_handles_;                 // to be destroyed
  std::unordered_map<std::uint64_t, Receive> receives_;     // by wr_id
  std::unordered_map<std::uint64_t, Datagram> datagrams_;   // by tag
  std::unordered_map<std::uint64_t, std::size_t> numbers_;  // UC, by tag
  std::uint64_t next_id_ = 1, next_tag_ = 1;
  proto::PathMtu mtu_ = proto::PathMtu::k1024;
  std::uint32_t eagerness_ = 0;  // per million: how often a step posts
  bool repeats_ = false, keeps_order_ = true;
  Time last_progress_{};
};

}  // namespace roci::sim::mixed
