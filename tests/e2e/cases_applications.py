"""Unmodified applications of the distribution, and verbs_check, which validates what they do not."""
import concurrent.futures
import re

from harness import IPV4_GID, SERVER_IP, Failure, case, check, free_port

BOTH = ("user", "root")
ROOT = ("root",)
BANDWIDTH_TOOLS = ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw")
LATENCY_TOOLS = ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat")
NO_EVENTS = ("ib_write_bw", "ib_write_lat")             # perftest refuses -e for WRITE
FIXED_SIZE = ("ib_atomic_bw", "ib_atomic_lat")          # and -a for atomics
ALL_SIZES = [2 ** power for power in range(1, 24)]      # what -a runs


def pingpong(world, *options, seconds=20, service="rc"):
    """ibv_*_pingpong with data validation; both sides must report their rate and no wrong byte."""
    server, client = world.pair(f"ibv_{service}_pingpong", ["-c", *options], seconds)
    for side in (server, client):
        output = side.output()
        check("invalid data" not in output, f"wrong data: {side.describe()}")
        check(re.search(r"^\d+ iters in .* seconds = .* usec/iter$", output, re.M),
              f"{side.name} reports no result: {side.describe()}")


@case("pingpong/plain", BOTH, {"quick", "asan"})
def _(world):
    pingpong(world)
    world.expect_nothing_left()


@case("pingpong/events", BOTH, {"quick", "asan"})
def _(world):
    pingpong(world, "-e")
    world.expect_nothing_left()


@case("pingpong/mtu", tags={"asan"}, also=ROOT)
def _(world):
    for mtu in (256, 512, 1024, 2048, 4096):
        pingpong(world, "-m", str(mtu), "-n", "200", "-s", "9001")
    world.expect_nothing_left()


@case("pingpong/size", tags={"asan"}, also=ROOT)
def _(world):
    for size in (1, 3, 1023, 1024, 1025, 4096, 65536, 1 << 20):
        pingpong(world, "-s", str(size), "-n", "20" if size > 65536 else "100")
    world.expect_nothing_left()


@case("pingpong/one-receive", tags={"asan"}, also=ROOT)
def _(world):
    pingpong(world, "-r", "1", "-n", "200")
    pingpong(world, "-r", "1", "-e", "-n", "200")
    world.expect_nothing_left()


@case("pingpong/new-post-send", tags={"asan"})
def _(world):
    pingpong(world, "-N", "-n", "200")


@case("pingpong/same-nic")
def _(world):
    """A NIC talks to itself."""
    port = free_port()
    common = ["ibv_rc_pingpong", "-d", "rxe0", "-g", IPV4_GID, "-c", "-p", str(port)]
    server = world.start("server", world.under_roci("rxe0", common))
    world.wait_listening(server, port)
    world.run("client", world.under_roci("rxe0", [*common, SERVER_IP]))
    server.succeed(10)


@case("pingpong/unreliable-connection", BOTH, {"quick", "asan"})
def _(world):
    pingpong(world, service="uc")
    pingpong(world, "-e", "-n", "500", service="uc")
    pingpong(world, "-s", "100000", "-m", "1024", "-n", "100", service="uc")
    world.expect_nothing_left()


@case("pingpong/datagram", tags={"quick", "asan"}, also=ROOT)
def _(world):
    pingpong(world, service="ud")
    pingpong(world, "-e", "-n", "500", service="ud")
    pingpong(world, "-s", "4096", "-n", "500", service="ud")
    pingpong(world, "-s", "1", "-n", "100", service="ud")
    world.expect_nothing_left()


@case("pingpong/shared-receive-queue", BOTH, {"quick", "asan"})
def _(world):
    pingpong(world, service="srq")
    pingpong(world, "-e", "-n", "500", service="srq")
    pingpong(world, "-q", "3", "-r", "20", "-s", "9000", "-n", "300", service="srq")
    world.expect_nothing_left()


# --- perftest -------------------------------------------------------------------------------------------

def results(output, tool):
    """The table that perftest prints: size -> numbers of that row."""
    rows = {}
    for line in output.splitlines():
        fields = line.split()
        if len(fields) >= 5 and re.fullmatch(r"\d+", fields[0]) and re.fullmatch(r"\d+", fields[1]):
            rows[int(fields[0])] = [float(field) for field in fields[1:]]
    if not rows:
        raise Failure(f"{tool} prints no result:\n{output[-800:]}")
    return rows


def perftest(world, tool, *options, sizes=None, seconds=30):
    """Both sides succeed; the client's table has every size, with a rate or a latency above zero in each row."""
    _, client = world.pair(tool, options, seconds)
    rows = results(client.output(), tool)
    if sizes is not None:
        check(sorted(rows) == sizes, f"{tool} {' '.join(options)} ran sizes {sorted(rows)}, expected {sizes}")
    for size, numbers in rows.items():
        # bandwidth: iterations, peak, average, messages; latency: iterations, minimum, maximum, typical, average
        measured = numbers[3] if tool.endswith("_bw") else numbers[4]
        check(measured > 0, f"{tool} {' '.join(options)} measured {measured} at {size} bytes: {client.describe()}")


def fewer(world, count):
    """Iterations of a long run: a tenth under sanitizers."""
    return str(count if world.slow <= 1 else max(5, count // 10))


def register(tool):
    short = tool.removeprefix("ib_").replace("_", "-")
    is_bandwidth = tool in BANDWIDTH_TOOLS
    first = tool in ("ib_write_bw", "ib_send_lat")  # of the kind: in the shorter runs, too
    quick = {"quick"} if first else set()
    asan = {"asan" if first else "asan-long"}

    @case(f"perftest/{short}/plain", BOTH, {"asan", *quick})
    def _(world):
        perftest(world, tool, "-n", fewer(world, 1000))
        world.expect_nothing_left()

    if tool not in FIXED_SIZE:
        @case(f"perftest/{short}/all-sizes", ("user",) if first else (), limit=90, also=ROOT if first else BOTH)
        def _(world):
            perftest(world, tool, "-a", "-n", "20", sizes=ALL_SIZES, seconds=80)

    if tool not in NO_EVENTS:
        @case(f"perftest/{short}/events", tags=asan, also=ROOT)
        def _(world):
            perftest(world, tool, "-e", "-n", fewer(world, 500))

    if is_bandwidth:
        @case(f"perftest/{short}/queue-pairs", tags=asan, also=ROOT)
        def _(world):
            perftest(world, tool, "-q", "8", "-n", fewer(world, 200))
            world.expect_nothing_left()

        @case(f"perftest/{short}/bidirectional", tags=asan, also=ROOT)
        def _(world):
            perftest(world, tool, "-b", "-n", fewer(world, 500))


for _tool in BANDWIDTH_TOOLS + LATENCY_TOOLS:
    register(_tool)


UD_SIZES = [2 ** power for power in range(1, 13)]  # what -a runs: up to the path MTU


@case("perftest/unreliable-connection", tags={"asan"})
def _(world):
    for tool in ("ib_send_bw", "ib_write_bw", "ib_send_lat", "ib_write_lat"):
        perftest(world, tool, "-c", "UC", "-n", fewer(world, 500))
    perftest(world, "ib_send_bw", "-c", "UC", "-e", "-n", fewer(world, 500))
    perftest(world, "ib_write_bw", "-c", "UC", "-b", "-q", "4", "-n", fewer(world, 200))
    world.expect_nothing_left()


@case("perftest/datagram", tags={"asan"})
def _(world):
    perftest(world, "ib_send_bw", "-c", "UD", "-n", fewer(world, 1000))
    perftest(world, "ib_send_bw", "-c", "UD", "-e", "-n", fewer(world, 500))
    perftest(world, "ib_send_bw", "-c", "UD", "-b", "-q", "2", "-n", fewer(world, 500))
    perftest(world, "ib_send_lat", "-c", "UD", "-e", "-n", fewer(world, 500))
    perftest(world, "ib_send_lat", "-c", "UD", "-a", "-n", "50", sizes=UD_SIZES)
    world.expect_nothing_left()


@case("perftest/shared-receive-queue", tags={"asan"})
def _(world):
    perftest(world, "ib_send_bw", "--use-srq", "-q", "4", "-n", fewer(world, 500))
    perftest(world, "ib_send_bw", "--use-srq", "-e", "-b", "-n", fewer(world, 500))
    perftest(world, "ib_send_lat", "--use-srq", "-n", fewer(world, 500))
    world.expect_nothing_left()


@case("perftest/many-pairs", limit=90)
def _(world):
    """Several pairs at once share the daemon and do not disturb each other."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(pingpong, world, "-n", "200", seconds=60),
                pool.submit(perftest, world, "ib_write_bw", "-n", "300", seconds=60),
                pool.submit(perftest, world, "ib_read_bw", "-n", "300", seconds=60),
                pool.submit(pingpong, world, "-e", "-s", "100000", "-n", "50", seconds=60)]
        for job in jobs:
            job.result()
    world.expect_nothing_left()


# --- two shards -----------------------------------------------------------------------------------------

def on_two_shards(world, *runs):
    """Each run with the server's NIC and the client's on poll threads of their own, which hand frames to each other."""
    daemon = world.start_daemon("--shards", "2", *(word for n in range(2)
                                                   for word in ("--nic", f"rxe{n},ip=127.77.0.{n + 1}/24")))
    calls = [0, 0]
    for run in runs:
        run()
        before, calls = calls, [shard["memory_calls"] for shard in world.show()["daemon"]["shards"]]
        check(all(now > then for now, then in zip(calls, before)), f"not both shards worked: {before}, then {calls} memory calls")
    world.expect_nothing_left()
    world.stop_daemon(daemon)


@case("shards/reliable-connection")
def _(world):
    on_two_shards(world, lambda: pingpong(world, "-e", "-n", "500"),
                  lambda: perftest(world, "ib_read_bw", "-b", "-q", "4", "-n", fewer(world, 200)),
                  lambda: perftest(world, "ib_atomic_lat", "-n", fewer(world, 200)))


@case("shards/unreliable-connection")
def _(world):
    on_two_shards(world, lambda: pingpong(world, "-n", "500", service="uc"),
                  lambda: perftest(world, "ib_write_bw", "-c", "UC", "-b", "-q", "2", "-n", fewer(world, 100)))


@case("shards/datagram")
def _(world):
    on_two_shards(world, lambda: pingpong(world, "-e", "-n", "500", service="ud"),
                  lambda: perftest(world, "ib_send_bw", "-c", "UD", "-b", "-q", "2", "-n", fewer(world, 500)))


@case("shards/shared-receive-queue")
def _(world):
    on_two_shards(world, lambda: pingpong(world, "-q", "3", "-r", "20", "-s", "9000", "-n", "300", service="srq"),
                  lambda: perftest(world, "ib_send_bw", "--use-srq", "-q", "4", "-n", fewer(world, 500)))


# --- verbs_check ----------------------------------------------------------------------------------------

def verbs_check(world, *what, seconds=60):
    return world.run("verbs-check-" + what[0], world.under_roci(None, [world.product.verbs_check, *what]), seconds)


@case("verbs/operations", BOTH, {"quick", "asan"}, limit=90)
def _(world):
    verbs_check(world, "operations")
    world.expect_nothing_left()


@case("verbs/errors", tags={"quick", "asan"}, limit=90)
def _(world):
    verbs_check(world, "errors")
    world.expect_nothing_left()


@case("verbs/refusals", tags={"quick", "asan"})
def _(world):
    verbs_check(world, "refusals")
    world.expect_nothing_left()


@case("verbs/unreliable-services", tags={"asan"}, limit=90)
def _(world):
    for what in ("unreliable-connection", "datagrams", "multicast"):
        verbs_check(world, what)
    world.expect_nothing_left()


@case("verbs/shared-receives-windows-resize", tags={"asan"}, limit=90)
def _(world):
    for what in ("shared-receives", "windows", "atomic-write", "resize"):
        verbs_check(world, what)
    world.expect_nothing_left()


@case("verbs/garbage-in-shared-memory", tags={"asan"}, limit=120)
def _(world):
    """A client that writes garbage into its rings harms neither the daemon nor another client's transfer."""
    daemon = world.start_private_daemon()
    for seed in (1, 2, 3):
        server, client = world.start_pair("ibv_rc_pingpong", ["-c", "-n", "3000"])
        world.start(f"garbage-{seed}", world.under_roci(None, [world.product.verbs_check, "garbage", str(seed)])).wait(30)
        client.succeed(60 * world.slow)
        server.succeed(10 * world.slow)
        check(world.daemons() == [daemon], f"the daemon did not survive garbage of seed {seed}")
    world.expect_nothing_left()
