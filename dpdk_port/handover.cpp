#include "dpdk_port/handover.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "emulator/steering.h"

namespace roci::dpdk_port {

using emulator::NicId;
using emulator::Time;

namespace {
constexpr std::size_t kPortBurst = 32;

bool is_addressed_to(const rte_mbuf* mbuf, const proto::Mac& mac) {
  return std::memcmp(rte_pktmbuf_mtod(mbuf, const std::byte*), mac.bytes.data(), mac.bytes.size()) == 0;
}

bool is_for_group(const rte_mbuf* mbuf) {
  return (*rte_pktmbuf_mtod(mbuf, const std::byte*) & std::byte{1}) != std::byte{0};
}
}  // namespace

Topology::Topology(std::uint32_t shard_count) : shard_count_(shard_count) {
  for (std::uint32_t i = 0; i < shard_count * shard_count; ++i) {
    const bool same_shard = i / shard_count == i % shard_count;
    rings_.push_back(same_shard ? nullptr : std::make_unique<SpscRing<Delivery>>(kRingSlots));
  }
}

void Topology::add_fabric_nic(NicId nic, proto::Mac mac) {
  macs_[nic.index] = mac;
  fabric_.attach(nic, mac);
}

void Topology::add_device_nic(NicId nic, proto::Mac mac, Port& port, Port* kernel) {
  macs_[nic.index] = mac;
  ports_[nic.index] = &port;
  kernels_[nic.index] = kernel;
  device_nics_.push_back(nic);
  auto known = std::find_if(device_ports_.begin(), device_ports_.end(),
                            [&port](const DevicePort& each) { return each.port == &port; });
  if (known == device_ports_.end()) known = device_ports_.insert(known, DevicePort{&port, {}});
  known->nics.push_back(nic);
  port_index_[nic.index] = static_cast<std::size_t>(known - device_ports_.begin());
}

Handover::Handover(std::uint32_t shard, const Topology& topology, CaptureTap& tap)
    : shard_(shard),
      topology_(topology),
      tap_(tap),
      backlogs_(shard == 0 ? topology.device_nics().size() : 0) {
  for (auto& backlog : backlogs_)
    backlog.reserve(port_backlog());
}

Handover::~Handover() {
  Delivery delivery;
  while (collect(&delivery, 1) != 0)
    rte_pktmbuf_free(delivery.mbuf);
  for (auto& backlog : backlogs_)
    rte_pktmbuf_free_bulk(backlog.data(), static_cast<unsigned>(backlog.size()));
}

void Handover::send(rte_mbuf* mbuf, NicId from, Time now) {
  if (topology_.port(from) != nullptr) return send_by_port(mbuf, from, false, now);
  std::uint64_t to = topology_.fabric().destinations(from, bytes_of(mbuf));
  if (to == 0) return lose({mbuf, from, kWire}, Fate::kNobody, now);
  if (!std::has_single_bit(to))
    rte_mbuf_refcnt_update(mbuf, static_cast<std::int16_t>(std::popcount(to) - 1));
  for (; to != 0; to &= to - 1)
    deliver(mbuf, from, NicId{static_cast<std::uint8_t>(std::countr_zero(to))}, now);
}

// Of the NIC's engine, or of the kernel, whose share of the NIC's traffic is nobody's business.
void Handover::send_by_port(rte_mbuf* mbuf, NicId nic, bool is_kernels, Time now) {
  const NicId from = is_kernels ? kWire : nic;
  if (!is_up(nic)) return lose({mbuf, nic, kWire}, Fate::kLinkDown, now);
  // A NIC may talk to itself and to others on its port; no wire brings a frame back to where it came from.
  const auto beside = topology_.nics_beside(nic);
  if (is_for_group(mbuf)) {
    const bool back = emulator::is_roce_multicast(bytes_of(mbuf));  // which is for its other QPs, too
    for (const NicId to : beside) {
      if (to == nic && !back) continue;
      rte_mbuf_refcnt_update(mbuf, 1);
      arrive_at(mbuf, from, to, now);
    }
  } else {
    for (const NicId to : beside) {
      if (is_addressed_to(mbuf, topology_.mac(to))) return arrive_at(mbuf, from, to, now);
    }
  }
  if (!is_kernels && tap_.on())
    tap_.record(bytes_of(mbuf), nic, kWire, fate_of(emulator::DropReason::kAccepted), now);
  topology_.waiting(nic).fetch_add(1, std::memory_order_relaxed);
  if (shard_ == 0) return put_to_port(mbuf, nic, now);
  put(0, {mbuf, nic, kWire}, now);
}

// Came in through the port of `nics`.
void Handover::arrive(rte_mbuf* mbuf, std::span<const NicId> nics, Time now) {
  if (nics.size() == 1) return arrive_at(mbuf, kWire, nics.front(), now);
  if (!is_for_group(mbuf)) {
    const auto to = std::find_if(nics.begin(), nics.end(),
                                 [&](NicId nic) { return is_addressed_to(mbuf, topology_.mac(nic)); });
    // Nobody's frame is one NIC's to count.
    return arrive_at(mbuf, kWire, to == nics.end() ? nics.front() : *to, now);
  }
  rte_mbuf_refcnt_update(mbuf, static_cast<std::int16_t>(nics.size() - 1));
  for (const NicId to : nics)
    arrive_at(mbuf, kWire, to, now);
}

// What is not RoCE is sent by shard 0's engine or comes from the wire, so the kernel misses nothing that
// other shards do not show it.
void Handover::arrive_at(rte_mbuf* mbuf, NicId from, NicId to, Time now) {
  Port* const kernel = topology_.kernel(to);
  if (kernel != nullptr && shard_ == 0 && !emulator::is_roce(bytes_of(mbuf)) &&
      (is_for_group(mbuf) || is_addressed_to(mbuf, topology_.mac(to)))) {
    rte_mbuf_refcnt_update(mbuf, 1);
    if (kernel->send(&mbuf, 1) == 0) rte_pktmbuf_free(mbuf);
  }
  deliver(mbuf, from, to, now);
}

// No more than the port has room for, so that the kernel's senders wait and not lose.
std::size_t Handover::take_from_kernel(NicId nic, Time now) {
  Port* const kernel = topology_.kernel(nic);
  if (kernel == nullptr || topology_.waiting(nic).load(std::memory_order_relaxed) >= kBlockedBacklog / 2)
    return 0;
  rte_mbuf* mbufs[kPortBurst];
  const std::size_t got = kernel->receive(mbufs, kPortBurst);
  for (std::size_t i = 0; i < got; ++i)
    send_by_port(mbufs[i], nic, true, now);
  return got;
}

void Handover::deliver(rte_mbuf* mbuf, NicId from, NicId to, Time now) {
  const std::uint32_t shards = topology_.shard_count();
  if (shards == 1) return put(0, {mbuf, from, to}, now);
  if (const auto shard = emulator::steer(bytes_of(mbuf), shards)) return put(*shard, {mbuf, from, to}, now);
  rte_mbuf_refcnt_update(mbuf, static_cast<std::int16_t>(shards - 1));
  for (std::uint32_t shard = 0; shard < shards; ++shard)
    put(shard, {mbuf, from, to}, now);
}

void Handover::put(std::uint32_t shard, const Delivery& delivery, Time now) {
  if (shard == shard_) {
    if (input_head_ - input_tail_ == kInputSlots) return lose(delivery, Fate::kQueueFull, now);
    input_[input_head_++ % kInputSlots] = delivery;
    return;
  }
  touched_ |= 1U << shard;
  if (!topology_.ring(shard_, shard).push(Delivery(delivery))) lose(delivery, Fate::kQueueFull, now);
}

void Handover::put_to_port(rte_mbuf* mbuf, NicId nic, Time now) {
  const auto nics = topology_.device_nics();
  auto& backlog =
      backlogs_[static_cast<std::size_t>(std::find(nics.begin(), nics.end(), nic) - nics.begin())];
  if (backlog.size() == port_backlog()) return lose({mbuf, nic, kWire}, Fate::kQueueFull, now);
  backlog.push_back(mbuf);
}

std::uint64_t Handover::blocked_nics() const {
  std::uint64_t blocked = 0;
  for (const NicId nic : topology_.device_nics()) {
    if (topology_.waiting(nic).load(std::memory_order_relaxed) >= kBlockedBacklog)
      blocked |= std::uint64_t{1} << nic.index;
  }
  return blocked;
}

void Handover::lose(const Delivery& delivery, Fate fate, Time now) {
  if (delivery.to == kWire && fate == Fate::kQueueFull)
    topology_.waiting(delivery.from).fetch_sub(1, std::memory_order_relaxed);
  // A frame that found its queue full was captured when it was sent.
  if (tap_.on() && (delivery.to != kWire || fate != Fate::kQueueFull))
    tap_.record(bytes_of(delivery.mbuf), delivery.from, delivery.to, fate, now);
  lost_.store(lost_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  rte_pktmbuf_free(delivery.mbuf);
}

std::size_t Handover::receive_from_ports(Time now) {
  if (shard_ != 0) return 0;
  std::size_t total = 0;
  for (const auto& [port, nics] : topology_.device_ports()) {
    rte_mbuf* mbufs[kPortBurst];
    const std::size_t got = port->receive(mbufs, kPortBurst);
    for (std::size_t i = 0; i < got; ++i)
      arrive(mbufs[i], nics, now);
    total += got;
    for (const NicId nic : nics)
      total += take_from_kernel(nic, now);
  }
  return total;
}

std::size_t Handover::send_to_ports() {
  std::size_t total = 0;
  for (std::size_t i = 0; i < backlogs_.size(); ++i) {
    auto& backlog = backlogs_[i];
    if (backlog.empty()) continue;
    const NicId nic = topology_.device_nics()[i];
    if (!is_up(nic)) {
      drop(backlog, nic);
      continue;
    }
    const std::size_t sent = topology_.port(nic)->send(backlog.data(), backlog.size());
    backlog.erase(backlog.begin(), backlog.begin() + static_cast<std::ptrdiff_t>(sent));
    topology_.waiting(nic).fetch_sub(static_cast<std::uint32_t>(sent), std::memory_order_relaxed);
    total += sent;
  }
  return total;
}

// A port that is down may never take them.
void Handover::drop(std::vector<rte_mbuf*>& backlog, NicId nic) {
  const std::size_t count = backlog.size();
  topology_.waiting(nic).fetch_sub(static_cast<std::uint32_t>(count), std::memory_order_relaxed);
  lost_.store(lost_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  rte_pktmbuf_free_bulk(backlog.data(), static_cast<unsigned>(count));
  backlog.clear();
}

std::size_t Handover::collect(Delivery* out, std::size_t max) {
  std::size_t count = std::min(max, input_head_ - input_tail_);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = input_[input_tail_++ % kInputSlots];
  for (std::uint32_t from = 0; from < topology_.shard_count() && count < max; ++from) {
    if (from == shard_) continue;
    std::size_t got = topology_.ring(from, shard_).pop(out + count, max - count);
    // Other shards' frames for our ports stop here.
    std::size_t kept = 0;
    for (std::size_t i = 0; i < got; ++i) {
      const Delivery& delivery = out[count + i];
      if (delivery.to == kWire)
        put_to_port(delivery.mbuf, delivery.from, Time{});
      else
        out[count + kept++] = delivery;
    }
    count += kept;
  }
  return count;
}

bool Handover::input_is_empty() const {
  if (input_head_ != input_tail_) return false;
  for (std::uint32_t from = 0; from < topology_.shard_count(); ++from) {
    if (from != shard_ && !topology_.ring(from, shard_).empty()) return false;
  }
  return std::all_of(backlogs_.begin(), backlogs_.end(), [](const auto& backlog) { return backlog.empty(); });
}

MbufSink::~MbufSink() { rte_pktmbuf_free_bulk(mbufs_.data(), static_cast<unsigned>(held_)); }

std::span<emulator::TxFrame> MbufSink::reserve(std::size_t max) {
  const std::size_t wanted = std::min(max, kMaxBurst);
  if (held_ < wanted &&
      rte_pktmbuf_alloc_bulk(pool_, mbufs_.data() + held_, static_cast<unsigned>(wanted - held_)) == 0) {
    for (std::size_t i = held_; i < wanted; ++i) {
      frames_[i] = {rte_pktmbuf_mtod(mbufs_[i], std::byte*),
                    static_cast<std::uint32_t>(rte_pktmbuf_tailroom(mbufs_[i])),
                    0,
                    {}};
    }
    held_ = wanted;
  }
  return {frames_.data(), std::min(wanted, held_)};
}

void MbufSink::commit(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    mbufs_[i]->data_len = static_cast<std::uint16_t>(frames_[i].length_bytes);
    mbufs_[i]->pkt_len = frames_[i].length_bytes;
    handover_.send(mbufs_[i], frames_[i].nic, now_);
  }
  // The last ones fill the gap: which empty buffer comes first does not matter.
  const std::size_t left = held_ - count;
  const std::size_t gap = std::min(count, left);
  std::copy_n(mbufs_.begin() + static_cast<std::ptrdiff_t>(held_ - gap), gap, mbufs_.begin());
  std::copy_n(frames_.begin() + static_cast<std::ptrdiff_t>(held_ - gap), gap, frames_.begin());
  held_ = left;
}

}  // namespace roci::dpdk_port
