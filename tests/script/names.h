// The words that scripts use for numbers of the verbs ABI: one table each.
//
// Test code only. Constants, no thread rule.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include "emulator/command.h"
#include "emulator/shared_layout.h"

namespace roci::scripts {

template <class Value, std::size_t N>
using Names = std::array<std::pair<std::string_view, Value>, N>;

inline constexpr Names<emulator::QpState, 7> kStateNames{{
    {"RESET", emulator::QpState::kReset},
    {"INIT", emulator::QpState::kInit},
    {"RTR", emulator::QpState::kRtr},
    {"RTS", emulator::QpState::kRts},
    {"SQD", emulator::QpState::kSqd},
    {"SQE", emulator::QpState::kSqe},
    {"ERR", emulator::QpState::kErr},
}};

inline constexpr Names<std::errc, 12> kErrnoNames{{
    {"OK", std::errc{}},
    {"EINVAL", std::errc::invalid_argument},
    {"EBUSY", std::errc::device_or_resource_busy},
    {"ENOMEM", std::errc::not_enough_memory},
    {"EOPNOTSUPP", std::errc::operation_not_supported},
    {"ETIMEDOUT", std::errc::timed_out},
    {"ENETUNREACH", std::errc::network_unreachable},
    {"ECANCELED", std::errc::operation_canceled},
    {"EINPROGRESS", std::errc::operation_in_progress},
    {"EBADF", std::errc::bad_file_descriptor},
    {"EPERM", std::errc::operation_not_permitted},
    {"ENODEV", std::errc::no_such_device},
}};

inline constexpr Names<std::uint32_t, 16> kStatusNames{{
    {"SUCCESS", 0},
    {"LOC_LEN_ERR", 1},
    {"LOC_QP_OP_ERR", 2},
    {"LOC_PROT_ERR", 4},
    {"WR_FLUSH_ERR", 5},
    {"MW_BIND_ERR", 6},
    {"BAD_RESP_ERR", 7},
    {"LOC_ACCESS_ERR", 8},
    {"REM_INV_REQ_ERR", 9},
    {"REM_ACCESS_ERR", 10},
    {"REM_OP_ERR", 11},
    {"RETRY_EXC_ERR", 12},
    {"RNR_RETRY_EXC_ERR", 13},
    {"REM_ABORT_ERR", 16},
    {"FATAL_ERR", 19},
    {"GENERAL_ERR", 21},
}};

// Work requests by the number in the ring.
inline constexpr Names<std::uint32_t, 13> kPostNames{{
    {"write", 0},
    {"write_imm", 1},
    {"send", 2},
    {"send_imm", 3},
    {"read", 4},
    {"cmp_swap", 5},
    {"fetch_add", 6},
    {"local_inv", 7},
    {"bind_mw", 8},
    {"send_inv", 9},
    {"tso", 10},
    {"flush", 14},
    {"atomic_write", 15},
}};

inline constexpr Names<std::uint32_t, 11> kCompletionNames{{
    {"send", 0},
    {"write", 1},
    {"read", 2},
    {"cmp_swap", 3},
    {"fetch_add", 4},
    {"bind_mw", 5},
    {"local_inv", 6},
    {"flush", 8},
    {"atomic_write", 9},
    {"recv", 128},
    {"recv_write_imm", 129},
}};

// Bits of a completion's flags.
inline constexpr std::uint32_t kHasGrh = 1, kHasImmediate = 2, kHasInvalidate = 8;

inline constexpr Names<std::uint8_t, 13> kEventNames{{
    {"CQ_ERR", 0},
    {"QP_FATAL", 1},
    {"QP_REQ_ERR", 2},
    {"QP_ACCESS_ERR", 3},
    {"COMM_EST", 4},
    {"SQ_DRAINED", 5},
    {"PORT_ACTIVE", 9},
    {"PORT_ERR", 10},
    {"SRQ_ERR", 14},
    {"SRQ_LIMIT_REACHED", 15},
    {"QP_LAST_WQE_REACHED", 16},
    {"GID_CHANGE", 18},
    {"COMPLETION", 255},
}};

inline constexpr std::uint32_t kUsualQkey = 0x11111111;  // of both sides
inline constexpr std::uint32_t kGsiQkey = 0x80010000;    // of QP1

inline constexpr Names<std::uint32_t, 4> kTypeNames{{{"gsi", 1}, {"rc", 2}, {"uc", 3}, {"ud", 4}}};

inline constexpr Names<std::uint32_t, 9> kAccessNames{{
    {"lw", emulator::kAccessLocalWrite},
    {"rw", emulator::kAccessRemoteWrite},
    {"rr", emulator::kAccessRemoteRead},
    {"ra", emulator::kAccessRemoteAtomic},
    {"bind", emulator::kAccessMwBind},
    {"zero_based", emulator::kAccessZeroBased},
    {"flush_global", emulator::kAccessFlushGlobal},
    {"flush_persistent", emulator::kAccessFlushPersistent},
    {"none", 0U},
}};

inline constexpr Names<emulator::CqArm, 2> kArmNames{{
    {"next", emulator::CqArm::kNext},
    {"solicited", emulator::CqArm::kSolicited},
}};

}  // namespace roci::scripts
