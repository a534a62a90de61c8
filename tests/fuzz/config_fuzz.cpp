// Fuzz target: the text of a configuration file, and each of its lines as the text of a --nic.
//
// Aborts where an error is empty or more than one line, or where a configuration that is accepted breaks what
// config.h promises of it.
#include <algorithm>
#include <string>
#include <string_view>

#include "dpdk_port/config.h"
#include "tests/fuzz/target.h"

namespace {

using namespace roci::dpdk_port;
using roci::fuzz::require;

void require_sentence(const std::string& error) {
  require(!error.empty(), "an error says something");
  if (error.find_first_of("\r\n") != std::string::npos) std::fprintf(stderr, "%s\n", error.c_str());
  require(error.find_first_of("\r\n") == std::string::npos, "an error is one line");
}

void check_nic(const NicSpec& nic) {
  require(!nic.name.empty(), "a NIC has a name");
  require((nic.port == PortKind::kAfPacket) != nic.interface.empty(), "just AF_PACKET has an interface");
  require((nic.port == PortKind::kUdp) == (nic.local_address != roci::proto::Gid{}),
          "just UDP has a local address");
  require(!nic.mtu_bytes || (*nic.mtu_bytes >= kMinMtuBytes && *nic.mtu_bytes <= kMaxMtuBytes),
          "an MTU is within its limits");
  for (const roci::emulator::NicAddress& address : nic.addresses)
    require(!to_text(address.gid).empty() && address.prefix_length <= 128, "an address can be told");
}

}  // namespace

const roci::fuzz::Target roci::fuzz::kTarget = {true, nullptr};

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  DaemonConfig config;
  if (const std::string error = read_toml(text, "fuzz.toml", config); !error.empty()) {
    require_sentence(error);
    require(error.rfind("fuzz.toml", 0) == 0, "an error in a file names it");
  } else {
    for (const NicSpec& nic : config.nics)
      check_nic(nic);
    if (const std::string conflict = check(config); !conflict.empty()) require_sentence(conflict);
  }
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t end = std::min(text.find('\n', begin), size);
    const auto nic = parse_nic(text.substr(begin, end - begin));
    if (nic) {
      check_nic(*nic);
    } else {
      require_sentence(nic.error());
    }
    begin = end + 1;
  }
  return 0;
}
