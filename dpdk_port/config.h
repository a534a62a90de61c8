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

enum class PortKind : std::uint8_t { kFabric, kAfPacket, kUdp };

struct NicSpec {
  std::string name;  // "rxe0"
  PortKind port = PortKind::kFabric;
  std::string interface;                        // kAfPacket: "eth0"
  proto::Gid local_address;                     // kUdp
  std::vector<emulator::NicAddress> addresses;  // empty: the interface's own (not on the fabric); kUdp: empty
  std::optional<proto::Mac> mac;                // else the interface's, or 02:00:00:00:00:(index + 1)
  std::optional<std::uint32_t> mtu_bytes;       // else the interface's, or kFabricMtuBytes
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
inline constexpr std::uint32_t kMaxShards = 16;

// "rxe0,port=fabric,ip=127.77.0.1/24[,ip=...][,mac=...][,mtu=...]"
[[nodiscard]] Parsed<NicSpec> parse_nic(std::string_view text);
// "fabric", "af_packet:eth0" or "udp:10.0.0.2", into `nic`; the error, or empty.
[[nodiscard]] std::string parse_port(std::string_view text, NicSpec& nic);
[[nodiscard]] Parsed<emulator::NicAddress> parse_address(std::string_view text);
[[nodiscard]] Parsed<proto::Mac> parse_mac(std::string_view text);

// A whole TOML text into `config`; the first error as "NAME:LINE: sentence", or empty.
[[nodiscard]] std::string read_toml(std::string_view text, std::string_view name, DaemonConfig& config);
// What must hold across all NICs (names, addresses, MACs, interfaces are unique; limits); the first error, or
// empty.
[[nodiscard]] std::string check(const DaemonConfig& config);

[[nodiscard]] proto::Mac default_mac(std::size_t nic_index);
[[nodiscard]] std::string to_text(const proto::Mac& mac);
[[nodiscard]] std::string to_text(const proto::Gid& gid);  // an IPv4 or IPv6 address
[[nodiscard]] std::string port_name(const NicSpec& nic);   // "fabric", "af_packet:eth0"
// $XDG_RUNTIME_DIR/rocinante/rocid.sock, or /tmp/rocinante-UID/rocid.sock.
[[nodiscard]] std::string default_socket_path();

}  // namespace roci::dpdk_port
