"""Route recalculation: which portals work, when routes are recalculated, and the resulting table.

State: the working endpoint portals of this DRO as they reported, and the table of the last calculation. A change starts
the backoff; the calculation happens at the first check once nothing has changed for `backoff_ns`. A portal that returns
unchanged (its process was restarted) changes nothing: it gets the current table. It has `RESTART_HOLD_NS` for that,
however short the backoff is. A portal whose process works but which has not reported yet is waited for, for
`REPORT_HOLD_NS` at most: after a restart of the route manager the routes that the portals have remain until then.

Source: DRO guide, `<route-info check-interval>`, `<route-recalculation>`.
Guess: a change that is undone within the backoff cancels the recalculation; the holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.bus.messages import Route, RouteTable
from dro.clock import s
from router.paths import passages
from router.topology import DroRecord, Neighbour, build

RESTART_HOLD_NS: Final = s(1)
REPORT_HOLD_NS: Final = s(10)


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals in ns: between checks, of quiet before a recalculation, of waiting that deserves a warning."""

    check_ns: int
    backoff_ns: int
    warning_ns: int


@dataclass(frozen=True, slots=True)
class SendTable:
    """Give `table` to these workers. `is_new`: it was calculated just now."""

    workers: tuple[int, ...]
    table: RouteTable
    is_new: bool


class Change(Enum):
    """Of a portal of this DRO."""

    LINK_UP = "link up"
    LINK_DOWN = "link down"
    NODE_UPDATED = "node updated"


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """For the log: what happened, and the version that the next calculation will have."""

    what: Change
    domain_id: int
    version: int


@dataclass(frozen=True, slots=True)
class StillChanging:
    """For the log: the topology has not been quiet for long enough since `waiting_ns`."""

    waiting_ns: int


@dataclass(frozen=True, slots=True)
class DomainTaken:
    """For the log: a second portal reports that it is in a domain; it is ignored."""

    worker: int
    domain_id: int


Effect = SendTable | TopologyChanged | StillChanging | DomainTaken


@dataclass(frozen=True, slots=True)
class _Portal:
    domain_id: int
    cost: int


@dataclass(slots=True)
class _Unrest:
    """Changes that are not calculated yet."""

    first_ns: int
    last_ns: int
    is_warned: bool = False


class RouteCore:
    """Portals in, route tables out."""

    def __init__(self, node_id: int, timing: Timing, *, incarnation: int, now_ns: int) -> None:
        """`incarnation` of the route manager keeps versions growing over its restarts."""
        self.node_id = node_id
        self._timing = timing
        self._began_ns = now_ns
        self._version = incarnation << 32
        self._portals: dict[int, _Portal] = {}
        self._calculated: dict[int, _Portal] = {}  # the portals of the current table
        self._table: RouteTable | None = None
        self._unrest: _Unrest | None = None  # None: nothing to calculate
        self._held: dict[int, int] = {}  # portals that are waited for -> until when
        self._effects: list[Effect] = []

    @property
    def table(self) -> RouteTable | None:
        """The routes that hold, or None before the first calculation."""
        return self._table

    def set_timing(self, timing: Timing) -> None:
        """Other intervals, also for a calculation that is due already. Checks stay multiples from the start."""
        self._timing = timing

    def on_portal_expected(self, worker: int, now_ns: int) -> None:
        """The process of that portal works, so it will report."""
        if worker not in self._portals:
            self._held[worker] = now_ns + REPORT_HOLD_NS

    def on_portal_up(self, worker: int, domain_id: int, cost: int, now_ns: int) -> None:
        """That endpoint portal works; also when it reports so again after a restart of either side."""
        portal = _Portal(domain_id, cost)
        self._held.pop(worker, None)
        if any(p.domain_id == domain_id and w != worker for w, p in self._portals.items()):
            self._effects.append(DomainTaken(worker, domain_id))
            return
        known = self._portals.get(worker)
        if known != portal:
            self._portals[worker] = portal
            self._changed(Change.LINK_UP if known is None else Change.NODE_UPDATED, domain_id, now_ns)
        if self._table is not None:
            self._effects.append(SendTable((worker,), self._table, is_new=False))

    def on_portal_gone(self, worker: int, now_ns: int, *, restarts: bool = False) -> None:
        """That portal does not work any more; unknown ones are fine. `restarts`: its process ended, and may be back."""
        portal = self._portals.pop(worker, None)
        was_expected = self._held.pop(worker, None) is not None
        if restarts and (portal is not None or was_expected):
            self._held[worker] = now_ns + RESTART_HOLD_NS
        if portal is not None:
            self._changed(Change.LINK_DOWN, portal.domain_id, now_ns)

    def _changed(self, what: Change, domain_id: int, now_ns: int) -> None:
        if self._table is not None and self._portals == self._calculated:
            self._unrest = None
            self._effects.append(TopologyChanged(what, domain_id, self._table.version))
            return
        if self._unrest is None:
            self._unrest = _Unrest(now_ns, now_ns)
        self._unrest.last_ns = now_ns
        self._effects.append(TopologyChanged(what, domain_id, self._version + 1))

    def _check_at_or_after(self, when_ns: int) -> int:
        step = max(self._timing.check_ns, 1)
        return self._began_ns + -(-(when_ns - self._began_ns) // step) * step

    def _calculation_ns(self, unrest: _Unrest) -> int:
        return self._check_at_or_after(max([unrest.last_ns + self._timing.backoff_ns, *self._held.values()]))

    def _warning_ns(self, unrest: _Unrest) -> int:
        return self._check_at_or_after(unrest.first_ns + self._timing.warning_ns)

    def next_deadline(self) -> int | None:
        """The next check that has something to do, or None."""
        unrest = self._unrest
        if unrest is None:
            return None
        due_ns = self._calculation_ns(unrest)
        return due_ns if unrest.is_warned else min(due_ns, self._warning_ns(unrest))

    def on_timer(self, now_ns: int) -> None:
        unrest = self._unrest
        if unrest is None:
            return
        if now_ns >= self._calculation_ns(unrest):
            self._calculate()
        elif not unrest.is_warned and now_ns >= self._warning_ns(unrest):
            unrest.is_warned = True
            self._effects.append(StillChanging(now_ns - unrest.first_ns))

    def _calculate(self) -> None:
        self._unrest = None
        self._calculated = dict(self._portals)
        self._version += 1
        self._table = RouteTable(self._version, self._routes())
        self._effects.append(SendTable(tuple(sorted(self._portals)), self._table, is_new=True))

    def _routes(self) -> tuple[Route, ...]:
        neighbours = tuple(Neighbour(p.domain_id, p.cost, p.cost) for p in self._portals.values())
        worker_of = {p.domain_id: worker for worker, p in self._portals.items()}
        graph = build([DroRecord(self.node_id, neighbours)])
        return tuple(
            Route((p.source_domain,), p.interested_domain, worker_of[p.previous], worker_of[p.next])
            for p in passages(graph, self.node_id)
        )

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
