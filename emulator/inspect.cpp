#include <memory>
#include <utility>

#include "emulator/control_objects.h"

namespace roci::emulator {
namespace {

QpSnapshot snapshot_of(const Qp& qp) {
  QpSnapshot snapshot;
  snapshot.context = qp.context->id;
  snapshot.handle = {qp.handle};
  snapshot.qpn = qp.qpn;
  snapshot.type = qp.type;
  snapshot.state = qp.state;
  snapshot.attributes = qp.attributes;
  snapshot.next_psn = qp.requester.next_psn;
  snapshot.oldest_unacked_psn = qp.requester.oldest_unacked_psn;
  snapshot.expected_psn = qp.responder.expected_psn;
  snapshot.send_queue_depth = qp.sq.ring.distance(qp.requester.sq_consumer, qp.sq.ring.load_producer());
  if (qp.srq == nullptr)
    snapshot.recv_queue_depth = qp.rq.ring.distance(qp.responder.rq_consumer, qp.rq.ring.load_producer());
  snapshot.packets_sent = qp.statistics.packets_sent;
  snapshot.packets_received = qp.statistics.packets_received;
  snapshot.bytes_sent = qp.statistics.bytes_sent;
  snapshot.bytes_received = qp.statistics.bytes_received;
  snapshot.retransmitted = qp.statistics.retransmitted;
  snapshot.nic = qp.nic;
  return snapshot;
}

}  // namespace

Outcome inspect(const Shard& shard) {
  auto snapshot = std::make_unique<Snapshot>();
  for (const auto& owned : shard.contexts) {
    const Context& context = *owned;
    snapshot->contexts.push_back(
        {context.id, context.nic, context.client, static_cast<std::uint32_t>(context.pds.size())});
    context.qps.for_each([&](const Qp& qp) { snapshot->qps.push_back(snapshot_of(qp)); });
    context.regions.for_each([&](const MemoryRegion& region) {
      snapshot->mrs.push_back({context.id,
                               {region.handle},
                               {region.pd->handle},
                               proto::Rkey{region.key},
                               region.iova,
                               region.length_bytes,
                               region.access});
    });
    context.ahs.for_each([&](const AddressHandle& ah) {
      snapshot->ahs.push_back({context.id, {ah.handle}, ah.av});
    });
    context.windows.for_each([&](const MemoryWindow& window) {
      snapshot->mws.push_back({context.id,
                               {window.handle},
                               {window.pd->handle},
                               window.type,
                               proto::Rkey{window.key},
                               window.region != nullptr,
                               window.iova,
                               window.length_bytes,
                               window.access});
    });
    context.srqs.for_each([&](const SharedReceiveQueue& srq) {
      snapshot->srqs.push_back({context.id, {srq.handle}, srq.max_wr, srq.limit, srq.depth(), srq.users});
    });
    context.cqs.for_each([&](const CompletionQueue& cq) {
      snapshot->cqs.push_back({context.id,
                               {cq.handle},
                               cq.ring.slots(),
                               cq.ring.distance(cq.ring.load_consumer(), cq.producer),
                               cq.completions,
                               cq.is_overrun});
    });
  }
  for (const auto& nic : shard.nics)
    nic->neighbours.snapshot(nic->id, snapshot->neighbours);
  return {{}, std::move(snapshot)};
}

}  // namespace roci::emulator
