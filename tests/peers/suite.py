"""rdma-core's own test suite over rocid, judged by a scoreboard: what each test comes to here and over the kernel's rxe.

Not here: how the product is started (the caller gives a function that runs a command under `roci run`).
"""
import collections
import gzip
import json
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
SUITE = pathlib.Path("/usr/share/doc/rdma-core/tests")  # python3-pyverbs ships it, mostly compressed
SCOREBOARD = HERE / "SCOREBOARD.md"
PYTHON = "/usr/bin/python3"                             # the one that has pyverbs
TEST_LIMIT = 20                                         # seconds for one test
ADDRESS = "127.77.0.1"                                  # of the private daemon's rxe0
OTHER_DEVICES = ("test_mlx5_", "test_efa")              # modules for the hardware of others: skipped to the last test

Row = collections.namedtuple("Row", "ours rxe reason")
Result = collections.namedtuple("Result", "result reason")


def missing():
    """What this machine lacks to run the suite; empty when nothing."""
    if subprocess.run([PYTHON, "-c", "import pyverbs.device"], capture_output=True, check=False).returncode != 0:
        return f"{PYTHON} has no pyverbs (Debian package python3-pyverbs)"
    if not (SUITE / "run_tests.py").exists():
        return f"rdma-core's tests are not in {SUITE} (Debian package python3-pyverbs; some systems leave out /usr/share/doc)"
    return ""


def unpack(folder):
    """The suite as it was before it was packaged. Returns the names of its modules that are to be run."""
    folder.mkdir(exist_ok=True)
    for path in SUITE.iterdir():
        data = path.read_bytes()
        packed = path.suffix == ".gz"
        (folder / (path.stem if packed else path.name)).write_bytes(gzip.decompress(data) if packed else data)
    return sorted(path.stem for path in folder.glob("test_*.py")
                  if not path.stem.startswith(OTHER_DEVICES))


def command(folder, module, record, slow=1.0):
    return [PYTHON, HERE / "record.py", folder, record, int(TEST_LIMIT * slow), ADDRESS,
            "--dev", "rxe0", "--port", "1", "--gid", "1", "-v", f"tests.{module}"]


def read_record(record):
    """Test -> Result. A test that did not end is a hang or a crash."""
    results = {}
    for line in record.read_text().splitlines() if record.exists() else []:
        entry = json.loads(line)
        before = results.get(entry["test"])
        if before and before.result in ("FAIL", "ERROR"):
            continue  # a subtest failed already
        if entry["reason"].startswith("TimeUp"):
            entry["result"] = "hang"
        results[entry["test"]] = Result(entry["result"], entry["reason"])
    return {test: one if one.result != "begun" else Result("hang", "it did not end, or the process died")
            for test, one in results.items()}


# --- the scoreboard -------------------------------------------------------------------------------------

def read_scoreboard():
    rows = {}
    for line in SCOREBOARD.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| test_") and len(cells) == 4:
            rows[cells[0]] = Row(*cells[1:])
    return rows


def write_scoreboard(results):
    """Our column as it is now; the text above the table and rxe's column stay."""
    rows = read_scoreboard()
    for test, one in results.items():
        rows[test] = Row(one.result, rows[test].rxe if test in rows else "-", one.reason)
    text = SCOREBOARD.read_text()
    head = text[:text.index("| test |")]
    table = ["| test | ours | rxe's | why |", "|---|---|---|---|"]
    table += [f"| {test} | {row.ours} | {row.rxe} | {row.reason.replace('|', '/')} |" for test, row in sorted(rows.items())]
    SCOREBOARD.write_text(head + "\n".join(table) + "\n")


def judge(modules, results):
    """What is not as it must be, a line each; and what the scoreboard could say better."""
    wrong, notes = [], []
    board = read_scoreboard()
    for test in sorted(test for test in board if test.split(".")[0] in modules and test not in results):
        wrong.append(f"{test} was not run")
    for test, one in sorted(results.items()):
        row = board.get(test)
        what = f"{test}: {one.result}" + (f" ({one.reason})" if one.reason else "")
        if one.result not in ("ok", "skipped"):
            wrong.append(what)
        elif row is None:
            notes.append(f"{what}, and not on the scoreboard")
        elif one.result == "skipped" and row.rxe in ("ok", "ERROR"):
            wrong.append(f"{what}, but rxe runs it: {row.rxe}")
        elif one.result == "skipped" and row.ours == "ok":
            wrong.append(f"{what}, but it has been ok")
        elif one.result != row.ours:
            notes.append(f"{what}, and on the scoreboard {row.ours}")
    return wrong, notes
