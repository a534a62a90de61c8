#include "dpdk_port/ethdev_port.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>
#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "dpdk_port/eal.h"

namespace roci::dpdk_port {
namespace {

// Of a driver's complaints the first tells most.
std::string because(const DriverMessages& messages, int error) {
  const std::string first = messages.first();
  return first.empty() ? rte_strerror(error) : first;
}

std::string device_name(const std::string& device) { return device.substr(0, device.find(',')); }

}  // namespace

// memif's driver frees at close what its interrupt handler goes on with (servers whose client was about to
// return crashed), so its devices end with the process, which hangs up, too.
EthdevPort::~EthdevPort() {
  if (is_memif()) return;
  const DriverMessages unheard;
  if (started_) (void)rte_eth_dev_stop(port_);
  if (probed_) (void)rte_eth_dev_close(port_);
}

bool EthdevPort::is_memif() const { return config_.device.rfind("net_memif", 0) == 0; }

// In EAL's interrupt thread, in which memif's driver makes and ends connections without a lock.
void EthdevPort::restart() {
  constexpr auto kPatience = std::chrono::seconds(1);
  struct Call {
    EthdevPort& port;
    std::atomic<bool> done{false};
  } call{*this};
  const auto run = [](void* argument) {
    auto& its = *static_cast<Call*>(argument);
    its.port.stop_and_start();
    its.done = true;
  };
  if (rte_eal_alarm_set(1, run, &call) != 0) return;
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (!call.done && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  (void)rte_eal_alarm_cancel(run, &call);  // and waits for one that runs
}

std::string EthdevPort::probe() {
  const auto name = device_name(config_.device);
  // A PCI device is there since EAL started.
  if (rte_eth_dev_get_port_by_name(name.c_str(), &port_) == 0) return {};
  DriverMessages messages;
  const int error = rte_dev_probe(config_.device.c_str());
  if (error == -EFAULT)  // no bus takes the name
    return fmt::format("this DPDK has no driver for a device '{}'", name);
  if (error == -ENODEV) {
    return fmt::format(
        "there is no device '{}', or its driver is not DPDK's; for most, bind it to vfio-pci first", name);
  }
  if (error != 0) return fmt::format("the driver of {} refuses it: {}", name, because(messages, -error));
  if (rte_eth_dev_get_port_by_name(name.c_str(), &port_) != 0)
    return fmt::format("{} is not a network device", name);
  return {};
}

std::string EthdevPort::set_mtu() {
  const DriverMessages messages;
  const int error = rte_eth_dev_set_mtu(port_, static_cast<std::uint16_t>(config_.mtu_bytes));
  if (error == 0 || error == -ENOTSUP) return {};  // such a device has no limit of its own
  return fmt::format("the device does not take mtu {}: {}", config_.mtu_bytes, because(messages, -error));
}

std::string EthdevPort::set_up_queues(rte_mempool* pool) {
  const rte_eth_conf conf{};
  std::uint16_t rx = config_.descriptors, tx = config_.descriptors;
  int error = rte_eth_dev_configure(port_, 1, 1, &conf);
  if (error == 0 && config_.sets_mtu) {
    if (auto why = set_mtu(); !why.empty()) return why;
  }
  if (error == 0) error = rte_eth_dev_adjust_nb_rx_tx_desc(port_, &rx, &tx);
  DriverMessages messages;
  const auto node = static_cast<unsigned>(SOCKET_ID_ANY);
  if (error == 0) error = rte_eth_rx_queue_setup(port_, 0, rx, node, nullptr, pool);
  if (error == 0) error = rte_eth_tx_queue_setup(port_, 0, tx, node, nullptr);
  if (error == 0) error = rte_eth_dev_start(port_);
  started_ = error == 0;
  if (started_ || config_.may_start_later) return {};
  return fmt::format("{} does not start: {}", device_name(config_.device), because(messages, -error));
}

// Groups come and go, and a NIC may have a MAC that is not the device's.
void EthdevPort::receive_all_stations(std::vector<std::string>& warnings) {
  const bool only_its_own = std::all_of(config_.macs.begin(), config_.macs.end(),
                                        [its = mac()](const proto::Mac& nics) { return nics == its; });
  if (only_its_own && rte_eth_allmulticast_enable(port_) == 0) return;
  if (rte_eth_promiscuous_enable(port_) != 0)
    warnings.push_back(
        "the device has no promiscuous mode; frames for another MAC than its own may not come in");
}

std::string EthdevPort::start(rte_mempool* pool, std::vector<std::string>& warnings) {
  if (auto error = probe(); !error.empty()) return error;
  probed_ = true;
  if (auto error = set_up_queues(pool); !error.empty()) return error;
  if (!config_.is_interface) receive_all_stations(warnings);
  return {};
}

proto::Mac EthdevPort::mac() const {
  rte_ether_addr address{};
  proto::Mac mac;
  if (rte_eth_macaddr_get(port_, &address) == 0)
    std::memcpy(mac.bytes.data(), address.addr_bytes, mac.bytes.size());
  return mac;
}

std::size_t EthdevPort::receive(rte_mbuf** out, std::size_t max) {
  if (!started_) return 0;
  const std::size_t got = rte_eth_rx_burst(port_, 0, out, static_cast<std::uint16_t>(max));
  std::size_t kept = 0;
  for (std::size_t i = 0; i < got; ++i) {
    // Our buffers hold the longest frame of the port, so one in several is longer.
    if (out[i]->nb_segs == 1 && out[i]->data_len <= longest_frame_bytes(config_.mtu_bytes))
      out[kept++] = out[i];
    else
      rte_pktmbuf_free(out[i]);
  }
  return kept;
}

std::size_t EthdevPort::send(rte_mbuf** frames, std::size_t count) {
  if (!started_) return 0;
  return rte_eth_tx_burst(port_, 0, frames, static_cast<std::uint16_t>(count));
}

bool EthdevPort::link_is_up() const {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(port_, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

void EthdevPort::stop_and_start() {
  const DriverMessages unheard;
  if (started_) (void)rte_eth_dev_stop(port_);
  started_ = rte_eth_dev_start(port_) == 0;
}

std::optional<PortState> EthdevPort::state() {
  if (config_.is_interface) return {};
  return PortState{link_is_up(), config_.mtu_bytes};
}

}  // namespace roci::dpdk_port
