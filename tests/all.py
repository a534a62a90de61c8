#!/usr/bin/python3
"""Run the tests of Rocinante in stages. Start it as `tools/test`, which first installs what is missing.

    tools/test [--quick] [STAGE...]

Stages, in the order in which they run:
    format      clang-format on every source file
    build       compile everything into build/
    unit        unit, property, simulation, trace and tool tests of build/
    e2e         unmodified applications over rocid, of build/ (tests/e2e)
    build-asan  compile everything into build-asan/ with ASan and UBSan
    asan        the tests of `unit`, of build-asan/
    e2e-asan    a part of `e2e`, of build-asan/
    tidy        clang-tidy on what changed since it was last found clean; only when asked for, as the first run over
                everything takes a quarter of an hour on two cores

A stage brings the build that it needs. --quick is format, build, unit and the short part of e2e. Logs are in build/test-logs/. Exit status is 0
when nothing failed. The last line is `N passed, N failed, N skipped`: each Catch2 case and each
end-to-end case counts, and each of format, tidy and the two builds counts as one.

Examples:
    tools/test                 everything but tidy
    tools/test build unit      after a change
    tools/test --quick         before a commit
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
LOGS = TOP / "build" / "test-logs"
JOBS = len(os.sched_getaffinity(0))
STAGES = ["format", "build", "unit", "e2e", "build-asan", "asan", "e2e-asan", "tidy"]
DEFAULT = [stage for stage in STAGES if stage != "tidy"]
QUICK = ["format", "build", "unit", "e2e"]
SOURCE_FOLDERS = ["proto", "emulator", "dpdk_port", "verbs_shim", "tools", "tests"]
PROGRESS_EVERY = 10.0  # seconds between signs of life
BUILD_LIMIT, UNIT_LIMIT, E2E_LIMIT, TIDY_LIMIT = 900, 300, 400, 600  # seconds; a guard against hanging, not a target

SANITIZER_ENV = {
    "ASAN_OPTIONS": "abort_on_error=0:halt_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}

START = time.monotonic()


class Tally:
    """What passed, failed and was skipped, with what a reader needs to run a failed one alone."""

    def __init__(self):
        self.passed = 0
        self.failed = []   # (name, why, how to run it alone)
        self.skipped = []  # (name, reason)

    def passes(self, count=1):
        self.passed += count

    def fails(self, name, why, rerun):
        self.failed.append((name, why, rerun))

    def skips(self, name, reason):
        self.skipped.append((name, reason))


def say(stage, text):
    print(f"[{time.monotonic() - START:6.1f} s] {stage:<10} {text}", flush=True)


def run(stage, command, log, limit, env=None, echo=None):
    """Run a command with its output in a log, and give signs of life. Returns (exit status, output).

    echo: lines that match this pattern are shown as they come.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / log
    begin = time.monotonic()
    last_said = begin
    with open(path, "wb") as out:
        child = subprocess.Popen([str(word) for word in command], cwd=TOP, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, env={**os.environ, **(env or {})},
                                 start_new_session=True)
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
                    if now - last_said >= PROGRESS_EVERY:
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

def build(stage, tally, folder, setup_options):
    where = TOP / folder
    if not (where / "build.ninja").exists():
        say(stage, f"configuring {folder}/")
        wipe = ["--wipe"] if (where / "meson-private").exists() else []
        status, output = run(stage, ["meson", "setup", *wipe, *setup_options, folder], f"{folder}-setup.log", 120)
        if status != 0:
            tally.fails(f"configure {folder}", "meson setup failed:\n" + tail(output),
                        f"meson setup {' '.join(setup_options)} {folder}")
            return False
    say(stage, f"compiling {folder}/ on {JOBS} cores")
    begin = time.monotonic()
    status, output = run(stage, ["ninja", "-C", folder, "-j", JOBS], f"{folder}-compile.log", BUILD_LIMIT)
    if status != 0:
        errors = [line for line in output.splitlines() if re.search(r"\berror\b|FAILED|undefined reference", line)]
        tally.fails(f"compile {folder}", "\n".join("    " + line for line in errors[:12]) or tail(output),
                    f"ninja -C {folder}")
        return False
    tally.passes()
    say(stage, f"{folder}/ is up to date ({time.monotonic() - begin:.1f} s)")
    return True


def stage_build(tally, _options):
    return build("build", tally, "build", [])


def stage_build_asan(tally, _options):
    return build("build-asan", tally, "build-asan", ["-Db_sanitize=address,undefined", "-Db_lundef=false",
                                                     "-Ddebug=true", "-Doptimization=1",
                                                     "-Dcpp_args=-fno-sanitize-recover=all"])


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


def meson_tests(stage, tally, folder, multiplier, env=None):
    say(stage, f"running the tests of {folder}/")
    begin = time.monotonic()
    status, output = run(stage, ["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs",
                                 "--num-processes", JOBS, "--timeout-multiplier", multiplier,
                                 "--logbase", "roci"], f"{folder}-unit.log", UNIT_LIMIT, env)
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


def stage_asan(tally, _options):
    meson_tests("asan", tally, "build-asan", 6, SANITIZER_ENV)


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
    end_to_end("e2e", tally, "build", ["--tag", "quick"] if options.quick else [])


def stage_e2e_asan(tally, _options):
    end_to_end("e2e-asan", tally, "build-asan", ["--tag", "asan", "--slow", "6"], SANITIZER_ENV)


# --- tidy -----------------------------------------------------------------------------------------------

def ninja_inputs(folder):
    """Object file -> the project's own files it was made from, of ninja's dependency log."""
    output = subprocess.run(["ninja", "-C", folder, "-t", "deps"], cwd=TOP, capture_output=True, text=True,
                            check=True).stdout
    inputs, current = {}, None
    for line in output.splitlines():
        if line.startswith("    ") and current is not None:
            path = (TOP / folder / line.strip()).resolve()
            if path.is_relative_to(TOP):
                current.append(path)
        elif ": #deps" in line:
            current = inputs.setdefault(line.split(": #deps")[0], [])
        else:
            current = None
    return inputs


def tidy_key(entry, inputs, version):
    """Changes when anything changes that clang-tidy's verdict on this file depends on; the same in every clone."""
    digest = hashlib.sha256(version.encode())
    command = entry["command"].replace(str(TOP), "").split()
    digest.update(" ".join(word for word in command if "ccache" not in word).encode())
    for path in sorted({TOP / ".clang-tidy", *inputs.get(entry["output"], [])}):
        if path.is_file():
            digest.update(str(path.relative_to(TOP)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def stage_tidy(tally, _options):
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rocinante" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy-14", "--version"], capture_output=True, text=True, check=True).stdout
    commands = TOP / "build" / "compile_commands.json"
    inputs = ninja_inputs("build")
    work, clean = {}, 0
    for entry in json.loads(commands.read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if not source.is_relative_to(TOP) or source.relative_to(TOP).parts[0] not in SOURCE_FOLDERS:
            continue
        relative = source.relative_to(TOP)
        stamp = cache / tidy_key(entry, inputs, version)
        if stamp.exists():
            clean += 1
            stamp.touch()
        else:
            work.setdefault(relative, stamp)
    say("tidy", f"{len(work)} files to look at, {clean} clean and unchanged")

    deadline = time.monotonic() + TIDY_LIMIT

    def look(relative):
        left = deadline - time.monotonic()
        if left <= 0:
            return relative, 124, "not reached within the time limit"
        try:
            done = subprocess.run(["clang-tidy-14", "-p", "build", "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                                   str(relative)], cwd=TOP, capture_output=True, text=True, timeout=left,
                                  stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return relative, 124, "not finished within the time limit"
        return relative, done.returncode, done.stdout + (done.stderr if done.returncode else "")

    wrong, last_said = {}, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        futures = [pool.submit(look, relative) for relative in
                   sorted(work, key=lambda path: -(TOP / path).stat().st_size)]
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            relative, status, output = future.result()
            if status == 0:
                work[relative].touch()
            else:
                wrong[relative] = output
            if time.monotonic() - last_said >= PROGRESS_EVERY:
                say("tidy", f"... {number} of {len(futures)}, {relative}")
                last_said = time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "tidy.log").write_text("".join(f"== {path}\n{text}\n" for path, text in sorted(wrong.items())))
    for relative, output in sorted(wrong.items()):
        findings = [line.replace(str(TOP) + "/", "") for line in output.splitlines()
                    if re.search(r": (warning|error): ", line)] or output.strip().splitlines()[-3:]
        tally.fails(f"clang-tidy: {relative}", "\n".join("    " + line for line in findings[:8]),
                    f"clang-tidy-14 -p build --quiet {relative}")
    if not wrong:
        tally.passes()
        say("tidy", "clean")


# --- all together ---------------------------------------------------------------------------------------

RUN = {"format": stage_format, "build": stage_build, "unit": stage_unit, "e2e": stage_e2e,
       "build-asan": stage_build_asan, "asan": stage_asan, "e2e-asan": stage_e2e_asan, "tidy": stage_tidy}
NEEDS = {"unit": "build", "e2e": "build", "tidy": "build", "asan": "build-asan", "e2e-asan": "build-asan"}


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
    parser.add_argument("stage", nargs="*", metavar="STAGE", help="only these stages: " + " ".join(STAGES))
    options = parser.parse_args()
    for stage in options.stage:
        if stage not in STAGES:
            parser.error(f"no stage '{stage}'; there are: {' '.join(STAGES)}")
    asked = set(options.stage or (QUICK if options.quick else DEFAULT))
    asked |= {NEEDS[stage] for stage in asked if stage in NEEDS}

    tally, broken = Tally(), set()
    for stage in [stage for stage in STAGES if stage in asked]:
        if NEEDS.get(stage) in broken:
            tally.skips(stage, f"the stage '{NEEDS[stage]}' failed")
            continue
        try:
            if RUN[stage](tally, options) is False:
                broken.add(stage)
        except KeyboardInterrupt:
            tally.fails(stage, "interrupted", f"tools/test {stage}")
            break
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            broken.add(stage)
            tally.fails(stage, f"{type(error).__name__}: {error}", f"tools/test {stage}")
    report(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
