"""States of workers: the table of moves, indices, who hears of whom."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest

from dro.bus.counters import MAX_WORKERS
from dro.bus.messages import Role
from dro.errors import LocalProtocolError, RefusedError
from supervisor.parent.workers import TRANSITIONS, Event, Worker, Workers, WorkerSpec, WorkerState
from tests.builders.architecture import drawn_table


def spec(name: str, role: Role = Role.ENDPOINT) -> WorkerSpec:
    return WorkerSpec(name, role, lambda _: None)


def workers(*portals: str) -> Workers:
    return Workers([spec("route-manager", Role.ROUTE_MANAGER), *map(spec, portals)])


def worker(state: WorkerState) -> Worker:
    return Worker(spec("P1"), 1, state=state)


@pytest.mark.parametrize(
    "path",
    [
        "FORKED BECAME_READY AGAIN FORKED",  # dies, comes back
        "FORKED AGAIN FORKED BECAME_READY STOP PAUSED AGAIN FORKED",  # dies young; paused, resumed
        "FORKED BECAME_READY DRAIN STOP DRAINED AGAIN FORKED BECAME_READY",
        "FORKED BECAME_READY DRAIN DRAINED REMOVED",  # dies while it drains
        "FORKED STOP BECAME_READY PAUSED REMOVED",  # it says that it is ready, too late
        "PAUSED AGAIN FORKED STOP REMOVED",
        "FORKED BECAME_READY STOP AGAIN FORKED STOP OVER",
        "DRAINED OVER",
    ],
)
def test_lives_that_workers_have(path: str) -> None:
    one = worker(WorkerState.WAITING)
    for event in path.split():
        one.move(Event[event])
    assert one.state.name.startswith(("STARTING", "READY", "REMOVED", "ENDED"))


def test_every_move_that_is_not_in_the_table_is_a_bug() -> None:
    for state, event in itertools.product(WorkerState, Event):
        one = worker(state)
        if (state, event) in TRANSITIONS:
            one.move(event)
            assert one.state is TRANSITIONS[state, event]
        else:
            with pytest.raises(LocalProtocolError, match=f"P1 is {state.value} and {event.value}"):
                one.move(event)
            assert one.state is state


def test_nothing_leads_out_of_the_two_ends() -> None:
    assert not [state for state, _ in TRANSITIONS if state in (WorkerState.REMOVED, WorkerState.ENDED)]


def test_every_state_can_end_with_the_dro_and_every_state_is_reached() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.OVER} == set(WorkerState) - {
        WorkerState.REMOVED,
        WorkerState.ENDED,
    }
    assert set(TRANSITIONS.values()) == set(WorkerState)


def test_only_a_ready_worker_drains_and_no_order_resumes_a_living_one() -> None:
    assert [state for state, event in TRANSITIONS if event is Event.DRAIN] == [WorkerState.READY]
    assert WorkerState.DRAINING not in {state for state, event in TRANSITIONS if event is Event.AGAIN}


def test_an_index_is_given_once() -> None:
    all_of_them = workers("P1", "P2")
    gone = all_of_them.of("P2")
    gone.move(Event.REMOVED)
    back = all_of_them.add(spec("P2"))
    assert (gone.index, back.index) == (2, 3)
    assert all_of_them.of("P2") is back
    assert [w.index for w in all_of_them] == [0, 1, 3]


def test_a_full_dro_takes_nobody_and_indices_come_back_only_when_all_were_given() -> None:
    all_of_them = workers()
    for n in range(1, MAX_WORKERS):
        all_of_them.add(spec(f"P{n}")).incarnation = 2 * n
    with pytest.raises(RefusedError, match="this DRO has 255 portals, more are not possible; remove one"):
        all_of_them.add(spec("one more"))
    for name, incarnation in (("P7", 900), ("P9", 901), ("P8", 902)):
        gone = all_of_them.of(name)
        gone.incarnation = incarnation
        gone.move(Event.REMOVED)
    assert [all_of_them.add(spec(name)).index for name in ("A", "B", "C")] == [7, 9, 8]  # who left first
    assert len(list(all_of_them)) == MAX_WORKERS
    assert all_of_them.of("B").state is WorkerState.WAITING


def test_a_name_is_there_once() -> None:
    with pytest.raises(RefusedError, match="has a portal 'P1' already"):
        workers("P1").add(spec("P1"))


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(RefusedError, match=r"no portal 'X'; it has P1, P2$"):
        workers("P1", "P2").of("X")


def test_which_siblings_are_connected_and_which_are_informed() -> None:
    all_of_them = workers("P1", "P2", "P3", "P4", "P5")
    by_name = {w.name: w for w in all_of_them}
    for name, state in zip(by_name, list(WorkerState)[:6], strict=True):
        by_name[name].state = state
        by_name[name].is_announced = state in (WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPING)
    ready, draining, stopping = (by_name[name] for name in ("P2", "P3", "P4"))
    starting = by_name["P1"]
    assert all_of_them.working_siblings(starting) == [ready, draining]
    assert all_of_them.working_siblings(ready) == [draining]
    assert all_of_them.informed_siblings(ready) == [draining, stopping]


def test_the_documentation_draws_this_table() -> None:
    assert drawn_table("States of a worker", WorkerState, Event) == TRANSITIONS


@dataclass(frozen=True)
class Part:
    cost: int
    port: int


def test_what_a_process_has_taken_over_is_of_its_part_and_nothing_else_is() -> None:
    """So a live change does not stand between two lives, and one that needs another process does."""
    changed = WorkerSpec("P", Role.ENDPOINT, lambda _: None, Part(cost=7, port=5), ("cost",))
    assert changed.taken_over(Part(cost=1, port=5)) == changed.part
    assert changed.taken_over(Part(cost=1, port=4)) == Part(cost=7, port=4)
    assert replace(changed, live=()).taken_over(Part(cost=1, port=5)) == Part(cost=1, port=5)
