"""What the monitor keeps of its DRO while parent or route manager do not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dro.bus.listing import TopologyRow
from dro.errors import DroError, RefusedError
from supervisor.admin.status import DroStatus, WorkerStatus
from supervisor.monitor.known.health import unhealthy, unready
from supervisor.monitor.known.metrics import Metrics
from supervisor.samples import watch as known_module
from supervisor.samples.watch import DroObserver

MANAGER = WorkerStatus("route-manager", "route manager", 0, "ready", 1, 1, 0, 1.0, "")
STATUS = DroStatus("A", "1", "1", 1, 1.0, "f", 1.0, True, workers=(MANAGER,), shm="/nowhere")
B = TopologyRow("B", "2", 1, "0000002a", age_s=3.0)


class FakeAsker:
    """Answers what it has; an error is raised."""

    def __init__(self) -> None:
        self.status: DroStatus | DroError = STATUS
        self.topology: tuple[TopologyRow, ...] | DroError = (B,)
        self.topologies = 0

    def ask(self, question: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        return question(SimpleNamespace(ask=lambda *_, **__: answered(self.status)))

    def rows_of(self, *_: object) -> Any:  # noqa: ANN401
        self.topologies += 1
        return answered(self.topology)


def answered(answer: object) -> object:
    if isinstance(answer, DroError):
        raise answer
    return answer


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> FakeAsker:
    made = FakeAsker()
    monkeypatch.setattr(known_module, "rows_of", made.rows_of)
    return made


@pytest.fixture
def watch(asker: FakeAsker) -> DroObserver:
    made = DroObserver(Path("/nowhere"), replace(STATUS, workers=()))
    made.asker = asker  # type: ignore[misc, assignment]
    return made


def heard_s(watch: DroObserver) -> float:
    families = Metrics("1", "r").of_dro(watch.known)
    name = "dro_other_last_activity_timestamp_seconds"
    (found,) = [s.value for family in families.collect() for s in family.samples if s.name == name]
    return float(found)


def test_before_the_first_answer_it_is_not_healthy(watch: DroObserver) -> None:
    assert math.isinf(watch.known.age_s)
    assert unhealthy(watch.known) == ["the parent has not answered yet: "]


def test_a_parent_that_is_silent_is_named_and_what_it_said_is_kept(watch: DroObserver, asker: FakeAsker) -> None:
    watch.known = watch.look()
    assert unready(watch.known) == []
    asker.status = RefusedError("gone")
    watch.known = watch.look()
    assert unhealthy(watch.known) == [], "not yet"
    assert watch.known.status is STATUS
    watch.known = replace(watch.known, asked_s=time.monotonic() - 6)
    assert unhealthy(watch.known) == ["the parent has not answered for 6 s: gone"]


def test_the_topology_is_asked_for_seldom_and_ages(
    watch: DroObserver, asker: FakeAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    watch.known = watch.look()
    assert heard_s(watch) == 997
    now_s += 4
    watch.known = watch.look()
    assert asker.topologies == 1
    now_s += 4
    asker.topology = RefusedError("busy")
    watch.known = watch.look()
    assert (asker.topologies, heard_s(watch)) == (2, 997), "what is not known anew has not been heard anew"
    asker.topology = (replace(B, age_s=0.5),)
    watch.known = watch.look()
    assert heard_s(watch) == 1007.5


def test_what_does_not_work_is_named(watch: DroObserver, asker: FakeAsker) -> None:
    paused = WorkerStatus("P1", "endpoint", 1, "paused", 0, 1, 0, 0.0, "")
    asker.status = replace(STATUS, workers=(MANAGER, paused))
    watch.known = watch.look()
    assert unready(watch.known) == ["P1 is paused"]
    trouble = "no device has the address 10.0.0.1"
    asker.status = replace(STATUS, workers=(MANAGER, replace(paused, state="degraded", trouble=trouble)))
    watch.known = watch.look()
    assert unready(watch.known) == [f"P1 is degraded: {trouble}"]
    asker.status = replace(STATUS, is_stopping=True, is_running=False)
    watch.known = watch.look()
    assert unready(watch.known) == ["the DRO is stopping"]
    asker.status = replace(STATUS, is_running=False)
    watch.known = watch.look()
    assert unready(watch.known) == ["the DRO is starting"]
