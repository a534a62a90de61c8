"""rdma-core's own test suite (tests/peers) as a case."""
import pathlib
import sys

from harness import Skip, case, check

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import suite  # noqa: E402


@case("peers/rdma-core", ("root",), set(), limit=120)
def _(world):
    """Nothing fails, and what the kernel's rxe passes passes: see tests/peers/SCOREBOARD.md."""
    if reason := suite.missing():
        raise Skip(reason)
    folder = world.folder / "tests"
    modules = suite.unpack(folder)
    results = {}
    for module in modules:
        record = world.folder / f"{module}.jsonl"
        program = world.start(module, world.under_roci("rxe0", suite.command(folder, module, record, world.slow)))
        program.wait(60 * world.slow)  # what it comes to is in the record
        results |= suite.read_record(record)
    wrong, _notes = suite.judge(modules, results)
    check(not wrong, f"{len(wrong)} of {len(results)} tests are not as they must be:\n" + "\n".join(wrong))
    world.expect_nothing_left()
