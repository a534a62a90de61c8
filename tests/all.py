#!/usr/bin/python3
"""Run the tests of Rocinante in stages. Start it as `tools/test`, which first installs what is missing.

    tools/test [--quick | --long] [STAGE...]

Stages:
    format      clang-format on every source file
    build       compile everything into build/
    unit        unit, property, simulation, trace and tool tests of build/
    e2e         unmodified applications over rocid, of build/ (tests/e2e); with --long most of them as root, too
    build-asan  compile what the next two run into build-asan/ with ASan and UBSan
    asan        the tests of `unit`, of build-asan/, and what tests/fuzz replays and mutates; the exhaustive ones with --long
    e2e-asan    a part of `e2e`, of build-asan/

with --long, as CI does, or when asked for by name:
    tidy        clang-tidy on the product, not on the tests: on what changed since it was last found clean
    sim         a minute of random programs over faulty links (tools/sim)
    kills       300 applications killed at random moments (tests/e2e)
    build-each  compile every source by itself into build-each/: each includes what it needs

only when asked for by name, as they take many minutes:
    fuzz        each libFuzzer target for some seconds (tests/fuzz)
    coverage    line coverage of proto and emulator, which must be 95 % (tests/coverage)
    mutation    a sample of small changes to the engine, of which the tests must notice 85 % (tests/mutation)
    bugs        bugs planted in the engine, each of which the simulator must find within a million packets (tests/sim)

They run in this order, but build-asan and tidy, which want processors, run beside unit, e2e and e2e-asan, which mostly
wait, and take only what those leave. A stage brings the build that it needs. --quick is format, build, unit and the short part of
e2e. Logs are in build/test-logs/. Exit status is 0 when nothing failed. The last line is `N passed, N failed, N skipped`: each
Catch2 case and each end-to-end case counts, and each of format, tidy and the builds counts as one.

Examples:
    tools/test                 the usual
    tools/test --long          what CI runs
    tools/test mutation        one of the others
    tools/test build unit      after a change
    tools/test --quick         before a commit
"""
import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
LOGS = TOP / "build" / "test-logs"
JOBS = len(os.sched_getaffinity(0))
USUAL = ["format", "build", "unit", "e2e", "build-asan", "asan", "e2e-asan"]
LONG = [*USUAL, "tidy", "sim", "kills", "build-each"]
STAGES = [*LONG, "fuzz", "coverage", "mutation", "bugs"]
QUICK = ["format", "build", "unit", "e2e"]
BESIDE = ["build-asan", "tidy"]  # run in this order beside the others, once `build` is done
PRODUCT_FOLDERS = ["proto", "emulator", "dpdk_port", "verbs_shim", "tools"]
SOURCE_FOLDERS = [*PRODUCT_FOLDERS, "tests"]
PROGRESS_EVERY = 10.0  # seconds between signs of life
BUILD_LIMIT, UNIT_LIMIT, E2E_LIMIT, TIDY_LIMIT = 1200, 600, 2400, 900  # seconds; a guard against hanging, not a target

SANITIZER_ENV = {
    "ASAN_OPTIONS": "abort_on_error=0:halt_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}

START = time.monotonic()
STOP = threading.Event()  # set when the run is interrupted: what runs beside ends, too


class Interrupted(Exception):
    """The run was interrupted while this stage ran beside."""


class Tally:
    """What passed, failed and was skipped, with what a reader needs to run a failed one alone."""

    def __init__(self):
        self.passed = 0
        self.failed = []   # (name, why, how to run it alone)
        self.skipped = []  # (name, reason)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def passes(self, count=1):
        self.passed += count

    def fails(self, name, why, rerun):
        self.failed.append((name, why, rerun))

    def skips(self, name, reason):
        self.skipped.append((name, reason))


yielding = set()  # stages that run beside others and must not disturb their timing


def say(stage, text):
    print(f"[{time.monotonic() - START:6.1f} s] {stage:<10} {text}", flush=True)


def run(stage, command, log, limit, env=None, echo=None, quiet=False):
    """Run a command with its output in a log, and give signs of life unless quiet. Returns (exit status, output).

    echo: lines that match this pattern are shown as they come.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / log
    if stage in yielding:
        command = ["chrt", "--idle", "0", *command]
    begin = time.monotonic()
    last_said = begin
    with open(path, "wb") as out:
        child = subprocess.Popen([str(word) for word in command], cwd=TOP, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, env={**os.environ, **(env or {})},
                                 start_new_session=True)
        if stage in yielding:  # where each session has its share, of which --idle is only a part
            with contextlib.suppress(OSError):
                pathlib.Path(f"/proc/{child.pid}/autogroup").write_text("19")
        try:
            with open(path, "r", errors="replace") as follow:
                partial, last_line = "", ""
                while True:
                    ended = child.poll() is not None
                    lines = (partial + follow.read()).split("\n")
                    partial = lines.pop()
                    for line in lines:
                        last_line = line.strip() or last_line
                        if echo and re.search(echo, line):
                            say(stage, line.strip())
                            last_said = time.monotonic()
                    now = time.monotonic()
                    if ended:
                        break
                    if STOP.is_set():
                        raise Interrupted
                    if now - last_said >= PROGRESS_EVERY and not quiet:
                        say(stage, f"... {last_line[:90]}")
                        last_said = now
                    if now - begin > limit:
                        out.write(f"\nended after {limit} s\n".encode())
                        return 124, path.read_text(errors="replace")
                    time.sleep(0.05)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
    return child.returncode, path.read_text(errors="replace")


def tail(text, lines=15):
    return "\n".join("    " + line for line in text.rstrip().splitlines()[-lines:])


def sources(*suffixes):
    return sorted(path.relative_to(TOP) for folder in SOURCE_FOLDERS for path in (TOP / folder).rglob("*")
                  if path.suffix in suffixes and path.is_file())


# --- format ---------------------------------------------------------------------------------------------

def stage_format(tally, _options):
    files = sources(".h", ".cc", ".cpp", ".c")
    status, output = run("format", ["clang-format-14", "--dry-run", "--Werror", *files], "format.log", 120)
    if status == 0:
        tally.passes()
        say("format", f"{len(files)} files are as .clang-format says")
        return
    differing = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", output, re.M)))
    tally.fails("clang-format", "differ: " + " ".join(differing) if differing else output.strip()[-500:],
                "tools/test format; mend with: clang-format-14 -i " + " ".join(differing))


# --- build ----------------------------------------------------------------------------------------------

SETUP_OPTIONS = {
    "build": [],
    "build-asan": ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Ddebug=true",
                   "-Doptimization=1", "-Dcpp_args=-fno-sanitize-recover=all"],
    "build-each": ["--unity=off", "-Doptimization=0", "-Ddebug=false"],
}
ASAN_TARGETS = ["meson-test-prereq", "dpdk_port/rocid", "tools/roci", "verbs_shim/preload/libroci.so",
                "tests/e2e/verbs_check"]


def configure(stage, tally, folder):
    where = TOP / folder
    options = SETUP_OPTIONS[folder]
    done = where / "setup-options"  # of a folder that is ours alone; build/ is the developer's, too, as it is
    if (where / "build.ninja").exists() and (not options or done.exists() and done.read_text() == shlex.join(options)):
        return True
    say(stage, f"configuring {folder}/")
    wipe = ["--wipe"] if (where / "meson-private").exists() else []
    status, output = run(stage, ["meson", "setup", *wipe, *options, folder], f"{folder}-setup.log", 120)
    if status != 0:
        tally.fails(f"configure {folder}", "meson setup failed:\n" + tail(output),
                    f"meson setup {shlex.join(options)} {folder}")
        return False
    done.write_text(shlex.join(options))
    return True


def build(stage, tally, folder, targets):
    if not configure(stage, tally, folder):
        return False
    say(stage, f"compiling {folder}/ on {JOBS} cores")
    begin = time.monotonic()
    status, output = run(stage, ["ninja", "-C", folder, "-j", JOBS, *targets], f"{folder}-compile.log", BUILD_LIMIT)
    if status != 0:
        errors = [line for line in output.splitlines() if re.search(r"\berror\b|FAILED|undefined reference", line)]
        tally.fails(f"compile {folder}", "\n".join("    " + line for line in errors[:12]) or tail(output),
                    f"ninja -C {shlex.join([folder, *targets])}")
        return False
    tally.passes()
    say(stage, f"{folder}/ is up to date ({time.monotonic() - begin:.1f} s)")
    return True


def stage_build(tally, _options):
    return build("build", tally, "build", [])


def stage_build_asan(tally, _options):
    return build("build-asan", tally, "build-asan", ASAN_TARGETS)


def stage_build_each(tally, _options):
    return build("build-each", tally, "build-each", [])


# --- meson's tests --------------------------------------------------------------------------------------

def catch2_counts(output):
    """(passed, failed) of a Catch2 program's closing line, or None where there is no such line."""
    if match := re.search(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)", output):
        return int(match[1]), 0
    if match := re.search(r"^test cases:\s*\d+ (\|.*)$", output, re.M):
        count = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed)(?! as)", match[1])}
        return count.get("passed", 0), count.get("failed", 0)
    return None


def catch2_failed_names(output):
    """Names of the failed cases: each failure stands below a ruled heading that opens with the case's name."""
    names = re.findall(r"^-{79}\n(\S.*)\n(?:.*\n)*?-{79}\n\S+:\d+\n\.{79}$", output, re.M)
    return list(dict.fromkeys(names))


def catch2_spec(name):
    """The test specification that selects exactly this case."""
    return re.sub(r"([],[\\])", r"\\\1", name)


def count_test(tally, folder, test):
    name, result, output = test["name"].split(" / ")[-1], test["result"], test.get("stdout") or ""
    everything = output + (test.get("stderr") or "")
    program = os.path.relpath(test["command"][0], TOP)
    alone = f"meson test -C {folder} --print-errorlogs {shlex.quote(name)}"
    counts = catch2_counts(output)
    if result == "SKIP":
        lines = everything.strip().splitlines()
        tally.skips(f"{folder}: {name}", lines[-1].strip() if lines else "the test gave no reason")
    elif result in ("OK", "EXPECTEDFAIL"):
        if counts == (0, 0) or "No tests ran" in output:
            tally.fails(f"{folder}: {name}", "no test case ran", alone)
        else:
            tally.passes(counts[0] if counts else 1)
    elif counts and counts[1]:
        tally.passes(counts[0])
        names = catch2_failed_names(output)
        for case in names:
            tally.fails(f"{folder}: {name}: {case}", f"see {LOGS.relative_to(TOP)}/{folder}-unit.log",
                        f"{program} {shlex.quote(catch2_spec(case))}")
        for _ in range(counts[1] - len(names)):
            tally.fails(f"{folder}: {name}", tail(everything), alone)
    else:
        why = "ran into its time limit" if result == "TIMEOUT" else f"exit status {test.get('returncode')}"
        tally.fails(f"{folder}: {name}", "\n".join(filter(None, [why, tail(everything)])), alone)


def meson_tests(stage, tally, folder, multiplier, env=None, without=()):
    say(stage, f"running the tests of {folder}/")
    begin = time.monotonic()
    status, output = run(stage, ["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs",
                                 "--num-processes", JOBS, "--timeout-multiplier", multiplier,
                                 *(f"--no-suite={suite}" for suite in without), "--logbase", "roci"],
                         f"{folder}-unit.log", UNIT_LIMIT, env)
    log = TOP / folder / "meson-logs" / "roci.json"
    tests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    before = tally.passed, len(tally.failed)
    for test in tests:
        count_test(tally, folder, test)
    if status != 0 and len(tally.failed) == before[1]:
        tally.fails(f"{folder}: meson test", f"exit status {status}\n{tail(output)}", f"meson test -C {folder}")
    if not tests:
        tally.fails(f"{folder}: meson test", "no test is registered", f"meson test -C {folder}")
    say(stage, f"{len(tests)} programs: {tally.passed - before[0]} passed, {len(tally.failed) - before[1]} failed "
               f"({time.monotonic() - begin:.1f} s)")


def stage_unit(tally, _options):
    meson_tests("unit", tally, "build", 2)


def stage_asan(tally, options):
    meson_tests("asan", tally, "build-asan", 6, SANITIZER_ENV, () if options.long else ("exhaustive",))


# --- end to end -----------------------------------------------------------------------------------------

def end_to_end(stage, tally, folder, arguments, env=None):
    report = LOGS / f"{stage}.json"
    report.unlink(missing_ok=True)
    begin = time.monotonic()
    status, output = run(stage, ["tests/e2e/run.py", folder, "--json", report, *arguments], f"{stage}.log", E2E_LIMIT,
                         env, echo=r"^(FAIL|SKIP|\[)")
    cases = json.loads(report.read_text())["cases"] if report.exists() else []
    failed = 0
    for case in cases:
        name = f"{stage}: {case['name']}"
        if case["status"] == "pass":
            tally.passes()
        elif case["status"] == "skip":
            tally.skips(name, case["reason"])
        else:
            failed += 1
            tally.fails(name, case["reason"], f"tests/e2e/run.py {folder} --only '{case['name']}'")
    if not cases or (status != 0 and not failed):
        tally.fails(stage, f"exit status {status}\n{tail(output)}", f"tests/e2e/run.py {folder}")
    say(stage, f"{len(cases)} cases, {failed} failed ({time.monotonic() - begin:.1f} s)")


def stage_e2e(tally, options):
    end_to_end("e2e", tally, "build", ["--tag", "quick"] if options.quick else ["--long"] if options.long else [])


def stage_e2e_asan(tally, options):
    end_to_end("e2e-asan", tally, "build-asan", ["--tag", "asan", "--once", "--slow", "6", *(["--long"] if options.long else [])],
               SANITIZER_ENV)


# --- tidy -----------------------------------------------------------------------------------------------

def files_of(source, found=None):
    """The project's files that a source is made of; our own includes stand in quotes and are rooted at the top."""
    found = set() if found is None else found
    if source not in found and source.is_file() and source.is_relative_to(TOP):
        found.add(source)
        for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', source.read_text(), re.M):
            files_of((TOP / name).resolve(), found)
    return found


def tidy_key(entry, source, version):
    """Changes when anything changes that clang-tidy's verdict on this source depends on; the same in every clone."""
    digest = hashlib.sha256(version.encode())
    command = entry["command"].replace(str(TOP), "").split()
    digest.update(" ".join(word for word in command if "ccache" not in word).encode())
    for path in sorted({TOP / ".clang-tidy", *files_of(source)}):
        content = path.read_bytes().replace(str(TOP).encode(), b"")  # a unity source names its parts by full path
        digest.update(str(path.relative_to(TOP)).encode() + b"\0" + content)
    return digest.hexdigest()


def stage_tidy(tally, _options):
    # With build-asan's options, whatever a developer has set for build/.
    folder = TOP / "build-asan"
    if not configure("tidy", tally, "build-asan"):
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rocinante" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy-14", "--version"], capture_output=True, text=True, check=True).stdout
    work, clean = {}, 0
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if source.relative_to(folder).parts[0] not in PRODUCT_FOLDERS:
            continue
        stamp = cache / tidy_key(entry, source, version)
        if stamp.exists():
            clean += 1
            stamp.touch()
        else:
            work[source] = stamp
    say("tidy", f"{len(work)} targets to look at, {clean} clean and unchanged")

    deadline = time.monotonic() + TIDY_LIMIT
    (LOGS / "tidy").mkdir(parents=True, exist_ok=True)

    def command_for(source):
        return ["clang-tidy-14", "-p", "build-asan", "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                str(source.relative_to(TOP))]

    def look(source):
        status, output = run("tidy", command_for(source), f"tidy/{source.stem}.log",
                             max(0, deadline - time.monotonic()), quiet=True)
        say("tidy", f"{source.parent.relative_to(folder).with_suffix('')}: {'clean' if status == 0 else 'not clean'}")
        return source, status, output

    wrong = {}
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for source, status, output in pool.map(look, sorted(work, key=lambda path: -len(files_of(path)))):
            if status == 0:
                work[source].touch()
            else:
                wrong[source] = output
    for source, output in wrong.items():
        findings = [re.sub(r"^\S*/\.\./", "", line) for line in output.splitlines()
                    if re.search(r": (warning|error): ", line)] or output.strip().splitlines()[-3:]
        tally.fails(f"clang-tidy: {source.relative_to(folder)}", "\n".join("    " + line for line in findings[:8]),
                    shlex.join(command_for(source)))
    if not wrong:
        tally.passes()
        say("tidy", "clean")


# --- the long ones --------------------------------------------------------------------------------------

def one_program(stage, tally, command, limit, echo=None):
    """A program that judges by its exit status and says in its last line what came of it."""
    status, output = run(stage, command, f"{stage}.log", limit, echo=echo)
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    say(stage, last[:150])
    if status == 0:
        tally.passes()
    else:
        tally.fails(stage, "ran into its time limit" if status == 124 else tail(output), shlex.join(map(str, command)))


def stage_sim(tally, _options):
    seed = int.from_bytes(os.urandom(3), "big")  # another each time, and printed
    one_program("sim", tally, ["tools/sim", "--seconds", "60", "--seed", seed], 200)


def stage_kills(tally, _options):
    one_program("kills", tally, ["tests/e2e/run.py", "build", "--only", "user/killed/at-random-moments", "--kills", "300"], 300,
                echo=r"kills")


def stage_fuzz(tally, _options):
    one_program("fuzz", tally, ["tests/fuzz/run", "--seconds", "10"], 900)


def stage_coverage(tally, _options):
    one_program("coverage", tally, ["tests/coverage"], 900, echo=r"^lines:")


def stage_mutation(tally, _options):
    one_program("mutation", tally, ["tests/mutation/check", "--sample", "60", "--seed", "1"], 900, echo="mutation score")


def stage_bugs(tally, _options):
    one_program("bugs", tally, ["tests/sim/bugs"], 1200, echo=r"packets  |        -  ")


# --- all together ---------------------------------------------------------------------------------------

RUN = {"format": stage_format, "build": stage_build, "unit": stage_unit, "e2e": stage_e2e,
       "build-asan": stage_build_asan, "asan": stage_asan, "e2e-asan": stage_e2e_asan, "tidy": stage_tidy,
       "sim": stage_sim, "kills": stage_kills, "build-each": stage_build_each, "fuzz": stage_fuzz,
       "coverage": stage_coverage, "mutation": stage_mutation, "bugs": stage_bugs}
NEEDS = {"unit": "build", "e2e": "build", "asan": "build-asan", "e2e-asan": "build-asan",
         "sim": "build", "kills": "build", "mutation": "build"}


def report(tally):
    for name, reason in tally.skipped:
        print(f"SKIPPED {name}\n    reason: {reason}")
    for name, why, rerun in tally.failed:
        print(f"FAILED  {name}\n{why if why.startswith('    ') else '    ' + why}\n    alone: {rerun}")
    print(f"logs: {LOGS.relative_to(TOP)}/, {time.monotonic() - START:.0f} s in all")
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped", flush=True)


def on_term(_signal, _frame):
    raise KeyboardInterrupt  # so that what runs is ended, too


def main():
    signal.signal(signal.SIGTERM, on_term)
    parser = argparse.ArgumentParser(prog="tools/test", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the short form, a minute or two")
    parser.add_argument("--long", action="store_true", help="the long stages, too")
    parser.add_argument("stage", nargs="*", metavar="STAGE", help="only these stages: " + " ".join(STAGES))
    options = parser.parse_args()
    for stage in options.stage:
        if stage not in STAGES:
            parser.error(f"no stage '{stage}'; there are: {' '.join(STAGES)}")
    asked = set(options.stage or (QUICK if options.quick else LONG if options.long else USUAL))
    asked |= {NEEDS[stage] for stage in asked if stage in NEEDS}
    beside = [stage for stage in BESIDE if stage in asked]
    before = [stage for stage in STAGES if stage in asked and stage not in BESIDE]
    if before:
        yielding.update(beside)

    tallies = {stage: Tally() for stage in STAGES if stage in asked}
    ended = {stage: threading.Event() for stage in tallies}
    broken = set()

    def run_stage(stage):
        tally, needed = tallies[stage], NEEDS.get(stage)
        try:
            if needed:
                ended[needed].wait()
            if needed in broken:
                tally.skips(stage, f"the stage '{needed}' failed")
            elif RUN[stage](tally, options) is False:
                broken.add(stage)
        except (KeyboardInterrupt, Interrupted) as interruption:
            STOP.set()
            broken.add(stage)
            tally.fails(stage, "interrupted", f"tools/test {stage}")
            if isinstance(interruption, KeyboardInterrupt):
                raise
        except Exception as error:  # whatever it is, the others go on and the count says so
            broken.add(stage)
            tally.fails(stage, f"{type(error).__name__}: {error}", f"tools/test {stage}")
        finally:
            ended[stage].set()

    def run_beside():
        if "build" in ended:
            ended["build"].wait()
        for stage in beside:
            if not STOP.is_set():
                run_stage(stage)

    companion = threading.Thread(target=run_beside)
    companion.start()
    try:
        for stage in before:
            run_stage(stage)
        companion.join()
    except KeyboardInterrupt:
        STOP.set()
        for event in ended.values():
            event.set()
        companion.join()
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    report(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
