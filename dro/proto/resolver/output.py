"""The sending half of a TR channel: five rate-limited classes of records, and topic management, packed into datagrams.

State: the queues. Owned by the resolver; filled by its source side and its receiver side. Records of one class share
datagrams up to the maximum size, except answers, which are sent alone. Source: UM documentation, "UDP topic resolution
rates"; real capture for the answers. Guess: topic management records are not limited: there is one per own receiver at
most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dro.proto.resolver.events import ResolverEvent
from dro.proto.resolver.record_queue import Rate, RecordQueue
from dro.timers import Calendar
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.records import write_tqr, write_wildcard_tqr

INITIAL_RATE: Final = Rate(1_000_000, 1000)
SUSTAIN_RATE: Final = Rate(1_000_000)


@dataclass(frozen=True, slots=True)
class ResolverRates:
    """`resolver_*_per_second` and `resolver_*_bps` of a context."""

    initial_advertisements: Rate = INITIAL_RATE
    sustain_advertisements: Rate = SUSTAIN_RATE
    initial_queries: Rate = INITIAL_RATE
    sustain_queries: Rate = SUSTAIN_RATE
    wildcard_queries: Rate = SUSTAIN_RATE


class ResolverOutput:
    """Queues of what shall go out; `take(now_ns, options)` gives the datagrams that may."""

    def __init__(self, rates: ResolverRates, datagram_max_bytes: int) -> None:
        self._datagram_max_bytes = datagram_max_bytes
        self.initial_advertisements: RecordQueue[bytes] = RecordQueue(rates.initial_advertisements, bytes)
        self.sustain_advertisements: RecordQueue[bytes] = RecordQueue(rates.sustain_advertisements, bytes)
        self.initial_queries: RecordQueue[bytes] = RecordQueue(rates.initial_queries, write_tqr)
        self.sustain_queries: RecordQueue[bytes] = RecordQueue(rates.sustain_queries, write_tqr)
        self.wildcard_queries: RecordQueue[lbmr.WildcardTqr] = RecordQueue(rates.wildcard_queries, write_wildcard_tqr)
        self._queues: tuple[RecordQueue[bytes] | RecordQueue[lbmr.WildcardTqr], ...] = (
            self.initial_advertisements,
            self.sustain_advertisements,
            self.initial_queries,
            self.sustain_queries,
            self.wildcard_queries,
        )
        self._tmrs: dict[lbmr.Tmr, None] = {}

    def put_tmr(self, tmr: lbmr.Tmr) -> None:
        """One topic management record; a repeat of one that still waits changes nothing."""
        self._tmrs[tmr] = None

    def next_deadline(self, now_ns: int) -> int | None:
        deadlines = [queue.next_deadline(now_ns) for queue in self._queues if queue.has_records]
        return min((at for at in deadlines if at is not None), default=None)

    def take(self, now_ns: int, options: lbmr.PacketOptions) -> list[bytes]:
        size = self._datagram_max_bytes
        out: list[bytes] = []
        for tirs in (self.initial_advertisements, self.sustain_advertisements):
            for run in tirs.take_runs(now_ns) if tirs.has_records else ():
                out += lbmr.pack_tirs(run, options, size)
        for tqrs in (self.initial_queries, self.sustain_queries):
            for names in tqrs.take_runs(now_ns) if tqrs.has_records else ():
                out += lbmr.pack_tqrs(names, options, size)
        for patterns in self.wildcard_queries.take_runs(now_ns):
            out += lbmr.pack_wildcard_tqrs(patterns, options, size)
        if self._tmrs:
            out += lbmr.pack_tmrs(self._tmrs, options, size)
            self._tmrs = {}
        return out


@dataclass(slots=True)
class Channel:
    """What the two sides of one context share; the resolver sets the time before it calls either."""

    output: ResolverOutput
    grid_ns: int  # origin of the ticks
    now_ns: int
    domain_id: int = 0  # 0: not known
    calendar: Calendar = field(default_factory=Calendar)
    events: list[ResolverEvent] = field(default_factory=list)

    def run_in_slices(self, steps: Iterator[object]) -> None:
        """Long work, see `Calendar.run_in_slices`."""
        self.calendar.run_in_slices(steps, self.now_ns)


def pattern_flags(pattern_type: int) -> int:
    """TMR flags that say what kind of name a record carries; 0 is a plain topic."""
    match pattern_type:
        case lbmr.PatternType.PCRE:
            return lbmr.TmrFlag.PCRE
        case lbmr.PatternType.REGEX:
            return lbmr.TmrFlag.REGEX
    return 0
