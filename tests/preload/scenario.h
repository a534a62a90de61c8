// Commands that only the fake daemon of these tests knows, beside those of the uverbs ABI.
#pragma once

#include <cstdint>

namespace roci::tests {

// Legacy commands {response, what} -> {what}.
inline constexpr std::uint32_t kEcho = 200;       // what
inline constexpr std::uint32_t kReadKicks = 201;  // sum of the kicks since the last time
inline constexpr std::uint32_t kHold = 202;       // what, but only after kFree
inline constexpr std::uint32_t kFree =
    203;  // answers what was held, the latest first, once there are `what` of it
inline constexpr std::uint32_t kReadChannel = 204;   // channel inode of the last CREATE_CQ
inline constexpr std::uint32_t kFail = 205;          // fails with errno `what`
inline constexpr std::uint32_t kCountClients = 206;  // open connections
inline constexpr std::uint32_t kDie = 207;           // every connection ends, at once

}  // namespace roci::tests
