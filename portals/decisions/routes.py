"""The route table as a portal uses it, and for a while what it was before, so that a reroute is make before break.

DROs recalculate one after the other, so a path is taken before its last DRO knows of it. What only a route change takes
off is therefore kept for a while: a proxy receiver goes on to ask for its sources, and the feeder of a proxy source
goes on to feed it, alone or beside the new one. The duplicate window removes what comes twice.

A pair of domains has several ways here when equally good ones are shared, each for some of the trees (`dro.shares`).
Interest goes by all of them; what concerns a source asks for the tree of its OTID. Where only some trees enter, the
portal joins the sources of these alone. Guess: of these for any interested domain, so that interest changes nothing.

Guess: `HELD_NS` covers the time between the recalculations of two DROs at default timers (forwarding notes, section
17: up to 1.75 s). A new path has to be told topic by topic, so it is longer with very many: `HELD_EACH_NS` for each,
in steps of `MANY` topics. A proxy receiver stays a little longer, so that its source ends at the siblings after they
need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from dro.bus.messages import Route
from dro.clock import ms, s
from dro.shares import ALL_SHARES, FIRST_SHARE

HELD_NS: Final = s(2)
HELD_EACH_NS: Final = ms(2)
MANY: Final = 1000
LONGER_NS: Final = ms(500)
_NEVER_NS: Final = 1 << 63

Path = tuple[int, int]
Entry = tuple[int, int, int, int, int]
"""Source domain, interested domain, ingress worker, egress worker, trees."""
Way = tuple[int, int, int]
"""Ingress worker, egress worker, trees."""
Ways = dict[Path, tuple[Way, ...]]
"""By (source domain, interested domain); no two of a pair hold for the same tree."""
Changes = tuple[set[Path], set[int]]
"""(egress worker, interested domain) of paths that enter here, and domains whose paths to here are not the same."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What a table had and the next one had not; `ways` that leave here, `inbound` and `carried` that enter."""

    until_ns: int
    ways: Ways
    inbound: Set[Path]
    carried: dict[int, int]


def entries_of(routes: Iterable[Route]) -> list[Entry]:
    return [(s, r.interested_domain, r.ingress, r.egress, r.shares) for r in routes for s in r.source_domains]


def reachable_from(worker: int, routes: Iterable[Route]) -> set[int]:
    """The domains for which that portal takes in what is not the data of a source, as it tells those behind it."""
    return {r.interested_domain for r in routes if r.ingress == worker and r.shares & FIRST_SHARE}


def held_ns(topics: int) -> int:
    """For how long the table before is kept when so many topics may move."""
    return HELD_NS + topics // MANY * MANY * HELD_EACH_NS


class Routes:
    """See the module text."""

    def __init__(self, me: int) -> None:
        self.version = 0
        self._least_version = 1  # of the next table
        self._me = me
        self.ways: Ways = {}
        self._entering: set[Path] = set()  # as the table has it
        self._before: list[_Before] = []  # oldest first
        self.inbound: set[Path] = set()
        """(egress worker, interested domain) of paths that enter here, those that are kept included."""
        self.outbound: set[Path] = set()
        """(source domain, ingress worker) of paths that leave here."""
        self._carried: dict[int, int] = {}  # trees whose paths enter here, by source domain, as the table has it
        self._carried_all: dict[int, int] = {}  # likewise, those that are kept included
        self.is_divided = False
        """Of some domains, sources of some trees only enter here."""
        self._was_reviewed = True

    def change(self, version: int, entries: Iterable[Entry], now_ns: int, topics: int = 0) -> Changes:
        """`topics`: how many may move."""
        if version < self._least_version:
            return set(), set()
        self.version, self._least_version = version, version + 1
        me, before, entering = self._me, self.ways, self._entering
        self.ways = ways = _ways(entries)
        self._entering = {(way[1], wanted) for (_, wanted), found in ways.items() for way in found if way[0] == me}
        self.outbound = {(origin, way[0]) for (origin, _), found in ways.items() for way in found if way[1] == me}
        changed = ways.items() ^ before.items()
        old = {key: self._taken_off(before[key], ways.get(key, ())) for key, _ in changed if key in before}
        old = {key: found for key, found in old.items() if found}
        carried, self._carried = self._carried, _carried(me, ways)
        lost = {origin: shares & ~self._carried.get(origin, 0) for origin, shares in carried.items()}
        if old or entering - self._entering or any(lost.values()):
            self._before.append(_Before(now_ns + held_ns(topics), old, entering - self._entering, lost))
        was_divided, self.is_divided = self.is_divided, any(s != ALL_SHARES for s in self._carried.values())
        self._was_reviewed = self._was_reviewed and was_divided == self.is_divided
        origins = {origin for (origin, _), found in changed if any(way[1] == me for way in found)}
        return self._enter(), origins

    def _taken_off(self, before: tuple[Way, ...], now: tuple[Way, ...]) -> tuple[Way, ...]:
        """The ways that left here, for the trees that have other ones now."""
        kept = dict.fromkeys([way[:2] for way in before], 0) | {way[:2]: way[2] for way in now}
        left = [(a, b, shares & ~kept[a, b]) for a, b, shares in before if b == self._me]
        return tuple(way for way in left if way[2])

    def _enter(self) -> set[Path]:
        """What differs in `inbound` now."""
        carried = dict(self._carried)
        for before in self._before:
            for origin, shares in before.carried.items():
                carried[origin] = carried.get(origin, 0) | shares
        self._was_reviewed = self._was_reviewed and (carried == self._carried_all or not self.is_divided)
        self._carried_all = carried
        inbound = self._entering.union(*(before.inbound for before in self._before))
        moved, self.inbound = inbound ^ self.inbound, inbound
        return moved

    def feeders(self, origin: int, interested: Iterable[int], share: int) -> set[int]:
        """Workers through which a source of that domain and tree comes, on its paths to the domains that leave here."""
        ways, me = self.ways, self._me
        return {
            ingress
            for wanted in interested
            for ingress, egress, shares in ways.get((origin, wanted), ())
            if egress == me and shares & share
        }

    def held(self, origin: int, interested: Iterable[int], share: int) -> Iterator[int]:
        """Likewise, of the tables before."""
        for wanted in interested:
            for before in self._before:
                for ingress, _, shares in before.ways.get((origin, wanted), ()):
                    if shares & share:
                        yield ingress

    def carries(self, origin: int, share: int) -> bool:
        """Whether sources of that domain and tree enter here, for whomever, or did so a moment ago."""
        return bool(self._carried_all.get(origin, 0) & share)

    def take_review(self) -> bool:
        """Whether `carries` may answer otherwise than when this was called last, and is to be asked."""
        was_reviewed, self._was_reviewed = self._was_reviewed, True
        return not was_reviewed

    def next_deadline(self) -> int | None:
        return min((before.until_ns + LONGER_NS * (not before.ways) for before in self._before), default=None)

    def forget(self, now_ns: int) -> Changes:
        """What has been kept for long enough is not kept any more."""
        if not self._before:
            return set(), set()
        origins: set[int] = set()
        kept: list[_Before] = []
        for before in self._before:
            if before.until_ns > now_ns:
                kept.append(before)
                continue
            origins |= {origin for origin, _ in before.ways}
            if before.until_ns + LONGER_NS > now_ns:
                kept.append(_Before(before.until_ns, {}, before.inbound, before.carried))
        self._before = kept
        return self._enter(), origins

    def drop(self, now_ns: int) -> Changes:
        """Nothing holds any more, nothing is kept either, until a table comes that is newer, or the last one again."""
        version = self.version
        moved, origins = self.change(self._least_version, (), now_ns)
        self.version = self._least_version = version
        others, more = self.forget(_NEVER_NS)
        return moved ^ others, origins | more


def _ways(entries: Iterable[Entry]) -> Ways:
    ways: Ways = {}
    same: dict[Way, tuple[Way]] = {}  # the ways of many pairs are one object
    for origin, wanted, ingress, egress, shares in entries:
        way = ingress, egress, shares
        one = same.setdefault(way, (way,))
        others = ways.get((origin, wanted))
        ways[origin, wanted] = one if others is None else tuple(sorted(others + one))
    return ways


def _carried(me: int, ways: Ways) -> dict[int, int]:
    carried: dict[int, int] = {}
    for (origin, _), found in ways.items():
        for ingress, _, shares in found:
            if ingress == me:
                carried[origin] = carried.get(origin, 0) | shares
    return carried
