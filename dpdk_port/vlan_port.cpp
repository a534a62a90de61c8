#include "dpdk_port/vlan_port.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <rte_ether.h>
#include <rte_mbuf.h>

namespace roci::dpdk_port {
namespace {

constexpr std::size_t kBurst = 64;  // frames that one VLAN may have waiting: a pass reads as many
constexpr std::uint16_t kIdMask = 0x0FFF;

// The VLAN of a received frame, whose tag is taken off; 0: none, or a priority only.
std::uint16_t take_tag(rte_mbuf& frame) {
  constexpr std::uint64_t kStripped = RTE_MBUF_F_RX_VLAN_STRIPPED;
  if ((frame.ol_flags & kStripped) == 0 &&
      (frame.data_len < sizeof(rte_ether_hdr) + sizeof(rte_vlan_hdr) || rte_vlan_strip(&frame) != 0))
    return 0;
  frame.ol_flags &= ~(kStripped | RTE_MBUF_F_RX_VLAN);
  return frame.vlan_tci & kIdMask;
}

std::uint16_t priority_of(const rte_mbuf& frame) {
  const auto* const bytes = rte_pktmbuf_mtod(&frame, const std::uint8_t*);
  if (frame.data_len < sizeof(rte_ether_hdr) + 2) return 0;
  const unsigned type = static_cast<unsigned>(bytes[12] << 8) | bytes[13];
  if (type == RTE_ETHER_TYPE_IPV4) return static_cast<std::uint16_t>(bytes[15] >> 5);
  return type == RTE_ETHER_TYPE_IPV6 ? static_cast<std::uint16_t>((bytes[14] & 0xF) >> 1) : std::uint16_t{0};
}

// Copies that wait elsewhere share one buffer, and a tag is written into it. False: no buffer for a copy.
bool put_tag(rte_mbuf*& frame, std::uint16_t id) {
  if (rte_mbuf_refcnt_read(frame) != 1) {
    rte_mbuf* const copy = rte_pktmbuf_copy(frame, frame->pool, 0, frame->pkt_len);
    if (copy == nullptr) return false;
    rte_pktmbuf_free(std::exchange(frame, copy));
  }
  frame->vlan_tci = static_cast<std::uint16_t>(priority_of(*frame) << 13 | id);
  return rte_vlan_insert(&frame) == 0;
}

class VlanPort;

struct Trunk {
  std::unique_ptr<Port> port;
  std::vector<VlanPort*> vlans;  // the first reads for all
  std::atomic<std::uint64_t> other{0}, full{0};
};

class VlanPort final : public Port {
 public:
  VlanPort(std::shared_ptr<Trunk> trunk, std::uint16_t id) : trunk_(std::move(trunk)), id_(id) {}
  ~VlanPort() override {
    for (rte_mbuf* const frame : waiting_)
      rte_pktmbuf_free(frame);
  }

  [[nodiscard]] std::size_t receive(rte_mbuf** out, std::size_t max) override {
    if (is_first()) return receive_for_all(out, max);
    const std::size_t count = std::min(max, waiting_.size());
    std::copy_n(waiting_.begin(), count, out);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  [[nodiscard]] std::size_t send(rte_mbuf** frames, std::size_t count) override {
    if (id_ == 0) return trunk_->port->send(frames, count);
    std::size_t tagged = 0;
    while (tagged < count && put_tag(frames[tagged], id_))
      ++tagged;
    const std::size_t sent = trunk_->port->send(frames, tagged);
    for (std::size_t i = sent; i < tagged; ++i)
      take_tag(*frames[i]);  // until the next time
    return sent;
  }

  [[nodiscard]] int wake_fd() const override { return trunk_->port->wake_fd(); }
  void prepare_to_sleep() override {
    if (is_first()) trunk_->port->prepare_to_sleep();
  }
  [[nodiscard]] std::vector<PortCounter> counters() const override {
    std::vector<PortCounter> all = trunk_->port->counters();
    all.push_back({"vlan.other", trunk_->other.load(std::memory_order_relaxed)});
    all.push_back({"vlan.full", trunk_->full.load(std::memory_order_relaxed)});
    return all;
  }
  std::vector<std::string> follow_groups(std::uint32_t shard, std::span<const proto::Gid> groups) override {
    return trunk_->port->follow_groups(shard, groups);
  }
  [[nodiscard]] int kernel_groups_interface() const override {
    return trunk_->port->kernel_groups_interface();
  }
  [[nodiscard]] std::optional<PortState> state() override { return trunk_->port->state(); }

 private:
  [[nodiscard]] bool is_first() const { return trunk_->vlans.front() == this; }

  std::size_t receive_for_all(rte_mbuf** out, std::size_t max) {
    const std::size_t got = trunk_->port->receive(out, max);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < got; ++i) {
      rte_mbuf* const frame = out[i];
      const std::uint16_t id = take_tag(*frame);
      if (id == id_) {
        out[kept++] = frame;
        continue;
      }
      const auto to = std::find_if(trunk_->vlans.begin(), trunk_->vlans.end(),
                                   [id](const VlanPort* vlan) { return vlan->id_ == id; });
      const bool is_known = to != trunk_->vlans.end();
      if (is_known && (*to)->waiting_.size() < kBurst) {
        (*to)->waiting_.push_back(frame);
        continue;
      }
      (is_known ? trunk_->full : trunk_->other).fetch_add(1, std::memory_order_relaxed);
      rte_pktmbuf_free(frame);
    }
    return kept;
  }

  const std::shared_ptr<Trunk> trunk_;
  const std::uint16_t id_;
  std::vector<rte_mbuf*> waiting_;
};

}  // namespace

std::vector<std::unique_ptr<Port>> split_by_vlan(std::unique_ptr<Port> port,
                                                 std::span<const std::uint16_t> vlans) {
  const auto trunk = std::make_shared<Trunk>();
  trunk->port = std::move(port);
  std::vector<std::unique_ptr<Port>> views;
  for (const std::uint16_t id : vlans) {
    auto view = std::make_unique<VlanPort>(trunk, id);
    trunk->vlans.push_back(view.get());
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace roci::dpdk_port
