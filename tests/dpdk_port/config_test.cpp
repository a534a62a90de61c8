// What rocid accepts from its user, and that everything else is refused with one sentence that says what is
// wrong.
#include "dpdk_port/config.h"

#include <catch2/catch.hpp>

#include "dpdk_port/nics.h"

using namespace roci;
using namespace roci::dpdk_port;

namespace {

std::string nic_error(std::string_view text) {
  const auto nic = parse_nic(text);
  REQUIRE_FALSE(nic);
  REQUIRE(nic.error().find('\n') == std::string::npos);
  return nic.error();
}

std::string toml_error(std::string_view text) {
  DaemonConfig config;
  return read_toml(text, "nics.toml", config);
}

DaemonConfig config_of(std::vector<std::string> nics) {
  DaemonConfig config;
  for (const auto& text : nics) {
    auto nic = parse_nic(text);
    REQUIRE(nic);
    config.nics.push_back(*nic);
  }
  return config;
}

}  // namespace

TEST_CASE("a NIC of the command line, with everything") {
  const auto nic =
      parse_nic("rxe12,port=af_packet:eth0,ip=10.1.2.3/16,ip=fd00::7/64,mac=02:aa:BB:00:00:0f,mtu=1500");
  REQUIRE(nic);
  CHECK(nic->name == "rxe12");
  CHECK(nic->port == PortKind::kAfPacket);
  CHECK(nic->interface == "eth0");
  REQUIRE(nic->addresses.size() == 2);
  CHECK(nic->addresses[0].gid == proto::Gid::from_ipv4(0x0A010203));
  CHECK(nic->addresses[0].prefix_length == 16);
  CHECK(to_text(nic->addresses[1].gid) == "fd00::7");
  CHECK(nic->addresses[1].prefix_length == 64);
  CHECK(to_text(nic->mac.value()) == "02:aa:bb:00:00:0f");
  CHECK(nic->mtu_bytes == 1500);
  CHECK(nic->port_text == "af_packet:eth0");
}

TEST_CASE("gateways and neighbours of a NIC") {
  const auto nic = parse_nic(
      "rxe0,port=af_packet:eth0,gateway=10.0.0.254,gateway=fe80::1,neighbour=10.0.0.9@02:00:00:00:00:09,"
      "neighbour=fd00::9@02:00:00:00:00:0a");
  REQUIRE(nic);
  REQUIRE(nic->gateways.size() == 2);
  CHECK(to_text(nic->gateways[0]) == "10.0.0.254");
  CHECK(to_text(nic->gateways[1]) == "fe80::1");
  REQUIRE(nic->neighbours.size() == 2);
  CHECK(to_text(nic->neighbours[0].gid) == "10.0.0.9");
  CHECK(to_text(nic->neighbours[1].mac) == "02:00:00:00:00:0a");
  for (const char* port : {"fabric,ip=10.0.0.1/24", "udp:127.0.0.1"}) {
    DaemonConfig config;
    config.nics = {*parse_nic(std::string("rxe0,gateway=10.0.0.254,port=") + port)};
    CHECK(check(config) == "rxe0: gateway= and neighbour= are for ports with an Ethernet");
  }
}

TEST_CASE("a NIC is on the fabric unless said otherwise") {
  const auto nic = parse_nic("rxe0,ip=127.77.0.1/24");
  REQUIRE(nic);
  CHECK(nic->port == PortKind::kFabric);
  CHECK_FALSE(nic->mac);
  CHECK(to_text(default_mac(0)) == "02:00:00:00:00:01");
}

TEST_CASE("a port of every kind, and what DPDK is told of it") {
  struct Expected {
    std::string text;
    PortKind kind;
    std::string interface, device, pci;
  };
  const auto expected = GENERATE(values<Expected>({
      {"fabric", PortKind::kFabric, "", "", ""},
      {"af_packet:eth0", PortKind::kAfPacket, "eth0", "", ""},
      {"af_xdp:eth0", PortKind::kAfXdp, "eth0", "", ""},
      {"tap:tap0", PortKind::kTap, "tap0", "", ""},
      {"memif:server=/a.sock", PortKind::kMemif, "", "role=server,socket=/a.sock,socket-abstract=no,id=0",
       ""},
      {"memif:id=7,client=/a.sock", PortKind::kMemif, "",
       "role=client,socket=/a.sock,socket-abstract=no,id=7", ""},
      {"pcap:rx=a.pcap", PortKind::kPcap, "", "rx_pcap=a.pcap", ""},
      {"pcap:rx=a.pcap,tx=b.pcap", PortKind::kPcap, "", "rx_pcap=a.pcap,tx_pcap=b.pcap", ""},
      {"pcap:iface=eth0", PortKind::kPcap, "eth0", "rx_iface_in=eth0,tx_iface=eth0", ""},
      {"ring:a", PortKind::kRing, "", "", ""},
      {"dev:net_null0,size=64,copy=1", PortKind::kDevice, "", "net_null0,size=64,copy=1", ""},
      {"dev:0000:03:00.0", PortKind::kDevice, "", "0000:03:00.0", "0000:03:00.0"},
      {"dev:03:00.1,representor=0", PortKind::kDevice, "", "03:00.1,representor=0", "03:00.1"},
  }));
  CAPTURE(expected.text);
  // What follows in the same list and is a NIC's own key is no argument of the port.
  const auto nic = parse_nic("rxe0,kernel=k0,port=" + expected.text + ",mtu=1500,ip=10.0.0.1/24");
  REQUIRE(nic);
  CHECK(nic->port == expected.kind);
  CHECK(nic->port_text == expected.text);
  CHECK(nic->interface == expected.interface);
  CHECK(nic->device == expected.device);
  CHECK(pci_address(*nic) == expected.pci);
  CHECK(nic->kernel_interface == "k0");
  CHECK(nic->mtu_bytes == 1500);
  NicSpec same;
  CHECK(parse_port(expected.text, same).empty());
  CHECK(same.device == expected.device);
}

TEST_CASE("NICs with the same port share it, but for a ring") {
  const auto nics = resolve(config_of({"rxe0,ip=10.0.0.1/24", "rxe1,port=tap:a,ip=10.0.0.2/24,mtu=9000",
                                       "rxe2,port=tap:a,ip=10.0.0.3/24", "rxe3,port=ring:a,ip=10.0.0.4/24",
                                       "rxe4,port=ring:a,ip=10.0.0.5/24", "rxe5,port=dev:a,ip=10.0.0.6/24"})
                                .nics);
  REQUIRE(nics);
  std::vector<std::vector<std::size_t>> shared;
  for (const auto& plan : plan_ports(*nics))
    shared.push_back(plan.nics);
  CHECK(shared == std::vector<std::vector<std::size_t>>{{1, 2}, {3}, {4}, {5}});
  CHECK(plan_ports(*nics).front().mtu_bytes == 9000);
  CHECK((*nics)[1].config.mac != (*nics)[2].config.mac);
  CHECK((*nics)[1].config.mac != proto::Mac{});
  CHECK((*nics)[5].config.mac == proto::Mac{});  // the device's, which is not there yet
}

TEST_CASE("a wrong NIC is refused with the reason") {
  const auto [text, reason] = GENERATE(table<std::string, std::string>({
      {"", "NIC name '' is not rxe"},
      {"mlx5_0,ip=10.0.0.1/24", "NIC name 'mlx5_0' is not rxe"},
      {"rxe,ip=10.0.0.1/24", "NIC name 'rxe' is not rxe"},
      {"rxe0x,ip=10.0.0.1/24", "NIC name 'rxe0x' is not rxe"},
      {"rxe0,ip", "'ip' is not key=value"},
      {"rxe0,,ip=10.0.0.1/24", "'' is not key=value"},
      {"rxe0,address=10.0.0.1/24", "unknown key 'address'"},
      {"rxe0,ip=10.0.0.1", "has no prefix length"},
      {"rxe0,ip=10.0.0.1/0", "prefix length of '10.0.0.1/0' is not 1 to 32"},
      {"rxe0,ip=10.0.0.1/33", "is not 1 to 32"},
      {"rxe0,ip=fd00::1/129", "is not 1 to 128"},
      {"rxe0,ip=10.0.0/24", "is not an IP address"},
      {"rxe0,ip=224.0.0.1/24", "is not a unicast address"},
      {"rxe0,ip=ff02::1/64", "is not a unicast IPv6 address"},
      {"rxe0,ip=::ffff:10.0.0.1/96", "is not a unicast IPv6 address"},
      {"rxe0,gateway=10.0.0.1/24", "gateway '10.0.0.1/24' is not the address of one station"},
      {"rxe0,gateway=10.0.0.1,gateway=10.0.0.2", "gateway '10.0.0.2' is the second of its family"},
      {"rxe0,neighbour=10.0.0.1", "neighbour '10.0.0.1' is not ADDRESS@MAC"},
      {"rxe0,neighbour=10.0.0@02:00:00:00:00:01", "neighbour '10.0.0' is not the address of one station"},
      {"rxe0,neighbour=10.0.0.1@ff:ff:ff:ff:ff:ff", "is not the MAC address of one station"},
      {"rxe0,mac=2:0:0:0:0:1", "is not a MAC address"},
      {"rxe0,mac=02:00:00:00:00:0g", "is not a MAC address"},
      {"rxe0,mac=02-00-00-00-00-01", "is not a MAC address"},
      {"rxe0,mac=ff:ff:ff:ff:ff:ff", "is not the MAC address of one station"},
      {"rxe0,mtu=575", "is not a number from 576"},
      {"rxe0,mtu=9217", "to 9216"},
      {"rxe0,mtu=1500 ", "is not a number"},
      {"rxe0,mtu=1500,mtu=1500", "'mtu' is given twice"},
      {"rxe0,port=carrier:eth0", "unknown port 'carrier:eth0'; there are fabric, af_packet:INTERFACE, "},
      {"rxe0,port=tap:", "'' is not the name of an interface"},
      {"rxe0,port=tap:tap%d", "is not the name of an interface"},
      {"rxe0,port=af_xdp:a/b", "is not the name of an interface"},
      {"rxe0,port=memif:", "'' is not key=value"},
      {"rxe0,port=memif:id=3", "memif needs server=SOCKET on one side and client=SOCKET on the other"},
      {"rxe0,port=memif:server=/a,client=/b", "it is either server or client"},
      {"rxe0,port=memif:server=", "'' is not the path of a socket"},
      {"rxe0,port=memif:server=/a,id=x", "id 'x' is not a number"},
      {"rxe0,port=memif:server=/a,size=3", "unknown 'size'; memif needs"},
      {"rxe0,port=pcap:", "'' is not key=value"},
      {"rxe0,port=pcap:rx=/a,rx=/b", "'rx' is given twice"},
      {"rxe0,port=pcap:rx=/a,iface=eth0", "pcap has either an iface or files"},
      {"rxe0,port=pcap:iface=eth0,tx=/a", "pcap has either an iface or files"},
      {"rxe0,port=pcap:rx=[a", "'[a' is not the path of a file"},
      {"rxe0,port=pcap:rx=/a,snaplen=3", "unknown 'snaplen'; pcap needs"},
      {"rxe0,port=ring:", "ring '' is not a name"},
      {"rxe0,port=ring:a_b", "ring 'a_b' is not a name of at most 12 letters and digits"},
      {"rxe0,port=dev:", "'' is not the name of a DPDK device"},
      {"rxe0,port=dev:iface=eth0", "'iface=eth0' is not the name of a DPDK device"},
      {"rxe0,port=tap:tap0,iface=eth0",
       "unknown key 'iface'; there are port, ip, gateway, neighbour, mac, mtu, vlan, kernel and gso"},
      {"rxe0,port=tap:tap0,kernel=a/b", "'a/b' is not the name of an interface"},
      {"rxe0,port=af_packet:", "is not the name of an interface"},
      {"rxe0,port=af_packet:0123456789abcdef", "is not the name of an interface"},
      {"rxe0,port=udp:", "'' is not the address of one host"},
      {"rxe0,port=udp:eth0", "'eth0' is not the address of one host"},
      {"rxe0,port=udp:0.0.0.0", "is not the address of one host"},
      {"rxe0,port=udp:239.1.1.1", "is not the address of one host"},
      {"rxe0,port=udp:::", "is not the address of one host"},
      {"rxe0,port=udp:::ffff:10.0.0.2", "is not the address of one host"},
      {"rxe0,port=udp:10.0.0.2/24", "udp takes an address without a prefix length"},
      {"rxe0,port=udp:10.0.0.2,gso=yes", "gso 'yes' is neither on nor off"},
      {"rxe0,port=tap:t,ip=10.0.0.2/24,vlan=0", "vlan '0' is not a number from 1 to 4094"},
      {"rxe0,port=tap:t,ip=10.0.0.2/24,vlan=4095", "vlan '4095' is not a number from 1 to 4094"},
      {"rxe0,port=udp:fe80::1", "udp cannot have a link-local address"},
  }));
  CAPTURE(text);
  CHECK_THAT(nic_error(text), Catch::Contains(reason) && Catch::StartsWith("--nic '" + text + "'"));
}

TEST_CASE("a NIC on UDP sockets has its port's address and nothing else") {
  const auto nic = parse_nic("rxe0,port=udp:10.0.0.2,mtu=1500");
  REQUIRE(nic);
  CHECK(nic->port == PortKind::kUdp);
  CHECK(nic->addresses.empty());
  CHECK(nic->port_text == "udp:10.0.0.2");
  CHECK(check(config_of({"rxe0,port=udp:10.0.0.2", "rxe1,port=udp:fd00::2"})).empty());
  CHECK(check(config_of({"rxe0,port=udp:10.0.0.2,ip=10.0.0.2/24"})) ==
        "rxe0: port=udp:10.0.0.2 names the NIC's one address; leave out ip=");
  CHECK(check(config_of({"rxe0,port=udp:10.0.0.2,mac=02:00:00:00:00:01"})) ==
        "rxe0: a NIC on a udp port has no MAC of its own; leave out mac=");
  CHECK(check(config_of({"rxe0,port=udp:10.0.0.2,kernel=tap0"})) ==
        "rxe0: what is not RoCE never comes to a udp port; leave out kernel=");
  CHECK(check(config_of({"rxe0,ip=10.0.0.2/24,gso=on"})) == "rxe0: gso= is for udp ports");
  for (const char* on_none : {"rxe0,ip=10.0.0.2/24,vlan=7", "rxe0,port=udp:10.0.0.2,vlan=7"})
    CHECK(check(config_of({on_none})) == "rxe0: vlan= is for ports with an Ethernet that leads out");
  CHECK(check(config_of({"rxe0,port=af_packet:eth0,vlan=7"})) ==
        "rxe0: the interface's addresses are not those of its VLANs; give ip=ADDRESS/PREFIX");
  CHECK(parse_nic("rxe0,port=tap:t,ip=10.0.0.2/24,vlan=7")->vlan == 7);
  CHECK_FALSE(nic->gso);
  CHECK(parse_nic("rxe0,port=udp:10.0.0.2,gso=on")->gso);
  CHECK_FALSE(parse_nic("rxe0,port=udp:10.0.0.2,gso=off")->gso);
  for (const char* other : {"rxe1,port=udp:10.0.0.2", "rxe1,ip=10.0.0.2/24"}) {
    CHECK(check(config_of({"rxe0,port=udp:10.0.0.2", other})) ==
          "rxe1: address 10.0.0.2 is already that of rxe0");
  }
}

TEST_CASE("what two NICs cannot share") {
  CHECK(check(config_of({"rxe0,ip=10.0.0.1/24", "rxe1,ip=10.0.0.2/24"})).empty());
  CHECK(check(config_of({"rxe0,ip=10.0.0.1/24", "rxe0,ip=10.0.0.2/24"})) ==
        "rxe0: there are two NICs of this name");
  CHECK(check(config_of({"rxe0,ip=10.0.0.1/24", "rxe1,ip=10.0.0.1/16"})) ==
        "rxe1: address 10.0.0.1 is already that of rxe0");
  CHECK(check(config_of({"rxe0,ip=10.0.0.1/24", "rxe1,ip=10.0.0.2/24,mac=02:00:00:00:00:01"})) ==
        "rxe1: MAC 02:00:00:00:00:01 is already that of rxe0");
  CHECK(check(config_of({"rxe0,port=af_packet:eth0", "rxe1,port=af_packet:eth0"})) ==
        "rxe1: the MAC of interface eth0 is already that of rxe0; give it one by mac=");
  CHECK(check(config_of({"rxe0,port=af_packet:eth0", "rxe1,port=af_packet:eth0,mac=02:00:00:00:00:07"}))
            .empty());
  CHECK(check(config_of({"rxe0,port=af_packet:eth0", "rxe1,port=af_xdp:eth0,mac=02:00:00:00:00:07"})) ==
        "rxe1: interface eth0 is already in use by af_packet:eth0");
  CHECK(check(config_of({"rxe0,port=tap:tap0,ip=10.0.0.1/24", "rxe1,port=tap:tap0,ip=10.0.0.2/24"})).empty());
  CHECK(check(config_of({"rxe0,port=tap:tap0"})) == "rxe0: a NIC on tap:tap0 needs an ip=ADDRESS/PREFIX");
  CHECK(check(config_of({"rxe0,port=ring:a,ip=10.0.0.1/24", "rxe1,port=ring:b,ip=10.0.0.2/24"})) ==
        "rxe0: ring:a joins two NICs, no less and no more");
  CHECK(check(config_of({"rxe0,port=ring:a,ip=10.0.0.1/24", "rxe1,port=ring:a,ip=10.0.0.2/24"})).empty());
  CHECK(check(config_of({"rxe0,ip=10.0.0.1/24,kernel=k0"})) ==
        "rxe0: the kernel has no traffic on the fabric that kernel= could be for");
  CHECK(check(config_of({"rxe0,port=tap:tap0,ip=10.0.0.1/24,kernel=tap0"})) ==
        "rxe0: interface tap0 is already in use by rxe0");
  CHECK(check(config_of({"rxe0"})) == "rxe0: a NIC on the fabric needs an ip=ADDRESS/PREFIX");
  CHECK_THAT(check(config_of({})), Catch::StartsWith("no NIC is configured"));
}

TEST_CASE("a file with everything") {
  DaemonConfig config;
  REQUIRE(read_toml(R"(
socket = "/run/r.sock"
log_level = "debug"
shards = 2
poll = true
idle_exit = 10
allow_uid = [1000, 1001]
allow_gid = [100]
eal = ["--log-level=debug"]
[[nic]]
name = "rxe0"
port = "tap:tap0"
ip = ["10.0.0.1/24", "fd00::1/64"]
gateway = "10.0.0.254"
neighbour = ["10.0.0.9@02:00:00:00:00:0b"]
mac = "02:00:00:00:00:09"
mtu = 1500
[[nic]]
name = "rxe1"
ip = "10.0.0.2/24"
)",
                    "nics.toml", config) == "");
  CHECK(config.socket_path == "/run/r.sock");
  CHECK(config.log_level == "debug");
  CHECK(config.shards == 2);
  CHECK(config.poll);
  CHECK(config.idle_exit_ms == 10000);
  CHECK(config.allow_uids == std::vector<std::uint32_t>{1000, 1001});
  CHECK(config.allow_gids == std::vector<std::uint32_t>{100});
  CHECK(config.eal_arguments == std::vector<std::string>{"--log-level=debug"});
  REQUIRE(config.nics.size() == 2);
  CHECK(config.nics[0].addresses.size() == 2);
  CHECK(config.nics[0].mtu_bytes == 1500);
  CHECK(config.nics[0].gateways.size() == 1);
  CHECK(config.nics[0].neighbours.size() == 1);
  CHECK(config.nics[1].name == "rxe1");
  CHECK(check(config).empty());
}

TEST_CASE("a wrong file is refused with line and reason") {
  const auto [text, reason] = GENERATE(table<std::string, std::string>({
      {"shards = ", "nics.toml:1: "},
      {"poll = true\npoll = false\n", "nics.toml:2: "},
      {"\nsockets = \"/x\"\n", "nics.toml:2: sockets: unknown key"},
      {"socket = \"\"\n", "nics.toml:1: socket: must not be empty"},
      {"socket = 3\n", "nics.toml:1: socket: must be a text in quotes"},
      {"shards = 0\n", "nics.toml:1: shards: must be a number from 1 to 16"},
      {"shards = \"2\"\n", "nics.toml:1: shards: must be a number"},
      {"poll = 1\n", "nics.toml:1: poll: must be true or false"},
      {"idle_exit = -1\n", "nics.toml:1: idle_exit: must be a number of seconds"},
      {"allow_uid = 1000\n", "nics.toml:1: allow_uid: must be a list of numbers"},
      {"allow_uid = [-1]\n", "nics.toml:1: allow_uid: must be a list of numbers"},
      {"log_level = \"loud\"\n", "nics.toml:1: log_level: unknown log level 'loud'"},
      {"eal = [1]\n", "nics.toml:1: eal: must be a list of texts"},
      {"nic = \"rxe0\"\n", "nics.toml:1: NICs are written as [[nic]] tables"},
      {"[[nic]]\nname = \"eth0\"\n", "nics.toml:2: name: NIC name 'eth0' is not rxe"},
      {"[[nic]]\nname = \"rxe0\"\nspeed = 100\n", "nics.toml:3: speed: unknown key"},
      {"[[nic]]\nname = \"rxe0\"\nip = 10\n", "nics.toml:3: ip: must be a text in quotes, or a list"},
      {"[[nic]]\nname = \"rxe0\"\nip = [\"10.0.0.1\"]\n", "nics.toml:3: ip: '10.0.0.1' has no prefix length"},
      {"[[nic]]\nname = \"rxe0\"\nport = \"xyz\"\n", "nics.toml:3: port: unknown port 'xyz'"},
      {"[[nic]]\nname = \"rxe0\"\nmtu = 100\n", "nics.toml:3: mtu: must be a number from 576"},
      {"\n[[nic]]\nport = \"fabric\"\n", "nics.toml:2: a NIC needs a name"},
  }));
  CAPTURE(text);
  CHECK_THAT(toml_error(text), Catch::StartsWith(reason));
}

TEST_CASE("an error is one line, whatever it quotes") {
  CHECK(nic_error("rxe0,ip=1\n2").find("'1?2'") != std::string::npos);
  CHECK_THAT(nic_error("rxe0\033[2J,ip=10.0.0.1/24"), Catch::Contains("rxe0?[2J"));
  CHECK_THAT(toml_error("\"a\\nb\" = 1\n"), Catch::Equals("nics.toml:1: a?b: unknown key"));
  CHECK_THAT(toml_error("log_level = \"a\\r\\nb\"\n"), Catch::Contains("'a??b'"));
}

TEST_CASE("a name or address ends where its text ends, not at a zero byte") {
  using namespace std::string_view_literals;
  CHECK_FALSE(parse_address("10.0.0.1\0x/24"sv));
  CHECK_FALSE(parse_nic("rxe0,port=af_packet:eth0\0x"sv));
  CHECK_FALSE(parse_nic("rxe0,port=af_packet:et\nh0"sv));
}

TEST_CASE("NICs on the fabric know each other and themselves, others only themselves") {
  auto nics = resolve(config_of({"rxe0,ip=10.0.0.1/24", "rxe1,ip=10.0.0.2/24,ip=fd00::2/64"}).nics);
  REQUIRE(nics);
  const auto& neighbours = nics->front().config.neighbours;
  REQUIRE(neighbours.size() == 5);  // link-local and one address; link-local and two addresses
  for (const auto& neighbour : neighbours) {
    const auto gids = emulator::gid_table((*nics)[neighbour.mac == default_mac(0) ? 0 : 1].config);
    CHECK(std::find(gids.begin(), gids.end(), neighbour.gid) != gids.end());
  }
}

TEST_CASE("NICs on one port know each other, those on different ones do not") {
  const auto nics = resolve(config_of({"rxe0,port=tap:a,ip=10.0.0.1/24", "rxe1,port=tap:a,ip=10.0.0.2/24",
                                       "rxe2,port=tap:b,ip=10.0.0.3/24"})
                                .nics);
  REQUIRE(nics);
  CHECK((*nics)[0].config.neighbours.size() == 4);  // two link-local and two addresses
  CHECK((*nics)[2].config.neighbours.size() == 2);
}

TEST_CASE("an interface that is not there, or is no Ethernet, is named") {
  const auto absent = resolve(config_of({"rxe0,port=af_packet:absent0"}).nics);
  REQUIRE_FALSE(absent);
  CHECK(absent.error() == "rxe0: there is no interface 'absent0'");
  const auto loopback = resolve(config_of({"rxe0,port=af_packet:lo"}).nics);
  REQUIRE_FALSE(loopback);
  CHECK(loopback.error() == "rxe0: interface 'lo' is not an Ethernet");
}

TEST_CASE("a NIC on UDP sockets takes prefix and MTU from the interface with its address") {
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    const auto nics = resolve(config_of({std::string("rxe0,port=udp:") + address}).nics);
    REQUIRE(nics);
    const ResolvedNic& nic = nics->front();
    CHECK(nic.interface.name == "lo");
    REQUIRE(nic.config.addresses.size() == 1);
    CHECK(to_text(nic.config.addresses[0].gid) == address);
    CHECK(nic.config.addresses[0].prefix_length == 8);
    CHECK(nic.config.mac == emulator::made_up_mac(nic.config.addresses[0].gid));
    CHECK(nic.config.mtu_bytes == kFabricMtuBytes);
    CHECK(nic.config.kernel_finds_neighbours);
    CHECK_FALSE(nic.config.answers_neighbours);
  }
  const auto absent = resolve(config_of({"rxe0,port=udp:192.0.2.1"}).nics);
  REQUIRE_FALSE(absent);
  CHECK(absent.error() == "rxe0: no interface has the address 192.0.2.1");
  const auto long_mtu = resolve(config_of({"rxe0,port=udp:127.0.0.1,mtu=9000"}).nics);
  REQUIRE(long_mtu);
  CHECK(long_mtu->front().config.mtu_bytes == 9000);
}
