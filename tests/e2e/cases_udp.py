"""Ports on UDP sockets, as an ordinary user: what applications see, and what is on the wire."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess

from cases_wire import RxeLab, TwoHosts, in_root, pingpong_with_guest, shared
from harness import IPV4_GID, ORDINARY_UID, Skip, case, check, free_port, need_program, wait_for


class OneHost:
    """A network namespace with a loopback interface and nothing else."""

    def __init__(self, world):
        if not world.is_root:
            raise Skip("needs root to make a network namespace, in which the product runs as an ordinary user")
        need_program("ip", "iproute2")
        self.world, self.name = world, f"roci-udp-{os.getpid()}"
        in_root("ip", "netns", "add", self.name)
        world.cleanups.append(lambda: subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True))
        in_root("ip", "-n", self.name, "link", "set", "lo", "up")
        for number in (1, 2):
            in_root("ip", "-n", self.name, "addr", "add", f"fd77::{number}/64", "dev", "lo")

    def start_daemon(self, *addresses, more=()):
        nics = [word for number, address in enumerate(addresses) for word in ("--nic", f"rxe{number},port=udp:{address}")]
        return self.world.start_daemon(*nics, *more, namespace=self.name)

    def run(self, name, command, seconds=60, nic=None):
        return self.world.run(name, self.world.under_roci(nic, command), seconds, namespace=self.name)

    def pair(self, tool, options):
        port = free_port()
        command = [tool, "-g", IPV4_GID, "-p", str(port), *options]
        server = self.world.start(tool, self.world.under_roci("rxe0", command), namespace=self.name)
        self.world.wait_listening(server, port)
        self.run(tool, [*command, "127.0.0.1"], nic="rxe1")
        server.succeed(10 * self.world.slow)

    def counters(self, nic):
        return self.world.show(self.name)["counters"][nic]


class TwoUdpHosts(TwoHosts):
    """Two hosts as for AF_PACKET, on whose interfaces the kernel owns every address: 10.78.1.N and fd78::N."""

    ADDRESSES = {4: ("10.78.1.1", "10.78.1.2"), 6: ("fd78::1", "fd78::2")}

    def __init__(self, world, mtu):
        super().__init__(world, mtu)
        for number, name in enumerate(self.names, 1):
            in_root("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.wire0.disable_ipv6=0")
            in_root("ip", "-n", name, "addr", "add", f"fd78::{number}/64", "dev", "wire0", "nodad")
            if world.drops:
                os.chown(self.env[number - 1]["XDG_RUNTIME_DIR"], ORDINARY_UID, ORDINARY_UID)

    @staticmethod
    def of_user(world, mtu=4200):
        if not world.is_root:
            raise Skip("needs root to make network namespaces, in which the product runs as an ordinary user")
        return TwoUdpHosts(world, mtu)

    def start_udp(self, host, family=4, more=""):
        return self.world.start_daemon("--nic", f"rxe0,port=udp:{self.ADDRESSES[family][host - 1]}{more}",
                                       namespace=self.names[host - 1], env=self.env[host - 1])

    def show(self, host):
        return json.loads(self.start(host, "show", [self.world.product.roci, "show", "--json"]).succeed(10 * self.world.slow))

    def counters(self, host):
        """Of its NIC."""
        return self.show(host)["counters"]["rxe0"]


class Sniffer:
    """tcpdump as root on one interface while the `with` block runs."""

    def __init__(self, world, namespace, interface, file, what="udp port 4791"):
        need_program("tcpdump", "tcpdump")
        self.world, self.file = world, file
        self.command = ["ip", "netns", "exec", namespace, "tcpdump", "-i", interface, "--immediate-mode", "-U", "-B", "16384", "-s", "9100",
                        "-Z", "root", "-w", str(file), what]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.world.cleanups.append(self.process.kill)
        wait_for(lambda: self.file.exists() and self.file.stat().st_size > 0, 10 * self.world.slow, "tcpdump's file")
        return self

    def __exit__(self, kind, _value, _traceback):
        self.process.send_signal(signal.SIGINT)
        told = self.process.communicate(timeout=20)[1]
        if kind is None:
            lost = re.search(r"(\d+) packets? dropped by kernel", told)
            check(lost and int(lost[1]) == 0, f"tcpdump lost packets: {told}")
            os.chmod(self.file, 0o644)


# Datagrams to port 4791 that nobody should send: every short length, random bytes, longer than the MTU (in fragments), and
# then as many as come for some seconds.
JUNK = """
import os, socket, sys, time
to = (sys.argv[1], 4791)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for length in range(64):
    sender.sendto(bytes(length), to)
    sender.sendto(os.urandom(length), to)
for length in (100, 1000, 4000, 4172, 4173, 9000, 60000):
    sender.sendto(os.urandom(length), to)
print("sent", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    for _ in range(100):
        sender.sendto(os.urandom(64), to)
    time.sleep(0.01)
"""


def packets_in(world, file):
    """How many RoCE packets roce-dump finds, all with a right ICRC."""
    process = world.start("roce-dump", [shared("rxe-lab", "roce-dump"), "-q", file])
    status = process.wait(60 * world.slow)
    check(status == 0, f"roce-dump finds a wrong ICRC or length, or no packet (status {status}): {process.describe()}")
    return int(re.search(r"(\d+) RoCE packets, 0 with", process.output())[1])


HOLDER = """
import socket, sys
held = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
held.bind((sys.argv[1], 4791))
print("held", flush=True)
sys.stdin.read()
"""


@case("udp/one-host", tags={"quick", "asan"}, limit=120)
def _(world):
    """Two NICs of one daemon over the loopback interface; every IP id was the one that was expected."""
    host = OneHost(world)
    for addresses, shards in ((("127.0.0.1", "127.0.0.2"), 1), (("fd77::1", "fd77::2"), 2)):
        daemon = host.start_daemon(*addresses, more=["--shards", str(shards)])
        for tool in ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"):
            host.pair(tool, ["-n", "100", *(["-c"] if tool != "ibv_uc_pingpong" else [])])
        host.pair("ibv_ud_pingpong", ["-n", "100", "-s", "1024"])
        for what in ("operations", "errors", "routed-datagrams"):
            host.run(what, [world.product.verbs_check, what])
        for nic in ("rxe0", "rxe1"):
            counters = host.counters(nic)
            check(counters["dropped"]["bad_icrc"] == 0, f"{nic} counts wrong ICRCs: {counters}")
            ipv4 = addresses[0].startswith("127")
            expected = counters["rx_roce_packets"] if ipv4 else 0
            # Some packets are of a NIC to itself and never saw a socket.
            check((0 < counters["udp"]["icrc_predicted"] <= expected) == ipv4 and counters["udp"]["icrc_solved"] == 0,
                  f"{nic}: of {expected} packets not all had the IP id that a socket of this kernel sends: {counters['udp']}")
        world.stop_daemon(daemon)


@case("udp/port-taken", tags={"quick"})
def _(world):
    """Who has UDP port 4791 is told, in one line."""
    host = OneHost(world)

    def refusal(address):
        rocid = world.start("rocid", [world.product.rocid, "--socket", world.folder / "other.sock", "--nic", f"rxe0,port=udp:{address}"],
                            namespace=host.name)
        status = rocid.wait(10 * world.slow)
        lines = rocid.output().strip().splitlines()
        start = f"rocid: rxe0: udp:{address}: UDP port 4791 of {address} is taken by "
        check(status == 1 and len(lines) == 1 and lines[0].startswith(start), f"status {status}: {rocid.describe()}")
        return lines[0].removeprefix(start)
    daemon = host.start_daemon("127.0.0.1")
    told = refusal("127.0.0.1")
    check(told == f"process {daemon.pid} (rocid)", f"not {daemon.pid}: {told}")
    world.stop_daemon(daemon)
    for held, wanted in (("0.0.0.0", "127.0.0.2"), ("fd77::1", "fd77::1"), ("::", "127.0.0.1")):
        holder = subprocess.Popen(["ip", "netns", "exec", host.name, "/usr/bin/python3", "-c", HOLDER, held],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            check(holder.stdout.readline() == b"held\n", f"cannot bind to {held}")
            told = refusal(wanted)
        finally:
            holder.communicate()
        expected = "a process of user 0 that we may not look at" if world.drops else f"process {holder.pid} (python3"
        check(told.startswith(expected), f"taken by root's process {holder.pid} with {held}: {told}")


@case("udp/two-hosts", users=(), also=("user",), tags={"asan"}, limit=180)
def _(world):
    """Over a wire, where a sniffer sees what left: every ICRC is right with the IP id that the kernel chose."""
    hosts = TwoUdpHosts.of_user(world)
    for family in (4, 6):
        daemons = [hosts.start_udp(host, family) for host in (1, 2)]
        file = world.folder / f"wire{family}.pcap"
        with Sniffer(world, hosts.names[0], "wire0", file):
            hosts.pair("ibv_rc_pingpong", ["-c", "-n", "100"])
            hosts.pair("ibv_rc_pingpong", ["-c", "-e", "-m", "4096", "-s", "100000", "-n", "20"])
            hosts.pair("ibv_uc_pingpong", ["-n", "100"])
            hosts.pair("ibv_ud_pingpong", ["-n", "100"])
            for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
                hosts.pair(tool, ["-F", "-n", "20", "-s", "20000"])
            hosts.pair("ib_atomic_bw", ["-F", "-n", "50"])
            hosts.pair("ib_write_bw", ["-F", "-n", "20", "--tclass=104"])
        seen, sent = packets_in(world, file), 0
        of_class = "ip[1] = 104" if family == 4 else "ip6[0:2] & 0x0ff0 = 0x0680"
        found = subprocess.run(["tcpdump", "-n", "-r", str(file), of_class], capture_output=True, text=True, check=True)
        check(len(found.stdout.splitlines()) >= 100, f"the traffic class is not on the wire:\n{found.stdout[:300]}")
        for host in (1, 2):
            counters = hosts.counters(host)
            sent += counters["tx_roce_packets"]
            check(counters["dropped"]["bad_icrc"] == 0, f"wrong ICRCs at host {host}: {counters}")
            check(counters["udp"]["icrc_predicted"] == (counters["rx_roce_packets"] if family == 4 else 0), f"host {host}: {counters}")
        check(seen == sent, f"roce-dump sees {seen} packets, the engines sent {sent}")
        for daemon in daemons:
            world.stop_daemon(daemon)


@case("udp/with-af-packet", users=("root",), limit=90)
def _(world):
    """One host on UDP sockets, the other on its wire: the same packets to both."""
    hosts = TwoUdpHosts(world, mtu=4200)
    daemons = [hosts.start_udp(1), hosts.start_daemon(2, address="")]
    hosts.pair("ibv_rc_pingpong", ["-c", "-n", "100"])
    hosts.pair("ibv_rc_pingpong", ["-c", "-e", "-m", "4096", "-s", "100000", "-n", "20"])
    hosts.pair("ib_write_bw", ["-F", "-n", "100"])
    counters = [hosts.counters(host) for host in (1, 2)]
    check(all(one["dropped"]["bad_icrc"] == 0 for one in counters), f"wrong ICRCs: {counters}")
    # An engine on the wire counts IP ids up, each QP its own, from 0.
    check(counters[0]["udp"]["icrc_predicted"] + counters[0]["udp"]["icrc_solved"] == counters[0]["rx_roce_packets"], f"{counters[0]}")
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("udp/rxe-both-ways", users=(), also=("root",), limit=300)
def _(world):
    """The kernel's Soft-RoCE is content, and its packets are read though their IP ids are not seen."""
    lab = RxeLab(world)
    for address, guest_gid in ((lab.HOST_TCP_IP, IPV4_GID), ("fd77::1", "2")):
        daemon = world.start_daemon("--nic", f"rxe0,port=udp:{address}", namespace=lab.NAMESPACE)
        file = world.folder / f"rxe-gid-{guest_gid}.pcap"
        with Sniffer(world, lab.NAMESPACE, "br0", file):
            for guest_serves in (False, True):
                pingpong_with_guest(world, lab, ["-n", "100"], guest_serves, guest_gid)
                pingpong_with_guest(world, lab, ["-n", "20", "-m", "4096", "-s", "50000"], guest_serves, guest_gid)
        counters = world.show(lab.NAMESPACE)["counters"]["rxe0"]
        seen = packets_in(world, file)
        passed = counters["tx_roce_packets"] + counters["rx_roce_packets"]
        check(seen == passed, f"roce-dump sees {seen} packets, the engine sent and received {passed}")
        found = counters["udp"]["icrc_predicted"] + counters["udp"]["icrc_solved"]
        check(counters["dropped"]["bad_icrc"] == 0 and found == (counters["rx_roce_packets"] if guest_gid == IPV4_GID else 0),
              f"not every packet was found intact: {counters}")
        world.stop_daemon(daemon)


@case("udp/multicast", limit=90)
def _(world):
    """Datagrams reach the group on the other host, whose kernel is in it meanwhile."""
    hosts = TwoUdpHosts.of_user(world)
    for family, group, table, in_table in ((4, "::ffff:239.77.0.9", "igmp", "09004DEF"),
                                           (6, "ff15::77:9", "igmp6", "ff150000000000000000000000770009")):
        daemons = [hosts.start_udp(host, family) for host in (1, 2)]

        def kernel_is_in():
            return in_table in (pathlib.Path("/proc") / str(daemons[0].pid) / "net" / table).read_text()
        waiting = hosts.start(1, "receive", world.under_roci(None, [world.product.verbs_check, "receive-multicast", group]))
        wait_for(lambda: "attached" in waiting.output() or waiting.popen.poll() is not None, 10 * world.slow, "the receiver")
        wait_for(kernel_is_in, 5 * world.slow, f"the kernel to be in {group}")
        hosts.start(2, "send", world.under_roci(None, [world.product.verbs_check, "send-multicast", group])).succeed(20 * world.slow)
        waiting.succeed(30 * world.slow)
        wait_for(lambda: not kernel_is_in(), 5 * world.slow, f"the kernel to leave {group}")
        check(hosts.counters(1)["dropped"]["bad_icrc"] == 0, "wrong ICRCs")
        for daemon in daemons:
            world.stop_daemon(daemon)


@case("udp/junk", users=(), also=("user",), limit=90)
def _(world):
    """Datagrams of a stranger are dropped and counted, and applications do not notice."""
    hosts = TwoUdpHosts.of_user(world)
    daemons = [hosts.start_udp(host) for host in (1, 2)]
    junk = hosts.start(2, "junk", ["/usr/bin/python3", "-c", JUNK, "10.78.1.1", "3"])
    wait_for(lambda: "sent" in junk.output(), 10 * world.slow, "the first junk")
    hosts.pair("ibv_rc_pingpong", ["-c", "-n", "200"])
    junk.succeed(20 * world.slow)
    counters = hosts.counters(1)
    # 9000 and 60000 bytes are too long; 64 lengths twice, and what fits, are not whole RoCE packets.
    check(counters["udp"]["too_long_datagrams"] == 2, f"{counters['udp']}")
    check(counters["udp"]["icrc_unsolved"] >= 100 and counters["dropped"]["malformed"] >= 24, f"the junk is not counted: {counters}")
    check(counters["rx_roce_packets"] == sum(counters["udp"][name] for name in ("icrc_predicted", "icrc_solved", "icrc_unsolved")),
          f"packets that nobody judged: {counters}")
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("udp/peer-goes-and-comes", users=(), also=("user",), limit=120)
def _(world):
    """A peer whose port 4791 is closed, and one that the kernel does not find, harm nobody else."""
    hosts = TwoUdpHosts.of_user(world)
    daemons = [hosts.start_udp(host) for host in (1, 2)]
    port = free_port()
    common = ["ib_write_bw", "-d", "rxe0", "-x", IPV4_GID, "-p", str(port), "-F", "-D", "60"]
    server = hosts.start(1, "writes", world.under_roci(None, common))
    world.wait_listening(server, port)
    client = hosts.start(2, "writes", world.under_roci(None, [*common, "10.78.1.1"]))
    wait_for(lambda: hosts.counters(1)["rx_roce_packets"] > 1000, 20 * world.slow, "packets")
    server.kill()
    daemons[0].kill()
    # The client's packets meet a closed port, and the kernel over there says so; retries end as for any silent peer.
    check(client.wait(30 * world.slow) != 0 and hosts.counters(2)["retry_exceeded"] > 0, f"no error for a peer that is gone: {client.describe()}")
    pathlib.Path(hosts.env[0]["XDG_RUNTIME_DIR"], "rocinante", "rocid.sock").unlink()
    daemons[0] = hosts.start_udp(1)
    hosts.pair("ibv_rc_pingpong", ["-c", "-n", "100"])
    in_root("ip", "-n", hosts.names[0], "route", "add", "unreachable", "10.78.9.0/24")
    lonely = hosts.start(1, "lonely", world.under_roci(None, [world.product.verbs_check, "lonely", "::ffff:10.78.9.9"]))
    lonely.succeed(60 * world.slow)
    check(hosts.counters(1)["udp"]["send_errors"] > 0, f"no error of sending is counted: {hosts.counters(1)}")
    hosts.pair("ibv_rc_pingpong", ["-c", "-n", "100"])
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("udp/port-events", users=(), also=("user",), limit=60)
def _(world):
    """ibv_asyncwatch is told that the wire is pulled, and put back; then packets pass again."""
    hosts = TwoUdpHosts.of_user(world)
    daemons = [hosts.start_udp(host) for host in (1, 2)]
    watch = hosts.start(1, "asyncwatch", world.under_roci(None, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0"]))
    wait_for(lambda: "async event FD" in watch.output(), 10 * world.slow, "ibv_asyncwatch")
    for state, event in (("down", 10), ("up", 9)):  # IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE
        in_root("ip", "-n", hosts.names[1], "link", "set", "wire0", state)
        wait_for(lambda: re.search(rf"event_type .*\({event}\)", watch.output()), 5 * world.slow, f"event {event} of a link that goes {state}")
    watch.kill()
    wait_for(lambda: hosts.show(2)["nics"][0]["link"] == "up", 5 * world.slow, "the other host's link")
    hosts.pair("ibv_rc_pingpong", ["-c", "-n", "100"])
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("udp/small-mtu", limit=60)
def _(world):
    """An MTU of 1500 makes 1024 the largest path MTU; below 576 there is no NIC."""
    hosts = TwoUdpHosts.of_user(world, mtu=1500)
    daemons = [hosts.start_udp(host) for host in (1, 2)]
    hosts.pair("ibv_rc_pingpong", ["-c", "-s", "30000", "-n", "100"])
    told = hosts.start(1, "devinfo", world.under_roci(None, ["ibv_devinfo", "-d", "rxe0"])).succeed(10 * world.slow)
    check(re.search(r"active_mtu:\s+1024", told), f"active_mtu is not 1024: {told}")
    for daemon in daemons:
        world.stop_daemon(daemon)
    in_root("ip", "-n", hosts.names[0], "link", "set", "wire0", "mtu", "500")
    refused = hosts.start(1, "rocid", [world.product.rocid, "--nic", "rxe0,port=udp:10.78.1.1"])
    check(refused.wait(10 * world.slow) == 2 and
          refused.output() == "rocid: rxe0: interface 'wire0' has an MTU of 500, 576 is the least\n", refused.describe())


@case("udp/congestion-marks", limit=60)
def _(world):
    """CE, as a switch would set it, reaches the engine."""
    need_program("nft", "nftables")
    hosts = TwoUdpHosts.of_user(world)
    for family, word in ((4, "ip"), (6, "ip6")):
        daemons = [hosts.start_udp(host, family) for host in (1, 2)]
        rules = f"table {word} marks {{ chain input {{ type filter hook input priority 0; udp dport 4791 {word} ecn set ce; }}; }}"
        in_root("ip", "netns", "exec", hosts.names[0], "nft", rules)
        hosts.pair("ibv_rc_pingpong", ["-c", "-n", "100"])
        marked, others = hosts.counters(1), hosts.counters(2)
        check(0 < marked["ecn_marked"] == marked["rx_roce_packets"] and others["ecn_marked"] == 0, f"{marked}")
        for daemon in daemons:
            world.stop_daemon(daemon)


@case("udp/gso", users=(), also=("user",), tags={"asan"}, limit=120)
def _(world):
    """Runs of packets that the kernel cuts have the IP ids that were counted on; uncut, they are taken apart here."""
    hosts = TwoUdpHosts.of_user(world)
    for cut in (True, False):
        for name in hosts.names:
            in_root("ip", "-n", name, "link", "set", "wire0", "gso_max_segs", "1" if cut else "64")
        for family in (4, 6):
            daemons = [hosts.start_udp(host, family, ",gso=on") for host in (1, 2)]
            file = world.folder / f"wire{family}.pcap"
            with Sniffer(world, hosts.names[0], "wire0", file) if cut else contextlib.nullcontext():
                hosts.pair("ibv_rc_pingpong", ["-c", "-n", "50"])
                hosts.pair("ibv_rc_pingpong", ["-c", "-e", "-m", "4096", "-s", "100000", "-n", "20"])
                hosts.pair("ib_send_bw", ["-F", "-n", "100", "-s", "30000"])
                hosts.pair("ib_read_bw", ["-F", "-n", "20", "-s", "50001"])
            counters = [hosts.counters(host) for host in (1, 2)]
            for one in counters:
                check(one["udp"]["gso_runs"] > 10, f"no runs: {one['udp']}")
                check(one["dropped"]["bad_icrc"] == 0 and one["retransmitted_packets"] == 0 and one["udp"]["icrc_solved"] == 0, f"{one}")
            if cut:
                seen, sent = packets_in(world, file), sum(one["tx_roce_packets"] for one in counters)
                check(seen == sent, f"roce-dump sees {seen} packets, the engines sent {sent}")
            for daemon in daemons:
                world.stop_daemon(daemon)
