"""Applications killed at random moments, many times: nothing of them may stay in the daemon."""
import os
import pathlib
import random
import time

from harness import case, check, free_port, wait_for

WARM_UP = 100      # kills after which the daemon's memory must have reached its size
RSS_TOLERANCE = 0.01
LATEST = 0.35      # seconds after its start by which an application is killed: connecting, transferring or leaving

# Two-sided tools of the distribution, and one that forks or executes another program in the middle of its traffic.
PAIRS = [("ib_write_bw", ["-D", "30"]), ("ib_read_bw", ["-D", "30"]), ("ib_send_bw", ["-e", "-D", "30"]),
         ("ib_atomic_bw", ["-D", "30"]), ("ib_write_bw", ["-q", "4", "-D", "30"]), ("ibv_rc_pingpong", ["-e", "-n", "100000000"])]
WAYS = ["plain", "fork", "exec"]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_pages(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])


def kill_pair(world, dice):
    tool, options = dice.choice(PAIRS)
    port = free_port()
    gid = "-g" if tool.startswith("ibv_") else "-x"
    common = [tool, "-p", str(port), gid, "1", *options]
    server = world.start("server", world.under_roci("rxe0", [*common, "-d", "rxe0"]))
    client = world.start("client", world.under_roci("rxe1", [
        "sh", "-c", f"sleep 0.05; exec {' '.join(common)} -d rxe1 127.77.0.1"]))
    now = time.monotonic()
    order = [(now + dice.uniform(0, LATEST), server), (now + dice.uniform(0, LATEST), client)]
    for moment, process in sorted(order, key=lambda one: one[0]):
        time.sleep(max(0.0, moment - time.monotonic()))
        process.kill()  # the whole group, wherever it is
    return 2


def kill_single(world, dice):
    way = dice.choice(WAYS)
    victim = world.start("traffic", world.under_roci(None, [
        world.product.verbs_check, "traffic", way, str(dice.randrange(0, 150))]))
    time.sleep(dice.uniform(0.05, LATEST))
    victim.popen.kill()  # not its group: `roci run` has become the application, and a child that it forked survives it
    victim.popen.wait(timeout=5)
    return 1


@case("killed/at-random-moments", tags={"kills"}, limit=3600)
def _(world):
    """`--kills N` says how many; the tables, descriptors and memory of the daemon are as they were."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"    seed {seed}", flush=True)
    dice = random.Random(seed)
    pid = world.start_private_daemon()
    kills, before, said = 0, None, time.monotonic()
    while kills < world.kills:
        kills += kill_pair(world, dice) if dice.random() < 0.6 else kill_single(world, dice)
        world.forget_ended()
        if before is None and kills >= min(WARM_UP, world.kills // 2):
            world.expect_nothing_left(10)
            before = descriptors(pid), resident_pages(pid)
        if time.monotonic() - said > 10:
            print(f"    ... {kills} of {world.kills} kills", flush=True)
            said = time.monotonic()
    world.expect_nothing_left(10)
    wait_for(lambda: descriptors(pid) <= before[0], 5, f"the daemon's descriptors to fall to {before[0]} again")
    after = resident_pages(pid)
    check(after <= before[1] * (1 + RSS_TOLERANCE) + 16,
          f"seed {seed}: after {kills} kills the daemon holds {after} pages, after the warm-up it held {before[1]}")
    print(f"    {kills} kills; {before[0]} descriptors, resident pages {before[1]} then {after}", flush=True)
