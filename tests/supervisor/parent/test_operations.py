"""Operations on portals, with hands that only note what they are told and a clock that only the test moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from dro.bus.messages import Drain, ParentMessage, Ready, Role, StartFailed, Stop
from dro.clock import NS_PER_MS, ms, s
from dro.errors import RefusedError, ResourceError
from dro.loop import Loop
from supervisor.parent.operations import (
    DRAIN_SLACK_NS,
    HAND_OVER_GRACE_MS,
    HAND_OVER_LIMIT_NS,
    START_LIMIT_NS,
    STOP_GRACE_MS,
    STOP_LIMIT_NS,
    OperationOutcome,
    Operations,
)
from supervisor.parent.workers import Event, Worker, Workers, WorkerSpec, WorkerState
from tests.fakes.clock import SteppedClock


class OperationsBench:
    """The workers of a DRO: a route manager and two ready portals, and everything that operations ask for."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.loop = Loop(self.clock)
        self.workers = Workers([self.spec("RM", Role.ROUTE_MANAGER), self.spec("P1"), self.spec("P2")])
        self.said: list[object] = []
        self.outcomes: list[OperationOutcome] = []
        self.cannot_fork = False
        self.cannot_prepare = False
        self.goes_on = False
        self.let_go_of: list[tuple[str, str]] = []  # and the order under way
        self.operations = Operations(
            self.workers, self, self.loop, logging.getLogger("test"), start=self.start, spec_of=self.spec
        )
        for worker in self.workers:
            worker.move(Event.FORKED)
            worker.move(Event.BECAME_READY)

    @staticmethod
    def spec(name: str, role: Role = Role.ENDPOINT) -> WorkerSpec:
        return WorkerSpec(name, role, lambda _: None)

    # what operations need of the parent

    def start(self, worker: Worker) -> None:
        self.said.append(("start", worker.name))
        if self.cannot_fork:
            self.operations.on_cannot_start(worker, "no memory")
        else:
            worker.move(Event.FORKED)

    def send(self, worker: Worker, message: ParentMessage) -> None:
        self.said.append(message)

    def kill(self, worker: Worker) -> None:
        self.said.append(("kill", worker.name))

    def take_out(self, worker: Worker) -> None:
        self.said.append(("take out", worker.name))

    def let_go(self, worker: Worker) -> None:
        self.let_go_of.append((worker.name, worker.operation))

    def obstacle(self, worker: Worker) -> str:
        return "" if self.goes_on else "it cannot"

    def prepare(self, worker: Worker) -> None:
        if self.cannot_prepare:
            raise ResourceError("no room", remedy="make some")
        self.said.append(("prepare", worker.index))

    # what happens

    def ready(self, worker: Worker) -> None:
        worker.move(Event.BECAME_READY)
        self.operations.on_ready(worker)

    def end(self, worker: Worker, cause: str = "ended by itself") -> bool:
        """As the parent does: what operations do not want is left to the policy."""
        worker.last_death = cause
        taken = self.operations.on_end(worker)
        if not taken:
            worker.move(Event.AGAIN)
        return taken

    def turn(self, after_ns: int = 0) -> list[OperationOutcome]:
        """Let that time pass; the outcomes so far."""
        self.clock.time_ns += after_ns
        self.loop.run_once(0)
        self.loop.run_once(0)
        return self.outcomes

    def take_sent(self) -> list[object]:
        said, self.said = self.said, []
        return said

    def done(self, outcome: OperationOutcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def bench() -> Iterator[OperationsBench]:
    made = OperationsBench()
    yield made
    made.loop.close()


STOP = Stop(STOP_GRACE_MS)
HAND_OVER = Stop(HAND_OVER_GRACE_MS, hands_over=True)


def test_restart_lets_the_next_life_go_on(bench: OperationsBench) -> None:
    bench.goes_on = True
    p1 = bench.workers.of("P1")
    bench.operations.restart("P1", bench.done)
    assert (p1.state, p1.hands_over, bench.take_sent()) == (WorkerState.STOPPING, True, [HAND_OVER])
    bench.turn(HAND_OVER_LIMIT_NS)
    assert bench.take_sent() == [("kill", "P1")], "which loses nothing either"
    assert bench.end(p1, "killed by SIGKILL")
    assert (bench.take_sent(), bench.let_go_of) == ([("start", "P1")], [])
    p1.ready = Ready(2, "", "", goes_on=True)
    bench.ready(p1)
    assert bench.turn() == []
    bench.operations.on_forwards_again(p1)
    assert bench.turn() == [OperationOutcome("P1", "ready", note="it did not end in time and was killed")]


@pytest.mark.parametrize(("goes_on", "clean"), [(True, True), (False, False)])
def test_restart_begins_clean_when_it_shall_or_cannot_go_on(bench: OperationsBench, goes_on: bool, clean: bool) -> None:
    bench.goes_on = goes_on
    p1 = bench.workers.of("P1")
    bench.operations.restart("P1", bench.done, clean=clean)
    assert (p1.hands_over, bench.take_sent()) == (False, [STOP])
    bench.end(p1)
    assert bench.let_go_of == [("P1", "restart")]


def test_restart_of_one_that_died_goes_on_from_that_life(bench: OperationsBench) -> None:
    bench.goes_on = True
    bench.end(bench.workers.of("P1"), "killed by SIGKILL")
    bench.operations.restart("P1", bench.done)
    assert (bench.take_sent(), bench.let_go_of) == ([("start", "P1")], [])


def test_restart_stops_it_and_is_done_when_it_is_ready_again(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.restart("P1", bench.done)
    assert (p1.state, p1.operation, bench.take_sent()) == (WorkerState.STOPPING, "restart", [STOP])
    assert bench.end(p1)
    assert (p1.state, bench.take_sent()) == (WorkerState.STARTING, [("start", "P1")])
    assert bench.turn() == []
    bench.ready(p1)
    assert bench.turn() == [OperationOutcome("P1", "ready")]
    assert p1.operation == ""


def test_restart_does_not_wait_for_the_pause_of_the_policy(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.end(p1, "killed by SIGKILL")
    p1.restart = timer = bench.loop.call_later(s(5), lambda: pytest.fail("started twice"))
    bench.operations.restart("P1", bench.done)
    assert bench.take_sent() == [("start", "P1")]
    assert not timer.is_pending
    bench.ready(p1)
    assert bench.turn(s(6)) == [OperationOutcome("P1", "ready")]


@pytest.mark.parametrize("order", ["restart", "pause", "drain"])
def test_an_order_to_one_that_waits_lets_go_of_what_it_has_kept(bench: OperationsBench, order: str) -> None:
    bench.end(bench.workers.of("P1"), "killed by SIGKILL")
    assert bench.let_go_of == []
    getattr(bench.operations, order)("P1", bench.done)
    assert bench.let_go_of == [("P1", order)]


def test_a_restart_that_fails_is_told_with_the_reason_and_left_to_the_policy(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.restart("P1", bench.done)
    bench.end(p1)
    p1.failure = StartFailed("port 1 is taken", "change it")
    assert not bench.end(p1)
    assert bench.turn() == [OperationOutcome("P1", "waiting", "port 1 is taken", "change it")]
    assert p1.operation == ""


def test_a_restart_whose_process_cannot_be_made_is_told(bench: OperationsBench) -> None:
    bench.cannot_fork = True
    bench.operations.restart("P1", bench.done)
    assert bench.end(bench.workers.of("P1"))
    assert bench.turn()[0].problem == "its process cannot be made: no memory"


def test_a_restart_that_takes_too_long_is_told_and_goes_on(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.restart("P1", bench.done)
    bench.end(p1)
    (outcome,) = bench.turn(START_LIMIT_NS)
    assert "not ready after 60 s" in outcome.problem
    assert p1.state is WorkerState.STARTING
    bench.ready(p1)
    assert len(bench.turn()) == 1


def test_the_route_manager_can_be_restarted_and_nothing_else(bench: OperationsBench) -> None:
    operations = bench.operations
    for refused in (operations.pause, operations.drain, operations.remove):
        with pytest.raises(RefusedError, match="RM is no portal"):
            refused("RM", bench.done)
    operations.restart("RM", bench.done)
    assert bench.take_sent() == [STOP]


def test_a_paused_portal_stays_away_until_it_is_resumed(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.pause("P1", bench.done)
    assert bench.turn() == []
    assert bench.end(p1)
    assert bench.turn(s(100)) == [OperationOutcome("P1", "paused")]
    assert bench.take_sent() == [STOP]
    bench.operations.resume("P1", bench.done)
    bench.ready(p1)
    assert bench.turn()[1:] == [OperationOutcome("P1", "ready")]
    assert bench.take_sent() == [("start", "P1")]


def test_pausing_one_that_waits_beats_the_restart_policy(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.end(p1, "killed by SIGKILL")
    p1.restart = bench.loop.call_later(ms(100), lambda: pytest.fail("started although it is paused"))
    bench.operations.pause("P1", bench.done)
    assert bench.turn(s(10)) == [OperationOutcome("P1", "paused")]
    assert bench.take_sent() == []


def test_a_pause_while_it_starts(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.end(p1)
    p1.move(Event.FORKED)
    bench.operations.pause("P1", bench.done)
    bench.ready(p1)  # it had said so before it heard the order
    assert p1.state is WorkerState.STOPPING
    assert bench.turn() == []
    bench.end(p1)
    assert bench.turn() == [OperationOutcome("P1", "paused")]


def test_one_that_does_not_stop_is_killed_and_that_is_told(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.pause("P1", bench.done)
    bench.turn(STOP_LIMIT_NS - 1)
    assert bench.take_sent() == [STOP]
    bench.turn(1)
    assert bench.take_sent() == [("kill", "P1")]
    bench.end(p1, "killed by SIGKILL")
    (outcome,) = bench.turn()
    assert outcome.is_ok
    assert "was killed" in outcome.note


def test_a_drain_is_told_waits_for_its_answer_and_then_stops(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.drain("P1", bench.done, limit_ms=1500)
    assert (p1.state, bench.take_sent()) == (WorkerState.DRAINING, [Drain(1500)])
    bench.turn(ms(1400))
    bench.operations.on_drained(p1, "")
    assert (p1.state, bench.take_sent()) == (WorkerState.STOPPING, [STOP])
    bench.turn(ms(1500) + DRAIN_SLACK_NS)
    bench.operations.on_drained(p1, "said twice")
    bench.end(p1)
    assert bench.turn() == [OperationOutcome("P1", "drained")]


def test_what_a_drain_gave_up_is_told(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.drain("P1", bench.done, limit_ms=10)
    bench.operations.on_drained(p1, "12 fragments queued")
    bench.end(p1)
    assert bench.turn() == [OperationOutcome("P1", "drained", note="12 fragments queued")]


def test_a_drain_without_an_answer_ends_all_the_same(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.drain("P1", bench.done, limit_ms=10)
    bench.turn(ms(10) + DRAIN_SLACK_NS)
    assert bench.take_sent() == [Drain(10), STOP]
    bench.turn(STOP_LIMIT_NS)
    assert bench.take_sent() == [("kill", "P1")]
    bench.end(p1, "killed by SIGKILL")
    (outcome,) = bench.turn()
    assert outcome.state == "drained"
    assert "did not say in time that it had drained; it did not end in time" in outcome.note


def test_one_that_dies_while_it_drains_stays_away_and_that_is_told(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.drain("P1", bench.done)
    assert bench.end(p1, "killed by SIGSEGV")
    assert bench.turn() == [OperationOutcome("P1", "drained", note="it ended while it drained: killed by SIGSEGV")]


def test_a_drain_of_one_without_traffic(bench: OperationsBench) -> None:
    p1, p2 = bench.workers.of("P1"), bench.workers.of("P2")
    bench.end(p1)
    bench.operations.drain("P1", bench.done)
    assert bench.turn() == [OperationOutcome("P1", "drained")]
    bench.end(p2)
    p2.move(Event.FORKED)
    bench.operations.drain("P2", bench.done)
    assert bench.take_sent() == [STOP]


@pytest.mark.parametrize("state", ["ready", "waiting", "starting", "paused", "drained"])
def test_removed_from_whatever_state(bench: OperationsBench, state: str) -> None:
    p1 = bench.workers.of("P1")
    if state != "ready":
        bench.end(p1)
    if state == "starting":
        p1.move(Event.FORKED)
    if state in ("paused", "drained"):
        p1.move(Event[state.upper()])
    bench.operations.remove("P1", bench.done, limit_ms=5)
    if p1.is_alive:
        bench.operations.on_drained(p1, "")
        bench.end(p1)
    assert bench.turn() == [OperationOutcome("P1", "removed")]
    assert bench.take_sent()[-1] == ("take out", "P1")
    assert bench.workers.find("P1") is None


def test_an_added_portal_gets_the_next_index_and_is_done_when_ready(bench: OperationsBench) -> None:
    bench.operations.add("P3", bench.done)
    p3 = bench.workers.of("P3")
    assert bench.take_sent() == [("prepare", 3), ("start", "P3")]
    bench.ready(p3)
    assert bench.turn() == [OperationOutcome("P3", "ready")]


def fails_to_run(bench: OperationsBench, worker: Worker) -> None:
    worker.failure = StartFailed("port 1 is taken", "change it")
    assert bench.end(worker)


def crashes(bench: OperationsBench, worker: Worker) -> None:
    assert bench.end(worker, "exit status 70")


def hangs(bench: OperationsBench, worker: Worker) -> None:
    bench.turn(START_LIMIT_NS)
    assert worker.state is WorkerState.STOPPING
    assert bench.end(worker)


@pytest.mark.parametrize(
    ("happens", "problem"),
    [(fails_to_run, "port 1 is taken"), (crashes, "before it was ready: exit status 70"), (hangs, "not ready after")],
)
def test_an_added_portal_that_does_not_come_up_is_taken_out_again(
    bench: OperationsBench, happens: Callable[[OperationsBench, Worker], None], problem: str
) -> None:
    bench.operations.add("P3", bench.done)
    happens(bench, bench.workers.of("P3"))
    (outcome,) = bench.turn()
    assert problem in outcome.problem
    assert outcome.state == "removed"
    assert bench.workers.find("P3") is None
    assert ("take out", "P3") in bench.take_sent()
    bench.operations.add("P3", bench.done)
    assert bench.workers.of("P3").index == 4


def test_an_added_portal_without_a_process_or_a_page(bench: OperationsBench) -> None:
    bench.cannot_fork = True
    bench.operations.add("P3", bench.done)
    assert bench.turn()[0].problem == "its process cannot be made: no memory"
    bench.cannot_prepare = True
    with pytest.raises(ResourceError, match="no room"):
        bench.operations.add("P3", bench.done)
    assert bench.workers.find("P3") is None


def test_a_busy_portal_is_refused_with_what_it_is_busy_with(bench: OperationsBench) -> None:
    operations = bench.operations
    operations.drain("P1", bench.done)
    for order in (operations.restart, operations.pause, operations.resume, operations.drain, operations.remove):
        with pytest.raises(RefusedError, match="P1 is busy: drain is under way"):
            order("P1", bench.done)
    operations.pause("P2", bench.done)  # another one is not concerned


@pytest.mark.parametrize("state", ["paused", "drained"])
def test_what_makes_no_sense_for_a_resting_one(bench: OperationsBench, state: str) -> None:
    p1, operations = bench.workers.of("P1"), bench.operations
    bench.end(p1)
    p1.move(Event[state.upper()])
    for order in (operations.pause, operations.drain):
        with pytest.raises(RefusedError, match=f"P1 is {state} already"):
            order("P1", bench.done)
    with pytest.raises(RefusedError, match=f"P1 is {state}; resume it instead"):
        operations.restart("P1", bench.done)
    with pytest.raises(RefusedError, match="P2 is ready, neither paused nor drained"):
        operations.resume("P2", bench.done)
    assert bench.take_sent() == []


def test_the_end_of_the_dro_ends_all_operations_and_refuses_new_ones(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.drain("P1", bench.done)
    bench.operations.close("the DRO is stopping")
    assert bench.turn(s(1000)) == [OperationOutcome("P1", "draining", "the DRO is stopping")]
    assert bench.take_sent() == [Drain(30_000)]  # and no timer of it is left
    assert not bench.operations.on_end(p1)
    for order in (bench.operations.restart, bench.operations.remove):
        with pytest.raises(RefusedError, match="the DRO is stopping"):
            order("P2", bench.done)
    with pytest.raises(RefusedError, match="the DRO is stopping"):
        bench.operations.add("P3", bench.done)


def test_each_operation_is_answered_once_and_never_at_once(bench: OperationsBench) -> None:
    p1 = bench.workers.of("P1")
    bench.operations.pause("P1", bench.done)
    bench.end(p1)
    assert bench.outcomes == []
    for _ in range(5):
        bench.turn(70 * s(1) // NS_PER_MS * NS_PER_MS)
    assert len(bench.outcomes) == 1
