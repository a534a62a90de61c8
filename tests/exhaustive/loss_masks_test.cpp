// Every loss mask of the first 12 packets on the wire, for every operation at three sizes: whatever is lost,
// both ways, the data is right, each completion comes once, an atomic is executed once, and nothing hangs.
#include <bit>
#include <cstring>

#include <catch2/catch.hpp>

#include "tests/sim/world.h"

using namespace roci;
using namespace roci::sim;

namespace {

constexpr unsigned kMaskBits = 12;
constexpr std::uint32_t kPathMtu = 256;
constexpr std::uint32_t kSizes[] = {40, kPathMtu + 1, 4 * kPathMtu + 3};  // 1, 2 and 5 packets
constexpr std::uint8_t kRetries = 7;
constexpr std::uint32_t kBytes = 4096;
constexpr std::uint64_t kWord = 0x1122334455667788, kAddend = 5;
constexpr std::uint32_t kImmediate = 0xC0FFEE;

struct Wanted {
  const char* name;
  WrOpcode opcode;
  bool takes_receive = false;
  bool is_atomic = false;
};

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 7 + (i >> 8) + 1); }

// One connection, from the first host to the second.
struct Host {
  Client& client;
  Mr mr;
  std::unique_ptr<Cq> cq;
  std::unique_ptr<Qp> qp;

  explicit Host(Client& of) : client(of), mr(of.new_mr(kBytes)), cq(of.create_cq(8)) {
    QpOptions options;
    options.capabilities = {4, 4, 1, 1, 0};
    qp = of.create_qp(*cq, *cq, options);
  }
  void connect(const Host& peer, proto::Gid gid) {
    ConnectOptions to;
    to.dgid = gid;
    to.dest_qpn = peer.qp->qpn();
    to.sq_psn = to.rq_psn = proto::Psn{0xFFFFFE};  // wraps within the message
    to.mtu = proto::PathMtu::k256;
    to.retry_cnt = kRetries;
    to.timeout = 8;  // 1 ms
    client.connect(*qp, to);
  }
};

// Empty if all is as it must be.
std::string run(const Wanted& operation, std::uint32_t bytes, std::uint32_t mask) {
  WorldConfig config;
  config.seed = mask + 1;
  for (unsigned bit = 0; bit < kMaskBits; ++bit) {
    if ((mask >> bit & 1) != 0) config.link.exact[bit] = Fault::kDrop;
  }
  World world(config);
  Host requester(world.add_client(0)), responder(world.add_client(1));
  requester.connect(responder, World::gid(1));
  responder.connect(requester, World::gid(0));

  const bool is_read = operation.opcode == kWrRead;
  Host& source = is_read ? responder : requester;
  Host& target = is_read ? requester : responder;
  const std::uint32_t length = operation.is_atomic ? 8 : bytes;
  if (operation.is_atomic) {
    std::memcpy(responder.client.bytes(responder.mr, 0, 8).data(), &kWord, 8);
  } else {
    const std::span<std::byte> from = source.client.bytes(source.mr, 0, length);
    for (std::size_t i = 0; i < from.size(); ++i)
      from[i] = pattern(i);
  }
  if (operation.takes_receive) responder.qp->post_recv({9, {responder.mr.sge(0, kBytes)}});
  SendWr wr;
  wr.wr_id = 1;
  wr.opcode = operation.opcode;
  wr.sges = {requester.mr.sge(0, length)};
  wr.remote_address = responder.mr.iova;
  wr.rkey = responder.mr.rkey;
  wr.immediate = kImmediate;
  wr.compare_add = operation.opcode == kWrCompareSwap ? kWord : kAddend;
  wr.swap = kWord + kAddend;
  if (!requester.qp->post_send(wr)) return "not posted";

  if (!world.run_until([&] { return requester.cq->pending() > 0; }, std::chrono::seconds(2))) return "hangs";
  world.run_for(std::chrono::milliseconds(50));
  const std::optional<emulator::RingCqe> sent = requester.cq->poll();
  if (requester.cq->poll().has_value()) return "a completion too many";
  // N + 1 transmissions without progress need as many losses.
  const bool may_give_up = std::popcount(mask) > kRetries;
  if (sent->status == kWcRetryExceeded && may_give_up) return {};
  if (sent->status != kWcSuccess || sent->wr_id != 1)
    return "completes with status " + std::to_string(sent->status);
  const std::optional<emulator::RingCqe> received = responder.cq->poll();
  if (received.has_value() != operation.takes_receive) return "the receive does not complete as it must";
  if (received && (received->status != kWcSuccess || received->wr_id != 9 || received->byte_len != length))
    return "the receive completes wrong";
  if (responder.cq->poll().has_value()) return "a receive too many";
  if (operation.is_atomic) {
    std::uint64_t now = 0, before = 0;
    std::memcpy(&now, responder.client.bytes(responder.mr, 0, 8).data(), 8);
    std::memcpy(&before, requester.client.bytes(requester.mr, 0, 8).data(), 8);
    if (before != kWord) return "the original value is wrong";
    return now == kWord + kAddend ? std::string{} : "executed more than once, or not";
  }
  const std::span<const std::byte> to = target.client.bytes(target.mr, 0, kBytes);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] != (i < length ? pattern(i) : std::byte{0})) return "byte " + std::to_string(i) + " is wrong";
  }
  return world.violations().empty() ? std::string{} : world.violations().front();
}

void try_all_masks(const Wanted& operation) {
  unsigned wrong = 0;
  for (const std::uint32_t bytes : kSizes) {
    if (operation.is_atomic && bytes != kSizes[0]) continue;
    for (std::uint32_t mask = 0; mask < 1U << kMaskBits; ++mask) {
      const std::string why = run(operation, bytes, mask);
      if (why.empty() || ++wrong > 10) continue;
      UNSCOPED_INFO(operation.name << " of " << bytes << " bytes, packets lost by mask 0x" << std::hex << mask
                                   << ": " << why);
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every loss mask: SEND") { try_all_masks({"SEND", kWrSend, true}); }
TEST_CASE("every loss mask: SEND with immediate") {
  try_all_masks({"SEND with immediate", kWrSendImm, true});
}
TEST_CASE("every loss mask: WRITE") { try_all_masks({"WRITE", kWrWrite}); }
TEST_CASE("every loss mask: WRITE with immediate") {
  try_all_masks({"WRITE with immediate", kWrWriteImm, true});
}
TEST_CASE("every loss mask: READ") { try_all_masks({"READ", kWrRead}); }
TEST_CASE("every loss mask: CMP_SWAP") { try_all_masks({"CMP_SWAP", kWrCompareSwap, false, true}); }
TEST_CASE("every loss mask: FETCH_ADD") { try_all_masks({"FETCH_ADD", kWrFetchAdd, false, true}); }
