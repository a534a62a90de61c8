#include "emulator/qp_transitions.h"

#include <catch2/catch.hpp>

namespace roci::emulator {
namespace {

bool rc(QpState from, QpState to, std::uint32_t mask) {
  return is_transition_allowed(QpType::kRc, from, to, mask | kQpState);
}

constexpr std::uint32_t kToInit = kQpPkeyIndex | kQpPort | kQpAccessFlags;
constexpr std::uint32_t kToRtr =
    kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer;
constexpr std::uint32_t kToRts = kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpSqPsn | kQpMaxQpRdAtomic;
constexpr QpState kStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                               QpState::kSqd,   QpState::kSqe,  QpState::kErr};

TEST_CASE("each attribute that a transition needs is needed") {
  const struct {
    QpState from, to;
    std::uint32_t mask;
  } steps[] = {{QpState::kReset, QpState::kInit, kToInit},
               {QpState::kInit, QpState::kRtr, kToRtr},
               {QpState::kRtr, QpState::kRts, kToRts}};
  for (const auto& step : steps) {
    CHECK(rc(step.from, step.to, step.mask));
    for (std::uint32_t bit = 1; bit != 0; bit <<= 1) {
      if ((step.mask & bit) != 0) CHECK_FALSE(rc(step.from, step.to, step.mask & ~bit));
    }
  }
}

TEST_CASE("an attribute that is neither needed nor optional is refused") {
  CHECK_FALSE(rc(QpState::kReset, QpState::kInit, kToInit | kQpQkey));
  CHECK_FALSE(rc(QpState::kInit, QpState::kRtr, kToRtr | kQpSqPsn));
  CHECK_FALSE(rc(QpState::kRtr, QpState::kRts, kToRts | kQpPathMtu));
  CHECK_FALSE(rc(QpState::kRts, QpState::kRts, kQpTimeout));
  CHECK_FALSE(rc(QpState::kReset, QpState::kInit, kToInit | kQpRateLimit));
}

TEST_CASE("optional attributes are accepted") {
  CHECK(rc(QpState::kInit, QpState::kInit, kQpAccessFlags));
  CHECK(rc(QpState::kInit, QpState::kRtr, kToRtr | kQpAccessFlags));
  CHECK(rc(QpState::kRtr, QpState::kRts, kToRts | kQpMinRnrTimer | kQpCurState));  // [IBTA Table 96]
  CHECK(rc(QpState::kRts, QpState::kRts, kQpMinRnrTimer | kQpAccessFlags));
  CHECK(rc(QpState::kRts, QpState::kSqd, kQpEnSqdAsyncNotify));
  CHECK(rc(QpState::kSqd, QpState::kRts, 0));
  CHECK(rc(QpState::kSqd, QpState::kSqd, kQpAv | kQpTimeout));
}

TEST_CASE("RESET and ERR are reached from every state, with no attribute") {
  for (const QpState from : kStates) {
    CHECK(rc(from, QpState::kReset, 0));
    CHECK(rc(from, QpState::kErr, 0));
    CHECK_FALSE(rc(from, QpState::kErr, kQpTimeout));
  }
}

TEST_CASE("no other pair of states is a transition") {
  std::size_t allowed = 0;
  const std::uint32_t masks[] = {0, kToInit, kToRtr, kToRts};
  for (const QpState from : kStates) {
    for (const QpState to : kStates) {
      if (to == QpState::kReset || to == QpState::kErr) continue;
      bool is_any = false;
      for (const std::uint32_t mask : masks)
        is_any = is_any || rc(from, to, mask);
      allowed += is_any ? 1U : 0U;
    }
  }
  CHECK(allowed == 8);  // the rows of the table
  CHECK_FALSE(rc(QpState::kErr, QpState::kRts, kToRts));
  CHECK_FALSE(rc(QpState::kReset, QpState::kDestroyed, 0));
  CHECK_FALSE(rc(QpState::kDestroyed, QpState::kErr, 0));
  CHECK_FALSE(is_transition_allowed(QpType::kUd, QpState::kReset, QpState::kInit, kToInit));
}

}  // namespace
}  // namespace roci::emulator
