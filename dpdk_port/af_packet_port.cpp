#include "dpdk_port/af_packet_port.h"

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <rte_mbuf.h>

#include "dpdk_port/ethdev_port.h"
#include "dpdk_port/kernel_sockets.h"

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;
using shim::UniqueFd;

constexpr std::size_t kEthernetAndVlanBytes = 18;

class AfPacketPort final : public EthdevPort {
 public:
  AfPacketPort(const EthdevConfig& device, const AfPacketConfig& config, UniqueFd wake,
               std::vector<UniqueFd> held)
      : EthdevPort(device),
        macs_(config.macs),
        longest_bytes_(config.mtu_bytes + kEthernetAndVlanBytes),
        wake_(std::move(wake)),
        held_(std::move(held)),
        interface_index_(config.interface.index) {
    macs_.push_back(config.interface.mac);
  }

  std::size_t receive(rte_mbuf** out, std::size_t max) override {
    const std::size_t got = EthdevPort::receive(out, max);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < got; ++i) {
      if (is_from_wire(*out[i]))
        out[kept++] = out[i];
      else
        rte_pktmbuf_free(out[i]);
    }
    return kept;
  }

  [[nodiscard]] int wake_fd() const override { return wake_.get(); }
  void prepare_to_sleep() override { drain_wake_socket(wake_.get()); }
  [[nodiscard]] int kernel_groups_interface() const override { return interface_index_; }

 private:
  // Not the kernel's or our own outgoing frames, which the PMD hands over too, and no frame longer than the
  // wire takes: that is a segmentation offload of the sender's on the same host, several datagrams in one.
  [[nodiscard]] bool is_from_wire(const rte_mbuf& mbuf) const {
    const auto* frame = rte_pktmbuf_mtod(&mbuf, const std::byte*);
    return mbuf.data_len >= ETH_HLEN && mbuf.data_len <= longest_bytes_ &&
           std::none_of(macs_.begin(), macs_.end(), [frame](const proto::Mac& mac) {
             return std::memcmp(frame + ETH_ALEN, mac.bytes.data(), ETH_ALEN) == 0;
           });
  }

  std::vector<proto::Mac> macs_;  // of this host: the NICs' and the interface's
  const std::size_t longest_bytes_;
  const UniqueFd wake_;
  const std::vector<UniqueFd> held_;
  const int interface_index_;
};

}  // namespace

std::uint32_t af_packet_slot_bytes(std::uint32_t mtu_bytes) {
  constexpr std::size_t kTpacketBytes =
      std::size_t{2} * TPACKET_ALIGNMENT + sizeof(tpacket2_hdr) + sizeof(sockaddr_ll);
  return std::max(
      2048U, std::bit_ceil(mtu_bytes + static_cast<std::uint32_t>(kEthernetAndVlanBytes + kTpacketBytes)));
}

Parsed<std::unique_ptr<Port>> open_af_packet(const AfPacketConfig& config, rte_mempool* pool,
                                             std::vector<std::string>& warnings) {
  const bool promiscuous = std::any_of(config.macs.begin(), config.macs.end(),
                                       [&](const proto::Mac& mac) { return mac != config.interface.mac; });
  auto wake = open_wake_socket(config.interface.index, promiscuous);
  if (!wake) return Unexpected{wake.error()};
  const auto slot = af_packet_slot_bytes(config.mtu_bytes);
  EthdevConfig device;
  device.device = config.device;
  // With the queueing discipline, so that tcpdump and packet filters on the interface see our frames.
  if (device.device.empty())
    device.device =
        fmt::format("net_af_packet{},iface={},blocksz={},framesz={},framecnt={},qdisc_bypass=0",
                    config.number, config.interface.name,
                    std::max(slot, static_cast<std::uint32_t>(getpagesize())), slot, kAfPacketRingFrames);
  device.mtu_bytes = config.mtu_bytes;
  device.is_interface = true;
  device.descriptors = kAfPacketRingFrames;
  auto port = std::make_unique<AfPacketPort>(device, config, std::move(wake).value(),
                                             hold_udp_ports(config.shared_addresses, warnings));
  if (auto error = port->start(pool, warnings); !error.empty()) return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
