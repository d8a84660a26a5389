"""Rates of portals for who looks at a page: from two looks at the counters a moment apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from supervisor.admin.status import PortalStatus
from supervisor.monitor.known.hour import Hour, PortalGrowth, counts_of

BETWEEN_S: Final = 1.0
"""Between two looks at least."""
OLD_S: Final = 15.0
"""A look that is so old tells nothing about now."""


@dataclass(frozen=True, slots=True)
class _Look:
    time_s: float
    counts: dict[str, PortalGrowth]


class Rates:
    """Messages a second that portals receive and send, for many threads."""

    def __init__(self, hour: Hour, clock: Callable[[], float] = time.monotonic) -> None:
        """`hour`: what is told as long as there are no two looks."""
        self._hour = hour
        self._clock = clock
        self._lock = threading.Lock()
        self._before = self._last = _Look(-1e9, {})

    def look(self, portals: Iterable[PortalStatus]) -> dict[str, tuple[float, float]]:
        """Take in the counters, unless that was done a moment ago, and tell the rates that are known."""
        now_s = self._clock()
        with self._lock:
            if now_s - self._last.time_s >= BETWEEN_S:
                counts = {portal.name: counts_of(portal) for portal in portals}
                self._before, self._last = self._last, _Look(now_s, counts)
            before, last = self._before, self._last
        if last.time_s - before.time_s > OLD_S:
            return self._hour.all_rates()
        found, seconds = {}, last.time_s - before.time_s
        for name, now in last.counts.items():
            then = before.counts.get(name)
            if then is not None and now.since(then) is not None:
                found[name] = (now.received - then.received) / seconds, (now.sent - then.sent) / seconds
        return found
