// The longest message, 2^31 bytes in 2^19 packets, by SEND, WRITE and READ: every packet of it. Neither end
// has so much memory; a segment that repeats stands for it.
#include <algorithm>

#include <catch2/catch.hpp>

#include "tests/sim/world.h"

using namespace roci;
using namespace roci::sim;

namespace {

constexpr std::uint32_t kLongest = 0x80000000;
constexpr std::size_t kSegment = 1 << 16;
constexpr std::uint64_t kAddress = std::uint64_t{1} << 40;

struct Side {
  Client& client;
  std::span<std::byte> segment;
  Mr mr;
  std::unique_ptr<Cq> cq;
  std::unique_ptr<Qp> qp;

  explicit Side(Client& of)
      : client(of),
        segment(of.memory().map_folded(of.space(), kAddress, kLongest, kSegment)),
        mr(of.reg_mr(kAddress, kLongest)),
        cq(of.create_cq(8)),
        qp(of.create_qp(*cq, *cq)) {}
  void connect(const Side& peer, proto::Gid gid) {
    ConnectOptions to;
    to.dgid = gid;
    to.dest_qpn = peer.qp->qpn();
    to.sq_psn = to.rq_psn = proto::Psn{0xFFFF00};  // wraps within the message
    to.mtu = proto::PathMtu::k4096;
    client.connect(*qp, to);
  }
};

void transfer(WrOpcode opcode) {
  WorldConfig config;
  config.blocked_nic_per_million = 500'000;  // or a READ's answer would be on the link all at once
  World world(config);
  Side requester(world.add_client(0)), responder(world.add_client(1));
  requester.connect(responder, World::gid(1));
  responder.connect(requester, World::gid(0));
  const bool is_read = opcode == kWrRead;
  Side& source = is_read ? responder : requester;
  Side& target = is_read ? requester : responder;
  for (std::size_t i = 0; i < kSegment; ++i)
    source.segment[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  // Byte after byte, though a segment that repeats would not tell.
  std::uint64_t read_to = kAddress, written_to = kAddress, out_of_place = 0;
  const auto follow = [&](std::uint64_t& end, const emulator::MemoryOp& op) {
    if (op.address != end) ++out_of_place;
    end = op.address + op.length_bytes;
    return false;
  };
  source.client.memory().set_fault(
      [&](std::uint64_t, const emulator::MemoryOp& op) { return follow(read_to, op); });
  target.client.memory().set_fault(
      [&](std::uint64_t, const emulator::MemoryOp& op) { return follow(written_to, op); });

  REQUIRE(responder.qp->post_recv({9, {responder.mr.sge(0, kLongest)}}));
  SendWr wr;
  wr.wr_id = 1;
  wr.opcode = opcode;
  wr.sges = {requester.mr.sge(0, kLongest)};
  wr.remote_address = responder.mr.iova;
  wr.rkey = responder.mr.rkey;
  REQUIRE(requester.qp->post_send(wr));
  REQUIRE(world.run_until([&] { return requester.cq->pending() > 0; }, std::chrono::seconds(60)));

  const std::optional<emulator::RingCqe> sent = requester.cq->poll();
  CHECK(sent->status == kWcSuccess);
  if (is_read) CHECK(sent->byte_len == kLongest);
  if (opcode == kWrSend) {
    const std::optional<emulator::RingCqe> received = responder.cq->poll();
    REQUIRE(received.has_value());
    CHECK(received->status == kWcSuccess);
    CHECK(received->byte_len == kLongest);
  }
  CHECK(read_to == kAddress + kLongest);
  CHECK(written_to == kAddress + kLongest);
  CHECK(out_of_place == 0);
  CHECK(std::equal(source.segment.begin(), source.segment.end(), target.segment.begin()));
  CHECK(world.engine(0).counters({0}).retransmitted_packets == 0);
  CHECK(world.violations().empty());
}

}  // namespace

TEST_CASE("a SEND of 2^31 bytes") { transfer(kWrSend); }
TEST_CASE("a WRITE of 2^31 bytes") { transfer(kWrWrite); }
TEST_CASE("a READ of 2^31 bytes") { transfer(kWrRead); }
