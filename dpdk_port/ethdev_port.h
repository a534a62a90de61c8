// A port on any device that DPDK has a driver for.
//
// One receive and one transmit queue, no offload, frames in one segment: nothing is asked of a device that
// one of them lacks. Not here: what a kind of device needs beside that (af_packet_port.h, af_xdp_port.h) and
// who the device belongs to. Thread rule: as port.h; state() is the control thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dpdk_port/config.h"
#include "dpdk_port/port.h"
#include "proto/types.h"

struct rte_mempool;

namespace roci::dpdk_port {

struct EthdevConfig {
  std::string device;  // name and arguments for DPDK: "net_null0,size=64", "0000:03:00.0"
  std::uint32_t mtu_bytes = 1500;
  bool sets_mtu = false;      // the device's own follows `mtu_bytes`
  bool is_interface = false;  // the kernel tells link and MTU
  std::vector<proto::Mac>
      macs;  // of the NICs that have one of their own; promiscuous if one is not the device's
  std::uint16_t descriptors = 512;
  bool may_start_later = false;  // by restart(), if it does not now
};

class EthdevPort : public Port {
 public:
  explicit EthdevPort(const EthdevConfig& config) : config_(config) {}
  ~EthdevPort() override;

  // Once. The reason why not, or empty. Frames come in mbufs of `pool`. `warnings`: what works less well.
  [[nodiscard]] std::string start(rte_mempool* pool, std::vector<std::string>& warnings);
  // Its own; all zero: it has none.
  [[nodiscard]] proto::Mac mac() const;

  std::size_t receive(rte_mbuf** out, std::size_t max) override;
  std::size_t send(rte_mbuf** frames, std::size_t count) override;
  [[nodiscard]] int wake_fd() const override { return -1; }
  void prepare_to_sleep() override {}
  [[nodiscard]] std::optional<PortState> state() override;

 protected:
  [[nodiscard]] bool link_is_up() const;
  // Between two calls of receive() and send().
  void restart();

 private:
  [[nodiscard]] std::string probe();
  [[nodiscard]] std::string set_up_queues(rte_mempool* pool);
  [[nodiscard]] std::string set_mtu();
  void stop_and_start();
  [[nodiscard]] bool is_memif() const;
  void receive_all_stations(std::vector<std::string>& warnings);

  const EthdevConfig config_;
  std::uint16_t port_ = 0;
  bool probed_ = false, started_ = false;
};

// Largest frame that a port of this MTU sends or takes: Ethernet with two VLAN tags.
[[nodiscard]] constexpr std::uint32_t longest_frame_bytes(std::uint32_t mtu_bytes) { return mtu_bytes + 22; }

}  // namespace roci::dpdk_port
