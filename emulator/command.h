// The control plane: what a client may ask of the engine, what it answers, and the events it raises.
//
// Commands are values. They are hostile: the engine checks every handle against the context that sends it.
// A reply may come later and in any order (RTR resolves a neighbour), so it carries the command's id. Errors
// are the errno a driver would give; success is std::errc{}. A handle is an index within its context unless
// said otherwise, and is what the uverbs ABI calls a handle. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include "emulator/frame.h"
#include "emulator/memory.h"
#include "emulator/shared_layout.h"
#include "emulator/time.h"
#include "proto/types.h"

namespace roci::emulator {

enum class CommandId : std::uint64_t {};

// One open of one NIC by one client. Unique for the life of the engine, never reused.
struct ContextId {
  std::uint32_t value = 0;
  constexpr bool operator==(const ContextId&) const = default;
};
struct PdHandle {
  std::uint32_t value = 0;
};
struct MrHandle {
  std::uint32_t value = 0;
};
struct CqHandle {
  std::uint32_t value = 0;
};  // slot in ControlArea::cq_arm
struct QpHandle {
  std::uint32_t value = 0;
};  // slot in ControlArea::qp_state
struct SrqHandle {
  std::uint32_t value = 0;
};
struct MwHandle {
  std::uint32_t value = 0;
};
struct AhHandle {
  std::uint32_t value = 0;
};

// Access rights, the values of the verbs ABI (IBV_ACCESS_*).
enum AccessFlags : std::uint32_t {
  kAccessLocalWrite = 1,
  kAccessRemoteWrite = 2,
  kAccessRemoteRead = 4,
  kAccessRemoteAtomic = 8,
  kAccessMwBind = 16,
  kAccessZeroBased = 32,
  kAccessOnDemand = 64,
  kAccessHugeTlb = 128,
  kAccessFlushGlobal = 256,
  kAccessFlushPersistent = 512,
};
// Bits that may be ignored by a device that has no use for them.
inline constexpr std::uint32_t kAccessOptionalMask = 0x3FF00000;
// Those that a device must understand, and this one does.
inline constexpr std::uint32_t kAccessKnown = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                              kAccessRemoteAtomic | kAccessMwBind | kAccessZeroBased |
                                              kAccessHugeTlb | kAccessFlushGlobal | kAccessFlushPersistent;

// What a region may be granted; the errno of RegMr otherwise.
[[nodiscard]] constexpr std::errc check_region_access(std::uint32_t access) {
  // Only windows count from zero. An application's memory is not ours to make durable [IBTA oA19-1].
  constexpr std::uint32_t kNotHere = kAccessZeroBased | kAccessOnDemand | kAccessFlushPersistent;
  if ((access & ~(kAccessKnown | kNotHere | kAccessOptionalMask)) != 0) return std::errc::invalid_argument;
  if ((access & kNotHere) != 0) return std::errc::operation_not_supported;
  // What peers may write, the owner must be able to write.
  const bool writes = (access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0;
  return writes && (access & kAccessLocalWrite) == 0 ? std::errc::invalid_argument : std::errc{};
}

// The verbs ABI's numbers. kGsi is QP1, one for each NIC, on shard 0; no client's, but the daemon's own.
enum class QpType : std::uint8_t { kGsi = 1, kRc = 2, kUc = 3, kUd = 4 };

// Memory windows: type 1 belongs to a PD [IBTA C10-76.2.1]; type 2 to the QP that bound it, which makes it a
// 2B [IBTA o10-37.2.43].
enum class MwType : std::uint8_t { kType1 = 1, kType2 = 2 };

// How a connected QP reaches its peer, or a datagram its destination.
struct AddressVector {
  proto::Gid dgid;
  std::uint32_t flow_label = 0;
  std::uint8_t sgid_index = 0;
  std::uint8_t hop_limit = 64;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  bool is_global = false;
  std::uint8_t port = 1;
};

struct QpCapabilities {
  std::uint32_t max_send_wr = 0;
  std::uint32_t max_recv_wr = 0;
  std::uint32_t max_send_sge = 0;
  std::uint32_t max_recv_sge = 0;
  std::uint32_t max_inline_bytes = 0;
};

// Which members of QpAttributes a modify carries; bit values of the verbs ABI (IBV_QP_*).
enum QpAttributeBit : std::uint32_t {
  kQpState = 1u << 0,
  kQpCurState = 1u << 1,
  kQpEnSqdAsyncNotify = 1u << 2,
  kQpAccessFlags = 1u << 3,
  kQpPkeyIndex = 1u << 4,
  kQpPort = 1u << 5,
  kQpQkey = 1u << 6,
  kQpAv = 1u << 7,
  kQpPathMtu = 1u << 8,
  kQpTimeout = 1u << 9,
  kQpRetryCnt = 1u << 10,
  kQpRnrRetry = 1u << 11,
  kQpRqPsn = 1u << 12,
  kQpMaxQpRdAtomic = 1u << 13,
  kQpAltPath = 1u << 14,
  kQpMinRnrTimer = 1u << 15,
  kQpSqPsn = 1u << 16,
  kQpMaxDestRdAtomic = 1u << 17,
  kQpPathMigState = 1u << 18,
  kQpCap = 1u << 19,
  kQpDestQpn = 1u << 20,
  kQpRateLimit = 1u << 25,
};

struct QpAttributes {
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  std::uint32_t path_mtu_code = 0;  // 1..5 = 256..4096, as the verbs ABI; checked by the engine
  proto::Qkey qkey;
  proto::Psn rq_psn, sq_psn;
  proto::Qpn dest_qpn;
  std::uint32_t access = 0;  // AccessFlags the peer is granted
  AddressVector av;
  std::uint16_t pkey_index = 0;
  std::uint8_t port = 1;
  std::uint8_t max_rd_atomic = 0;       // as requester
  std::uint8_t max_dest_rd_atomic = 0;  // as responder
  std::uint8_t min_rnr_timer = 0;       // RNR NAK timer code
  std::uint8_t timeout = 0;             // ACK timeout code, 0 = for ever
  std::uint8_t retry_cnt = 0;
  std::uint8_t rnr_retry = 0;  // 7 = for ever
  bool en_sqd_async_notify = false;
  bool sq_draining = false;     // query only
  QpCapabilities capabilities;  // query only
};

struct NicAddress {
  proto::Gid gid;                   // IPv4 as ::ffff:a.b.c.d; zero: the place of one that was removed
  std::uint8_t prefix_length = 24;  // in bits of the address's own family: on-link prefix

  bool operator==(const NicAddress&) const = default;
};

// ---- commands --------------------------------------------------------------------------------------

struct OpenContext {
  NicId nic;
  std::span<std::byte> control_area;  // kControlAreaBytes; valid until the reply to CloseContext
  std::string client;                 // for show: "ib_write_bw[4711]"
};
// Frees everything the context has, in the right order. Its memory is not touched after the reply.
struct CloseContext {};
struct AllocPd {};
struct DeallocPd {
  PdHandle pd;
};
struct RegMr {
  PdHandle pd;
  AddressSpaceId space;
  std::uint64_t address = 0;  // where it lies in that space
  std::uint64_t length_bytes = 0;
  std::uint64_t iova = 0;  // how peers and SGEs name it
  std::uint32_t access = 0;
};
// After the reply the region is never touched again.
struct DeregMr {
  MrHandle mr;
};
struct CreateCq {
  std::span<std::byte> ring;      // header and slots, of a power of two slots; the engine writes the header
  std::uint32_t slots = 0;        // usable entries = slots - 1
  std::uint64_t user_handle = 0;  // comes back in events
  std::uint64_t channel = 0;      // comes back in completion events; 0 = none
};
struct DestroyCq {
  CqHandle cq;
};
// Moves what the CQ holds into a ring of another size, under traffic. The old ring is not touched after the
// reply. EINVAL: more completions wait than the new ring takes.
struct ResizeCq {
  CqHandle cq;
  std::span<std::byte> ring;
  std::uint32_t slots = 0;
};
struct CreateQp {
  PdHandle pd;
  CqHandle send_cq, recv_cq;
  std::optional<SrqHandle> srq;  // receives come from there: recv_ring is empty, max_recv_* are 0
  std::uint32_t type = 0;        // QpType if valid; others are refused with EOPNOTSUPP
  bool sq_signal_all = false;
  QpCapabilities capabilities;     // as granted: what the rings below were sized for
  std::span<std::byte> send_ring;  // the engine writes the headers
  std::span<std::byte> recv_ring;
  std::uint64_t user_handle = 0;
};
struct ModifyQp {
  QpHandle qp;
  std::uint32_t mask = 0;  // QpAttributeBit
  QpAttributes attributes;
};
struct QueryQp {
  QpHandle qp;
};
// Both rings are not touched after the reply.
struct DestroyQp {
  QpHandle qp;
};
struct CreateSrq {
  PdHandle pd;
  std::uint32_t max_wr = 0, max_sge = 0;  // as granted: what the ring below was sized for
  std::uint32_t limit = 0;                // 0: no limit event is armed
  std::span<std::byte> ring;              // the engine writes the header
  std::uint64_t user_handle = 0;
};
// Arms the limit event, moves the queue into another ring, or both.
struct ModifySrq {
  SrqHandle srq;
  std::optional<std::uint32_t> limit;
  std::uint32_t max_wr = 0;   // with a new ring, which takes what is posted and not taken;
  std::span<std::byte> ring;  // empty: as it is. The old one is not touched after the reply.
};
struct QuerySrq {
  SrqHandle srq;
};
// EBUSY while a QP uses it. The ring is not touched after the reply.
struct DestroySrq {
  SrqHandle srq;
};
// Binding and invalidation are work requests.
struct AllocMw {
  PdHandle pd;
  std::uint32_t type = 0;  // MwType if valid
};
struct DeallocMw {
  MwHandle mw;
};
// The reply may wait for the neighbour, as ModifyQp's does.
struct CreateAh {
  PdHandle pd;
  AddressVector av;
};
struct DestroyAh {
  AhHandle ah;
};
// UD QPs only; a QP is attached to a group once.
struct AttachMulticast {
  QpHandle qp;
  proto::Gid group;
};
struct DetachMulticast {
  QpHandle qp;
  proto::Gid group;
};
// Engine::on_addresses(), for an owner whose only way to the engine are commands.
struct ChangeAddresses {
  NicId nic;
  std::vector<NicAddress> addresses;
};
// For show and tests: a copy of the state of every object of every context of this shard.
struct Inspect {};

struct Command {
  ContextId context;  // of the client; ignored by OpenContext, ChangeAddresses and Inspect
  std::variant<OpenContext, CloseContext, AllocPd, DeallocPd, RegMr, DeregMr, CreateCq, ResizeCq, DestroyCq,
               CreateQp, ModifyQp, QueryQp, DestroyQp, CreateSrq, ModifySrq, QuerySrq, DestroySrq, AllocMw,
               DeallocMw, CreateAh, DestroyAh, AttachMulticast, DetachMulticast, ChangeAddresses, Inspect>
      body;
};

// ---- replies ---------------------------------------------------------------------------------------

struct RegMrReply {
  MrHandle mr;
  proto::Lkey lkey;
  proto::Rkey rkey;
};
struct CreateQpReply {
  QpHandle qp;
  proto::Qpn qpn;
};
struct QueryQpReply {
  QpAttributes attributes;
};
struct QuerySrqReply {
  std::uint32_t max_wr = 0, max_sge = 0, limit = 0;
};
struct AllocMwReply {
  MwHandle mw;
  proto::Rkey rkey;  // names nothing until the window is bound
};

struct QpSnapshot {
  ContextId context;
  QpHandle handle;
  proto::Qpn qpn;
  QpType type = QpType::kRc;
  QpState state = QpState::kReset;
  QpAttributes attributes;
  proto::Psn next_psn, oldest_unacked_psn, expected_psn;
  std::uint32_t send_queue_depth = 0;  // posted, not completed
  std::uint32_t recv_queue_depth = 0;
  std::uint64_t packets_sent = 0, packets_received = 0, bytes_sent = 0, bytes_received = 0, retransmitted = 0;
  NicId nic;
};
struct MrSnapshot {
  ContextId context;
  MrHandle handle;
  PdHandle pd;
  proto::Rkey rkey;
  std::uint64_t iova = 0, length_bytes = 0;
  std::uint32_t access = 0;
};
struct CqSnapshot {
  ContextId context;
  CqHandle handle;
  std::uint32_t slots = 0, depth = 0;
  std::uint64_t completions = 0;
  bool overrun = false;
};
struct SrqSnapshot {
  ContextId context;
  SrqHandle handle;
  std::uint32_t max_wr = 0, limit = 0;
  std::uint32_t depth = 0;  // posted, not taken
  std::uint32_t users = 0;  // QPs
};
struct MwSnapshot {
  ContextId context;
  MwHandle handle;
  PdHandle pd;
  MwType type = MwType::kType1;
  proto::Rkey rkey;
  bool is_bound = false;
  std::uint64_t address = 0, length_bytes = 0;
  std::uint32_t access = 0;
};
struct AhSnapshot {
  ContextId context;
  AhHandle handle;
  AddressVector av;
};
struct ContextSnapshot {
  ContextId context;
  NicId nic;
  std::string client;
  std::uint32_t pds = 0;
};
struct NeighbourSnapshot {
  NicId nic;
  proto::Gid gid;
  proto::Mac mac;
  bool resolved = false;
};
struct Snapshot {
  std::vector<ContextSnapshot> contexts;
  std::vector<QpSnapshot> qps;
  std::vector<MrSnapshot> mrs;
  std::vector<CqSnapshot> cqs;
  std::vector<SrqSnapshot> srqs;
  std::vector<MwSnapshot> mws;
  std::vector<AhSnapshot> ahs;
  std::vector<NeighbourSnapshot> neighbours;
};

struct CommandReply {
  CommandId id{};
  std::errc error{};  // the other member is meaningful only on success
  std::variant<std::monostate, ContextId, PdHandle, RegMrReply, CqHandle, CreateQpReply, QueryQpReply,
               SrqHandle, QuerySrqReply, AllocMwReply, AhHandle, std::unique_ptr<Snapshot>>
      body;
};

// ---- events ----------------------------------------------------------------------------------------

// Numbers of the verbs ABI (IBV_EVENT_*); kCompletion is ours.
enum class EventKind : std::uint8_t {
  kCqErr = 0,
  kQpFatal = 1,
  kQpReqErr = 2,
  kQpAccessErr = 3,
  kCommEst = 4,
  kSqDrained = 5,
  kPortActive = 9,
  kPortErr = 10,
  kSrqErr = 14,
  kSrqLimitReached = 15,
  kQpLastWqeReached = 16,
  kGidChange = 18,
  kCompletion = 255,
};

struct Event {
  EventKind kind = EventKind::kCompletion;
  ContextId context;
  std::uint64_t user_handle = 0;  // of the CQ, QP or SRQ; port events: the port number
  std::uint64_t channel = 0;      // kCompletion: CreateCq::channel
  std::uint32_t object = 0;       // slot of the CQ, QP or SRQ
};

}  // namespace roci::emulator
