"""Addresses that change while the daemon runs: by command, and as the kernel's do."""
import re

from cases_wire import TwoHosts, in_root
from harness import case, check, free_port, wait_for

PROBE = """
import socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.settimeout(0.5)
probe.connect((sys.argv[1], int(sys.argv[2])))
probe.send(b"neither RoCE nor expected")
try:
    probe.recv(1)
except ConnectionRefusedError:
    print("refused")
except TimeoutError:
    print("silence")
"""


def gids(world, nic, env=None, namespace=None):
    """What libibverbs finds, by index."""
    process = world.start("devinfo", world.under_roci(None, ["ibv_devinfo", "-v", "-d", nic]), env=env, namespace=namespace)
    process.succeed(20 * world.slow)
    return {int(index): gid for index, gid in re.findall(r"GID\[\s*(\d+)\]:\s*(\S+?),?\s", process.output())}


def pingpong(world, server_nic, client_nic, gid_index):
    common = ["ibv_rc_pingpong", "-g", str(gid_index), "-c", "-p", str(free_port())]
    server = world.start("pingpong-server", world.under_roci(None, [*common, "-d", server_nic]))
    world.wait_listening(server, int(common[-1]))
    world.run("pingpong-client", world.under_roci(None, [*common, "-d", client_nic, "127.0.0.1"]))
    server.succeed(10 * world.slow)


@case("addresses/by-command", tags={"quick", "asan"})
def _(world):
    """Another address and GID for each NIC of the fabric; applications are told, connect by them, and lose them."""
    world.start_private_daemon()
    watch = world.start("asyncwatch", world.under_roci("rxe0", ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0"]))
    wait_for(lambda: "async event FD" in watch.output(), 10 * world.slow, "ibv_asyncwatch")
    for nic, address in (("rxe0", "10.79.0.1/24"), ("rxe1", "10.79.0.2/24")):
        world.run("add", [world.product.roci, "address", "add", nic, address])
    wait_for(lambda: re.search(r"event_type .*\(18\)", watch.output()), 5 * world.slow, "IBV_EVENT_GID_CHANGE")
    watch.kill()
    check(gids(world, "rxe0").get(2) == "::ffff:10.79.0.1", f"GID 2 of rxe0 is not the new address: {gids(world, 'rxe0')}")
    pingpong(world, "rxe0", "rxe1", 2)
    again = world.start("again", [world.product.roci, "address", "add", "rxe1", "10.79.0.1/24"])
    check(again.wait(10 * world.slow) == 1 and again.output().strip() == "roci address: rxe0 has the address 10.79.0.1 already",
          f"an address that another NIC has: {again.describe()}")
    world.run("del", [world.product.roci, "address", "del", "rxe0", "10.79.0.1/24"])
    check(2 not in gids(world, "rxe0"), f"GID 2 of rxe0 is there still: {gids(world, 'rxe0')}")
    pingpong(world, "rxe0", "rxe1", 1)


@case("addresses/as-the-kernels", users=("root",), limit=60)
def _(world):
    """A NIC that shares an interface's addresses follows them, and RDMA works by a new one."""
    hosts = TwoHosts(world, mtu=4200)
    daemons = [hosts.start_daemon(host, address="") for host in (1, 2)]
    for host in (1, 2):
        in_root("ip", "-n", hosts.names[host - 1], "addr", "add", f"10.78.2.{host}/24", "dev", "wire0")
    for host in (1, 2):
        wait_for(lambda host=host: gids(world, "rxe0", hosts.env[host - 1], hosts.names[host - 1]).get(2) == f"::ffff:10.78.2.{host}",
                 5 * world.slow, f"host {host}'s GID 2")
    hosts.pair("ibv_rc_pingpong", ["-c"], gid="2")
    for address in ("10.78.1.1", "10.78.2.1"):
        for port, refused in ((4791, False), (4792, True)):  # nobody has the latter, so the kernel says so
            probe = hosts.start(2, "probe", ["/usr/bin/python3", "-c", PROBE, address, str(port)])
            probe.succeed(10 * world.slow)
            check(probe.output().strip() == ("refused" if refused else "silence"), f"UDP port {port} of {address}: {probe.describe()}")
    for host in (1, 2):
        in_root("ip", "-n", hosts.names[host - 1], "addr", "del", f"10.78.2.{host}/24", "dev", "wire0")
    wait_for(lambda: 2 not in gids(world, "rxe0", hosts.env[0], hosts.names[0]), 5 * world.slow, "host 1's GID 2 to go")
    hosts.pair("ibv_rc_pingpong", ["-c"])
    refused = hosts.start(1, "add", [world.product.roci, "address", "add", "rxe0", "10.78.3.1/24"])
    check(refused.wait(10 * world.slow) == 1 and "are the kernel's" in refused.output(),
          f"a kernel's addresses are not ours to change: {refused.describe()}")
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("addresses/gateway-and-neighbour", users=("root",), limit=60)
def _(world):
    """A peer that is not on link is reached by the gateway, or without asking anybody where its MAC is given."""
    hosts = TwoHosts(world, mtu=4200)
    mac = "02:00:00:00:78:02"
    peer = hosts.start_daemon(2, address=f",mac={mac},ip=10.78.6.2/24,ip=10.78.5.254/24")
    for way in ("gateway=10.78.5.254", f"neighbour=10.78.6.2@{mac}"):
        daemon = hosts.start_daemon(1, address=f",ip=10.78.5.1/24,{way}")
        hosts.pair("ibv_rc_pingpong", ["-c"])
        world.stop_daemon(daemon)
    daemon = hosts.start_daemon(1, address=",ip=10.78.5.1/24")
    command = ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-p", str(free_port())]
    server = hosts.start(1, "server", world.under_roci(None, command))
    world.wait_listening(server, int(command[-1]))
    client = hosts.start(2, "client", world.under_roci(None, [*command, "10.78.1.1"]))
    check(server.wait(20 * world.slow) != 0, "a peer that nobody leads to is reached")
    client.wait(20 * world.slow)
    for each in (daemon, peer):
        world.stop_daemon(each)
