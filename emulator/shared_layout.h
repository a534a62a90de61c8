// What the engine and an application's shim share in memory: control area, rings, work requests and
// completions. Structs of fixed size and offset, checked by static_assert.
//
// The ring and element formats are those of the Linux uapi header rdma_user_rxe.h, so that the
// distribution's provider library fills them itself; the control area is ours. All of it is writable by the
// application and hostile until copied and checked. Freestanding: no library types but fixed integers, since
// the preload shim includes it too. Indices are accessed through std::atomic_ref / __atomic builtins.
#pragma once

#include <cstddef>
#include <cstdint>

namespace roci::emulator {

// ---- rings -----------------------------------------------------------------------------------------

// Header of a ring; elements follow at kRingDataOffset. Slots = index_mask + 1, a power of two; usable
// = slots - 1. Producer and consumer are masked indices: empty if equal.
struct RingHeader {
  std::uint32_t log2_element_bytes;
  std::uint32_t index_mask;
  std::uint32_t pad_1[30];
  std::uint32_t producer;
  std::uint32_t pad_2[31];
  std::uint32_t consumer;
  std::uint32_t pad_3[31];
};
inline constexpr std::size_t kRingDataOffset = 384;
static_assert(sizeof(RingHeader) == kRingDataOffset);
static_assert(offsetof(RingHeader, producer) == 128 && offsetof(RingHeader, consumer) == 256);

struct RingSge {
  std::uint64_t address;
  std::uint32_t length_bytes;
  std::uint32_t lkey;
};
static_assert(sizeof(RingSge) == 16);

// SGEs, or inline data, follow.
struct RingDma {
  std::uint32_t length_bytes;
  std::uint32_t resid;
  std::uint32_t cur_sge;
  std::uint32_t num_sge;
  std::uint32_t sge_offset;
  std::uint32_t reserved;
};
static_assert(sizeof(RingDma) == 24);

struct RingSendWqe {
  std::uint64_t wr_id;
  std::uint32_t reserved;
  std::uint32_t opcode;
  std::uint32_t send_flags;
  std::uint32_t immediate_or_invalidate;  // immediate data in network order, or an rkey in host order
  union {
    struct {
      std::uint64_t remote_address;
      std::uint32_t rkey;
      std::uint32_t reserved;
    } rdma;
    struct {
      std::uint64_t remote_address;
      std::uint64_t compare_add;
      std::uint64_t swap;
      std::uint32_t rkey;
      std::uint32_t reserved;
    } atomic;
    struct {
      std::uint32_t remote_qpn;
      std::uint32_t remote_qkey;
      std::uint16_t pkey_index;
      std::uint16_t reserved;
      std::uint32_t ah_number;  // AhHandle + 1; the address vector behind it is not looked at
    } ud;
    struct {
      std::uint64_t address;
      std::uint64_t length_bytes;
      std::uint32_t mr_lkey;
      std::uint32_t mw_rkey;  // as it is now
      std::uint32_t rkey;     // as it shall be
      std::uint32_t access;
    } mw;
    struct {
      std::uint64_t remote_address;
      std::uint32_t length_bytes;
      std::uint32_t rkey;
      std::uint8_t placement_types;
      std::uint8_t selectivity_level;
    } flush;
    std::uint8_t bytes[120];
  } wr;
  std::uint32_t status;
  std::uint32_t state;
  std::uint64_t iova;
  std::uint32_t mask;
  std::uint32_t first_psn;
  std::uint32_t last_psn;
  std::uint32_t ack_length;
  std::uint32_t ssn;
  std::uint32_t has_rd_atomic;
  RingDma dma;
};
static_assert(sizeof(RingSendWqe) == 208);
static_assert(offsetof(RingSendWqe, opcode) == 12 && offsetof(RingSendWqe, send_flags) == 16 &&
              offsetof(RingSendWqe, wr) == 24 && offsetof(RingSendWqe, status) == 144 &&
              offsetof(RingSendWqe, iova) == 152 && offsetof(RingSendWqe, ssn) == 176 &&
              offsetof(RingSendWqe, dma) == 184);

struct RingRecvWqe {
  std::uint64_t wr_id;
  std::uint32_t reserved;
  std::uint32_t padding;
  RingDma dma;
};
static_assert(sizeof(RingRecvWqe) == 40 && offsetof(RingRecvWqe, dma) == 16);

// A completion, 48 bytes in a slot of 64 [uapi ib_user_verbs.h, ib_uverbs_wc].
struct RingCqe {
  std::uint64_t wr_id;
  std::uint32_t status;
  std::uint32_t opcode;
  std::uint32_t vendor_err;
  std::uint32_t byte_len;
  std::uint32_t immediate_or_invalidate;
  std::uint32_t qp_num;
  std::uint32_t src_qp;
  std::uint32_t wc_flags;
  std::uint16_t pkey_index;
  std::uint16_t slid;
  std::uint8_t sl;
  std::uint8_t dlid_path_bits;
  std::uint8_t port_num;
  std::uint8_t reserved;
};
static_assert(sizeof(RingCqe) == 48);
inline constexpr std::uint32_t kLog2CqeBytes = 6;

// ---- control area ----------------------------------------------------------------------------------

inline constexpr std::uint32_t kMaxQpsPerContext = 16384;
inline constexpr std::uint32_t kMaxCqsPerContext = 16384;
inline constexpr std::uint32_t kMaxDoorbells = kMaxQpsPerContext + kMaxCqsPerContext;
inline constexpr std::uint32_t kDoorbellsPerWord = 64;                         // a bit each
inline constexpr std::uint32_t kDoorbellsPerSummary = 64 * kDoorbellsPerWord;  // a bit for each word

// At offset 0 of the memory of one context (one open of a NIC by one client). QPs and CQs are numbered by
// slot within the context; the slot is also the uverbs handle.
//
// A doorbell is rung by the application's side with set_doorbell(), and a kick if asleep was 1 and this side
// changed it to 0. The engine exchanges summary words, then doorbell words, to zero and visits the bits that
// were set. QPs come first: theirs says that there is something to send; a CQ's, in slot cq_doorbell(), that
// it was armed over completions that are old.
struct ControlArea {
  std::uint32_t magic;
  std::uint32_t version;
  alignas(64) std::uint32_t asleep;  // the engine stores 1 before it sleeps, re-reads the doorbells, sleeps
  std::uint32_t dead;                // 1: the daemon is gone; set by the shim, which then fails everything
  alignas(64) std::uint64_t doorbell_summary[kMaxDoorbells / kDoorbellsPerSummary];
  alignas(64) std::uint64_t doorbells[kMaxDoorbells / kDoorbellsPerWord];
  // QP state by slot, as QpState; written by the engine, read by the shim to refuse posts below RTS.
  alignas(64) std::uint8_t qp_state[kMaxQpsPerContext];
  // Notification asked for, by CQ slot: CqArm, by arm_cq(), and kCqHasNews, by the engine, which exchanges
  // the word to 0 when it raises the event.
  alignas(64) std::uint32_t cq_arm[kMaxCqsPerContext];
};
inline constexpr std::uint32_t kControlMagic = 0x49434f52;  // "ROCI"
inline constexpr std::uint32_t kControlVersion = 2;
inline constexpr std::size_t kControlAreaBytes = (sizeof(ControlArea) + 4095) / 4096 * 4096;

enum class CqArm : std::uint32_t { kNone = 0, kSolicited = 1, kNext = 2 };
inline constexpr std::uint32_t kCqArmMask = 3;
inline constexpr std::uint32_t kCqHasNews = 4;  // something came that no event has announced
constexpr std::uint32_t cq_doorbell(std::uint32_t cq) { return kMaxQpsPerContext + cq; }

// The application's side of arming. Never weakens what is armed already: "solicited" after "next" stays
// "next". True: the CQ's doorbell must be rung.
inline bool arm_cq(std::uint32_t& word, CqArm how) {
  const auto wanted = static_cast<std::uint32_t>(how);
  std::uint32_t seen = __atomic_load_n(&word, __ATOMIC_SEQ_CST);
  do {
    if ((seen & kCqArmMask) >= wanted) return false;
  } while (!__atomic_compare_exchange_n(&word, &seen, (seen & ~kCqArmMask) | wanted, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
  return (seen & kCqHasNews) != 0;
}

// Sequentially consistent, so that either the engine sees the bit before it sleeps or who rings sees that it
// sleeps. The summary is seldom news: a look at it is cheaper than a write that another core must notice.
inline void set_doorbell(ControlArea& control, std::uint32_t slot) {
  const std::uint32_t word = slot / kDoorbellsPerWord;
  __atomic_fetch_or(&control.doorbells[word], std::uint64_t{1} << slot % kDoorbellsPerWord, __ATOMIC_SEQ_CST);
  std::uint64_t& summary = control.doorbell_summary[slot / kDoorbellsPerSummary];
  const std::uint64_t bit = std::uint64_t{1} << word % kDoorbellsPerWord;
  if ((__atomic_load_n(&summary, __ATOMIC_SEQ_CST) & bit) == 0)
    __atomic_fetch_or(&summary, bit, __ATOMIC_SEQ_CST);
}

// QP states, numbered as the verbs ABI does; kDestroyed is ours: no QP in this slot.
enum class QpState : std::uint8_t {
  kReset = 0,
  kInit = 1,
  kRtr = 2,
  kRts = 3,
  kSqd = 4,
  kSqe = 5,
  kErr = 6,
  kDestroyed = 255
};

}  // namespace roci::emulator
