#!/usr/bin/python3
"""Run unmodified RDMA applications over rocid and judge what they and the wire say.

    tests/e2e/run.py [BUILD] [--only PATTERN] [--tag TAG] [--long] [--json FILE] [--keep]
    tests/e2e/run.py --list

BUILD is a compiled build folder (default: build). Cases that are run as an ordinary user use `nobody` when the
runner is root; cases that need root are skipped for others. A failed case keeps its folder with the output of every
program, and says where. Exit status: 0 none failed, 1 some failed, 2 wrong use.

Examples:
    tests/e2e/run.py                                   everything
    tests/e2e/run.py build-asan --tag asan --once      what `tools/test e2e-asan` runs
    tests/e2e/run.py --only 'user/pingpong*'           by name, with * and ?
"""
import argparse
import fnmatch
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import harness
import cases_addresses     # noqa: F401  each module registers its cases
import cases_applications  # noqa: F401
import cases_cm            # noqa: F401
import cases_cm_hostile   # noqa: F401
import cases_cm_rxe       # noqa: F401
import cases_daemon        # noqa: F401
import cases_frameworks    # noqa: F401
import cases_interop       # noqa: F401
import cases_kills         # noqa: F401
import cases_peers         # noqa: F401
import cases_ports         # noqa: F401
import cases_udp           # noqa: F401
import cases_wire          # noqa: F401


class TimeUp(BaseException):
    """The case's own limit; not an Exception, so that no case swallows it."""


def on_alarm(_signal, _frame):
    raise TimeUp


def on_term(_signal, _frame):
    raise KeyboardInterrupt  # so that the case's processes are ended, too


def run_case(case, user, product, base, slow, keep, kills, interop, cells):
    """Returns (status, reason, seconds)."""
    begin = time.monotonic()
    world = harness.World(product, user, f"{user}-{case.name}", base, slow, kills, interop, cells)
    status, reason = "pass", ""
    signal.alarm(int(case.limit * slow) + 1)
    try:
        case.run(world)
    except harness.Skip as skip:
        status, reason = "skip", str(skip)
    except TimeUp:
        status, reason = "fail", f"not done after {case.limit * slow:g} s"
        running = [process.describe() for process in world.started if process.popen.poll() is None]
        reason = "\n".join([reason, *running])
    except KeyboardInterrupt:
        status, reason = "interrupted", "interrupted; the cases behind it did not run"
    except (harness.Failure, OSError, ValueError, KeyError) as failure:
        status = "fail"
        reason = str(failure) if isinstance(failure, harness.Failure) else f"{type(failure).__name__}: {failure}"
    finally:
        signal.alarm(0)
        try:
            world.close()
        except harness.Failure as failure:
            status, reason = "fail", f"{reason}\n{failure}".strip()
    if status in ("fail", "interrupted"):
        reason += f"\noutput of its programs: {world.folder}"
    elif not keep:
        shutil.rmtree(world.folder, ignore_errors=True)
    return status, reason, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--tag", help="cases that carry this tag: quick, asan")
    parser.add_argument("--once", action="store_true", help="each case as the first of its users only")
    parser.add_argument("--long", action="store_true", help="every case as root, too; with a tag, also what carries TAG-long")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and their tags")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument("--slow", type=float, default=1.0, metavar="FACTOR", help="multiply every time limit")
    parser.add_argument("--kills", type=int, default=40, metavar="N", help="applications that killed/at-random-moments kills (40)")
    parser.add_argument("--interop", type=pathlib.Path, metavar="FILE", help="interop/matrix tries all cells and writes their table")
    parser.add_argument("--cells", metavar="PATTERN", help="interop/matrix tries these, and keeps a capture of each")
    parser.add_argument("--keep", action="store_true", help="keep the folders of cases that passed, too")
    options = parser.parse_args()

    def users_of(case):
        users = case.users + (case.also if options.long or options.only or options.list else ())
        return users[:1] if options.once else users

    chosen = [(case, user) for case in harness.CASES for user in users_of(case)
              if (not options.tag or options.tag in case.tags or options.long and f"{options.tag}-long" in case.tags)
              and (not options.only or fnmatch.fnmatchcase(f"{user}/{case.name}", options.only))]
    if options.list:
        for case, user in chosen:
            print(f"{user}/{case.name}", *sorted(case.tags))
        return 0
    if not chosen:
        parser.error("no case is selected; see --list")

    product = harness.Product.of_build(options.build)
    missing = [str(path) for path in product.files() if not path.exists()]
    if missing:
        print(f"run.py: not built: {' '.join(missing)}", file=sys.stderr)
        return 2

    base = pathlib.Path(tempfile.mkdtemp(prefix="roci-e2e-"))
    base.chmod(0o711)
    for_user = product
    if os.geteuid() == 0 and not harness.usable_by_ordinary_user(product):
        for_user = harness.staged(options.build, base / "installed")
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGTERM, on_term)

    results = []
    for number, (case, user) in enumerate(chosen, 1):
        name = f"{user}/{case.name}"
        if user == "root" and os.geteuid() != 0:
            status, reason, seconds = "skip", "the runner is not root", 0.0
        else:
            status, reason, seconds = run_case(case, user, product if user == "root" else for_user, base,
                                               options.slow, options.keep, options.kills, options.interop, options.cells)
        interrupted = status == "interrupted"
        status = "fail" if interrupted else status
        results.append({"name": name, "status": status, "reason": reason, "seconds": round(seconds, 3)})
        print(f"[{number}/{len(chosen)}] {status:<4} {seconds:5.1f} s  {name}", flush=True)
        if reason:
            print("    " + reason.replace("\n", "\n    "), flush=True)
        if interrupted:
            break

    count = {status: sum(result["status"] == status for result in results) for status in ("pass", "fail", "skip")}
    if options.json:
        options.json.write_text(json.dumps({"build": options.build, "cases": results}, indent=1))
    if not count["fail"] and not options.keep:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped")
    return 1 if count["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
