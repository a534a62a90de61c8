"""A peer whose connection manager sends what it should not: connections go on, and memory has bounds."""
import json
import pathlib
import subprocess

from cases_cm import resident_pages
from cases_wire import TwoHosts
from harness import case, check, wait_for

PEER = pathlib.Path(__file__).resolve().parent.parent / "peers" / "cm_hostile.py"
GROWTH_PAGES = 16384  # 64 MiB: what the manager's bounds allow, and much less than a flood would take without them

# Listens, and answers nobody.
LAZY = """
import ctypes, socket, struct, time
cm = ctypes.CDLL("librdmacm.so.1")
cm.rdma_create_event_channel.restype = ctypes.c_void_p
channel, listener = ctypes.c_void_p(cm.rdma_create_event_channel()), ctypes.c_void_p()
address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 7800) + socket.inet_aton("10.78.0.1") + bytes(8)
assert cm.rdma_create_id(channel, ctypes.byref(listener), None, 0x106) == 0
assert cm.rdma_bind_addr(listener, address) == 0 and cm.rdma_listen(listener, 100) == 0
time.sleep(3600)
"""


def show(hosts, host, what):
    shown = subprocess.run([hosts.world.product.roci, "show", what, "--json"], env=hosts.env[host - 1], check=True, capture_output=True, text=True)
    return json.loads(shown.stdout)


def flood(world, count):
    hosts = TwoHosts(world, mtu=1500)
    daemons = [hosts.start_daemon(host) for host in (1, 2)]
    server = hosts.start(1, "rping-server", world.under_roci("rxe0", ["rping", "-s", "-P", "-a", "10.78.0.1", "-V"]))
    lazy = hosts.start(1, "lazy", world.under_roci("rxe0", ["/usr/bin/python3", "-c", LAZY]))
    wait_for(lambda: sum(one["state"] == "listening" for one in show(hosts, 1, "cm")["cms"]) == 2, 20, "the servers to listen", pause=0.05)
    talking = hosts.start(2, "rping-client", world.under_roci("rxe0", ["rping", "-c", "-a", "10.78.0.1", "-V"]))
    wait_for(lambda: any(one["state"] == "connected" for one in show(hosts, 1, "cm")["cms"]), 20, "a connection", pause=0.05)
    pid = daemons[0].pid
    before = resident_pages(pid), show(hosts, 1, "counters")["counters"]["rxe0"]["rx_roce_packets"]
    mac = next(nic["mac"] for nic in show(hosts, 1, "nic")["nics"])
    hostile = hosts.start(2, "hostile", ["/usr/bin/python3", PEER, "wire0", "10.78.0.2", "10.78.0.1", mac, "7800", str(count), "1"])
    said = hostile.succeed(count / 100 + 60)
    after = resident_pages(pid)
    counters = show(hosts, 1, "counters")["counters"]["rxe0"]
    check(counters["rx_roce_packets"] - before[1] > count, f"the flood did not arrive: {said} {counters}")
    check(after - before[0] < GROWTH_PAGES, f"the daemon had {before[0]} pages, and {after} after {said}")
    check(talking.popen.poll() is None and server.popen.poll() is None, f"the connection broke: {talking.describe()} {server.describe()}")
    exchanged = show(hosts, 1, "counters")["counters"]["rxe0"]["tx_roce_packets"]
    wait_for(lambda: show(hosts, 1, "counters")["counters"]["rxe0"]["tx_roce_packets"] > exchanged + 100, 10, "the connection to go on")
    # Somebody else finds room.
    another = hosts.start(2, "rping-another", world.under_roci("rxe0", ["rping", "-c", "-a", "10.78.0.1", "-V", "-C", "10"]))
    another.succeed(30 * world.slow)
    ids = len(show(hosts, 1, "cm")["cms"])
    check(ids > 50, f"no REQ waited for the lazy listener: {ids} ids")
    print(f"    {said.strip()}; resident pages {before[0]} then {after}; {ids} ids", flush=True)
    for process in (talking, lazy, server):
        process.kill()
    wait_for(lambda: not show(hosts, 1, "cm")["cms"], 20, "the ids to go")
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("cm/hostile-peer", users=("root",), tags={"asan"}, limit=120)
def _(world):
    flood(world, 500)


@case("cm/flood", users=(), also=("root",), limit=600)
def _(world):
    flood(world, 20000)
