#include "verbs_shim/server/view.h"

#include <net/if.h>
#include <sched.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "verbs_shim/server/show.h"
#include "verbs_shim/server/unique_fd.h"
#include "verbs_shim/server/uverbs_numbers.h"

namespace roci::shim {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

void write_file(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail(path);
}

void write_line(const std::string& path, const std::string& text) { write_file(path, text + "\n"); }

std::string guid_text(std::uint64_t guid) {
  char text[24];
  std::snprintf(text, sizeof text, "%04x:%04x:%04x:%04x", static_cast<unsigned>(guid >> 48),
                static_cast<unsigned>(guid >> 32 & 0xFFFF), static_cast<unsigned>(guid >> 16 & 0xFFFF),
                static_cast<unsigned>(guid & 0xFFFF));
  return text;
}

std::string gid_text(const proto::Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < gid.bytes.size(); i += 2) {
    char group[8];
    std::snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid.bytes[i], gid.bytes[i + 1]);
    text += group;
  }
  return text;
}

// The CPUs this daemon may use, as local_cpus has them: 32-bit groups, the highest first.
std::string local_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  std::string text;
  for (int group = CPU_SETSIZE / 32 - 1; group >= 0; --group) {
    std::uint32_t bits = 0;
    for (int cpu = 0; cpu < 32; ++cpu)
      if (CPU_ISSET(static_cast<std::size_t>(group * 32 + cpu), &set)) bits |= 1u << cpu;
    if (text.empty() && bits == 0 && group != 0) continue;
    char word[12];
    std::snprintf(word, sizeof word, "%s%08x", text.empty() ? "" : ",", bits);
    text += word;
  }
  return text;
}

// Counters that the kernel's files have under another name than ours, or in another unit. Ours appear under
// their own names too, in hw_counters.
struct CounterFile {
  const char* path;
  std::uint64_t (*value)(const emulator::Counters&);
};
constexpr CounterFile kCounterFiles[] = {
    {"counters/port_xmit_data", [](const emulator::Counters& c) { return c.tx_bytes / 4; }},
    {"counters/port_rcv_data", [](const emulator::Counters& c) { return c.rx_bytes / 4; }},
    {"counters/port_xmit_packets", [](const emulator::Counters& c) { return c.tx_frames; }},
    {"counters/port_rcv_packets", [](const emulator::Counters& c) { return c.rx_frames; }},
    {"counters/port_rcv_errors",
     [](const emulator::Counters& c) {
       return c.dropped[static_cast<std::size_t>(emulator::DropReason::kMalformed)] +
              c.dropped[static_cast<std::size_t>(emulator::DropReason::kBadIcrc)];
     }},
    {"counters/port_xmit_discards", [](const emulator::Counters&) { return std::uint64_t{0}; }},
    {"counters/symbol_error", [](const emulator::Counters&) { return std::uint64_t{0}; }},
    {"counters/link_downed", [](const emulator::Counters&) { return std::uint64_t{0}; }},
    {"hw_counters/sent_pkts", [](const emulator::Counters& c) { return c.tx_roce_packets; }},
    {"hw_counters/rcvd_pkts", [](const emulator::Counters& c) { return c.rx_roce_packets; }},
    {"hw_counters/duplicate_request", [](const emulator::Counters& c) { return c.duplicate_requests; }},
    {"hw_counters/out_of_seq_request", [](const emulator::Counters& c) { return c.out_of_sequence; }},
    {"hw_counters/rcvd_rnr_err", [](const emulator::Counters& c) { return c.rnr_naks_received; }},
    {"hw_counters/send_rnr_err", [](const emulator::Counters& c) { return c.rnr_naks_sent; }},
    {"hw_counters/retry_exceeded_err", [](const emulator::Counters& c) { return c.retry_exceeded; }},
#define X(member, what) {"hw_counters/" #member, [](const emulator::Counters& c) { return c.member; }},
    ROCI_COUNTERS(X)
#undef X
};

// Device numbers: a character device of no driver, one minor a NIC.
constexpr unsigned kMajor = 231, kFirstMinor = 192;

}  // namespace

Views::Views(std::string root, const std::vector<emulator::NicConfig>& nics,
             const std::vector<std::string>& port_names)
    : root_(std::move(root)), nics_(nics), port_names_(port_names), written_(nics.size()) {
  for (const emulator::NicConfig& nic : nics_)
    up_.push_back(nic.link_up);
  fs::remove_all(root_);
}

Views::~Views() {
  std::error_code ignored;  // what stays behind is emptied by the next daemon
  fs::remove_all(root_, ignored);
}

const std::string& Views::path(std::uint64_t nics) {
  if (const auto known = trees_.find(nics); known != trees_.end()) return known->second;
  if (trees_.size() == kMaxTrees)
    throw std::system_error(ENOSPC, std::generic_category(), "there are views of too many sets of NICs");
  char name[20];
  std::snprintf(name, sizeof name, "%llx", static_cast<unsigned long long>(nics));
  const std::string tree = root_ + "/" + name;
  fs::remove_all(tree);
  make_tree(tree, nics);
  return trees_.emplace(nics, tree).first->second;
}

std::optional<std::uint64_t> Views::nics_of(const std::string& path) const {
  for (const auto& [nics, tree] : trees_)
    if (tree == path) return nics;
  return std::nullopt;
}

void Views::make_tree(const std::string& tree, std::uint64_t nics) {
  for (const char* folder :
       {"/class/infiniband_verbs", "/class/infiniband", "/class/misc/rdma_cm", "/dev/infiniband"})
    fs::create_directories(tree + folder);
  write_line(tree + "/class/infiniband_verbs/abi_version", std::to_string(IB_USER_VERBS_ABI_VERSION));
  write_line(tree + "/class/misc/rdma_cm/abi_version", "4");
  write_line(tree + "/class/misc/rdma_cm/dev", "10:122");
  write_file(tree + "/dev/infiniband/rdma_cm", "");
  for (std::size_t index = 0; index < nics_.size(); ++index)
    if ((nics >> index & 1) != 0) make_nic(tree, index);
  write_addresses(tree, nics);
}

// For getifaddrs(): "INTERFACE ADDRESS PREFIX_LENGTH". One that has no interface in the kernel has the NIC's
// name.
void Views::write_addresses(const std::string& tree, std::uint64_t nics) {
  std::string text;
  for (std::size_t index = 0; index < nics_.size(); ++index) {
    if ((nics >> index & 1) == 0) continue;
    std::string interface = interface_of(index);
    if (interface == "lo") interface = nics_[index].name;
    for (const emulator::NicAddress& address : nics_[index].addresses) {
      if (address.gid == proto::Gid{}) continue;
      text.append(interface).append(" ").append(address_text(address.gid));
      text.append(" ").append(std::to_string(address.prefix_length)).append("\n");
    }
  }
  write_file(tree + "/addresses.new", text);
  fs::rename(tree + "/addresses.new", tree + "/addresses");  // who reads sees it whole
}

void Views::make_nic(const std::string& tree, std::size_t index) {
  const emulator::NicConfig& nic = nics_[index];
  const std::string interface = interface_of(index);
  const std::string below = "devices/virtual/rocinante/" + nic.name;
  const std::string device = tree + "/" + below;
  const std::string ib = device + "/infiniband/" + nic.name;
  const std::string uverbs = "uverbs" + std::to_string(index);
  const std::string verbs = tree + "/class/infiniband_verbs/" + uverbs;
  const std::string net = device + "/net/" + interface;
  for (const std::string& folder : {ib, verbs, net})
    fs::create_directories(folder);

  write_line(device + "/numa_node", "-1");
  write_line(device + "/local_cpus", local_cpus());
  write_line(verbs + "/abi_version", "1");
  write_line(verbs + "/dev", std::to_string(kMajor) + ":" + std::to_string(kFirstMinor + index));
  write_line(verbs + "/ibdev", nic.name);
  fs::create_symlink("../../../" + below, verbs + "/device");
  fs::create_symlink("../../" + below + "/infiniband/" + nic.name, tree + "/class/infiniband/" + nic.name);
  fs::create_symlink("../..", ib + "/device");
  write_file(tree + "/dev/infiniband/" + uverbs, "");

  const std::string guid = guid_text(guid_of(nic.mac));
  write_line(ib + "/node_type", "1: CA");
  write_line(ib + "/node_guid", guid);
  write_line(ib + "/sys_image_guid", guid);
  write_line(ib + "/fw_ver", "");
  write_line(ib + "/node_desc", nic.name);
  write_line(ib + "/parent", interface);
  make_port(port_folder(tree, index), index);
}

void Views::make_port(const std::string& port, std::size_t index) {
  for (const char* folder :
       {"/pkeys", "/gids", "/gid_attrs/types", "/gid_attrs/ndevs", "/counters", "/hw_counters"})
    fs::create_directories(port + folder);
  write_line(port + "/state", port_state(up_[index]).text);
  write_line(port + "/phys_state", physical_state(up_[index]).text);
  write_line(port + "/rate", kRateText);
  write_line(port + "/link_layer", "Ethernet");
  write_line(port + "/lid", "0x0");
  write_line(port + "/sm_lid", "0x0");
  write_line(port + "/sm_sl", "0");
  write_line(port + "/lid_mask_count", "0");
  char capabilities[16];
  std::snprintf(capabilities, sizeof capabilities, "0x%08x", kPortCmSupported);
  write_line(port + "/cap_mask", capabilities);
  write_line(port + "/pkeys/0", "0xffff");
  write_gids(port, index);
  for (const CounterFile& file : kCounterFiles) {
    const auto known = written_[index].emplace(file.path, 0).first;
    write_line(port + "/" + file.path, std::to_string(known->second));
  }
}

void Views::write_gids(const std::string& port, std::size_t index) {
  std::vector<proto::Gid> gids = emulator::gid_table(nics_[index]);
  gids.resize(std::max<std::size_t>(gids.size(), kLeastGidTableLength));
  const std::string values = port + "/gids/", types = port + "/gid_attrs/types/",
                    ndevs = port + "/gid_attrs/ndevs/";
  for (std::size_t i = 0; i < gids.size(); ++i) {
    const std::string number = std::to_string(i);
    const bool is_free = gids[i] == proto::Gid{};
    write_line(values + number, gid_text(gids[i]));
    // libibverbs reads the type of every entry, and takes this for that of an empty one.
    write_line(types + number, is_free ? "IB/RoCE v1" : "RoCE v2");
    if (!is_free)
      write_line(ndevs + number, interface_of(index));
    else
      fs::remove(ndevs + number);
  }
}

// An interface that exists: "af_packet:eth0" names its own, others use the loopback.
std::string Views::interface_of(std::size_t index) const {
  const std::string& port = port_names_[index];
  const std::size_t colon = port.find(':');
  const std::string name = colon == std::string::npos ? "lo" : port.substr(colon + 1);
  return ::if_nametoindex(name.c_str()) != 0 ? name : "lo";
}

std::string Views::port_folder(const std::string& tree, std::size_t index) const {
  const std::string& name = nics_[index].name;
  return tree + "/devices/virtual/rocinante/" + name + "/infiniband/" + name + "/ports/1";
}

void Views::refresh(emulator::NicId nic, const emulator::Counters& counters) {
  for (const CounterFile& file : kCounterFiles) {
    const std::uint64_t value = file.value(counters);
    std::uint64_t& written = written_[nic.index][file.path];
    if (written == value) continue;
    written = value;
    for (const auto& [set, tree] : trees_)
      if ((set >> nic.index & 1) != 0)
        write_line(port_folder(tree, nic.index) + "/" + file.path, std::to_string(value));
  }
}

void Views::set_link(emulator::NicId nic, bool up) {
  up_[nic.index] = up;
  for (const auto& [set, tree] : trees_) {
    if ((set >> nic.index & 1) == 0) continue;
    write_line(port_folder(tree, nic.index) + "/state", port_state(up).text);
    write_line(port_folder(tree, nic.index) + "/phys_state", physical_state(up).text);
  }
}

void Views::change_gids(emulator::NicId nic) {
  for (const auto& [set, tree] : trees_)
    if ((set >> nic.index & 1) != 0) {
      write_gids(port_folder(tree, nic.index), nic.index);
      write_addresses(tree, set);
    }
}

}  // namespace roci::shim
