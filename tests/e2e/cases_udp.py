"""Ports on UDP sockets, as an ordinary user: what applications see, and what is on the wire."""
import contextlib
import os
import subprocess

from cases_wire import in_root
from harness import IPV4_GID, Skip, case, check, free_port, need_program


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
    for addresses in (("127.0.0.1", "127.0.0.2"), ("fd77::1", "fd77::2")):
        daemon = host.start_daemon(*addresses)
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
