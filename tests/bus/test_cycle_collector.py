"""Collections of reference cycles in a worker: how much each looks at, and what is swept when."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from dro.bus import cycle_collector
from dro.bus.cycle_collector import LOOK_EVERY, QUIET_NS, TIDY_AFTER, CycleCollector
from dro.loop import Loop
from tests.fakes.um_contexts import Stepper

MOST = 7_700 * (TIDY_AFTER + 2)


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


def test_no_collection_looks_at_all_that_is_known(collector: CycleCollector, stepper: Stepper) -> None:
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    known = learn(stepper.loop, 400_000)
    gc.callbacks.remove(note)
    assert len(known) // MOST <= len(looked_at) <= 60
    assert max(looked_at) < MOST
    assert gc.get_freeze_count() > len(known) - MOST


def test_an_idle_worker_makes_none(collector: CycleCollector, stepper: Stepper) -> None:
    learn(stepper.loop, 100_000)
    stepper.settle()
    assert stepper.loop.next_deadline() is None


def swept(monkeypatch: pytest.MonkeyPatch, used_ns: Iterator[int]) -> list[bool]:
    """Notes sweeps from now on; the process has used `used_ns` each time it is asked."""
    sweeps: list[bool] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: sweeps.append(True))
    monkeypatch.setattr(time, "process_time_ns", lambda: next(used_ns))
    monkeypatch.setattr(cycle_collector, "LOOK_EVERY", 1)
    monkeypatch.setattr(cycle_collector, "SPARE", 1000)
    return sweeps


def test_what_has_doubled_is_swept_when_the_worker_is_quiet(
    collector: CycleCollector, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = swept(monkeypatch, iter([0, QUIET_NS // 20, QUIET_NS, QUIET_NS + QUIET_NS // 20 - 1, 0]))
    monkeypatch.setattr(collector, "_swept", 1000)
    learn(stepper.loop, 200_000)
    assert sweeps == [], "it is waited for that it is quiet"
    stepper.run(QUIET_NS // 1_000_000)
    assert sweeps == [], "it was busy"
    stepper.run(QUIET_NS // 1_000_000)
    assert sweeps == [True]
    stepper.run(5 * QUIET_NS // 1_000_000)
    assert (sweeps, stepper.loop.next_deadline()) == ([True], None)


def test_what_has_not_doubled_is_not(
    collector: CycleCollector, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = swept(monkeypatch, iter([]))
    monkeypatch.setattr(collector, "_swept", gc.get_freeze_count())
    learn(stepper.loop, 50_000)
    assert (sweeps, stepper.loop.next_deadline()) == ([], None)


def test_very_much_is_swept_at_once(
    collector: CycleCollector, stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = swept(monkeypatch, iter([]))
    monkeypatch.setattr(cycle_collector, "MANY", 1000)
    monkeypatch.setattr(collector, "_swept", 1000)
    learn(stepper.loop, 50_000)
    assert sweeps


def test_a_sweep_finds_cycles_that_were_frozen_and_the_others_are_found_before(
    collector: CycleCollector, stepper: Stepper
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
    assert LOOK_EVERY > 1
