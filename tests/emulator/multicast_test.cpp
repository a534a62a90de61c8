// UD multicast: attaching, a copy for each QP of a group, and what goes out.
#include <algorithm>

#include <catch2/catch.hpp>

#include "emulator/context.h"
#include "emulator/multicast.h"
#include "tests/emulator/script.h"

using namespace roci;
using namespace roci::script;
using namespace roci::emulator;

namespace {

constexpr std::uint32_t kMulticastQpn = 0xFFFFFF;

proto::Gid group(bool ipv6 = false) {
  if (!ipv6) return proto::Gid::from_ipv4(0xE6010203);
  proto::Gid gid;
  gid.bytes = {0xFF, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return gid;
}

std::errc attach(Bench& bench, const Connection& qp, const proto::Gid& to = group()) {
  return bench.client().transact(AttachMulticast{qp.qp->handle(), to}).error;
}
std::errc detach(Bench& bench, const Connection& qp, const proto::Gid& from = group()) {
  return bench.client().transact(DetachMulticast{qp.qp->handle(), from}).error;
}

// From the peer to the group.
Bytes to_group(const Bench& bench, const Connection& any, const Bytes& payload,
               const std::function<void(proto::Packet&)>& edit = {}) {
  return bench.frame(any, {.opcode = Opcode::kUdSendOnly,
                           .payload = payload,
                           .dqpn = kMulticastQpn,
                           .edit = [&](proto::Packet& packet) {
                             const bool ipv6 = packet.ipv6.has_value();
                             packet.ethernet->destination = multicast_mac(group(ipv6));
                             if (ipv6) packet.ipv6->destination = group(true);
                             if (packet.ipv4) packet.ipv4->destination = group().ipv4();
                             if (edit) edit(packet);
                           }});
}

// Membership reports are another test's.
void forget_sent(Bench& bench) {
  bench.advance(std::chrono::seconds(5));
  while (bench.take().has_value())
    continue;
}

}  // namespace

TEST_CASE("D03: each attached QP gets its own copy; one without a receive loses only its own") {
  const bool ipv6 = GENERATE(false, true);
  Bench bench({.ipv6 = ipv6});
  Connection a = bench.connect_datagrams(), b = bench.connect_datagrams(),
             without = bench.connect_datagrams(), apart = bench.connect_datagrams();
  for (const Connection* one : {&a, &b, &without})
    REQUIRE(attach(bench, *one, group(ipv6)) == std::errc{});
  for (std::uint64_t i = 0; i < 100; ++i) {
    for (Connection* one : {&a, &b, &apart}) {
      if (one != &b || i < 50) one->recv(i);
      if (i > 0 && one == &apart) break;
    }
    if (i == 50) REQUIRE(detach(bench, b, group(ipv6)) == std::errc{});
    const Bytes payload = pattern(64, static_cast<unsigned>(i));
    bench.receive({to_group(bench, a, payload)});
    CHECK(bench.last_verdict() == DropReason::kAccepted);
    bench.expect_recv(a, {.wr_id = i, .byte_len = kGrh + 64, .source_qpn = kPeerQpn});
    CHECK(holds(bench, a, 0x8000 + kGrh, payload));
    if (i < 50) {
      bench.expect_recv(b, {.wr_id = i, .byte_len = kGrh + 64});
      CHECK(holds(bench, b, 0x8000 + kGrh, payload));
    }
    CHECK(b.recv_cq->pending() == 0);
  }
  CHECK(without.recv_cq->pending() == 0);
  CHECK(apart.recv_cq->pending() == 0);
  CHECK(bench.counters().multicast_copies == 150);
  CHECK(bench.counters().multicast_losses == 100);
}

TEST_CASE("multicast: a burst with copies is as packet by packet, and frames have one fate each") {
  Bench bench;
  Connection a = bench.connect_datagrams(), b = bench.connect_datagrams();
  REQUIRE(attach(bench, a) == std::errc{});
  REQUIRE(attach(bench, b) == std::errc{});
  std::vector<Bytes> frames;
  for (std::uint64_t i = 0; i < 30; ++i) {
    a.recv(2 * i);
    a.recv(2 * i + 1);
    b.recv(i);
    if (i == 7) frames.push_back(Bytes(20));
    frames.push_back(to_group(bench, a, pattern(10)));
    frames.push_back(bench.frame(a, {.opcode = Opcode::kUdSendOnly, .payload = pattern(20)}));
  }
  bench.receive(frames);
  CHECK(bench.engine().verdicts().size() == frames.size());
  CHECK(bench.engine().verdicts()[14] == DropReason::kMalformed);
  for (std::uint64_t i = 0; i < 30; ++i) {
    bench.expect_recv(a, {.wr_id = 2 * i, .byte_len = kGrh + 10});
    bench.expect_recv(a, {.wr_id = 2 * i + 1, .byte_len = kGrh + 20});
    bench.expect_recv(b, {.wr_id = i, .byte_len = kGrh + 10});
  }
  std::uint64_t fates = 0;
  for (const std::uint64_t one : bench.counters().dropped)
    fates += one;
  CHECK(fates == bench.counters().rx_frames);
}

TEST_CASE("multicast: each QP judges its copy") {
  Bench bench;
  Connection a = bench.connect_datagrams(), b = bench.connect_datagrams();
  REQUIRE(attach(bench, a) == std::errc{});
  REQUIRE(attach(bench, b) == std::errc{});
  ModifyQp other_qkey{b.qp->handle(), kQpQkey, {}};
  other_qkey.attributes.qkey = proto::Qkey{5};
  REQUIRE(bench.client().transact(other_qkey).error == std::errc{});
  a.recv(1);
  b.recv(2);
  SECTION("Q_Key") {
    bench.receive({to_group(bench, a, pattern(8))});
    bench.expect_recv(a, {.wr_id = 1});
  }
  SECTION("nobody's Q_Key") {
    bench.receive({to_group(bench, a, pattern(8), [](proto::Packet& p) { p.deth->qkey = proto::Qkey{6}; })});
    CHECK(bench.dropped(DropReason::kBadQkey) == 1);
    CHECK(bench.counters().multicast_losses == 2);
  }
  SECTION("state") {
    REQUIRE(bench.client().to_state(*a.qp, QpState::kErr) == std::errc{});
    bench.expect_recv(a, {.wr_id = 1, .status = sim::kWcFlushed});
    bench.receive({to_group(bench, a, pattern(8), [](proto::Packet& p) { p.deth->qkey = proto::Qkey{5}; })});
    bench.expect_recv(b, {.wr_id = 2});
  }
  bench.expect_no_completion(a);
  bench.expect_no_completion(b);
}

TEST_CASE("multicast: addresses must fit together") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  REQUIRE(attach(bench, qp) == std::errc{});
  qp.recv(1);
  DropReason reason = DropReason::kNotForUs;
  std::function<void(proto::Packet&)> edit;
  SECTION("another MAC") {
    edit = [](proto::Packet& p) { p.ethernet->destination.bytes[5] ^= 1; };
  }
  SECTION("broadcast") {
    edit = [](proto::Packet& p) { p.ethernet->destination = {{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}}; };
  }
  SECTION("the NIC's own MAC") {
    edit = [](proto::Packet& p) { p.ethernet->destination = Bench::kOwnMac; };
  }
  SECTION("the NIC's own IP address") {
    edit = [](proto::Packet& p) { p.ipv4->destination = Bench::own_gid().ipv4(); };
  }
  SECTION("the QP's own number") {
    edit = [&](proto::Packet& p) { p.bth.destination = qp.qp->qpn(); };
  }
  SECTION("another group of the same MAC") {
    edit = [](proto::Packet& p) { p.ipv4->destination ^= 0x08000000; };
    reason = DropReason::kNotAttached;
  }
  SECTION("another service") {
    edit = [](proto::Packet& p) {
      p.bth.opcode = Opcode::kUcSendOnly;
      p.deth.reset();
    };
    reason = DropReason::kWrongService;
  }
  SECTION("P_Key") {
    edit = [](proto::Packet& p) { p.bth.pkey = proto::Pkey{0x8001}; };
    reason = DropReason::kBadPkey;
  }
  bench.receive({to_group(bench, qp, pattern(8), edit)});
  CHECK(bench.last_verdict() == reason);
  Bytes damaged = to_group(bench, qp, pattern(8));
  damaged[damaged.size() - 6] ^= std::byte{1};
  bench.receive({damaged});
  CHECK(bench.last_verdict() == DropReason::kBadIcrc);
  bench.expect_no_completion(qp);
}

TEST_CASE("the multicast QPN is nobody's unicast destination") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  bench.send(qp, {.opcode = Opcode::kUdSendOnly, .payload = pattern(4), .dqpn = kMulticastQpn});
  CHECK(bench.last_verdict() == DropReason::kUnknownQpn);
}

TEST_CASE("D04: a QP of the group sends to it: all others of its NIC get a copy, the sender does not") {
  const bool ipv6 = GENERATE(false, true);
  Bench bench({.ipv6 = ipv6});
  Connection sender = bench.connect_datagrams(), other = bench.connect_datagrams();
  REQUIRE(attach(bench, sender, group(ipv6)) == std::errc{});
  REQUIRE(attach(bench, other, group(ipv6)) == std::errc{});
  forget_sent(bench);
  sender.recv(1);
  other.recv(2);
  AddressVector av = bench.peer_av();
  av.dgid = group(ipv6);
  bench.post(sender, {.wr_id = 3,
                      .sges = {sender.mr.sge(0, 16)},
                      .ah = bench.client().create_ah(av),
                      .remote_qpn = proto::Qpn{kMulticastQpn},
                      .remote_qkey = proto::Qkey{kQkey}});
  const auto sent = bench.take();
  REQUIRE(sent.has_value());
  CHECK(sent->packet.bth.destination.value() == kMulticastQpn);
  const proto::Mac mac =
      ipv6 ? proto::Mac{{0x33, 0x33, 0, 0, 0, 1}} : proto::Mac{{0x01, 0x00, 0x5E, 0x01, 0x02, 0x03}};
  CHECK(sent->packet.ethernet->destination == mac);
  bench.expect(sender, {.wr_id = 3});
  bench.receive({sent->frame});  // as the fabric hands it back
  bench.expect_recv(other, {.wr_id = 2, .byte_len = kGrh + 16, .source_qpn = sender.qp->qpn().value()});
  bench.expect_no_completion(sender);

  REQUIRE(detach(bench, other, group(ipv6)) == std::errc{});
  bench.receive({sent->frame});
  CHECK(bench.last_verdict() == DropReason::kNotAttached);
}

TEST_CASE("attach: UD QPs to multicast GIDs, once") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  Connection rc = bench.connect(), uc = bench.connect({.qp = {.type = QpType::kUc}});
  CHECK(attach(bench, rc) == std::errc::invalid_argument);
  CHECK(attach(bench, uc) == std::errc::invalid_argument);
  CHECK(attach(bench, qp, Bench::peer_gid()) == std::errc::invalid_argument);
  CHECK(attach(bench, qp, {}) == std::errc::invalid_argument);
  CHECK(bench.client().transact(AttachMulticast{{77}, group()}).error == std::errc::invalid_argument);
  CHECK(detach(bench, qp) == std::errc::invalid_argument);
  CHECK(attach(bench, qp) == std::errc{});
  CHECK(attach(bench, qp) == std::errc{});
  qp.recv(1);
  qp.recv(2);
  bench.receive({to_group(bench, qp, pattern(8))});
  bench.expect_recv(qp, {.wr_id = 1});
  bench.expect_no_completion(qp);
  CHECK(detach(bench, qp) == std::errc{});
  CHECK(detach(bench, qp) == std::errc::invalid_argument);
}

TEST_CASE("Q04: a QP in a group is busy [IBTA o10-2.2.3], and the end of its context detaches it") {
  Bench bench;
  Connection qp = bench.connect_datagrams();
  REQUIRE(attach(bench, qp) == std::errc{});
  REQUIRE(attach(bench, qp, group(true)) == std::errc{});
  CHECK(bench.engine().multicast_groups({0}).size() == 2);
  CHECK(bench.client().destroy(*qp.qp).error == std::errc::device_or_resource_busy);
  REQUIRE(detach(bench, qp) == std::errc{});
  CHECK(bench.client().destroy(*qp.qp).error == std::errc::device_or_resource_busy);
  SECTION("detached") {
    REQUIRE(detach(bench, qp, group(true)) == std::errc{});
    CHECK(bench.client().destroy(*qp.qp).error == std::errc{});
  }
  SECTION("closed") { bench.client().close(); }
  CHECK(bench.engine().multicast_groups({0}).empty());
  bench.receive({to_group(bench, qp, pattern(8))});
  CHECK(bench.last_verdict() == DropReason::kNotAttached);
}

TEST_CASE("the groups of a NIC are visible to its port, with a count of changes") {
  Bench bench;
  Connection a = bench.connect_datagrams(), b = bench.connect_datagrams();
  const std::uint64_t before = bench.engine().multicast_changes({0});
  REQUIRE(attach(bench, a) == std::errc{});
  const std::uint64_t attached = bench.engine().multicast_changes({0});
  CHECK(attached != before);
  REQUIRE(attach(bench, b) == std::errc{});
  REQUIRE(detach(bench, a) == std::errc{});
  CHECK(bench.engine().multicast_changes({0}) == attached);
  REQUIRE(bench.engine().multicast_groups({0}).size() == 1);
  CHECK(bench.engine().multicast_groups({0})[0] == group());
  REQUIRE(detach(bench, b) == std::errc{});
  CHECK(bench.engine().multicast_changes({0}) != attached);
}

TEST_CASE("multicast limits are ENOMEM") {
  Context context;
  Qp one{context, 0, proto::Qpn{2}}, two{context, 1, proto::Qpn{3}}, three{context, 2, proto::Qpn{4}};
  MulticastGroups groups;
  CHECK(groups.attach(group(), one, 1, 2).error == std::errc{});
  CHECK(groups.attach(group(), two, 1, 2).error == std::errc{});
  CHECK(groups.attach(group(), three, 1, 2).error == std::errc::not_enough_memory);
  CHECK(groups.attach(group(true), three, 1, 2).error == std::errc::not_enough_memory);
  CHECK(groups.members(group()).size() == 2);
  CHECK(groups.members(group(true)).empty());
}
