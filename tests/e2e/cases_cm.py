"""Applications that find each other by rdma_cm: the distribution's librdmacm, unmodified, between two NICs.

The daemon's own list of ids says when a server listens, and that nothing is left when all have ended.
"""
import ast
import json
import os
import pathlib
import random
import re
import signal
import time

from harness import CLIENT_IP, SERVER_IP, Failure, Skip, case, check, free_port, need_program, wait_for

BOTH = ("user",), ("root",)
LINK_LOCAL = "fe80::ff:fe00:1"  # GID 0 of rxe0
RSPRELOAD = pathlib.Path("/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so")


def cm_ids(world):
    return json.loads(world.run("show", [world.product.roci, "show", "cm", "--json"], 10))["cms"]


def server(world, *command, state="listening", **env):
    """Started on rxe0, and listening."""
    if not world.daemons():
        world.start_private_daemon()
    wait_for(lambda: not cm_ids(world), 10 * world.slow, "an earlier server's ids to go", pause=0.05)
    process = world.start(f"{command[0]}-server", world.under_roci("rxe0", command), **env)

    def ready():
        check(process.popen.poll() is None, f"{process.name} ended before its client came: {process.describe()}")
        return any(one["state"] == state for one in cm_ids(world))
    wait_for(ready, 15 * world.slow, f"{process.name} to listen", pause=0.05)
    return process


def client(world, *command, seconds=40, **env):
    return world.run(f"{command[0]}-client", world.under_roci("rxe1", command), seconds, **env)


def pair(world, server_command, client_command, seconds=40, **env):
    """Both succeed. Returns what the client and the server said."""
    need_program(server_command[0], "rdmacm-utils")
    listening = server(world, *server_command, **env)
    said = client(world, *client_command, seconds=seconds, **env)
    return said, listening.succeed(15 * world.slow)


def finish(process):
    """Of a server that never ends by itself."""
    check(process.popen.poll() is None, f"{process.name} ended: {process.describe()}")
    process.kill(signal.SIGTERM)


# --- rdmacm-utils ---------------------------------------------------------------------------------------

@case("cm/rping", BOTH[0], {"quick", "asan"}, also=BOTH[1])
def _(world):
    for address in (SERVER_IP, LINK_LOCAL):
        said, _ = pair(world, ["rping", "-s", "-a", address, "-V", "-C", "20", "-S", "1000"],
                       ["rping", "-c", "-a", address, "-V", "-v", "-C", "20", "-S", "1000"])
        check(said.count("ping data: rdma-ping-") == 20, f"rping said its data fewer than 20 times: {said[-500:]}")
    world.expect_nothing_left()


@case("cm/rping-persistent-server", also=BOTH[1])
def _(world):
    """One server, several clients at the same time and one after the other."""
    listening = server(world, "rping", "-s", "-P", "-a", SERVER_IP, "-V", "-C", "10")
    for _ in range(3):
        clients = [world.start("rping-client", world.under_roci("rxe1", [
            "rping", "-c", "-a", SERVER_IP, "-V", "-C", "10"])) for _ in range(3)]
        for one in clients:
            one.succeed(30 * world.slow)
    finish(listening)
    world.expect_nothing_left()


@case("cm/ucmatose", BOTH[0], {"asan"}, also=BOTH[1])
def _(world):
    options = ["-c", "10", "-C", "10", "-S", "5000"]
    said, _ = pair(world, ["ucmatose", "-b", SERVER_IP, *options], ["ucmatose", "-s", SERVER_IP, *options])
    check("return status 0" in said, f"ucmatose: {said[-500:]}")
    pair(world, ["ucmatose", "-b", SERVER_IP, "-t", "8", "-m"], ["ucmatose", "-s", SERVER_IP, "-t", "8", "-m"])
    world.expect_nothing_left()


@case("cm/udaddy", BOTH[0], {"quick", "asan"}, also=BOTH[1])
def _(world):
    said, _ = pair(world, ["udaddy", "-b", SERVER_IP, "-c", "10"], ["udaddy", "-s", SERVER_IP, "-c", "10"])
    check("return status 0" in said, f"udaddy: {said[-500:]}")
    world.expect_nothing_left()


@case("cm/mckey", users=(), tags={"asan"}, also=("user", "root"))
def _(world):
    """A receiver and a sender of a group, by both families."""
    need_program("mckey", "rdmacm-utils")
    world.start_private_daemon()
    for group, receiver_ip, sender_ip in (("239.77.1.2", SERVER_IP, CLIENT_IP), ("ff05::77", LINK_LOCAL, "fe80::ff:fe00:2")):
        receiver = world.start("mckey-receiver", world.under_roci("rxe0", ["mckey", "-m", group, "-b", receiver_ip, "-C", "10"]))
        wait_for(lambda: any(
            qp["type"] == "UD" and qp["state"] == "RTS" for qp in world.show()["qps"]), 15 * world.slow, "mckey to join", 0.05)
        time.sleep(0.3)
        client(world, "mckey", "-m", group, "-s", "-b", sender_ip, "-C", "10")
        said = receiver.succeed(20 * world.slow)
        check("return status 0" in said, f"mckey: {said[-500:]}")
    world.expect_nothing_left()


@case("cm/rdma-client-and-server", BOTH[0], {"asan"}, also=BOTH[1])
def _(world):
    said, _ = pair(world, ["rdma_server", "-p", "7700"], ["rdma_client", "-s", SERVER_IP, "-p", "7700"])
    check("end 0" in said, f"rdma_client: {said}")
    said, _ = pair(world, ["rdma_xserver", "-p", "7701", "-c", "r"], ["rdma_xclient", "-s", SERVER_IP, "-p", "7701", "-c", "r"])
    check("end 0" in said, f"rdma_xclient: {said}")
    world.expect_nothing_left()


@case("cm/cmtime-500-at-once", also=BOTH[1], limit=120)
def _(world):
    """500 connections stand at the same time."""
    need_program("cmtime", "rdmacm-utils")
    listening = server(world, "cmtime", "-b", SERVER_IP, "-c", "500")
    said = client(world, "cmtime", "-s", SERVER_IP, "-c", "500", seconds=90)
    check(re.search(r"^connect +:", said, re.M) and "error" not in said.lower(), f"cmtime: {said}")
    finish(listening)
    world.expect_nothing_left()


@case("cm/ucmatose-500-at-once", users=(), also=("user",), limit=120)
def _(world):
    options = ["-c", "500", "-C", "2", "-S", "100"]
    said, _ = pair(world, ["ucmatose", "-b", SERVER_IP, *options], ["ucmatose", "-s", SERVER_IP, *options], seconds=100)
    check("return status 0" in said, f"ucmatose: {said[-500:]}")
    world.expect_nothing_left()


# --- rsockets -------------------------------------------------------------------------------------------

@case("cm/rcopy", BOTH[0], {"asan"}, also=BOTH[1])
def _(world):
    need_program("rcopy", "rdmacm-utils")
    source, copy = world.folder / "source", world.folder / "copy"
    source.write_bytes(random.Random(7).randbytes(3_000_001))
    source.chmod(0o644)
    listening = server(world, "rcopy")
    client(world, "rcopy", source, f"{SERVER_IP}:{copy}")
    check(copy.read_bytes() == source.read_bytes(), "rcopy's copy differs from its source")
    finish(listening)
    world.expect_nothing_left()


@case("cm/rstream", also=BOTH[1], limit=180)
def _(world):
    """rsockets' own streams: blocking, asynchronous and not blocking, the data verified."""
    for tool in ("rstream", "riostream"):
        # Not the client with -T a: what the server says last may come with its goodbye, which that takes for an error.
        for server_way, client_way in (("b", "b"), ("a", "b"), ("n", "n")):
            options = ["-S", "10000", "-C", "50", "-T", "v"]
            said, _ = pair(world, [tool, "-b", SERVER_IP, *options, "-T", server_way],
                           [tool, "-s", SERVER_IP, *options, "-T", client_way])
            check("data verification failed" not in said.lower(), f"{tool}: {said}")
    world.expect_nothing_left()


# By the C library's names, which the preloaded library has too; Python's own sockets use others (accept4, SOCK_CLOEXEC).
SOCKETS = """
import ctypes, hashlib, random, socket, struct, sys
c = ctypes.CDLL(None, use_errno=True)
data = random.Random(3).randbytes(2_000_003)
address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 7800) + socket.inet_aton(sys.argv[2]) + bytes(8)
def must(result):
    assert result >= 0, ctypes.get_errno()
    return result
def send(one, data):
    while data:
        data = data[must(c.send(one, data, ctypes.c_size_t(len(data)), 0)):]
def receive(one, count):
    parts, buffer = [], ctypes.create_string_buffer(65536)
    while count > 0:
        length = must(c.recv(one, buffer, ctypes.c_size_t(min(count, 65536)), 0))
        assert length > 0, "the stream ended early"
        parts.append(buffer.raw[:length])
        count -= length
    return b"".join(parts)
one = must(c.socket(socket.AF_INET, socket.SOCK_STREAM, 0))
if sys.argv[1] == "server":
    must(c.bind(one, address, 16))
    must(c.listen(one, 1))
    accepted = must(c.accept(one, None, None))
    send(accepted, receive(accepted, len(data)))
    c.recv(accepted, ctypes.create_string_buffer(1), ctypes.c_size_t(1), 0)  # the client's end
else:
    must(c.connect(one, address, 16))
    send(one, data[:1000])
    send(one, data[1000:])
    assert receive(one, len(data)) == data, "the data differ"
    print("echoed", hashlib.sha256(data).hexdigest()[:8])
    must(c.shutdown(one, socket.SHUT_RDWR))
must(c.close(one))
"""


@case("cm/librspreload", also=BOTH[1])
def _(world):
    """A program that knows sockets only, over RDMA by preloading."""
    if not RSPRELOAD.exists():
        raise Skip("no librspreload on this machine: apt-get install rdmacm-utils")
    program = world.folder / "sockets.py"
    program.write_text(SOCKETS)
    program.chmod(0o644)
    script = f'LD_PRELOAD="$LD_PRELOAD:{RSPRELOAD}" exec /usr/bin/python3 {program} "$@"'
    listening = server(world, "sh", "-c", script, "sh", "server", SERVER_IP)
    said = client(world, "sh", "-c", script, "sh", "client", SERVER_IP)
    check("echoed" in said, f"the client said: {said}")
    listening.succeed(15 * world.slow)
    check(world.counters("rxe1")["tx_bytes"] > 2_000_000, "the bytes did not go over the NIC")
    world.expect_nothing_left()


# --- others ---------------------------------------------------------------------------------------------

PERFTEST_REFUSED = "RDMA_CM_EVENT_REJECTED; error: 8"


def perftest(world, *command):
    """Its client connects twice, does not wait until its server listens the second time, and gives up when it is refused: then both
    have another go."""
    for _ in range(8):
        port = free_port()
        listening = server(world, *command, "-R", "-F", "-p", port, "-d", "rxe0")
        talking = world.start("perftest-client", world.under_roci("rxe1", [*command, "-R", "-F", "-p", port, "-d", "rxe1", SERVER_IP]))
        if talking.wait(40 * world.slow) == 0:
            return listening.succeed(15 * world.slow)
        if PERFTEST_REFUSED not in talking.output():
            break
        listening.kill()
    raise Failure(talking.describe())


@case("cm/perftest", BOTH[0], {"asan"}, also=BOTH[1], limit=120)
def _(world):
    for command in (["ib_write_bw", "-n", "200"], ["ib_send_lat", "-n", "200"], ["ib_read_bw", "-n", "200"], ["ib_send_bw", "-b", "-n", "200"],
                    ["ib_write_bw", "-q", "4", "-n", "200"], ["ib_send_bw", "-c", "UD", "-n", "200"], ["ib_atomic_lat", "-n", "200"]):
        perftest(world, *command)
    world.expect_nothing_left()


@case("cm/qperf", users=(), also=("user", "root"), limit=90)
def _(world):
    need_program("qperf", "qperf")
    port = free_port()
    listening = world.start("qperf-server", world.under_roci("rxe0", ["qperf", "-lp", port]))
    world.wait_listening(listening, port)
    for test in ("rc_bw", "rc_rdma_write_bw", "rc_lat"):
        said = client(world, "qperf", "-lp", port, "-t", "1", "-cm", "1", "-v", SERVER_IP, test)
        check(re.search(r"(bw|latency) += +[\d.]+", said), f"qperf {test}: {said}")
    finish(listening)
    world.expect_nothing_left()


@case("cm/fi-pingpong", also=BOTH[1], limit=120)
def _(world):
    """libfabric looks for interfaces with the NICs' addresses, which getifaddrs() lists."""
    need_program("fi_pingpong", "libfabric-bin")
    world.start_private_daemon()
    small = {"FI_UNIVERSE_SIZE": "32"}  # ofi_rxm sizes its CQ for so many peers; for 256 it is beyond max_cqe, as with Soft-RoCE
    for provider, endpoint in (("verbs", "msg"), ("verbs;ofi_rxm", "rdm")):
        port = free_port()
        common = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "50", "-c"]
        listening = world.start("fi-server", world.under_roci("rxe0", [*common, "-B", port]), **small)
        world.wait_listening(listening, port)
        said = client(world, *common, "-P", port, SERVER_IP, seconds=60, **small)
        check(re.search(r"^64 +50 ", said, re.M), f"fi_pingpong {provider}: {said[-800:]}")
        listening.succeed(15 * world.slow)
    world.expect_nothing_left()


INTERFACES = """
import ctypes, socket
class Address(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("rest", ctypes.c_ubyte * 26)]
class Interface(ctypes.Structure):
    pass
Interface._fields_ = [("next", ctypes.POINTER(Interface)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                      ("address", ctypes.POINTER(Address)), ("mask", ctypes.POINTER(Address))]
c, first = ctypes.CDLL(None), ctypes.POINTER(Interface)()
for _ in range(3):
    assert c.getifaddrs(ctypes.byref(first)) == 0
    at = first
    found = []
    while at:
        one = at.contents
        if one.address and one.address.contents.family == socket.AF_INET:
            found.append((one.name.decode(), *(socket.inet_ntoa(bytes(a.contents.rest[2:6])) for a in (one.address, one.mask))))
        at = one.next
    c.freeifaddrs(first)
print(found)
"""


@case("interfaces/listed", {"user"}, {"asan"})
def _(world):
    """getifaddrs() has the addresses of the NICs that a program sees, and those that came later."""
    world.start_private_daemon()

    def listed(nic):
        said = world.run("interfaces", world.under_roci(nic, ["/usr/bin/python3", "-c", INTERFACES]), 10)
        return [tuple(one) for one in ast.literal_eval(said.strip().splitlines()[-1]) if one[0].startswith("rxe")]
    first, second = ("rxe0", SERVER_IP, "255.255.255.0"), ("rxe1", CLIENT_IP, "255.255.255.0")
    check(listed(None) == [first, second], f"listed is {listed(None)}")
    check(listed("rxe1") == [second], f"rxe1 alone: {listed('rxe1')}")
    world.run("address", [world.product.roci, "address", "add", "rxe1", "127.77.5.9/16"], 10)
    check(listed("rxe1") == [second, ("rxe1", "127.77.5.9", "255.255.0.0")], f"with one more: {listed('rxe1')}")
    world.run("address", [world.product.roci, "address", "del", "rxe1", "127.77.5.9/16"], 10)
    check(listed("rxe1") == [second], f"without it: {listed('rxe1')}")


@case("cm/fio", also=BOTH[1], limit=120)
def _(world):
    """By WRITE. Not by SEND: fio allows no RNR retry, and its receiver posts too late where processors are few."""
    need_program("fio", "fio")
    port = free_port()
    job = ["--thread", "--ioengine=rdma", f"--port={port}", "--bs=64k", "--size=4m", "--iodepth=4", "--name=rdma"]
    listening = server(world, "fio", *job, "--rw=read")
    client(world, "fio", *job, "--rw=write", "--verb=write", f"--hostname={SERVER_IP}")
    listening.succeed(15 * world.slow)
    world.expect_nothing_left()


# --- ends -----------------------------------------------------------------------------------------------

@case("cm/nobody-listens", BOTH[0], {"quick"})
def _(world):
    """Refused at once, by a NIC on which nobody has the device open, and nobody answers where there is nobody."""
    world.start_private_daemon()
    began = time.monotonic()
    refused = world.start("rping", world.under_roci("rxe1", ["rping", "-c", "-a", SERVER_IP, "-C", "1"]))
    check(refused.wait(10 * world.slow) != 0, "rping connected to nobody")
    check("RDMA_CM_EVENT_REJECTED" in refused.output(), f"rping was not refused: {refused.output()}")
    check(time.monotonic() - began < 3 * world.slow, "the refusal took its time")
    nowhere = world.start("rping", world.under_roci("rxe1", ["rping", "-c", "-a", "127.77.0.99", "-C", "1"]))
    check(nowhere.wait(20 * world.slow) != 0, "rping connected to an address that nobody has")
    world.expect_nothing_left()


@case("cm/killed", also=BOTH[1], limit=90)
def _(world):
    """kill -9 of either side: the other is told, and nothing stays."""
    for victim in ("server", "client"):
        listening = server(world, "rping", "-s", "-a", SERVER_IP)
        talking = world.start("rping-client", world.under_roci("rxe1", ["rping", "-c", "-a", SERVER_IP]))
        wait_for(lambda: sum(one["state"] == "connected" for one in cm_ids(world)) == 2, 15 * world.slow, "a connection", 0.05)
        killed, other = (listening, talking) if victim == "server" else (talking, listening)
        killed.kill()
        other.wait(20 * world.slow)
        check("DISCONNECT EVENT" in other.output(), f"the end of the {victim} was not heard of: {other.describe()}")
        world.expect_nothing_left(10)


@case("cm/daemon-dies", also=BOTH[1])
def _(world):
    """Who waits for an event gets an error, and does not hang."""
    listening = server(world, "rping", "-s", "-a", SERVER_IP)
    for pid in world.daemons():
        os.kill(pid, signal.SIGKILL)
    status = listening.wait(10 * world.slow)
    check(status != 0, "rping did not mind the death of the daemon")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_pages(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])


def cycles(world, count):
    """rping connects, transfers and disconnects, again and again; tables, descriptors and memory are as they were."""
    pid = world.start_private_daemon()
    listening = server(world, "rping", "-s", "-P", "-a", SERVER_IP, "-V", "-C", "2")
    warm_up, before = count // 5, None
    for number in range(count):
        client(world, "rping", "-c", "-a", SERVER_IP, "-V", "-C", "2")
        world.forget_ended()
        if number + 1 == warm_up:
            before = descriptors(pid), resident_pages(pid)
    wait_for(lambda: descriptors(pid) <= before[0] + 2, 10, f"the daemon's descriptors to fall to {before[0]} again")
    after = resident_pages(pid)
    check(after <= before[1] * 1.02 + 256, f"after {count} cycles the daemon holds {after} pages, after {warm_up} it held {before[1]}")
    finish(listening)
    world.expect_nothing_left(10)
    print(f"    {count} cycles; {before[0]} descriptors, resident pages {before[1]} then {after}", flush=True)


@case("cm/50-cycles", limit=120)
def _(world):
    cycles(world, 50)


@case("cm/1000-cycles", users=(), also=("user",), limit=1800)
def _(world):
    cycles(world, 1000)
