"""Keeps the last hour of each portal: what it received, sent, dropped, has waiting, and how fast its link answers.

Looks at the counters of all portals share one axis of time, a ring of `LOOKS`. A portal has one array of numbers for
each of its lines, with not-a-number where nothing is known, so that memory depends on the number of portals alone.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from dro.metrics.slots import Slot
from dro.metrics.table import PEER, PORTAL, metrics, rows
from supervisor.admin.status import PortalStatus
from supervisor.samples.growth import growth_of_portal

INTERVAL_S: Final = 10.0
"""Between two looks."""
LOOKS: Final = 360
HOUR_S: Final = INTERVAL_S * LOOKS
PORTALS_MAX: Final = 512
"""With those that are gone, which are kept for an hour."""

RECEIVED, SENT, DROPPED, QUEUE, RTT = "received", "sent", "dropped", "queue", "RTT"
UNITS: Final = {RECEIVED: "messages/s", SENT: "messages/s", DROPPED: "messages/s", QUEUE: "bytes", RTT: "ms"}
_RTT_CELLS: Final = next(tuple(row.slots) for row in rows(PORTAL) if row.name == "RTT")  # the last is the sum
_TRAFFIC: Final = tuple(
    {
        labels["traffic"]
        for row in rows(PORTAL)
        for labels in (dict(pairs or ()) for pairs in row.labels.values())
        if row.metric in ("dropped", "receive_exception") and "traffic" in labels
    }
)
"""All that may be dropped."""
_UNKNOWN: Final = math.nan


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. Points are a time since 1970 and a value, or None where there is a gap."""

    name: str
    unit: str
    points: list[tuple[float, float | None]]


class PortalCounts(NamedTuple):
    """Holds what a portal has counted since the start of the DRO."""

    received: int
    sent: int
    dropped: int
    rtt_count: int
    rtt_us: int


@dataclass(slots=True)
class _Past:
    """One portal. `lines`: a ring each, in step with that of the times."""

    kind: str
    seen_s: float
    before: PortalStatus | None = None  # at the look before; None if it was not seen then
    lines: dict[str, array[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for name in UNITS if name != RTT or self.kind == PEER]
        self.lines = {name: array("d", [_UNKNOWN]) * LOOKS for name in names}


class Hour:
    """The last hour of all portals. Looks and questions may come from different threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._looks = 0
        self._times = array("d", [_UNKNOWN]) * LOOKS
        self._pasts: dict[str, _Past] = {}

    def look(self, now_s: float, portals: Iterable[PortalStatus]) -> None:
        """Take in the counters of all portals. `now_s`: since 1970; when the clock was set back, the hour begins anew.

        Guess: a rate over a look that came late is that of the whole time since the look before.
        """
        with self._lock:
            if now_s == self._last_s():
                return
            if now_s < self._last_s():
                self._clear()
            span_s = now_s - self._last_s()
            at = self._looks % LOOKS
            self._times[at] = now_s
            self._looks += 1
            for portal in portals:
                self._add(portal, at, now_s, span_s)
            for name, past in list(self._pasts.items()):
                if past.seen_s < now_s:
                    past.before = None
                    for line in past.lines.values():
                        line[at] = _UNKNOWN
                    if now_s - past.seen_s >= HOUR_S:
                        del self._pasts[name]
            for name in sorted(self._pasts, key=lambda name: self._pasts[name].seen_s)[:-PORTALS_MAX]:
                del self._pasts[name]

    def series(self, portal: str) -> tuple[Series, ...]:
        """All lines of a portal, oldest points first; none if it has not been seen within the hour."""
        with self._lock:
            past = self._pasts.get(portal)
            if past is None:
                return ()
            earliest_s = self._last_s() - HOUR_S
            order = [at % LOOKS for at in range(max(0, self._looks - LOOKS), self._looks)]
            order = [at for at in order if self._times[at] > earliest_s]
            return tuple(
                Series(name, UNITS[name], [(self._times[at], _or_none(line[at])) for at in order])
                for name, line in past.lines.items()
            )

    def rates(self, portal: str) -> tuple[float, float] | None:
        """Messages per second that it received and sent before the last look; None if that is not known."""
        return self.all_rates().get(portal)

    def all_rates(self) -> dict[str, tuple[float, float]]:
        """The rates of all portals that are known."""
        with self._lock:
            at = (self._looks - 1) % LOOKS
            found = {name: (past.lines[RECEIVED][at], past.lines[SENT][at]) for name, past in self._pasts.items()}
        return {name: rates for name, rates in found.items() if not math.isnan(rates[0])}

    def _last_s(self) -> float:
        return self._times[(self._looks - 1) % LOOKS] if self._looks else -math.inf

    def _add(self, portal: PortalStatus, at: int, now_s: float, span_s: float) -> None:
        past = self._pasts.get(portal.name)
        if past is None or past.kind != portal.kind:
            past = self._pasts[portal.name] = _Past(portal.kind, now_s)
        values = {QUEUE: float(_sum(portal, "send_queue_bytes"))}
        if past.before is not None:
            received, sent, dropped, rtt_count, rtt_us = counts_of(growth_of_portal(past.before, portal))
            values |= {RECEIVED: received / span_s, SENT: sent / span_s, DROPPED: dropped / span_s}
            if rtt_count:
                values[RTT] = rtt_us / rtt_count / 1000
        for name, line in past.lines.items():
            line[at] = values.get(name, _UNKNOWN)
        past.before, past.seen_s = portal, now_s


def counts_of(portal: PortalStatus) -> PortalCounts:
    """Add up what a portal has received, sent and dropped, of all kinds of traffic of applications."""
    *buckets, sum_us = (portal[Slot[name]] for name in _RTT_CELLS)
    dropped = sum(portal.dropped(*_TRAFFIC).values())
    return PortalCounts(
        _sum(portal, "received_messages_total"), _sum(portal, "sent_messages_total"), dropped, sum(buckets), sum_us
    )


def _sum(portal: PortalStatus, metric: str) -> int:
    """Sum up all series of the metric."""
    return sum(portal.counters.get(name, 0) for name in _cells(metric, portal.kind))


@cache
def _cells(metric: str, kind: str) -> tuple[str, ...]:
    """Name the counters of what applications send; what DROs say to each other is none of it."""
    return tuple(
        Slot(slot).name
        for m in metrics(PORTAL, kind)
        if m.name == f"dro_portal_{metric}" and ("traffic", "gateway_control") not in m.labels
        for slot in m.slots
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
