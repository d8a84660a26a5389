"""Leaves: what a context says when its last receiver of a topic or pattern is gone, three times 100 ms apart.

State: the series that are not over. Called by the receiver side, which ends a series when a receiver comes back.
Guess: that a leave is always sent, when, and how often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_MS
from dro.proto.resolver.output import Channel, pattern_flags
from dro.table import Table
from dro.timers import Due
from dro.wire.lbmr import packet as lbmr

COUNT: Final = 3
INTERVAL_NS: Final = 100 * NS_PER_MS


@dataclass(slots=True, eq=False)
class _Series(Due):
    leaves: LeaveRecords
    name: bytes
    pattern_type: int
    to_send: int = COUNT

    def on_due(self) -> None:
        self.leaves.send(self)


class LeaveRecords:
    """Leave records of one context."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._series: Table[tuple[bytes, int], _Series] = Table()

    def start(self, name: bytes, pattern_type: int) -> None:
        """`pattern_type` 0: a topic. A series that goes on begins anew."""
        self.cancel(name, pattern_type)
        series = self._series[name, pattern_type] = _Series(self, name, pattern_type)
        self.send(series)

    def cancel(self, name: bytes, pattern_type: int) -> None:
        series = self._series.pop((name, pattern_type), None)
        if series is not None:
            self._channel.calendar.set(series, None)

    def send(self, series: _Series) -> None:
        flags = pattern_flags(series.pattern_type)
        self._channel.output.put_tmr(lbmr.Tmr(lbmr.TmrType.LEAVE, flags, series.name))
        series.to_send -= 1
        if series.to_send:
            self._channel.calendar.set(series, self._channel.now_ns + INTERVAL_NS)
        else:
            del self._series[series.name, series.pattern_type]
