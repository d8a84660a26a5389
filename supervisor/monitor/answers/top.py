"""The topics and sources with the most fragments a second, over the last ten seconds of looks at the proxy sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dro.bus.listing import ProxyRow
from supervisor.samples.growth import growth

BETWEEN_S: Final = 2.0
"""Between two looks at least."""
SPAN_S: Final = 10.0
"""Between the looks that are compared, once there are some; half as much between those that are kept for it."""
OLD_S: Final = 30.0
"""A look that is so old tells nothing about now."""

Key = tuple[str, str, str]  # portal, topic, OTID


@dataclass(frozen=True, slots=True)
class TopRow:
    """Counts what one portal took to be sent of a source, or of a topic, where `otid` and `source` are empty."""

    topic: str
    portal: str
    otid: str
    source: str
    fragments_per_s: float
    fragments: int


@dataclass(frozen=True, slots=True)
class _Look:
    time_s: float
    fragments: dict[Key, int]


class Top:
    """Looks when it is asked, not more often than every `BETWEEN_S`; for many threads."""

    def __init__(self, proxies: Callable[[], Iterable[ProxyRow]], clock: Callable[[], float] = time.monotonic) -> None:
        self._proxies = proxies
        self._clock = clock
        self._lock = threading.Lock()
        self._before: list[_Look] = []  # the first one is compared with what is there now
        self._looked_s = -OLD_S
        self._rows: dict[Key, ProxyRow] = {}

    def sources(self, limit: int) -> tuple[list[TopRow], float]:
        """The fastest ones, and how long was looked in seconds: 0 after the first look, when nothing can be said."""
        rows, looked_s = self._rates()
        return sorted(rows, key=_order)[:limit], looked_s

    def topics(self, limit: int) -> tuple[list[TopRow], float]:
        """Add up what `sources` tells, for each portal and topic."""
        rows, looked_s = self._rates()
        sums: dict[tuple[str, str], TopRow] = {}
        for row in rows:
            before = sums.get((row.portal, row.topic))
            rate, count = (before.fragments_per_s, before.fragments) if before is not None else (0.0, 0)
            total = TopRow(row.topic, row.portal, "", "", rate + row.fragments_per_s, count + row.fragments)
            sums[row.portal, row.topic] = total
        return sorted(sums.values(), key=_order)[:limit], looked_s

    def _rates(self) -> tuple[list[TopRow], float]:
        with self._lock:
            self._look()
            before, rows, seconds = self._before[0], self._rows, self._looked_s - self._before[0].time_s
        if not seconds:
            return [], 0.0
        found = []
        for key, row in rows.items():
            if count := growth(before.fragments.get(key, 0), row.fragments):
                found.append(TopRow(row.symbol, row.portal, row.otid, row.source, count / seconds, row.fragments))
        return found, seconds

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < BETWEEN_S:
            return
        if now_s - self._looked_s >= OLD_S:
            self._before.clear()
        self._rows = {(row.portal, row.symbol, row.otid): row for row in self._proxies() if row.proxy == "source"}
        self._looked_s = now_s
        if not self._before or now_s - self._before[-1].time_s >= SPAN_S / 2:
            self._before.append(_Look(now_s, {key: row.fragments for key, row in self._rows.items()}))
        while len(self._before) > 1 and now_s - self._before[1].time_s >= SPAN_S:
            del self._before[0]


def _order(row: TopRow) -> tuple[float, str, str, str]:
    return -row.fragments_per_s, row.topic, row.portal, row.otid
