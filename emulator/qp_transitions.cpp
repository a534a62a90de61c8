#include "emulator/qp_transitions.h"

#include <algorithm>
#include <iterator>

namespace roci::emulator {
namespace {

struct Transition {
  QpType type;
  QpState from;
  QpState to;
  std::uint32_t required;
  std::uint32_t optional;
};

constexpr std::uint32_t kRecoverable =
    kQpCurState | kQpAltPath | kQpAccessFlags | kQpMinRnrTimer | kQpPathMigState;

// kReset and kErr as targets need nothing and are reached from everywhere; they are not listed.
constexpr Transition kTransitions[] = {
    {QpType::kRc, QpState::kReset, QpState::kInit, kQpPkeyIndex | kQpPort | kQpAccessFlags, 0},
    {QpType::kRc, QpState::kInit, QpState::kInit, 0, kQpPkeyIndex | kQpPort | kQpAccessFlags},
    {QpType::kRc, QpState::kInit, QpState::kRtr,
     kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer,
     kQpAltPath | kQpAccessFlags | kQpPkeyIndex},
    {QpType::kRc, QpState::kRtr, QpState::kRts,
     kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpSqPsn | kQpMaxQpRdAtomic, kRecoverable},
    {QpType::kRc, QpState::kRts, QpState::kRts, 0, kRecoverable},
    {QpType::kRc, QpState::kRts, QpState::kSqd, 0, kQpEnSqdAsyncNotify},
    {QpType::kRc, QpState::kSqd, QpState::kRts, 0, kRecoverable},
    {QpType::kRc, QpState::kSqd, QpState::kSqd, 0,
     kRecoverable | kQpPort | kQpAv | kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic |
         kQpMaxDestRdAtomic | kQpPkeyIndex},
    {QpType::kUd, QpState::kReset, QpState::kInit, kQpPkeyIndex | kQpPort | kQpQkey, 0},
    {QpType::kUd, QpState::kInit, QpState::kInit, 0, kQpPkeyIndex | kQpPort | kQpQkey},
    {QpType::kUd, QpState::kInit, QpState::kRtr, 0, kQpPkeyIndex | kQpQkey},
    {QpType::kUd, QpState::kRtr, QpState::kRts, kQpSqPsn, kQpCurState | kQpQkey},
    {QpType::kUd, QpState::kRts, QpState::kRts, 0, kQpCurState | kQpQkey},
    {QpType::kUd, QpState::kRts, QpState::kSqd, 0, kQpEnSqdAsyncNotify},
    {QpType::kUd, QpState::kSqd, QpState::kRts, 0, kQpCurState | kQpQkey},
    {QpType::kUd, QpState::kSqd, QpState::kSqd, 0, kQpPkeyIndex | kQpQkey},
    {QpType::kUd, QpState::kSqe, QpState::kRts, 0, kQpCurState | kQpQkey},
};

}  // namespace

bool is_transition_allowed(QpType type, QpState from, QpState to, std::uint32_t mask) {
  mask &= ~static_cast<std::uint32_t>(kQpState);
  if (from == QpState::kDestroyed || to == QpState::kDestroyed) return false;
  if (to == QpState::kReset || to == QpState::kErr) return mask == 0 || mask == kQpCurState;
  const auto* const found =
      std::find_if(std::begin(kTransitions), std::end(kTransitions),
                   [&](const Transition& t) { return t.type == type && t.from == from && t.to == to; });
  if (found == std::end(kTransitions)) return false;
  return (mask & found->required) == found->required && (mask & ~(found->required | found->optional)) == 0;
}

}  // namespace roci::emulator
