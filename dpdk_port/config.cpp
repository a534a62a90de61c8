#include "dpdk_port/config.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include <toml++/toml.h>

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// An error quotes what the user wrote, which may hold line ends and what else moves a terminal's cursor.
std::string one_line(std::string sentence) {
  std::replace_if(sentence.begin(), sentence.end(), is_control, '?');
  return sentence;
}

template <class T>
std::optional<T> parse_number(std::string_view text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

std::string parse_mtu(std::string_view text, NicSpec& nic) {
  const auto mtu = parse_number<std::uint32_t>(text, kMinMtuBytes, kMaxMtuBytes);
  if (!mtu) return fmt::format("mtu '{}' is not a number from {} to {}", text, kMinMtuBytes, kMaxMtuBytes);
  nic.mtu_bytes = *mtu;
  return {};
}

std::string parse_vlan(std::string_view text, NicSpec& nic) {
  const auto id = parse_number<std::uint16_t>(text, 1, kMaxVlan);
  if (!id) return fmt::format("vlan '{}' is not a number from 1 to {}", text, kMaxVlan);
  nic.vlan = *id;
  return {};
}

std::string parse_gso(std::string_view text, NicSpec& nic) {
  nic.gso = text == "on";
  return nic.gso || text == "off" ? std::string() : fmt::format("gso '{}' is neither on nor off", text);
}

std::string add_address(std::string_view text, NicSpec& nic) {
  auto address = parse_address(text);
  if (!address) return address.error();
  nic.addresses.push_back(*address);
  return {};
}

std::string add_gateway(std::string_view text, NicSpec& nic) {
  const auto address = parse_address(fmt::format("{}/1", text));
  if (!address) return fmt::format("gateway '{}' is not the address of one station (10.0.0.254)", text);
  const bool has_one = std::any_of(nic.gateways.begin(), nic.gateways.end(), [&](const proto::Gid& one) {
    return one.is_ipv4() == address->gid.is_ipv4();
  });
  if (has_one) return fmt::format("gateway '{}' is the second of its family", text);
  nic.gateways.push_back(address->gid);
  return {};
}

std::string add_neighbour(std::string_view text, NicSpec& nic) {
  const auto at = text.find('@');
  if (at == text.npos) return fmt::format("neighbour '{}' is not ADDRESS@MAC", text);
  const auto address = parse_address(fmt::format("{}/1", text.substr(0, at)));
  if (!address)
    return fmt::format("neighbour '{}' is not the address of one station (10.0.0.9)", text.substr(0, at));
  const auto mac = parse_mac(text.substr(at + 1));
  if (!mac) return mac.error();
  nic.neighbours.push_back({address->gid, *mac});
  return {};
}

std::string set_mac(std::string_view text, NicSpec& nic) {
  auto mac = parse_mac(text);
  if (!mac) return mac.error();
  nic.mac = *mac;
  return {};
}

// rxe followed by a number: the distribution's rxe provider takes no other name.
bool is_nic_name(std::string_view name) {
  return name.size() >= 4 && name.size() <= 15 && name.substr(0, 3) == "rxe" &&
         std::all_of(name.begin() + 3, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_link_local(const proto::Gid& gid) { return gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80; }

// ---- ports -----------------------------------------------------------------------------------------

bool is_interface_name(std::string_view name) {
  return !name.empty() && name.size() < IFNAMSIZ && name != "." && name != ".." &&
         name.find_first_of("/,= :%") == name.npos && std::none_of(name.begin(), name.end(), is_control);
}

std::string set_interface(std::string_view text, std::string& interface) {
  if (!is_interface_name(text)) return fmt::format("'{}' is not the name of an interface", text);
  interface = text;
  return {};
}

// A list "key=value,key=value"; each key at most once. The error, or empty.
std::string for_each_option(std::string_view text,
                            const std::function<std::string(std::string_view, std::string_view)>& take) {
  std::set<std::string_view> seen;
  for (std::size_t at = 0; at <= text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    const auto part = text.substr(at, comma - at);
    const auto equals = part.find('=');
    if (equals == part.npos) return fmt::format("'{}' is not key=value", part);
    const auto key = part.substr(0, equals);
    if (!seen.insert(key).second) return fmt::format("'{}' is given twice", key);
    if (auto error = take(key, part.substr(equals + 1)); !error.empty()) return error;
    at = comma + 1;
  }
  return {};
}

// DPDK's device arguments are a list of their own, whose brackets and quotes we leave alone.
bool is_path(std::string_view text, std::size_t longest) {
  return !text.empty() && text.size() <= longest && text.find_first_of(",[]\"'") == text.npos &&
         std::none_of(text.begin(), text.end(), is_control);
}

std::string parse_memif(std::string_view text, NicSpec& nic) {
  constexpr std::size_t kLongestSocketPath = 107;
  constexpr std::string_view kUsage = "memif needs server=SOCKET on one side and client=SOCKET on the other";
  std::string role, id = "0";
  auto error = for_each_option(text, [&](std::string_view key, std::string_view value) -> std::string {
    if (key == "id") {
      id = value;
      return parse_number<std::uint32_t>(value, 0, std::numeric_limits<std::uint32_t>::max())
                 ? ""
                 : fmt::format("id '{}' is not a number", value);
    }
    if (key != "server" && key != "client") return fmt::format("unknown '{}'; {}", key, kUsage);
    if (!role.empty()) return std::string("it is either server or client");
    if (!is_path(value, kLongestSocketPath)) return fmt::format("'{}' is not the path of a socket", value);
    role = fmt::format("role={},socket={}", key, value);
    return {};
  });
  if (!error.empty()) return error;
  if (role.empty()) return std::string(kUsage);
  nic.device = fmt::format("{},socket-abstract=no,id={}", role, id);
  return {};
}

std::string parse_pcap(std::string_view text, NicSpec& nic) {
  constexpr std::size_t kLongestPath = 1024;
  const auto add = [&nic](std::string_view argument, std::string_view value) {
    nic.device += fmt::format("{}{}={}", nic.device.empty() ? "" : ",", argument, value);
  };
  return for_each_option(text, [&](std::string_view key, std::string_view value) -> std::string {
    if (key != "iface" && key != "rx" && key != "tx")
      return fmt::format("unknown '{}'; pcap needs rx=FILE or tx=FILE or both, or iface=INTERFACE", key);
    if (!nic.interface.empty() || (key == "iface" && !nic.device.empty()))
      return "pcap has either an iface or files";
    if (key == "iface") {
      add("rx_iface_in", value);
      add("tx_iface", value);
      return set_interface(value, nic.interface);
    }
    add(key == "rx" ? "rx_pcap" : "tx_pcap", value);
    return is_path(value, kLongestPath) ? "" : fmt::format("'{}' is not the path of a file", value);
  });
}

std::string parse_ring(std::string_view text, NicSpec&) {
  constexpr std::size_t kLongestName = 12;  // what DPDK leaves of a ring's name
  const bool good =
      !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      });
  return good ? ""
              : fmt::format("ring '{}' is not a name of at most {} letters and digits", text, kLongestName);
}

std::string parse_device(std::string_view text, NicSpec& nic) {
  const auto name = text.substr(0, text.find(','));
  if (name.empty() || std::any_of(text.begin(), text.end(), is_control) ||
      name.find_first_of("= /") != name.npos)
    return fmt::format("'{}' is not the name of a DPDK device, as 0000:03:00.0 or net_null0", name);
  nic.device = text;
  return {};
}

std::string parse_udp(std::string_view host, NicSpec& nic) {
  if (host.find('/') != host.npos)
    return fmt::format("'{}': udp takes an address without a prefix length, which the kernel knows", host);
  const auto address = parse_address(fmt::format("{}/1", host));
  if (!address) return fmt::format("'{}' is not the address of one host (10.0.0.2)", host);
  if (is_link_local(address->gid)) return fmt::format("'{}': udp cannot have a link-local address", host);
  nic.local_address = address->gid;
  return {};
}

struct PortForm {
  std::string_view prefix, usage;
  PortKind kind;
  bool has_options;  // a list behind a comma belongs to the port
  std::string (*parse)(std::string_view rest, NicSpec& nic);
};

std::string parse_interface(std::string_view rest, NicSpec& nic) {
  return set_interface(rest, nic.interface);
}

constexpr PortForm kPortForms[] = {
    {"af_packet:", "af_packet:INTERFACE", PortKind::kAfPacket, false, parse_interface},
    {"af_xdp:", "af_xdp:INTERFACE", PortKind::kAfXdp, false, parse_interface},
    {"tap:", "tap:NAME", PortKind::kTap, false, parse_interface},
    {"memif:", "memif:server=SOCKET or memif:client=SOCKET", PortKind::kMemif, true, parse_memif},
    {"pcap:", "pcap:rx=FILE,tx=FILE or pcap:iface=INTERFACE", PortKind::kPcap, true, parse_pcap},
    {"ring:", "ring:NAME", PortKind::kRing, false, parse_ring},
    {"dev:", "dev:DEVICE", PortKind::kDevice, true, parse_device},
    {"udp:", "udp:ADDRESS", PortKind::kUdp, false, parse_udp},
};

const PortForm* form_of(std::string_view text) {
  const auto* const form =
      std::find_if(std::begin(kPortForms), std::end(kPortForms),
                   [&](const PortForm& each) { return text.substr(0, each.prefix.size()) == each.prefix; });
  return form == std::end(kPortForms) ? nullptr : form;
}

std::string unknown_port(std::string_view text) {
  std::string known = "fabric";
  for (const auto& form : kPortForms)
    known += fmt::format(", {}", form.usage);
  return fmt::format("unknown port '{}'; there are {}", text, known);
}

std::string set_kernel_interface(std::string_view text, NicSpec& nic) {
  return set_interface(text, nic.kernel_interface);
}

// ---- TOML ------------------------------------------------------------------------------------------

using Setter = std::function<std::string(const toml::node&)>;

std::optional<std::int64_t> integer(const toml::node& node, std::int64_t low, std::int64_t high) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < low || *value > high) return {};
  return value;
}

Setter text_setter(std::function<std::string(std::string_view)> set) {
  return [set = std::move(set)](const toml::node& node) {
    const auto* text = node.as_string();
    return text == nullptr ? std::string("must be a text in quotes") : set(text->get());
  };
}

// One text, or a list of texts.
Setter texts_setter(std::function<std::string(std::string_view)> add) {
  return [add = std::move(add)](const toml::node& node) {
    if (const auto* text = node.as_string()) return add(text->get());
    const auto* list = node.as_array();
    if (list == nullptr) return std::string("must be a text in quotes, or a list of them");
    for (const auto& element : *list) {
      const auto* text = element.as_string();
      if (text == nullptr) return std::string("must be a list of texts in quotes");
      if (auto error = add(text->get()); !error.empty()) return error;
    }
    return std::string();
  };
}

Setter ids_setter(std::vector<std::uint32_t>& ids) {
  return [&ids](const toml::node& node) {
    const auto* list = node.as_array();
    if (list == nullptr) return std::string("must be a list of numbers");
    for (const auto& element : *list) {
      const auto id = integer(element, 0, std::numeric_limits<std::uint32_t>::max());
      if (!id) return std::string("must be a list of numbers");
      ids.push_back(static_cast<std::uint32_t>(*id));
    }
    return std::string();
  };
}

// Hands each entry of `table` to its setter; "LINE: sentence" of the first error, or empty.
std::string read_table(const toml::table& table, const std::map<std::string, Setter, std::less<>>& setters) {
  for (const auto& [key, node] : table) {
    const auto setter = setters.find(key.str());
    const auto error = setter == setters.end() ? std::string("unknown key") : setter->second(node);
    if (!error.empty()) return fmt::format("{}: {}: {}", key.source().begin.line, key.str(), error);
  }
  return {};
}

std::string read_nic(const toml::table& table, NicSpec& nic) {
  const std::map<std::string, Setter, std::less<>> setters = {
      {"name", text_setter([&](std::string_view text) {
         nic.name = text;
         return is_nic_name(text) ? std::string()
                                  : fmt::format("NIC name '{}' is not rxe followed by a number", text);
       })},
      {"port", text_setter([&](std::string_view text) { return parse_port(text, nic); })},
      {"kernel", text_setter([&](std::string_view text) { return set_kernel_interface(text, nic); })},
      {"ip", texts_setter([&](std::string_view text) { return add_address(text, nic); })},
      {"gateway", texts_setter([&](std::string_view text) { return add_gateway(text, nic); })},
      {"neighbour", texts_setter([&](std::string_view text) { return add_neighbour(text, nic); })},
      {"mac", text_setter([&](std::string_view text) { return set_mac(text, nic); })},
      {"gso",
       [&](const toml::node& node) {
         const auto value = node.value_exact<bool>();
         nic.gso = value.value_or(false);
         return std::string(value ? "" : "must be true or false");
       }},
      {"vlan",
       [&](const toml::node& node) {
         const auto id = integer(node, 1, kMaxVlan);
         if (!id) return fmt::format("must be a number from 1 to {}", kMaxVlan);
         nic.vlan = static_cast<std::uint16_t>(*id);
         return std::string();
       }},
      {"mtu",
       [&](const toml::node& node) {
         const auto mtu = integer(node, kMinMtuBytes, kMaxMtuBytes);
         if (!mtu) return fmt::format("must be a number from {} to {}", kMinMtuBytes, kMaxMtuBytes);
         nic.mtu_bytes = static_cast<std::uint32_t>(*mtu);
         return std::string();
       }},
  };
  if (auto error = read_table(table, setters); !error.empty()) return error;
  if (nic.name.empty()) return fmt::format("{}: a NIC needs a name", table.source().begin.line);
  return {};
}

// The errors of [[nic]] tables carry a line of their own, so they pass through `failed`.
std::string read_nics(const toml::node& node, DaemonConfig& config) {
  const auto* list = node.as_array();
  if (list == nullptr || !list->is_homogeneous<toml::table>()) {
    return fmt::format("{}: NICs are written as [[nic]] tables", node.source().begin.line);
  }
  for (const auto& element : *list) {
    NicSpec nic;
    if (auto error = read_nic(*element.as_table(), nic); !error.empty()) return error;
    config.nics.push_back(std::move(nic));
  }
  return {};
}

// What does not go with a NIC's port; or empty.
std::string check_port(const NicSpec& nic) {
  if ((!nic.gateways.empty() || !nic.neighbours.empty()) &&
      (nic.port == PortKind::kFabric || nic.port == PortKind::kUdp))
    return fmt::format("{}: gateway= and neighbour= are for ports with an Ethernet", nic.name);
  if (nic.vlan != 0 && (nic.port == PortKind::kFabric || nic.port == PortKind::kUdp))
    return fmt::format("{}: vlan= is for ports with an Ethernet that leads out", nic.name);
  if (nic.vlan != 0 && nic.addresses.empty())
    return fmt::format("{}: the interface's addresses are not those of its VLANs; give ip=ADDRESS/PREFIX",
                       nic.name);
  if (nic.port != PortKind::kUdp) {
    if (nic.gso) return fmt::format("{}: gso= is for udp ports", nic.name);
    if (is_on_interface(nic) || !nic.addresses.empty()) return {};
    return one_line(fmt::format("{}: a NIC on {} needs an ip=ADDRESS/PREFIX", nic.name,
                                nic.port == PortKind::kFabric ? "the fabric" : nic.port_text));
  }
  if (!nic.addresses.empty())
    return fmt::format("{}: port=udp:{} names the NIC's one address; leave out ip=", nic.name,
                       to_text(nic.local_address));
  if (!nic.kernel_interface.empty())
    return fmt::format("{}: what is not RoCE never comes to a udp port; leave out kernel=", nic.name);
  if (nic.mac) return fmt::format("{}: a NIC on a udp port has no MAC of its own; leave out mac=", nic.name);
  return {};
}

bool is_log_level(std::string_view text) {
  static constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warning", "error", "off"};
  return std::find(std::begin(kLevels), std::end(kLevels), text) != std::end(kLevels);
}

}  // namespace

std::string parse_port(std::string_view text, NicSpec& nic) {
  nic.port = PortKind::kFabric;
  nic.port_text = text;
  if (text == "fabric") return {};
  const PortForm* form = form_of(text);
  if (form == nullptr) return unknown_port(text);
  nic.port = form->kind;
  return form->parse(text.substr(form->prefix.size()), nic);
}

Parsed<emulator::NicAddress> parse_address(std::string_view text) {
  const auto slash = text.find('/');
  std::string host(text.substr(0, slash));
  if (host.find('\0') != host.npos) host.clear();  // inet_pton would not see what follows
  emulator::NicAddress address;
  std::uint8_t longest = 32;
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    address.gid = proto::Gid::from_ipv4(ntohl(v4.s_addr));
    const std::uint32_t value = address.gid.ipv4();
    if (value == 0 || value >= 0xE0000000) {
      return Unexpected{fmt::format("'{}' is not a unicast address", text)};
    }
  } else if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    std::copy(std::begin(v6.s6_addr), std::end(v6.s6_addr), address.gid.bytes.begin());
    longest = 128;
    if (v6.s6_addr[0] == 0xFF || address.gid == proto::Gid{} || address.gid.is_ipv4()) {
      return Unexpected{fmt::format("'{}' is not a unicast IPv6 address", text)};
    }
  } else {
    return Unexpected{fmt::format("'{}' is not an IP address with a prefix length (10.0.0.1/24)", text)};
  }
  if (slash == text.npos)
    return Unexpected{fmt::format("'{}' has no prefix length; write {}/24", text, text)};
  const auto prefix = parse_number<std::uint8_t>(text.substr(slash + 1), 1, longest);
  if (!prefix) return Unexpected{fmt::format("the prefix length of '{}' is not 1 to {}", text, longest)};
  address.prefix_length = *prefix;
  return address;
}

Parsed<proto::Mac> parse_mac(std::string_view text) {
  proto::Mac mac;
  bool good = text.size() == 17;
  for (std::size_t i = 0; good && i < 6; ++i) {
    const char* first = text.data() + 3 * i;
    const auto [end, error] = std::from_chars(first, first + 2, mac.bytes[i], 16);
    good = error == std::errc{} && end == first + 2 && (i == 5 || *end == ':');
  }
  if (!good) return Unexpected{fmt::format("'{}' is not a MAC address (02:00:00:00:00:01)", text)};
  if ((mac.bytes[0] & 1) != 0 || mac == proto::Mac{}) {
    return Unexpected{fmt::format("'{}' is not the MAC address of one station", text)};
  }
  return mac;
}

Parsed<NicSpec> parse_nic(std::string_view text) {
  NicSpec nic;
  const auto fail = [&](std::string why) {
    return Unexpected{one_line(fmt::format("--nic '{}': {}", text, why))};
  };
  std::set<std::string_view> seen;
  std::string port;
  for (std::size_t at = 0; at <= text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    const auto part = text.substr(at, comma - at);
    const auto equals = part.find('=');
    const auto key = part.substr(0, equals);
    const bool is_repeatable = key == "ip" || key == "gateway" || key == "neighbour";
    const bool is_ours =
        is_repeatable || key == "port" || key == "mac" || key == "mtu" || key == "kernel" || key == "vlan";
    if (at == 0) {
      if (!is_nic_name(part)) return fail(fmt::format("NIC name '{}' is not rxe followed by a number", part));
      nic.name = part;
    } else if (const PortForm* form = form_of(port); !is_ours && form != nullptr && form->has_options) {
      port += fmt::format(",{}", part);
    } else {
      if (equals == part.npos) return fail(fmt::format("'{}' is not key=value", part));
      const auto value = part.substr(equals + 1);
      if (!seen.insert(key).second && !is_repeatable) return fail(fmt::format("'{}' is given twice", key));
      std::string error;
      if (key == "port")
        port = value;
      else if (key == "ip")
        error = add_address(value, nic);
      else if (key == "gateway")
        error = add_gateway(value, nic);
      else if (key == "neighbour")
        error = add_neighbour(value, nic);
      else if (key == "mac")
        error = set_mac(value, nic);
      else if (key == "mtu")
        error = parse_mtu(value, nic);
      else if (key == "vlan")
        error = parse_vlan(value, nic);
      else if (key == "kernel")
        error = set_kernel_interface(value, nic);
      else if (key == "gso")
        error = parse_gso(value, nic);
      else
        error = fmt::format(
            "unknown key '{}'; there are port, ip, gateway, neighbour, mac, mtu, vlan, kernel and gso", key);
      if (!error.empty()) return fail(std::move(error));
    }
    at = comma + 1;
  }
  if (seen.count("port") != 0) {
    if (auto error = parse_port(port, nic); !error.empty()) return fail(std::move(error));
  }
  return nic;
}

std::string read_toml(std::string_view text, std::string_view name, DaemonConfig& config) {
  toml::table table;
  try {
    table = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return one_line(fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()));
  }
  std::string nic_error;
  const std::map<std::string, Setter, std::less<>> setters = {
      {"socket", text_setter([&](std::string_view value) {
         config.socket_path = value;
         return value.empty() ? std::string("must not be empty") : std::string();
       })},
      {"log_level", text_setter([&](std::string_view value) {
         config.log_level = value;
         return is_log_level(value) ? std::string() : fmt::format("unknown log level '{}'", value);
       })},
      {"shards",
       [&](const toml::node& node) {
         const auto count = integer(node, 1, kMaxShards);
         if (!count) return fmt::format("must be a number from 1 to {}", kMaxShards);
         config.shards = static_cast<std::uint32_t>(*count);
         return std::string();
       }},
      {"poll",
       [&](const toml::node& node) {
         const auto value = node.value_exact<bool>();
         config.poll = value.value_or(false);
         return std::string(value ? "" : "must be true or false");
       }},
      {"idle_exit",
       [&](const toml::node& node) {
         const auto seconds = integer(node, 0, 86400);
         if (!seconds) return std::string("must be a number of seconds from 0 to 86400");
         config.idle_exit_ms = *seconds * 1000;
         return std::string();
       }},
      {"allow_uid", ids_setter(config.allow_uids)},
      {"allow_gid", ids_setter(config.allow_gids)},
      {"eal", texts_setter([&](std::string_view value) {
         config.eal_arguments.emplace_back(value);
         return std::string();
       })},
      {"nic", [&](const toml::node& node) { return nic_error = read_nics(node, config); }},
  };
  auto error = read_table(table, setters);
  if (!nic_error.empty()) error = nic_error;
  return error.empty() ? error : one_line(fmt::format("{}:{}", name, error));
}

std::string check(const DaemonConfig& config) {
  if (config.nics.empty()) return "no NIC is configured; give --nic or -c FILE (see --help)";
  if (config.nics.size() > emulator::kMaxNics) {
    return fmt::format("{} NICs are configured, {} is the most", config.nics.size(), emulator::kMaxNics);
  }
  if (!is_log_level(config.log_level))
    return one_line(fmt::format("unknown log level '{}'", config.log_level));
  if (config.shards < 1 || config.shards > kMaxShards) {
    return fmt::format("{} shards are configured; it can be 1 to {}", config.shards, kMaxShards);
  }
  std::map<std::string, std::string> owners;  // of names, addresses, MACs, interfaces
  const auto claim = [&owners](const std::string& what, const std::string& nic) {
    const auto [owner, is_new] = owners.emplace(what, nic);
    return is_new ? std::string() : fmt::format("{}: {} is already that of {}", nic, what, owner->second);
  };
  for (std::size_t i = 0; i < config.nics.size(); ++i) {
    const NicSpec& nic = config.nics[i];
    if (!owners.emplace(nic.name, nic.name).second)
      return fmt::format("{}: there are two NICs of this name", nic.name);
    if (auto error = check_port(nic); !error.empty()) return error;
    for (const auto& address : nic.addresses) {
      if (auto error = claim("address " + to_text(address.gid), nic.name); !error.empty()) return error;
    }
    // An interface's MAC is not known yet, but only one NIC can have it.
    if (nic.mac || nic.port == PortKind::kFabric) {
      const auto mac = nic.mac.value_or(default_mac(i));
      if (auto error = claim("MAC " + to_text(mac), nic.name); !error.empty()) return error;
    } else if (is_on_interface(nic)) {
      if (auto error = claim("the MAC of interface " + nic.interface, nic.name); !error.empty())
        return error + "; give it one by mac=";
    }
    if (!nic.kernel_interface.empty()) {
      if (nic.port == PortKind::kFabric || nic.port == PortKind::kUdp)
        return one_line(fmt::format("{}: the kernel has no traffic on {} that kernel= could be for", nic.name,
                                    nic.port == PortKind::kFabric ? "the fabric" : nic.port_text));
      if (auto error = claim("interface " + nic.kernel_interface, nic.name); !error.empty()) return error;
    }
    if (nic.port == PortKind::kUdp) {
      if (auto error = claim("address " + to_text(nic.local_address), nic.name); !error.empty()) return error;
    }
    // Those who are on one interface have to reach it in one way.
    if (const auto [owner, is_new] = owners.emplace("interface " + nic.interface, nic.port_text);
        !nic.interface.empty() && !is_new && owner->second != nic.port_text) {
      return one_line(
          fmt::format("{}: interface {} is already in use by {}", nic.name, nic.interface, owner->second));
    }
    const auto of_port = [&nic](const NicSpec& other) { return other.port_text == nic.port_text; };
    if (nic.port == PortKind::kRing && std::count_if(config.nics.begin(), config.nics.end(), of_port) != 2)
      return fmt::format("{}: {} joins two NICs, no less and no more", nic.name, nic.port_text);
  }
  return {};
}

proto::Mac default_mac(std::size_t nic_index) {
  return proto::Mac{{0x02, 0, 0, 0, 0, static_cast<std::uint8_t>(nic_index + 1)}};
}

std::string to_text(const proto::Mac& mac) {
  return fmt::format("{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", mac.bytes[0], mac.bytes[1], mac.bytes[2],
                     mac.bytes[3], mac.bytes[4], mac.bytes[5]);
}

std::string to_text(const proto::Gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool v4 = gid.is_ipv4();
  inet_ntop(v4 ? AF_INET : AF_INET6, gid.bytes.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

bool is_on_interface(const NicSpec& nic) { return !nic.interface.empty() && nic.port != PortKind::kTap; }

std::string pci_address(const NicSpec& nic) {
  if (nic.port != PortKind::kDevice) return {};
  const auto name = nic.device.substr(0, nic.device.find(','));
  const bool is_pci = name.find('.') != name.npos && name.find(':') != name.npos &&
                      std::all_of(name.begin(), name.end(), [](char c) {
                        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') ||
                               c == ':' || c == '.';
                      });
  return is_pci ? name : std::string();
}

std::string default_socket_path() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return fmt::format("{}/rocinante/rocid.sock", runtime);
  return fmt::format("/tmp/rocinante-{}/rocid.sock", getuid());
}

}  // namespace roci::dpdk_port
