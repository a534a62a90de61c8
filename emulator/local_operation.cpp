#include "emulator/local_operation.h"

#include <cstring>

#include "emulator/memory_window.h"
#include "emulator/qp_error.h"
#include "emulator/work_requests.h"

namespace roci::emulator {
namespace {

WcStatus run(Shard& shard, Qp& qp, std::uint32_t index) {
  const SendWqe& wqe = qp.sq[index];
  if (wqe.local_error != WcStatus::kSuccess) return wqe.local_error;
  if (wqe.completes_as == WcOpcode::kBindMw) {
    WindowBinding binding;
    std::memcpy(&binding, qp.sq.tail(index), sizeof binding);
    return bind_window(shard.keys, qp, binding) ? WcStatus::kSuccess : WcStatus::kMwBindError;
  }
  // The standard's own status for this has no twin among the verbs' [IBTA r1.4 Table 101].
  MemoryWindow* const window = find_invalidable(shard.keys, qp, wqe.rkey);
  if (window == nullptr) return WcStatus::kLocalQpOperationError;
  unbind_window(*window);
  return WcStatus::kSuccess;
}

}  // namespace

bool run_local_operations(Shard& shard, Qp& qp) {
  Requester& r = qp.requester;
  for (std::uint32_t budget = kMaxLocalOperations; budget > 0; --budget) {
    if (!qp.can_send() || qp.state == QpState::kSqd) return false;
    if (r.send_index != r.sq_consumer) return false;  // not everything is complete
    if (r.send_index == r.sq_fetched && !fetch_send(shard, qp)) return false;
    if (!qp.sq[r.send_index].is_local()) return false;
    if (const WcStatus status = run(shard, qp, r.send_index); status != WcStatus::kSuccess) {
      fail_send(shard, qp, status);
      return false;
    }
    complete_send(shard, qp, r.send_index, WcStatus::kSuccess);
    r.sq_consumer = r.send_index = qp.sq.ring.after(r.send_index);
    qp.sq.ring.store_consumer(r.sq_consumer);
  }
  return true;
}

}  // namespace roci::emulator
