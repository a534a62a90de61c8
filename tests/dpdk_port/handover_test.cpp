// Frames between NICs, shards and a port that only remembers, on real mbufs: who gets what, that no frame is
// copied, and that every buffer comes home.
#include "dpdk_port/handover.h"

#include <rte_eal.h>
#include <rte_mempool.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>

#include "tests/catch_main.h"

using namespace roci;
using namespace roci::dpdk_port;
using emulator::NicId;
using emulator::Time;

namespace {

constexpr NicId kNic0{0}, kNic1{1}, kNic2{2};
constexpr std::uint32_t kMbufs = 511;

proto::Mac mac(std::uint8_t last) { return proto::Mac{{2, 0, 0, 0, 0, last}}; }
constexpr proto::Mac kBroadcast{{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}};

rte_mempool* pool() {
  static rte_mempool* const made = make_pool("test", kMbufs, 2048);
  REQUIRE(made != nullptr);
  return made;
}

rte_mbuf* frame_to(const proto::Mac& destination) {
  rte_mbuf* mbuf = rte_pktmbuf_alloc(pool());
  REQUIRE(mbuf != nullptr);
  char* data = rte_pktmbuf_append(mbuf, 60);
  std::memset(data, 0, 60);
  std::memcpy(data, destination.bytes.data(), 6);
  data[12] = 8;  // ARP, which every shard has to see
  data[13] = 6;
  return mbuf;
}

class RememberingPort : public Port {
 public:
  ~RememberingPort() override {
    for (auto* mbuf : sent)
      rte_pktmbuf_free(mbuf);
  }
  std::size_t receive(rte_mbuf** out, std::size_t max) override {
    const std::size_t count = std::min(max, arriving.size());
    std::copy_n(arriving.begin(), count, out);
    arriving.erase(arriving.begin(), arriving.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  std::size_t send(rte_mbuf** frames, std::size_t count) override {
    const std::size_t taken = std::min(count, room);
    sent.insert(sent.end(), frames, frames + taken);
    room -= taken;
    return taken;
  }
  [[nodiscard]] int wake_fd() const override { return -1; }
  void prepare_to_sleep() override {}

  std::vector<rte_mbuf*> arriving, sent;
  std::size_t room = 1000;
};

struct Bench {
  explicit Bench(std::uint32_t shards) : topology(shards) {
    topology.add_fabric_nic(kNic0, mac(1));
    topology.add_fabric_nic(kNic1, mac(2));
    topology.add_device_nic(kNic2, mac(3), port);
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      taps.push_back(std::make_unique<CaptureTap>(off));
      handovers.push_back(std::make_unique<Handover>(shard, topology, *taps.back()));
    }
  }
  std::vector<Delivery> collect(std::uint32_t shard) {
    std::vector<Delivery> all(64);
    all.resize(handovers[shard]->collect(all.data(), all.size()));
    return all;
  }
  Handover& operator[](std::uint32_t shard) { return *handovers[shard]; }

  CaptureSwitch off;
  RememberingPort port;
  Topology topology;
  std::vector<std::unique_ptr<CaptureTap>> taps;
  std::vector<std::unique_ptr<Handover>> handovers;
};

void check_all_home() { CHECK(rte_mempool_avail_count(pool()) == kMbufs); }

}  // namespace

TEST_CASE("a frame on the fabric reaches its receiver as the same mbuf") {
  Bench bench(1);
  rte_mbuf* sent = frame_to(mac(2));
  bench[0].send(sent, kNic0, Time{});
  CHECK_FALSE(bench[0].input_is_empty());
  const auto got = bench.collect(0);
  REQUIRE(got.size() == 1);
  CHECK(got[0].mbuf == sent);
  CHECK(got[0].from == kNic0);
  CHECK(got[0].to == kNic1);
  CHECK(bench[0].input_is_empty());
  rte_pktmbuf_free(sent);
  check_all_home();
}

TEST_CASE("a NIC of the fabric can talk to itself, and a frame for nobody is lost and counted") {
  Bench bench(1);
  bench[0].send(frame_to(mac(1)), kNic0, Time{});
  bench[0].send(frame_to(mac(9)), kNic0, Time{});
  const auto got = bench.collect(0);
  REQUIRE(got.size() == 1);
  CHECK(got[0].to == kNic0);
  CHECK(bench[0].lost() == 1);
  rte_pktmbuf_free(got[0].mbuf);
  check_all_home();
}

TEST_CASE("a broadcast goes to all others of the fabric, and to every shard, by reference") {
  Bench bench(2);
  rte_mbuf* sent = frame_to(kBroadcast);
  bench[0].send(sent, kNic0, Time{});
  CHECK(bench[0].take_touched_shards() == 2U);
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    const auto got = bench.collect(shard);
    REQUIRE(got.size() == 1);
    CHECK(got[0].mbuf == sent);
    CHECK(got[0].to == kNic1);
    rte_pktmbuf_free(got[0].mbuf);
  }
  check_all_home();
}

TEST_CASE("a port's frames go out in order; what it does not take waits and blocks the NIC") {
  Bench bench(1);
  bench.port.room = 10;
  std::vector<rte_mbuf*> frames;
  for (std::size_t i = 0; i < 10 + Handover::kBlockedBacklog; ++i) {
    frames.push_back(frame_to(mac(9)));
    bench[0].send(frames.back(), kNic2, Time{});
  }
  CHECK(bench[0].send_to_ports() == 10);
  CHECK(bench[0].blocked_nics() == 4U);
  CHECK_FALSE(bench[0].input_is_empty());  // it must not sleep now
  bench.port.room = 1000;
  CHECK(bench[0].send_to_ports() == Handover::kBlockedBacklog);
  CHECK(bench[0].blocked_nics() == 0U);
  CHECK(bench.port.sent == frames);
}

TEST_CASE("a port that takes nothing costs frames, not the daemon") {
  {
    Bench bench(1);
    bench.port.room = 0;
    for (std::size_t i = 0; i < bench[0].port_backlog() + 5; ++i)
      bench[0].send(frame_to(mac(9)), kNic2, Time{});
    CHECK(bench[0].lost() == 5);
  }
  check_all_home();
}

TEST_CASE("every shard sees a port that is behind, before a frame is lost") {
  {
    Bench bench(2);
    bench.port.room = 0;
    std::size_t sent = 0;
    const auto send_burst = [&](std::uint32_t shard) {
      for (std::size_t i = 0; i < Handover::kMaxBurst; ++i, ++sent)
        bench[shard].send(frame_to(mac(9)), kNic2, Time{});
    };
    CHECK(bench[1].blocked_nics() == 0U);
    send_burst(1);  // still in the ring: shard 0 has not come round to it
    CHECK(bench[1].blocked_nics() == 4U);
    CHECK(bench[0].blocked_nics() == 4U);
    send_burst(1);  // as if it had looked just before
    send_burst(0);
    CHECK(bench.collect(0).empty());
    CHECK(bench[0].send_to_ports() == 0);
    CHECK(bench[1].blocked_nics() == 4U);
    bench.port.room = sent - Handover::kBlockedBacklog + 1;
    bench.collect(0);
    bench.collect(0);
    CHECK(bench[0].send_to_ports() == sent - Handover::kBlockedBacklog + 1);
    CHECK(bench[1].blocked_nics() == 0U);
    bench.port.room = 1000;
    CHECK(bench[0].send_to_ports() == Handover::kBlockedBacklog - 1);
    CHECK(bench.port.sent.size() == sent);
    CHECK(bench[0].lost() + bench[1].lost() == 0);
  }
  check_all_home();
}

TEST_CASE("a NIC whose link is down sends nothing, and is not blocked by what it had") {
  {
    Bench bench(1);
    bench.port.room = 0;
    for (std::size_t i = 0; i < Handover::kBlockedBacklog; ++i)
      bench[0].send(frame_to(mac(9)), kNic2, Time{});
    CHECK(bench[0].blocked_nics() == 4U);
    bench.port.room = 1000;
    bench[0].set_links(3);
    bench[0].send(frame_to(mac(9)), kNic2, Time{});
    bench[0].send(frame_to(mac(3)), kNic2, Time{});  // nor to itself
    CHECK(bench[0].send_to_ports() == 0);
    CHECK(bench[0].blocked_nics() == 0U);
    CHECK(bench[0].input_is_empty());
    CHECK(bench[0].lost() == Handover::kBlockedBacklog + 2);
    bench[0].set_links(7);
    bench[0].send(frame_to(mac(9)), kNic2, Time{});
    CHECK(bench[0].send_to_ports() == 1);
  }
  check_all_home();
}

TEST_CASE("a device NIC's frame to itself never reaches the wire") {
  Bench bench(1);
  bench[0].send(frame_to(mac(3)), kNic2, Time{});
  CHECK(bench[0].send_to_ports() == 0);
  const auto got = bench.collect(0);
  REQUIRE(got.size() == 1);
  CHECK(got[0].to == kNic2);
  rte_pktmbuf_free(got[0].mbuf);
  check_all_home();
}

TEST_CASE("a device NIC's RoCE multicast goes to the wire and to its other QPs, as the same mbuf") {
  {
    Bench bench(1);
    rte_mbuf* const sent = frame_to(proto::Mac{{0x01, 0x00, 0x5E, 1, 2, 3}});
    auto* const data = rte_pktmbuf_mtod(sent, std::uint8_t*);
    data[12] = 8, data[13] = 0;      // IPv4
    data[14] = 0x45, data[23] = 17;  // UDP
    data[36] = 4791 >> 8, data[37] = 4791 & 0xFF;
    std::memset(data + 47, 0xFF, 3);  // the multicast QPN
    bench[0].send(sent, kNic2, Time{});
    CHECK(bench[0].send_to_ports() == 1);
    CHECK(bench.port.sent == std::vector{sent});
    const auto got = bench.collect(0);
    REQUIRE(got.size() == 1);
    CHECK(got[0].mbuf == sent);
    CHECK(got[0].to == kNic2);
    rte_pktmbuf_free(got[0].mbuf);
  }
  check_all_home();
}

TEST_CASE("frames from a port are input of its NIC; another shard's frames reach the port through shard 0") {
  {
    Bench bench(2);
    bench.port.arriving = {frame_to(kBroadcast)};
    CHECK(bench[1].receive_from_ports(Time{}) == 0);
    CHECK(bench[0].receive_from_ports(Time{}) == 1);
    for (std::uint32_t shard = 0; shard < 2; ++shard) {
      const auto got = bench.collect(shard);
      REQUIRE(got.size() == 1);
      CHECK(got[0].from == kWire);
      CHECK(got[0].to == kNic2);
      rte_pktmbuf_free(got[0].mbuf);
    }
    bench[1].send(frame_to(mac(9)), kNic2, Time{});
    CHECK(bench.collect(0).empty());
    CHECK(bench[0].send_to_ports() == 1);
  }
  check_all_home();
}

namespace {

// Two NICs on one port, each of which shares with the kernel.
struct SharedPort {
  SharedPort() : topology(1), tap(off), handover(0, (attach(), topology), tap) {}
  void attach() {
    topology.add_device_nic(kNic0, mac(1), port, &kernels[0]);
    topology.add_device_nic(kNic1, mac(2), port, &kernels[1]);
  }
  // To whom frames went, which are freed.
  std::vector<NicId> receivers() {
    std::vector<NicId> all;
    Delivery delivery;
    while (handover.collect(&delivery, 1) != 0) {
      all.push_back(delivery.to);
      rte_pktmbuf_free(delivery.mbuf);
    }
    return all;
  }
  std::vector<NicId> receive(rte_mbuf* frame) {
    port.arriving = {frame};
    handover.receive_from_ports(Time{});
    return receivers();
  }

  CaptureSwitch off;
  RememberingPort port, kernels[2];
  Topology topology;
  CaptureTap tap;
  Handover handover;
};

rte_mbuf* roce_frame_to(const proto::Mac& destination) {
  rte_mbuf* const frame = frame_to(destination);
  auto* const data = rte_pktmbuf_mtod(frame, std::uint8_t*);
  data[12] = 8, data[13] = 0;      // IPv4
  data[14] = 0x45, data[23] = 17;  // UDP
  data[36] = 4791 >> 8, data[37] = 4791 & 0xFF;
  return frame;
}

}  // namespace

TEST_CASE("NICs on one port get the frames of their MAC, and all of them those for a group") {
  {
    SharedPort shared;
    CHECK(shared.receive(frame_to(mac(1))) == std::vector{kNic0});
    CHECK(shared.receive(frame_to(mac(2))) == std::vector{kNic1});
    CHECK(shared.receive(frame_to(kBroadcast)) == std::vector{kNic0, kNic1});
    CHECK(shared.receive(frame_to(mac(9))) == std::vector{kNic0});  // to be counted once
    shared.handover.send(frame_to(mac(2)), kNic0, Time{});
    CHECK(shared.receivers() == std::vector{kNic1});
    CHECK(shared.handover.send_to_ports() == 0);  // no wire would bring it back
    shared.handover.send(frame_to(kBroadcast), kNic0, Time{});
    CHECK(shared.receivers() == std::vector{kNic1});
    CHECK(shared.handover.send_to_ports() == 1);
  }
  check_all_home();
}

TEST_CASE("the kernel's share of a NIC is all but RoCE, both ways") {
  {
    SharedPort shared;
    CHECK(shared.receive(roce_frame_to(mac(1))) == std::vector{kNic0});
    CHECK(shared.receive(frame_to(mac(9))) == std::vector{kNic0});
    CHECK(shared.kernels[0].sent.empty());
    (void)shared.receive(frame_to(mac(1)));
    CHECK(shared.kernels[0].sent.size() == 1);
    CHECK(shared.kernels[1].sent.empty());
    (void)shared.receive(frame_to(kBroadcast));
    CHECK(shared.kernels[0].sent.size() == 2);
    CHECK(shared.kernels[1].sent.size() == 1);
    shared.kernels[0].room = 0;  // it takes no more: what does not fit is lost to it only
    CHECK(shared.receive(frame_to(mac(1))) == std::vector{kNic0});

    // What it sends leaves by the port, and is seen by the port's other NIC and its share.
    shared.kernels[0].arriving = {frame_to(mac(9)), frame_to(kBroadcast), frame_to(mac(2))};
    CHECK(shared.handover.receive_from_ports(Time{}) == 3);
    CHECK(shared.receivers() == std::vector{kNic1, kNic1});
    CHECK(shared.kernels[1].sent.size() == 3);
    CHECK(shared.handover.send_to_ports() == 2);

    // It waits while the port is behind, so that its senders wait and not lose.
    shared.port.room = 0;
    for (std::size_t i = 0; i < Handover::kBlockedBacklog; ++i)
      shared.handover.send(frame_to(mac(9)), kNic0, Time{});
    shared.kernels[0].arriving = {frame_to(mac(9))};
    CHECK(shared.handover.receive_from_ports(Time{}) == 0);
    CHECK(shared.handover.lost() == 0);
    CHECK(shared.kernels[0].arriving.size() == 1);
    rte_pktmbuf_free(shared.kernels[0].arriving.front());
  }
  check_all_home();
}

TEST_CASE("the sink lends buffers, sends the first ones and keeps the rest") {
  {
    Bench bench(1);
    MbufSink sink(pool(), bench[0]);
    const auto lent = sink.reserve(8);
    REQUIRE(lent.size() == 8);
    for (std::size_t i = 0; i < 3; ++i) {
      std::memset(lent[i].data, 0, 60);
      std::memcpy(lent[i].data, mac(2).bytes.data(), 6);
      lent[i].data[20] = static_cast<std::byte>(i);
      lent[i].length_bytes = 60;
      lent[i].nic = kNic0;
    }
    sink.commit(3);
    const auto got = bench.collect(0);
    REQUIRE(got.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(bytes_of(got[i].mbuf).size() == 60);
      CHECK(bytes_of(got[i].mbuf)[20] == static_cast<std::byte>(i));
      rte_pktmbuf_free(got[i].mbuf);
    }
    const auto again = sink.reserve(8);  // five of before and three new ones, all different
    REQUIRE(again.size() == 8);
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t j = 0; j < i; ++j)
        CHECK(again[i].data != again[j].data);
    }
    sink.commit(0);
  }
  check_all_home();
}

TEST_CASE("without buffers the sink lends what there is, and recovers") {
  {
    Bench bench(1);
    std::vector<rte_mbuf*> taken;
    while (rte_mbuf* mbuf = rte_pktmbuf_alloc(pool()))
      taken.push_back(mbuf);
    MbufSink sink(pool(), bench[0]);
    CHECK(sink.reserve(8).empty());
    for (auto* mbuf : taken)
      rte_pktmbuf_free(mbuf);
    CHECK(sink.reserve(8).size() == 8);
  }
  check_all_home();
}

int main(int argc, char** argv) {
  char name[] = "handover_test", no_huge[] = "--no-huge", no_shconf[] = "--no-shconf", no_pci[] = "--no-pci",
       quiet[] = "--log-level=error", no_telemetry[] = "--no-telemetry", size_option[] = "-m", size[] = "32";
  char* arguments[] = {name, no_huge, no_shconf, no_pci, quiet, no_telemetry, size_option, size};
  if (rte_eal_init(static_cast<int>(std::size(arguments)), arguments) < 0) {
    std::fputs("DPDK's EAL does not start\n", stderr);
    return 1;
  }
  const int status = run_tests(argc, argv);
  (void)rte_eal_cleanup();
  return status;
}
