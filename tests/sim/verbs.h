// A verbs consumer for tests: what libibverbs, the rxe provider and the shim do, over the same shared rings.
//
// Fills work requests and reads completions as the provider does, rings doorbells as the shim does, and sends
// commands through a function that the owner gives. A command that must succeed aborts with a message if it
// does not; transact() is for those that may fail. Addresses are made up (plain_memory.h). Thread rule: one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulator/command.h"
#include "emulator/shared_layout.h"
#include "proto/types.h"
#include "tests/sim/plain_memory.h"

namespace roci::sim {

// Numbers of the verbs ABI.
enum WrOpcode : std::uint32_t {
  kWrWrite = 0,
  kWrWriteImm = 1,
  kWrSend = 2,
  kWrSendImm = 3,
  kWrRead = 4,
  kWrCompareSwap = 5,
  kWrFetchAdd = 6,
  kWrLocalInvalidate = 7,
  kWrBindWindow = 8,
  kWrSendInvalidate = 9,
  kWrTso = 10,
  kWrFlush = 14,
  kWrAtomicWrite = 15,
};
enum SendFlags : std::uint32_t { kFence = 1, kSignaled = 2, kSolicited = 4, kInline = 8 };
enum WcStatus : std::uint32_t {
  kWcSuccess = 0,
  kWcLocalLength = 1,
  kWcLocalQpOperation = 2,
  kWcLocalProtection = 4,
  kWcFlushed = 5,
  kWcMwBind = 6,
  kWcBadResponse = 7,
  kWcLocalAccess = 8,
  kWcRemoteInvalidRequest = 9,
  kWcRemoteAccess = 10,
  kWcRemoteOperation = 11,
  kWcRetryExceeded = 12,
  kWcRnrRetryExceeded = 13,
  kWcRemoteAborted = 16,
  kWcFatal = 19,
  kWcGeneral = 21,
};
enum WcOpcode : std::uint32_t {
  kWcSend = 0,
  kWcWrite = 1,
  kWcRead = 2,
  kWcCompareSwap = 3,
  kWcFetchAdd = 4,
  kWcBindWindow = 5,
  kWcLocalInvalidate = 6,
  kWcFlush = 8,
  kWcAtomicWrite = 9,
  kWcRecv = 128,
  kWcRecvWriteImm = 129,
};
enum WcFlags : std::uint32_t { kWcGrh = 1, kWcWithImm = 2, kWcWithInvalidate = 8 };

struct Sge {
  std::uint64_t address = 0;
  std::uint32_t length_bytes = 0;
  proto::Lkey lkey{};
};

// Of kWrBindWindow.
struct Binding {
  proto::Rkey key{}, new_key{};
  proto::Lkey mr_lkey{};
  std::uint64_t address = 0, length_bytes = 0;
  std::uint32_t access = 0;
};

struct SendWr {
  std::uint64_t wr_id = 0;
  std::uint32_t opcode = kWrSend;
  std::uint32_t flags = kSignaled;
  std::vector<Sge> sges{};
  std::uint64_t remote_address = 0;
  proto::Rkey rkey{};
  std::uint32_t immediate = 0;  // host order
  std::uint64_t compare_add = 0, swap = 0;
  emulator::AhHandle ah{};  // datagrams: where to
  proto::Qpn remote_qpn{};
  proto::Qkey remote_qkey{};
  proto::Rkey invalidate{};  // of kWrSendInvalidate and kWrLocalInvalidate
  Binding binding{};
  std::uint64_t atomic_write = 0;               // its bytes, as they lie in memory
  std::uint8_t placement = 0, selectivity = 0;  // of kWrFlush, whose length is the SGEs'
};

struct RecvWr {
  std::uint64_t wr_id = 0;
  std::vector<Sge> sges{};
};

struct Mr {
  emulator::MrHandle handle;
  std::uint64_t address = 0;
  std::uint64_t iova = 0;
  std::uint64_t length_bytes = 0;
  proto::Lkey lkey{};
  proto::Rkey rkey{};

  // A piece of it, `offset` bytes from its start.
  [[nodiscard]] Sge sge(std::uint64_t offset, std::uint32_t bytes) const {
    return {iova + offset, bytes, lkey};
  }
};

struct Mw {
  emulator::MwHandle handle;
  proto::Rkey rkey{};

  // The key with its variant, which is the consumer's, one further.
  [[nodiscard]] proto::Rkey next_key() const {
    return proto::Rkey{(rkey.value() & ~0xFFU) | ((rkey.value() + 1) & 0xFFU)};
  }
};

// Memory of a ring, aligned as a page of the context's memory would be.
class RingMemory {
 public:
  RingMemory() = default;
  explicit RingMemory(std::size_t bytes);
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  [[nodiscard]] emulator::RingHeader& header() {
    return *reinterpret_cast<emulator::RingHeader*>(data_.get());
  }
  [[nodiscard]] std::byte* slot(std::uint32_t index);

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

class Cq {
 public:
  // The oldest completion, taken out of the ring.
  [[nodiscard]] std::optional<emulator::RingCqe> poll();
  [[nodiscard]] std::uint32_t pending();
  [[nodiscard]] emulator::CqHandle handle() const { return handle_; }
  [[nodiscard]] RingMemory& ring() { return ring_; }  // for hostile tests

 private:
  friend class Client;
  emulator::CqHandle handle_;
  RingMemory ring_;
};

class Client;

class Srq {
 public:
  bool post_recv(const RecvWr& wr);  // false if it is full, or the request does not fit
  [[nodiscard]] emulator::SrqHandle handle() const { return handle_; }
  [[nodiscard]] std::uint32_t posted();               // and not taken
  [[nodiscard]] RingMemory& ring() { return ring_; }  // for hostile tests
  // Moves it; the errno of the command. `old`: gets the ring that it was in.
  std::errc resize(Client& client, std::uint32_t max_wr, RingMemory* old = nullptr);
  // Arms the limit event; 0: disarms it.
  std::errc set_limit(Client& client, std::uint32_t limit);

 private:
  friend class Client;
  emulator::SrqHandle handle_;
  std::uint32_t max_sge_ = 0;
  RingMemory ring_;
};

class Qp {
 public:
  // False if the queue is full, or the caller's work request does not fit the element (the provider's EINVAL
  // / ENOMEM). Does not ring the doorbell.
  bool queue_send(const SendWr& wr);
  // Rings it; false if the QP is below RTS, as the shim says EINVAL then.
  bool ring_doorbell();
  bool post_send(const SendWr& wr) { return queue_send(wr) && ring_doorbell(); }
  bool post_recv(const RecvWr& wr);

  [[nodiscard]] emulator::QpHandle handle() const { return handle_; }
  [[nodiscard]] proto::Qpn qpn() const { return qpn_; }
  [[nodiscard]] emulator::QpState state() const;  // as the control area says
  [[nodiscard]] std::uint32_t send_queued();      // slots between consumer and producer
  [[nodiscard]] std::uint32_t recv_queued();
  [[nodiscard]] bool send_full();
  [[nodiscard]] bool recv_full();
  // For hostile tests: the rings as the application may scribble on them.
  [[nodiscard]] RingMemory& send_ring() { return send_ring_; }
  [[nodiscard]] RingMemory& recv_ring() { return recv_ring_; }

 private:
  friend class Client;
  Client* client_ = nullptr;
  emulator::QpHandle handle_;
  proto::Qpn qpn_;
  emulator::QpCapabilities capabilities_;
  emulator::QpType type_ = emulator::QpType::kRc;
  RingMemory send_ring_, recv_ring_;
  std::uint32_t ssn_ = 1;
};

struct QpOptions {
  emulator::QpCapabilities capabilities{64, 64, 4, 4, 128};
  bool signal_all = false;
  std::optional<emulator::PdHandle> pd{};  // the client's own by default
  emulator::QpType type = emulator::QpType::kRc;
  std::optional<emulator::SrqHandle> srq{};
};

// What a connection needs to know of the other side, and how it is to behave.
struct ConnectOptions {
  proto::Gid dgid;
  proto::Qpn dest_qpn;
  proto::Psn sq_psn, rq_psn;
  proto::PathMtu mtu = proto::PathMtu::k1024;
  std::uint8_t sgid_index = 1;
  std::uint32_t access =
      emulator::kAccessRemoteWrite | emulator::kAccessRemoteRead | emulator::kAccessRemoteAtomic;
  std::uint8_t max_rd_atomic = 8, max_dest_rd_atomic = 8;
  std::uint8_t min_rnr_timer = 1, timeout = 14, retry_cnt = 7, rnr_retry = 7;
  std::uint8_t traffic_class = 0, hop_limit = 64;
  std::uint32_t flow_label = 0;
};

class Client {
 public:
  // Submits a command and waits for its reply.
  using Transact = std::function<emulator::CommandReply(emulator::Command)>;

  // Opens a context and allocates a PD.
  Client(PlainMemory& memory, Transact transact, emulator::NicId nic, std::string name);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  template <class Body>
  emulator::CommandReply transact(Body body) {
    return transact_(emulator::Command{context_, std::move(body)});
  }

  [[nodiscard]] emulator::ContextId context() const { return context_; }
  [[nodiscard]] emulator::PdHandle pd() const { return pd_; }
  [[nodiscard]] emulator::AddressSpaceId space() const { return space_; }
  [[nodiscard]] PlainMemory& memory() { return memory_; }
  [[nodiscard]] emulator::ControlArea& control() { return *control_; }

  // Fresh application memory, zero, apart from all other.
  [[nodiscard]] std::uint64_t allocate(std::size_t bytes);
  [[nodiscard]] std::span<std::byte> bytes(std::uint64_t address, std::size_t bytes) {
    return memory_.at(space_, address, bytes);
  }

  // All rights by default; the iova is the address unless given.
  Mr reg_mr(std::uint64_t address, std::uint64_t length_bytes, std::uint32_t access = kAllRights,
            std::optional<std::uint64_t> iova = std::nullopt,
            std::optional<emulator::PdHandle> pd = std::nullopt);
  // Allocates and registers.
  Mr new_mr(std::size_t bytes, std::uint32_t access = kAllRights) {
    return reg_mr(allocate(bytes), bytes, access);
  }
  // The region's bytes, `offset` from its start.
  [[nodiscard]] std::span<std::byte> bytes(const Mr& mr, std::uint64_t offset, std::size_t count) {
    return bytes(mr.address + offset, count);
  }
  void dereg_mr(const Mr& mr);
  Mw alloc_mw(emulator::MwType type, std::optional<emulator::PdHandle> pd = std::nullopt);

  std::unique_ptr<Cq> create_cq(std::uint32_t entries, std::uint64_t user_handle = 0,
                                std::uint64_t channel = 0);
  // The CQ goes on in another ring; returns the old one.
  RingMemory resize(Cq& cq, std::uint32_t entries);
  std::unique_ptr<Qp> create_qp(Cq& send_cq, Cq& recv_cq, const QpOptions& options = {});
  // Null, and why, if it is refused.
  std::unique_ptr<Qp> try_create_qp(Cq& send_cq, Cq& recv_cq, const QpOptions& options, std::errc& error);
  std::unique_ptr<Srq> create_srq(std::uint32_t max_wr, std::uint32_t max_sge = 4,
                                  std::optional<emulator::PdHandle> pd = std::nullopt);
  // The errno of one step; RESET to INIT, INIT to RTR, RTR to RTS.
  std::errc to_init(Qp& qp, std::uint32_t access);
  std::errc to_rtr(Qp& qp, const ConnectOptions& options);
  std::errc to_rts(Qp& qp, const ConnectOptions& options);
  std::errc to_state(Qp& qp, emulator::QpState state);
  // A datagram QP, one step further.
  std::errc to_datagram_state(Qp& qp, emulator::QpState state, proto::Qkey qkey, proto::Psn sq_psn = {});
  emulator::AhHandle create_ah(const emulator::AddressVector& av);
  std::errc destroy(emulator::AhHandle ah) { return transact(emulator::DestroyAh{ah}).error; }
  void connect(Qp& qp, const ConnectOptions& options);  // all three
  emulator::QpAttributes query(Qp& qp);
  emulator::CommandReply destroy(Qp& qp) { return transact(emulator::DestroyQp{qp.handle()}); }
  emulator::CommandReply destroy(Cq& cq) { return transact(emulator::DestroyCq{cq.handle()}); }
  void close();
  void arm(Cq& cq, emulator::CqArm how);

  static constexpr std::uint32_t kAllRights = emulator::kAccessLocalWrite | emulator::kAccessRemoteWrite |
                                              emulator::kAccessRemoteRead | emulator::kAccessRemoteAtomic;

 private:
  PlainMemory& memory_;
  Transact transact_;
  emulator::AddressSpaceId space_;
  RingMemory control_memory_;
  emulator::ControlArea* control_ = nullptr;
  emulator::ContextId context_;
  emulator::PdHandle pd_;
  std::uint64_t next_address_ = 0x10000;
};

// The sum of an SGE list.
[[nodiscard]] std::uint64_t length_of(const std::vector<Sge>& sges);

}  // namespace roci::sim
