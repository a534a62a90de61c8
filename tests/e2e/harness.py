"""What end-to-end cases are made of: a private daemon, applications under `roci run`, time limits on everything.

Not here: any case (cases_*.py), nor what is run when (run.py). A case is a function that takes a World and returns
when all is well; Failure and Skip end it. Nothing outlives a World: what it started is ended by process id.
"""
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ORDINARY_UID = 65534  # nobody; used when the runner is root
SERVER_IP, CLIENT_IP = "127.77.0.1", "127.77.0.2"  # rxe0 and rxe1 of a private daemon
IPV4_GID = "1"


class Failure(Exception):
    """The product did not do what it must."""


class Skip(Exception):
    """This machine cannot run the case; the text says what is missing."""


@dataclasses.dataclass
class Case:
    name: str
    run: callable
    users: tuple   # of "user", "root"
    also: tuple    # users of the long run
    tags: frozenset
    limit: float   # seconds, for the whole case


CASES = []


def case(name, users=("user",), tags=(), limit=60.0, also=()):
    """Register a function as a case, once for each user that it is run as; `also`, in the long run only."""
    def register(function):
        CASES.append(Case(name, function, tuple(users), tuple(also), frozenset(tags), limit))
        return function
    return register


def check(condition, text):
    if not condition:
        raise Failure(text)


def need_program(name, package):
    if not shutil.which(name):
        raise Skip(f"no {name} on this machine: apt-get install {package}")


def wait_for(condition, seconds, what, pause=0.005):
    """Poll until condition() is true and return its value; Failure after that many seconds."""
    limit = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise Failure(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


_ports = itertools.count(random.SystemRandom().randrange(20000, 30000))


def free_port():
    """A TCP port nobody listens on, below the range from which the kernel picks ports for others."""
    while True:
        port = 20000 + next(_ports) % 12000
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("0.0.0.0", port))
                return port


def listens(port, pid):
    """Whether a TCP socket listens on the port, in the network namespace of that process."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return True
    return False


@dataclasses.dataclass
class Product:
    """The programs under test, in a build folder or installed below a prefix."""
    rocid: pathlib.Path
    roci: pathlib.Path
    verbs_check: pathlib.Path

    @staticmethod
    def of_build(folder):
        folder = pathlib.Path(folder).resolve()
        return Product(folder / "dpdk_port" / "rocid", folder / "tools" / "roci",
                       folder / "tests" / "e2e" / "verbs_check")

    def files(self):
        return [self.rocid, self.roci, self.verbs_check]


def as_ordinary_user(command):
    return ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups", "--no-new-privs",
            *command]


def usable_by_ordinary_user(product):
    test = " && ".join(f"test -x '{path}'" for path in product.files())
    return subprocess.run(as_ordinary_user(["sh", "-c", test]), check=False).returncode == 0


def staged(build, where):
    """The product installed below `where`: for an ordinary user who cannot enter the build folder."""
    done = subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", where],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"run.py: cannot install for the ordinary user: {done.stdout}{done.stderr}")
    found = {path.name: path for path in pathlib.Path(where).rglob("*") if path.is_file()}
    check_program = pathlib.Path(where) / "verbs_check"
    shutil.copy(Product.of_build(build).verbs_check, check_program)
    subprocess.run(["chmod", "-R", "go+rX", where], check=True)
    return Product(found["rocid"], found["roci"], check_program)


class Process:
    """A started program, in a process group of its own, its output in a file."""

    def __init__(self, world, name, command, env, cwd):
        self.name = name
        self.command = [str(word) for word in command]
        self.log = world.folder / f"{next(world.numbers):02}-{name}.log"
        with open(self.log, "wb") as out:
            self.popen = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True)
        self.pid = self.popen.pid

    def output(self):
        return self.log.read_text(errors="replace")

    def describe(self):
        lines = self.output().rstrip().splitlines()[-12:]
        return f"{' '.join(self.command)}\n" + "\n".join("  | " + line for line in lines)

    def wait(self, seconds):
        """The exit status, a signal as a negative number. Failure if it is still running by then."""
        try:
            return self.popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"{self.name} still ran after {seconds:g} s: {self.describe()}") from None

    def succeed(self, seconds):
        status = self.wait(seconds)
        check(status == 0, f"{self.name} ended with status {status}: {self.describe()}")
        return self.output()

    def application(self, program):
        """Process id of the program that runs in our group: `roci run` may be in front of it."""
        def find():
            check(self.popen.poll() is None, f"{self.name} ended early: {self.describe()}")
            for pid in processes():
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) == self.pid and program_of(pid) == program:
                        return pid
            return None
        return wait_for(find, 10, f"{program} under {self.name} to start")

    def kill(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=5)


def processes():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def program_of(pid):
    """File name of what a process runs; empty when it is gone or a zombie."""
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
    return ""


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class World:
    """One case's surroundings: a user, a folder, a runtime folder in which a private daemon lives."""

    def __init__(self, product, user, name, base, slow=1.0, kills=0, interop=None, cells=None):
        self.product = product
        self.interop = interop  # cases_interop.py: all cells, and the file for their table
        self.cells = cells  # or those that match
        self.kills = kills  # how many cases_kills.py does
        self.user = user
        self.slow = slow  # factor on time limits: sanitizers cost time
        self.is_root = os.geteuid() == 0
        self.drops = self.is_root and user == "user"
        self.numbers = itertools.count(1)
        self.started = []
        self.cleanups = []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=re.sub(r"\W+", "-", name)[:40] + "-", dir=base))
        self.runtime = self.folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.sanitizer_logs = self.folder / "sanitizer"
        self.env = {key: value for key, value in os.environ.items()
                    if not key.startswith(("ROCI_", "LD_", "UCX_")) and key != "SYSFS_PATH"}
        self.env |= {"XDG_RUNTIME_DIR": str(self.runtime), "HOME": str(self.folder), "LC_ALL": "C"}
        for variable in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if variable in self.env:
                self.env[variable] += f":log_path={self.sanitizer_logs}"
        if self.drops:
            for path in (self.folder, self.runtime):
                os.chown(path, ORDINARY_UID, ORDINARY_UID)

    # --- programs ---

    def start(self, name, command, namespace=None, env=None, **more_env):
        command = [str(word) for word in command]
        if self.drops:
            command = as_ordinary_user(command)
        if namespace:
            command = ["ip", "netns", "exec", namespace, *command]
        process = Process(self, name, command, {**(env or self.env), **more_env}, self.folder)
        self.started.append(process)
        return process

    def forget_ended(self):
        """For cases that start a great many: what has ended need not be ended, and its output is not kept."""
        for process in [one for one in self.started if one.popen.poll() is not None]:
            self.started.remove(process)
            process.log.unlink(missing_ok=True)

    def run(self, name, command, seconds=20, **options):
        """Run to the end; Failure unless it succeeds. Returns its output."""
        return self.start(name, command, **options).succeed(seconds * self.slow)

    def under_roci(self, nic, application):
        selection = ["--nic", nic] if nic else []
        return [self.product.roci, "run", *selection, "--", *application]

    def pair(self, tool, options=(), seconds=20, server_options=None, expect_success=True):
        """A server on rxe0 and a client on rxe1, the distribution's usual two-sided tools. Returns both processes, ended."""
        server, client = self.start_pair(tool, options, server_options)
        if expect_success:
            client.succeed(seconds * self.slow)
            server.succeed(10 * self.slow)
        return server, client

    def start_pair(self, tool, options=(), server_options=None):
        port = free_port()
        gid = "-g" if tool.startswith("ibv_") else "-x"
        common = ["-p", str(port), gid, IPV4_GID]
        quiet = [] if tool.startswith("ibv_") else ["-F"]  # perftest: no word about CPU frequency
        server = self.start(f"{tool}-server", self.under_roci("rxe0", [
            tool, "-d", "rxe0", *common, *quiet, *(options if server_options is None else server_options)]))
        self.wait_listening(server, port)
        client = self.start(f"{tool}-client", self.under_roci("rxe1", [
            tool, "-d", "rxe1", *common, *quiet, *options, SERVER_IP]))
        return server, client

    def wait_listening(self, server, port):
        def ready():
            check(server.popen.poll() is None, f"{server.name} ended before its client came: {server.describe()}")
            return listens(port, server.pid)
        try:
            wait_for(ready, 15 * self.slow, f"{server.name} to listen on TCP port {port}")
        except Failure as failure:
            raise Failure(f"{failure}\n{server.describe()}") from None

    # --- the daemon ---

    def daemons(self):
        """Process ids of the rocid that belong to this runtime folder."""
        marker = f"XDG_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for pid in processes():
            if program_of(pid) == "rocid":
                with contextlib.suppress(OSError):
                    if marker in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        found.append(pid)
        return found

    def start_private_daemon(self):
        """Have `roci run` start the private daemon; returns its process id."""
        self.run("start-daemon", self.under_roci(None, ["true"]))
        pids = self.daemons()
        check(len(pids) == 1, f"after `roci run -- true` there are {len(pids)} daemons, not one")
        return pids[0]

    def start_daemon(self, *arguments, namespace=None, env=None):
        """rocid as given, serving; its socket is in the runtime folder of `env`."""
        env = env or self.env
        daemon = self.start("rocid", [self.product.rocid, *arguments], namespace=namespace, env=env)
        socket_path = pathlib.Path(env["XDG_RUNTIME_DIR"], "rocinante", "rocid.sock")

        def serves():
            check(daemon.popen.poll() is None, f"rocid ended: {daemon.describe()}")
            return socket_path.is_socket()
        wait_for(serves, 15 * self.slow, "the daemon's socket")
        return daemon

    def stop_daemon(self, daemon):
        """SIGTERM ends it with status 0."""
        daemon.popen.terminate()
        status = daemon.wait(5 * self.slow)
        check(status == 0, f"rocid ended with {status} after SIGTERM: {daemon.describe()}")

    def show(self, namespace=None):
        text = self.run("show", [self.product.roci, "show", "--json"], 10, namespace=namespace)
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise Failure(f"`roci show --json` is not JSON ({error}): {text[:300]}") from None

    def counters(self, nic):
        return self.show()["counters"][nic]

    def in_use(self):
        """How many objects of each kind the daemon holds; empty when it holds none."""
        shown = self.show()
        kinds = ("contexts", "qps", "cqs", "srqs", "mrs", "mws", "ahs", "cms")
        for kind in kinds:
            check(isinstance(shown.get(kind), list), f"`roci show --json` has no list '{kind}'")
        return {kind: len(shown[kind]) for kind in kinds if shown[kind]}

    def expect_nothing_left(self, seconds=5):
        """The daemon lives, and what its clients had is gone."""
        check(self.daemons(), "the daemon is gone")
        last = {}

        def empty():
            last.clear()
            last.update(self.in_use())
            return not last
        try:
            wait_for(empty, seconds * self.slow, "empty tables", pause=0.1)
        except Failure:
            if not last:
                raise
            raise Failure(f"left behind in the daemon after its clients ended: {dict(last)}") from None

    # --- the end ---

    def close(self):
        """End everything; Failure when the daemon does not stop cleanly or a sanitizer has reported."""
        problems = []
        for process in reversed(self.started):
            if process.popen.poll() is None:
                process.kill()
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        limit = time.monotonic() + 5 * self.slow
        while self.daemons() and time.monotonic() < limit:
            time.sleep(0.01)
        for pid in self.daemons():
            problems.append(f"rocid {pid} did not stop within {5 * self.slow:g} s of SIGTERM")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for cleanup in reversed(self.cleanups):
            cleanup()
        for log in sorted(self.folder.glob("sanitizer*")):
            problems.append(f"a sanitizer reports:\n{log.read_text(errors='replace')[:3000]}")
        check(not problems, "\n".join(problems))
