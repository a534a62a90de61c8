// Numbers of the verbs ABI that stand in shared work requests and completions, under neutral names.
//
// Source: the Linux uapi header ib_user_verbs.h. Only what the engine reads or writes; QP states, access
// flags, attribute bits and event numbers are in command.h and shared_layout.h. Constants, no thread rule.
#pragma once

#include <cstdint>

namespace roci::emulator {

// RingSendWqe::opcode.
enum class SendOpcode : std::uint32_t {
  kRdmaWrite = 0,
  kRdmaWriteWithImmediate = 1,
  kSend = 2,
  kSendWithImmediate = 3,
  kRdmaRead = 4,
  kCompareSwap = 5,
  kFetchAdd = 6,
  kLocalInvalidate = 7,
  kBindMw = 8,
  kSendWithInvalidate = 9,
  kFlush = 14,  // no verb of today's providers leads here
  kAtomicWrite = 15,
};

// RingSendWqe::send_flags.
enum SendFlags : std::uint32_t { kSendFence = 1, kSendSignaled = 2, kSendSolicited = 4, kSendInline = 8 };

// RingCqe::status.
enum class WcStatus : std::uint32_t {
  kSuccess = 0,
  kLocalLengthError = 1,
  kLocalQpOperationError = 2,
  kLocalProtectionError = 4,
  kFlushError = 5,
  kMwBindError = 6,
  kBadResponseError = 7,
  kLocalAccessError = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccessError = 10,
  kRemoteOperationError = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
};

// RingCqe::opcode.
enum class WcOpcode : std::uint32_t {
  kSend = 0,
  kRdmaWrite = 1,
  kRdmaRead = 2,
  kCompareSwap = 3,
  kFetchAdd = 4,
  kBindMw = 5,
  kLocalInvalidate = 6,
  kFlush = 8,
  kAtomicWrite = 9,
  kReceive = 128,
  kReceiveRdmaWithImmediate = 129,
};

// RingCqe::wc_flags.
enum WcFlags : std::uint32_t { kWcGrh = 1, kWcWithImmediate = 2, kWcWithInvalidate = 8 };

}  // namespace roci::emulator
