#include "tests/sim/error_program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace roci::sim {

using namespace emulator;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr std::uint32_t kBytes = 20'000;  // of each region
constexpr std::uint32_t kQueueEntries = 32;

// What becomes of the responder's oldest receive.
enum class Recv { kFlushed, kLocalLength, kLocalProtection, kErrorOrFlushed };

struct Error {
  const char* name;
  std::uint32_t status;  // of the failing work request
  bool kills_peer;       // the responder's QP goes to ERR, too
  Recv recv;
};
enum ErrorKind : std::size_t {
  kWriteBadRkey,
  kReadBadRkey,
  kAtomicBadRkey,
  kWriteImmBadRkey,
  kWriteBeyondEnd,
  kReadBeyondEnd,
  kAddressWraps,
  kNoRemoteWrite,
  kNoRemoteRead,
  kNoRemoteAtomic,
  kQpGrantsNothing,
  kStaleRkey,
  kMisalignedAtomic,
  kSendBadLkey,
  kReadIntoBadLkey,
  kReadIntoReadOnly,
  kRecvBadLkey,
  kShortRecv,
  kNoRecv,
  kPeerDestroyed,
  kPeerClosed,
  kBadOpcode,
  kUnmappedSource,
  kModifyToError,
  kKindCount,
};
constexpr std::array<Error, kKindCount> kErrors = {{
    {"WRITE with a bad rkey", kWcRemoteAccess, true, Recv::kFlushed},
    {"READ with a bad rkey", kWcRemoteAccess, true, Recv::kFlushed},
    {"FETCH_ADD with a bad rkey", kWcRemoteAccess, true, Recv::kFlushed},
    {"WRITE with immediate and a bad rkey", kWcRemoteAccess, true, Recv::kErrorOrFlushed},
    {"WRITE beyond the region's end", kWcRemoteAccess, true, Recv::kFlushed},
    {"READ beyond the region's end", kWcRemoteAccess, true, Recv::kFlushed},
    {"WRITE whose range wraps", kWcRemoteAccess, true, Recv::kFlushed},
    {"WRITE without remote write", kWcRemoteAccess, true, Recv::kFlushed},
    {"READ without remote read", kWcRemoteAccess, true, Recv::kFlushed},
    {"FETCH_ADD without remote atomic", kWcRemoteAccess, true, Recv::kFlushed},
    {"WRITE to a QP that grants nothing", kWcRemoteInvalidRequest, true, Recv::kFlushed},
    {"WRITE with a deregistered rkey", kWcRemoteAccess, true, Recv::kFlushed},
    {"misaligned FETCH_ADD", kWcRemoteInvalidRequest, true, Recv::kFlushed},
    {"SEND from a bad lkey", kWcLocalProtection, false, Recv::kFlushed},
    {"READ into a bad lkey", kWcLocalProtection, false, Recv::kFlushed},
    {"READ into a region without local write", kWcLocalProtection, false, Recv::kFlushed},
    {"SEND into a bad lkey", kWcRemoteOperation, true, Recv::kLocalProtection},
    {"SEND into a short receive", kWcRemoteInvalidRequest, true, Recv::kLocalLength},
    {"SEND without a receive", kWcRnrRetryExceeded, false, Recv::kFlushed},
    {"SEND to a destroyed QP", kWcRetryExceeded, false, Recv::kFlushed},
    {"SEND to a closed context", kWcRetryExceeded, false, Recv::kFlushed},
    {"unknown opcode", kWcLocalQpOperation, false, Recv::kFlushed},
    {"SEND from unmapped memory", kWcLocalProtection, false, Recv::kFlushed},
    {"modify to ERR", kWcFlushed, false, Recv::kFlushed},
}};

struct Side {
  Client* client = nullptr;
  std::unique_ptr<Cq> cq;
  std::unique_ptr<Qp> qp, bystander;
  Mr local, target, small;  // `small`: what a bystander writes to
};

class ErrorProgram {
 public:
  explicit ErrorProgram(const ProgramOptions& options) : options_(options), random_(options.seed * 2 + 1) {}

  ProgramResult run() {
    WorldConfig config;
    config.seed = random_.next();
    config.shards = options_.shards;
    choose_faults(config, options_, random_.fork());
    is_clean_ = is_clean(config.link);
    config.transmit_burst = random_.between32(1, 64);
    world_ = std::make_unique<World>(config);
    kind_ = static_cast<ErrorKind>(random_.index(kKindCount));
    error_ = &kErrors[kind_];
    result_.setting = std::string(error_->name) + ", " + describe_faults(config);
    build();
    play();
    collect(*world_, config, result_);
    return result_;
  }

 private:
  void fail(const std::string& what) {
    if (result_.failure.empty()) result_.failure = std::string(error_->name) + ": " + what;
  }

  void connect(Qp& a, Qp& b, bool is_victim) {
    ConnectOptions to_b, to_a;
    to_b.dgid = World::gid(1);
    to_a.dgid = World::gid(0);
    to_b.dest_qpn = b.qpn();
    to_a.dest_qpn = a.qpn();
    to_b.mtu = to_a.mtu = proto::PathMtu{static_cast<std::uint16_t>(256U << random_.index(5))};
    to_b.timeout = to_a.timeout = 13;
    if (is_victim) {
      if (is_clean_) to_b.retry_cnt = static_cast<std::uint8_t>(random_.between32(0, 4));
      to_b.rnr_retry = static_cast<std::uint8_t>(random_.between32(0, 6));
      if (kind_ == kQpGrantsNothing) to_a.access = 0;
    }
    sides_[0].client->connect(a, to_b);
    sides_[1].client->connect(b, to_a);
  }

  void build() {
    for (unsigned host = 0; host < 2; ++host) {
      Side& side = sides_[host];
      side.client = &world_->add_client(host, static_cast<unsigned>(random_.index(options_.shards)));
      side.cq = side.client->create_cq(256);
      QpOptions options;
      options.capabilities = {kQueueEntries, kQueueEntries, 4, 4, 64};
      side.qp = side.client->create_qp(*side.cq, *side.cq, options);
      side.bystander = side.client->create_qp(*side.cq, *side.cq, options);
      side.local =
          side.client->new_mr(kBytes, host == 0 && kind_ == kReadIntoReadOnly ? 0 : Client::kAllRights);
      side.small = side.client->new_mr(kBytes);
    }
    std::uint32_t rights = Client::kAllRights;
    if (kind_ == kNoRemoteWrite) rights &= ~static_cast<std::uint32_t>(kAccessRemoteWrite);
    if (kind_ == kNoRemoteRead) rights &= ~static_cast<std::uint32_t>(kAccessRemoteRead);
    if (kind_ == kNoRemoteAtomic) rights &= ~static_cast<std::uint32_t>(kAccessRemoteAtomic);
    sides_[1].target = sides_[1].client->new_mr(kBytes, rights);
    connect(*sides_[0].qp, *sides_[1].qp, true);
    connect(*sides_[0].bystander, *sides_[1].bystander, false);
  }

  SendWr good(std::uint64_t id) {
    SendWr wr;
    wr.wr_id = id;
    wr.opcode = kWrWrite;
    wr.sges = {sides_[0].small.sge(0, random_.between32(0, 5000))};
    wr.remote_address = sides_[1].small.iova;
    wr.rkey = sides_[1].small.rkey;
    return wr;
  }

  SendWr bad(std::uint64_t id) {
    Side& self = sides_[0];
    Side& peer = sides_[1];
    SendWr wr;
    wr.wr_id = id;
    wr.opcode = kWrWrite;
    if (random_.chance(300'000)) wr.flags = 0;  // an error completes all the same
    const std::uint32_t length = random_.between32(1, 9000);
    wr.sges = {self.local.sge(0, length)};
    wr.remote_address = peer.target.iova;
    wr.rkey = peer.target.rkey;
    const proto::Rkey wrong{peer.target.rkey.value() ^ (1U << random_.index(32))};
    switch (kind_) {
      case kWriteBadRkey:
        wr.rkey = wrong;
        break;
      case kReadBadRkey:
        wr.opcode = kWrRead;
        wr.rkey = wrong;
        break;
      case kAtomicBadRkey:
        wr.rkey = wrong;
        [[fallthrough]];
      case kNoRemoteAtomic:
        wr.opcode = kWrFetchAdd;
        wr.sges[0].length_bytes = 8;
        break;
      case kWriteImmBadRkey:
        wr.opcode = kWrWriteImm;
        wr.rkey = wrong;
        break;
      case kWriteBeyondEnd:
        wr.remote_address += kBytes - length + 1;
        break;
      case kReadBeyondEnd:
        wr.opcode = kWrRead;
        wr.remote_address += kBytes - length + random_.between32(1, 100);
        break;
      case kAddressWraps:
        wr.remote_address = ~std::uint64_t{0} - random_.index(length);
        break;
      case kNoRemoteRead:
        wr.opcode = kWrRead;
        break;
      case kNoRemoteWrite:
      case kQpGrantsNothing:
        break;
      case kStaleRkey:
        peer.client->dereg_mr(peer.target);
        peer.client->memory().give_up(peer.client->space(), peer.target.address, kBytes);
        break;
      case kMisalignedAtomic:
        wr.opcode = kWrFetchAdd;
        wr.sges[0].length_bytes = 8;
        wr.remote_address += random_.between32(1, 7);
        break;
      case kSendBadLkey:
        wr.opcode = kWrSend;
        wr.sges[0].lkey = proto::Lkey{self.local.lkey.value() ^ (1U << random_.index(32))};
        break;
      case kReadIntoBadLkey:
        wr.opcode = kWrRead;
        wr.sges[0].lkey = proto::Lkey{self.local.lkey.value() ^ (1U << random_.index(32))};
        break;
      case kReadIntoReadOnly:
        wr.opcode = kWrRead;
        break;
      case kRecvBadLkey:
      case kShortRecv:
      case kNoRecv:
      case kPeerDestroyed:
      case kPeerClosed:
        wr.opcode = kWrSend;
        break;
      case kBadOpcode:
        wr.opcode = std::array{0xFFU, 11U, 0x80000000U, static_cast<unsigned>(kWrTso)}[random_.index(4)];
        break;
      case kUnmappedSource: {
        wr.opcode = kWrSend;
        const std::uint64_t hole = self.local.iova;
        self.client->memory().unmap(self.client->space(), hole);
        break;
      }
      case kModifyToError:
      case kKindCount:
        break;
    }
    length_ = length;
    return wr;
  }

  void poll(Side& side, std::vector<RingCqe>& out) {
    while (const std::optional<RingCqe> cqe = side.cq->poll()) {
      world_->mix(cqe->wr_id * 64 + cqe->status);
      (cqe->qp_num == side.bystander->qpn().value() ? beside_ : out).push_back(*cqe);
    }
  }

  bool wait(Side& side, std::vector<RingCqe>& out, std::size_t count) {
    const auto enough = [&] {
      poll(side, out);
      return out.size() >= count;
    };
    return world_->run_until(enough, seconds(60));
  }

  void play() {
    Side& self = sides_[0];
    Side& peer = sides_[1];
    Random content = random_.fork();
    for (Side& side : sides_) {
      for (std::byte& one : side.client->bytes(side.local, 0, kBytes))
        one = static_cast<std::byte>(content.next());
    }
    std::vector<std::byte> target(kBytes);
    for (std::byte& one : target)
      one = static_cast<std::byte>(content.next());
    std::copy(target.begin(), target.end(), peer.client->bytes(peer.target, 0, kBytes).begin());

    // What is posted at the peer before.
    const std::uint32_t recvs = kind_ == kNoRecv ? 0 : random_.between32(1, 5);
    const std::uint32_t before = kind_ == kQpGrantsNothing ? 0 : random_.between32(0, 4),
                        behind = random_.between32(0, 5);
    SendWr failing = bad(before);
    for (std::uint32_t i = 0; i < recvs; ++i) {
      RecvWr recv{100 + i, {peer.local.sge(0, kBytes)}};
      if (kind_ == kRecvBadLkey) recv.sges[0].lkey = proto::Lkey{peer.local.lkey.value() ^ 0x100};
      if (kind_ == kShortRecv) recv.sges[0].length_bytes = random_.between32(0, length_ - 1);
      if (!peer.qp->post_recv(recv)) return fail("post_recv is refused");
    }
    if (kind_ == kPeerDestroyed && peer.client->destroy(*peer.qp).error != std::errc{})
      return fail("the peer cannot destroy its QP");
    if (kind_ == kPeerClosed) {
      peer.client->close();
      peer.client->memory().give_up(peer.client->space());
    }
    const bool is_gone = kind_ == kPeerDestroyed || kind_ == kPeerClosed;

    for (std::uint32_t i = 0; i < before; ++i)
      self.qp->post_send(good(i));
    std::vector<RingCqe> sends;
    if (kind_ == kModifyToError) {
      if (self.client->to_state(*self.qp, QpState::kErr) != std::errc{}) return fail("modify is refused");
    }
    self.qp->post_send(failing);
    for (std::uint32_t i = 0; i < behind; ++i)
      self.qp->post_send(good(before + 1 + i));
    // The bystander works through all of this.
    const std::uint32_t many = kind_ == kPeerClosed ? 0 : random_.between32(5, kQueueEntries - 2);
    const Mr beside_source = self.client->new_mr(kBytes),
             beside_target =
                 peer.client == nullptr || kind_ == kPeerClosed ? Mr{} : peer.client->new_mr(kBytes);
    if (many != 0) {
      for (std::byte& one : self.client->bytes(beside_source, 0, kBytes))
        one = static_cast<std::byte>(content.next());
      for (std::uint32_t i = 0; i < many; ++i) {
        SendWr wr = good(1000 + i);
        const std::uint32_t piece = kBytes / many;
        wr.sges = {beside_source.sge(i * piece, piece)};
        wr.remote_address = beside_target.iova + i * piece;
        wr.rkey = beside_target.rkey;
        if (!self.bystander->post_send(wr)) return fail("the bystander's post is refused");
      }
    }

    const std::size_t total = before + 1 + behind;
    if (!wait(self, sends, total))
      return fail("only " + std::to_string(sends.size()) + " of " + std::to_string(total) +
                  " completions come");
    world_->run_for(milliseconds(2000));
    poll(self, sends);  // whatever is left
    if (sends.size() != total)
      return fail("there are " + std::to_string(sends.size()) + " completions instead of " +
                  std::to_string(total));
    bool has_failed = false;
    for (std::size_t i = 0; i < total; ++i) {
      const RingCqe& cqe = sends[i];
      if (cqe.wr_id != i)
        return fail("completion " + std::to_string(i) + " is of work request " + std::to_string(cqe.wr_id));
      std::uint32_t wanted = has_failed ? kWcFlushed : i == before ? error_->status : kWcSuccess;
      // The NAK may be lost, and with it the acknowledgement of those before; a QP in ERR answers nothing
      // more.
      if (!has_failed && error_->kills_peer && !is_clean_ && cqe.status == kWcRetryExceeded)
        wanted = kWcRetryExceeded;
      // A dead peer fails the first request; a modify flushes whatever was not complete then.
      if (!has_failed && is_gone) wanted = kWcRetryExceeded;
      if (kind_ == kModifyToError && cqe.status == kWcFlushed) wanted = kWcFlushed;
      if (cqe.status != wanted) {
        return fail("work request " + std::to_string(i) + " of " + std::to_string(total) +
                    " (the bad one is " + std::to_string(before) + ") has status " +
                    std::to_string(cqe.status) + " instead of " + std::to_string(wanted));
      }
      has_failed = has_failed || cqe.status != kWcSuccess;
    }
    if (self.qp->state() != QpState::kErr) return fail("the requester's QP is not in ERR");
    if (!is_gone) check_peer(recvs, target);

    if (beside_.size() != many)
      return fail("the bystander has " + std::to_string(beside_.size()) + " completions of " +
                  std::to_string(many));
    for (const RingCqe& cqe : beside_) {
      if (cqe.status != kWcSuccess)
        return fail("the bystander's work request fails with status " + std::to_string(cqe.status));
    }
    if (many != 0) {
      const std::size_t moved = kBytes / many * many;
      if (std::memcmp(self.client->bytes(beside_source, 0, moved).data(),
                      peer.client->bytes(beside_target, 0, moved).data(), moved) != 0) {
        return fail("the bystander's data is wrong");
      }
    }
    result_.operations += total + many;
  }

  void check_peer(std::uint32_t recvs, const std::vector<std::byte>& target) {
    Side& peer = sides_[1];
    const bool is_dead = peer.qp->state() == QpState::kErr;
    if (is_dead != error_->kills_peer)
      return fail("the responder's QP is in state " +
                  std::to_string(static_cast<unsigned>(peer.qp->state())));
    std::vector<RingCqe> got;
    const std::uint32_t wanted = is_dead ? recvs : 0;
    if (!wait(peer, got, wanted))
      return fail("only " + std::to_string(got.size()) + " of " + std::to_string(recvs) +
                  " receives complete");
    if (got.size() != wanted)
      return fail("there are " + std::to_string(got.size()) + " completions of receives");
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i].wr_id != 100 + i) return fail("receives complete out of order");
      const std::uint32_t status = got[i].status;
      bool right = status == kWcFlushed;
      if (i == 0) {
        switch (error_->recv) {
          case Recv::kFlushed:
            break;
          case Recv::kLocalLength:
            right = status == kWcLocalLength;
            break;
          case Recv::kLocalProtection:
            right = status == kWcLocalProtection;
            break;
          case Recv::kErrorOrFlushed:
            right = status != kWcSuccess;
            break;
        }
      }
      if (!right) return fail("receive " + std::to_string(i) + " has status " + std::to_string(status));
    }
    // Remote access errors are judged before anything is written [IBTA 9.7.4.1.5].
    const std::span<std::byte> now = peer.client->bytes(peer.target, 0, kBytes);
    if (!std::equal(target.begin(), target.end(), now.begin())) return fail("the target has changed");
  }

  ProgramOptions options_;
  Random random_;
  ProgramResult result_;
  std::unique_ptr<World> world_;
  ErrorKind kind_ = kWriteBadRkey;
  const Error* error_ = nullptr;
  bool is_clean_ = false;
  Side sides_[2];
  std::vector<RingCqe> beside_;
  std::uint32_t length_ = 0;
};

}  // namespace

ProgramResult run_error_program(const ProgramOptions& options) { return ErrorProgram(options).run(); }

}  // namespace roci::sim
