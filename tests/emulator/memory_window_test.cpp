// Memory windows: how they are bound, what they grant, and the three ways in which they end.
#include <algorithm>

#include <catch2/catch.hpp>

#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using emulator::DropReason;
using emulator::MwType;
using emulator::QpState;

namespace {

constexpr std::uint32_t kBindable = sim::Client::kAllRights | emulator::kAccessMwBind;

// A connection whose region may have windows.
struct WindowStage {
  Bench bench;
  Connection qp = bench.connect();
  sim::Mr mr = bench.client().new_mr(0x1000, kBindable);

  sim::SendWr bind(const sim::Mw& mw, std::uint64_t offset = 0x100, std::uint64_t bytes = 0x100,
                   std::uint32_t access = emulator::kAccessRemoteWrite | emulator::kAccessRemoteRead) const {
    sim::SendWr wr;
    wr.wr_id = 0xB;
    wr.opcode = sim::kWrBindWindow;
    wr.binding = {mw.rkey, mw.next_key(), mr.lkey, mr.iova + offset, bytes, access};
    return wr;
  }
  // Binds, and takes the new key.
  void bound(sim::Mw& mw, const sim::SendWr& wr) {
    bench.post(qp, wr);
    bench.expect(qp, {.wr_id = wr.wr_id, .opcode = sim::kWcBindWindow});
    mw.rkey = wr.binding.new_key;
  }
  void bound(sim::Mw& mw) { bound(mw, bind(mw)); }
  sim::SendWr invalidate(proto::Rkey key, std::uint64_t id = 0x1) const {
    sim::SendWr wr;
    wr.wr_id = id;
    wr.opcode = sim::kWrLocalInvalidate;
    wr.invalidate = key;
    return wr;
  }
  Line write(std::uint32_t psn, proto::Rkey key, std::uint64_t va, std::size_t bytes = 16) const {
    return {.opcode = Opcode::kRcWriteOnly,
            .psn = psn,
            .ack_request = true,
            .va = va,
            .rkey = key.value(),
            .payload = pattern(bytes)};
  }
  bool holds(std::uint64_t offset, const Bytes& wanted) {
    const auto got = bench.client().bytes(mr, offset, wanted.size());
    return std::equal(wanted.begin(), wanted.end(), got.begin());
  }
  // The bind fails, with its QP, and the window is as it was.
  void refused(const sim::SendWr& wr) {
    bench.post(qp, wr);
    bench.expect(qp, {.wr_id = wr.wr_id, .status = sim::kWcMwBind});
    CHECK(qp.qp->state() == QpState::kErr);
  }
};

}  // namespace

TEST_CASE("a window grants its part of the region and its rights, under the new key [IBTA C10-77]") {
  WindowStage s;
  const MwType type = GENERATE(MwType::kType1, MwType::kType2);
  sim::Mw mw = s.bench.client().alloc_mw(type);
  const proto::Rkey old = mw.rkey;
  s.bound(mw);
  s.bench.send(s.qp, s.write(100, mw.rkey, s.mr.iova + 0x100));
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  CHECK(s.holds(0x100, pattern(16)));
  SECTION("READ too") {
    s.bench.send(s.qp, {.opcode = Opcode::kRcReadRequest,
                        .psn = 101,
                        .va = s.mr.iova + 0x100,
                        .rkey = mw.rkey.value(),
                        .length = 16});
    s.bench.expect({.opcode = Opcode::kRcReadResponseOnly, .payload = pattern(16)});
    return;
  }
  SECTION("one byte before") { s.bench.send(s.qp, s.write(101, mw.rkey, s.mr.iova + 0xFF)); }
  SECTION("one byte behind") { s.bench.send(s.qp, s.write(101, mw.rkey, s.mr.iova + 0x1F1)); }
  SECTION("the key before the bind") { s.bench.send(s.qp, s.write(101, old, s.mr.iova + 0x100)); }
  SECTION("a right that it was not given") {
    s.bench.send(
        s.qp, {.opcode = Opcode::kRcFetchAdd, .psn = 101, .va = s.mr.iova + 0x100, .rkey = mw.rkey.value()});
  }
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakAccess});
  CHECK(s.qp.qp->state() == QpState::kErr);
}

TEST_CASE("the whole variant of a window's key is its owner's to choose") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  sim::SendWr wr = s.bind(mw);
  wr.binding.new_key = proto::Rkey{mw.rkey.value() ^ 0xFF};
  SECTION("all of its bits") {
    s.bound(mw, wr);
    s.bench.send(s.qp, s.write(100, mw.rkey, s.mr.iova + 0x100));
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  }
  SECTION("and no more") {
    wr.binding.new_key = proto::Rkey{mw.rkey.value() ^ 0x100};
    s.refused(wr);
  }
}

TEST_CASE("a window's key is no L_Key") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType1);
  s.bound(mw);
  sim::SendWr wr;
  wr.wr_id = 2;
  wr.sges = {{s.mr.iova + 0x100, 16, proto::Lkey{mw.rkey.value()}}};
  s.bench.post(s.qp, wr);
  s.bench.expect(s.qp, {.wr_id = 2, .status = sim::kWcLocalProtection});
}

TEST_CASE("a type 2 window may be zero-based: then it starts at 0") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw, s.bind(mw, 0x100, 0x100, emulator::kAccessRemoteWrite | emulator::kAccessZeroBased));
  s.bench.send(s.qp, s.write(100, mw.rkey, 0xF0));
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  CHECK(s.holds(0x1F0, pattern(16)));
  s.bench.send(s.qp, s.write(101, mw.rkey, 0xF1));
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakAccess});
}

TEST_CASE("M03: binds that are refused end in a bind error, and the QP in ERR [IBTA C10-72 to C10-75]") {
  WindowStage s;
  sim::Client& client = s.bench.client();
  sim::Mw mw1 = client.alloc_mw(MwType::kType1);
  sim::Mw mw2 = client.alloc_mw(MwType::kType2);
  const auto pd = std::get<emulator::PdHandle>(client.transact(emulator::AllocPd{}).body);
  sim::SendWr wr = s.bind(mw2);
  SECTION("region without the bind right") {
    wr.binding.mr_lkey = s.qp.mr.lkey;
    wr.binding.address = s.qp.mr.iova;
  }
  SECTION("remote write to a region without local write") {
    const sim::Mr mr = client.new_mr(0x1000, emulator::kAccessRemoteRead | emulator::kAccessMwBind);
    wr.binding.mr_lkey = mr.lkey;
    wr.binding.address = mr.iova;
  }
  SECTION("beyond the region") { wr.binding.length_bytes = 0xF01; }
  SECTION("round the end of the address space") {
    wr.binding.address = ~std::uint64_t{0};
    wr.binding.length_bytes = 2;
  }
  SECTION("length that wraps") { wr.binding.length_bytes = ~std::uint64_t{0}; }
  SECTION("no such region") { wr.binding.mr_lkey = proto::Lkey{0x12345678}; }
  SECTION("no such window") { wr.binding.key = proto::Rkey{0x12345678}; }
  SECTION("a region in place of the window") {
    wr.binding.key = s.mr.rkey;
    wr.binding.new_key = s.mr.rkey;
  }
  SECTION("a window in place of the region") { wr.binding.mr_lkey = proto::Lkey{mw1.rkey.value()}; }
  SECTION("a key that the window no longer has") { wr.binding.key = mw2.next_key(); }
  SECTION("more of the key than its variant") { wr.binding.new_key = proto::Rkey{mw2.rkey.value() + 0x100}; }
  SECTION("unknown right") { wr.binding.access |= 1U << 15; }
  SECTION("type 2, no bytes [IBTA o10-37.2.40]") { wr.binding.length_bytes = 0; }
  SECTION("type 1, zero-based [IBTA o10-36.2.2]") {
    wr = s.bind(mw1, 0x100, 0x100, emulator::kAccessRemoteWrite | emulator::kAccessZeroBased);
  }
  SECTION("window of another PD") { wr = s.bind(client.alloc_mw(MwType::kType1, pd)); }
  SECTION("region of another PD") {
    const sim::Mr mr = client.reg_mr(client.allocate(0x1000), 0x1000, kBindable, std::nullopt, pd);
    wr.binding.mr_lkey = mr.lkey;
    wr.binding.address = mr.iova;
  }
  s.refused(wr);
  // Untouched: another QP binds it, by the key that it had.
  if (wr.binding.key == mw2.rkey) {
    Connection other = s.bench.connect({.peer_qpn = 0x333});
    s.bench.post(other, s.bind(mw2));
    s.bench.expect(other, {.opcode = sim::kWcBindWindow});
  }
}

TEST_CASE("M03: rights of the region that the window does not use are not needed") {
  WindowStage s;
  const sim::Mr mr = s.bench.client().new_mr(0x1000, emulator::kAccessMwBind);
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  sim::SendWr wr = s.bind(mw, 0, 0x1000, emulator::kAccessRemoteRead);
  wr.binding.mr_lkey = mr.lkey;
  wr.binding.address = mr.iova;
  s.bound(mw, wr);
  s.bench.send(s.qp, {.opcode = Opcode::kRcReadRequest,
                      .psn = 100,
                      .va = mr.iova,
                      .rkey = mw.rkey.value(),
                      .length = 0x100});
  s.bench.expect({.opcode = Opcode::kRcReadResponseOnly, .payload = Bytes(0x100)});
}

TEST_CASE("a bound type 2 window is not bound again [IBTA o10-37.2.30, Table 78]") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw);
  s.refused(s.bind(mw));
}

TEST_CASE("a type 1 window is bound anew at will, and the old binding is over [IBTA C10-68]") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType1);
  s.bound(mw);
  const proto::Rkey old = mw.rkey;
  s.bound(mw, s.bind(mw, 0x400, 0x100));
  s.bench.send(s.qp, s.write(100, mw.rkey, s.mr.iova + 0x400));
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  SECTION("the old key") { s.bench.send(s.qp, s.write(101, old, s.mr.iova + 0x400)); }
  SECTION("the old place") { s.bench.send(s.qp, s.write(101, mw.rkey, s.mr.iova + 0x100)); }
  SECTION("bound to no bytes") {
    s.bound(mw, s.bind(mw, 0x400, 0));
    s.bench.send(s.qp, s.write(101, mw.rkey, s.mr.iova + 0x400));
  }
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .syndrome = kNakAccess});
}

TEST_CASE("type 1 serves every QP of its PD, type 2 the one that bound it [IBTA C10-76.2.1, o10-37.2.43]") {
  WindowStage s;
  Connection other = s.bench.connect({.peer_qpn = 0x333});
  const MwType type = GENERATE(MwType::kType1, MwType::kType2);
  sim::Mw mw = s.bench.client().alloc_mw(type);
  s.bound(mw);
  s.bench.send(other, s.write(100, mw.rkey, s.mr.iova + 0x100));
  const std::uint8_t syndrome = type == MwType::kType1 ? 0x1F : kNakAccess;
  const auto sent = s.bench.take();
  REQUIRE(sent.has_value());
  if (type == MwType::kType2) CHECK(sent->packet.aeth->syndrome.byte() == syndrome);
  CHECK((sent->packet.aeth->syndrome.kind() == proto::Syndrome::Kind::kAck) == (type == MwType::kType1));
  if (type == MwType::kType2) {
    // Nor may the other end it.
    Connection third = s.bench.connect({.peer_qpn = 0x334});
    s.bench.post(third, s.invalidate(mw.rkey));
    s.bench.expect(third, {.status = sim::kWcLocalQpOperation});
    s.bench.send(s.qp, s.write(100, mw.rkey, s.mr.iova + 0x100));
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  }
}

TEST_CASE("M06: a local invalidation ends a type 2 window, once, and it can be bound again") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw);
  s.bench.post(s.qp, s.invalidate(mw.rkey, 3));
  s.bench.expect(s.qp, {.wr_id = 3, .opcode = sim::kWcLocalInvalidate});
  SECTION("the key grants nothing") {
    s.bench.send(s.qp, s.write(100, mw.rkey, s.mr.iova + 0x100));
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess});
  }
  SECTION("bound again") {
    s.bound(mw);
    s.bench.send(s.qp, s.write(100, mw.rkey, s.mr.iova + 0x100));
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  }
  SECTION("twice") {
    s.bench.post(s.qp, s.invalidate(mw.rkey, 4));
    s.bench.expect(s.qp, {.wr_id = 4, .status = sim::kWcLocalQpOperation});
  }
}

TEST_CASE("M06: what may not be invalidated is refused, and goes on [IBTA o10-37.2.13, o10-37.2.26]") {
  WindowStage s;
  sim::Mw mw1 = s.bench.client().alloc_mw(MwType::kType1);
  sim::Mw mw2 = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw1);
  const bool by_peer = GENERATE(false, true);
  proto::Rkey key;
  SECTION("a region") { key = s.mr.rkey; }
  SECTION("a type 1 window") { key = mw1.rkey; }
  SECTION("a type 2 window that is not bound") { key = mw2.rkey; }
  SECTION("nothing") { key = proto::Rkey{0x12345600}; }
  if (by_peer) {
    s.qp.recv(7);
    s.bench.send(s.qp, {.opcode = Opcode::kRcSendOnlyInvalidate,
                        .psn = 100,
                        .ack_request = true,
                        .invalidates = key.value(),
                        .payload = pattern(8)});
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakAccess, .msn = 0});
    s.bench.expect_recv(s.qp, {.wr_id = 7, .status = sim::kWcLocalAccess});
  } else {
    s.bench.post(s.qp, s.invalidate(key, 3));
    s.bench.expect(s.qp, {.wr_id = 3, .status = sim::kWcLocalQpOperation});
  }
  CHECK(s.qp.qp->state() == QpState::kErr);
  Connection other = s.bench.connect({.peer_qpn = 0x333});
  if (key == mw1.rkey || key == s.mr.rkey) {
    s.bench.send(other, s.write(100, key, s.mr.iova + 0x100));
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .is_ack = true});
  }
}

TEST_CASE("SEND with Invalidate: on the wire behind the last byte, and only there") {
  WindowStage s;
  sim::SendWr wr;
  wr.wr_id = 5;
  wr.opcode = sim::kWrSendInvalidate;
  wr.invalidate = proto::Rkey{0xABCD1234};
  wr.sges = {s.qp.mr.sge(0, kMtu + 3)};
  s.bench.post(s.qp, wr);
  s.bench.expect({.opcode = Opcode::kRcSendFirst, .psn = 1000});
  s.bench.expect({.opcode = Opcode::kRcSendLastInvalidate, .psn = 1001, .invalidates = 0xABCD1234});
  wr.sges = {s.qp.mr.sge(0, 3)};
  s.bench.post(s.qp, wr);
  s.bench.expect({.opcode = Opcode::kRcSendOnlyInvalidate,
                  .psn = 1002,
                  .ack_request = true,
                  .invalidates = 0xABCD1234,
                  .payload_bytes = 3});
  s.bench.send(s.qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1002, .msn = 2});
  s.bench.expect(s.qp, {.wr_id = 5, .opcode = sim::kWcSend});
}

TEST_CASE("SEND with Invalidate ends the window before its receive completes") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw);
  s.qp.recv(7);
  const Line with_invalidate{.opcode = Opcode::kRcSendLastInvalidate,
                             .psn = 101,
                             .ack_request = true,
                             .invalidates = mw.rkey.value(),
                             .payload = pattern(8)};
  const Line first{.opcode = Opcode::kRcSendFirst, .psn = 100, .payload = pattern(kMtu)};
  SECTION("packet by packet") {
    s.bench.send(s.qp, first);
    s.bench.send(s.qp, with_invalidate);
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true, .msn = 1});
    s.bench.send(s.qp, with_invalidate);  // a duplicate is acknowledged, the key is not looked at again
    s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 101, .is_ack = true, .msn = 1});
    s.bench.send(s.qp, s.write(102, mw.rkey, s.mr.iova + 0x100));
  }
  SECTION("in one burst with a WRITE behind it") {
    s.bench.receive({s.bench.frame(s.qp, first), s.bench.frame(s.qp, with_invalidate),
                     s.bench.frame(s.qp, s.write(102, mw.rkey, s.mr.iova + 0x100))});
  }
  s.bench.expect_recv(
      s.qp, {.wr_id = 7, .opcode = sim::kWcRecv, .byte_len = kMtu + 8, .invalidated = mw.rkey.value()});
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 102, .syndrome = kNakAccess});
  CHECK(s.holds(0x100, Bytes(16)));
}

TEST_CASE("an invalidation behind a packet that fails leaves nothing half done") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw);
  s.qp.recv(7);
  s.qp.recv(8);
  const auto invalidating = [&](std::uint32_t psn) {
    return Line{.opcode = Opcode::kRcSendOnlyInvalidate,
                .psn = psn,
                .ack_request = true,
                .invalidates = mw.rkey.value(),
                .payload = pattern(8)};
  };
  // A write to memory that has gone fails; the SEND behind it in the burst is cancelled.
  const sim::Mr gone = s.bench.client().new_mr(0x1000);
  s.bench.memory().unmap(s.bench.client().space(), gone.address);
  s.bench.receive(
      {s.bench.frame(s.qp, s.write(100, gone.rkey, gone.iova)), s.bench.frame(s.qp, invalidating(101))});
  CHECK(s.bench.last_verdict() == DropReason::kCancelled);
  s.bench.expect({.opcode = Opcode::kRcAcknowledge, .psn = 100, .syndrome = kNakOperational});
  // ERR has unbound it with all others of the QP, once: the region can go.
  CHECK(s.bench.client().transact(emulator::DeregMr{s.mr.handle}).error == std::errc{});
}

TEST_CASE("a window ends with its QP: ERR, RESET and destruction [IBTA o10-2.2.5]") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  s.bound(mw);
  sim::Client& client = s.bench.client();
  CHECK(client.transact(emulator::DeregMr{s.mr.handle}).error == std::errc::device_or_resource_busy);
  SECTION("ERR") { REQUIRE(client.to_state(*s.qp.qp, QpState::kErr) == std::errc{}); }
  SECTION("RESET") { REQUIRE(client.to_state(*s.qp.qp, QpState::kReset) == std::errc{}); }
  SECTION("destruction") { REQUIRE(client.destroy(*s.qp.qp).error == std::errc{}); }
  Connection other = s.bench.connect({.peer_qpn = 0x333});
  s.bench.post(other, s.bind(mw));  // it is free
  s.bench.expect(other, {.opcode = sim::kWcBindWindow});
  CHECK(client.transact(emulator::DeallocMw{mw.handle}).error == std::errc{});
  CHECK(client.transact(emulator::DeregMr{s.mr.handle}).error == std::errc{});
}

TEST_CASE("windows are made and ended with errnos") {
  WindowStage s;
  sim::Client& client = s.bench.client();
  for (const std::uint32_t type : {0U, 3U, 255U})
    CHECK(client.transact(emulator::AllocMw{client.pd(), type}).error == std::errc::invalid_argument);
  CHECK(client.transact(emulator::AllocMw{{99}, 1}).error == std::errc::invalid_argument);
  CHECK(client.transact(emulator::DeallocMw{{0}}).error == std::errc::invalid_argument);
  const auto pd = std::get<emulator::PdHandle>(client.transact(emulator::AllocPd{}).body);
  const sim::Mw mw = client.alloc_mw(MwType::kType1, pd);
  CHECK(client.transact(emulator::DeallocPd{pd}).error == std::errc::device_or_resource_busy);
  CHECK(client.transact(emulator::DeallocMw{mw.handle}).error == std::errc{});
  CHECK(client.transact(emulator::DeallocPd{pd}).error == std::errc{});
  sim::Mw left = client.alloc_mw(MwType::kType2);
  s.bound(left);
  const auto reply = client.transact(emulator::Inspect{});
  const auto& snapshot = *std::get<std::unique_ptr<emulator::Snapshot>>(reply.body);
  REQUIRE(snapshot.mws.size() == 1);
  CHECK(snapshot.mws[0].is_bound);
  CHECK(snapshot.mws[0].rkey == left.rkey);
  client.close();  // everything goes, in whatever order it hangs together
}

TEST_CASE("local operations take their turn: behind what is not complete, before what follows") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  sim::SendWr send;
  send.sges = {s.qp.mr.sge(0, 4)};
  send.wr_id = 1;
  REQUIRE(s.qp.qp->queue_send(send));
  sim::SendWr bind = s.bind(mw);
  bind.wr_id = 2;
  REQUIRE(s.qp.qp->queue_send(bind));
  REQUIRE(s.qp.qp->queue_send(s.invalidate(bind.binding.new_key, 3)));
  send.wr_id = 4;
  s.bench.post(s.qp, send);
  s.bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1000});
  s.bench.expect_nothing();
  s.bench.expect_no_completion(s.qp);
  s.bench.send(s.qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000, .msn = 1});
  s.bench.expect(s.qp, {.wr_id = 1});
  s.bench.expect(s.qp, {.wr_id = 2, .opcode = sim::kWcBindWindow});
  s.bench.expect(s.qp, {.wr_id = 3, .opcode = sim::kWcLocalInvalidate});
  s.bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1001});  // they took no PSN
  // Sent again, it does not touch them.
  REQUIRE(s.bench.advance_until_sent(std::chrono::seconds(1)));
  s.bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1001});
  s.bench.send(s.qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1001, .msn = 2});
  s.bench.expect(s.qp, {.wr_id = 4});
  CHECK(s.qp.qp->send_queued() == 0);
}

TEST_CASE("a queue full of unsignaled binds is worked off, and the SEND behind them sent") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType1);
  sim::SendWr bind = s.bind(mw);
  bind.flags = 0;
  std::size_t binds = 0;
  while (s.qp.qp->send_queued() < 126 && s.qp.qp->queue_send(bind)) {
    std::swap(bind.binding.key, bind.binding.new_key);
    ++binds;
  }
  CHECK(binds >= 63);
  REQUIRE(s.qp.qp->ring_doorbell());
  s.bench.pass();
  s.bench.expect_no_completion(s.qp);
  CHECK(s.qp.qp->send_queued() == 0);
  sim::SendWr send;
  send.sges = {s.qp.mr.sge(0, 4)};
  s.bench.post(s.qp, send);
  s.bench.expect({.opcode = Opcode::kRcSendOnly, .psn = 1000});
}

TEST_CASE("in SQD no new local operation is begun") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  sim::SendWr send;
  send.sges = {s.qp.mr.sge(0, 4)};
  REQUIRE(s.qp.qp->queue_send(send));
  s.bench.post(s.qp, s.bind(mw));
  REQUIRE(s.bench.client().to_state(*s.qp.qp, QpState::kSqd) == std::errc{});
  s.bench.send(s.qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000, .msn = 1});
  s.bench.expect(s.qp, {.opcode = sim::kWcSend});
  s.bench.expect_no_completion(s.qp);
  REQUIRE(s.bench.client().to_state(*s.qp.qp, QpState::kRts) == std::errc{});
  s.bench.pass();
  s.bench.expect(s.qp, {.opcode = sim::kWcBindWindow});
}

TEST_CASE("local operations that wait are flushed with their queue") {
  WindowStage s;
  sim::Mw mw = s.bench.client().alloc_mw(MwType::kType2);
  sim::SendWr send;
  send.wr_id = 1;
  send.sges = {s.qp.mr.sge(0, 4)};
  REQUIRE(s.qp.qp->queue_send(send));
  s.bench.post(s.qp, s.bind(mw));
  s.bench.send(s.qp, {.opcode = Opcode::kRcAcknowledge, .psn = 1000, .syndrome = kNakInvalid});
  s.bench.expect(s.qp, {.wr_id = 1, .status = sim::kWcRemoteInvalidRequest});
  s.bench.expect(s.qp, {.wr_id = 0xB, .status = sim::kWcFlushed});
  CHECK(s.bench.client().transact(emulator::DeregMr{s.mr.handle}).error == std::errc{});
}
