"""Collections of reference cycles in a worker: how much each looks at, and what is swept when."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from dro.bus import cycle_collector
from dro.bus.cycle_collector import (
    BUSY_NS,
    LOOK_NS,
    QUIET_NS,
    RARELY_NS,
    SPARE_BYTES,
    WORTH_BYTES,
    CycleCollector,
)  # fmt: skip
from dro.bus.cycle_search import own_bytes
from dro.clock import NS_PER_MS
from dro.loop import Loop
from tests.fakes.um_contexts import Stepper

MOST = 10_000  # objects that a collection looks at


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def stepper() -> Iterator[Stepper]:
    made = Stepper()
    yield made
    made.loop.close()


@pytest.fixture
def collector(stepper: Stepper) -> Iterator[CycleCollector]:
    made = CycleCollector(stepper.loop)
    made.start()
    yield made
    made.stop()
    gc.freeze()


def learn(loop: Loop, count: int) -> list[list[int]]:
    """So many objects that stay, a hundred a turn."""
    known: list[list[int]] = []
    while len(known) < count:
        known += [[n] for n in range(100)]
        loop.run_once(0)
    return known


def working(collector: CycleCollector, monkeypatch: pytest.MonkeyPatch, ns: int) -> None:
    """The process has used so much more each time it is asked."""
    used = count(ns, ns)
    monkeypatch.setattr(collector, "_used_ns", 0)
    monkeypatch.setattr(time, "process_time_ns", lambda: next(used))


@contextmanager
def looked_at() -> Iterator[list[int]]:
    """How many objects each collection has to look at."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


@pytest.mark.parametrize("used_ns", [BUSY_NS, BUSY_NS + 1])
def test_no_collection_looks_at_all_that_is_known(
    collector: CycleCollector, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, used_ns: int
) -> None:
    working(collector, monkeypatch, used_ns)
    with looked_at() as found:
        known = learn(stepper.loop, 400_000)
    assert len(found) >= len(known) // MOST
    assert max(found) < (MOST if used_ns == BUSY_NS else 100)
    assert gc.get_freeze_count() > len(known) - MOST


def test_what_comes_while_as_much_goes_is_not_looked_at_in_one_piece(
    collector: CycleCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython counts new objects less those that have gone: it makes no collection meanwhile."""
    known = [[n] for n in range(200_000)]
    gc.freeze()
    with looked_at() as found:
        for at in range(len(known)):
            known[at] = [at]
        assert len(found) < 10
        working(collector, monkeypatch, BUSY_NS + 1)
        known += [[n] for n in range(1000)]
    assert found
    assert max(found) < MOST


class Used:
    """What the process has used of a processor, and of memory."""

    ns = 0
    nbytes = 100 << 20


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Used:
    """Neither grows by itself."""
    made = Used()
    monkeypatch.setattr(time, "process_time_ns", lambda: made.ns)
    monkeypatch.setattr(cycle_collector, "own_bytes", lambda: made.nbytes)
    return made


@pytest.fixture
def sweeps(used: Used, collector: CycleCollector, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Those that there are from now on; the last one was now."""
    found: list[bool] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: found.append(True))
    monkeypatch.setattr(collector, "_swept_bytes", used.nbytes)
    monkeypatch.setattr(cycle_collector, "search", lambda loop, on_found: on_found(WORTH_BYTES))
    return found


def run(stepper: Stepper, ns: int) -> None:
    """Few and long steps."""
    stepper.run(ns // NS_PER_MS, ns // NS_PER_MS)


def test_an_idle_worker_makes_none_but_the_one_an_hour_later(
    collector: CycleCollector, stepper: Stepper, sweeps: list[bool]
) -> None:
    learn(stepper.loop, 100_000)
    run(stepper, LOOK_NS)
    run(stepper, RARELY_NS - LOOK_NS - 2 * QUIET_NS)
    assert sweeps == []
    run(stepper, 2 * QUIET_NS)
    run(stepper, QUIET_NS)
    assert sweeps == [True]
    assert stepper.loop.next_deadline() is None


def test_a_worker_that_has_frozen_nothing_makes_none_at_all(collector: CycleCollector, stepper: Stepper) -> None:
    stepper.settle()
    assert stepper.loop.next_deadline() is None


def test_what_has_doubled_is_swept_when_the_worker_is_quiet(
    collector: CycleCollector, stepper: Stepper, sweeps: list[bool], used: Used, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_collector, "SPARE", 1000)
    monkeypatch.setattr(collector, "_swept", 1000)
    learn(stepper.loop, 200_000)
    run(stepper, LOOK_NS)
    assert sweeps == [], "it is waited for that it is quiet"
    used.ns += QUIET_NS // 20
    run(stepper, QUIET_NS)
    assert sweeps == [], "it was busy"
    used.ns += QUIET_NS // 20 - 1
    run(stepper, QUIET_NS)
    assert sweeps == [True]
    run(stepper, 5 * QUIET_NS)
    assert (sweeps, stepper.loop.next_deadline()) == ([True], None)


@pytest.mark.parametrize(("more", "is_swept"), [(0, False), (1, True)])
def test_bytes_count_as_blocks_do(
    collector: CycleCollector, stepper: Stepper, sweeps: list[bool], used: Used, more: int, *, is_swept: bool
) -> None:
    """A cycle of a few blocks may hold any buffer."""
    used.nbytes += used.nbytes // 4 + SPARE_BYTES + more
    learn(stepper.loop, 10_000)
    run(stepper, LOOK_NS)
    assert sweeps == []
    run(stepper, QUIET_NS)
    assert bool(sweeps) is is_swept


def test_what_has_not_doubled_is_not(
    collector: CycleCollector, stepper: Stepper, sweeps: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_collector, "SPARE", 1000)
    monkeypatch.setattr(collector, "_swept", sys.getallocatedblocks())
    learn(stepper.loop, 50_000)
    run(stepper, LOOK_NS)
    run(stepper, 5 * QUIET_NS)
    assert sweeps == []


@pytest.mark.parametrize("limit", ["MANY", "MANY_BYTES"])
def test_very_much_is_swept_at_once_however_busy_the_worker_is(
    collector: CycleCollector,
    stepper: Stepper,
    sweeps: list[bool],
    used: Used,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    monkeypatch.setattr(cycle_collector, limit, 1000)
    monkeypatch.setattr(collector, "_swept", 1000 if limit == "MANY" else sys.getallocatedblocks())
    learn(stepper.loop, 50_000)
    used.nbytes *= 2
    run(stepper, LOOK_NS - NS_PER_MS)
    assert sweeps == []
    run(stepper, NS_PER_MS)
    assert sweeps == [True]


def test_without_a_child_all_is_swept(collector: CycleCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room() -> int:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(os, "fork", no_room)
    collector._sweep()  # of what other tests have left as well
    before = len(os.listdir("/proc/self/fd"))
    collector._swept_ns = -1
    collector._search()
    assert collector._swept_ns >= 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_own_memory_is_what_is_not_shared() -> None:
    page, size = b"x" * mmap.PAGESIZE, 32 << 20
    with mmap.mmap(-1, size) as shared, mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        before = own_bytes()
        for _ in range(size // len(page)):
            shared.write(page)
        assert abs(own_bytes() - before) < 8 << 20
        for _ in range(size // len(page)):
            own.write(page)
        assert size - (8 << 20) < own_bytes() - before


def test_a_sweep_finds_cycles_that_were_frozen_and_the_others_are_found_before(
    collector: CycleCollector, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alive() -> int:
        gc.unfreeze()
        return sum(isinstance(thing, Cycle) for thing in gc.get_objects())

    for _ in range(1000):
        Cycle()
    learn(stepper.loop, 100_000)
    assert alive() == 0
    frozen = [Cycle() for _ in range(1000)]
    learn(stepper.loop, 100_000)
    gc.freeze()
    frozen.clear()
    learn(stepper.loop, 100_000)
    working(collector, monkeypatch, BUSY_NS + 1)
    collector._sweep()
    assert alive() == 0


def test_it_leaves_python_as_it_was(stepper: Stepper) -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    collector = CycleCollector(stepper.loop)
    collector.stop()
    collector.start()
    assert gc.get_threshold()[2] > 1_000_000
    collector.stop()
    collector.stop()
    assert (gc.get_threshold(), len(gc.callbacks)) == before
