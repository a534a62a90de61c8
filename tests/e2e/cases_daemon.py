"""The daemon's life: found by two at once, killed applications, its own death, wrong configuration, two hosts."""
import os
import signal
import time

from harness import as_ordinary_user, case, check, cpu_seconds, program_of, wait_for

ACK_TIMEOUT_CODE, RETRY_COUNT = 12, 7  # what the cases ask perftest for, and what perftest always sets
RETRY_LIMIT = (RETRY_COUNT + 1) * 4 * 4.096e-6 * 2 ** ACK_TIMEOUT_CODE  # seconds until retries must be exhausted


@case("daemon/started-by-two-at-once", ("user", "root"), {"quick", "asan"})
def _(world):
    for _round in range(3):
        both = [world.start(f"run-{nic}", world.under_roci(nic, ["sleep", "0.3"])) for nic in ("rxe0", "rxe1")]
        for process in both:
            process.succeed(15 * world.slow)
        pids = world.daemons()
        check(len(pids) == 1, f"two `roci run` at once made {len(pids)} daemons")
        os.kill(pids[0], signal.SIGTERM)
        wait_for(lambda: not world.daemons(), 5 * world.slow, "the daemon to end after SIGTERM")


@case("daemon/few-open-files", tags={"quick"})
def _(world):
    """Too low a limit is named; the least that is allowed is enough to start."""
    for limit, expected in ((8, 1), (12, 1), (64, 0)):
        process = world.start("few", ["sh", "-c", f"ulimit -n {limit}; exec {world.product.roci} run -- true"])
        status = process.wait(20 * world.slow)
        check(status == expected and (status == 0 or f"{limit} open files are allowed" in process.output()),
              f"ulimit -n {limit}: status {status}, expected {expected}: {process.describe()}")


@case("daemon/ends-after-its-last-client", limit=60)
def _(world):
    world.start_private_daemon()
    time.sleep(3)  # not a race: the promise is 10 s, so 3 s is too early by far
    check(world.daemons(), "the private daemon ended within 3 s of its last client; 10 s are promised")
    wait_for(lambda: not world.daemons(), 15 * world.slow, "the private daemon to end by itself", pause=0.1)


@case("daemon/nic-selection", tags={"quick"})
def _(world):
    for nic, expected in ((None, {"rxe0", "rxe1"}), ("rxe0", {"rxe0"}), ("rxe1", {"rxe1"})):
        output = world.run("devices", world.under_roci(nic, ["ibv_devices"]))
        seen = {line.split()[0] for line in output.splitlines() if line.strip().startswith("rxe")}
        check(seen == expected, f"under --nic {nic}, ibv_devices shows {sorted(seen)}, expected {sorted(expected)}:\n{output}")


@case("daemon/exit-status-of-the-application", tags={"quick"})
def _(world):
    """`roci run` passes on the exit status of the application, and its death by a signal."""
    status = world.start("false", world.under_roci(None, ["sh", "-c", "exit 7"])).wait(15 * world.slow)
    check(status == 7, f"`roci run -- sh -c 'exit 7'` ended with {status}")
    status = world.start("killed", world.under_roci(None, ["sh", "-c", "kill -TERM $$"])).wait(15 * world.slow)
    check(status in (-signal.SIGTERM, 128 + signal.SIGTERM), f"an application killed by SIGTERM: `roci run` ended with {status}")
    process = world.start("absent", world.under_roci(None, ["no-such-program-anywhere"]))
    status = process.wait(15 * world.slow)
    check(status == 127 and len(process.output().strip().splitlines()) == 1,
          f"an application that does not exist: status {status}, expected 127 and one line: {process.describe()}")


def transfer_under_way(world, nic, than):
    """Frames are moving: the counter is well above what set-up takes."""
    return lambda: world.counters(nic)["tx_frames"] > than


@case("killed/responder", ("user", "root"), {"asan"}, limit=60)
def _(world):
    """The passive side dies; the requester's retries run out in time and its QP reports it."""
    server, client = world.start_pair("ib_write_bw", ["-D", "30", "-u", str(ACK_TIMEOUT_CODE)])
    victim = server.application("ib_write_bw")
    wait_for(transfer_under_way(world, "rxe1", 1000), 10 * world.slow, "the transfer to run", pause=0.05)
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    status = client.wait(RETRY_LIMIT * world.slow + 2)
    took = time.monotonic() - begin
    check(status != 0, f"the client ended with 0 though its peer was killed: {client.describe()}")
    check("status 12" in client.output() or "transport retry counter exceeded" in client.output(),
          f"after {took:.2f} s the client reports something else than exhausted retries: {client.describe()}")
    server.wait(5)
    world.expect_nothing_left()


@case("killed/requester", ("user", "root"), {"asan"}, limit=60)
def _(world):
    """The active side dies; the daemon drops what it had and serves the next pair."""
    server, client = world.start_pair("ib_write_bw", ["-D", "30", "-u", str(ACK_TIMEOUT_CODE)])
    victim = client.application("ib_write_bw")
    wait_for(transfer_under_way(world, "rxe1", 1000), 10 * world.slow, "the transfer to run", pause=0.05)
    os.kill(victim, signal.SIGKILL)
    client.wait(5)
    # perftest's passive side waits on its TCP connection, which has ended.
    server.wait(10 * world.slow)
    world.expect_nothing_left()
    world.pair("ibv_rc_pingpong", ["-c"])


@case("killed/read-responder", limit=60)
def _(world):
    server, client = world.start_pair("ib_read_bw", ["-D", "30", "-u", str(ACK_TIMEOUT_CODE)])
    victim = server.application("ib_read_bw")
    wait_for(transfer_under_way(world, "rxe0", 1000), 10 * world.slow, "the transfer to run", pause=0.05)
    os.kill(victim, signal.SIGKILL)
    check(client.wait(RETRY_LIMIT * world.slow + 2) != 0, f"the reader ended with 0 though its peer was killed: {client.describe()}")
    server.wait(5)
    world.expect_nothing_left()


@case("killed/daemon-polling-applications", ("user", "root"), {"asan"}, limit=60)
def _(world):
    daemon_dies(world, ["-n", "100000000"])


@case("killed/daemon-waiting-applications", ("user", "root"), {"asan"}, limit=60)
def _(world):
    daemon_dies(world, ["-e", "-n", "100000000"])


def daemon_dies(world, options):
    """Both applications end with an error by themselves, whether they poll or wait for events."""
    daemon = world.start_private_daemon()
    both = world.start_pair("ibv_rc_pingpong", options)
    wait_for(transfer_under_way(world, "rxe1", 100), 10 * world.slow, "the transfer to run", pause=0.05)
    os.kill(daemon, signal.SIGKILL)
    for process in both:
        status = process.wait(10 * world.slow)
        check(status != 0, f"{process.name} ended with 0 though the daemon was killed: {process.describe()}")
    world.pair("ibv_rc_pingpong", ["-c"])  # a new daemon starts, the dead one's socket is not in the way


@case("daemon/its-end-is-an-event", tags={"asan"})
def _(world):
    """An application that watches its device is told that it goes when the daemon is ended in good order."""
    world.start_private_daemon()
    watch = world.start("asyncwatch", world.under_roci("rxe0", ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0"]))
    wait_for(lambda: "async event FD" in watch.output(), 10 * world.slow, "ibv_asyncwatch")
    world.run("stop", [world.product.roci, "stop"], 20)
    wait_for(lambda: "fatal" in watch.output().lower(), 10 * world.slow, "the event")
    watch.kill()


@case("killed/idle-application-of-a-dead-daemon", limit=60)
def _(world):
    """An application that waits without traffic when the daemon dies gets an error and burns no CPU."""
    daemon = world.start_private_daemon()
    process = world.start("asyncwatch", world.under_roci("rxe0", ["ibv_asyncwatch", "-d", "rxe0"]))
    application = process.application("ibv_asyncwatch")
    wait_for(lambda: world.in_use().get("contexts"), 10, "the application's context", pause=0.05)
    os.kill(daemon, signal.SIGKILL)
    before = cpu_seconds(application) if program_of(application) else 0.0
    begin = time.monotonic()
    while process.popen.poll() is None and time.monotonic() - begin < 2:
        used = cpu_seconds(application) - before if program_of(application) else 0.0
        check(used < 0.5, f"used {used:.1f} s of CPU in {time.monotonic() - begin:.1f} s after the daemon died")
        time.sleep(0.05)


@case("roci/show", tags={"quick"})
def _(world):
    world.start_private_daemon()
    waiting = world.start("pingpong", world.under_roci("rxe0", ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1"]))
    wait_for(lambda: world.in_use().get("qps"), 10 * world.slow, "a QP", pause=0.05)
    text = world.run("show", [world.product.roci, "show"])
    wide = [line for line in text.splitlines() if len(line) > 100]
    check(not wide, "wider than 100 columns:\n" + "\n".join(wide))
    check("local-write" in text, f"the MR's access is not told in words:\n{text}")
    clients = world.show()["daemon"]["clients"]
    check(clients == 2, f"{clients} clients are shown; there are the device and the lifeline of one application")
    check(waiting.popen.poll() is None, "the application has ended: the case would prove nothing")
    watch = world.start("watch", [world.product.roci, "show", "nic", "--watch", "0.1"])
    wait_for(lambda: watch.output().count("== nics") >= 2, 10 * world.slow, "two looks", pause=0.05)
    watch.kill()
    looks = watch.output().split("\n\n---- ")
    check(len(looks) >= 2 and looks[1][2] == ":", f"two looks are not told apart:\n{watch.output()}")


FABRIC = "port=fabric"


@case("config/wrong-is-refused-in-one-line", tags={"quick", "asan"})
def _(world):
    nic = ["--nic", f"rxe0,{FABRIC},ip=127.77.0.1/24"]
    broken = world.folder / "broken.toml"
    broken.write_text('[[nic]]\nname = "rxe0\n')
    unknown = world.folder / "unknown.toml"
    unknown.write_text('[[nic]]\nname = "rxe0"\nport = "fabric"\nip = "127.77.0.1/24"\ncolour = "blue"\n')
    newline = world.folder / "newline.toml"
    newline.write_text('[[nic]]\nname = "rxe0\\nrxe1"\n')
    for path in (broken, unknown, newline):
        path.chmod(0o644)
    wrong = {
        "no NIC": [],
        "an address that is none": ["--nic", f"rxe0,{FABRIC},ip=300.1.1.1/24"],
        "no prefix that exists": ["--nic", f"rxe0,{FABRIC},ip=10.0.0.1/40"],
        "a port of unknown kind": ["--nic", "rxe0,port=carrier-pigeon,ip=127.77.0.1/24"],
        "a key that is unknown": ["--nic", f"rxe0,{FABRIC},ip=127.77.0.1/24,colour=blue"],
        "one name twice": [*nic, "--nic", f"rxe0,{FABRIC},ip=127.77.0.2/24"],
        "one address twice": [*nic, "--nic", f"rxe1,{FABRIC},ip=127.77.0.1/24"],
        "a name that the rxe provider does not accept": ["--nic", f"eth0,{FABRIC},ip=127.77.0.1/24"],
        "an unknown option": [*nic, "--no-such-option"],
        "an interface that does not exist": ["--nic", "rxe0,port=af_packet:no-such-if,ip=10.0.0.1/24"],
        "an address of nobody here": ["--nic", "rxe0,port=udp:192.0.2.1"],
        "an address with a prefix for udp": ["--nic", "rxe0,port=udp:127.0.0.1/8"],
        "a second address for udp": ["--nic", "rxe0,port=udp:127.0.0.1,ip=127.0.0.2/8"],
        "a gateway with a prefix": ["--nic", "rxe0,port=tap:t0,ip=10.0.0.1/24,gateway=10.0.0.254/24"],
        "a neighbour without a MAC": ["--nic", "rxe0,port=tap:t0,ip=10.0.0.1/24,neighbour=10.0.0.9"],
        "a gateway on the fabric": ["--nic", "rxe0,ip=10.0.0.1/24,gateway=10.0.0.254"],
        "a file that does not exist": ["-c", str(world.folder / "absent.toml")],
        "a file that is a directory": ["-c", str(world.folder)],
        "a file without end": ["-c", "/dev/zero"],
        "a time that is no number": [*nic, "--idle-exit", "nan"],
        "a file that is not TOML": ["-c", str(broken)],
        "a file with an unknown key": ["-c", str(unknown)],
        "a file without a name": ["-c", ""],
        "a name with a newline": ["-c", str(newline)],
        "an argument that EAL does not know": [*nic, "--", "--no-such-argument"],
        "an argument that EAL does not like": [*nic, "--", "-n", "many"],
    }
    failed = []
    for what, arguments in wrong.items():
        process = world.start("rocid", [world.product.rocid, *arguments])
        status = process.wait(10 * world.slow)
        lines = process.output().strip().splitlines()
        if status != 2 or len(lines) != 1:
            failed.append(f"{what}: status {status}, {len(lines)} lines: {process.describe()}")
    check(not failed, "expected exit status 2 and one line:\n" + "\n".join(failed))


@case("daemon/explicit", ("user", "root"), {"quick", "asan"})
def _(world):
    """rocid started by hand, from a file, is found by `roci run`, and SIGTERM ends it with status 0."""
    config = world.folder / "nics.toml"
    config.write_text("".join(f'[[nic]]\nname = "rxe{n}"\nport = "fabric"\nip = "127.77.0.{n + 1}/24"\n' for n in range(2)))
    config.chmod(0o644)
    daemon = world.start_daemon("-c", config)
    world.pair("ibv_rc_pingpong", ["-c"])
    check(world.daemons() == [daemon.pid], "`roci run` started another daemon")
    world.stop_daemon(daemon)


STRANGER = """
import socket, struct, sys
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.settimeout(5)
daemon.connect(sys.argv[1])
ping = b'{"op":"ping"}'
daemon.send(struct.pack("<IHHQiI", 0x49434F52, 1, 3, 1, 0, len(ping)) + ping)  # MessageHeader of verbs_shim/protocol.h
answer = daemon.recv(65536)
print("served" if answer and struct.unpack("<IHHQiI", answer[:24])[4] == 0 else "refused")
"""


@case("daemon/another-user-is-refused", users=("root",))
def _(world):
    """The private daemon serves its own user only, even where the folder of its socket lets others in."""
    world.start_private_daemon()
    socket_path = world.runtime / "rocinante" / "rocid.sock"
    ask = ["/usr/bin/python3", "-c", STRANGER, socket_path]
    check("served" in world.run("ourselves", ask), "our own ping is not answered: the case would prove nothing")
    for path in (world.folder, world.runtime, world.runtime / "rocinante", socket_path):
        path.chmod(0o777)
    stranger = world.start("stranger", as_ordinary_user(ask))
    stranger.wait(10)
    check("served" not in stranger.output(), f"another user was served: {stranger.describe()}")
    check(world.daemons(), "the daemon is gone")
