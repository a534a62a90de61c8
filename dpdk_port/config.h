// What the user asks of rocid: its NICs and how to run them, read from `--nic` texts and a TOML file.
//
// Only what can be judged from the text alone is judged here; whether an interface exists is interface.h's
// matter. Every error is one sentence for the user. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/config.h"
#include "proto/result.h"
#include "proto/types.h"

namespace roci::dpdk_port {

template <class T>
using Parsed = proto::Result<T, std::string>;

enum class PortKind : std::uint8_t { kFabric, kAfPacket, kAfXdp, kTap, kMemif, kPcap, kRing, kDevice, kUdp };

struct NicSpec {
  std::string name;  // "rxe0"
  PortKind port = PortKind::kFabric;
  std::string port_text = "fabric";  // as the user wrote it; NICs with the same text share a port
  std::string interface;             // of the kernel: "eth0"; kTap: the one to make; empty: the port has none
  std::string device;                // kMemif, kPcap, kDevice: for DPDK, "net_null0,size=64"
  std::string kernel_interface;      // a TAP to make for the kernel's share of the traffic; empty: none
  proto::Gid local_address;          // kUdp
  std::vector<emulator::NicAddress> addresses;             // empty: the interface's own; kUdp: empty
  std::vector<proto::Gid> gateways;                        // of each family one at most
  std::vector<emulator::NicConfig::Neighbour> neighbours;  // that are not asked for their MAC
  std::optional<proto::Mac> mac;                           // else as default_mac_is() says
  std::uint16_t vlan = 0;                                  // 0: frames carry no tag
  bool gso = false;                        // kUdp: runs of packets are handed to the kernel as one
  std::optional<std::uint32_t> mtu_bytes;  // else the interface's, or what suits the port
};

struct DaemonConfig {
  std::vector<NicSpec> nics;
  std::string socket_path;  // empty: default_socket_path()
  std::string log_level = "info";
  std::uint32_t shards = 1;
  bool poll = false;               // never sleep
  std::int64_t idle_exit_ms = -1;  // -1: never
  std::vector<std::uint32_t> allow_uids, allow_gids;
  std::vector<std::string> eal_arguments;
};

inline constexpr std::uint32_t kMinMtuBytes = 576;
inline constexpr std::uint32_t kMaxMtuBytes = 9216;
inline constexpr std::uint32_t kFabricMtuBytes = 4200;  // path MTU 4096 with every header
inline constexpr std::uint32_t kEthernetMtuBytes = 1500;
// The PMD claims 3542, but a buffer is a page, and before the frame in it are its headers and XDP's headroom.
inline constexpr std::uint32_t kAfXdpMaxMtuBytes = 3434;
inline constexpr std::uint32_t kMaxVlan = 4094;
inline constexpr std::uint32_t kMaxShards = 16;

// "rxe0,port=fabric,ip=127.77.0.1/24[,ip=...][,gateway=...][,neighbour=ADDRESS@MAC][,mac=...][,mtu=...][,vlan=ID][,gso=on]"
[[nodiscard]] Parsed<NicSpec> parse_nic(std::string_view text);
// "af_packet:eth0" or "memif:server=/run/a.sock,id=3", into `nic`; the error, or empty.
[[nodiscard]] std::string parse_port(std::string_view text, NicSpec& nic);
[[nodiscard]] Parsed<emulator::NicAddress> parse_address(std::string_view text);
[[nodiscard]] Parsed<proto::Mac> parse_mac(std::string_view text);

// A whole TOML text into `config`; the first error as "NAME:LINE: sentence", or empty.
[[nodiscard]] std::string read_toml(std::string_view text, std::string_view name, DaemonConfig& config);
// What must hold across all NICs (names, addresses, MACs are unique, who shares a port; limits); the first
// error, or empty.
[[nodiscard]] std::string check(const DaemonConfig& config);

[[nodiscard]] proto::Mac default_mac(std::size_t nic_index);
[[nodiscard]] std::string to_text(const proto::Mac& mac);
[[nodiscard]] std::string to_text(const proto::Gid& gid);  // an IPv4 or IPv6 address
// The NIC's port is on an interface that the kernel had before, and keeps.
[[nodiscard]] bool is_on_interface(const NicSpec& nic);
// The PCI address of a kDevice that is one, else empty.
[[nodiscard]] std::string pci_address(const NicSpec& nic);
// $XDG_RUNTIME_DIR/rocinante/rocid.sock, or /tmp/rocinante-UID/rocid.sock.
[[nodiscard]] std::string default_socket_path();

}  // namespace roci::dpdk_port
