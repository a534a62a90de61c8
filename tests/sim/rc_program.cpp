#include "tests/sim/rc_program.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace roci::sim {

using namespace emulator;
using std::chrono::microseconds;
using std::chrono::seconds;

namespace {

constexpr std::size_t kWindowBytes = 160 * 1024;
constexpr std::size_t kGuardBytes = 4096;  // mapped around the window, not registered
constexpr std::uint32_t kMaxMessage = 70'000;
constexpr std::size_t kSlotBytes = kMaxMessage + 1024;
constexpr std::uint32_t kMaxPieces = 4;
// 2.6 ms with the engine's margin; and the pauses that it is credited, which are more than 1 ms longer.
constexpr std::uint32_t kShortTimeout = 9;
constexpr Duration kShortestPause = std::chrono::milliseconds(4),
                   kLongestPause = std::chrono::milliseconds(20);
constexpr Duration kHang = seconds(40);  // of virtual time without a completion

enum class Op { kSend, kSendImm, kWrite, kWriteImm, kRead, kCompareSwap, kFetchAdd, kSharedFetchAdd };
constexpr std::size_t kOpCount = 8;

struct Range {
  std::size_t offset = 0, bytes = 0;
  [[nodiscard]] bool overlaps(const Range& other) const {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

// A buffer of the application: what it must hold when its work request is complete.
struct Slot {
  std::size_t offset = 0;  // in the endpoint's buffer region
  bool busy = false;
  std::vector<std::byte> model;
};

struct Pending {
  std::uint64_t wr_id = 0;
  Op op = Op::kSend;
  bool signaled = false;
  std::size_t slot = 0;
  std::uint32_t length = 0;
  Range read;  // what a READ covers in the peer's window
};

struct PostedRecv {
  std::uint64_t wr_id = 0;
  std::size_t slot = 0;
  std::vector<Range> pieces;  // within the slot
};

struct Message {
  bool is_write = false;
  bool has_imm = false;
  std::uint32_t imm = 0, length = 0;
  std::vector<std::byte> bytes;  // empty for a WRITE
};

struct Context {
  Client* client = nullptr;
  std::unique_ptr<Cq> send_cq, recv_cq;  // one CQ for both if recv_cq is empty
  Mr shared;                             // one counter that every peer adds to
  std::vector<std::uint64_t> originals;  // what the peers got back from it
};

struct Endpoint {
  std::string name;
  Context* context = nullptr;
  Endpoint* peer = nullptr;
  std::unique_ptr<Qp> qp;
  bool signal_all = false;
  QpCapabilities caps;
  std::uint64_t window_segment = 0;
  Mr window;                            // what the peer reads and writes
  std::vector<std::byte> window_model;  // guards included; kept by the peer as it posts
  Mr buffers;
  std::vector<Slot> send_slots, recv_slots;
  std::deque<Pending> pending;
  std::deque<PostedRecv> posted;
  std::deque<Message> expected;  // to arrive here, in order
  std::uint64_t messages_announced = 0, recvs_posted = 0;
  unsigned to_post = 0;
  std::uint64_t next_wr_id = 1;
};

class Program {
 public:
  explicit Program(const ProgramOptions& options) : options_(options), random_(options.seed * 2 + 1) {}

  ProgramResult run();

 private:
  WorldConfig choose_world();
  void build();
  void add_pair(unsigned number);
  Endpoint& add_endpoint(unsigned side, std::string name);
  // One daemon pauses for both ends, which their timers are credited.
  [[nodiscard]] bool pauses_alike() const { return config_.hosts == 1 && config_.shards == 1; }
  [[nodiscard]] unsigned host_of(unsigned side) const { return config_.hosts == 1 ? 0 : side; }
  [[nodiscard]] unsigned nic_of(unsigned side) const { return config_.hosts == 1 ? side : 0; }
  Time application(Time now);
  void post(Endpoint& end);
  void post_recv(Endpoint& end);
  void poll(Cq& cq, Context& context);
  void complete_send(Endpoint& end, const RingCqe& cqe);
  void complete_recv(Endpoint& end, const RingCqe& cqe);
  void check_end();
  std::uint32_t choose_length();
  std::vector<Range> choose_pieces(std::uint32_t length, std::uint32_t max_pieces);
  void fill(std::span<std::byte> bytes) { fill_noise(random_, bytes); }
  std::size_t prepare(Endpoint& end, Slot& slot, std::size_t extent);
  void check_slot(Endpoint& end, Slot& slot, const char* what);
  [[nodiscard]] bool done() const;
  void fail(const Endpoint* end, const std::string& what);
  [[nodiscard]] std::string describe() const;

  ProgramOptions options_;
  Random random_;
  ProgramResult result_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Context>> contexts_;  // by host and shard
  std::vector<std::unique_ptr<Endpoint>> ends_;
  std::map<std::pair<Context*, std::uint32_t>, Endpoint*> by_qpn_;
  WorldConfig config_;
  proto::PathMtu mtu_ = proto::PathMtu::k1024;
  bool ipv6_ = false;
  Time last_progress_{};
  std::uint32_t eagerness_ = 0;  // per million: how often a step posts
};

void Program::fail(const Endpoint* end, const std::string& what) {
  if (!result_.failure.empty()) return;
  result_.failure = (end == nullptr ? std::string{} : end->name + ": ") + what;
}

// ---- what the seed chooses -------------------------------------------------------------------------

WorldConfig Program::choose_world() {
  WorldConfig config;
  config.seed = random_.next();
  config.shards = options_.shards;
  // Two hosts, or one with two NICs, whose daemon pauses for both.
  if (random_.chance(300'000)) {
    config.hosts = 1;
    config.nics = 2;
  }
  config.static_neighbours = random_.chance(700'000);
  config.transmit_burst = random_.between32(1, 64);
  config.window_packets = random_.between32(4, 200);
  choose_faults(config, options_, random_.fork());
  if (config.hosts == 1 && config.shards == 1) {
    config.min_pause = kShortestPause;
    config.max_pause = kLongestPause;
    if (random_.chance(500'000)) config.link.per_million = {};  // then no timer may run out
  }
  constexpr proto::PathMtu kMtus[] = {proto::PathMtu::k256, proto::PathMtu::k512, proto::PathMtu::k1024,
                                      proto::PathMtu::k2048, proto::PathMtu::k4096};
  mtu_ = kMtus[random_.index(5)];
  ipv6_ = random_.chance(400'000);
  eagerness_ = random_.between32(20'000, 900'000);
  result_.setting = std::to_string(config.hosts) + " hosts, " + std::to_string(config.shards) +
                    " shards, MTU " + std::to_string(proto::bytes_of(mtu_)) +
                    (ipv6_ ? ", IPv6, " : ", IPv4, ") + (config.static_neighbours ? "" : "ARP, ") + "burst " +
                    std::to_string(config.transmit_burst) + ", window " +
                    std::to_string(config.window_packets) + ", " + describe_faults(config);
  return config;
}

std::uint32_t Program::choose_length() {
  const std::uint32_t mtu = proto::bytes_of(mtu_);
  switch (random_.index(8)) {
    case 0:
      return 0;
    case 1:
      return random_.between32(1, 8);
    case 2:
    case 3:
      return random_.between32(1, 300);
    case 4:
      return random_.between32(1, 4) * mtu - 1 + random_.between32(0, 2);  // around whole packets
    case 5:
    case 6:
      return random_.between32(1, 4 * mtu);
    default:
      return random_.chance(300'000) ? random_.between32(1, kMaxMessage) : random_.between32(0, 9000);
  }
}

// Splits `length` bytes into pieces with gaps between them, for an SGE list within a slot.
std::vector<Range> Program::choose_pieces(std::uint32_t length, std::uint32_t max_pieces) {
  std::vector<Range> pieces;
  if (length == 0 && random_.chance(500'000)) return pieces;
  const std::uint32_t count = random_.between32(1, max_pieces);
  std::size_t at = random_.index(64);
  std::uint32_t left = length;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t bytes = i + 1 == count ? left : random_.between32(0, left);
    pieces.push_back({at, bytes});
    at += bytes + random_.index(64);
    left -= bytes;
  }
  return pieces;
}

// ---- building --------------------------------------------------------------------------------------

Endpoint& Program::add_endpoint(unsigned side, std::string name) {
  ends_.push_back(std::make_unique<Endpoint>());
  Endpoint& end = *ends_.back();
  end.name = std::move(name);
  end.context = contexts_[side * options_.shards + random_.index(options_.shards)].get();
  Client& client = *end.context->client;
  end.signal_all = random_.chance(200'000);
  end.caps = {random_.between32(1, 40), random_.between32(1, 40), random_.between32(1, kMaxPieces),
              random_.between32(1, kMaxPieces), random_.between32(0, 256)};
  Cq& send_cq = *end.context->send_cq;
  Cq& recv_cq = end.context->recv_cq ? *end.context->recv_cq : send_cq;
  end.qp = client.create_qp(send_cq, recv_cq, {end.caps, end.signal_all, std::nullopt});
  if (!by_qpn_.emplace(std::pair{end.context, end.qp->qpn().value()}, &end).second)
    fail(&end, "the QPN is in use");

  end.window_segment = client.allocate(kWindowBytes + 2 * kGuardBytes);
  fill(client.bytes(end.window_segment, kWindowBytes + 2 * kGuardBytes));
  const std::span<std::byte> segment = client.bytes(end.window_segment, kWindowBytes + 2 * kGuardBytes);
  end.window_model.assign(segment.begin(), segment.end());
  // The peer names it by an iova that is not its address, and 8-byte aligned like it.
  end.window = client.reg_mr(end.window_segment + kGuardBytes, kWindowBytes, Client::kAllRights,
                             (random_.next() >> 8) & ~std::uint64_t{7});

  const std::size_t send_slots = random_.index(8) + 1, recv_slots = end.caps.max_recv_wr;
  const std::size_t slots = send_slots + recv_slots;
  end.buffers = client.new_mr(slots * kSlotBytes);
  for (std::size_t i = 0; i < slots; ++i)
    (i < send_slots ? end.send_slots : end.recv_slots).push_back({i * kSlotBytes, false, {}});
  end.to_post = options_.operations;
  return end;
}

void Program::add_pair(unsigned number) {
  Endpoint& a = add_endpoint(0, "pair " + std::to_string(number) + " side 0");
  Endpoint& b = add_endpoint(1, "pair " + std::to_string(number) + " side 1");
  a.peer = &b;
  b.peer = &a;
  ConnectOptions to_b, to_a;
  to_b.dgid = World::gid(host_of(1), nic_of(1), ipv6_);
  to_a.dgid = World::gid(host_of(0), nic_of(0), ipv6_);
  to_b.dest_qpn = b.qp->qpn();
  to_a.dest_qpn = a.qp->qpn();
  to_b.sq_psn = to_a.rq_psn = proto::Psn{random_.chance(300'000) ? 0xFFFFFF - random_.between32(0, 50)
                                                                 : random_.between32(0, 0xFFFFFF)};
  to_a.sq_psn = to_b.rq_psn = proto::Psn{random_.between32(0, 0xFFFFFF)};
  to_b.max_rd_atomic = to_a.max_dest_rd_atomic = static_cast<std::uint8_t>(random_.between32(1, 16));
  to_a.max_rd_atomic = to_b.max_dest_rd_atomic = static_cast<std::uint8_t>(random_.between32(1, 16));
  for (ConnectOptions* one : {&to_a, &to_b}) {
    one->mtu = mtu_;
    one->sgid_index = ipv6_ ? 2 : 1;
    one->min_rnr_timer = static_cast<std::uint8_t>(random_.between32(1, 14));
    one->timeout = static_cast<std::uint8_t>(pauses_alike() ? kShortTimeout : random_.between32(12, 15));
  }
  a.context->client->connect(*a.qp, to_b);
  b.context->client->connect(*b.qp, to_a);
}

void Program::build() {
  for (unsigned side = 0; side < 2; ++side) {
    for (unsigned shard = 0; shard < options_.shards; ++shard) {
      contexts_.push_back(std::make_unique<Context>());
      Context& context = *contexts_.back();
      context.client = &world_->add_client(host_of(side), shard, nic_of(side));
      context.send_cq = context.client->create_cq(1000);
      if (random_.chance(500'000)) context.recv_cq = context.client->create_cq(1000);
      context.shared = context.client->new_mr(8);
    }
  }
  const unsigned pairs = std::min(random_.between32(1, 4), options_.max_connections);
  for (unsigned i = 0; i < pairs; ++i)
    add_pair(i);
}

// ---- the application -------------------------------------------------------------------------------

std::size_t Program::prepare(Endpoint& end, Slot& slot, std::size_t extent) {
  const std::span<std::byte> bytes = end.context->client->bytes(end.buffers, slot.offset, extent);
  fill(bytes);
  slot.model.assign(bytes.begin(), bytes.end());
  slot.busy = true;
  return slot.offset;
}

void Program::check_slot(Endpoint& end, Slot& slot, const char* what) {
  const std::span<std::byte> bytes = end.context->client->bytes(end.buffers, slot.offset, slot.model.size());
  if (!std::equal(bytes.begin(), bytes.end(), slot.model.begin())) {
    const auto wrong = std::mismatch(slot.model.begin(), slot.model.end(), bytes.begin());
    fail(&end, std::string(what) + ": byte " + std::to_string(wrong.first - slot.model.begin()) +
                   " of its buffer is wrong");
  }
  slot.busy = false;
}

void Program::post(Endpoint& end) {
  const auto slot =
      std::find_if(end.send_slots.begin(), end.send_slots.end(), [](const Slot& one) { return !one.busy; });
  if (end.to_post == 0 || slot == end.send_slots.end() || end.qp->send_full()) return;
  Endpoint& peer = *end.peer;
  std::vector<std::byte>& window = peer.window_model;

  Pending pending;
  pending.op = static_cast<Op>(random_.index(kOpCount));
  pending.slot = static_cast<std::size_t>(slot - end.send_slots.begin());
  const bool is_atomic =
      pending.op == Op::kCompareSwap || pending.op == Op::kFetchAdd || pending.op == Op::kSharedFetchAdd;
  pending.length = is_atomic ? 8 : choose_length();

  SendWr wr;
  wr.wr_id = pending.wr_id = end.next_wr_id++;
  wr.flags = 0;
  if (random_.chance(100'000)) wr.flags |= kFence;
  if (random_.chance(300'000)) wr.flags |= kSolicited;
  const bool takes_data = pending.op != Op::kRead && !is_atomic;
  if (takes_data && pending.length <= end.caps.max_inline_bytes && random_.chance(600'000))
    wr.flags |= kInline;

  // Where in the peer's window. What a pending READ covers may change only behind a fence.
  Range target{
      is_atomic ? random_.index(kWindowBytes / 8) * 8 : random_.index(kWindowBytes - pending.length + 1),
      pending.length};
  const bool changes = pending.op == Op::kWrite || pending.op == Op::kWriteImm ||
                       pending.op == Op::kCompareSwap || pending.op == Op::kFetchAdd;
  const bool conflicts =
      changes && std::any_of(end.pending.begin(), end.pending.end(), [&](const Pending& one) {
        return one.op == Op::kRead && one.read.overlaps(target);
      });
  if (conflicts) wr.flags |= kFence;
  wr.remote_address = peer.window.iova + target.offset;
  wr.rkey = peer.window.rkey;
  std::byte* const in_window = window.data() + kGuardBytes + target.offset;

  const std::vector<Range> pieces = is_atomic ? std::vector<Range>{{random_.index(64), 8}}
                                              : choose_pieces(pending.length, end.caps.max_send_sge);
  const std::size_t extent =
      (pieces.empty() ? 0 : pieces.back().offset + pieces.back().bytes) + random_.index(64);
  prepare(end, *slot, extent);
  std::vector<std::byte> data;  // gathered
  for (const Range& piece : pieces) {
    // L_Keys of inline data are not looked at.
    const proto::Lkey lkey = (wr.flags & kInline) != 0 ? proto::Lkey{0xDEAD} : end.buffers.lkey;
    wr.sges.push_back(
        {end.buffers.iova + slot->offset + piece.offset, static_cast<std::uint32_t>(piece.bytes), lkey});
    const auto from = slot->model.begin() + static_cast<std::ptrdiff_t>(piece.offset);
    data.insert(data.end(), from, from + static_cast<std::ptrdiff_t>(piece.bytes));
  }
  wr.immediate = static_cast<std::uint32_t>(random_.next());
  const auto announce = [&](bool is_write, bool has_imm) {
    peer.expected.push_back(
        {is_write, has_imm, wr.immediate, pending.length, is_write ? std::vector<std::byte>{} : data});
    ++peer.messages_announced;
  };

  std::uint64_t original = 0;
  switch (pending.op) {
    case Op::kSend:
      wr.opcode = kWrSend;
      announce(false, false);
      break;
    case Op::kSendImm:
      wr.opcode = kWrSendImm;
      announce(false, true);
      break;
    case Op::kWrite:
    case Op::kWriteImm:
      wr.opcode = pending.op == Op::kWrite ? kWrWrite : kWrWriteImm;
      std::copy(data.begin(), data.end(), in_window);
      if (pending.op == Op::kWriteImm) announce(true, true);
      break;
    case Op::kRead: {
      wr.opcode = kWrRead;
      pending.read = target;
      const std::byte* from = in_window;
      for (const Range& piece : pieces) {
        std::copy(from, from + piece.bytes, slot->model.begin() + static_cast<std::ptrdiff_t>(piece.offset));
        from += piece.bytes;
      }
      break;
    }
    case Op::kCompareSwap:
    case Op::kFetchAdd:
      wr.opcode = pending.op == Op::kFetchAdd ? kWrFetchAdd : kWrCompareSwap;
      std::memcpy(&original, in_window, 8);
      wr.compare_add = pending.op == Op::kCompareSwap && random_.chance(600'000) ? original : random_.next();
      wr.swap = random_.next();
      if (pending.op == Op::kFetchAdd) {
        const std::uint64_t sum = original + wr.compare_add;
        std::memcpy(in_window, &sum, 8);
      } else if (wr.compare_add == original) {
        std::memcpy(in_window, &wr.swap, 8);
      }
      std::memcpy(slot->model.data() + pieces[0].offset, &original, 8);
      break;
    case Op::kSharedFetchAdd:
      wr.opcode = kWrFetchAdd;
      wr.compare_add = 1;
      wr.remote_address = peer.context->shared.iova;
      wr.rkey = peer.context->shared.rkey;
      break;
  }

  --end.to_post;
  // The last one, one that fills the queue and one that takes the last buffer are signaled, or nothing would
  // come back.
  const bool last_slot = std::count_if(end.send_slots.begin(), end.send_slots.end(),
                                       [](const Slot& one) { return !one.busy; }) == 0;
  const bool fills = end.qp->send_queued() + 1 >= end.caps.max_send_wr;
  pending.signaled = end.to_post == 0 || last_slot || fills || random_.chance(500'000);
  if (pending.signaled) wr.flags |= kSignaled;
  if (end.signal_all) pending.signaled = true;
  if (pending.op == Op::kSharedFetchAdd) {
    // Its result is not known beforehand: read it when it completes, which it must say.
    pending.signaled = true;
    wr.flags |= kSignaled;
    pending.read = {pieces[0].offset, 0};
  }
  if (!end.qp->post_send(wr)) return fail(&end, "post_send is refused");
  if ((wr.flags & kInline) != 0) {  // the buffer is free at once
    const std::span<std::byte> bytes = end.context->client->bytes(end.buffers, slot->offset, extent);
    fill(bytes);
    slot->model.assign(bytes.begin(), bytes.end());
  }
  end.pending.push_back(pending);
  ++result_.operations;
  result_.unsignaled += pending.signaled ? 0 : 1;
  result_.bytes += pending.length;
}

void Program::post_recv(Endpoint& end) {
  const auto slot =
      std::find_if(end.recv_slots.begin(), end.recv_slots.end(), [](const Slot& one) { return !one.busy; });
  if (slot == end.recv_slots.end() || end.qp->recv_full()) return;
  // Exactly what the message needs if it was posted already, else room for any.
  std::uint32_t need = kMaxMessage;
  const std::uint64_t done = end.messages_announced - end.expected.size();
  if (end.recvs_posted < end.messages_announced) {
    const Message& message = end.expected[static_cast<std::size_t>(end.recvs_posted - done)];
    const std::uint32_t exact = message.is_write ? 0 : message.length;
    need = random_.chance(500'000) ? exact : random_.between32(exact, kMaxMessage);
  }
  PostedRecv posted;
  posted.wr_id = end.next_wr_id++;
  posted.slot = static_cast<std::size_t>(slot - end.recv_slots.begin());
  posted.pieces = choose_pieces(need, end.caps.max_recv_sge);
  const std::size_t extent =
      (posted.pieces.empty() ? 0 : posted.pieces.back().offset + posted.pieces.back().bytes) +
      random_.index(64);
  prepare(end, *slot, extent);
  RecvWr wr;
  wr.wr_id = posted.wr_id;
  for (const Range& piece : posted.pieces) {
    wr.sges.push_back(end.buffers.sge(slot->offset + piece.offset, static_cast<std::uint32_t>(piece.bytes)));
  }
  if (!end.qp->post_recv(wr)) return fail(&end, "post_recv is refused");
  ++end.recvs_posted;
  end.posted.push_back(std::move(posted));
}

void Program::complete_send(Endpoint& end, const RingCqe& cqe) {
  if (cqe.status != kWcSuccess) {
    return fail(&end, "work request " + std::to_string(cqe.wr_id) + " completes with status " +
                          std::to_string(cqe.status));
  }
  while (!end.pending.empty()) {
    const Pending one = end.pending.front();
    end.pending.pop_front();
    Slot& slot = end.send_slots[one.slot];
    if (one.op == Op::kSharedFetchAdd) {
      std::uint64_t original = 0;
      std::memcpy(&original, end.context->client->bytes(end.buffers, slot.offset + one.read.offset, 8).data(),
                  8);
      std::memcpy(slot.model.data() + one.read.offset, &original, 8);
      end.peer->context->originals.push_back(original);
    }
    check_slot(end, slot, ("work request " + std::to_string(one.wr_id)).c_str());
    if (one.wr_id != cqe.wr_id) {
      if (one.signaled)
        return fail(&end, "work request " + std::to_string(one.wr_id) + " did not complete, a later one did");
      continue;
    }
    if (!one.signaled) return fail(&end, "an unsignaled work request completes with success");
    constexpr std::uint32_t kOpcodes[kOpCount] = {kWcSend, kWcSend,        kWcWrite,    kWcWrite,
                                                  kWcRead, kWcCompareSwap, kWcFetchAdd, kWcFetchAdd};
    if (cqe.opcode != kOpcodes[static_cast<std::size_t>(one.op)])
      return fail(&end, "a send completion has opcode " + std::to_string(cqe.opcode));
    const bool has_length = one.op == Op::kRead || one.op >= Op::kCompareSwap;
    if (has_length && cqe.byte_len != one.length)
      return fail(&end, "a READ or ATOMIC completion has byte_len " + std::to_string(cqe.byte_len));
    return;
  }
  fail(&end, "completion of unknown work request " + std::to_string(cqe.wr_id));
}

void Program::complete_recv(Endpoint& end, const RingCqe& cqe) {
  if (cqe.status != kWcSuccess)
    return fail(&end, "a receive completes with status " + std::to_string(cqe.status));
  if (end.posted.empty() || end.posted.front().wr_id != cqe.wr_id)
    return fail(&end, "a receive completes out of order");
  if (end.expected.empty()) return fail(&end, "a message arrives that was not sent");
  const PostedRecv posted = end.posted.front();
  const Message message = std::move(end.expected.front());
  end.posted.pop_front();
  end.expected.pop_front();
  ++result_.messages_received;
  const std::string which =
      "received message " + std::to_string(end.messages_announced - end.expected.size());
  if (cqe.byte_len != message.length) {
    return fail(&end, which + " has byte_len " + std::to_string(cqe.byte_len) + " instead of " +
                          std::to_string(message.length));
  }
  if (cqe.opcode != (message.is_write ? kWcRecvWriteImm : kWcRecv))
    return fail(&end, which + " has opcode " + std::to_string(cqe.opcode));
  if (((cqe.wc_flags & kWcWithImm) != 0) != message.has_imm) return fail(&end, which + " has wrong flags");
  if (message.has_imm && __builtin_bswap32(cqe.immediate_or_invalidate) != message.imm)
    return fail(&end, which + " has wrong immediate data");
  if (cqe.src_qp != end.peer->qp->qpn().value()) return fail(&end, which + " has wrong src_qp");
  Slot& slot = end.recv_slots[posted.slot];
  const std::byte* from = message.bytes.data();
  std::size_t left = message.bytes.size();
  for (const Range& piece : posted.pieces) {
    const std::size_t bytes = std::min(left, piece.bytes);
    std::copy(from, from + bytes, slot.model.begin() + static_cast<std::ptrdiff_t>(piece.offset));
    from += bytes;
    left -= bytes;
  }
  check_slot(end, slot, which.c_str());
}

void Program::poll(Cq& cq, Context& context) {
  while (const std::optional<RingCqe> cqe = cq.poll()) {
    last_progress_ = world_->now();
    world_->mix(cqe->wr_id * 64 + cqe->status);
    const auto found = by_qpn_.find({&context, cqe->qp_num});
    if (found == by_qpn_.end())
      return fail(nullptr, "a completion names unknown QPN " + std::to_string(cqe->qp_num));
    // Its wr_id tells which queue it belongs to, whatever its opcode says.
    Endpoint& end = *found->second;
    const bool is_recv = std::any_of(end.posted.begin(), end.posted.end(),
                                     [&](const PostedRecv& one) { return one.wr_id == cqe->wr_id; });
    is_recv ? complete_recv(end, *cqe) : complete_send(end, *cqe);
    if (!result_.ok()) return;
  }
}

Time Program::application(Time now) {
  for (const std::unique_ptr<Context>& context : contexts_) {
    poll(*context->send_cq, *context);
    if (context->recv_cq) poll(*context->recv_cq, *context);
  }
  if (!result_.ok()) return kNever;
  bool wants = false;
  for (const std::unique_ptr<Endpoint>& end : ends_) {
    while (random_.chance(eagerness_) && end->to_post != 0 && result_.ok()) {
      const std::size_t before = end->pending.size();
      post(*end);
      if (end->pending.size() == before) break;
    }
    // Receives are posted in fits, so that some messages find none.
    if (random_.chance(eagerness_ / 2)) {
      for (std::size_t i = random_.index(8) + 1; i != 0 && result_.ok(); --i)
        post_recv(*end);
    }
    wants = wants || end->to_post != 0 || (end->posted.empty() && !end->expected.empty());
  }
  return wants ? now + microseconds(random_.between32(1, 20)) : kNever;
}

bool Program::done() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const std::unique_ptr<Endpoint>& end) {
    return end->to_post == 0 && end->pending.empty() && end->expected.empty();
  });
}

std::string Program::describe() const {
  std::string text;
  for (const std::unique_ptr<Endpoint>& end : ends_) {
    text += "\n  " + end->name + ": to post " + std::to_string(end->to_post) + ", pending " +
            std::to_string(end->pending.size()) + ", receives posted " + std::to_string(end->posted.size()) +
            ", messages to come " + std::to_string(end->expected.size()) + ", QP state " +
            std::to_string(static_cast<unsigned>(end->qp->state()));
    if (!end->pending.empty())
      text += ", oldest pending op " + std::to_string(static_cast<unsigned>(end->pending.front().op));
  }
  return text;
}

void Program::check_end() {
  for (const std::unique_ptr<Endpoint>& end : ends_) {
    Client& client = *end->context->client;
    const std::span<std::byte> window = client.bytes(end->window_segment, end->window_model.size());
    const auto wrong = std::mismatch(end->window_model.begin(), end->window_model.end(), window.begin());
    if (wrong.first != end->window_model.end()) {
      const std::ptrdiff_t offset =
          wrong.first - end->window_model.begin() - static_cast<std::ptrdiff_t>(kGuardBytes);
      fail(end.get(), "byte " + std::to_string(offset) + " of its window is wrong");
    }
    for (Slot& slot : end->recv_slots) {
      if (slot.busy) check_slot(*end, slot, "a receive that was not used");
    }
    if (end->qp->state() != QpState::kRts) fail(end.get(), "is not in RTS at the end");
  }
  for (const std::unique_ptr<Context>& context : contexts_) {
    std::uint64_t value = 0;
    std::memcpy(&value, context->client->bytes(context->shared, 0, 8).data(), 8);
    std::sort(context->originals.begin(), context->originals.end());
    for (std::size_t i = 0; i < context->originals.size(); ++i) {
      if (context->originals[i] != i)
        fail(nullptr, "a shared counter's additions were not executed exactly once");
    }
    if (value != context->originals.size()) fail(nullptr, "a shared counter has the wrong sum");
    if (context->send_cq->pending() != 0 || (context->recv_cq && context->recv_cq->pending() != 0)) {
      fail(nullptr, "completions are left over");
    }
  }
}

ProgramResult Program::run() {
  config_ = choose_world();
  world_ = std::make_unique<World>(config_);
  build();
  world_->set_application([this](Time now) { return application(now); });
  last_progress_ = world_->now();
  const auto over = [&] { return !result_.ok() || done() || world_->now() - last_progress_ > kHang; };
  const bool went = world_->run_until(over, seconds(3600));
  if (result_.ok() && !done()) {
    fail(nullptr,
         (went ? "hangs: no completion in 40 s of virtual time" : "hangs: nothing will ever happen") +
             describe());
  }
  // What is still under way must change nothing.
  if (result_.ok()) {
    world_->run_for(seconds(1));
    check_end();
  }
  collect(*world_, config_, result_);
  // P07: on a clean link no timer runs out, whatever pauses the daemon makes.
  if (is_clean(config_.link) && result_.ack_timeouts != 0)
    fail(nullptr, "false timeouts on a clean link: " + std::to_string(result_.ack_timeouts));
  return result_;
}

}  // namespace

ProgramResult run_rc_program(const ProgramOptions& options) { return Program(options).run(); }

}  // namespace roci::sim
