"""Requests for reloads, in whatever order they come: what becomes one, what is refused, and that each is answered once.

The parent is a fake with a clock of its own; trials end when the test says so.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError, LocalProtocolError
from dro.log.handler import Settings
from dro.loop import Loop
from supervisor.admin.server import Arguments, Handler, Reply
from supervisor.admin.status import WorkerStatus
from supervisor.host.run_dirs import RunDirs
from supervisor.parent.config_in_force import ConfigInForce
from supervisor.parent.forked_task import Failed, failure
from supervisor.parent.operations import Operations, ProcessControl
from supervisor.parent.parent import Parent
from supervisor.parent.rollout import RolledOut, Rollout
from supervisor.parent.workers import Workers
from supervisor.reload.plan import plan_reload
from supervisor.reload.requests import TRANSITIONS, Reload, ReloadEvent, ReloadState
from supervisor.reload.trial import Trial
from tests.builders.architecture import drawn_table
from tests.builders.dro_file import parse_dro
from tests.fakes.clock import SteppedClock
from tests.fakes.lookup import FakeLookup


def dro(cost: int) -> DroConfig:
    portals = "".join(
        f'<endpoint><name>{name}</name><domain-id>{n}</domain-id><cost>{cost}</cost><lbm-attributes><option '
        f'scope="context" name="resolver_multicast_port" value="{15000 + n}"/></lbm-attributes></endpoint>'
        for n, name in enumerate("AB", start=1)
    )  # fmt: skip
    raw = f'<tnw-gateway version="1.0"><portals>{portals}</portals></tnw-gateway>'
    return parse_dro(raw.encode(), "r.xml", warn=lambda _: None, lookup=FakeLookup(), environ={})


OPERATOR = "an order"
CONFIGS = [dro(cost) for cost in range(1, 4)]


@dataclass
class FakeAdmin:
    handlers: dict[str, Handler] = field(default_factory=dict)

    def add(self, command: str, handler: Handler) -> None:
        self.handlers[command] = handler


@dataclass
class Work:
    work: Callable[[], object]
    done: Callable[[object | Failed], object]


class FakeRollout:
    """Workers that take over a configuration at once; `problems` is what they answer the next time."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.problems: dict[str, str] = {}

    def begin(self, config: object, done: RolledOut, *, only: frozenset[str] | None) -> None:
        problems, self.problems = self.problems, {}
        self.loop.call_soon(lambda: done(problems))


class FakeParent:
    """A parent without processes. `works` are trials that the test ends, `busy` the orders that operators gave."""

    def __init__(self) -> None:
        self.clock = SteppedClock(s(1000))
        self.loop = Loop(self.clock)
        self.admin = FakeAdmin()
        self.rollout = FakeRollout(self.loop)
        self.workers = Workers([])
        self.is_running, self.is_stopping = True, False
        rollout = cast("Rollout", self.rollout)
        self.configuration = ConfigInForce(self.workers, rollout, CONFIGS[0], lambda _: [], lambda config, _: config)
        self.run_dirs = RunDirs(Path("/"), Path("/"))
        self.operations = Operations(
            self.workers, cast("ProcessControl", self), self.loop, logging.getLogger("test"),
            start=lambda _: None, spec_of=self.configuration.spec_of,
        )  # fmt: skip
        self.works: list[Work] = []
        self.begun = 0
        self.busy: dict[str, str] = {}

    def worker_status(self) -> tuple[WorkerStatus, ...]:
        return tuple(
            WorkerStatus(name, "endpoint", i, "ready", 1, 1, 0, 0.0, "", operation=self.busy.get(name, ""))
            for i, name in enumerate(("route-manager", "A", "B"))
        )

    def run_forked(
        self, work: Callable[[], object], done: Callable[[object | Failed], object], *, limit_ns: int, what: str
    ) -> None:
        self.begun += 1
        assert not self.works, "one trial at a time"
        self.works.append(Work(work, done))


class ReloadBench:
    """A DRO on the bench: the test lets time pass and ends trials."""

    def __init__(self) -> None:
        self.parent = FakeParent()
        self.reload = Reload(cast("Parent[DroConfig]", self.parent), logging.getLogger("test"))
        self.answers: list[list[object]] = []

    def close(self) -> None:
        self.parent.loop.close()

    def ask(self, command: str, **arguments: object) -> list[object]:
        """What it is answered, now and later."""
        answers: list[object] = []
        self.answers.append(answers)
        reply = Reply(answers.append)
        try:
            self.parent.admin.handlers[command](Arguments(arguments), reply)
        except DroError as e:
            reply.fail(e)
        self.turn()
        return answers

    @property
    def config(self) -> DroConfig:
        return self.parent.configuration.current

    def operator(self, changes: bool) -> None:
        """An operator begins to change the configuration, or has done so."""
        configuration = self.parent.configuration
        if changes:
            configuration.begin_change(OPERATOR)
        elif configuration.change == OPERATOR:
            configuration.end_change()

    def hang_up(self) -> None:
        self.reload.on_hangup()
        self.turn()

    def turn(self) -> None:
        while self.parent.loop.run_once(0):
            pass

    def let_pass(self, delay_ns: int) -> None:
        end = self.parent.clock.time_ns + delay_ns
        while self.parent.clock.time_ns < end:
            self.parent.clock.time_ns = min(end, self.parent.clock.time_ns + ms(50))
            self.turn()

    def end_trial(self, config: DroConfig | None = None, problem: str = "") -> None:
        """The file has that configuration (the running one unless said), or is wrong."""
        [work], self.parent.works = self.parent.works, []
        running = self.config
        new = running if config is None else config
        trial = Trial(plan_reload(running, new), new, Settings(), ())
        work.done(failure(problem) if problem else trial)
        self.turn()

    def stop(self) -> None:
        self.parent.is_stopping, self.parent.is_running = True, False
        self.parent.configuration.close("the DRO is stopping")
        self.parent.works.clear()
        self.reload.on_stopping()
        self.turn()


@pytest.fixture
def bench() -> Iterator[ReloadBench]:
    made = ReloadBench()
    yield made
    made.close()


def problem(answers: list[object]) -> str:
    [answer] = answers
    assert isinstance(answer, dict)
    assert answer["ok"] is False
    return str(answer["error"]["what"])


def is_ok(answers: list[object]) -> bool:
    [answer] = answers
    return isinstance(answer, dict) and answer["ok"] is True


def test_a_hundred_hangups_in_a_second_are_two_reloads(bench: ReloadBench) -> None:
    for _ in range(100):
        bench.hang_up()
        if bench.parent.works:
            bench.end_trial(CONFIGS[1])
        bench.let_pass(ms(10))
    bench.let_pass(s(5))
    bench.end_trial()
    bench.let_pass(s(60))
    assert bench.parent.begun == 2
    assert bench.config is CONFIGS[1]


def test_the_last_hangup_counts(bench: ReloadBench) -> None:
    """A file that was written while the one before was read is read as well."""
    bench.hang_up()
    bench.let_pass(ms(10))
    bench.hang_up()
    bench.end_trial(CONFIGS[1])
    bench.let_pass(s(3))
    bench.end_trial(CONFIGS[2])
    assert bench.config is CONFIGS[2]


def test_hangups_without_end_are_a_reload_now_and_then(bench: ReloadBench) -> None:
    for _ in range(100):
        bench.hang_up()
        if bench.parent.works:
            bench.end_trial()
        bench.let_pass(ms(100))
    assert 4 <= bench.parent.begun <= 7, "in ten seconds"


def test_a_single_hangup_does_not_wait(bench: ReloadBench) -> None:
    bench.hang_up()
    assert bench.parent.begun == 1
    bench.end_trial()
    bench.let_pass(s(2))
    bench.hang_up()
    assert bench.parent.begun == 2


def test_a_hangup_during_the_start_waits_for_its_end(bench: ReloadBench) -> None:
    bench.parent.is_running = False
    bench.hang_up()
    bench.let_pass(s(30))
    assert bench.parent.begun == 0
    assert "starting or stopping" in problem(bench.ask("reload"))
    bench.parent.is_running = True
    bench.let_pass(s(1))
    assert bench.parent.begun == 1


def test_a_hangup_while_an_operator_changes_a_portal_is_tried_again(bench: ReloadBench) -> None:
    bench.operator(True)
    bench.hang_up()
    bench.let_pass(s(10))
    assert bench.parent.begun == 0
    bench.operator(False)
    bench.let_pass(s(1))
    assert bench.parent.begun == 1


def test_a_command_while_an_operator_changes_a_portal_is_refused(bench: ReloadBench) -> None:
    bench.operator(True)
    assert problem(bench.ask("reload")).startswith("the configuration is being changed: an order")
    bench.operator(False)
    bench.let_pass(s(10))
    assert bench.parent.begun == 0, "it was refused, not kept"


def test_requests_during_a_reload_become_one(bench: ReloadBench) -> None:
    first = bench.ask("reload")
    others = [bench.ask("reload") for _ in range(20)]
    bench.hang_up()
    assert bench.parent.begun == 1
    bench.end_trial(CONFIGS[1])
    assert is_ok(first)
    assert not any(others)
    bench.let_pass(s(3))
    bench.end_trial()
    assert bench.parent.begun == 2
    assert all(map(is_ok, others))


def test_one_that_wants_to_confirm_does_not_share(bench: ReloadBench) -> None:
    bench.ask("reload")
    waiting = bench.ask("reload")
    assert "another reload waits already" in problem(bench.ask("reload", confirm=10))
    bench.end_trial()
    bench.end_trial()
    assert is_ok(waiting)


def test_a_wrong_file_is_told_to_all_who_wait(bench: ReloadBench) -> None:
    first, second = bench.ask("reload"), bench.ask("reload")
    bench.end_trial(problem="line 3 is wrong")
    assert problem(first) == "line 3 is wrong"
    assert not second
    bench.end_trial(problem="line 4 is wrong")
    assert problem(second) == "line 4 is wrong"
    assert bench.parent.configuration.change == ""


def test_one_that_does_not_wait_is_answered_after_the_trial(bench: ReloadBench) -> None:
    answers = bench.ask("reload", no_wait=True)
    assert not answers
    bench.parent.rollout.problems = {"A": "no"}
    bench.end_trial(CONFIGS[1])
    assert is_ok(answers)
    assert bench.config is CONFIGS[0], "it failed later, which the log tells"


def test_what_a_worker_refuses_is_taken_back(bench: ReloadBench) -> None:
    bench.parent.rollout.problems = {"A": "the list is too long"}
    answers = bench.ask("reload")
    bench.end_trial(CONFIGS[1])
    assert problem(answers) == "A: the list is too long"
    assert bench.config is CONFIGS[0]
    assert bench.parent.configuration.change == ""


def test_a_portal_with_an_order_under_way_is_left_alone(bench: ReloadBench) -> None:
    """Nothing is begun that would have to be taken back."""
    bench.parent.busy = {"B": "drain"}
    shrunk = replace(CONFIGS[1], portals=CONFIGS[1].portals[:1])
    answers = bench.ask("reload")
    bench.end_trial(shrunk)
    assert problem(answers) == "B is busy: drain is under way"
    assert bench.config is CONFIGS[0]
    assert bench.parent.configuration.change == ""
    answers = bench.ask("reload")
    bench.end_trial(CONFIGS[1])
    assert is_ok(answers), "what it takes over while it drains is no obstacle"


def test_a_bug_does_not_take_the_dro_with_it(bench: ReloadBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.parent.configuration, "reconfigure", lambda *_, **__: [][0])
    answers = bench.ask("reload")
    bench.end_trial(CONFIGS[1])
    assert problem(answers) == "internal error in the reload"
    assert bench.parent.configuration.change == ""
    monkeypatch.undo()
    again = bench.ask("reload")
    bench.end_trial(CONFIGS[1])
    assert is_ok(again)


def test_a_reload_that_is_not_confirmed_in_time(bench: ReloadBench, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_s = bench.parent.configuration.loaded_s
    bench.ask("reload", confirm=5)
    bench.end_trial(CONFIGS[1])
    bench.let_pass(s(4))
    assert bench.config is CONFIGS[1]
    assert bench.parent.configuration.loaded_s > loaded_s
    assert not bench.parent.configuration.claim_of_portals(), "operators may do their work while they decide"
    claims = []
    set_config = bench.parent.configuration.set_config

    def watched(config: DroConfig, **how: float) -> None:
        claims.append(bench.parent.configuration.claim_of_portals())
        set_config(config, loaded_s=how.get("loaded_s"))

    monkeypatch.setattr(bench.parent.configuration, "set_config", watched)
    bench.let_pass(s(2))
    assert bench.config is CONFIGS[0]
    assert bench.parent.configuration.loaded_s == loaded_s, "what is in force was read then"
    assert claims[0] == "a reload that is taken back", "it was taken back with the portals claimed"
    assert bench.parent.configuration.change == ""
    assert "no reload waits" in problem(bench.ask("confirm"))


def test_pending_changes_come_back_with_a_rollback(bench: ReloadBench) -> None:
    running = bench.config
    named = replace(CONFIGS[1], daemon=replace(running.daemon, name="other"))
    bench.ask("reload", confirm=5)
    bench.end_trial(named)
    assert bench.parent.configuration.pending == ("daemon/name: nothing -> other",)
    bench.ask("rollback")
    assert not bench.parent.configuration.pending


@pytest.mark.parametrize("state", ["trying", "applying", "confirming", "taking back"])
def test_the_end_of_the_dro_answers_everybody(bench: ReloadBench, state: str) -> None:
    answers = [bench.ask("reload", confirm=5)]
    if state == "applying":
        bench.turn, turn = (lambda: None), bench.turn  # type: ignore[method-assign]  # time stands still
        bench.end_trial(CONFIGS[1])
        bench.turn = turn  # type: ignore[method-assign]
        bench.stop()
        assert problem(answers[0]) == "the DRO is stopping"
        return
    if state != "trying":
        bench.end_trial(CONFIGS[1])
        assert is_ok(answers.pop())
    if state == "taking back":
        bench.turn, turn = (lambda: None), bench.turn  # type: ignore[method-assign]
        answers.append(bench.ask("rollback"))
        bench.turn = turn  # type: ignore[method-assign]
    elif state == "trying":
        answers.append(bench.ask("reload", confirm=5))
    bench.stop()
    bench.let_pass(s(20))
    assert [problem(answer) for answer in answers] == ["the DRO is stopping"] * len(answers)


EVENTS = st.one_of(
    st.sampled_from(["hang up", "confirm", "rollback", "operator", "problem"]),
    st.tuples(st.just("reload"), st.sampled_from([0, 0, 3, 5]), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from([0, 1, 2, None])),
    st.tuples(st.just("pass"), st.integers(1, 4000)),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.booleans())
def test_whatever_comes_each_is_answered_once_and_it_ends(
    events: list[str | tuple[str, int, bool] | tuple[str, int | None]], stops: bool
) -> None:
    bench = ReloadBench()
    for event in events:
        match event:
            case "hang up":
                bench.hang_up()
            case "confirm" | "rollback" as command:
                bench.ask(command)
            case "operator":
                bench.operator(not bench.parent.configuration.change)
            case "problem":
                bench.parent.rollout.problems = {"B": "no"}
            case ("reload", confirm, no_wait):
                bench.ask("reload", confirm=confirm, no_wait=no_wait)
            case ("end", which) if bench.parent.works:
                bench.end_trial(None if which is None else CONFIGS[which], "wrong" if which is None else "")
            case ("pass", delay_ms) if isinstance(delay_ms, int):
                bench.let_pass(ms(delay_ms))
        assert len(bench.parent.works) <= 1
        assert max(map(len, bench.answers), default=0) <= 1
    bench.operator(False)
    if stops:
        bench.stop()
    for _ in range(6):
        if bench.parent.works:
            bench.end_trial()
        bench.let_pass(s(3))
    assert Counter(map(len, bench.answers)).keys() <= {1}
    assert bench.parent.works == []
    if not stops:
        assert bench.parent.configuration.change == ""
    assert bench.config in CONFIGS
    bench.close()


def test_every_move_that_is_not_in_the_table_is_a_bug(bench: ReloadBench) -> None:
    for state, event in product(ReloadState, ReloadEvent):
        bench.reload._state = state
        if (state, event) in TRANSITIONS:
            bench.reload._move(event)
            assert bench.reload._state is TRANSITIONS[state, event]
        else:
            with pytest.raises(LocalProtocolError, match=f"{state.value} and {event.value}"):
                bench.reload._move(event)
    bench.reload._state = ReloadState.IDLE


def test_the_documentation_draws_this_table() -> None:
    assert drawn_table("A reload", ReloadState, ReloadEvent) == TRANSITIONS
