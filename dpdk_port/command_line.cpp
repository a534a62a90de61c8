#include "dpdk_port/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace roci::dpdk_port {
namespace {

using proto::Unexpected;

constexpr const char* kDescription =
    "rocid: RoCE v2 network cards in user space. It needs no hardware, kernel module or privilege;\n"
    "applications reach it through `roci run -- APPLICATION`.";

constexpr const char* kExamples = R"(
NICs: NAME[,port=PORT][,ip=ADDRESS/PREFIX]...[,gateway=ADDRESS]...[,neighbour=ADDRESS@MAC]...
      [,mac=MAC][,mtu=BYTES][,vlan=ID][,kernel=NAME][,gso=on]
  NAME   rxe followed by a number
  PORT   fabric                joined with the daemon's other NICs on the fabric (default)
         af_packet:INTERFACE   beside the kernel on a network interface; needs root or CAP_NET_RAW
         af_xdp:INTERFACE      takes all frames of an interface from the kernel; needs root, or CAP_NET_RAW,
                               CAP_NET_ADMIN and CAP_BPF; path MTU 2048 at most
         tap:NAME              makes an interface of the kernel, for a bridge or the kernel as a peer; needs root
                               or CAP_NET_ADMIN, or an interface made by `ip tuntap add NAME mode tap user USER`
         memif:server=SOCKET[,id=N], memif:client=SOCKET[,id=N]
                               shared memory with another process, such as a rocid of the other role
         pcap:rx=FILE[,tx=FILE], pcap:tx=FILE
                               receives what a capture has, and writes what it sends into another
         pcap:iface=INTERFACE  as af_packet, by libpcap
         ring:NAME             joined with another NIC of the daemon by DPDK's rings
         dev:DEVICE            any device of DPDK by PCI address, or by driver with arguments
         udp:ADDRESS           on UDP sockets of this host's ADDRESS; needs no privilege
         NICs with the same port share it, each with a MAC of its own
  ip     may be repeated; on an interface the default is its own addresses; not with udp
  gateway for what is not on link, one of IPv4 and one of IPv6; only where the port is an Ethernet
  neighbour whose MAC is not asked for; may be repeated; only where the port is an Ethernet
  vlan   the NIC's frames carry this 802.1Q tag, 1 to 4094; not on the fabric and not with udp
  kernel makes an interface NAME with the NIC's MAC and addresses, for all traffic that is not RoCE
  gso    with udp: the kernel cuts runs of packets, at half the cost; see dpdk_port/README.md

Examples:
  two NICs on the virtual fabric, as an ordinary user
    rocid --nic rxe0,ip=127.77.0.1/24 --nic rxe1,ip=127.77.0.2/24
  one NIC beside the kernel on eth0, with eth0's addresses
    rocid --nic rxe0,port=af_packet:eth0
  one NIC in an unprivileged container whose address is 10.0.0.2
    rocid --nic rxe0,port=udp:10.0.0.2
  a NIC that takes eth1 from the kernel, which has the other traffic by interface rxe0k
    rocid --nic rxe0,port=af_xdp:eth1,ip=10.0.0.7/24,kernel=rxe0k
  an interface tap0 for a bridge; jumbo frames
    rocid --nic rxe0,port=tap:tap0,ip=10.0.0.7/24,mtu=9000
  two daemons joined by shared memory
    rocid --nic rxe0,port=memif:server=/tmp/a.sock,ip=10.0.0.1/24
    rocid --nic rxe0,port=memif:client=/tmp/a.sock,ip=10.0.0.2/24 --socket /tmp/b/rocid.sock
  a capture as input; libpcap on an interface; two NICs joined by rings
    rocid --nic rxe0,port=pcap:rx=in.pcap,tx=out.pcap,ip=10.0.0.1/24
    rocid --nic rxe0,port=pcap:iface=eth0,ip=10.0.0.7/24
    rocid --nic rxe0,port=ring:a,ip=10.0.0.1/24 --nic rxe1,port=ring:a,ip=10.0.0.2/24
  a network card that is bound to vfio-pci; a driver with its arguments
    rocid --nic rxe0,port=dev:0000:03:00.0,ip=10.0.0.7/24,mtu=9000
    rocid --nic rxe0,port=dev:net_null0,size=64,ip=10.0.0.7/24
  the one beside the kernel in a file, nics.toml, for `rocid -c nics.toml`
    idle_exit = 10
    [[nic]]
    name = "rxe0"
    port = "af_packet:eth0"
    ip = ["10.0.0.7/24"]
  arguments for DPDK's EAL
    rocid -c nics.toml -- --log-level=debug

Exit status: 0 stopped by SIGTERM, SIGINT or --idle-exit; 1 cannot run; 2 bad configuration)";

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

template <class T>
void prevail(const std::optional<T>& option, T& setting) {
  if (option) setting = *option;
}

std::string read_file(const std::string& path, DaemonConfig& config) {
  std::ifstream file(path);
  if (!file) return fmt::format("{}: {}", path, std::generic_category().message(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));  // unlike an iterator, it does not throw
  if (file.bad()) return fmt::format("{}: cannot be read", path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) return fmt::format("{}: longer than {} bytes", path, kMaxFileBytes);
  return read_toml(text, path, config);
}

}  // namespace

Parsed<CommandLine> parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  const auto end = argv + argc;
  const auto dashes = std::find(argv, end, std::string_view("--"));

  CLI::App app(kDescription, "rocid");
  app.footer(kExamples);
  app.set_version_flag("-V,--version", "rocid " ROCI_VERSION);
  std::vector<std::string> nics;
  std::optional<std::string> file;
  std::optional<std::string> socket, log_level;
  std::optional<std::uint32_t> shards;
  std::optional<double> idle_exit;
  bool poll = false;
  std::vector<std::uint32_t> uids, gids;
  app.add_option("--nic", nics, "a NIC, see below; may be repeated")
      ->type_name("NIC")
      ->expected(1)
      ->take_all();
  app.add_option("-c,--config", file, "TOML file with NICs and any of these options")->type_name("FILE");
  app.add_option("--socket", socket, "where applications find it [$XDG_RUNTIME_DIR or /tmp/rocinante-UID]")
      ->type_name("PATH");
  app.add_option("--idle-exit", idle_exit, "end this long after the last application left [never]")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_flag("--poll", poll, "never sleep: for cores of its own");
  app.add_option("--shards", shards, "poll threads [1]")->type_name("N")->check(CLI::Range(1U, kMaxShards));
  app.add_option("--log-level", log_level, "trace, debug, info, warning, error or off [info]")
      ->type_name("LEVEL");
  app.add_option("--allow-uid", uids, "another user who may use it; may be repeated")
      ->type_name("UID")
      ->expected(1)
      ->take_all();
  app.add_option("--allow-gid", gids, "another group that may use it; may be repeated")
      ->type_name("GID")
      ->expected(1)
      ->take_all();
  app.add_option("--ready-fd", line.ready_fd, "write a newline to this file descriptor once it serves")
      ->type_name("FD")
      ->check(CLI::Range(0, 1 << 20));
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    line.only_printed = true;
    return line;
  } catch (const CLI::CallForVersion& version) {
    std::puts(version.what());
    line.only_printed = true;
    return line;
  } catch (const CLI::ParseError& error) {
    std::string why = error.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    return Unexpected{why + " (see --help)"};
  }

  if (idle_exit && std::isnan(*idle_exit))  // which CLI::Range lets pass
    return Unexpected{std::string("--idle-exit: not a number (see --help)")};

  DaemonConfig& config = line.config;
  if (file) {
    if (file->empty()) return Unexpected{std::string("-c: the name of the file is empty")};
    if (auto error = read_file(*file, config); !error.empty()) return Unexpected{std::move(error)};
  }
  for (const auto& text : nics) {
    auto nic = parse_nic(text);
    if (!nic) return Unexpected{nic.error()};
    config.nics.push_back(std::move(nic).value());
  }
  prevail(socket, config.socket_path);
  prevail(log_level, config.log_level);
  prevail(shards, config.shards);
  if (idle_exit) config.idle_exit_ms = static_cast<std::int64_t>(*idle_exit * 1000);
  config.poll = config.poll || poll;
  config.allow_uids.insert(config.allow_uids.end(), uids.begin(), uids.end());
  config.allow_gids.insert(config.allow_gids.end(), gids.begin(), gids.end());
  if (dashes != end) config.eal_arguments.insert(config.eal_arguments.end(), dashes + 1, end);
  config.socket_path = config.socket_path.empty() ? default_socket_path()
                                                  : std::filesystem::absolute(config.socket_path).string();
  if (auto error = check(config); !error.empty()) return Unexpected{std::move(error)};
  return line;
}

}  // namespace roci::dpdk_port
