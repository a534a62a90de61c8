// End-to-end credits between two engines: what they save and cost, beside a shared receive queue of the same
// depth, which sets no limit. The rules themselves are in tests/script/rc/credits.
#include <catch2/catch.hpp>

#include "tests/sim/world.h"

using namespace roci;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::uint32_t kMessages = 1000;

struct Stream {
  std::uint32_t bytes = 64;
  std::uint32_t depth = 4;     // of the receive queue
  std::uint32_t bulk = 1;      // receives are posted again so many at once,
  emulator::Duration late{0};  // so long after the last of them completed
};
struct Spent {
  std::uint64_t packets = 0;  // both ways
  std::uint64_t rnr_naks = 0;
  emulator::Duration time{};
};

// kMessages SENDs through a receive queue that is always too short.
Spent run(const Stream& stream, bool is_shared) {
  sim::World world({});
  sim::Client& left = world.add_client(0);
  sim::Client& right = world.add_client(1);
  const auto left_cq = left.create_cq(256), right_cq = right.create_cq(1024);
  const auto srq = right.create_srq(stream.depth, 1);
  sim::QpOptions from, to;
  from.capabilities = {128, 1, 1, 1, 0};
  to.capabilities = {1, is_shared ? 0 : stream.depth, 1, 1, 0};
  if (is_shared) to.srq = srq->handle();
  const auto a = left.create_qp(*left_cq, *left_cq, from);
  const auto b = right.create_qp(*right_cq, *right_cq, to);
  sim::ConnectOptions to_b, to_a;
  to_b.dgid = sim::World::gid(1);
  to_a.dgid = sim::World::gid(0);
  to_b.dest_qpn = b->qpn();
  to_a.dest_qpn = a->qpn();
  to_b.mtu = to_a.mtu = proto::PathMtu::k1024;
  to_b.rnr_retry = 7;
  to_a.min_rnr_timer = 1;  // 10 us
  left.connect(*a, to_b);
  right.connect(*b, to_a);
  const sim::Mr source = left.new_mr(stream.bytes), inbox = right.new_mr(stream.bytes);
  const auto post_receive = [&] {
    const sim::RecvWr wr{0, {inbox.sge(0, stream.bytes)}};
    REQUIRE((is_shared ? srq->post_recv(wr) : b->post_recv(wr)));
  };
  for (std::uint32_t i = 0; i < stream.depth; ++i)
    post_receive();

  std::uint32_t posted = 0, sent = 0, received = 0, taken = 0;
  emulator::Time post_at = emulator::kNever;
  world.set_application([&](emulator::Time now) {
    while (const auto cqe = left_cq->poll()) {
      REQUIRE(cqe->status == sim::kWcSuccess);
      ++sent;
    }
    while (posted < kMessages && posted - sent < 128) {
      REQUIRE(a->post_send({.wr_id = posted, .sges = {source.sge(0, stream.bytes)}}));
      ++posted;
    }
    while (const auto cqe = right_cq->poll()) {
      REQUIRE(cqe->status == sim::kWcSuccess);
      ++received;
      if (++taken == stream.bulk) post_at = now + stream.late;
    }
    if (post_at <= now) {
      for (; taken > 0; --taken)
        post_receive();
      post_at = emulator::kNever;
    }
    return post_at;
  });
  const std::uint64_t before = world.counts().frames;
  const emulator::Time start = world.now();
  REQUIRE(world.run_until([&] { return sent == kMessages; }, seconds(10)));
  CHECK(received == kMessages);
  CHECK(world.violations().empty());
  return {world.counts().frames - before, world.engine(1).counters({0}).rnr_naks_sent, world.now() - start};
}

}  // namespace

TEST_CASE("a receive queue that is short costs fewer packets with credits than without") {
  for (const Stream& stream :
       {Stream{64, 1, 1}, Stream{64, 4, 1}, Stream{64, 16, 8, microseconds(5)},
        Stream{64, 64, 32, microseconds(50)}, Stream{64, 512, 256, microseconds(50)}, Stream{5000, 1, 1},
        Stream{5000, 4, 1}, Stream{5000, 16, 8, microseconds(5)}, Stream{5000, 512, 256, microseconds(50)}}) {
    const Spent with = run(stream, false), without = run(stream, true);
    INFO(stream.bytes << " bytes, " << stream.depth << " receives, posted by " << stream.bulk << " after "
                      << stream.late.count() << " ns; with credits " << with.packets << " packets, "
                      << with.rnr_naks << " RNR NAKs, " << with.time.count() << " ns; without "
                      << without.packets << ", " << without.rnr_naks << ", " << without.time.count());
    CHECK(with.packets < without.packets);  // by up to 59 times
    CHECK(with.time < 2 * without.time);    // at most 1.5 times: a probe's round trip behind each RNR wait
  }
}
