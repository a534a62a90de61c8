// Moves frames between NICs, shards and ports, each as the same mbuf from its sender to its last receiver.
//
// A port's frames go to the NIC whose MAC they have, those for a group to all NICs of the port, and what is
// not RoCE to the kernel, too, where the NIC shares it with the kernel. A frame sent on the fabric becomes
// input of its receivers' engines in a later pass; broadcast copies share one mbuf by reference count, so
// nobody writes to a frame once it was sent. Between shards frames go over SPSC rings; device ports belong to
// shard 0, and each shard sees how far they are behind. Nothing here allocates or waits: what finds no room
// is freed, counted and captured. Thread rule: Topology is const after set-up but for the rings and counts in
// it; a Handover is its shard's thread's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dpdk_port/capture.h"
#include "dpdk_port/mbufs.h"
#include "dpdk_port/port.h"
#include "dpdk_port/spsc_ring.h"
#include "emulator/engine.h"
#include "emulator/fabric.h"
#include "emulator/frame.h"

namespace roci::dpdk_port {

// A frame on its way. `to` kWire: out of the port of `from`. `from` kWire: it came in through the port of
// `to`.
struct Delivery {
  rte_mbuf* mbuf = nullptr;
  emulator::NicId from, to;
};

// What all shards know: where the NICs are. Set up before the shards start.
class Topology {
 public:
  struct DevicePort {
    Port* port = nullptr;
    std::vector<emulator::NicId> nics;
  };

  static constexpr std::size_t kRingSlots = 1024;  // between each two shards

  explicit Topology(std::uint32_t shard_count);

  void add_fabric_nic(emulator::NicId nic, proto::Mac mac);
  // Several NICs may be on one port. `kernel`: where their traffic that is not RoCE goes, too; null: nowhere.
  void add_device_nic(emulator::NicId nic, proto::Mac mac, Port& port, Port* kernel = nullptr);

  [[nodiscard]] std::uint32_t shard_count() const { return shard_count_; }
  [[nodiscard]] const emulator::Fabric& fabric() const { return fabric_; }
  [[nodiscard]] Port* port(emulator::NicId nic) const { return ports_[nic.index]; }  // null: on the fabric
  [[nodiscard]] Port* kernel(emulator::NicId nic) const { return kernels_[nic.index]; }
  [[nodiscard]] std::span<const emulator::NicId> device_nics() const { return device_nics_; }
  [[nodiscard]] std::span<const DevicePort> device_ports() const { return device_ports_; }
  // Those on the port of `nic`, it among them.
  [[nodiscard]] std::span<const emulator::NicId> nics_beside(emulator::NicId nic) const {
    return device_ports_[port_index_[nic.index]].nics;
  }
  [[nodiscard]] const proto::Mac& mac(emulator::NicId nic) const { return macs_[nic.index]; }
  [[nodiscard]] SpscRing<Delivery>& ring(std::uint32_t from, std::uint32_t to) const {
    return *rings_[from * shard_count_ + to];
  }
  // Frames of all shards that the port of `nic` has not taken yet, in whatever queue. Any thread.
  [[nodiscard]] std::atomic<std::uint32_t>& waiting(emulator::NicId nic) const { return waiting_[nic.index]; }

 private:
  const std::uint32_t shard_count_;
  emulator::Fabric fabric_;
  std::array<Port*, emulator::kMaxNics> ports_{}, kernels_{};
  std::array<std::size_t, emulator::kMaxNics> port_index_{};  // in device_ports_
  std::vector<DevicePort> device_ports_;
  std::array<proto::Mac, emulator::kMaxNics> macs_{};
  std::vector<emulator::NicId> device_nics_;
  std::vector<std::unique_ptr<SpscRing<Delivery>>> rings_;
  mutable std::array<std::atomic<std::uint32_t>, emulator::kMaxNics> waiting_{};
};

class Handover {
 public:
  static constexpr std::size_t kInputSlots = 4096;    // frames for this shard's engine
  static constexpr std::size_t kBlockedBacklog = 64;  // frames; from here on the NIC is to send nothing more
  static constexpr std::size_t kMaxBurst = 64;        // frames a NIC may send after it looked

  // All outlive it.
  Handover(std::uint32_t shard, const Topology& topology, CaptureTap& tap);
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // Bit n: the link of NIC n is up. What a NIC sends while it is down is lost, as on a wire that was pulled.
  void set_links(std::uint64_t up) { links_up_ = up; }
  // Takes the mbuf, which NIC `from` of this shard's engine sent at `now`.
  void send(rte_mbuf* mbuf, emulator::NicId from, emulator::Time now);
  // Shard 0: reads a burst from each device port, and from the kernel's share of each NIC; returns the
  // frames.
  std::size_t receive_from_ports(emulator::Time now);
  // Shard 0: writes to the device ports; returns the frames.
  std::size_t send_to_ports();
  // Frames for this shard's engine, at most `max`; the caller owns them.
  std::size_t collect(Delivery* out, std::size_t max);

  // Nothing for this shard waits in a ring.
  [[nodiscard]] bool input_is_empty() const;
  // Bit n: the port of NIC n is behind.
  [[nodiscard]] std::uint64_t blocked_nics() const;
  // Frames for one port for which there is room: what all shards can send before each sees that it is
  // blocked.
  [[nodiscard]] std::size_t port_backlog() const {
    return kBlockedBacklog + topology_.shard_count() * kMaxBurst;
  }
  // Bit n: shard n was given frames since the last call, and may have to be woken.
  [[nodiscard]] std::uint32_t take_touched_shards() { return std::exchange(touched_, 0); }
  [[nodiscard]] std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }  // any thread

 private:
  void send_by_port(rte_mbuf* mbuf, emulator::NicId nic, bool is_kernels, emulator::Time now);
  void arrive(rte_mbuf* mbuf, std::span<const emulator::NicId> nics, emulator::Time now);
  void arrive_at(rte_mbuf* mbuf, emulator::NicId from, emulator::NicId to, emulator::Time now);
  std::size_t take_from_kernel(emulator::NicId nic, emulator::Time now);
  void deliver(rte_mbuf* mbuf, emulator::NicId from, emulator::NicId to, emulator::Time now);
  void put(std::uint32_t shard, const Delivery& delivery, emulator::Time now);
  void put_to_port(rte_mbuf* mbuf, emulator::NicId nic, emulator::Time now);
  void lose(const Delivery& delivery, Fate fate, emulator::Time now);
  [[nodiscard]] bool is_up(emulator::NicId nic) const { return ((links_up_ >> nic.index) & 1) != 0; }
  void drop(std::vector<rte_mbuf*>& backlog, emulator::NicId nic);

  const std::uint32_t shard_;
  const Topology& topology_;
  CaptureTap& tap_;
  std::array<Delivery, kInputSlots> input_;  // ring of this shard's own
  std::size_t input_head_ = 0, input_tail_ = 0;
  std::vector<std::vector<rte_mbuf*>> backlogs_;  // shard 0: in the order of device_nics()
  std::uint64_t links_up_ = ~std::uint64_t{0};
  std::uint32_t touched_ = 0;
  std::atomic<std::uint64_t> lost_{0};
};

// Lends mbufs to the engine to send in, and sends them. A shard's thread.
class MbufSink final : public emulator::TxSink {
 public:
  static constexpr std::size_t kMaxBurst = Handover::kMaxBurst;

  MbufSink(rte_mempool* pool, Handover& handover) : pool_(pool), handover_(handover) {}
  ~MbufSink() override;

  void set_now(emulator::Time now) { now_ = now; }
  [[nodiscard]] std::span<emulator::TxFrame> reserve(std::size_t max) override;
  void commit(std::size_t count) override;
  [[nodiscard]] std::uint64_t blocked_nics() const override { return handover_.blocked_nics(); }

 private:
  rte_mempool* pool_;
  Handover& handover_;
  emulator::Time now_{};
  std::array<rte_mbuf*, kMaxBurst> mbufs_{};
  std::array<emulator::TxFrame, kMaxBurst> frames_{};
  std::size_t held_ = 0;  // mbufs taken from the pool and not sent yet
};

}  // namespace roci::dpdk_port
