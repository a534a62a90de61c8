"""Applications that find each other by rdma_cm, one end on our NIC and one on the kernel's Soft-RoCE, in both roles."""
import time

from cases_cm import PERFTEST_REFUSED, cm_ids
from cases_wire import Capture, RxeLab, decode
from harness import Failure, case, check, wait_for

GUEST_IPV6, OUR_IPV6 = "fd77::11", "fd77::2"
PERFTEST_TRIES = 8
START_SECONDS = 30  # until a server of the guest listens

# Program: what the server and the client are told ({ip} is the server's address), whether the server ends by itself, and what
# the client then says.
PROGRAMS = {
    "rping": ("rping -s -a {ip} -V -C 10 -S 1000", "rping -c -a {ip} -V -v -C 10 -S 1000", True, "ping data: rdma-ping-9"),
    "ucmatose": ("ucmatose -b {ip} -c 5 -C 5 -S 3000", "ucmatose -s {ip} -c 5 -C 5 -S 3000", True, "return status 0"),
    "udaddy": ("udaddy -b {ip} -c 5 -C 5", "udaddy -s {ip} -c 5 -C 5", True, "return status 0"),
    "rdma_client": ("rdma_server -p 7700", "rdma_client -s {ip} -p 7700", True, "end 0"),
    "rdma_xclient": ("rdma_xserver -p 7701 -c r", "rdma_xclient -s {ip} -p 7701 -c r", True, "end 0"),
    "cmtime": ("cmtime -b {ip} -c 50", "cmtime -s {ip} -c 50", False, "disconnect"),
    "rstream": ("rstream -b {ip} -S 5000 -C 20 -T v", "rstream -s {ip} -S 5000 -C 20 -T v", True, "4.8k"),
    "riostream": ("riostream -b {ip} -S 5000 -C 20 -T v", "riostream -s {ip} -S 5000 -C 20 -T v", True, "4.8k"),
    "ib_write_bw": ("ib_write_bw -R -F -n 50 -p 7710", "ib_write_bw -R -F -n 50 -p 7710 {ip}", True, "#bytes"),
    "ib_send_lat": ("ib_send_lat -R -F -n 50 -p 7711", "ib_send_lat -R -F -n 50 -p 7711 {ip}", True, "#bytes"),
    "ib_read_bw": ("ib_read_bw -R -F -n 50 -p 7712", "ib_read_bw -R -F -n 50 -p 7712 {ip}", True, "#bytes"),
}


class Refused(Failure):
    """perftest's client came before its server listened."""


class Ends:
    """Our NIC and the guest's, and programs on both."""

    def __init__(self, world):
        self.world, self.lab = world, RxeLab(world)
        self.daemon = world.start_daemon("--nic", f"rxe0,port=af_packet:lab0,ip={self.lab.OUR_IP}/24,ip={OUR_IPV6}/64",
                                         namespace=self.lab.NAMESPACE)

    def ours(self, name, command):
        return self.world.start(f"{name}-ours", self.world.under_roci("rxe0", command.split()), namespace=self.lab.NAMESPACE)

    def address(self, is_guest, version=4):
        if version == 6:
            return GUEST_IPV6 if is_guest else OUR_IPV6
        return self.lab.GUEST_IP if is_guest else self.lab.OUR_IP

    def client(self, name, is_guest, command):
        """A client comes before its server listens, now and then: then it is refused, and comes again."""
        end = time.monotonic() + START_SECONDS
        while True:
            client = self.lab.guest(command) if is_guest else self.ours(name, command)
            if client.wait(60 * self.world.slow) == 0:
                return client
            if name.startswith("ib_") and PERFTEST_REFUSED in client.output():
                raise Refused(client.describe())
            refused = any(text in client.output() for text in ("REJECTED", "refused", "UNREACHABLE, error: 1", "not connected", "rpoll: Success"))
            if not refused or time.monotonic() > end:
                raise Failure(f"{client.describe()}")
            time.sleep(0.3)

    def run(self, name, guest_serves, version=4):
        """perftest connects a second time without waiting for its server to listen again, and gives up when it is refused: then both
        have another go."""
        for _ in range(PERFTEST_TRIES if name.startswith("ib_") else 1):
            try:
                return self.run_once(name, guest_serves, version)
            except Refused as refused:
                last = refused
        raise last

    def run_once(self, name, guest_serves, version):
        server_command, client_command, ends, said = PROGRAMS[name]
        ip = self.address(guest_serves, version)
        server_command, client_command = server_command.format(ip=ip), client_command.format(ip=ip)
        wait_for(lambda: not cm_ids(self.world), 20, "earlier ids to go", pause=0.05)
        if guest_serves:
            server = self.lab.guest(f"timeout 40 {server_command}", seconds=50)
            time.sleep(1)
        else:
            server = self.ours(name, server_command)
            wait_for(lambda: any(one["state"] == "listening" for one in cm_ids(self.world)), 20, f"{name} to listen", pause=0.05)
        try:
            client = self.client(name, not guest_serves, client_command)
        except Refused:
            self.end(server, guest_serves, server_command)
            raise
        check(said in client.output(), f"the client does not say {said!r}: {client.describe()}")
        if ends:
            server.succeed(30 * self.world.slow)
        else:
            self.end(server, guest_serves, server_command)

    def end(self, server, is_guest, command):
        server.kill()
        if is_guest:
            program = command.split()[0]
            self.lab.guest(f'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = {program} ] && kill ${{p#/proc/}}; done; true').wait(20)


    def mckey(self, guest_receives, group="239.77.1.2"):
        receive, send = (f"mckey -m {group} -b {self.address(is_guest)} -C 10" for is_guest in (guest_receives, not guest_receives))
        if guest_receives:
            receiver = self.lab.guest(f"timeout 40 {receive}", seconds=50)
            time.sleep(3)
        else:
            receiver = self.ours("mckey", receive)
            wait_for(lambda: any(qp["type"] == "UD" and qp["state"] == "RTS" for qp in self.world.show()["qps"]), 20, "mckey to join", 0.05)
            time.sleep(0.5)
        self.client("mckey", not guest_receives, f"{send} -s")
        check("return status 0" in receiver.succeed(30 * self.world.slow), f"mckey did not receive: {receiver.describe()}")


def run_all(world, guest_serves):
    ends = Ends(world)
    file, failed = world.folder / "cm.pcapng", []
    with Capture(world, file, namespace=ends.lab.NAMESPACE):
        for name, version in [("rping", 6), *((name, 4) for name in PROGRAMS)]:
            try:
                ends.run(name, guest_serves, version)
            except Failure as failure:
                failed.append(f"{name}, IPv{version}: {failure}")
                print(f"    {failed[-1]}", flush=True)
        ends.mckey(guest_serves)
    check(not failed, f"{len(failed)} programs failed:\n" + "\n".join(failed))
    decode(world, file)
    world.expect_nothing_left(20)
    world.stop_daemon(ends.daemon)


@case("rxe/cm-we-serve", users=(), also=("root",), limit=600)
def _(world):
    run_all(world, guest_serves=False)


@case("rxe/cm-guest-serves", users=(), also=("root",), limit=600)
def _(world):
    run_all(world, guest_serves=True)
