"""The interoperability matrix against the kernel's Soft-RoCE: see tests/interop. `tools/interop` runs all of it."""
import fnmatch
import pathlib
import select
import shutil
import subprocess
import sys
import zlib

from cases_wire import Capture, RxeLab, in_root
from harness import Failure, Skip, case, check, wait_for

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests" / "interop"))
import matrix  # noqa: E402

HOST = "roci-interop"  # the namespace of our NIC
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
        self.world, self.lab = world, RxeLab(world)
        peer = world.product.verbs_check.parent.parent / "interop" / "interop_peer"
        check(peer.exists(), f"not built: {peer}")
        subprocess.run(["ip", "netns", "del", HOST], stderr=subprocess.DEVNULL, check=False)  # of an interrupted run
        in_root("ip", "netns", "add", HOST)
        world.cleanups.append(lambda: in_root("ip", "netns", "del", HOST))
        here, there = ["ip", "-n", HOST], ["ip", "-n", self.lab.NAMESPACE]
        in_root(*here, "link", "set", "lo", "up")
        in_root(*here, "link", "add", "nic0", "mtu", "4200", "type", "veth", "peer", "name", "cable0", "netns", self.lab.NAMESPACE)
        in_root("ip", "netns", "exec", HOST, "sysctl", "-qw", "net.ipv6.conf.nic0.accept_dad=0")
        in_root("ip", "netns", "exec", self.lab.NAMESPACE, "sysctl", "-qw", "net.ipv6.conf.cable0.disable_ipv6=1")
        in_root(*there, "link", "set", "cable0", "mtu", "4200", "up")
        for address in (f"{self.lab.OUR_IP}/24", "fd77::2/64"):
            in_root(*here, "address", "add", address, "dev", "nic0")
        in_root(*here, "link", "set", "nic0", "up")
        self.wire = Talker(world, "wire", ["/usr/bin/python3", TOP / "tests/interop/wire.py", "cable0", "lab0"], self.lab.NAMESPACE)
        check(self.wire.hear(10) == "ready", "the cable is not ready")
        nic = {"af_packet": "rxe0,port=af_packet:nic0"}.get(port)
        if nic is None:
            raise Skip(f"no port {port} to try here")
        self.daemon = world.start_daemon("--nic", nic, namespace=HOST)

        share = pathlib.Path(self.lab.env["RXE_LAB_DIR"]) / "guests/1/share/interop_peer"
        shutil.copy(peer, share)
        self.server = self.lab.guest("/host/interop_peer serve 18777", seconds=3600)
        self.driver = Talker(world, "driver", world.under_roci("rxe0", [peer, "drive", self.lab.GUEST_IP, "18777"]),
                             self.lab.NAMESPACE)

    def run(self, cell, seed):
        """A finding, or nothing; and how many frames were harmed."""
        self.wire.tell(f"{cell.faults} {seed}")
        answer = self.driver.tell(cell.line(seed), CELL_SECONDS)
        harmed, seen = map(int, self.wire.tell(f"clean {seed}").split())
        if answer != "ok":
            return answer, harmed
        check(seen > 0, f"{cell}: nothing went over the cable")
        return "", harmed


@case("interop/matrix", users=("root",), limit=3600)
def _(world):
    bench = Bench(world, "af_packet")
    everything = world.interop is not None  # the file for the table of all cells
    cells = matrix.full(4096) if everything else matrix.covering(4096)
    if world.cells:
        cells = [cell for cell in matrix.full(4096) if fnmatch.fnmatchcase(str(cell), world.cells)]
        check(cells, f"no cell is like {world.cells}")
    results, harmed = {}, 0
    for number, cell in enumerate(cells, 1):
        seed = zlib.crc32(str(cell).encode()) % 100000
        if everything and number % 100 == 0:
            print(f"    {number} of {len(cells)} cells", flush=True)
        if world.cells:
            with Capture(world, world.folder / (str(cell).replace("/", "-") + ".pcapng"), namespace=HOST):
                results[cell], more = bench.run(cell, seed)
        else:
            results[cell], more = bench.run(cell, seed)
        harmed += more
        if results[cell] and not matrix.deviation(cell, results[cell]):
            print(f"    {cell}: {results[cell]}", flush=True)
    if everything:
        world.interop.write_text(matrix.document(results, harmed))
    red = {cell: finding for cell, finding in results.items() if finding and not matrix.deviation(cell, finding)}
    check(harmed > 0, "no frame was harmed: the cable does nothing")
    check(not red, f"{len(red)} of {len(results)} cells are red:\n" + "\n".join(f"{cell}: {finding}" for cell, finding in red.items()))
    world.stop_daemon(bench.daemon)
