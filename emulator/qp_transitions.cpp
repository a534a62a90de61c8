#include "emulator/qp_transitions.h"

#include <algorithm>
#include <iterator>

namespace roci::emulator {
namespace {

struct Attributes {
  std::uint32_t required = 0;
  std::uint32_t optional = 0;
};

struct Transition {
  QpState from;
  QpState to;
  Attributes rc, uc, ud, gsi;

  [[nodiscard]] constexpr const Attributes& of(QpType type) const {
    switch (type) {
      case QpType::kRc:
        return rc;
      case QpType::kUc:
        return uc;
      case QpType::kUd:
        return ud;
      case QpType::kGsi:
        break;
    }
    return gsi;
  }
};

constexpr std::uint32_t kPath = kQpAltPath | kQpPathMigState | kQpAccessFlags;
constexpr std::uint32_t kUcAgain = kQpCurState | kPath;  // on the way to RTS
constexpr std::uint32_t kRcAgain = kUcAgain | kQpMinRnrTimer;
constexpr std::uint32_t kUdAgain = kQpCurState | kQpQkey;
constexpr std::uint32_t kPortAndAccess = kQpPkeyIndex | kQpPort | kQpAccessFlags;
constexpr std::uint32_t kPortAndQkey = kQpPkeyIndex | kQpPort | kQpQkey;
constexpr std::uint32_t kKeys = kQpPkeyIndex | kQpQkey;
constexpr std::uint32_t kPeer = kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn;
constexpr std::uint32_t kPeerOptions = kQpAltPath | kQpAccessFlags | kQpPkeyIndex;
constexpr std::uint32_t kRetries = kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic;
constexpr std::uint32_t kNotify = kQpEnSqdAsyncNotify;

// To RESET from every state, and to ERR from every one but RESET, without attributes; these are not listed.
constexpr Transition kTransitions[] = {
    // from, to, then required and optional attributes of RC, UC, UD and GSI
    {QpState::kReset,
     QpState::kInit,
     {kPortAndAccess, 0},
     {kPortAndAccess, 0},
     {kPortAndQkey, 0},
     {kKeys, 0}},
    {QpState::kInit, QpState::kInit, {0, kPortAndAccess}, {0, kPortAndAccess}, {0, kPortAndQkey}, {0, kKeys}},
    {QpState::kInit,
     QpState::kRtr,
     {kPeer | kQpMaxDestRdAtomic | kQpMinRnrTimer, kPeerOptions},
     {kPeer, kPeerOptions},
     {0, kKeys},
     {0, kKeys}},
    {QpState::kRtr,
     QpState::kRts,
     {kRetries | kQpSqPsn, kRcAgain},
     {kQpSqPsn, kUcAgain},
     {kQpSqPsn, kUdAgain},
     {kQpSqPsn, kUdAgain}},
    {QpState::kRts, QpState::kRts, {0, kRcAgain}, {0, kUcAgain}, {0, kUdAgain}, {0, kUdAgain}},
    {QpState::kRts, QpState::kSqd, {0, kNotify}, {0, kNotify}, {0, kNotify}, {0, kNotify}},
    {QpState::kSqd, QpState::kRts, {0, kRcAgain}, {0, kUcAgain}, {0, kUdAgain}, {0, kUdAgain}},
    {QpState::kSqd,
     QpState::kSqd,
     {0, kPath | kRetries | kQpMinRnrTimer | kQpMaxDestRdAtomic | kQpAv | kQpPort | kQpPkeyIndex},
     {0, kPath | kQpAv | kQpPkeyIndex},
     {0, kKeys},
     {0, kKeys}},
    {QpState::kSqe,
     QpState::kRts,
     {},
     {0, kQpCurState | kQpAccessFlags},
     {0, kUdAgain},
     {0, kUdAgain}},  // RC has no SQE
};

}  // namespace

bool is_transition_allowed(QpType type, QpState from, QpState to, std::uint32_t mask) {
  mask &= ~static_cast<std::uint32_t>(kQpState);
  if (from == QpState::kDestroyed || to == QpState::kDestroyed) return false;
  if (to == QpState::kReset) return mask == 0;
  if (to == QpState::kErr) return mask == 0 && from != QpState::kReset;
  const auto* const found = std::find_if(std::begin(kTransitions), std::end(kTransitions),
                                         [&](const Transition& t) { return t.from == from && t.to == to; });
  if (found == std::end(kTransitions)) return false;
  if (from == QpState::kSqe && type == QpType::kRc) return false;
  const auto& [required, optional] = found->of(type);
  return (mask & required) == required && (mask & ~(required | optional)) == 0;
}

}  // namespace roci::emulator
