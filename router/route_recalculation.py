"""Route recalculation: which portals work, when routes are recalculated, and the resulting table.

State: the working portals of this DRO as they reported, the other DROs as they describe themselves, and the table of
the last calculation. A change starts the backoff; the calculation happens at the first check once nothing has changed
for `backoff_ns`, and at the latest when the first of the changes is as old as the warning interval, for what changes
without an end must not keep all else waiting. A large one is done in pieces, one in each call of `on_timer`, so that
route information is passed on meanwhile. A portal that returns unchanged (its process was restarted) changes nothing:
it gets the current table. It has `RESTART_HOLD_NS` for that, however short the backoff is. A portal whose process works
but which has not reported yet is waited for, for `REPORT_HOLD_NS` at most: after a restart of the route manager the
routes that the portals have remain until then. One that died at the same time is waited for, for `KEPT_HOLD_NS`.

With `<fast-recalculation>` the first change is calculated after `first_ns`, without waiting for a check. The wait
doubles with each calculation until there has been none for `backoff_ns`, which also is the longest: a link that comes
and goes costs little, and a change is calculated in time however often others follow. After a restart of the route
manager the first one waits for a propagation interval, so that all others have told of themselves.

The topology signature is made anew with each calculation, and also when a change is undone, as versions have grown.

Source: DRO guide, `<route-info check-interval>`, `<route-recalculation>`.
Guess: a change that is undone within the backoff cancels the recalculation, as does a new version of a DRO with the
same neighbours; a forced calculation waits for the backoff as others do; a DRO that times out does not lengthen a wait
that its neighbours have begun; the holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.bus.messages import Route, RouteTable
from dro.clock import ms, s
from router.hotlinks import SharedIndex, shared_indexes
from router.own_portals import DomainTaken, LinkRefused, OwnPortals, Portal
from router.route_table import TableCalculation
from router.topology import VERSION_MASK, DroRecord, Hotlink, Neighbour, Topology, topology_signature

RESTART_HOLD_NS: Final = s(1)
REPORT_HOLD_NS: Final = s(10)
KEPT_HOLD_NS: Final = s(3)
"""Is the wait for portals of the kept table, which may be new as well: the routes that they have hold until then."""
LEAST_WAIT_NS: Final = ms(10)
"""What a fast recalculation doubles at least."""
PIECE_EDGES: Final = 1000
"""Of the graph are looked at in a piece of a calculation: some 5 ms."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals in ns: between checks, of quiet before a recalculation, of waiting that deserves a warning."""

    check_ns: int
    backoff_ns: int
    warning_ns: int
    first_ns: int | None = None
    """Of `<fast-recalculation>`: the wait after the first change."""
    propagation_ns: int = s(1)
    """Within which all others tell of themselves."""


@dataclass(frozen=True, slots=True)
class SendTable:
    """Give `table` to that portal, or, when it is None and the table was calculated just now, to all that run.

    One that traffic passes no more has to learn that as well."""

    table: RouteTable
    worker: int | None = None

    @property
    def is_new(self) -> bool:
        return self.worker is None

    def parts(self, running: Iterable[int]) -> Iterator[tuple[int, RouteTable]]:
        """Yield what each worker needs: the routes that enter or leave the DRO at it."""
        own: dict[int, list[Route]] = {worker: [] for worker in (running if self.worker is None else (self.worker,))}
        for route in self.table.routes:
            for worker in (route.ingress, route.egress):
                if worker in own:
                    own[worker].append(route)
        for worker, routes in own.items():
            sources = set[int]().union(*{id(route.source_domains): route.source_domains for route in routes}.values())
            of_routes = tuple(origin for origin in self.table.origins if origin.domain_id in sources)
            yield worker, RouteTable(self.table.version, tuple(routes), of_routes)


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table that outlives the process of the route manager; `nodes`: domain or DRO that each worker led to."""

    nodes: dict[int, int]
    table: RouteTable


class TopologyChange(Enum):
    """A change of a portal of this DRO, of another DRO, or an operator's wish."""

    LINK_UP = "link up"
    LINK_DOWN = "link down"
    NODE_UPDATED = "node updated"
    DRO_DISCOVERED = "new DRO discovered"
    DRO_TIMED_OUT = "DRO timed out"
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """For the log: what happened, and the version that the next calculation will have.

    `node_id`: the domain or DRO at the other end of a link, or the DRO that changed; 0 for a forced calculation.
    """

    what: TopologyChange
    node_id: int
    version: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class StillChanging:
    """For the log: the topology has not been quiet for long enough since `waiting_ns`."""

    waiting_ns: int


@dataclass(frozen=True, slots=True)
class IndexShared:
    """For the log: DROs that need a `<hotlink-index>` each use the same one."""

    shared: SharedIndex


@dataclass(frozen=True, slots=True)
class ChainsLeftOut:
    """For the log: pairs of domains (from, to) that are not joined, as that would take two hotlink hops."""

    pairs: tuple[tuple[int, int], ...]


Effect = SendTable | TopologyChanged | StillChanging | DomainTaken | LinkRefused | IndexShared | ChainsLeftOut
_Content = tuple[tuple[Neighbour, ...], tuple[Hotlink, ...], int]


@dataclass(slots=True)
class _PendingChanges:
    """Changes that are not calculated yet."""

    first_ns: int
    last_ns: int
    is_warned: bool = False
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class _View:
    """What decides about routes."""

    portals: dict[int, Portal]
    others: dict[int, _Content]
    sharing: int = 0


class RouteCore:
    """Portals and other DROs in, route tables out."""

    def __init__(
        self, node_id: int, timing: Timing, *, incarnation: int, now_ns: int, name: str = "", version: int = 0,
        sharing: int = 0, kept: KeptTable | None = None,
    ) -> None:  # fmt: skip
        """`incarnation` of the route manager keeps versions of tables growing over its restarts, `version` that of this
        DRO among others, which counts its link state changes; `kept` is from the incarnation before."""
        self.node_id = node_id
        self._name = name
        self._sharing = sharing
        self._own_version = version
        self._timing = timing
        self._began_ns = now_ns
        self._not_before_ns = now_ns + (timing.propagation_ns if incarnation > 1 else 0)
        self._version = incarnation << 32
        self.portals = OwnPortals(node_id)
        self._others: dict[int, DroRecord] = {}
        self._calculated = _View({}, {})  # of the current table, or of the one that is calculated
        self._calculation: TableCalculation | None = None
        self._before: TableCalculation | None = None  # the last one that was finished
        self._table: RouteTable | None = None
        self._kept = kept
        self.graph: Topology | None = None
        """That of the table, as this DRO sees it."""
        self.is_shared = False
        """The table is for equal-cost sharing."""
        self._signature: int | None = 0  # None: that of the records as they are
        self._new_signature = 0
        self._shared: list[SharedIndex] = []
        self._chains: set[tuple[int, int]] = set()
        self._pending: _PendingChanges | None = None  # None: nothing to calculate
        self._wait_ns = 0  # before the last fast calculation
        self._began_last_ns: int | None = None  # when that was
        self._held: dict[int, int] = {}  # portals that are waited for -> until when
        if kept is not None:
            self._held.update(dict.fromkeys(kept.nodes, now_ns + KEPT_HOLD_NS))
        self._effects: list[Effect] = []

    @property
    def table(self) -> RouteTable | None:
        """The routes that hold, or None before the first calculation."""
        return self._table

    @property
    def kept(self) -> KeptTable | None:
        """The routes that hold, at first those of the incarnation before, and the portals that they are for."""
        if self._table is None:
            return self._kept
        return KeptTable({worker: portal.node_id for worker, portal in self._calculated.portals.items()}, self._table)

    @property
    def signature(self) -> int:
        """Return the signature of the topology that the table is for; 0 before the first calculation."""
        if self._signature is None:
            self._signature = topology_signature(self.records())
        return self._signature

    @property
    def is_settled(self) -> bool:
        """The table is that of the topology."""
        return self._table is not None and self._pending is None and self._calculation is None

    @property
    def is_put_off(self) -> bool:
        """Something has changed, and there may be more before it is calculated."""
        return self._pending is not None

    @property
    def is_calculating(self) -> bool:
        return self._calculation is not None

    @property
    def own_version(self) -> int:
        """Return the version of this DRO, not cut to 16 bits."""
        return self._own_version

    @property
    def held_until_ns(self) -> int:
        """Until when portals are waited for."""
        return max(self._held.values(), default=0)

    def raise_version(self, above: int) -> None:
        """Let the version of this DRO be newer than that one, of 16 bits, which somebody else has told of it."""
        self._own_version += ((above - self._own_version) & VERSION_MASK) + 1
        if self._pending is None and self._calculation is None:
            self._signature = None

    def own(self) -> DroRecord:
        """This DRO as it describes itself to others."""
        portals = self.portals
        return DroRecord(
            self.node_id, portals.neighbours(), portals.hotlinks(), self._own_version, self._name, self._sharing
        )  # fmt: skip

    def set_sharing(self, sharing: int, now_ns: int) -> None:
        """The method of equal-cost sharing that this DRO is ready for from now on; 0: none."""
        if sharing != self._sharing:
            self._sharing = sharing
            self._own_changed(TopologyChange.NODE_UPDATED, self.node_id, now_ns)

    def set_timing(self, timing: Timing) -> None:
        """Other intervals, also for a calculation that is due already. Checks stay multiples from the start."""
        self._timing = timing

    # portals

    def on_portal_expected(self, worker: int, now_ns: int) -> None:
        """The process of that portal works, so it will report."""
        if self.portals.get(worker) is None:
            self._held[worker] = now_ns + REPORT_HOLD_NS

    def on_portal_up(
        self,
        worker: int,
        domain_id: int,
        cost: int,
        now_ns: int,
        *,
        neighbour: int = 0,
        hotlink_index: int = 0,
        since_us: int = 0,
    ) -> None:
        """That portal works, in a domain or, if that is 0, over a link; also when it reports so again after a restart
        of either side, and when it has learnt who its neighbour is."""
        self._held.pop(worker, None)
        portal = Portal(domain_id, cost, neighbour, hotlink_index, since_us)
        before = self.portals.accepted
        self._effects += self.portals.set(worker, portal)
        self._compare(before, now_ns)
        self._send_again(worker)

    def _send_again(self, worker: int) -> None:
        """Send the table that holds, if it is for the portal as it reports itself now: else another one will follow."""
        holds, now = self.kept, self.portals.accepted.get(worker)
        if holds is not None and now is not None and holds.nodes.get(worker) == now.node_id:
            self._effects.append(SendTable(holds.table, worker))

    def on_portal_gone(self, worker: int, now_ns: int, *, restarts: bool = False) -> None:
        """That portal does not work any more; unknown ones are fine. `restarts`: its process ended, and may be back."""
        was_up = self.portals.get(worker) is not None
        was_expected = self._held.pop(worker, None) is not None
        if restarts and (was_up or was_expected):
            self._held[worker] = now_ns + RESTART_HOLD_NS
        if was_up:
            before = self.portals.accepted
            self._effects += self.portals.remove(worker)
            self._compare(before, now_ns)

    def raise_costs(self, now_ns: int) -> None:
        """This DRO ends soon: all its portals cost more."""
        before = self.portals.accepted
        self._effects += self.portals.raise_costs()
        self._compare(before, now_ns)

    def _compare(self, before: dict[int, Portal], now_ns: int) -> None:
        """Note each portal that traffic passes no more, newly or otherwise as a change."""
        after = self.portals.accepted
        for worker, old in before.items():
            new = after.get(worker)
            if new is None or new.node_id != old.node_id:
                self._own_changed(TopologyChange.LINK_DOWN, old.node_id, now_ns)
        for worker, new in after.items():
            known = before.get(worker)
            if known is None or known.node_id != new.node_id:
                self._own_changed(TopologyChange.LINK_UP, new.node_id, now_ns)
            elif known != new:
                self._own_changed(TopologyChange.NODE_UPDATED, self.node_id, now_ns)

    def _own_changed(self, what: TopologyChange, node_id: int, now_ns: int) -> None:
        self._own_version += 1
        self._changed(what, node_id, now_ns, self.name_of(node_id))

    def name_of(self, node_id: int) -> str:
        """Return the name of a DRO; empty for others."""
        if node_id == self.node_id:
            return self._name
        return self._others[node_id].name if node_id in self._others else ""

    # other DROs

    def on_dro(self, record: DroRecord, now_ns: int) -> None:
        """Take what another DRO says of itself: it is there, or its version has grown."""
        is_new = record.node_id not in self._others
        self._others[record.node_id] = record
        what = TopologyChange.DRO_DISCOVERED if is_new else TopologyChange.NODE_UPDATED
        self._changed(what, record.node_id, now_ns, record.name)

    def on_dro_gone(self, node_id: int, now_ns: int) -> None:
        """Forget a DRO that has timed out."""
        record = self._others.pop(node_id)
        self._changed(TopologyChange.DRO_TIMED_OUT, node_id, now_ns, record.name)

    def force(self, now_ns: int) -> None:
        """An operator wants a calculation."""
        self._changed(TopologyChange.FORCED, 0, now_ns)

    # when

    def _view(self) -> _View:
        others = {n: (r.neighbours, r.hotlinks, r.sharing) for n, r in self._others.items()}
        return _View(self.portals.accepted, others, self._sharing)

    def records(self) -> list[DroRecord]:
        """List the records of all DROs, this one first."""
        return [self.own(), *self._others.values()]

    def _changed(self, what: TopologyChange, node_id: int, now_ns: int, name: str = "") -> None:
        is_forced = what is TopologyChange.FORCED or (self._pending is not None and self._pending.is_forced)
        if self._table is not None and not is_forced and self._view() == self._calculated:
            self._pending = None
            if self._calculation is None:
                self._signature = None
            version = self._version if self._calculation is not None else self._table.version
            self._effects.append(TopologyChanged(what, node_id, version, name))
            return
        if self._pending is None:
            self._pending = _PendingChanges(now_ns, now_ns)
        elif what is not TopologyChange.DRO_TIMED_OUT:  # its neighbours have told that it is gone, or will not any more
            self._pending.last_ns = now_ns
        self._pending.is_forced = is_forced
        self._effects.append(TopologyChanged(what, node_id, self._version + 1, name))

    def next_check(self, when_ns: int) -> int:
        """The first check then or later."""
        step = max(self._timing.check_ns, 1)
        return self._began_ns + -(-(when_ns - self._began_ns) // step) * step

    def _calculation_ns(self, pending: _PendingChanges) -> int:
        held_ns = max(self._held.values(), default=0)
        if self._timing.first_ns is not None:
            wait_ns = self._fast_wait(self._timing.first_ns, pending)
            return max(pending.first_ns + wait_ns, held_ns, self._not_before_ns)
        longest_ns = max(self._timing.warning_ns, self._timing.backoff_ns)
        quiet_ns = min(pending.last_ns + self._timing.backoff_ns, pending.first_ns + longest_ns)
        return self.next_check(max(quiet_ns, held_ns))

    def _fast_wait(self, first_ns: int, pending: _PendingChanges) -> int:
        """Return the wait from the first change to its calculation."""
        last_ns = self._began_last_ns
        if last_ns is None or pending.first_ns - last_ns >= self._timing.backoff_ns:
            return first_ns
        return max(first_ns, min(self._timing.backoff_ns, 2 * max(self._wait_ns, LEAST_WAIT_NS)))

    def _warning_ns(self, pending: _PendingChanges) -> int:
        return self.next_check(pending.first_ns + self._timing.warning_ns)

    def next_deadline(self) -> int | None:
        """The next check that has something to do, or None; 0 in the middle of a calculation."""
        if self._calculation is not None:
            return 0
        pending = self._pending
        if pending is None:
            return None
        due_ns = self._calculation_ns(pending)
        return due_ns if pending.is_warned else min(due_ns, self._warning_ns(pending))

    def on_timer(self, now_ns: int) -> None:
        pending = self._pending
        if self._calculation is None and pending is not None:
            if not pending.is_warned and now_ns >= self._warning_ns(pending):
                pending.is_warned = True
                self._effects.append(StillChanging(now_ns - pending.first_ns))
            if now_ns >= self._calculation_ns(pending):
                self._begin(pending, now_ns)
        if self._calculation is not None and self._calculation.run(PIECE_EDGES):
            self._finish(self._calculation)

    # what

    def _begin(self, pending: _PendingChanges, now_ns: int) -> None:
        if self._timing.first_ns is not None:
            self._wait_ns = self._fast_wait(self._timing.first_ns, pending)
            self._began_last_ns = now_ns
        self._pending = None
        self._version += 1
        self._calculated = self._view()
        records = self.records()
        self._new_signature = topology_signature(records)
        self._calculation = TableCalculation(self.node_id, records, self.portals.workers(), self._before)
        shared = shared_indexes(records)
        self._effects += [IndexShared(one) for one in shared if one not in self._shared]
        self._shared = shared

    def _finish(self, calculation: TableCalculation) -> None:
        self._calculation, self._before = None, calculation
        self.graph, self.is_shared = calculation.whole, calculation.is_shared
        self._signature = None if self._pending is None else self._new_signature
        chains = calculation.chains
        if chains - self._chains:
            self._effects.append(ChainsLeftOut(tuple(sorted(chains))))
        self._chains = chains
        self._table = RouteTable(self._version, calculation.routes, calculation.origins)
        self._effects.append(SendTable(self._table))

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
