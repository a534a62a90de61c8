#include "emulator/unreliable_connection.h"

#include "emulator/qp_error.h"
#include "emulator/requester.h"
#include "emulator/work_requests.h"

namespace roci::emulator {

bool plan_unreliable(Shard& shard, Qp& qp, TransmitBatch& batch) {
  Requester& r = qp.requester;
  if (!qp.can_send()) return false;
  const bool drains = qp.state == QpState::kSqd;  // a message that was begun is finished
  if (r.send_index == r.sq_fetched && (drains || !fetch_send(shard, qp))) return false;
  SendWqe& wqe = qp.sq[r.send_index];
  if (wqe.is_local()) return false;  // its turn comes when all before it is complete
  if (drains && r.send_psn == wqe.first_psn) return false;
  if (wqe.local_error == WcStatus::kSuccess && !plan_message_packet(shard, qp, wqe, batch))
    wqe.local_error = WcStatus::kLocalProtectionError;
  if (wqe.local_error != WcStatus::kSuccess) {
    // In its turn: what was planned before it completes first.
    if (r.send_index == r.sq_consumer) fail_send(shard, qp, wqe.local_error);
    return false;
  }
  r.oldest_unacked_psn = r.next_psn;  // nothing is ever in flight
  if (r.send_psn == wqe.end_psn()) r.send_index = qp.sq.ring.after(r.send_index);
  return true;
}

}  // namespace roci::emulator
