#include "tests/sim/mixed_program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace roci::sim {

using namespace emulator;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
namespace mixed {  // its names are those of other programs, too, with which it may be compiled as one

constexpr std::uint32_t kMaxMessage = 8000, kTagBytes = 8, kGrhBytes = 40;
constexpr std::uint32_t kSlotBytes = 9000, kSlots = 160;  // of a party, for sends and receives
constexpr std::uint32_t kTargetBytes = 48 * 1024;         // what a peer reads and writes
constexpr std::uint32_t kQueue = 24;
constexpr proto::Qkey kQkey{0x1234}, kGsiQkey{0x80010000};
constexpr std::uint32_t kOwnQkeyBit = 0x80000000;
constexpr std::uint32_t kMadBytes = 256;        // the most that QP1 sends
constexpr Duration kHang = seconds(40);         // of virtual time without a completion
constexpr Duration kWakes = milliseconds(200);  // many times the longest pause of a daemon

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

class MixedProgram {
 public:
  explicit MixedProgram(const ProgramOptions& options) : options_(options), random_(options.seed * 2 + 1) {}

  ProgramResult run() {
    choose();
    build();
    world_->set_application([this](Time now) { return application(now); });
    last_progress_ = world_->now();
    const auto over = [&] { return !result_.ok() || done() || world_->now() - last_progress_ > kHang; };
    while (result_.ok() && !done() && world_->now() - last_progress_ <= kHang) {
      // A command must not be given within a step.
      const Time until = world_->now() + microseconds(random_.between32(20, 2000));
      const bool goes_on = world_->run_until([&] { return over() || world_->now() >= until; }, seconds(3600));
      if (!goes_on) world_->run_for(microseconds(50));
      if (result_.ok()) disturb();
    }
    if (result_.ok() && !done()) fail(nullptr, "hangs" + describe());
    if (result_.ok()) {
      world_->set_application({});
      world_->run_for(seconds(1));
      for (const std::unique_ptr<Party>& party : parties_)
        poll(*party);
      check_end();
    }
    collect(*world_, config_, result_);
    return result_;
  }

 private:
  void fail(const End* end, const std::string& what) {
    if (result_.failure.empty()) result_.failure = (end == nullptr ? std::string{} : end->name + ": ") + what;
  }

  // ---- what the seed chooses

  void choose() {
    config_.seed = random_.next();
    config_.shards = options_.shards;
    config_.hosts = random_.between32(2, 4);
    config_.nics = random_.between32(1, 2);
    config_.static_neighbours = random_.chance(700'000);
    config_.transmit_burst = random_.between32(1, 64);
    config_.window_packets = random_.between32(4, 200);
    choose_faults(config_, options_, random_.fork());
    constexpr proto::PathMtu kMtus[] = {proto::PathMtu::k256, proto::PathMtu::k512, proto::PathMtu::k1024,
                                        proto::PathMtu::k2048, proto::PathMtu::k4096};
    mtu_ = kMtus[random_.index(5)];
    eagerness_ = random_.between32(50'000, 900'000);
    const auto& rates = config_.link.per_million;
    repeats_ = rates[static_cast<std::size_t>(Fault::kDuplicate)] != 0;
    keeps_order_ = !repeats_ && rates[static_cast<std::size_t>(Fault::kReorder)] == 0;
    result_.setting = std::to_string(config_.hosts) + " hosts, " + std::to_string(config_.nics) + " NICs, " +
                      std::to_string(config_.shards) + " shards, MTU " +
                      std::to_string(proto::bytes_of(mtu_)) + ", " + describe_faults(config_);
  }

  // ---- building

  void build() {
    world_ = std::make_unique<World>(config_);
    for (unsigned host = 0; host < config_.hosts; ++host) {
      for (unsigned nic = 0; nic < config_.nics; ++nic) {
        for (unsigned shard = 0; shard < config_.shards; ++shard)
          add_party(host, nic, shard);
      }
    }
    const unsigned connections = random_.between32(1, 2 * options_.max_connections);
    for (unsigned i = 0; i < connections; ++i)
      connect();
    for (const std::unique_ptr<Party>& party : parties_) {
      if (random_.chance(500'000)) add_datagram_end(*party, QpType::kUd);
    }
    for (std::size_t i = 0; i < parties_.size(); i += config_.shards) {  // QP1 is on shard 0
      if (random_.chance(500'000)) add_datagram_end(*parties_[i], QpType::kGsi);
    }
  }

  void add_party(unsigned host, unsigned nic, unsigned shard) {
    parties_.push_back(std::make_unique<Party>());
    Party& party = *parties_.back();
    party.host = host;
    party.nic = nic;
    party.client = &world_->add_client(host, shard, nic);
    party.cq = party.client->create_cq(4000);
    party.srq = party.client->create_srq(party.srq_max_wr);
    party.arena = party.client->new_mr(kSlots * kSlotBytes);
    for (std::uint32_t i = 0; i < kSlots; ++i)
      party.free_slots.push_back(i);
    party.counter = party.client->new_mr(8);
  }

  End& add_end(Party& party, QpType type, const char* kind) {
    ends_.push_back(std::make_unique<End>());
    End& end = *ends_.back();
    end.name = std::string(kind) + " QP " + std::to_string(ends_.size());
    end.party = &party;
    end.type = type;
    end.uses_srq = type != QpType::kUc && random_.chance(400'000);
    end.signal_all = random_.chance(200'000);
    QpOptions options;
    options.capabilities = {kQueue, end.uses_srq ? 0 : kQueue, 3, end.uses_srq ? 0U : 3U, 64};
    options.signal_all = end.signal_all;
    options.type = type;
    if (end.uses_srq) options.srq = party.srq->handle();
    end.qp = party.client->create_qp(*party.cq, *party.cq, options);
    end.to_post = std::max(1U, options_.operations / 3);
    if (!by_qpn_.emplace(std::pair{&party, end.qp->qpn().value()}, &end).second)
      fail(&end, "the QPN is in use");
    return end;
  }

  void add_target(End& end) {
    Client& client = *end.party->client;
    end.target_segment = client.allocate(kTargetBytes);
    fill_noise(random_, client.bytes(end.target_segment, kTargetBytes));
    const std::span<std::byte> bytes = client.bytes(end.target_segment, kTargetBytes);
    end.model.assign(bytes.begin(), bytes.end());
    end.target = client.reg_mr(end.target_segment, kTargetBytes,
                               Client::kAllRights | kAccessMwBind | kAccessFlushGlobal);
    if (end.type != QpType::kRc) return;
    end.mw_type = random_.chance(500'000) ? MwType::kType1 : MwType::kType2;
    end.mw = client.alloc_mw(end.mw_type);
    end.window = Window::kFree;
  }

  void connect() {
    Party& left = *parties_[random_.index(parties_.size())];
    Party& right = *parties_[random_.index(parties_.size())];
    if (left.host == right.host && left.nic == right.nic) return;
    const QpType type = random_.chance(600'000) ? QpType::kRc : QpType::kUc;
    End& a = add_end(left, type, type == QpType::kRc ? "RC" : "UC");
    End& b = add_end(right, type, type == QpType::kRc ? "RC" : "UC");
    a.peer = &b;
    b.peer = &a;
    const bool ipv6 = random_.chance(400'000);
    ConnectOptions to_b, to_a;
    to_b.dgid = World::gid(right.host, right.nic, ipv6);
    to_a.dgid = World::gid(left.host, left.nic, ipv6);
    to_b.dest_qpn = b.qp->qpn();
    to_a.dest_qpn = a.qp->qpn();
    to_b.sq_psn = to_a.rq_psn = proto::Psn{0xFFFFFF - random_.between32(0, 400)};
    to_a.sq_psn = to_b.rq_psn = proto::Psn{random_.between32(0, 0xFFFFFF)};
    for (ConnectOptions* one : {&to_a, &to_b}) {
      one->mtu = mtu_;
      if (type == QpType::kRc) one->access |= kAccessFlushGlobal;
      one->sgid_index = ipv6 ? 2 : 1;
      one->min_rnr_timer = static_cast<std::uint8_t>(random_.between32(1, 14));
      one->timeout = static_cast<std::uint8_t>(random_.between32(12, 14));
    }
    left.client->connect(*a.qp, to_b);
    right.client->connect(*b.qp, to_a);
    add_target(a);
    add_target(b);
  }

  static proto::Qkey qkey_of(QpType type) { return type == QpType::kGsi ? kGsiQkey : kQkey; }

  void add_datagram_end(Party& party, QpType type) {
    End& end = add_end(party, type, type == QpType::kGsi ? "GSI" : "UD");
    for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
      const std::errc error =
          party.client->to_datagram_state(*end.qp, state, qkey_of(type), proto::Psn{0xFFFFF0});
      if (error != std::errc{}) fail(&end, "a transition is refused");
    }
    end.in_group = type == QpType::kUd && random_.chance(600'000);
    if (end.in_group &&
        party.client->transact(AttachMulticast{end.qp->handle(), group()}).error != std::errc{}) {
      fail(&end, "attaching is refused");
    }
  }

  static proto::Gid group() { return proto::Gid::from_ipv4(0xEF010203); }

  AhHandle handle_to(Party& from, const proto::Gid& gid, bool ipv6) {
    const auto key = std::pair{&from, gid.bytes};
    const auto found = handles_.find(key);
    if (found != handles_.end()) return found->second;
    AddressVector av;
    av.dgid = gid;
    av.is_global = true;
    av.sgid_index = ipv6 ? 2 : 1;
    return handles_[key] = from.client->create_ah(av);
  }

  // ---- memory

  std::span<std::byte> slot_bytes(const Party& party, std::uint32_t slot) {
    return party.client->bytes(party.arena, std::uint64_t{slot} * kSlotBytes, kSlotBytes);
  }
  // What a message with that tag holds.
  static void write_content(std::uint64_t tag, std::span<std::byte> out) {
    std::memcpy(out.data(), noise_of(tag).data(), out.size());
    if (out.size() >= kTagBytes) std::memcpy(out.data(), &tag, kTagBytes);
  }
  static bool is_content(std::uint64_t tag, std::span<const std::byte> bytes) {
    if (bytes.size() < kTagBytes) return std::equal(bytes.begin(), bytes.end(), noise_of(tag).begin());
    return std::memcmp(bytes.data(), &tag, kTagBytes) == 0 &&
           std::memcmp(bytes.data() + kTagBytes, noise_of(tag).data() + kTagBytes,
                       bytes.size() - kTagBytes) == 0;
  }
  static std::span<const std::byte> noise_of(std::uint64_t tag) {
    return noise().subspan(
        static_cast<std::size_t>(tag * 0x9E3779B97F4A7C15 % (noise().size() - kTargetBytes)));
  }

  std::uint32_t take_slot(Party& party, std::uint64_t tag) {
    const std::uint32_t slot = party.free_slots.back();
    party.free_slots.pop_back();
    write_content(tag, slot_bytes(party, slot));
    return slot;
  }

  // The slot in up to three pieces.
  std::vector<Sge> pieces(const Party& party, std::uint32_t slot, std::uint32_t length) {
    std::vector<Sge> sges;
    std::uint64_t at = std::uint64_t{slot} * kSlotBytes;
    for (std::size_t left = random_.index(3) + 1; left != 0; --left) {
      const std::uint32_t bytes = left == 1 ? length : random_.between32(0, length);
      sges.push_back(party.arena.sge(at, bytes));
      at += bytes;
      length -= bytes;
    }
    return sges;
  }

  std::uint32_t choose_length() {
    const std::uint32_t mtu = proto::bytes_of(mtu_);
    switch (random_.index(4)) {
      case 0:
        return random_.between32(kTagBytes, 64);
      case 1:
        return std::min(kMaxMessage, random_.between32(1, 3) * mtu - 1 + random_.between32(0, 2));
      default:
        return random_.between32(kTagBytes,
                                 random_.chance(200'000) ? kMaxMessage : std::min(kMaxMessage, 3 * mtu));
    }
  }

  // ---- posting

  void post(End& end) {
    Party& party = *end.party;
    if (end.to_post == 0 || end.is_broken || end.has_failed || party.free_slots.size() < 8 ||
        end.qp->send_queued() + 2 > kQueue)
      return;
    SendWr wr;
    Pending pending;
    wr.wr_id = pending.wr_id = next_id_++;
    if (wr.flags = 0; random_.chance(300'000)) wr.flags = kSolicited;
    pending.tag = next_tag_++;
    pending.length = choose_length();
    const auto unsignaled = static_cast<std::size_t>(std::count_if(
        end.pending.rbegin(), end.pending.rend(), [](const Pending& one) { return !one.is_signaled; }));
    const bool must_signal = unsignaled > 3 || end.to_post == 1 || end.qp->send_queued() + 4 > kQueue;
    pending.is_signaled = end.signal_all || must_signal || random_.chance(600'000);
    if (pending.is_signaled) wr.flags |= kSignaled;
    bool is_made = false;
    switch (end.type) {
      case QpType::kRc:
        is_made = make_reliable(end, wr, pending);
        break;
      case QpType::kUc:
        is_made = make_unreliable(end, wr, pending);
        break;
      case QpType::kUd:
      case QpType::kGsi:
        is_made = make_datagram(end, wr, pending);
        break;
    }
    if (!is_made) return;
    --end.to_post;
    if (!end.qp->post_send(wr)) return fail(&end, "post_send is refused");
    ++result_.operations;
    result_.bytes += pending.length;
    end.pending.push_back(std::move(pending));
  }

  void send_from_slot(End& end, SendWr& wr, Pending& pending) {
    pending.slot = take_slot(*end.party, pending.tag);
    wr.sges = pieces(*end.party, pending.slot, pending.length);
    if (pending.length <= 64 && random_.chance(500'000)) wr.flags |= kInline;
  }

  bool make_reliable(End& end, SendWr& wr, Pending& pending) {
    End& peer = *end.peer;
    if (make_local(end, wr, pending)) return true;
    // A window that is bound serves half of the accesses.
    const bool by_window = peer.window == Window::kBound && random_.chance(500'000);
    wr.rkey = by_window ? peer.mw.rkey : peer.target.rkey;
    Message message{pending.tag, pending.length};
    std::uint32_t offset = random_.between32(0, kTargetBytes - kMaxMessage);
    std::byte* const there = peer.model.data() + offset;
    const auto conflicts = [&](std::uint32_t bytes) {
      return std::any_of(end.pending.begin(), end.pending.end(), [&](const Pending& one) {
        return one.opcode == kWcRead && one.offset < offset + bytes && offset < one.offset + one.length;
      });
    };
    switch (random_.index(10)) {
      case 0:
        wr.opcode = kWrSend;
        break;
      case 1:
        wr.opcode = kWrSendImm;
        message.has_immediate = true;
        break;
      case 2:
        wr.opcode = kWrSend;
        // READs that use the window must be over: a fence.
        if (peer.window == Window::kBound && peer.mw_type == MwType::kType2) {
          wr.opcode = kWrSendInvalidate;
          wr.flags |= kFence;
          wr.invalidate = message.key = peer.mw.rkey;
          message.invalidates = true;
          peer.window = Window::kInvalidating;
        }
        break;
      case 3:
      case 4:
        wr.opcode = random_.chance(500'000) ? kWrWrite : kWrWriteImm;
        pending.opcode = kWcWrite;
        pending.uses_window = by_window;
        wr.remote_address = peer.target.iova + offset;
        message.is_write = true;
        message.has_immediate = wr.opcode == kWrWriteImm;
        if (conflicts(pending.length)) wr.flags |= kFence;
        write_content(pending.tag, {there, pending.length});
        break;
      case 5:
        wr.opcode = kWrRead;
        pending.opcode = kWcRead;
        pending.uses_window = by_window;
        pending.offset = offset;
        pending.brings.assign(there, there + pending.length);
        wr.remote_address = peer.target.iova + offset;
        break;
      case 6:
      case 7: {  // of eight aligned bytes; before them, what stands there
        offset &= ~7U;
        const bool swaps = random_.chance(500'000);
        std::byte* const word = peer.model.data() + offset;
        std::uint64_t original = 0;
        std::memcpy(&original, word, 8);
        const std::uint64_t value = random_.next();
        wr.opcode = swaps ? kWrCompareSwap : kWrAtomicWrite;
        pending.opcode = swaps ? kWcCompareSwap : kWcAtomicWrite;
        pending.uses_window = by_window;
        pending.length = 8;
        if (conflicts(8)) wr.flags |= kFence;
        wr.remote_address = peer.target.iova + offset;
        wr.compare_add = swaps && random_.chance(600'000) ? original : random_.next();
        wr.swap = wr.atomic_write = value;
        if (!swaps || wr.compare_add == original) std::memcpy(word, &value, 8);
        if (swaps)
          pending.brings.assign(reinterpret_cast<std::byte*>(&original),
                                reinterpret_cast<std::byte*>(&original) + 8);
        break;
      }
      case 8:  // moves nothing
        wr.opcode = kWrFlush;
        pending.opcode = kWcFlush;
        wr.placement = 1;  // global visibility
        wr.selectivity = random_.chance(500'000) ? 1 : 0;
        wr.rkey = peer.target.rkey;
        wr.remote_address = peer.target.iova + offset;
        break;
      default:
        wr.opcode = kWrFetchAdd;
        pending.opcode = kWcFetchAdd;
        pending.length = 8;
        pending.adds = pending.is_signaled = true;
        wr.flags |= kSignaled;
        wr.compare_add = 1;
        wr.remote_address = peer.party->counter.iova;
        wr.rkey = peer.party->counter.rkey;
        break;
    }
    wr.immediate = message.immediate = static_cast<std::uint32_t>(random_.next());
    const bool sends = wr.opcode == kWrSend || wr.opcode == kWrSendImm || wr.opcode == kWrSendInvalidate ||
                       wr.opcode == kWrWrite || wr.opcode == kWrWriteImm;
    if (!sends) {
      pending.slot = take_slot(*end.party, pending.tag);
      wr.sges = {end.party->arena.sge(std::uint64_t{pending.slot} * kSlotBytes, pending.length)};
      if (wr.opcode == kWrAtomicWrite) wr.sges.clear();
    } else {
      send_from_slot(end, wr, pending);
      if (!message.is_write || message.has_immediate) peer.expected.push_back(message);
    }
    return true;
  }

  // Windows over the own target: bound, and taken back when the peer has nothing under way that uses them.
  bool make_local(End& end, SendWr& wr, Pending& pending) {
    if (end.window == Window::kNone || !random_.chance(150'000)) return false;
    const bool is_used = std::any_of(end.peer->pending.begin(), end.peer->pending.end(),
                                     [](const Pending& one) { return one.uses_window; });
    const bool may_change = end.window == Window::kBound && !is_used;
    if (end.window == Window::kFree || (may_change && end.mw_type == MwType::kType1)) {
      wr.opcode = kWrBindWindow;
      pending.opcode = kWcBindWindow;
      wr.binding = {end.mw.rkey,     end.mw.next_key(),
                    end.target.lkey, end.target.iova,
                    kTargetBytes,    kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic};
      end.mw.rkey = wr.binding.new_key;
      end.window = Window::kBinding;
    } else if (may_change) {
      wr.opcode = kWrLocalInvalidate;
      pending.opcode = kWcLocalInvalidate;
      wr.invalidate = end.mw.rkey;
      end.window = Window::kInvalidating;
    } else {
      return false;
    }
    wr.flags |= kSignaled;
    pending.is_local = pending.is_signaled = true;
    pending.length = 0;
    return true;
  }

  bool make_unreliable(End& end, SendWr& wr, Pending& pending) {
    End& peer = *end.peer;
    Message message{pending.tag, pending.length};
    message.has_immediate = random_.chance(500'000);
    message.is_write = random_.chance(500'000) && peer.written + pending.length <= kTargetBytes;
    wr.opcode = message.is_write ? (message.has_immediate ? kWrWriteImm : kWrWrite)
                                 : (message.has_immediate ? kWrSendImm : kWrSend);
    // The number tells which message it is, where the bytes do not.
    wr.immediate = message.immediate = static_cast<std::uint32_t>(peer.sent.size());
    if (message.is_write) {
      pending.opcode = kWcWrite;
      message.offset = peer.written;
      wr.remote_address = peer.target.iova + peer.written;
      wr.rkey = peer.target.rkey;
      peer.written += pending.length;
    }
    send_from_slot(end, wr, pending);
    numbers_[pending.tag] = peer.sent.size();
    peer.sent.push_back(message);
    return true;
  }

  bool make_datagram(End& end, SendWr& wr, Pending& pending) {
    std::vector<End*> others;
    for (const std::unique_ptr<End>& one : ends_) {
      if (one->type == end.type && one->party->host != end.party->host) others.push_back(one.get());
    }
    const bool is_gsi = end.type == QpType::kGsi;
    if (is_gsi && others.empty()) {
      end.to_post = 0;  // nobody to talk to
      return false;
    }
    const bool to_group = others.empty() || (!is_gsi && random_.chance(300'000));
    Datagram datagram;
    datagram.source = &end;
    datagram.destination = to_group ? nullptr : others[random_.index(others.size())];
    datagram.ipv6 = !to_group && random_.chance(400'000);
    pending.length = std::min(pending.length, is_gsi ? kMadBytes : proto::bytes_of(mtu_));
    datagram.message = {pending.tag, pending.length};
    datagram.message.has_immediate = random_.chance(500'000);
    wr.opcode = datagram.message.has_immediate ? kWrSendImm : kWrSend;
    wr.immediate = datagram.message.immediate = static_cast<std::uint32_t>(random_.next());
    const Party* const there = to_group ? nullptr : datagram.destination->party;
    const proto::Gid gid = to_group ? group() : World::gid(there->host, there->nic, datagram.ipv6);
    const auto ah = handles_.find({end.party, gid.bytes});
    if (ah == handles_.end()) {  // it takes a command, and this is within a step
      wanted_handles_.push_back({end.party, gid, datagram.ipv6});
      return false;
    }
    wr.ah = ah->second;
    pending.ah = ah->second;
    wr.remote_qpn = to_group ? proto::kQpnMulticast : datagram.destination->qp->qpn();
    // With its top bit set it asks for the QP's own.
    wr.remote_qkey = random_.chance(500'000)
                         ? qkey_of(end.type)
                         : proto::Qkey{kOwnQkeyBit | static_cast<std::uint32_t>(random_.next())};
    send_from_slot(end, wr, pending);
    datagrams_[pending.tag] = std::move(datagram);
    return true;
  }

  void post_receive(Party& party, End* end) {
    if (party.free_slots.size() < 16) return;
    Receive receive{&party, end, 0, kMaxMessage + kGrhBytes, next_tag_++};
    RecvWr wr;
    wr.wr_id = next_id_++;
    receive.slot = take_slot(party, receive.tag);
    wr.sges = pieces(party, receive.slot, receive.capacity);
    const bool is_taken =
        end == nullptr ? party.srq->post_recv(wr) : !end->qp->recv_full() && end->qp->post_recv(wr);
    if (!is_taken) return party.free_slots.push_back(receive.slot);
    if (end != nullptr) end->posted.push_back(wr.wr_id);
    receives_.emplace(wr.wr_id, receive);
  }

  // ---- completions

  // A broken connection has its requests flushed, once behind exhausted retries; so has a datagram QP what
  // stands behind one whose handle is gone.
  static bool may_fail(const End& end, const RingCqe& cqe) {
    if (cqe.status == kWcFlushed) return end.is_broken || end.has_failed;
    if (end.has_failed) return false;
    if (end.is_broken) return end.type == QpType::kRc && cqe.status == kWcRetryExceeded;
    const auto it = std::find_if(end.pending.begin(), end.pending.end(),
                                 [&](const Pending& one) { return one.wr_id == cqe.wr_id; });
    return it != end.pending.end() && it->has_lost_handle && cqe.status == kWcLocalQpOperation;
  }

  void complete_send(End& end, const RingCqe& cqe) {
    const bool is_success = cqe.status == kWcSuccess;
    if (!is_success && !may_fail(end, cqe))
      return fail(&end, std::string(end.is_broken ? "a broken connection's send has" : "a send fails with") +
                            " status " + std::to_string(cqe.status));
    if (is_success && end.has_failed) return fail(&end, "a success behind a failure");
    if (!is_success) end.has_failed = true;
    while (!end.pending.empty()) {
      const Pending one = std::move(end.pending.front());
      end.pending.pop_front();
      const bool is_it = one.wr_id == cqe.wr_id;
      if (!is_it && one.is_signaled)
        return fail(&end, "a signaled work request does not complete, a later one does");
      if (is_it && is_success && !one.is_signaled) return fail(&end, "an unsignaled work request completes");
      if (is_it && is_success && cqe.opcode != one.opcode)
        return fail(&end, "a send completes with opcode " + std::to_string(cqe.opcode));
      // What was sent in time was told before the handle was destroyed.
      if (is_it && is_success && one.has_lost_handle)
        return fail(&end, "a datagram is sent by a handle that is gone");
      finish(end, one, !is_it || is_success);
      if (is_it) return;
    }
    fail(&end, "a completion of no work request");
  }

  void finish(End& end, const Pending& one, bool is_success) {
    Party& party = *end.party;
    if (one.is_local) {
      if (is_success) end.window = one.opcode == kWcBindWindow ? Window::kBound : Window::kFree;
      return;
    }
    const std::span<std::byte> bytes = slot_bytes(party, one.slot);
    party.free_slots.push_back(one.slot);
    if (!is_success) {
      if (one.adds) ++end.peer->party->uncertain;
      datagrams_.erase(one.tag);  // must not arrive
      return;
    }
    std::size_t brought = 0;
    if (one.adds) {
      std::uint64_t original = 0;
      std::memcpy(&original, bytes.data(), 8);
      end.peer->party->originals.push_back(original);
      brought = 8;
    } else if (!one.brings.empty()) {
      if (!std::equal(one.brings.begin(), one.brings.end(), bytes.begin()))
        return fail(&end, "a READ or CMP_SWAP brings wrong bytes");
      brought = one.brings.size();
    }
    // All else is as it was.
    const auto rest = bytes.subspan(brought);
    const bool is_intact =
        brought == 0 ? is_content(one.tag, bytes)
                     : std::memcmp(rest.data(), noise_of(one.tag).data() + brought, rest.size()) == 0;
    if (!is_intact) fail(&end, "a send buffer has changed");
  }

  void complete_receive(End& end, const Receive& receive, const RingCqe& cqe) {
    if (receive.end != nullptr && receive.end != &end) return fail(&end, "completes another QP's receive");
    if ((receive.end == nullptr) != end.uses_srq) return fail(&end, "completes a receive of the wrong queue");
    if (receive.end != nullptr) {
      if (end.posted.front() != cqe.wr_id) return fail(&end, "receives complete out of order");
      end.posted.pop_front();
    }
    const std::span<std::byte> bytes = slot_bytes(*end.party, receive.slot);
    end.party->free_slots.push_back(receive.slot);
    if (cqe.status != kWcSuccess) {
      if (!end.is_broken || cqe.status != kWcFlushed)
        fail(&end, "a receive fails with status " + std::to_string(cqe.status));
      return;
    }
    ++result_.messages_received;
    switch (end.type) {
      case QpType::kRc:
        return receive_reliable(end, receive, cqe, bytes);
      case QpType::kUc:
        return receive_unreliable(end, cqe, bytes);
      case QpType::kUd:
      case QpType::kGsi:
        return receive_datagram(end, receive, cqe, bytes);
    }
  }

  // The fields of a completion, and the bytes behind `offset`.
  void check_message(const End& end, const Message& message, const RingCqe& cqe,
                     std::span<const std::byte> bytes, std::uint32_t offset) {
    if (cqe.byte_len != message.length + offset)
      return fail(&end, "byte_len is " + std::to_string(cqe.byte_len));
    if (cqe.opcode != (message.is_write ? kWcRecvWriteImm : kWcRecv))
      return fail(&end, "a receive has a wrong opcode");
    const std::uint32_t flags = (message.has_immediate ? kWcWithImm : 0U) |
                                (message.invalidates ? kWcWithInvalidate : 0U) | (offset != 0 ? kWcGrh : 0U);
    if (cqe.wc_flags != flags) return fail(&end, "wc_flags are " + std::to_string(cqe.wc_flags));
    if (message.has_immediate && __builtin_bswap32(cqe.immediate_or_invalidate) != message.immediate)
      return fail(&end, "wrong immediate data");
    if (message.invalidates && cqe.immediate_or_invalidate != message.key.value())
      return fail(&end, "wrong invalidated key");
    if (!message.is_write && !is_content(message.tag, bytes.subspan(offset, message.length)))
      return fail(&end, "wrong bytes received");
  }
  void check_untouched(const End& end, const Receive& receive, std::span<const std::byte> bytes,
                       std::size_t used) {
    if (used < kTagBytes) used = kTagBytes;  // where the tag stands
    if (std::memcmp(bytes.data() + used, noise_of(receive.tag).data() + used, bytes.size() - used) != 0)
      fail(&end, "bytes behind a message have changed");
  }

  void receive_reliable(End& end, const Receive& receive, const RingCqe& cqe,
                        std::span<const std::byte> bytes) {
    if (end.expected.empty()) return fail(&end, "a message arrives that was not sent");
    const Message message = end.expected.front();
    end.expected.pop_front();
    check_message(end, message, cqe, bytes, 0);
    check_untouched(end, receive, bytes, message.is_write ? 0 : message.length);
    if (cqe.src_qp != end.peer->qp->qpn().value()) return fail(&end, "wrong src_qp");
    if (message.invalidates) end.window = Window::kFree;
  }

  void receive_unreliable(End& end, const RingCqe& cqe, std::span<const std::byte> bytes) {
    std::uint64_t tag = 0;
    std::memcpy(&tag, bytes.data(), kTagBytes);
    const auto by_tag = numbers_.find(tag);
    const bool has_immediate = (cqe.wc_flags & kWcWithImm) != 0;
    if (!has_immediate && by_tag == numbers_.end()) return fail(&end, "a message arrives that was not sent");
    const std::size_t number =
        has_immediate ? __builtin_bswap32(cqe.immediate_or_invalidate) : by_tag->second;
    if (number >= end.sent.size()) return fail(&end, "a message arrives that was not sent");
    Message& message = end.sent[number];
    if (keeps_order_ && number < end.next_number)
      return fail(&end, "a message arrives again, or out of order");
    if (++message.arrivals > (repeats_ ? 2U : 1U)) return fail(&end, "a message arrives too often");
    end.next_number = number + 1;
    check_message(end, message, cqe, bytes, 0);
    const auto written = end.party->client->bytes(end.target_segment + message.offset, message.length);
    if (message.is_write && !is_content(message.tag, written)) fail(&end, "wrong bytes written");
  }

  void receive_datagram(End& end, const Receive& receive, const RingCqe& cqe,
                        std::span<const std::byte> bytes) {
    std::uint64_t tag = 0;
    std::memcpy(&tag, bytes.data() + kGrhBytes, kTagBytes);
    const auto found = datagrams_.find(tag);
    if (found == datagrams_.end()) return fail(&end, "a datagram arrives that was not sent");
    Datagram& datagram = found->second;
    const bool is_for_me = datagram.destination == nullptr ? end.in_group && datagram.source != &end
                                                           : datagram.destination == &end;
    if (!is_for_me) return fail(&end, "a datagram arrives that is for another");
    if (++datagram.arrivals[&end] > (repeats_ ? 2U : 1U)) return fail(&end, "a datagram arrives too often");
    check_message(end, datagram.message, cqe, bytes, kGrhBytes);
    check_untouched(end, receive, bytes, kGrhBytes + datagram.message.length);
    if (cqe.src_qp != datagram.source->qp->qpn().value()) return fail(&end, "a datagram has a wrong src_qp");
    // The addresses: of IPv4 they end the area, of IPv6 they are all of its last 32 bytes.
    const Party& from = *datagram.source->party;
    const proto::Gid source = World::gid(from.host, from.nic, datagram.ipv6);
    const std::size_t length = datagram.ipv6 ? 16 : 4;
    const std::byte* const at = bytes.data() + kGrhBytes - 2 * length;
    if (std::memcmp(at, source.bytes.data() + 16 - length, length) != 0)
      return fail(&end, "a GRH has a wrong source");
    const proto::Gid to = datagram.destination == nullptr
                              ? group()
                              : World::gid(end.party->host, end.party->nic, datagram.ipv6);
    if (std::memcmp(at + length, to.bytes.data() + 16 - length, length) != 0)
      fail(&end, "a GRH has a wrong destination");
  }

  void poll(Party& party) {
    hear(party);
    party.is_told = party.is_asleep = false;  // what it reads needs no event
    std::size_t found = 0;
    while (const std::optional<RingCqe> cqe = party.cq->poll()) {
      ++found;
      last_progress_ = world_->now();
      world_->mix(cqe->wr_id * 64 + cqe->status);
      const auto of = by_qpn_.find({&party, cqe->qp_num});
      if (of == by_qpn_.end()) return fail(nullptr, "a completion of a QP that is gone, or never was");
      End& end = *of->second;
      const auto receive = receives_.find(cqe->wr_id);
      if (receive == receives_.end()) {
        complete_send(end, *cqe);
      } else {
        const Receive one = receive->second;
        receives_.erase(receive);
        complete_receive(end, one, *cqe);
      }
      if (!result_.ok()) return;
    }
    // What was there when it was armed may have been read before the engine looked.
    const std::size_t old = std::min(found, party.unread_at_arm);
    party.unread_at_arm -= old;
    if (party.is_armed && found > old) fail(nullptr, "an armed CQ has a completion and raises no event");
    if (!party.is_armed && random_.chance(100'000)) arm(party);
  }

  void arm(Party& party) {
    party.client->arm(*party.cq, CqArm::kNext);
    party.is_armed = true;
    party.unread_at_arm = party.cq->pending();
  }

  // The events of its context so far, each of which was asked for.
  void hear(Party& party) {
    std::vector<Event>& events = world_->events(party.host);
    const auto others = std::stable_partition(events.begin(), events.end(), [&](const Event& one) {
      return one.context != party.client->context();
    });
    const std::vector<Event> heard(others, events.end());
    events.erase(others, events.end());
    for (const Event& one : heard) {
      world_->mix(static_cast<std::uint64_t>(one.kind));
      if (one.kind == EventKind::kCompletion) {
        if (!party.is_armed) return fail(nullptr, "a CQ raises an event that nobody asked for");
        party.is_told = true;
        party.is_armed = party.is_asleep = false;
        party.unread_at_arm = 0;
      } else if (one.kind == EventKind::kSrqLimitReached) {
        if (party.srq_limit == 0) return fail(nullptr, "an SRQ raises an event, and no limit is armed");
        // Receives are posted after this only.
        if (party.srq->posted() >= party.srq_limit)
          return fail(nullptr, "an SRQ raises its limit event with as many receives left");
        party.srq_limit = 0;
        party.awaits_limit = false;
      }
    }
    if (party.srq->posted() < party.srq_limit)
      fail(nullptr, "an SRQ has fewer receives than its limit, and raises no event");
  }

  // Polls, or arms the CQ without a look and sleeps: what came since the last poll must wake it at once.
  void listen(Party& party) {
    hear(party);
    const bool may_sleep = !party.is_armed && !party.is_told && party.cq->pending() != 0;
    if (may_sleep && random_.chance(100'000)) {
      arm(party);
      party.is_asleep = true;
      party.asleep_since = world_->now();
    }
    if (!party.is_asleep) return poll(party);
    if (world_->now() - party.asleep_since > kWakes)
      fail(nullptr, "a CQ is armed over unread completions and raises no event");
  }

  // ---- what the application does, between the steps

  Time application(Time now) {
    for (const std::unique_ptr<Party>& party : parties_) {
      listen(*party);
      if (!result_.ok()) return kNever;
    }
    for (const std::unique_ptr<End>& end : ends_) {
      if (end->is_gone || end->party->is_asleep) continue;
      for (int i = 0; i < 4 && random_.chance(eagerness_) && result_.ok(); ++i)
        post(*end);
      if (!end->is_broken && !end->uses_srq && random_.chance(eagerness_ / 2)) {
        for (std::size_t i = random_.index(4) + 1; i != 0; --i)
          post_receive(*end->party, end.get());
      }
    }
    for (const std::unique_ptr<Party>& party : parties_) {
      if (party->is_asleep || party->awaits_limit || !random_.chance(eagerness_ / 2)) continue;
      for (std::size_t i = random_.index(6) + 1; i != 0 && party->srq->posted() < party->srq_max_wr; --i)
        post_receive(*party, nullptr);
    }
    const bool wants = std::any_of(ends_.begin(), ends_.end(), [](const std::unique_ptr<End>& end) {
      return !end->is_gone && (end->to_post != 0 || !end->expected.empty());
    });
    return wants ? now + microseconds(random_.between32(1, 100)) : kNever;
  }

  // ---- what it does by commands

  void disturb() {
    for (const auto& [party, gid, ipv6] : std::exchange(wanted_handles_, {})) {
      if (!has_lost_sends(*party)) (void)handle_to(*party, gid, ipv6);
    }
    if (random_.chance(30'000)) {
      Party& party = *parties_[random_.index(parties_.size())];
      party.old_rings.push_back(party.client->resize(*party.cq, random_.between32(3000, 8000)));
      fill_noise(random_, party.old_rings.back().bytes());
    }
    for (const std::unique_ptr<Party>& party : parties_) {
      if (random_.chance(150'000)) change_srq(*party);
      if (!result_.ok()) return;
    }
    if (random_.chance(100'000) && !handles_.empty()) {
      auto one = handles_.begin();
      std::advance(one, static_cast<std::ptrdiff_t>(random_.index(handles_.size())));
      retired_handles_.emplace_back(one->first.first, one->second);
      handles_.erase(one);  // the next datagram makes another
    }
    destroy_handles();
    if (random_.chance(10'000)) break_connection();
    for (const std::unique_ptr<End>& end : ends_) {
      if (end->is_broken && !end->is_gone && end->peer != nullptr) bury(*end);
      if (end->has_failed && !end->is_broken && end->pending.empty()) resume(*end);
    }
  }

  // A datagram QP goes on when what stood behind the failure is flushed.
  void resume(End& end) {
    if (end.qp->state() != QpState::kSqe) return fail(&end, "a send fails, and the QP is not in SQE");
    if (end.party->client->to_state(*end.qp, QpState::kRts) != std::errc{})
      return fail(&end, "leaving SQE is refused");
    end.has_failed = false;
  }

  // Moves it, or arms its limit. What does not fit is refused, and changes nothing.
  void change_srq(Party& party) {
    hear(party);  // by now; the command comes next
    if (!result_.ok()) return;
    const std::uint32_t limit_now = party.srq_limit;
    const CommandReply reply = party.client->transact(QuerySrq{party.srq->handle()});
    hear(party);
    if (!result_.ok()) return;
    const QuerySrqReply& now = std::get<QuerySrqReply>(reply.body);
    if (now.max_wr != party.srq_max_wr || now.limit != limit_now)
      return fail(nullptr, "query_srq tells another size or limit");
    const std::uint32_t posted = party.srq->posted();
    if (random_.chance(500'000)) {
      const std::uint32_t max_wr = random_.between32(4, kQueue * 4);
      const bool fits = max_wr >= posted && max_wr >= party.srq_limit;
      RingMemory old;
      const std::errc error = party.srq->resize(*party.client, max_wr, &old);
      if ((error == std::errc{}) != fits) return fail(nullptr, "resizing an SRQ is judged wrongly");
      if (!fits) return;
      party.srq_max_wr = max_wr;
      party.old_rings.push_back(std::move(old));
      fill_noise(random_, party.old_rings.back().bytes());
    } else {
      const std::uint32_t soon = posted - std::min(posted, random_.between32(0, 2));
      const std::uint32_t limit = random_.chance(500'000) ? soon : random_.between32(0, party.srq_max_wr + 1);
      const bool fits = limit <= party.srq_max_wr;
      if (fits) {
        party.srq_limit = limit;
        party.awaits_limit = limit != 0 && random_.chance(500'000);
      }
      if ((party.srq->set_limit(*party.client, limit) == std::errc{}) != fits)
        return fail(nullptr, "the limit of an SRQ is judged wrongly");
      hear(party);
    }
  }

  // A handle goes when no send uses it, though what was sent by it may be under way; or amid them, and what
  // is not sent by then fails.
  void destroy_handles() {
    for (const auto& [party, ah] : std::exchange(retired_handles_, {})) {
      const auto each_use = [&, party = party, ah = ah](auto&& visit) {
        for (const std::unique_ptr<End>& end : ends_) {
          for (Pending& one : end->pending) {
            if (end->party == party && one.ah.has_value() && one.ah->value == ah.value) visit(one);
          }
        }
      };
      bool is_used = false;
      each_use([&](Pending&) { is_used = true; });
      if (is_used && !random_.chance(300'000)) {
        retired_handles_.emplace_back(party, ah);
        continue;
      }
      if (party->client->destroy(ah) != std::errc{})
        return fail(nullptr, "destroying an address handle is refused");
      poll(*party);  // what came before the reply
      if (!result_.ok()) return;
      each_use([](Pending& one) { one.has_lost_handle = true; });
    }
  }
  // Its queued sends name handles by numbers that the next handle may get.
  bool has_lost_sends(const Party& party) const {
    return std::any_of(ends_.begin(), ends_.end(), [&](const std::unique_ptr<End>& end) {
      return end->party == &party && end->qp->send_queued() != 0 &&
             std::any_of(end->pending.begin(), end->pending.end(),
                         [](const Pending& one) { return one.has_lost_handle; });
    });
  }

  void break_connection() {
    End& end = *ends_[random_.index(ends_.size())];
    if (end.peer == nullptr || end.is_broken || end.peer->is_broken) return;
    end.is_broken = end.peer->is_broken = true;
    if (random_.chance(500'000)) {
      destroy(end);
    } else if (end.party->client->to_state(*end.qp, QpState::kErr) != std::errc{}) {
      return fail(&end, "modify to ERR is refused");
    }
    if (result_.ok() && end.peer->party->client->to_state(*end.peer->qp, QpState::kErr) != std::errc{})
      fail(end.peer, "modify to ERR is refused");
    if (random_.chance(800'000)) connect();
  }

  // A broken QP has told everything: it goes, and its memory.
  void bury(End& end) {
    poll(*end.party);
    // What was done unsignaled before the QP broke is not told.
    const bool all_silent = std::none_of(end.pending.begin(), end.pending.end(),
                                         [](const Pending& one) { return one.is_signaled; });
    if (all_silent && end.qp->send_queued() == 0 && !end.has_failed) {
      for (const Pending& one : std::exchange(end.pending, {}))
        finish(end, one, true);
    }
    if (result_.ok() && end.pending.empty() && end.posted.empty()) destroy(end);
  }

  void destroy(End& end) {
    Party& party = *end.party;
    const std::errc error = party.client->destroy(*end.qp).error;
    if (error != std::errc{})
      return fail(&end, "destroy is refused with errno " + std::to_string(static_cast<int>(error)));
    poll(party);  // what came before the reply
    if (!result_.ok()) return;
    by_qpn_.erase({&party, end.qp->qpn().value()});
    end.is_gone = true;
    for (const Pending& one : end.pending) {
      if (one.adds) ++end.peer->party->uncertain;
      if (!one.is_local) party.free_slots.push_back(one.slot);
    }
    end.pending.clear();
    for (const std::uint64_t id : end.posted) {
      party.free_slots.push_back(receives_.at(id).slot);
      receives_.erase(id);
    }
    end.posted.clear();
    if (end.window != Window::kNone &&
        party.client->transact(DeallocMw{end.mw.handle}).error != std::errc{}) {
      return fail(&end, "dealloc_mw is refused");
    }
    party.client->dereg_mr(end.target);
    party.client->memory().give_up(party.client->space(), end.target.address, end.target.length_bytes);
  }

  // ---- the end

  bool done() const {
    return std::all_of(ends_.begin(), ends_.end(), [](const std::unique_ptr<End>& end) {
      return end->is_gone ||
             (end->is_broken ? end->pending.empty() && end->posted.empty()
                             : end->to_post == 0 && end->pending.empty() && end->expected.empty());
    });
  }

  std::string describe() const {
    std::string text;
    for (const std::unique_ptr<End>& end : ends_) {
      if (end->is_gone) continue;
      text += "\n  " + end->name + (end->is_broken ? " (broken)" : "") + ": to post " +
              std::to_string(end->to_post) + ", pending " + std::to_string(end->pending.size()) +
              ", receives " + std::to_string(end->posted.size()) + ", messages to come " +
              std::to_string(end->expected.size()) + ", state " +
              std::to_string(static_cast<unsigned>(end->qp->state()));
    }
    return text;
  }

  void check_end() {
    for (const std::unique_ptr<End>& end : ends_) {
      if (end->is_gone || end->is_broken || end->peer == nullptr) continue;
      if (end->qp->state() != QpState::kRts) fail(end.get(), "is not in RTS at the end");
      const std::span<std::byte> target = end->party->client->bytes(end->target_segment, kTargetBytes);
      if (end->type == QpType::kRc) {
        if (!std::equal(target.begin(), target.end(), end->model.begin()))
          fail(end.get(), "a byte of its target is wrong");
      } else {
        check_written(*end, target);
      }
    }
    for (const std::unique_ptr<Party>& party : parties_) {
      if (party->cq->pending() != 0) fail(nullptr, "completions are left over");
      check_counter(*party);
    }
    for (unsigned host = 0; host < config_.hosts; ++host) {
      for (unsigned shard = 0; shard < config_.shards; ++shard) {
        for (std::uint8_t nic = 0; nic < config_.nics; ++nic) {
          const Counters& counters = world_->engine(host, shard).counters({nic});
          if (counters.dropped[static_cast<std::size_t>(DropReason::kBadQkey)] != 0)
            fail(nullptr, "a datagram came with a wrong Q_Key");
        }
      }
    }
  }

  // UC: each packet of a WRITE is there or not; what no WRITE named is as it was.
  void check_written(End& end, std::span<std::byte> target) {
    for (const Message& message : end.sent) {
      if (!message.is_write) continue;
      std::vector<std::byte> wanted(message.length);
      write_content(message.tag, wanted);
      for (std::uint32_t at = 0; at < message.length; at += proto::bytes_of(mtu_)) {
        const std::uint32_t bytes = std::min<std::uint32_t>(proto::bytes_of(mtu_), message.length - at);
        const std::byte* const now = target.data() + message.offset + at;
        if (std::memcmp(now, wanted.data() + at, bytes) != 0 &&
            std::memcmp(now, end.model.data() + message.offset + at, bytes) != 0) {
          return fail(&end, "a packet of a WRITE is there in part");
        }
      }
    }
    if (!std::equal(target.begin() + end.written, target.end(), end.model.begin() + end.written))
      fail(&end, "bytes that no WRITE names have changed");
  }

  void check_counter(Party& party) {
    std::uint64_t value = 0;
    std::memcpy(&value, party.client->bytes(party.counter, 0, 8).data(), 8);
    std::sort(party.originals.begin(), party.originals.end());
    if (std::adjacent_find(party.originals.begin(), party.originals.end()) != party.originals.end())
      return fail(nullptr, "two ATOMICs got the same value");
    const bool fits = value >= party.originals.size() && value <= party.originals.size() + party.uncertain;
    if (!fits) fail(nullptr, "a counter that ATOMICs add to has a wrong sum");
  }

  struct WantedHandle {
    Party* party;
    proto::Gid gid;
    bool ipv6;
  };

  ProgramOptions options_;
  Random random_;
  ProgramResult result_;
  WorldConfig config_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Party>> parties_;
  std::vector<std::unique_ptr<End>> ends_;  // also those that are gone
  std::map<std::pair<Party*, std::uint32_t>, End*> by_qpn_;
  std::map<std::pair<Party*, std::array<std::uint8_t, 16>>, AhHandle> handles_;
  std::vector<WantedHandle> wanted_handles_;
  std::vector<std::pair<Party*, AhHandle>> retired_handles_;  // to be destroyed
  std::unordered_map<std::uint64_t, Receive> receives_;       // by wr_id
  std::unordered_map<std::uint64_t, Datagram> datagrams_;     // by tag
  std::unordered_map<std::uint64_t, std::size_t> numbers_;    // UC, by tag
  std::uint64_t next_id_ = 1, next_tag_ = 1;
  proto::PathMtu mtu_ = proto::PathMtu::k1024;
  std::uint32_t eagerness_ = 0;  // per million: how often a step posts
  bool repeats_ = false, keeps_order_ = true;
  Time last_progress_{};
};

}  // namespace mixed
}  // namespace

ProgramResult run_mixed_program(const ProgramOptions& options) { return mixed::MixedProgram(options).run(); }

}  // namespace roci::sim
