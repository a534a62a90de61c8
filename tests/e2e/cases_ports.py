"""Ports of every kind: two daemons joined by each, who shares a port, what a port does besides RoCE, and what is refused."""
import json
import os
import pathlib
import re
import struct
import subprocess

from cases_udp import Sniffer
from cases_wire import TSHARK, TwoHosts, in_root
from harness import IPV4_GID, Failure, Skip, case, check, free_port, need_program, wait_for


class Hosts:
    """Daemons on this machine, or in one namespace of it, each with a runtime folder of its own."""

    def __init__(self, world, namespace=None):
        self.world, self.namespace, self.env, self.daemons = world, namespace, {}, {}

    def start_daemon(self, host, *nics):
        if host not in self.env:
            runtime = self.world.runtime / f"host{host}"
            runtime.mkdir(mode=0o700)
            if self.world.drops:
                os.chown(runtime, *(2 * [self.world.runtime.stat().st_uid]))
            self.env[host] = {**self.world.env, "XDG_RUNTIME_DIR": str(runtime)}
        arguments = [word for nic in nics for word in ("--nic", nic)]
        self.daemons[host] = self.world.start_daemon(*arguments, namespace=self.namespace, env=self.env[host])
        return self.daemons[host]

    def start(self, host, name, command):
        return self.world.start(f"{name}-{host}", command, namespace=self.namespace, env=self.env[host])

    def show(self, host):
        process = self.start(host, "show", [self.world.product.roci, "show"])
        return process.succeed(10 * self.world.slow)

    def wait_link(self, host, state, nic="rxe0"):
        wait_for(lambda: re.search(rf"{nic} .*\b{state}\b", self.show(host)), 10 * self.world.slow, f"{nic} of host {host} to be {state}",
                 pause=0.1)

    def pingpong(self, options=(), server=(1, "rxe0"), client=(2, "rxe0")):
        port = free_port()

        def side(host, nic, *more):
            return self.start(host, "pingpong", self.world.under_roci(nic, [
                "ibv_rc_pingpong", "-c", "-d", nic, "-g", IPV4_GID, "-p", str(port), *options, *more]))
        waiting = side(*server)
        self.world.wait_listening(waiting, port)
        asking = side(*client, "127.0.0.1")
        asking.succeed(30 * self.world.slow)
        waiting.succeed(10 * self.world.slow)
        for process in (waiting, asking):
            check("invalid data" not in process.output() and "usec/iter" in process.output(), f"no good result: {process.describe()}")

    def watch_events(self, host, nic="rxe0"):
        watch = self.start(host, "asyncwatch", self.world.under_roci(nic, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", nic]))
        wait_for(lambda: "async event FD" in watch.output(), 10 * self.world.slow, "ibv_asyncwatch")
        return watch

    def stop(self):
        for daemon in self.daemons.values():
            self.world.stop_daemon(daemon)


PORT_ACTIVE, PORT_ERR = 9, 10  # IBV_EVENT_...


def expect_event(world, watch, event):
    wait_for(lambda: re.search(rf"event_type .*\({event}\)", watch.output()), 10 * world.slow, f"event {event}: {watch.output()}")


class Namespace:
    """One network namespace, gone at the end of the case."""

    def __init__(self, world):
        need_program("ip", "iproute2")
        self.name = f"roci-ports-{os.getpid()}"
        try:
            in_root("ip", "netns", "add", self.name)
        except Failure as failure:
            raise Skip(f"this machine does not let us make network namespaces: {failure}") from None
        world.cleanups.append(lambda: subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True))
        self.ip("link", "set", "lo", "up")

    def ip(self, *words):
        in_root("ip", "-n", self.name, *words)

    def sysctl(self, setting):
        in_root("ip", "netns", "exec", self.name, "sysctl", "-qw", setting)


def need_tap():
    if not pathlib.Path("/dev/net/tun").exists():
        raise Skip("this machine has no /dev/net/tun")


def need_af_xdp(daemon_starts):
    """Starts a daemon by `daemon_starts`; a kernel without AF_XDP skips the case."""
    try:
        return daemon_starts()
    except Failure as failure:
        if "this kernel has no AF_XDP" in str(failure):
            raise Skip("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)") from None
        raise


EVERY_PATH_MTU = ("256", "512", "1024", "2048", "4096")


# --- each kind ------------------------------------------------------------------------------------------

@case("ports/memif", ("user",), limit=60)
def _(world):
    """Either side may start first, end and start again; the other one's link follows."""
    hosts = Hosts(world)
    socket = world.folder / "memif.sock"
    client = f"rxe0,port=memif:client={socket},ip=10.78.0.2/24"
    hosts.start_daemon(2, client)
    hosts.start_daemon(1, f"rxe0,port=memif:server={socket},ip=10.78.0.1/24")
    for host in (1, 2):
        hosts.wait_link(host, "up")
    for mtu in EVERY_PATH_MTU:
        hosts.pingpong(["-m", mtu, "-s", "20000", "-n", "50"])
    watch = hosts.watch_events(1)
    world.stop_daemon(hosts.daemons[2])
    expect_event(world, watch, PORT_ERR)
    hosts.start_daemon(2, client)
    expect_event(world, watch, PORT_ACTIVE)
    watch.kill()
    hosts.pingpong()
    hosts.daemons[1].kill()  # which leaves its sockets behind; the harness waits for its own
    pathlib.Path(hosts.env[1]["XDG_RUNTIME_DIR"], "rocinante", "rocid.sock").unlink()
    hosts.start_daemon(1, f"rxe0,port=memif:server={socket},ip=10.78.0.1/24")
    for host in (1, 2):
        hosts.wait_link(host, "up")
    hosts.pingpong()
    check("polled every 50 to 1000 us" in hosts.show(1), "`roci show` does not say how the port is polled")
    hosts.stop()
    check(not socket.exists(), "the server's socket is left behind")


@case("ports/memif-jumbo", users=(), also=("user",), limit=60)
def _(world):
    """Ethernet's jumbo frames, and a socket that two pairs share by their ids."""
    hosts = Hosts(world)
    socket = world.folder / "memif.sock"

    def nics(role, host):
        return [f"rxe{i},port=memif:{role}={socket},id={i},ip=10.78.{i}.{host}/24,mtu=9000" for i in (0, 1)]
    hosts.start_daemon(1, *nics("server", 1))
    hosts.start_daemon(2, *nics("client", 2))
    for nic in ("rxe0", "rxe1"):
        for host in (1, 2):
            hosts.wait_link(host, "up", nic)
        hosts.pingpong(["-m", "4096", "-s", "100000", "-n", "50"], server=(1, nic), client=(2, nic))
    hosts.stop()


@case("ports/ring", ("user",), limit=60)
def _(world):
    hosts = Hosts(world)
    hosts.start_daemon(1, *(f"rxe{i},port=ring:cable,ip=10.78.0.{i + 1}/24,mtu=9000" for i in (0, 1)))
    for mtu in EVERY_PATH_MTU:
        hosts.pingpong(["-m", mtu, "-s", "20000", "-n", "50"], client=(1, "rxe1"))
    hosts.stop()


@case("ports/device-by-name", ("user",), limit=60)
def _(world):
    """A device of DPDK with its arguments, from a file, where its own `mac` and the NIC's do not meet."""
    hosts = Hosts(world)
    socket = world.folder / "memif.sock"
    for host, role in ((1, "server"), (2, "client")):
        config = world.folder / f"host{host}.toml"
        config.write_text(f'[[nic]]\nname = "rxe0"\nip = "10.78.0.{host}/24"\n'
                          f'port = "dev:net_memif0,role={role},socket={socket},socket-abstract=no,mac=02:00:00:00:00:0{host}"\n')
        config.chmod(0o644)
        runtime = world.runtime / f"host{host}"
        runtime.mkdir(mode=0o700)
        if world.drops:
            os.chown(runtime, *(2 * [world.runtime.stat().st_uid]))
        hosts.env[host] = {**world.env, "XDG_RUNTIME_DIR": str(runtime)}
        hosts.daemons[host] = world.start_daemon("-c", config, env=hosts.env[host])
    for host in (1, 2):
        hosts.wait_link(host, "up")
        check(f"02:00:00:00:00:0{host}" in hosts.daemons[host].output(), "the NIC has not the device's MAC")
    hosts.pingpong(["-m", "1024"])
    hosts.stop()


def arp_request(sender_mac, sender_ip, target_ip):
    ip = [bytes(map(int, text.split("."))) for text in (sender_ip, target_ip)]
    return b"\xff" * 6 + sender_mac + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + sender_mac + ip[0] + bytes(6) + ip[1]


@case("ports/pcap-files", ("user",), limit=30)
def _(world):
    """What a capture asks is answered into another."""
    hosts = Hosts(world)
    asked, answered = world.folder / "asked.pcap", world.folder / "answered.pcap"
    peer = b"\x02\x00\x00\x00\x00\x99"
    frame = arp_request(peer, "10.78.0.9", "10.78.0.1")
    asked.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    asked.chmod(0o644)
    hosts.start_daemon(1, f"rxe0,port=pcap:rx={asked},tx={answered},ip=10.78.0.1/24,mac=02:00:00:00:00:07")
    hosts.stop()  # which writes out what the file has
    written = answered.read_bytes()
    reply = peer + b"\x02\x00\x00\x00\x00\x07" + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2)
    check(reply in written, f"no ARP reply in the {len(written)} bytes that were written")


@case("ports/pcap-interface", users=(), also=("root",), limit=60)
def _(world):
    hosts = TwoHosts(world, mtu=4200)
    for host in (1, 2):
        world.start_daemon("--nic", f"rxe0,port=pcap:iface=wire0,ip=10.78.0.{host}/24", namespace=hosts.names[host - 1],
                           env=hosts.env[host - 1])
    for mtu in ("256", "4096"):
        hosts.pair("ibv_rc_pingpong", ["-c", "-m", mtu, "-s", "20000", "-n", "50"])


@case("ports/tap", users=("root",), limit=90)
def _(world):
    """Two interfaces that daemons made, in a bridge of the kernel's, which carries jumbo frames."""
    need_tap()
    namespace = Namespace(world)
    namespace.sysctl("net.ipv6.conf.all.disable_ipv6=1")
    hosts = Hosts(world, namespace.name)
    for host in (1, 2):
        hosts.start_daemon(host, f"rxe0,port=tap:tap{host},ip=10.78.0.{host}/24,mtu=9000")
    namespace.ip("link", "add", "br0", "type", "bridge")
    for interface in ("tap1", "tap2"):
        namespace.ip("link", "set", interface, "master", "br0")
    namespace.ip("link", "set", "br0", "up")
    for mtu in EVERY_PATH_MTU:
        hosts.pingpong(["-m", mtu, "-s", "20000", "-n", "50"])
    check("woken by its frames" in hosts.show(1), "`roci show` does not say that the port wakes")
    watch = hosts.watch_events(1)
    namespace.ip("link", "set", "tap1", "down")
    expect_event(world, watch, PORT_ERR)
    namespace.ip("link", "set", "tap1", "up")
    expect_event(world, watch, PORT_ACTIVE)
    watch.kill()
    hosts.pingpong()
    hosts.stop()
    left = subprocess.run(["ip", "-n", namespace.name, "link"], capture_output=True, text=True, check=True).stdout
    check("tap1" not in left, "the interface outlives its daemon")


@case("ports/tap-of-an-ordinary-user", users=("root",), limit=60)
def _(world):
    """Who may not make interfaces uses one that was made for him."""
    need_tap()
    need_program("setpriv", "util-linux")
    namespace = Namespace(world)
    namespace.ip("tuntap", "add", "tap1", "mode", "tap", "user", "65534")
    namespace.ip("link", "set", "tap1", "mtu", "4200", "up")
    namespace.ip("addr", "add", "10.78.0.99/24", "dev", "tap1")
    folder = world.folder / "of-nobody"
    folder.mkdir(mode=0o700)
    world.folder.chmod(0o755)
    os.chown(folder, 65534, 65534)
    socket = folder / "rocid.sock"
    daemon = world.start("rocid", ["setpriv", "--reuid", "65534", "--clear-groups", world.product.rocid, "--socket", socket,
                                   "--nic", "rxe0,port=tap:tap1,ip=10.78.0.1/24,mtu=4200"], namespace=namespace.name)
    wait_for(lambda: socket.is_socket() or daemon.popen.poll() is not None, 10 * world.slow, "the daemon's socket")
    ping(world, namespace.name, "10.78.0.1", 1000)
    world.stop_daemon(daemon)


PING = """
import os, socket, struct, sys, time
size, address = int(sys.argv[1]), sys.argv[2]
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.settimeout(1)
body = struct.pack("!HH", os.getpid() & 0xFFFF, 1) + os.urandom(size)
def packet(kind):
    total = sum(struct.unpack(f"!{(len(body) + 4) // 2}H", struct.pack("!BBH", kind, 0, 0) + body))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBH", kind, 0, ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + body
for attempt in range(5):
    s.sendto(packet(8), (address, 0))
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            if s.recv(65536)[20:] == packet(0):
                print("answered")
                sys.exit(0)
        except TimeoutError:
            break
sys.exit("no answer")
"""


def ping(world, namespace, address, size=56):
    """An ICMP echo of `size` bytes, as the distribution's ping is not everywhere."""
    world.run("ping", ["/usr/bin/python3", "-c", PING, str(size), address], namespace=namespace)


def start_on_wire(hosts, kind, *options):
    """A daemon on each host, on the veth pair."""
    world = hosts.world
    return [need_af_xdp(lambda host=host: world.start_daemon(
        "--nic", ",".join([f"rxe0,port={kind}:wire0,ip=10.78.0.{host}/24", *options]), namespace=hosts.names[host - 1],
        env=hosts.env[host - 1])) for host in (1, 2)]


def give_side_channel(hosts):
    """A second pair for the applications' TCP, where the daemons take every frame of the first."""
    in_root("ip", "-n", hosts.names[0], "addr", "flush", "dev", "wire0")
    in_root("ip", "-n", hosts.names[1], "addr", "flush", "dev", "wire0")
    in_root("ip", "-n", hosts.names[0], "link", "add", "side0", "type", "veth", "peer", "name", "side0", "netns", hosts.names[1])
    for number, name in enumerate(hosts.names, 1):
        in_root("ip", "-n", name, "addr", "add", f"10.78.1.{number}/24", "dev", "side0")
        in_root("ip", "-n", name, "link", "set", "side0", "up")


@case("ports/af-xdp", users=("root",), limit=90)
def _(world):
    hosts = TwoHosts(world, mtu=3000)
    give_side_channel(hosts)
    daemons = start_on_wire(hosts, "af_xdp")
    for mtu in ("256", "1024", "2048"):
        hosts.pair("ibv_rc_pingpong", ["-c", "-m", mtu, "-s", "20000", "-n", "50"])
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        hosts.pair(tool, ["-F", "-n", "200"])
    shown = world.run("show", [world.product.roci, "show"], env=hosts.env[0])
    check("woken by its frames" in shown, f"`roci show` does not say that the port wakes: {shown}")
    for daemon in daemons:
        world.stop_daemon(daemon)


def ignore_arp_for_others(hosts):
    """Or the kernel answers on the wire for what is on the share, as `rocid` warns."""
    for name in hosts.names:
        in_root("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.conf.wire0.arp_ignore=1")


# --- who shares a port ----------------------------------------------------------------------------------

def pingpong_on(hosts, server, client, options=()):
    """Between two NICs, each (host, name)."""
    port = free_port()

    def side(host, nic, *more):
        return hosts.start(host, f"pingpong-{nic}", hosts.world.under_roci(nic, [
            "ibv_rc_pingpong", "-c", "-d", nic, "-g", IPV4_GID, "-p", str(port), *options, *more]))
    waiting = side(*server)
    hosts.world.wait_listening(waiting, port)
    side(*client, f"10.78.1.{server[0]}").succeed(30 * hosts.world.slow)
    waiting.succeed(10 * hosts.world.slow)


@case("ports/several-nics-on-one", users=(), also=("root",), limit=90)
def _(world):
    """Each has a MAC and a share of the kernel's of its own; they reach the other host and each other."""
    need_tap()
    hosts = TwoHosts(world, mtu=9000)
    ignore_arp_for_others(hosts)
    nics = [f"rxe{i},port=af_packet:wire0,mac=02:00:00:00:01:0{i},ip=10.78.0.{10 + i}/24,kernel=share{i}" for i in (0, 1)]
    daemons = [world.start_daemon(*(word for nic in nics for word in ("--nic", nic)), namespace=hosts.names[0], env=hosts.env[0]),
               hosts.start_daemon(2)]
    for nic in ("rxe0", "rxe1"):
        pingpong_on(hosts, (1, nic), (2, "rxe0"), ["-m", "4096"])
        pingpong_on(hosts, (2, "rxe0"), (1, nic))
    pingpong_on(hosts, (1, "rxe0"), (1, "rxe1"))
    for address in ("10.78.0.10", "10.78.0.11"):
        in_root("ip", "-n", hosts.names[1], "route", "replace", f"{address}/32", "dev", "wire0")
        ping(world, hosts.names[1], address, 8000)
    for daemon in daemons:
        world.stop_daemon(daemon)


class WriteBandwidth:
    """ib_write_bw between the hosts while the `with` block runs, and some seconds longer."""

    def __init__(self, hosts, server_address="10.78.1.1", seconds=8):
        self.hosts, self.address, self.seconds = hosts, server_address, seconds

    def __enter__(self):
        port = free_port()
        command = ["ib_write_bw", "-F", "-d", "rxe0", "-x", IPV4_GID, "-p", str(port), "-s", "65536", "-D", str(self.seconds)]
        server = self.hosts.start(1, "ib_write_bw", self.hosts.world.under_roci(None, command))
        self.hosts.world.wait_listening(server, port)
        self.client = self.hosts.start(2, "ib_write_bw", self.hosts.world.under_roci(None, [*command, self.address]))
        self.server = server
        return self

    def __exit__(self, kind, _value, _traceback):
        if kind is not None:
            return
        check(self.client.popen.poll() is None, f"ib_write_bw ended before the other traffic did: {self.client.describe()}")
        self.client.succeed(30 * self.hosts.world.slow)
        self.server.succeed(10 * self.hosts.world.slow)


def other_traffic(hosts, addresses):
    """ICMP and TCP between the hosts' `addresses`, both ways."""
    need_program("iperf3", "iperf3")
    for host, other in ((1, 2), (2, 1)):
        ping(hosts.world, hosts.names[host - 1], addresses[other - 1])
        ping(hosts.world, hosts.names[host - 1], addresses[other - 1], 1400)
    port = free_port()
    server = hosts.start(1, "iperf3", ["iperf3", "--forceflush", "-s", "-1", "-B", addresses[0], "-p", str(port)])
    wait_for(lambda: "listening" in server.output() or server.popen.poll() is not None, 10 * hosts.world.slow, "iperf3")
    client = hosts.start(2, "iperf3", ["iperf3", "-c", addresses[0], "-p", str(port), "-t", "1"])
    client.succeed(20 * hosts.world.slow)
    server.succeed(10 * hosts.world.slow)
    received = re.search(r"([\d.]+) (\w?)Bytes .* receiver", client.output())
    check(received and float(received[1]) > 0, f"iperf3 moved nothing: {client.describe()}")


@case("ports/kernel-beside-af-packet", users=(), also=("root",), limit=90)
def _(world):
    """ping and iperf3 to the address that the NIC shares with the kernel, while ib_write_bw runs over the wire."""
    hosts = TwoHosts(world, mtu=4200)
    daemons = [hosts.start_daemon(host, address="") for host in (1, 2)]
    with WriteBandwidth(hosts):
        other_traffic(hosts, ["10.78.1.1", "10.78.1.2"])
    for daemon in daemons:
        world.stop_daemon(daemon)


def kernel_share(world, kind, mtu):
    need_tap()
    hosts = TwoHosts(world, mtu)
    give_side_channel(hosts)
    if kind == "af_packet":
        ignore_arp_for_others(hosts)
    daemons = start_on_wire(hosts, kind, "kernel=share0")
    for daemon in daemons:
        check("arp_ignore" not in daemon.output(), f"a needless warning: {daemon.describe()}")
    pingpong_on(hosts, (1, "rxe0"), (2, "rxe0"))
    with WriteBandwidth(hosts):
        other_traffic(hosts, ["10.78.0.1", "10.78.0.2"])
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("ports/kernel-share-af-xdp", users=(), also=("root",), limit=90)
def _(world):
    """The kernel's traffic by kernel=, as the port takes every frame of the interface."""
    kernel_share(world, "af_xdp", 3000)


@case("ports/kernel-share-af-packet", users=(), also=("root",), limit=90)
def _(world):
    """The same with an address of the NIC's own beside the interface's."""
    kernel_share(world, "af_packet", 9000)


@case("ports/kernel-share-memif", users=(), also=("root",), limit=90)
def _(world):
    """No interface of the kernel's is there at all, but for the shares; one daemon in each namespace."""
    need_tap()
    hosts = TwoHosts(world, mtu=1500)
    socket = world.folder / "memif.sock"
    daemons = [world.start_daemon("--nic", f"rxe0,port=memif:{role}={socket},ip=10.78.0.{host}/24,ip=fd00:78::{host}/64,kernel=share0",
                                  namespace=hosts.names[host - 1], env=hosts.env[host - 1])
               for host, role in ((1, "server"), (2, "client"))]
    wait_for(lambda: all("link up" in daemon.output() for daemon in daemons), 10 * world.slow, "the links")
    with WriteBandwidth(hosts):
        other_traffic(hosts, ["10.78.0.1", "10.78.0.2"])
    pingpong_on(hosts, (1, "rxe0"), (2, "rxe0"), ["-g", "2"])  # IPv6, whose neighbours the kernel answers for, too
    for daemon in daemons:
        world.stop_daemon(daemon)


# --- what changes, and what is refused ------------------------------------------------------------------

@case("ports/mtu-events", users=("root",), limit=60)
def _(world):
    """The active MTU is the largest that fits the interface, as it is now."""
    hosts = TwoHosts(world, mtu=4200)
    daemons = [hosts.start_daemon(host) for host in (1, 2)]

    def active_mtu():
        info = hosts.start(1, "devinfo", world.under_roci(None, ["ibv_devinfo", "-d", "rxe0"])).succeed(10 * world.slow)
        return int(re.search(r"active_mtu:\s+(\d+)", info)[1])
    check(active_mtu() == 4096, "the active MTU is not 4096 at MTU 4200")
    for ethernet, path in ((1500, 1024), (9000, 4096), (3000, 2048), (4200, 4096)):
        watch = hosts.start(1, "asyncwatch", world.under_roci(None, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0"]))
        wait_for(lambda: "async event FD" in watch.output(), 10 * world.slow, "ibv_asyncwatch")
        for name in hosts.names:
            in_root("ip", "-n", name, "link", "set", "wire0", "mtu", str(ethernet))
        expect_event(world, watch, PORT_ERR)
        expect_event(world, watch, PORT_ACTIVE)
        watch.kill()
        found = active_mtu()
        check(found == path, f"at MTU {ethernet} the active MTU is {found}, not {path}")
        hosts.pair("ibv_rc_pingpong", ["-c", "-m", str(path), "-s", "20000", "-n", "20"])
    for daemon in daemons:
        world.stop_daemon(daemon)


def expect_refusals(world, wrong, namespace=None):
    """what -> (NICs, exit status, words of the one line)"""
    failed = []
    for what, (nics, expected, words) in wrong.items():
        arguments = [word for nic in nics for word in ("--nic", nic)]
        process = world.start("rocid", [world.product.rocid, *arguments], namespace=namespace)
        status = process.wait(10 * world.slow)
        lines = process.output().strip().splitlines()
        if status != expected or len(lines) != 1 or words not in lines[0]:
            failed.append(f"{what}: status {status}, {len(lines)} lines: {process.describe()}")
    check(not failed, "expected one line each:\n" + "\n".join(failed))


@case("ports/refused-to-an-ordinary-user", ("user",), {"quick"})
def _(world):
    ip = "ip=10.78.0.1/24"
    interface = next((name for name in sorted(os.listdir("/sys/class/net")) if pathlib.Path("/sys/class/net", name, "type").is_file()
                      and pathlib.Path("/sys/class/net", name, "type").read_text().strip() == "1"), None)
    wrong = {
        "a driver that is not there": ([f"rxe0,port=dev:net_carrier0,{ip}"], 1, "this DPDK has no driver for a device 'net_carrier0'"),
        "a device that is not there": ([f"rxe0,port=dev:0000:fe:1f.7,{ip}"], 1, "there is no device '0000:fe:1f.7'"),
        "arguments that a driver does not know": ([f"rxe0,port=dev:net_null0,colour=blue,{ip}"], 1, "the driver of net_null0 refuses it"),
        "a capture that is not there": ([f"rxe0,port=pcap:rx=/no/such.pcap,{ip}"], 1, "No such file"),
        "a socket whose folder is not there": ([f"rxe0,port=memif:server=/no/such/folder/socket,{ip}"], 1, "Invalid socket directory"),
        "one end of a ring": ([f"rxe0,port=ring:a,{ip}"], 2, "joins two NICs"),
        "an interface that is not there": ([f"rxe0,port=af_xdp:absent0,{ip}"], 2, "there is no interface 'absent0'"),
        "no address": (["rxe0,port=tap:tap0"], 2, "needs an ip=ADDRESS/PREFIX"),
    }
    if pathlib.Path("/dev/net/tun").exists():
        wrong["a TAP"] = ([f"rxe0,port=tap:roci-e2e0,{ip}"], 1, "ip tuntap add roci-e2e0 mode tap user NAME")
    if interface:
        for kind in ("af_packet:", "pcap:iface="):
            wrong[kind] = ([f"rxe0,port={kind}{interface},{ip}"], 1, "needs root or CAP_NET_RAW")
        wrong["af_xdp"] = ([f"rxe0,port=af_xdp:{interface},{ip}"], 1, "AF_XDP" if not pathlib.Path("/sys/fs/bpf").exists() else "")
    expect_refusals(world, wrong)


@case("ports/refused-to-root", users=("root",))
def _(world):
    need_tap()
    namespace = Namespace(world)
    namespace.ip("link", "add", "eth7", "type", "veth", "peer", "name", "eth8")
    namespace.ip("addr", "add", "10.78.0.1/24", "dev", "eth7")
    ip = "ip=10.78.0.1/24"
    expect_refusals(world, {
        "a TAP that is another interface": ([f"rxe0,port=tap:eth7,{ip}"], 1, "there is an interface 'eth7' that is no TAP"),
        "a share that is another interface": ([f"rxe0,port=memif:server={world.folder}/s,{ip},kernel=eth7"], 1, "that is no TAP"),
        "a share of what the kernel has": (["rxe0,port=af_packet:eth7,kernel=share0"], 2, "leave kernel= out"),
        "two ways to one interface": ([f"rxe0,port=af_packet:eth7,{ip}", "rxe1,port=af_xdp:eth7,ip=10.78.0.2/24,mac=02:00:00:00:00:07"], 2,
                                      "already in use by af_packet:eth7"),
        "two NICs of one MAC": ([f"rxe0,port=af_packet:eth7,{ip}", "rxe1,port=af_packet:eth7,ip=10.78.0.2/24"], 2, "give it one by mac="),
        "more than a page": ([f"rxe0,port=af_xdp:eth7,{ip},mtu=3500"], 2, "mtu 3500 is more than the"),
    }, namespace.name)


@case("ports/vlan", users=(), also=("root",), tags={"asan"}, limit=120)
def _(world):
    """Two VLANs and untagged traffic on one wire keep apart; tags are as others read and write them."""
    hosts = TwoHosts(world, mtu=4200)
    daemons = []
    for host in (1, 2):
        nics = [f"rxe{number},port=af_packet:wire0,ip=10.78.{vlan}.{host}/24,mac=02:00:00:00:0{number}:0{host}" + (f",vlan={vlan}" if vlan != 0 else "")
                for number, vlan in enumerate((100, 200, 0))]
        daemons.append(world.start_daemon(*(word for nic in nics for word in ("--nic", nic)), namespace=hosts.names[host - 1], env=hosts.env[host - 1]))

    def pair(number, tool, *options):
        port = free_port()
        command = [tool, "-d", f"rxe{number}", "-g" if tool.startswith("ibv_") else "-x", IPV4_GID, "-p", str(port), *options]
        server = hosts.start(1, tool, world.under_roci(None, command))
        world.wait_listening(server, port)
        client = hosts.start(2, tool, world.under_roci(None, [*command, "10.78.1.1"]))
        client.succeed(30 * world.slow)
        server.succeed(10 * world.slow)
    for number, vlan in enumerate((100, 200, 0)):
        file = world.folder / f"vlan-{vlan}.pcap"
        with Sniffer(world, hosts.names[1], "wire0", file, "vlan" if vlan != 0 else "udp port 4791"):
            pair(number, "ibv_rc_pingpong", "-c", "-m", "4096", "-s", "20000", "-n", "100")
            pair(number, "ib_send_bw", "-c", "UD", "-n", "50", "-F", "--tclass", "96")
        told = world.run("tshark", [*TSHARK, "-r", file, "-Y", "infiniband.bth", "-T", "fields", "-e", "vlan.id", "-e", "vlan.priority"], 60)
        seen = {tuple(line.split("\t")) for line in told.splitlines() if "Running as" not in line}
        check(seen == ({(str(vlan), "0"), (str(vlan), "3")} if vlan != 0 else {("", "")}), f"the tags of VLAN {vlan} are {seen}")
    for host in (1, 2):
        shown = subprocess.run([world.product.roci, "show", "counters", "--json"], env=hosts.env[host - 1], check=True, capture_output=True)
        counters = json.loads(shown.stdout)["counters"]
        # Each took its own share, and none of the others'.
        taken = [counters[f"rxe{number}"]["rx_roce_packets"] for number in range(3)]
        check(min(taken) > 100 and max(taken) < 2 * min(taken), f"RoCE packets by NIC: {taken}")
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("ports/vlan-of-the-kernel", users=("root",), limit=60)
def _(world):
    """The kernel's own VLAN interface as the peer."""
    hosts = TwoHosts(world, mtu=4200)
    added = subprocess.run(["ip", "-n", hosts.names[1], "link", "add", "link", "wire0", "name", "v100", "type", "vlan", "id", "100"],
                           check=False, capture_output=True, text=True)
    if added.returncode != 0:
        raise Skip(f"this kernel has no VLAN interfaces: {added.stderr.strip()}")
    daemon = world.start_daemon("--nic", "rxe0,port=af_packet:wire0,ip=10.78.100.1/24,vlan=100", "--nic",
                                "rxe1,port=af_packet:wire0,ip=10.78.200.1/24,vlan=200,mac=02:00:00:00:01:01",
                                namespace=hosts.names[0], env=hosts.env[0])
    for address in ("10.78.100.9/24", "10.78.200.9/24"):
        in_root("ip", "-n", hosts.names[1], "address", "add", address, "dev", "v100")
    in_root("ip", "-n", hosts.names[1], "link", "set", "v100", "up")
    hosts.start(2, "ping", ["ping", "-c", "3", "-W", "2", "-s", "3000", "10.78.100.1"]).succeed(20)
    check(hosts.start(2, "ping", ["ping", "-c", "2", "-W", "1", "-I", "v100", "10.78.200.1"]).wait(20) != 0, "VLAN 200 answers on VLAN 100")
    world.stop_daemon(daemon)
