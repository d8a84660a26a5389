"""The route table as a portal uses it, and for a while what it was before, so that a reroute is make before break.

DROs recalculate one after the other, so a path is taken before its last DRO knows of it. What only a route change takes
off is therefore kept for a while: a proxy receiver goes on to ask for its sources, and the feeder of a proxy source
goes on to feed it, alone or beside the new one. The duplicate window removes what comes twice.

A pair of domains has several paths here when equally good ones are shared, each for some of the trees (`dro.shares`).
Interest goes by all of them; what concerns a source asks for the tree of its OTID. Where only some trees enter, the
portal joins the sources of these alone. Guess: of these for any interested domain, so that interest changes nothing.

Guess: `HELD_NS` covers the time between the recalculations of two DROs at default timers (forwarding notes, section
17: up to 1.75 s). A new path has to be told topic by topic, so it is longer with very many: `HELD_EACH_NS` for each,
in steps of `MANY` topics. A proxy receiver stays a little longer, so that its source ends at the siblings after they
need it.

A table names pairs of domains by the million when the domains are a thousand, and source domains that have a path in
common have nearly all of them in common. So it is kept and compared by whole sets of source domains, in slices; a table
counts when all of it has been compared, and one that a newer one has overtaken never does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dro.bus.messages import Route
from dro.clock import ms, s
from dro.shares import ALL_SHARES, FIRST_SHARE

HELD_NS: Final = s(2)
HELD_EACH_NS: Final = ms(2)
MANY: Final = 1000
LONGER_NS: Final = ms(500)
_STEP: Final = 16
"""Routes or interested domains that are looked at in a step; as much as looking at a set of `_STEP * _DOMAINS`."""
_DOMAINS: Final = 32

Path = tuple[int, int]
Sources = frozenset[int]
PathPart = tuple[int, int, Sources]
"""Ingress worker, trees, source domains: the part of their paths that enters by one portal."""
PathParts = frozenset[PathPart]
"""Lists how fragments of one interested domain come; no two of a source domain hold for the same tree."""
Changes = tuple[set[Path], set[int]]
"""(egress worker, interested domain) of paths that enter here, and domains whose paths to here are not the same."""
Changing: TypeAlias = Generator[None, None, Changes]
_NONE: Final[PathParts] = frozenset()


@dataclass(frozen=True, slots=True)
class _Table:
    """Holds what one route table says of a portal."""

    leaving: dict[int, PathParts] = field(default_factory=dict)
    """By interested domain."""
    arrivals: dict[int, set[int]] = field(default_factory=dict)
    """Source domains of all paths that leave here, by ingress worker."""
    entering: set[Path] = field(default_factory=set)
    """(egress worker, interested domain) of paths that enter here."""
    carried: dict[int, int] = field(default_factory=dict)
    """Trees whose paths enter here, by source domain."""


@dataclass(frozen=True, slots=True)
class _Before:
    """Keeps what a table had and the next has not: `leaving` with its `origins`, `inbound` and `carried` that enter."""

    until_ns: int
    leaving: dict[int, PathParts]
    origins: set[int]
    inbound: Set[Path]
    carried: dict[int, int]


def entering_routes(worker: int, routes: Iterable[Route]) -> tuple[Route, ...]:
    """List those by which the portal takes in what is not data of a source: interest, unicast, immediate messages."""
    return tuple([route for route in routes if route.ingress == worker and route.shares & FIRST_SHARE])


def held_ns(topics: int) -> int:
    """Return for how long the table before is kept when so many topics may move."""
    return HELD_NS + topics // MANY * MANY * HELD_EACH_NS


class Routes:
    """See the module text."""

    def __init__(self, me: int) -> None:
        self.version = 0
        """Names the last table that was taken, which may not be compared as a whole yet."""
        self._least_version = 1  # of the next table
        self._me = me
        self.table = _Table()
        """The one that holds."""
        self._comes: object = None  # the table that is being compared
        self._before: list[_Before] = []  # oldest first
        self.inbound: set[Path] = set()
        """(egress worker, interested domain) of paths that enter here, those that are kept included."""
        self._carried_all: dict[int, int] = {}  # as `_Table.carried`, those that are kept included
        self.is_assumed = False
        """Until a table has a path that leaves here, paths from everywhere do: there was a link a moment ago."""
        self.is_divided = False
        """Of some domains, sources of some trees only enter here."""
        self._was_reviewed = True

    def change(self, version: int, routes: Iterable[Route], now_ns: int, topics: int = 0) -> Changing:
        """Take over a table, step by step. `topics`: how many may move."""
        if version < self._least_version:
            return set(), set()
        self.version, self._least_version = version, version + 1
        self._comes = token = object()
        table = _Table()
        off: dict[int, PathParts] = {}
        lost, changed = set[int](), set[int]()  # source domains, of what is taken off and of all that is not the same
        for _ in self._steps(tuple(routes), table, off, lost, changed):
            yield
            if self._comes is not token:
                return set(), set()
        before, self.table, self._comes = self.table, table, None
        carried = {origin: shares & ~table.carried.get(origin, 0) for origin, shares in before.carried.items()}
        entering = before.entering - table.entering
        if off or entering or any(carried.values()):
            self._before.append(_Before(now_ns + held_ns(topics), off, lost, entering, carried))
        was_divided, self.is_divided = self.is_divided, any(s != ALL_SHARES for s in table.carried.values())
        self._was_reviewed = self._was_reviewed and was_divided == self.is_divided
        return self._enter(), changed

    def _steps(
        self, routes: tuple[Route, ...], table: _Table, off: dict[int, PathParts], lost: set[int], changed: set[int]
    ) -> Iterator[None]:
        yield from _read(self._me, routes, table)
        known: dict[tuple[PathParts, PathParts], PathParts] = {}
        work = 0
        for wanted in self.table.leaving.keys() | table.leaving.keys():
            had, has = self.table.leaving.get(wanted, _NONE), table.leaving.get(wanted, _NONE)
            if (gone := known.get((had, has))) is None:
                gone = known[had, has] = _taken_off(had, has)
                lost.update(*_origins(gone))
                changed.update(*_origins(gone), *_origins(_taken_off(has, had)))
                work += sum(len(sources) for sources in _origins(had | has)) // _DOMAINS
            if gone:
                off[wanted] = gone
            work += 1
            if work >= _STEP:
                work = 0
                yield

    def _enter(self) -> set[Path]:
        """Set `inbound` anew, and return what differs in it."""
        carried = dict(self.table.carried)
        for before in self._before:
            for origin, shares in before.carried.items():
                carried[origin] = carried.get(origin, 0) | shares
        self._was_reviewed = self._was_reviewed and (carried == self._carried_all or not self.is_divided)
        self._carried_all = carried
        inbound = self.table.entering.union(*(before.inbound for before in self._before))
        moved, self.inbound = inbound ^ self.inbound, inbound
        return moved

    def feeders(self, origin: int, interested: Iterable[int], share: int) -> set[int]:
        """Workers through which a source of that domain and tree comes, on its paths to the domains that leave here."""
        return _ingress(self.table.leaving, origin, interested, share)

    def held(self, origin: int, interested: Iterable[int], share: int) -> set[int]:
        """Return the feeders by the tables before that are still held."""
        return {w for before in self._before for w in _ingress(before.leaving, origin, interested, share)}

    def leaves(self, origin: int, ingress: int) -> bool:
        """Whether a path from that domain, for whomever, comes by that worker and leaves here."""
        return origin in self.table.arrivals.get(ingress, ()) or (self.is_assumed and not self.table.arrivals)

    def carries(self, origin: int, share: int) -> bool:
        """Whether sources of that domain and tree enter here, for whomever, or did so a moment ago."""
        return bool(self._carried_all.get(origin, 0) & share)

    def take_review(self) -> bool:
        """Whether `carries` may answer otherwise than when this was called last, and is to be asked."""
        was_reviewed, self._was_reviewed = self._was_reviewed, True
        return not was_reviewed

    def next_deadline(self) -> int | None:
        return min((before.until_ns + LONGER_NS * (not before.leaving) for before in self._before), default=None)

    def forget(self, now_ns: int) -> Changes:
        """Keep no longer what has been kept for long enough."""
        if not self._before:
            return set(), set()
        origins: set[int] = set()
        kept: list[_Before] = []
        for before in self._before:
            if before.until_ns > now_ns:
                kept.append(before)
                continue
            origins |= before.origins
            if before.until_ns + LONGER_NS > now_ns:
                kept.append(_Before(before.until_ns, {}, set(), before.inbound, before.carried))
        self._before = kept
        return self._enter(), origins

    def drop(self) -> Changes:
        """Nothing holds any more, nothing is kept either, until a table comes that is newer, or the last one again."""
        self._least_version = self.version
        self.is_assumed = False
        origins = set[int]().union(*self.table.arrivals.values(), *(before.origins for before in self._before))
        self.table, self._before, self._comes = _Table(), [], None
        self._was_reviewed = self._was_reviewed and not self.is_divided
        self.is_divided = False
        return self._enter(), origins


def _read(me: int, routes: tuple[Route, ...], table: _Table) -> Iterator[None]:
    """Fill the table. Tuples of source domains that are one object become one set."""
    sets: dict[int, Sources] = {}
    met: set[tuple[bool, int, int]] = set()
    by_wanted: defaultdict[int, set[PathPart]] = defaultdict(set)
    entering: defaultdict[int, set[int]] = defaultdict(set)  # source domains, by trees
    work = 0
    for route in routes:
        leaves = route.egress == me
        if not route.source_domains or not (leaves or route.ingress == me):
            continue
        place = id(route.source_domains)
        if (sources := sets.get(place)) is None:
            sources = sets[place] = frozenset(route.source_domains)
            work += len(sources) // _DOMAINS
        if leaves:
            by_wanted[route.interested_domain].add((route.ingress, route.shares, sources))
            if (leaves, route.ingress, place) not in met:
                table.arrivals.setdefault(route.ingress, set()).update(sources)
                met.add((leaves, route.ingress, place))
        if route.ingress == me:
            table.entering.add((route.egress, route.interested_domain))
            if (False, route.shares, place) not in met:
                entering[route.shares].update(sources)
                met.add((False, route.shares, place))
        work += 1
        if work >= _STEP:
            work = 0
            yield
    same: dict[PathParts, PathParts] = {}
    for wanted, found in by_wanted.items():
        parts = frozenset(found)
        table.leaving[wanted] = same.setdefault(parts, parts)
        work += 1
        if work >= _STEP:
            work = 0
            yield
    for shares, origins in entering.items():
        for origin in origins:
            table.carried[origin] = table.carried.get(origin, 0) | shares


def _taken_off(before: PathParts, now: PathParts) -> PathParts:
    """Find the trees of source domains that came by an ingress worker and do so no more."""
    found: set[PathPart] = set()
    for ingress, shares, sources in before - now:
        parts = [(shares, sources)]
        for other, kept, those in now:
            if other == ingress:
                cut = [(trees, part & those, part - those) for trees, part in parts]
                parts = [one for t, both, rest in cut for one in ((t & ~kept, both), (t, rest)) if all(one)]
        found.update((ingress, *part) for part in parts)
    return frozenset(found)


def _origins(parts: PathParts) -> Iterator[Sources]:
    return (sources for _, _, sources in parts)


def _ingress(leaving: Mapping[int, PathParts], origin: int, interested: Iterable[int], share: int) -> set[int]:
    groups = {leaving.get(wanted, _NONE) for wanted in interested}
    return {ingress for parts in groups for ingress, shares, sources in parts if shares & share and origin in sources}
