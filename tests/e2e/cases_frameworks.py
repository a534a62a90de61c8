"""What stands between an application and verbs: UCX, MPI over UCX, libfabric; and what ibverbs-utils says of a NIC.

UCX and MPI are confined to RDMA transports, and the NICs' counters say that the bytes went over the wire.
"""
import pathlib
import re
import subprocess

from harness import SERVER_IP, case, check, free_port, need_program

HERE = pathlib.Path(__file__).resolve().parent
NICS = ("rxe0", "rxe1")
RC_AND_UD = "rc_verbs,ud_verbs,self"  # RC for data; UCX makes its connections by UD


def sent_bytes(world):
    return {nic: world.counters(nic)["tx_bytes"] for nic in NICS}


def check_sent(world, before, at_least, what):
    for nic, now in sent_bytes(world).items():
        check(now - before[nic] >= at_least, f"{what}: {nic} sent {now - before[nic]} bytes, expected {at_least} at least")


# --- UCX ------------------------------------------------------------------------------------------------

def ucx_environment(transports):
    return {"UCX_TLS": transports, "UCX_IB_GID_INDEX": "1"}


def ucx_perftest(world, environment, arguments, client_nic="rxe1", seconds=60):
    """Returns what the client prints with -v: lines of name, iterations, and eight figures."""
    port = free_port()
    command = ["ucx_perftest", "-p", port, *arguments]
    server = world.start("ucx-server", world.under_roci("rxe0", command), **environment)
    world.wait_listening(server, port)
    output = world.run("ucx-client", world.under_roci(client_nic, [*command, "-v", SERVER_IP]), seconds, **environment)
    server.succeed(10 * world.slow)
    return output


def check_ucx_result(output, name, iterations):
    found = re.search(rf"^{name},? *{iterations}((?:,[\d.]+)+)$", output, re.M)
    check(found, f"no result of {iterations} iterations for '{name}':\n{output[-800:]}")
    check(float(found[1].split(",")[-1]) > 0, f"'{name}' ran at no rate at all:\n{output[-800:]}")


def ucp(world, transports, tests, iterations=50):
    """One pair of processes runs all tests; each is (name, message bytes)."""
    batch = world.folder / "batch"
    batch.write_text("".join(f"{test} -t {test} -s {length} -n {iterations} -w 5\n" for test, length in tests))
    batch.chmod(0o644)
    world.start_private_daemon()
    before = sent_bytes(world)
    output = ucx_perftest(world, ucx_environment(transports), ["-b", batch])
    for test, _ in tests:
        check_ucx_result(output, test, iterations)
    check_sent(world, before, len(tests) * iterations, transports)
    world.expect_nothing_left()


@case("ucx/devices", tags={"quick"})
def _(world):
    output = world.run("ucx-info", world.under_roci(None, ["ucx_info", "-d"]))
    found = set(re.findall(r"Transport: (\w+)\s+#\s+Device: (rxe\d:1)", output))
    expected = {(transport, f"{nic}:1") for transport in ("rc_verbs", "ud_verbs") for nic in NICS}
    check(expected <= found, f"ucx_info does not show {sorted(expected - found)}:\n{output[-2000:]}")


@case("ucx/rc-and-ud", tags={"asan"}, limit=90)
def _(world):
    ucp(world, RC_AND_UD, [("tag_lat", 8), ("tag_bw", 100000), ("stream_bw", 5000), ("ucp_am_bw", 3000), ("ucp_put_bw", 5000),
                           ("ucp_get", 5000), ("ucp_add", 8), ("ucp_fadd", 8), ("ucp_cswap", 8)])


@case("ucx/ud-alone", limit=90)
def _(world):
    ucp(world, "ud_verbs,self", [("tag_lat", 8), ("tag_bw", 100000), ("ucp_put_bw", 5000), ("ucp_get", 5000), ("ucp_fadd", 8)])


@case("ucx/rc-asleep", limit=90)
def _(world):
    """UCX arms its CQs after it has polled them, and sleeps without another look: what came between must wake it."""
    world.start_private_daemon()
    for test, length in (("tag_lat", 8), ("tag_bw", 5000)):
        arguments = ["-t", test, "-s", str(length), "-n", "5000", "-w", "20", "-E", "sleep"]
        check_ucx_result(ucx_perftest(world, ucx_environment(RC_AND_UD), arguments, seconds=20), "", 5000)
    world.expect_nothing_left()


@case("ucx/rc-alone", limit=90)
def _(world):
    """Below UCP, which needs UD to make a connection. Both sides name the client's device, so one NIC is both."""
    for test, *options in (("am_lat", "-D", "short"), ("am_bw", "-D", "zcopy"), ("put_bw", "-D", "zcopy"),
                           ("get", "-D", "bcopy"), ("fadd",), ("cswap",)):
        arguments = ["-d", "rxe0:1", "-x", "rc_verbs", "-t", test, *options, "-n", "50", "-w", "5"]
        output = ucx_perftest(world, ucx_environment("rc_verbs"), arguments, client_nic="rxe0")
        check_ucx_result(output, "", 50)  # the only test of a run has no name
    world.expect_nothing_left()


# --- MPI ------------------------------------------------------------------------------------------------

class OpenMpi:
    compiler, rank = "mpicc.openmpi", "OMPI_COMM_WORLD_RANK"

    @staticmethod
    def launcher(world, ranks):
        as_root = [] if world.drops or not world.is_root else ["--allow-run-as-root"]
        return ["mpirun.openmpi", *as_root, "--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl",
                "self", "-n", ranks]


class Mpich:
    compiler, rank = "mpicc.mpich", "PMI_RANK"

    @staticmethod
    def launcher(_world, ranks):
        return ["mpirun.mpich", "-n", ranks]


def mpi(world, library, ranks):
    """mpi_check.c, which validates all data. An even number of ranks alternates between the NICs, so that no message around
    the ring stays on one."""
    need_program(library.compiler, "libopenmpi-dev, libmpich-dev")
    program = world.folder / "mpi_check"
    built = subprocess.run([library.compiler, "-O1", "-Wall", "-Werror", "-o", program, HERE / "mpi_check.c"],
                           capture_output=True, text=True, check=False)
    check(built.returncode == 0, f"{library.compiler} does not build mpi_check.c:\n{built.stderr}")
    program.chmod(0o755)
    world.start_private_daemon()
    before = sent_bytes(world)
    one = f'exec {world.product.roci} run --nic rxe$((${library.rank} % 2)) -- {program}'
    output = world.run("mpirun", [*library.launcher(world, ranks), "sh", "-c", one], 90, **ucx_environment(RC_AND_UD))
    found = re.search(rf"^mpi_check: {ranks} ranks, (\d+) bytes around the ring, all as expected$", output, re.M)
    check(found, f"mpi_check does not say that all is well:\n{output[-2000:]}")
    check_sent(world, before, int(found[1]) // 2, f"{ranks} ranks of {library.compiler}")
    world.expect_nothing_left()


@case("mpi/open-mpi/two-ranks", ("root",), limit=120)
def _(world):
    mpi(world, OpenMpi, 2)


@case("mpi/open-mpi/four-ranks", limit=120)
def _(world):
    mpi(world, OpenMpi, 4)


@case("mpi/mpich/four-ranks", limit=120)
def _(world):
    mpi(world, Mpich, 4)


# --- libfabric, ibverbs-utils ---------------------------------------------------------------------------

@case("libfabric/fi_info", tags={"quick"})
def _(world):
    need_program("fi_info", "libfabric-bin")
    output = world.run("fi-info", world.under_roci(None, ["fi_info", "-p", "verbs"]))
    found = set(re.findall(r"domain: (\S+)\s+version: \S+\s+type: (\S+)", output))
    expected = {(nic + suffix, kind) for nic in NICS for suffix, kind in (("", "FI_EP_MSG"), ("-dgram", "FI_EP_DGRAM"))}
    check(expected <= found, f"fi_info does not show {sorted(expected - found)}:\n{output}")


@case("ibverbs-utils/ibv_devinfo", tags={"quick"})
def _(world):
    output = world.run("devinfo", world.under_roci("rxe1", ["ibv_devinfo", "-v", "-d", "rxe1"]))
    for expected in (r"hca_id:\s+rxe1", r"atomic_cap:\s+ATOMIC_HCA \(1\)", r"state:\s+PORT_ACTIVE \(4\)",
                     r"active_mtu:\s+4096 \(5\)", r"link_layer:\s+Ethernet", r"max_msg_sz:\s+0x80000000",
                     r"GID\[ +0\]:\s+fe80::ff:fe00:2, RoCE v2", r"GID\[ +1\]:\s+::ffff:127\.77\.0\.2, RoCE v2"):
        check(re.search(rf"^\s*{expected}$", output, re.M), f"ibv_devinfo -v does not say {expected}:\n{output}")
    for limit in ("max_qp", "max_srq", "max_mw", "max_ah", "max_mcast_grp", "max_mcast_qp_attach", "max_qp_rd_atom"):
        found = re.search(rf"^\s*{limit}:\s+(\d+)$", output, re.M)
        check(found and int(found[1]) > 0, f"ibv_devinfo -v shows no {limit}:\n{output}")
