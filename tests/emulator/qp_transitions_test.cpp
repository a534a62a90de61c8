// The whole table of QP transitions, written down a second time by type, as the manual page of modify_qp has
// it.
#include "emulator/qp_transitions.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

namespace roci::emulator {
namespace {

constexpr QpState kStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                               QpState::kSqd,   QpState::kSqe,  QpState::kErr};
constexpr QpType kTypes[] = {QpType::kRc, QpType::kUc, QpType::kUd, QpType::kGsi};

struct Row {
  QpState from, to;
  std::vector<QpAttributeBit> required, optional;
};

std::vector<Row> rows_of(QpType type) {
  using enum QpState;
  switch (type) {
    case QpType::kRc:
      return {
          {kReset, kInit, {kQpPkeyIndex, kQpPort, kQpAccessFlags}, {}},
          {kInit, kInit, {}, {kQpPkeyIndex, kQpPort, kQpAccessFlags}},
          {kInit,
           kRtr,
           {kQpAv, kQpPathMtu, kQpDestQpn, kQpRqPsn, kQpMaxDestRdAtomic, kQpMinRnrTimer},
           {kQpPkeyIndex, kQpAccessFlags, kQpAltPath}},
          {kRtr,
           kRts,
           {kQpSqPsn, kQpTimeout, kQpRetryCnt, kQpRnrRetry, kQpMaxQpRdAtomic},
           {kQpCurState, kQpAccessFlags, kQpMinRnrTimer, kQpAltPath, kQpPathMigState}},
          {kRts, kRts, {}, {kQpCurState, kQpAccessFlags, kQpMinRnrTimer, kQpAltPath, kQpPathMigState}},
          {kRts, kSqd, {}, {kQpEnSqdAsyncNotify}},
          {kSqd, kRts, {}, {kQpCurState, kQpAccessFlags, kQpMinRnrTimer, kQpAltPath, kQpPathMigState}},
          {kSqd,
           kSqd,
           {},
           {kQpPkeyIndex, kQpPort, kQpAccessFlags, kQpAv, kQpMaxQpRdAtomic, kQpMinRnrTimer, kQpAltPath,
            kQpTimeout, kQpRetryCnt, kQpRnrRetry, kQpMaxDestRdAtomic, kQpPathMigState}},
      };
    case QpType::kUc:
      return {
          {kReset, kInit, {kQpPkeyIndex, kQpPort, kQpAccessFlags}, {}},
          {kInit, kInit, {}, {kQpPkeyIndex, kQpPort, kQpAccessFlags}},
          {kInit,
           kRtr,
           {kQpAv, kQpPathMtu, kQpDestQpn, kQpRqPsn},
           {kQpPkeyIndex, kQpAccessFlags, kQpAltPath}},
          {kRtr, kRts, {kQpSqPsn}, {kQpCurState, kQpAccessFlags, kQpAltPath, kQpPathMigState}},
          {kRts, kRts, {}, {kQpCurState, kQpAccessFlags, kQpAltPath, kQpPathMigState}},
          {kRts, kSqd, {}, {kQpEnSqdAsyncNotify}},
          {kSqd, kRts, {}, {kQpCurState, kQpAccessFlags, kQpAltPath, kQpPathMigState}},
          {kSqd, kSqd, {}, {kQpPkeyIndex, kQpAccessFlags, kQpAv, kQpAltPath, kQpPathMigState}},
          {kSqe, kRts, {}, {kQpCurState, kQpAccessFlags}},
      };
    case QpType::kUd:
      return {
          {kReset, kInit, {kQpPkeyIndex, kQpPort, kQpQkey}, {}},
          {kInit, kInit, {}, {kQpPkeyIndex, kQpPort, kQpQkey}},
          {kInit, kRtr, {}, {kQpPkeyIndex, kQpQkey}},
          {kRtr, kRts, {kQpSqPsn}, {kQpCurState, kQpQkey}},
          {kRts, kRts, {}, {kQpCurState, kQpQkey}},
          {kRts, kSqd, {}, {kQpEnSqdAsyncNotify}},
          {kSqd, kRts, {}, {kQpCurState, kQpQkey}},
          {kSqd, kSqd, {}, {kQpPkeyIndex, kQpQkey}},
          {kSqe, kRts, {}, {kQpCurState, kQpQkey}},
      };
    case QpType::kGsi:
      break;
  }
  std::vector<Row> rows = rows_of(QpType::kUd);  // but for the port, which is not its to choose
  for (Row& row : rows) {
    for (auto* list : {&row.required, &row.optional})
      list->erase(std::remove(list->begin(), list->end(), kQpPort), list->end());
  }
  return rows;
}

std::uint32_t mask_of(const std::vector<QpAttributeBit>& bits) {
  std::uint32_t mask = 0;
  for (const QpAttributeBit bit : bits)
    mask |= bit;
  return mask;
}

// Nothing: no such transition.
std::optional<Row> row_for(const std::vector<Row>& rows, QpState from, QpState to) {
  if (to == QpState::kReset || (to == QpState::kErr && from != QpState::kReset)) return Row{from, to, {}, {}};
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const Row& row) { return row.from == from && row.to == to; });
  return found == rows.end() ? std::nullopt : std::optional<Row>(*found);
}

TEST_CASE(
    "QP transitions: every type, every pair of states, sets that are right and sets that are nearly so") {
  std::size_t allowed = 0, refused = 0, wrong = 0;
  for (const QpType type : kTypes) {
    const std::vector<Row> rows = rows_of(type);
    for (const QpState from : kStates) {
      for (const QpState to : kStates) {
        const std::optional<Row> row = row_for(rows, from, to);
        const std::uint32_t required = row ? mask_of(row->required) : 0;
        const std::uint32_t optional = row ? mask_of(row->optional) : 0;
        const auto check = [&](std::uint32_t mask) {
          const bool is_right =
              row.has_value() && (mask & required) == required && (mask & ~(required | optional)) == 0;
          ++(is_right ? allowed : refused);
          if (is_transition_allowed(type, from, to, mask | kQpState) == is_right) return;
          ++wrong;
          UNSCOPED_INFO("type " << static_cast<int>(type) << " from " << static_cast<int>(from) << " to "
                                << static_cast<int>(to) << " mask " << mask);
        };
        for (const std::uint32_t base : {required, required | optional, optional}) {
          check(base);
          for (unsigned a = 1; a < 32; ++a) {
            for (unsigned b = a; b < 32; ++b)
              check(base ^ ((1U << a) | (1U << b)));
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(allowed > 900);
  CHECK(refused > 100'000);
}

TEST_CASE("QP transitions: a destroyed QP has none, RC no SQE, and there is no way from RESET to ERR") {
  for (const QpType type : kTypes) {
    for (const QpState state : kStates) {
      CHECK_FALSE(is_transition_allowed(type, QpState::kDestroyed, state, kQpState));
      CHECK_FALSE(is_transition_allowed(type, state, QpState::kDestroyed, kQpState));
    }
    CHECK_FALSE(is_transition_allowed(type, QpState::kReset, QpState::kErr, kQpState));
    CHECK_FALSE(is_transition_allowed(type, QpState::kErr, QpState::kRts, kQpState | kQpCurState));
    CHECK(is_transition_allowed(type, QpState::kSqe, QpState::kRts, kQpState) == (type != QpType::kRc));
  }
}

}  // namespace
}  // namespace roci::emulator
