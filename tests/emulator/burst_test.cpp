// A burst equals its packets one at a time: same replies, completions, events, memory and QP states, wherever
// memory fails.
#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include "proto/text.h"
#include "tests/emulator/script.h"
#include "tests/sim/random.h"

using namespace roci;
using namespace roci::script;
using sim::Random;

namespace {

constexpr std::size_t kQps = 3;
constexpr std::uint32_t kFirstPeer = 0x200;
constexpr std::uint64_t kFirstReceive = 0xA000, kReceiveBytesOfQp = 0x2000, kReceiveBytesOfWideQp = 0x1800;
constexpr std::uint64_t kCounters = 0x9000;  // cells for atomics, in the shared region

// One engine with three connections whose requests meet in one region.
struct Stage {
  Bench bench;
  std::vector<Connection> qps;

  Stage() {
    for (std::uint32_t i = 0; i < kQps; ++i) {
      qps.push_back(bench.connect({.peer_qpn = kFirstPeer + i, .max_dest_rd_atomic = 64}));
      if (i != 0) qps[i].mr = qps[0].mr;
      for (std::uint64_t id = 0; id < 8; ++id)
        qps[i].recv(id, 600, kFirstReceive + kReceiveBytesOfQp * i + 0x300 * id);
    }
  }
};

// The same with every other service: two connections with windows, of which the second takes its receives
// from an SRQ, one of UC and one for datagrams. All meet in the first one's region.
template <bool kHasUcWrites>
struct WideStage {
  static constexpr std::size_t kWindows = 4;  // of each connection

  Bench bench;
  std::vector<Connection> qps;
  std::unique_ptr<sim::Srq> srq;
  std::vector<sim::Mw> windows;

  WideStage() {
    srq = bench.client().create_srq(32, 4);
    const auto connect = [&](const sim::QpOptions& options) {
      Connection& made =
          qps.emplace_back(bench.connect({.peer_qpn = kFirstPeer + static_cast<std::uint32_t>(qps.size()),
                                          .max_dest_rd_atomic = 64,
                                          .access = sim::Client::kAllRights | emulator::kAccessFlushGlobal,
                                          .qp = options}));
      made.mr = qps[0].mr;
    };
    connect({});
    qps[0].mr = bench.client().new_mr(
        0x10000, sim::Client::kAllRights | emulator::kAccessMwBind | emulator::kAccessFlushGlobal);
    connect({.srq = srq->handle()});
    connect({.type = emulator::QpType::kUc});
    connect({.type = emulator::QpType::kUd});
    for (std::size_t i = 0; i < qps.size(); ++i) {
      for (std::uint64_t id = 0; id < 8; ++id) {
        const std::uint64_t offset = kFirstReceive + kReceiveBytesOfWideQp * i + 0x300 * id;
        if (i == 1) {
          REQUIRE(srq->post_recv({id, {qps[0].mr.sge(offset, 600)}}));
        } else {
          qps[i].recv(id, 600, offset);
        }
      }
    }
    for (std::size_t i = 0; i < 2 * kWindows; ++i) {
      sim::Mw& window = windows.emplace_back(bench.client().alloc_mw(emulator::MwType::kType2));
      Connection& qp = qps[i / kWindows];
      sim::SendWr wr;
      wr.opcode = sim::kWrBindWindow;
      wr.binding = {window.rkey, window.next_key(),
                    qp.mr.lkey,  qp.mr.iova,
                    kCounters,   emulator::kAccessRemoteWrite | emulator::kAccessRemoteRead};
      bench.post(qp, wr);
      bench.expect(qp, {.opcode = sim::kWcBindWindow});
      window.rkey = wr.binding.new_key;
    }
  }
};

// What came of it, in a comparable form.
struct Outcome {
  std::map<std::uint32_t, std::vector<std::string>> replies;  // by QP
  std::vector<std::string> completions;
  std::vector<std::string> events;
  std::vector<int> states;
  Bytes memory;
};

template <class AnyStage>
Outcome outcome_of(AnyStage& stage) {
  Outcome outcome;
  while (const auto sent = stage.bench.take()) {
    std::vector<std::string>& of_qp = outcome.replies[sent->packet.bth.destination.value()];
    // A later response acknowledges what an ACK before it does: a burst may leave the ACK out.
    const bool follows_ack = !of_qp.empty() && of_qp.back().rfind("ACK ", 0) == 0;
    if (follows_ack) of_qp.pop_back();
    const bool is_ack = sent->packet.bth.opcode == Opcode::kRcAcknowledge &&
                        sent->packet.aeth->syndrome.kind() == proto::Syndrome::Kind::kAck;
    proto::Packet packet = sent->packet;
    packet.ipv4->identification = 0;
    proto::complete(packet);
    of_qp.push_back((is_ack ? "ACK " : "") + proto::to_text(packet, proto::TextDetail::kAll));
  }
  for (Connection& one : stage.qps) {
    for (sim::Cq* cq : {one.cq.get(), one.recv_cq.get()}) {
      while (const auto cqe = cq->poll()) {
        outcome.completions.push_back(std::to_string(cqe->qp_num) + " wr " + std::to_string(cqe->wr_id) +
                                      " status " + std::to_string(cqe->status) + " opcode " +
                                      std::to_string(cqe->opcode) + " bytes " +
                                      std::to_string(cqe->status == 0 ? cqe->byte_len : 0) + " imm " +
                                      std::to_string(cqe->status == 0 ? cqe->immediate_or_invalidate : 0) +
                                      " flags " + std::to_string(cqe->wc_flags));
      }
    }
    outcome.states.push_back(static_cast<int>(one.qp->state()));
  }
  for (const emulator::Event& one : stage.bench.events()) {
    outcome.events.push_back(std::to_string(static_cast<int>(one.kind)) + " of " +
                             std::to_string(one.object));
  }
  std::sort(outcome.events.begin(), outcome.events.end());  // among QPs their order is free
  const auto bytes = stage.bench.client().bytes(stage.qps[0].mr, 0, 0x10000);
  outcome.memory.assign(bytes.begin(), bytes.end());
  return outcome;
}

// The first line in which two lists differ; empty if they are equal.
std::string difference(const std::vector<std::string>& burst, const std::vector<std::string>& single) {
  const std::string none = "nothing";
  for (std::size_t i = 0; i < std::max(burst.size(), single.size()); ++i) {
    const std::string& one = i < burst.size() ? burst[i] : none;
    const std::string& other = i < single.size() ? single[i] : none;
    if (one != other) return "burst: " + one + "\nsingle: " + other;
  }
  return {};
}

void compare(Outcome burst, Outcome single) {
  for (std::uint32_t peer = kFirstPeer; peer < kFirstPeer + burst.states.size(); ++peer)
    CHECK(difference(burst.replies[peer], single.replies[peer]) == "");
  CHECK(difference(burst.completions, single.completions) == "");
  CHECK(difference(burst.events, single.events) == "");
  CHECK(burst.states == single.states);
  const auto wrong = std::mismatch(burst.memory.begin(), burst.memory.end(), single.memory.begin()).first;
  CHECK(wrong - burst.memory.begin() == static_cast<std::ptrdiff_t>(burst.memory.size()));
}

// A random burst: every operation, duplicates, gaps, a refusal now and then. Written bytes are never read
// before, as a READ's place among later WRITEs is free.
std::vector<Bytes> make_burst(const Stage& stage, Random& random, std::size_t count) {
  std::vector<Bytes> frames;
  std::uint32_t psn[kQps] = {100, 100, 100};
  std::uint64_t fresh = 0;  // everything below is written
  std::vector<Bytes> sent;
  while (frames.size() < count) {
    const std::size_t q = random.index(kQps);
    const Connection& qp = stage.qps[q];
    const std::uint64_t base = qp.mr.iova;
    const auto add = [&](Line line) {
      line.psn = psn[q];
      line.ack_request = random.chance(600'000);
      frames.push_back(stage.bench.frame(qp, line));
      psn[q] = (psn[q] + 1) & 0xFFFFFF;
    };
    const unsigned salt = static_cast<unsigned>(random.between(1, 1000));
    const std::size_t bytes = random.between(1, kMtu);
    switch (random.index(11)) {
      case 0:
        add({.opcode = Opcode::kRcSendOnly, .payload = pattern(bytes, salt)});
        break;
      case 1:
        add({.opcode = Opcode::kRcSendFirst, .payload = pattern(kMtu, salt)});
        add({.opcode = Opcode::kRcSendLastImmediate, .imm = salt, .payload = pattern(bytes, salt + 1)});
        break;
      case 2:
        add({.opcode = Opcode::kRcWriteOnly, .va = base + fresh, .payload = pattern(bytes, salt)});
        fresh += bytes;
        break;
      case 3: {
        const auto length = static_cast<std::uint32_t>(kMtu + bytes);
        add({.opcode = Opcode::kRcWriteFirst,
             .va = base + fresh,
             .length = length,
             .payload = pattern(kMtu, salt)});
        add({.opcode = Opcode::kRcWriteLast, .payload = pattern(bytes, salt + 1)});
        fresh += length;
        break;
      }
      case 4:
        add({.opcode = Opcode::kRcWriteOnlyImmediate,
             .va = base + fresh,
             .imm = salt,
             .payload = pattern(bytes, salt)});
        fresh += bytes;
        break;
      case 5:  // WRITE then READ of the same bytes
        add({.opcode = Opcode::kRcWriteOnly, .va = base + fresh, .payload = pattern(bytes, salt)});
        add({.opcode = Opcode::kRcReadRequest,
             .va = base + fresh,
             .length = static_cast<std::uint32_t>(bytes)});
        fresh += bytes;
        break;
      case 6:  // WRITE then ATOMIC on the same cell
        fresh = (fresh + 7) & ~std::uint64_t{7};
        add({.opcode = Opcode::kRcWriteOnly, .va = base + fresh, .payload = pattern(8, salt)});
        add({.opcode = Opcode::kRcFetchAdd, .va = base + fresh, .swap_or_add = salt});
        fresh += 8;
        break;
      case 7:
      case 8:  // many QPs on one cell
        add({.opcode = Opcode::kRcFetchAdd, .va = base + kCounters, .swap_or_add = 1});
        break;
      case 9:
        add({.opcode = Opcode::kRcCompareSwap,
             .va = base + kCounters,
             .compare = random.between(0, 5),
             .swap_or_add = 0});
        break;
      default:
        if (random.chance(500'000) && !frames.empty()) {
          // Again, whatever it was, but for READs and ATOMICs: a duplicate may pre-empt the answer that is
          // still to be sent [IBTA C9-110], so that a burst answers once what single packets answer twice.
          const Bytes& again = frames[random.index(frames.size())];
          const proto::Operation operation = proto::info(static_cast<Opcode>(again[14 + 20 + 8])).operation;
          if (operation == proto::Operation::kSend || operation == proto::Operation::kWrite)
            frames.push_back(Bytes(again));
        } else if (random.chance(500'000)) {
          ++psn[q];  // a gap: all that follows of this QP is out of sequence
        } else if (random.chance(300'000)) {
          add({.opcode = Opcode::kRcWriteOnly,
               .va = base + fresh,
               .rkey = 0x666,
               .payload = pattern(bytes, salt)});
        }
        break;
    }
  }
  return frames;
}

// The same for a WideStage. A window is written through once it may be gone, a UC message loses a packet, a
// datagram has no room.
template <bool kHasUcWrites>
std::vector<Bytes> make_burst(const WideStage<kHasUcWrites>& stage, Random& random, std::size_t count) {
  std::vector<Bytes> frames;
  std::vector<std::uint32_t> psn(stage.qps.size(), kPeerPsn);
  std::uint64_t fresh = 0;
  while (frames.size() < count) {
    const std::size_t q = random.index(stage.qps.size());
    const Connection& qp = stage.qps[q];
    const auto add = [&](Line line) {
      line.psn = psn[q];
      line.ack_request = random.chance(600'000);
      frames.push_back(stage.bench.frame(qp, line));
      psn[q] = (psn[q] + 1) & 0xFFFFFF;
    };
    const unsigned salt = static_cast<unsigned>(random.between(1, 1000));
    const std::size_t bytes = random.between(1, kMtu);
    const std::uint64_t here = qp.mr.iova + fresh;
    if (qp.qp->qpn() == stage.qps[3].qp->qpn()) {  // datagrams
      add({.opcode = Opcode::kUdSendOnly,
           .qkey = random.chance(100'000) ? kQkey + 1 : kQkey,
           .payload = pattern(random.chance(200'000) ? 3 * kMtu : bytes, salt)});
      continue;
    }
    if (qp.qp->qpn() == stage.qps[2].qp->qpn()) {  // UC
      const bool is_write = kHasUcWrites && random.chance(500'000);
      const std::size_t lost = random.chance(300'000) ? random.index(3) : 3;
      const auto length = static_cast<std::uint32_t>(2 * kMtu + bytes);
      const auto send = [&](std::size_t which, Line line) {
        if (which == lost) {
          ++psn[q];
        } else {
          add(line);
        }
      };
      send(0, {.opcode = is_write ? Opcode::kUcWriteFirst : Opcode::kUcSendFirst,
               .va = here,
               .length = length,
               .payload = pattern(kMtu, salt)});
      send(1, {.opcode = is_write ? Opcode::kUcWriteMiddle : Opcode::kUcSendMiddle,
               .payload = pattern(kMtu, salt + 1)});
      send(2, {.opcode = is_write ? Opcode::kUcWriteLastImmediate : Opcode::kUcSendLast,
               .imm = salt,
               .payload = pattern(bytes % 80 + 1, salt + 2)});
      fresh += length;
      continue;
    }
    const proto::Rkey window = stage.windows[q * stage.kWindows + random.index(stage.kWindows)].rkey;
    switch (random.index(7)) {
      case 0:
        add({.opcode = Opcode::kRcSendOnlyInvalidate,
             .invalidates = window.value(),
             .payload = pattern(bytes, salt)});
        break;
      case 1:
        add({.opcode = Opcode::kRcSendFirst, .payload = pattern(kMtu, salt)});
        add({.opcode = Opcode::kRcSendLastInvalidate,
             .invalidates = window.value(),
             .payload = pattern(bytes, salt + 1)});
        break;
      case 2:
      case 3:  // Through a window. Not back: an invalidation does not wait for a READ without a fence.
        add({.opcode = Opcode::kRcWriteOnly,
             .va = here,
             .rkey = window.value(),
             .payload = pattern(bytes, salt)});
        if (random.chance(500'000)) {
          add({.opcode = Opcode::kRcReadRequest, .va = here, .length = static_cast<std::uint32_t>(bytes)});
        }
        fresh += bytes;
        break;
      case 4:
        add({.opcode = Opcode::kRcSendOnly, .payload = pattern(bytes, salt)});
        break;
      case 5: {
        fresh = (fresh + 7) & ~std::uint64_t{7};
        add({.opcode = Opcode::kRcAtomicWrite, .va = qp.mr.iova + fresh, .payload = pattern(8, salt)});
        fresh += 8;
        break;
      }
      default:  // ends the connection if the key is of no region: now and then
        add({.opcode = Opcode::kRcFlush,
             .va = qp.mr.iova,
             .rkey = random.chance(50'000) ? 0x666 : qp.mr.rkey.value(),
             .length = 64,
             .edit = [](proto::Packet& packet) {
               packet.feth = proto::Feth{1, 0, 0};
             }});
        break;
    }
  }
  return frames;
}

bool overlaps(const emulator::MemoryOp& op, std::uint64_t from, std::uint64_t to) {
  return op.address < to && from < op.address + op.length_bytes;
}

template <class AnyStage>
void try_bursts(std::uint64_t seeds) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    AnyStage burst, single;
    const std::vector<Bytes> frames = make_burst(burst, random, 24);
    REQUIRE(make_burst(single, random = Random(seed), 24) == frames);
    burst.bench.receive(frames);
    for (const Bytes& frame : frames)
      single.bench.receive({frame});
    compare(outcome_of(burst), outcome_of(single));
  }
}

// Every piece of the region in turn is a hole: it hits each packet that uses it, and only those. The receives
// of QP q are 600 bytes each, from kFirstReceive + q * qp_bytes on.
template <class AnyStage>
void try_holes(std::uint64_t seeds, std::size_t qps, std::uint64_t qp_bytes) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Random random(seed);
    const AnyStage model;
    const std::vector<Bytes> frames = make_burst(model, random, 16);
    const std::uint64_t base = model.qps[0].mr.address;
    const auto try_hole = [&](std::uint64_t from, std::uint64_t to) {
      INFO("seed " << seed << ", hole at " << from << " to " << to);
      AnyStage burst, single;
      for (AnyStage* stage : {&burst, &single}) {
        stage->bench.memory().set_fault([=](std::uint64_t, const emulator::MemoryOp& op) {
          return overlaps(op, base + from, base + to);
        });
      }
      burst.bench.receive(frames);
      for (const Bytes& frame : frames)
        single.bench.receive({frame});
      compare(outcome_of(burst), outcome_of(single));
    };
    for (std::uint64_t at = 0; at < 0x1000; at += 0x80)
      try_hole(at, at + 1);
    try_hole(kCounters, kCounters + 8);
    for (std::uint64_t q = 0; q < qps; ++q) {
      for (std::uint64_t id = 0; id < 3; ++id) {
        const std::uint64_t receive = kFirstReceive + qp_bytes * q + 0x300 * id;
        try_hole(receive, receive + 600);
      }
    }
  }
}

}  // namespace

TEST_CASE("a burst equals its packets one at a time") { try_bursts<Stage>(60); }
TEST_CASE("a burst equals its packets one at a time, with memory that fails at every position") {
  try_holes<Stage>(6, kQps, kReceiveBytesOfQp);
}
TEST_CASE("a burst with windows, an SRQ, UC and datagrams equals its packets one at a time") {
  try_bursts<WideStage<true>>(60);
}
TEST_CASE("a burst with windows, an SRQ, UC and datagrams equals its packets, with memory that fails") {
  // A UC WRITE that meets the hole takes what is behind it in the burst along: lost packets, as UC may have.
  try_holes<WideStage<false>>(6, 4, kReceiveBytesOfWideQp);
}

TEST_CASE("N atomics on one address in one burst see each other, across QPs") {
  Stage stage;
  std::vector<Bytes> frames;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const Connection& qp = stage.qps[i % kQps];
    frames.push_back(stage.bench.frame(qp, {.opcode = Opcode::kRcFetchAdd,
                                            .psn = 100 + i / kQps,
                                            .va = qp.mr.iova + kCounters,
                                            .swap_or_add = 1}));
  }
  stage.bench.receive(frames);
  std::vector<std::uint64_t> originals;
  while (const auto sent = stage.bench.take()) {
    REQUIRE(sent->packet.atomic_ack_eth.has_value());
    originals.push_back(sent->packet.atomic_ack_eth->original_data);
  }
  std::sort(originals.begin(), originals.end());
  REQUIRE(originals.size() == 30);
  for (std::uint64_t i = 0; i < 30; ++i)
    CHECK(originals[i] == i);
}

TEST_CASE("a fault of one QP in a burst cancels its own later packets and nobody else's") {
  Stage stage;
  const std::uint64_t hole = stage.qps[0].mr.address;
  stage.bench.memory().set_fault(
      [=](std::uint64_t, const emulator::MemoryOp& op) { return overlaps(op, hole, hole + 8); });
  const auto write = [&](std::size_t q, std::uint32_t psn, std::uint64_t offset) {
    const Connection& qp = stage.qps[q];
    return stage.bench.frame(qp, {.opcode = Opcode::kRcWriteOnly,
                                  .psn = psn,
                                  .ack_request = true,
                                  .va = qp.mr.iova + offset,
                                  .payload = pattern(8)});
  };
  stage.bench.receive(
      {write(0, 100, 64), write(0, 101, 0), write(1, 100, 128), write(0, 102, 192), write(1, 101, 256)});
  const auto is_written = [&](std::uint64_t offset) {
    const auto bytes = stage.bench.client().bytes(stage.qps[0].mr, offset, 8);
    return std::equal(bytes.begin(), bytes.end(), pattern(8).begin());
  };
  CHECK(is_written(64));
  CHECK_FALSE(is_written(0));
  CHECK_FALSE(is_written(192));
  CHECK(is_written(128));
  CHECK(is_written(256));
  CHECK(stage.qps[0].qp->state() == emulator::QpState::kErr);
  CHECK(stage.qps[1].qp->state() == emulator::QpState::kRts);
  const auto verdicts = stage.bench.engine().verdicts();
  REQUIRE(verdicts.size() == 5);
  CHECK(verdicts[3] == emulator::DropReason::kCancelled);
}
