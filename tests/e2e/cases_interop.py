"""The interoperability matrix against the kernel's Soft-RoCE: see tests/interop. `tools/interop` runs all of it."""
import contextlib
import fnmatch
import pathlib
import select
import shutil
import subprocess
import sys
import zlib

from cases_ports import need_af_xdp, need_tap
from cases_wire import Capture, RxeLab, in_root
from harness import Failure, Skip, case, check

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests" / "interop"))
import matrix  # noqa: E402

HOST = "roci-interop"  # the namespace of our NIC
OUR_IPV6 = "fd77::2"
AGREE_PORT = "18777"   # of TCP, in the guest
CELL_SECONDS = 200     # both sides wait 30 s for a completion, some steps in turn


class Talker:
    """A program that is told a line and answers with one."""

    def __init__(self, world, name, command, namespace):
        self.name, self.errors = name, world.folder / f"{name}.stderr"
        self.popen = subprocess.Popen(["ip", "netns", "exec", namespace, *map(str, command)], env=world.env, text=True, bufsize=1,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.errors, "w"))
        world.cleanups.append(self.end)

    def hear(self, seconds):
        if not select.select([self.popen.stdout], [], [], seconds)[0]:
            raise Failure(f"{self.name} says nothing for {seconds} s")
        line = self.popen.stdout.readline()
        if not line:
            raise Failure(f"{self.name} ended: {self.errors.read_text()}")
        return line.strip()

    def tell(self, line, seconds=10):
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()
        return self.hear(seconds)

    def end(self):
        self.popen.kill()
        self.popen.wait()


class Bench:
    """Our NIC in a namespace of its own, a harmful cable, and the guest's Soft-RoCE at its other end."""

    def __init__(self, world, port):
        self.world, self.port, self.lab = world, port, RxeLab(world)
        self.peer = world.product.verbs_check.parent.parent / "interop" / "interop_peer"
        check(self.peer.exists(), f"not built: {self.peer}")
        subprocess.run(["ip", "netns", "del", HOST], stderr=subprocess.DEVNULL, check=False)  # of an interrupted run
        in_root("ip", "netns", "add", HOST)
        world.cleanups.append(lambda: in_root("ip", "netns", "del", HOST))
        here, there = ["ip", "-n", HOST], ["ip", "-n", self.lab.NAMESPACE]
        mtu = "3400" if port.name == "af_xdp" else "4200"
        in_root(*here, "link", "set", "lo", "up")
        in_root(*here, "link", "add", "nic0", "mtu", mtu, "type", "veth", "peer", "name", "cable0", "netns", self.lab.NAMESPACE)
        in_root("ip", "netns", "exec", HOST, "sysctl", "-qw", "net.ipv6.conf.nic0.accept_dad=0")
        in_root("ip", "netns", "exec", self.lab.NAMESPACE, "sysctl", "-qw", "net.ipv6.conf.cable0.disable_ipv6=1")
        in_root(*there, "link", "set", "cable0", "mtu", mtu, "up")
        if port.name != "tap":
            for address in (f"{self.lab.OUR_IP}/24", OUR_IPV6 + "/64"):
                in_root(*here, "address", "add", address, "dev", "nic0")
        in_root(*here, "link", "set", "nic0", "up")
        wire = ["/usr/bin/python3", TOP / "tests/interop/wire.py"]
        in_root("ip", "netns", "exec", HOST, *wire, "--sums", "nic0")
        self.wire = Talker(world, "wire", [*wire, "cable0", "lab0"], self.lab.NAMESPACE)
        check(self.wire.hear(10) == "ready", "the cable is not ready")
        # Ends that connect by CM need one MTU: the path MTU is the active side's.
        check(self.lab.guest(f"/usr/bin/ip link set eth0 mtu {mtu}").wait(20) == 0, "the guest's MTU")
        shutil.copy(self.peer, pathlib.Path(self.lab.env["RXE_LAB_DIR"]) / "guests/1/share/interop_peer")

    @contextlib.contextmanager
    def open(self, versions):
        """A NIC with addresses of these IP versions, and both programs."""
        world = self.world
        nic = {"af_packet": "port=af_packet:nic0", "af_xdp": "port=af_xdp:nic0",
               "tap": f"port=tap:tap0,ip={self.lab.OUR_IP}/24,ip={OUR_IPV6}/64,mtu=4200",
               "udp": f"port=udp:{self.lab.OUR_IP if 4 in versions else OUR_IPV6}"}[self.port.name]
        daemon = need_af_xdp(lambda: world.start_daemon("--nic", f"rxe0,{nic}", namespace=HOST))
        if self.port.name == "tap":
            for words in (["link", "add", "bridge0", "mtu", "4200", "type", "bridge", "forward_delay", "0"], ["link", "set", "nic0", "master", "bridge0"],
                          ["link", "set", "tap0", "master", "bridge0"], ["link", "set", "tap0", "up"], ["link", "set", "bridge0", "up"]):
                in_root("ip", "-n", HOST, *words)
        self.lab.guest(f"/host/interop_peer serve {AGREE_PORT}", seconds=3600)
        self.driver = Talker(world, "driver", world.under_roci("rxe0", [self.peer, "drive", self.lab.GUEST_IP, AGREE_PORT]), self.lab.NAMESPACE)
        yield
        self.driver.end()
        world.stop_daemon(daemon)

    def run(self, cell, seed):
        """A finding, or nothing; and how many frames were harmed."""
        self.wire.tell(f"{cell.faults} {seed}")
        answer = self.driver.tell(cell.line(seed), CELL_SECONDS)
        harmed, seen = map(int, self.wire.tell(f"clean {seed}").split())
        if answer != "ok":
            return answer, harmed
        check(seen > 0, f"{cell}: nothing went over the cable")
        return "", harmed


FINDINGS = {}  # of the ports tried so far, for the table of all: port -> cell -> finding
HARMED = []


def run_matrix(world, name):
    port = matrix.PORTS[name]
    everything = world.interop is not None  # the file for the table of all cells
    cells = port.full() if everything else matrix.covering(port)
    if world.cells:
        cells = [cell for cell in port.full() if fnmatch.fnmatchcase(str(cell), world.cells)]
        if not cells:
            raise Skip(f"port {name} has no cell like {world.cells}")
    bench, results = Bench(world, port), {}
    for versions in port.versions:
        with bench.open(versions):
            for cell in (cell for cell in cells if cell.ip in versions):
                seed = zlib.crc32(str(cell).encode()) % 100000
                file = world.folder / (str(cell).replace("/", "-") + ".pcapng")
                with Capture(world, file, namespace=HOST) if world.cells else contextlib.nullcontext():
                    results[cell], harmed = bench.run(cell, seed)
                HARMED.append(harmed)
                if results[cell] and not matrix.deviation(cell, results[cell]):
                    print(f"    {cell}: {results[cell]}", flush=True)
                if everything and len(results) % 100 == 0:
                    print(f"    {len(results)} of {len(cells)} cells", flush=True)
    FINDINGS[name] = results
    if everything:
        world.interop.write_text(matrix.document(FINDINGS, sum(HARMED)))
    red = {cell: finding for cell, finding in results.items() if finding and not matrix.deviation(cell, finding)}
    check(world.cells or sum(HARMED) > 0, "no frame was harmed: the cable does nothing")
    check(not red, f"{len(red)} of {len(results)} cells are red:\n" + "\n".join(f"{cell}: {finding}" for cell, finding in red.items()))


@case("interop/matrix/af_packet", users=(), also=("root",), limit=3600)
def _(world):
    run_matrix(world, "af_packet")


@case("interop/matrix/tap", users=(), also=("root",), limit=1800)
def _(world):
    need_tap()
    run_matrix(world, "tap")


@case("interop/matrix/af_xdp", users=(), also=("root",), limit=1800)
def _(world):
    run_matrix(world, "af_xdp")


@case("interop/matrix/udp", users=(), also=("root",), limit=1800)
def _(world):
    run_matrix(world, "udp")
