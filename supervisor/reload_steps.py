"""A plan carried out step by step, and taken back when a step fails: all of it is in force in the end, or nothing.

Steps come one after the other, the parts of a step at once. Each step knows what it has done, so that taking back
undoes just that, in the opposite order. What cannot be undone (a port that somebody else took meanwhile) is told, and
the policy of restarts goes on trying. When the DRO stops meanwhile, everything is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dro.config.difference import portals_of
from dro.config.model import DroConfig
from dro.errors import DroError
from dro.log import Settings
from supervisor.operations import Outcome
from supervisor.reload_plan import LOG, ROUTE_MANAGER, ActionKind, ReloadPlan, needs

Done = Callable[[Outcome], object]


class Hands(Protocol):
    """What a transaction needs of the parent. Methods that begin something raise a DroError, or call back later."""

    def set_config(self, config: DroConfig) -> None: ...

    def reconfigure(
        self, config: DroConfig, done: Callable[[Mapping[str, str]], object], *, only: frozenset[str]
    ) -> None: ...

    def set_log(self, settings: Settings) -> None: ...

    def is_resting(self, name: str) -> bool: ...

    def add(self, name: str, done: Done) -> None: ...

    def remove(self, name: str, done: Done) -> None: ...

    def restart(self, name: str, done: Done) -> None: ...

    def pause(self, name: str, done: Done) -> None: ...

    def resume(self, name: str, done: Done) -> None: ...


@dataclass(frozen=True, slots=True)
class Result:
    """How a transaction, or taking it back, ended. `notes` is what was not clean although it is done."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        return not self.problems

    def __add__(self, other: Result) -> Result:
        return Result(self.problems + other.problems, self.notes + other.notes)


Report = Callable[[Result], object]


def problem_of(name: str, outcome: Outcome) -> Result:
    """What one operation on a portal came to."""
    remedy = f"; {outcome.remedy}" if outcome.remedy else ""
    return Result(
        (f"portal {name}: {outcome.problem}{remedy}",) if outcome.problem else (),
        (f"portal {name}: {outcome.note}",) if outcome.note else (),
    )


class _Gather:
    """Begins several operations and reports once all have ended; `done` hears of each that did what it should."""

    def __init__(
        self, names: Sequence[str], begin: Callable[[str, Done], object], done: Callable[[str], object], report: Report
    ) -> None:
        self._waiting = set(names)
        self._result = Result()
        self._done = done
        self._report = report
        if not names:
            report(self._result)
        for name in names:
            try:
                begin(name, self._on_end_of(name))
            except DroError as e:
                self._end(name, Result((f"portal {name}: {e}",)))

    def _on_end_of(self, name: str) -> Done:
        def ended(outcome: Outcome) -> None:
            if outcome.is_ok:
                self._done(name)
            self._end(name, problem_of(name, outcome))

        return ended

    def _end(self, name: str, result: Result) -> None:
        self._waiting.discard(name)
        self._result += result
        if not self._waiting:
            self._report(self._result)


class Step(Protocol):
    """One step; `undo` is called once at most, after `do` has reported, and undoes what `do` did."""

    def do(self, report: Report) -> None: ...

    def undo(self, report: Report) -> None: ...


class _Live:
    """Workers that take over the changed configuration while they run."""

    def __init__(self, hands: Hands, old: DroConfig, new: DroConfig, names: frozenset[str]) -> None:
        self._hands = hands
        self._old = old
        self._new = new
        self._names = names

    def do(self, report: Report) -> None:
        self._give(self._new, report)

    def undo(self, report: Report) -> None:
        """Also to those that said no: one that was too slow to answer may have changed since."""
        self._give(self._old, report)

    def _give(self, config: DroConfig, report: Report) -> None:
        def ended(problems: Mapping[str, str]) -> None:
            report(Result(tuple(f"{name}: {problem}" for name, problem in problems.items())))

        if self._names:
            self._hands.reconfigure(config, ended, only=self._names)
        else:
            self._hands.set_config(config)
            report(Result())


class _Log:
    """The log of all processes."""

    def __init__(self, hands: Hands, old: Settings, new: Settings) -> None:
        self._hands = hands
        self._old = old
        self._new = new

    def do(self, report: Report) -> None:
        self._hands.set_log(self._new)
        report(Result())

    def undo(self, report: Report) -> None:
        self._hands.set_log(self._old)
        report(Result())


class _Remove:
    """Portals that go. When they come back, those that an operator had stopped are stopped again."""

    def __init__(self, hands: Hands, names: Sequence[str]) -> None:
        self._hands = hands
        self._names = names
        self._gone: list[str] = []
        self._resting: set[str] = set()

    def do(self, report: Report) -> None:
        self._resting = {name for name in self._names if self._hands.is_resting(name)}
        _Gather(self._names, self._hands.remove, self._gone.append, report)

    def undo(self, report: Report) -> None:
        back: list[str] = []

        def rest(so_far: Result) -> None:
            names = [name for name in back if name in self._resting]
            _Gather(names, self._hands.pause, lambda _: None, lambda result: report(so_far + result))

        _Gather(self._gone, self._hands.add, back.append, rest)


class _Add:
    """Portals that come."""

    def __init__(self, hands: Hands, names: Sequence[str]) -> None:
        self._hands = hands
        self._names = names
        self._come: list[str] = []

    def do(self, report: Report) -> None:
        _Gather(self._names, self._hands.add, self._come.append, report)

    def undo(self, report: Report) -> None:
        _Gather(self._come, self._hands.remove, lambda _: None, report)


class _Restart:
    """Portals that start anew. Those that change places (a domain, a port) are all stopped before the first starts."""

    def __init__(self, hands: Hands, names: Sequence[str], swap: frozenset[str]) -> None:
        self._hands = hands
        self._names = names
        self._swap = swap
        self._touched: list[str] = []

    def do(self, report: Report) -> None:
        self._touched = [name for name in self._names if not self._hands.is_resting(name)]
        resting = [name for name in self._names if name not in self._touched]
        notes = Result(
            notes=tuple(f"portal {name} is stopped by order: it is new when it is resumed" for name in resting)
        )
        self._run(lambda result: report(notes + result), is_undo=False)

    def undo(self, report: Report) -> None:
        self._run(report, is_undo=True)

    def _run(self, report: Report, *, is_undo: bool) -> None:
        plain = [name for name in self._touched if name not in self._swap]

        def then(first: Result) -> None:
            self._change_places(first, report, is_undo=is_undo)

        _Gather(plain, self._hands.restart, lambda _: None, then)

    def _change_places(self, so_far: Result, report: Report, *, is_undo: bool) -> None:
        """On the way back it goes on after a failure: what can run shall run."""
        names = [name for name in self._touched if name in self._swap]
        if not names or not (so_far.is_ok or is_undo):
            report(so_far)
            return
        running = [name for name in names if not self._hands.is_resting(name)]

        def stopped(result: Result) -> None:
            if not (result.is_ok or is_undo):
                report(so_far + result)
                return
            resting = [name for name in names if self._hands.is_resting(name)]
            _Gather(resting, self._hands.resume, lambda _: None, lambda last: report(so_far + result + last))

        _Gather(running, self._hands.pause, lambda _: None, stopped)


def changing_places(old: DroConfig, new: DroConfig, names: Sequence[str]) -> frozenset[str]:
    """Those of the portals to restart of which one wants what another one has."""
    before, after = portals_of(old), portals_of(new)
    holders: dict[object, set[str]] = {}
    for name in names:
        for thing in needs(before[name]):
            holders.setdefault(thing, set()).add(name)
    found: set[str] = set()
    for name in names:
        others = set[str]().union(*(holders.get(thing, ()) for thing in needs(after[name]))) - {name}
        found |= {name, *others} if others else set()
    return frozenset(found)


class Transaction:
    """One plan from its first step to its last, or back."""

    def __init__(
        self, hands: Hands, plan: ReloadPlan, old: DroConfig, new: DroConfig, logs: tuple[Settings, Settings]
    ) -> None:
        """`old` is what runs, `new` what shall; `logs` are the settings of the log before and after."""
        self._hands = hands
        self._old = old
        restarts = plan.portals(ActionKind.RESTART)
        removed = plan.portals(ActionKind.REMOVE)
        given_up = frozenset[object]().union(*(needs(portals_of(old)[name]) for name in restarts))
        added = plan.portals(ActionKind.ADD)
        late = [name for name in added if needs(portals_of(new)[name]) & given_up]
        live = {*plan.portals(ActionKind.LIVE)}
        if plan.has_live(ROUTE_MANAGER):
            live.add(ROUTE_MANAGER)
        steps: list[Step] = [_Live(hands, old, new, frozenset(live))]
        if plan.has_live(LOG):
            steps.append(_Log(hands, *logs))
        steps += [
            _Remove(hands, removed),
            _Add(hands, [name for name in added if name not in late]),
            _Restart(hands, restarts, changing_places(old, new, restarts)),
            _Add(hands, late),
        ]
        self._steps: Final = steps
        self._done_steps: list[Step] = []

    def begin(self, report: Report) -> None:
        """Carry it out up to the first step that fails; `report` gets the problems and all notes."""
        self._next(report, Result())

    def _next(self, report: Report, so_far: Result) -> None:
        if not so_far.is_ok or len(self._done_steps) == len(self._steps):
            report(so_far)
            return
        step = self._steps[len(self._done_steps)]
        self._done_steps.append(step)
        try:
            step.do(lambda result: self._next(report, so_far + result))
        except DroError as e:
            self._next(report, so_far + Result((str(e),)))

    def take_back(self, report: Report) -> None:
        """Undo what was done, whether or not some of it cannot be undone."""
        try:
            self._hands.set_config(self._old)
        except DroError as e:
            report(Result((str(e),)))
            return
        self._back(report, Result())

    def _back(self, report: Report, so_far: Result) -> None:
        if not self._done_steps:
            report(so_far)
            return
        step = self._done_steps.pop()
        try:
            step.undo(lambda result: self._back(report, so_far + result))
        except DroError as e:
            self._back(report, so_far + Result((str(e),)))
