"""Peer portals of two real DROs that are killed again and again under load, and what has come of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dro.loop import Loop
from dro.metrics.slots import Slot
from supervisor.host.run_dirs import start_time_of
from tests.bench.resets import Load, ResetResult, plan_of
from tests.daemon.test_peers import Chain
from tests.network.plans import PAIR
from tests.rigs.books import books_of
from tests.rigs.site import drained, workers_of
from tests.rigs.waiting import wait_until

LIFE_S = 1.3  # a life that ends sooner is not gone on from, once the one before has
PEERS = (("A", "A-B"), ("B", "B-A"))
NEW = 20
"""Messages of each source that were sent after a kill show that it is over."""
BOTH_OF = 5
"""Of so many kills, one is of both portals of the link."""


def _age_s(pid: int) -> float:
    """Return how long a process has been there; 0 when it is not."""
    began = start_time_of(pid)
    return 0.0 if began is None else time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Join numbers that follow each other: the first and the last of each run."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        begin = found.pop()[0] if found and found[-1][1] == number - 1 else number
        found.append((begin, number))
    return found


def kill_peers(
    folder: Path, kind: str, kills: int, chance: random.Random, *, rate: int = 1000, others: Sequence[str] = ()
) -> ResetResult:
    """Kill the peer portals of a link of that kind so often: one of them, or both at once.

    `others`: endpoint portals, of which one is killed with them.
    """
    plan = plan_of(folder, kind)
    pair, loop = Chain(plan), Loop()
    with ExitStack() as stack:
        stack.callback(plan.close)
        stack.callback(loop.close)
        for dro in ("B", "A"):
            pair.start(dro, "supervisor.main", str(plan.file(dro)))
            stack.callback(pair.end, dro)
        load = Load(plan, loop, rate)
        stack.callback(load.close)
        load.begin()
        pauses: list[int] = []
        for _ in range(kills):
            load.run(0.1 * chance.random())
            victims = list(PEERS) if not chance.randrange(BOTH_OF) else [chance.choice(PEERS)]
            victims += [(name[0], name) for name in others and [chance.choice(others)]]
            pids: list[int] = []

            def have_lived(victims: list[tuple[str, str]] = victims, pids: list[int] = pids) -> bool:
                pids[:] = [workers_of(pair.processes[dro].pid).get(name, 0) for dro, name in victims]
                return all(pid and _age_s(pid) > LIFE_S for pid in pids)

            load.until(have_lived)
            load.pause_ns = 0
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            sent = [sender.sent(source) for sender, source, _ in load.ways]

            def is_through(sent: list[int] = sent) -> bool:
                return all(way[2].last_sqn() >= count + NEW for way, count in zip(load.ways, sent, strict=True))

            load.until(is_through)
            pauses.append(load.pause_ns)
        end_s = time.monotonic() + 5
        with contextlib.suppress(AssertionError):
            load.until(lambda: load.has_come() or time.monotonic() >= end_s, sends=False)
        result = load.result(kills, pauses, ())
        for begin, (sender, source, receiver) in zip(load.first, load.ways, strict=True):
            missing = sorted(set(range(begin, sender.sent(source))).difference(receiver.got(source)))
            if holes := _ranges(missing):
                result.log += (f"{source.topic!r}: {len(missing)} missing: {holes[:9]}",)
        for dro in PAIR:
            with books_of(pair.processes[dro].pid, 2) as books:
                wait_until(lambda books=books: drained(books), f"books of {dro}")  # type: ignore[misc]
                drops = {(worker, why): count for worker in (1, 2) for why, count in books.dropped(worker).items()}
                result.log += tuple(
                    f"{dro}: {key} {count}" for key, count in drops.items() if count and key[1] != "duplicate"
                )
                out, taken = books.total(Slot.SENT), sum(pair.accounted for pair in books.pairs())
                if out + sum(drops.values()) - sum(pair.refused for pair in books.pairs()) != taken:
                    result.log += (f"{dro}: {out} sent, {taken} accounted for, dropped {drops}",)
        return result
