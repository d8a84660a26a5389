"""Execution of a reload plan step by step, rolled back when a step fails: all of it takes effect, or nothing.

Steps run in sequence, the parts of a step in parallel. Each step records what it has done, so that a rollback undoes
exactly that, in reverse order. What cannot be undone (a port that another process has taken meanwhile) is reported, and
the restart policy keeps trying. When the DRO stops meanwhile, everything is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from dro.config.change.difference import portals_of
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError
from dro.log.handler import Settings
from supervisor.admin.status import ROUTE_MANAGER_NAME
from supervisor.parent.operations import Done, OperationOutcome, Operations
from supervisor.parent.parent import Parent
from supervisor.parent.process_plan import STATISTICS_NAME
from supervisor.reload.plan import LOG, ActionKind, ReloadPlan, needs


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
T = TypeVar("T")


def problem_of(name: str, outcome: OperationOutcome) -> Result:
    """Return what one operation on a portal came to."""
    remedy = f"; {outcome.remedy}" if outcome.remedy else ""
    return Result(
        (f"portal {name}: {outcome.problem}{remedy}",) if outcome.problem else (),
        (f"portal {name}: {outcome.note}",) if outcome.note else (),
    )


def _gather(
    names: Sequence[str],
    begin: Callable[[str, Done], object],
    report: Report,
    done: Callable[[str], object] = lambda _: None,
) -> None:
    """Begin several operations and report once all have ended; `done` gets the name of each that succeeded."""
    waiting, so_far = set(names), Result()

    def end(name: str, result: Result) -> None:
        nonlocal so_far
        waiting.discard(name)
        so_far += result
        if not waiting:
            report(so_far)

    def on_end(name: str, outcome: OperationOutcome) -> None:
        if outcome.is_ok:
            done(name)
        end(name, problem_of(name, outcome))

    if not names:
        report(so_far)
    for name in names:
        try:
            begin(name, partial(on_end, name))
        except DroError as e:
            end(name, Result((f"portal {name}: {e}",)))


class Step(Protocol):
    """One step; `undo` is called once at most, after `do` has reported, and undoes what `do` did."""

    def do(self, report: Report) -> None: ...

    def undo(self, report: Report) -> None: ...


@dataclass(slots=True)
class _Switch(Generic[T]):
    """Something that is set to another value, and back: also where it failed: an answer may have come too late."""

    give: Callable[[T, Report], object]
    old: T
    new: T

    def do(self, report: Report) -> None:
        self.give(self.new, report)

    def undo(self, report: Report) -> None:
        self.give(self.old, report)


@dataclass(slots=True)
class _Remove:
    """Portals that go. When they come back, those that an operator had stopped are stopped again."""

    portals: Operations
    names: Sequence[str]
    gone: list[str] = field(default_factory=list)
    resting: set[str] = field(default_factory=set)

    def do(self, report: Report) -> None:
        self.resting = {name for name in self.names if self.portals.is_resting(name)}
        _gather(self.names, self.portals.remove, report, self.gone.append)

    def undo(self, report: Report) -> None:
        back: list[str] = []

        def rest(so_far: Result) -> None:
            names = [name for name in back if name in self.resting]
            _gather(names, self.portals.pause, lambda result: report(so_far + result))

        _gather(self.gone, self.portals.add, rest, back.append)


@dataclass(slots=True)
class _Add:
    """Portals that come."""

    portals: Operations
    names: Sequence[str]
    come: list[str] = field(default_factory=list)

    def do(self, report: Report) -> None:
        _gather(self.names, self.portals.add, report, self.come.append)

    def undo(self, report: Report) -> None:
        _gather(self.come, self.portals.remove, report)


@dataclass(slots=True)
class _Restart:
    """Portals that start anew. Those that change places (a domain, a port) are all stopped before the first starts."""

    portals: Operations
    names: Sequence[str]
    swap: frozenset[str]
    touched: list[str] = field(default_factory=list)

    def do(self, report: Report) -> None:
        self.touched = [name for name in self.names if not self.portals.is_resting(name)]
        resting = [name for name in self.names if name not in self.touched]
        notes = Result(
            notes=tuple(f"portal {name} is stopped by order: it is new when it is resumed" for name in resting)
        )
        self._run(lambda result: report(notes + result), is_undo=False)

    def undo(self, report: Report) -> None:
        self._run(report, is_undo=True)

    def _run(self, report: Report, *, is_undo: bool) -> None:
        plain = [name for name in self.touched if name not in self.swap]

        def then(first: Result) -> None:
            self._restart_swapped(first, report, is_undo=is_undo)

        _gather(plain, partial(self.portals.restart, clean=True), then)

    def _restart_swapped(self, so_far: Result, report: Report, *, is_undo: bool) -> None:
        """Restart what changes places; on the way back it goes on after a failure: what can run shall run."""
        names = [name for name in self.touched if name in self.swap]
        if not names or not (so_far.is_ok or is_undo):
            report(so_far)
            return
        running = [name for name in names if not self.portals.is_resting(name)]

        def stopped(result: Result) -> None:
            if not (result.is_ok or is_undo):
                report(so_far + result)
                return
            resting = [name for name in names if self.portals.is_resting(name)]
            _gather(resting, self.portals.resume, lambda last: report(so_far + result + last))

        _gather(running, self.portals.pause, stopped)


def swapping_portals(old: DroConfig, new: DroConfig, names: Sequence[str]) -> frozenset[str]:
    """List those of the portals to restart of which one wants what another one has."""
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
        self,
        parent: Parent[DroConfig],
        plan: ReloadPlan,
        old: DroConfig,
        new: DroConfig,
        logs: tuple[Settings, Settings],
    ) -> None:
        """`old` is what runs, `new` what shall; `logs` are the settings of the log before and after."""
        self._configuration, portals = parent.configuration, parent.operations
        self._old = old
        restarts = plan.portals(ActionKind.RESTART)
        added = plan.portals(ActionKind.ADD)
        workers = (name for name in (ROUTE_MANAGER_NAME, STATISTICS_NAME) if plan.has_live(name))
        live = {*plan.portals(ActionKind.LIVE), *workers}

        def give(config: DroConfig, report: Report) -> None:
            def ended(problems: Mapping[str, str]) -> None:
                report(Result(tuple(f"{name}: {problem}" for name, problem in problems.items())))

            if live:
                self._configuration.reconfigure(config, ended, only=frozenset(live))
            else:
                self._configuration.set_config(config)
                report(Result())

        def set_log(settings: Settings, report: Report) -> None:
            parent.set_log(settings)
            report(Result())

        steps: list[Step] = [_Switch(give, old, new)]
        if plan.has_live(LOG):
            steps.append(_Switch(set_log, *logs))
        steps += [
            _Remove(portals, plan.portals(ActionKind.REMOVE)),
            _Add(portals, [name for name in added if name not in plan.late]),
            _Restart(portals, restarts, swapping_portals(old, new, restarts)),
            _Add(portals, [name for name in added if name in plan.late]),
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
            self._configuration.set_config(self._old)
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
