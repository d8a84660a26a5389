"""The route table as a portal uses it, and for a while what it was before, so that a reroute is make before break.

DROs recalculate one after the other, so a path is taken before its last DRO knows of it. What only a route change takes
off is therefore kept for a while: a proxy receiver goes on to ask for its sources, and the feeder of a proxy source
goes on to feed it, alone or beside the new one. The duplicate window removes what comes twice.

Guess: `HELD_NS` covers the time between the recalculations of two DROs at default timers (forwarding notes, section
17: up to 1.75 s). A proxy receiver stays a little longer, so that its source ends at the siblings after they need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from dro.clock import ms, s

HELD_NS: Final = s(2)
LONGER_NS: Final = ms(500)

Path = tuple[int, int]
Ways = dict[Path, Path]
"""(source domain, interested domain) -> (ingress worker, egress worker)"""
Changes = tuple[set[Path], set[int]]
"""(egress worker, interested domain) of paths that enter here, and domains whose paths to here are not the same."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What a table had and the next one had not; `ways` that leave here, `inbound` that enter."""

    until_ns: int
    ways: Ways
    inbound: Set[Path]


class Routes:
    """See the module text."""

    def __init__(self, me: int) -> None:
        self.version = 0
        self._me = me
        self.ways: Ways = {}
        self._entering: set[Path] = set()  # as the table has it
        self._before: list[_Before] = []  # earliest first
        self.inbound: set[Path] = set()
        """(egress worker, interested domain) of paths that enter here, those that are kept included."""
        self.outbound: set[Path] = set()
        """(source domain, ingress worker) of paths that leave here."""

    def change(self, version: int, entries: Iterable[tuple[int, int, int, int]], now_ns: int) -> Changes:
        """`entries`: (source domain, interested domain, ingress worker, egress worker)."""
        if version <= self.version:
            return set(), set()
        self.version = version
        me, before, entering = self._me, self.ways, self._entering
        ways = {(origin, wanted): (ingress, egress) for origin, wanted, ingress, egress in entries}
        self.ways = ways
        self._entering = {(egress, wanted) for (_, wanted), (ingress, egress) in ways.items() if ingress == me}
        self.outbound = {(origin, ingress) for (origin, _), (ingress, egress) in ways.items() if egress == me}
        changed = ways.items() ^ before.items()
        old = {key: way for key, way in before.items() if way[1] == me and ways.get(key) != way}
        if old or entering - self._entering:
            self._before.append(_Before(now_ns + HELD_NS, old, entering - self._entering))
        origins = {origin for (origin, _), (_, egress) in changed if egress == me}
        return self._enter(), origins

    def _enter(self) -> set[Path]:
        """What differs in `inbound` now."""
        inbound = self._entering.union(*(before.inbound for before in self._before))
        moved, self.inbound = inbound ^ self.inbound, inbound
        return moved

    def feeders(self, origin: int, interested: Iterable[int]) -> set[int]:
        """Workers through which a source of that domain comes, on its paths to the domains that leave here."""
        return {way[0] for wanted in interested if (way := self.ways.get((origin, wanted))) and way[1] == self._me}

    def held(self, origin: int, interested: Iterable[int]) -> Iterator[int]:
        """Likewise, of the tables before."""
        for wanted in interested:
            for before in self._before:
                if way := before.ways.get((origin, wanted)):
                    yield way[0]

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
                kept.append(_Before(before.until_ns, {}, before.inbound))
        self._before = kept
        return self._enter(), origins
