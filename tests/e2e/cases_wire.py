"""What is on the wire: captures judged by decoders that are not ours, two hosts, and the kernel's Soft-RoCE as a peer."""
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import tempfile

from harness import IPV4_GID, Failure, Skip, case, check, free_port, need_program, wait_for

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
# tshark 4.0 takes a short SEND for one of these protocols and calls it malformed.
TSHARK = ["tshark", "--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"]
RC_OPCODES = {
    "SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "SEND_ONLY_IMM", "WRITE_FIRST",
    "WRITE_MIDDLE", "WRITE_LAST", "WRITE_LAST_IMM", "WRITE_ONLY", "WRITE_ONLY_IMM", "READ_REQUEST", "READ_RESP_FIRST",
    "READ_RESP_MIDDLE", "READ_RESP_LAST", "READ_RESP_ONLY", "ACK", "ATOMIC_ACK", "CMP_SWAP", "FETCH_ADD"}


def shared(*parts):
    """A file of the lab that the project's developers share; it stands beside the checkout unless ROCI_SHARED says else."""
    path = pathlib.Path(os.environ.get("ROCI_SHARED") or TOP.parent / "shared").joinpath(*parts)
    if not path.exists():
        raise Skip(f"no {'/'.join(parts)}: set ROCI_SHARED to the folder that holds it")
    return path


# --- capture --------------------------------------------------------------------------------------------

class Capture:
    """`roci capture` in the background while the `with` block runs."""

    def __init__(self, world, file, nic=None, namespace=None):
        self.world, self.file, self.namespace = world, file, namespace
        self.selection = ["--nic", nic] if nic else []

    def __enter__(self):
        self.process = self.world.start("capture", [self.world.product.roci, "capture", *self.selection, "-o", self.file],
                                        namespace=self.namespace)

        def running():
            check(self.process.popen.poll() is None, f"`roci capture` ended early: {self.process.describe()}")
            return self.file.exists() and self.file.stat().st_size > 0
        wait_for(running, 10 * self.world.slow, "the capture file")
        return self

    def __exit__(self, kind, _value, _traceback):
        self.process.popen.send_signal(signal.SIGINT)
        if kind is None:
            self.process.succeed(10 * self.world.slow)


def decode(world, file):
    """Opcode -> packets, by roce-dump, which shares no code with us and verifies every ICRC."""
    process = world.start("roce-dump", [shared("rxe-lab", "roce-dump"), file])
    status = process.wait(60 * world.slow)
    check(status == 0, f"roce-dump finds a wrong ICRC or length, or no packet (status {status}): {process.describe()}")
    count = {}
    for line in process.output().splitlines():
        found = re.search(r"\bRC[ _]([A-Z_]+)\b", line)
        if found:
            count[found[1]] = count.get(found[1], 0) + 1
    return count


def judge(world, file, packets):
    """Everybody who can read the capture agrees: our checker, roce-dump, tshark; and all count the same."""
    world.run("check", [world.product.roci, "check", file], 60)
    explained = world.run("explain", [world.product.roci, "explain", file], 60)
    lines = len(explained.splitlines())
    check(lines >= packets, f"`roci explain` prints {lines} lines for {packets} packets")
    need_program("tshark", "tshark")
    malformed = world.run("tshark", [*TSHARK, "-r", file, "-Y", "_ws.malformed"], 120)
    wrong = [line for line in malformed.splitlines() if not line.startswith("Running as user")]
    check(not wrong, "tshark finds malformed packets:\n" + "\n".join(wrong[:5]))
    counted = world.run("tshark-count", [*TSHARK, "-r", file, "-Y", "infiniband.bth", "-T", "fields", "-e", "frame.number"], 120)
    seen = len([line for line in counted.splitlines() if line.strip().isdigit()])
    check(seen == packets, f"tshark sees {seen} RoCE packets, the engine counted {packets}")
    decoded = decode(world, file)
    check(sum(decoded.values()) == packets, f"roce-dump sees {sum(decoded.values())} RC packets, the engine counted {packets}")
    return decoded


def packets_on_the_wire(world, namespace=None):
    counters = world.show(namespace)["counters"]
    return sum(nic["tx_roce_packets"] for nic in counters.values())


def capture_and_judge(world, workload, nic=None):
    world.start_private_daemon()
    file = world.folder / "run.pcapng"
    with Capture(world, file, nic) as capture:
        before = packets_on_the_wire(world)
        workload()
        packets = packets_on_the_wire(world) - before
    text = capture.process.output()
    lost = re.search(r"(\d+) lost|lost[^0-9]*(\d+)", text)
    check(lost and int(lost[1] or lost[2]) == 0, f"`roci capture` does not say that 0 packets were lost: {text}")
    check(packets > 0, "no packet was sent")
    return judge(world, file, packets)


@case("capture/pingpong", ("user", "root"), {"quick", "asan"})
def _(world):
    decoded = capture_and_judge(world, lambda: world.pair("ibv_rc_pingpong", ["-c", "-n", "100"]))
    check(decoded.get("SEND_FIRST", 0) >= 200, f"the pings are not in the capture: {decoded}")


@case("capture/every-opcode", limit=120)
def _(world):
    decoded = capture_and_judge(world, lambda: world.run(
        "operations", world.under_roci(None, [world.product.verbs_check, "operations"]), 60))
    missing = RC_OPCODES - set(decoded)
    check(not missing, f"opcodes that the capture does not hold: {sorted(missing)}")


@case("capture/perftest", limit=120)
def _(world):
    def workload():
        for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
            world.pair(tool, ["-n", "50", "-s", "20000"])
        world.pair("ib_atomic_bw", ["-n", "50"])
    capture_and_judge(world, workload)


@case("capture/unwritable-file", tags={"quick"})
def _(world):
    world.start_private_daemon()
    process = world.start("capture", [world.product.roci, "capture", "-o", "/proc/no/such/file.pcapng"])
    status = process.wait(10 * world.slow)
    lines = process.output().strip().splitlines()
    check(status not in (0, None) and len(lines) == 1, f"status {status}, expected an error in one line: {process.describe()}")
    full = world.start("capture", [world.product.roci, "capture", "-o", "/dev/full"])
    check(full.wait(10 * world.slow) == 1 and full.output() == "roci capture: /dev/full: No space left on device\n",
          f"the reason is not told: {full.describe()}")


@case("capture/refused-leaves-files-alone", tags={"quick"})
def _(world):
    world.start_private_daemon()
    old, new = world.folder / "old.pcapng", world.folder / "new.pcapng"
    old.write_text("precious")
    old.chmod(0o666)
    for file in (old, new):
        process = world.start("capture", [world.product.roci, "capture", "--nic", "rxe7", "-o", file])
        check(process.wait(10 * world.slow) == 1 and "no such NIC" in process.output(), f"not refused: {process.describe()}")
    check(old.read_text() == "precious", "a refused capture emptied the file")
    check(not new.exists(), "a refused capture left an empty file")


@case("roci/output-that-cannot-be-written", tags={"quick"})
def _(world):
    """Every subcommand that prints says so, in one line, and fails."""
    world.start_private_daemon()
    capture = world.folder / "one.pcapng"
    with Capture(world, capture):
        world.pair("ibv_rc_pingpong", ["-n", "2"])
    for words in ("--help", "--version", "show", "show --json", "show --watch 1", f"check {capture}", "check --rules",
                  f"explain {capture}", f"capture -o {capture} --duration 0.1", "stop"):
        process = world.start("full", ["sh", "-c", f"exec {world.product.roci} {words} > /dev/full"])
        status = process.wait(10 * world.slow)
        lines = process.output().strip().splitlines()
        check(status == 2 and len(lines) == 1 and "No space left" in lines[0],
              f"roci {words} > /dev/full: status {status}: {process.describe()}")


# --- two hosts ------------------------------------------------------------------------------------------

def in_root(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip()}")


class TwoHosts:
    """Two network namespaces joined by a veth pair; each has a runtime folder of its own, so a daemon of its own.

    The kernel owns 10.78.1.N, for the applications' TCP side channel; rocid owns 10.78.0.N on the same interface.
    """

    def __init__(self, world, mtu, pair=""):
        """`pair`: the name of this one of several."""
        need_program("ip", "iproute2")
        self.world = world
        self.names = [f"roci-{os.getpid()}-{pair}{n}" for n in (1, 2)]
        self.env = []
        try:
            for name in self.names:
                in_root("ip", "netns", "add", name)
                world.cleanups.append(lambda name=name: subprocess.run(["ip", "netns", "del", name], check=False,
                                                                       capture_output=True))
            in_root("ip", "-n", self.names[0], "link", "add", "wire0", "type", "veth", "peer", "name", "wire0", "netns",
                    self.names[1])
        except Failure as failure:
            raise Skip(f"this machine does not let us make network namespaces or veth pairs: {failure}") from None
        for number, name in enumerate(self.names, 1):
            in_root("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv6.conf.wire0.disable_ipv6=1")
            in_root("ip", "-n", name, "link", "set", "lo", "up")
            in_root("ip", "-n", name, "link", "set", "wire0", "mtu", str(mtu), "up")
            in_root("ip", "-n", name, "addr", "add", f"10.78.1.{number}/24", "dev", "wire0")
            runtime = world.runtime / f"{pair}host{number}"
            runtime.mkdir(mode=0o700)
            self.env.append({**world.env, "XDG_RUNTIME_DIR": str(runtime)})

    def start(self, host, name, command):
        return self.world.start(f"{name}-{host}", command, namespace=self.names[host - 1], env=self.env[host - 1])

    def start_daemon(self, host, address=None):
        """Its own address, unless `address` is the empty string: then it shares the kernel's."""
        address = f",ip=10.78.0.{host}/24" if address is None else address
        return self.world.start_daemon("--nic", f"rxe0,port=af_packet:wire0{address}",
                                       namespace=self.names[host - 1], env=self.env[host - 1])

    def pair(self, tool, options, seconds=30, gid=IPV4_GID):
        port = free_port()
        option = "-g" if tool.startswith("ibv_") else "-x"
        command = [tool, "-d", "rxe0", option, gid, "-p", str(port), *options]
        server = self.start(1, tool, self.world.under_roci(None, command))
        self.world.wait_listening(server, port)
        client = self.start(2, tool, self.world.under_roci(None, [*command, "10.78.1.1"]))
        client.succeed(seconds * self.world.slow)
        server.succeed(10 * self.world.slow)


@case("af-packet/two-hosts", users=("root",), tags={"asan"}, limit=120)
def _(world):
    hosts = TwoHosts(world, mtu=4200)
    daemons = [hosts.start_daemon(host) for host in (1, 2)]
    hosts.pair("ibv_rc_pingpong", ["-c"])
    hosts.pair("ibv_rc_pingpong", ["-c", "-e", "-m", "4096", "-s", "100000", "-n", "50"])
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        hosts.pair(tool, ["-F", "-n", "100"])
    hosts.pair("ib_atomic_bw", ["-F", "-n", "100"])
    hosts.pair("ib_write_lat", ["-F", "-n", "200"])
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("af-packet/small-mtu", users=("root",), limit=60)
def _(world):
    """An Ethernet MTU of 1500 makes 1024 the largest path MTU."""
    hosts = TwoHosts(world, mtu=1500)
    daemons = [hosts.start_daemon(host) for host in (1, 2)]
    hosts.pair("ibv_rc_pingpong", ["-c", "-s", "30000", "-n", "100"])
    hosts.pair("ib_write_bw", ["-F", "-n", "100"])
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("af-packet/N05-four-namespaces", users=(), also=("root",), limit=90)
def _(world):
    """Two wires with the same addresses, MACs and QPNs on both: nobody hears the other wire, and the end of one leaves the other alone."""
    wires = [TwoHosts(world, mtu=1500, pair=pair) for pair in ("a", "b")]
    daemons = [[hosts.start_daemon(host) for host in (1, 2)] for hosts in wires]
    port, command = free_port(), ["ibv_rc_pingpong", "-d", "rxe0", "-g", IPV4_GID, "-c", "-n", "5000"]
    running = []
    for hosts in wires:
        server = hosts.start(1, "pingpong", world.under_roci(None, [*command, "-p", str(port)]))
        world.wait_listening(server, port)
        running.append((server, hosts.start(2, "pingpong", world.under_roci(None, [*command, "-p", str(port), "10.78.1.1"]))))
    for process in running[0]:
        process.kill()
    for daemon in daemons[0]:
        world.stop_daemon(daemon)
    for process in reversed(running[1]):
        check("invalid data" not in process.succeed(60 * world.slow), f"the other wire was heard: {process.describe()}")
    for daemon in daemons[1]:
        world.stop_daemon(daemon)


@case("af-packet/multicast", users=("root",), tags={"asan"}, limit=60)
def _(world):
    """Datagrams reach the group on the other host; where the kernel owns the addresses it is in the group meanwhile."""
    hosts = TwoHosts(world, mtu=4200)
    in_root("ip", "netns", "exec", hosts.names[0], "sysctl", "-qw", "net.ipv6.conf.wire0.disable_ipv6=0")
    daemons = [hosts.start_daemon(1, address=""), hosts.start_daemon(2)]

    def kernel_is_in(table, group):
        return group in (pathlib.Path("/proc") / str(daemons[0].pid) / "net" / table).read_text()
    for group, table, in_table in (("::ffff:239.77.0.9", "igmp", "09004DEF"), ("ff15::77:9", "igmp6", "ff150000000000000000000000770009")):
        for receiver, sender in ((1, 2), (2, 1)):
            waiting = hosts.start(receiver, "receive", world.under_roci(None, [world.product.verbs_check, "receive-multicast", group]))
            wait_for(lambda: "attached" in waiting.output() or waiting.popen.poll() is not None, 10 * world.slow, "the receiver")
            if receiver == 1:
                wait_for(lambda: kernel_is_in(table, in_table), 5 * world.slow, f"the kernel to be in {group}")
            hosts.start(sender, "send", world.under_roci(None, [world.product.verbs_check, "send-multicast", group])).succeed(20 * world.slow)
            waiting.succeed(30 * world.slow)
            wait_for(lambda: not kernel_is_in(table, in_table), 5 * world.slow, f"the kernel to leave {group}")
    for daemon in daemons:
        world.stop_daemon(daemon)


@case("af-packet/port-events", users=("root",), limit=60)
def _(world):
    """ibv_asyncwatch is told that the wire is pulled, and put back."""
    hosts = TwoHosts(world, mtu=4200)
    daemon = hosts.start_daemon(1)
    watch = hosts.start(1, "asyncwatch", world.under_roci(None, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0"]))
    wait_for(lambda: "async event FD" in watch.output(), 10 * world.slow, "ibv_asyncwatch")
    for state, event in (("down", 10), ("up", 9)):  # IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE
        in_root("ip", "-n", hosts.names[1], "link", "set", "wire0", state)
        wait_for(lambda: re.search(rf"event_type .*\({event}\)", watch.output()), 5 * world.slow, f"event {event} of a link that goes {state}")
    watch.kill()
    world.stop_daemon(daemon)


# --- Soft-RoCE ------------------------------------------------------------------------------------------

class RxeLab:
    """A guest with Debian's kernel and its Soft-RoCE, joined with us in a network namespace."""

    NAMESPACE = "roci-e2e-rxe"
    GUEST_IP, HOST_TCP_IP, OUR_IP = "10.77.0.11", "10.77.0.1", "10.77.0.2"

    def __init__(self, world):
        if not world.is_root:
            raise Skip("needs root, for network namespaces and a guest")
        self.scripts = shared("rxe-lab")
        need_program("qemu-system-x86_64", "qemu-system-x86")
        need_program("ip", "iproute2")
        self.world = world
        folder = pathlib.Path(tempfile.gettempdir()) / "roci-e2e-rxe-lab"  # kept: it holds the guest's image
        folder.mkdir(exist_ok=True)
        self.env = {**world.env, "RXE_LAB_DIR": str(folder), "RXE_LAB_NETNS": self.NAMESPACE, "MTU": "4200"}
        # One lab at a time; the lock goes with the file, at the end of the case.
        lock = open(folder / "lock", "w")
        world.cleanups.append(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.script("down").wait(30)  # what an interrupted run may have left
        world.cleanups.append(lambda: self.script("down").wait(30))
        up = self.script("up", "1")
        status = up.wait(200)
        if status != 0:
            output = up.output()
            if "qemu" in output or "ready in time" in output or "download" in output.lower() or "Err:" in output:
                raise Skip(f"the Soft-RoCE guest does not start here: {output.strip().splitlines()[-1]}")
            raise Failure(f"the lab does not start: {up.describe()}")

    def script(self, name, *arguments):
        return self.world.start(f"lab-{name}", [self.scripts / name, *arguments], env=self.env)

    def guest(self, command, seconds=60):
        return self.script("sh", "-t", str(seconds), "1", command)


def pingpong_with_guest(world, lab, options, guest_serves, guest_gid=IPV4_GID):
    port = free_port()
    common = ["ibv_rc_pingpong", "-d", "rxe0", "-c", "-p", str(port), *options]
    on_guest = [*common, "-g", guest_gid]

    def ours(*more):
        return world.start("pingpong-ours", world.under_roci(None, [*common, "-g", IPV4_GID, *more]), namespace=lab.NAMESPACE)
    if guest_serves:
        server = lab.guest(" ".join(on_guest))
        wait_for(lambda: lab.guest(f"netstat -ltn | grep -q ':{port} '").wait(20) == 0, 20, "the guest's server", pause=0.05)
        client = ours(lab.GUEST_IP)
    else:
        server = ours()
        world.wait_listening(server, port)
        client = lab.guest(" ".join([*on_guest, lab.HOST_TCP_IP]))
    client.succeed(60 * world.slow)
    server.succeed(30 * world.slow)
    for side in (server, client):
        check("invalid data" not in side.output() and "usec/iter" in side.output(), f"no good result: {side.describe()}")


@case("rxe/pingpong-both-ways", users=(), also=("root",), limit=300)
def _(world):
    lab = RxeLab(world)
    daemon = world.start_daemon("--nic", f"rxe0,port=af_packet:lab0,ip={lab.OUR_IP}/24", namespace=lab.NAMESPACE)
    file = world.folder / "rxe.pcapng"
    with Capture(world, file, namespace=lab.NAMESPACE):
        for guest_serves in (False, True):
            pingpong_with_guest(world, lab, ["-n", "100"], guest_serves)
            pingpong_with_guest(world, lab, ["-n", "20", "-m", "4096", "-s", "50000"], guest_serves)
    decode(world, file)
    world.run("check", [world.product.roci, "check", file], 60)
    world.stop_daemon(daemon)
