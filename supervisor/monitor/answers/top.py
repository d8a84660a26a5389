"""The topics and sources with the most fragments a second, from two looks at the proxy sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dro.bus.listing import ProxyRow

BETWEEN_S: Final = 2.0
"""Between two looks at least."""
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
    rows: dict[Key, ProxyRow]


class Top:
    """Looks when it is asked, not more often than every `BETWEEN_S`; for many threads."""

    def __init__(self, proxies: Callable[[], Iterable[ProxyRow]], clock: Callable[[], float] = time.monotonic) -> None:
        self._proxies = proxies
        self._clock = clock
        self._lock = threading.Lock()
        self._before: _Look | None = None
        self._last: _Look | None = None

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
            before, last = self._before, self._last
        assert last is not None
        if before is None:
            return [], 0.0
        seconds = last.time_s - before.time_s
        found = []
        for key, row in last.rows.items():
            count = row.fragments - (before.rows[key].fragments if key in before.rows else 0)
            if count > 0:  # fewer than before: the portal is a new process
                found.append(TopRow(row.symbol, row.portal, row.otid, row.source, count / seconds, row.fragments))
        return found, seconds

    def _look(self) -> None:
        now_s = self._clock()
        if self._last is not None and now_s - self._last.time_s < BETWEEN_S:
            return
        rows = {(row.portal, row.symbol, row.otid): row for row in self._proxies() if row.proxy == "source"}
        is_recent = self._last is not None and now_s - self._last.time_s < OLD_S
        self._before, self._last = (self._last if is_recent else None), _Look(now_s, rows)


def _order(row: TopRow) -> tuple[float, str, str, str]:
    return -row.fragments_per_s, row.topic, row.portal, row.otid
