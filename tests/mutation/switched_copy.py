"""A copy of the source tree in which changes are switched on by an environment variable (switch.h), compiled once for all of them."""
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
JOBS = len(os.sched_getaffinity(0))


def make(work):
    """Copies what git knows of the tree, and the switch, to work/tree."""
    tree = work / "tree"
    names = subprocess.run(["git", "-C", TOP, "ls-files", "-z"], capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, (one.decode() for one in names)):
        if (TOP / name).is_file():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, target)
    shutil.copy2(HERE / "switch.h", tree / "emulator" / "mutation_switch.h")
    return tree


def write(tree, path, text):
    """Writes a source file that calls the switch: bytes, the include is added."""
    lines = text.split(b"\n")
    first = next(i for i, line in enumerate(lines) if line.startswith(b"#include"))
    lines.insert(first, b'#include "emulator/mutation_switch.h"')
    (tree / path).write_bytes(b"\n".join(lines))


def build(tree, targets):
    """Compiles them, with optimization; the paths of the programs. Ends the program with the compiler's words if that fails."""
    folder = tree / "build"
    commands = [["meson", "setup", "-Dwerror=false", "-Dwarning_level=0", "-Doptimization=1", "-Ddebug=false",
                 "-Dcpp_args=-w -Wno-narrowing", str(folder)],
                ["ninja", "-C", str(folder), f"-j{JOBS}", *targets]]
    for command in commands:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line] or done.stdout.splitlines()[-20:]
            sys.exit(f"{pathlib.Path(sys.argv[0]).name}: the changed copy does not compile:\n" + "\n".join(errors[:20]) + done.stderr[-500:])
    return [folder / target for target in targets]
