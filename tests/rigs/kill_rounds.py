"""`python -m tests.rigs.kill_rounds ROUNDS [SEED]`: kill -9, start, stop, and look what is left, again and again.

Each round starts a DRO and kills its parent, or every process at once, at some moment: while it starts, as soon as it
runs, or later. No process may survive that for long. The next DRO starts at once, or when the last process is gone;
when it has stopped, nothing may be left. A line of JSON for each round.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback

from tests.rigs.forked_dro import ForkedDro, members_of
from tests.rigs.waiting import wait_until

SIDE_BY_SIDE = 4
STARTING = "Gwd-7136-1"


def kill_at_some_moment(dro: ForkedDro, rng: random.Random) -> tuple[str, str]:
    """Whom it was, and when."""
    whom, when = rng.choice(("parent", "all")), rng.choice(("starting", "running", "later"))
    dro.start()
    if when == "starting":
        wait_until(lambda: STARTING in dro.log, "the configuration is loaded", 40, lambda: dro.log)
    else:
        dro.wait_running()
    time.sleep({"starting": 0.15, "running": 0.0, "later": 0.3}[when] * rng.random())
    if whom == "parent":
        os.kill(dro.pid, signal.SIGKILL)
    else:
        os.killpg(dro.pid, signal.SIGKILL)
    return whom, when


def one_round(dro: ForkedDro, number: int, rng: random.Random) -> dict[str, object]:
    whom, when = kill_at_some_moment(dro, rng)
    killed, began = dro.pid, time.monotonic()
    wait_until(lambda: dro.poll() is not None, "the parent is gone")
    left_then = len(dro.leftovers())
    next_start = rng.choice(("at once", "after the orphans"))
    orphans_s = -1.0
    if next_start != "at once":
        wait_until(lambda: not members_of(killed), "orphans end", 15, lambda: f"{members_of(killed)}\n{dro.log}")
        orphans_s = round(time.monotonic() - began, 3)
    dro.start()
    dro.wait_running()
    wait_until(lambda: not members_of(killed), "orphans end", 15, lambda: f"{members_of(killed)}\n{dro.log}")
    stop_s = round(dro.stop(), 3)
    return {
        "round": number, "killed": whom, "when": when, "next": next_start, "orphans_s": orphans_s,
        "left_by_it": left_then, "stop_s": stop_s, "left": dro.leftovers() + [str(p) for p in dro.folder.glob("*.pid")],
    }  # fmt: skip


def run_rounds(lane: int, rounds: int, seed: int) -> None:
    rng = random.Random(seed * SIDE_BY_SIDE + lane)
    dro = ForkedDro(f"ROUND{os.getpid()}")
    dro.edit("<log ", f"<pidfile>{dro.folder}/dro.pid</pidfile><log ")
    try:
        for number in range(lane, rounds, SIDE_BY_SIDE):
            line = json.dumps(one_round(dro, number, rng)) + "\n"
            os.write(1, line.encode())
    finally:
        dro.close()


def main(rounds: int, seed: int) -> int:
    lanes = []
    for lane in range(SIDE_BY_SIDE):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run_rounds(lane, rounds, seed)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        lanes.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in lanes)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
