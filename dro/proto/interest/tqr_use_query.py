"""Local interest: TQRs heard by a DRO in the TRD of a portal, verified by use queries.

State: one entry per topic and pattern, with the time it was last confirmed. Owned by an endpoint portal.

    TQR, WC-TQR, use response     confirmation: a new entry, or the end of a use query series
    silent for periodic-interval  use query; repeated after each timeout without an answer, `max` in all; then removed
    leave                         the series starts at once: another receiver may still be there

TQRs of other DROs are ignored: their interest is in interest records. Source: DRO guide, `<topic-use-query>`,
`<pattern-use-query>`, `<rate-limit>` (one for topics, one for patterns); 500000 bit/s and 500 objects a second. Guess:
the timeout of an answer starts when the query is sent, which under the rate limit may be later than it is due; how much
strangers can make a portal remember, and how fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_S
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost, Symbol
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.proto.resolver.output import pattern_flags
from dro.proto.resolver.record_queue import Rate, RecordQueue
from dro.proto.resolver.schedule import tick_at
from dro.table import Table
from dro.timers import Calendar, Due
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.records import write_tmr

USE_QUERY_RATE: Final = Rate(500_000, 500)
NEW_INTEREST: Final = NewEntryRate(in_all=10_000, of_one=5_000)
KNOWN_PER_S: Final = 1_000
"""Guess: use queries a second for what was known before. It holds meanwhile; receivers that are asked faster than they
answer lose what they want."""
TICK_NS: Final = 10 * NS_PER_MS  # times are rounded up to it
JITTER_PART: Final = 64  # of a periodic interval: less than 5 s of 300 s


def no_jitter(_ns: int) -> int:
    """Exact times, for tests."""
    return 0


@dataclass(frozen=True, slots=True)
class UseQueryOptions:
    """`<topic-use-query>` or `<pattern-use-query>`; `periodic_interval_ns` 0: only a leave makes a query."""

    timeout_ns: int = 3000 * NS_PER_MS
    max_queries: int = 5
    periodic_interval_ns: int = 300_000 * NS_PER_MS


DEFAULT_OPTIONS: Final = UseQueryOptions()


@dataclass(slots=True, eq=False)
class _Entry(Due):
    table: LocalInterest
    symbol: Symbol
    heard_ns: int
    source_ip: int  # that told of it first
    tries: int = 0  # use queries since the last sign of life
    is_waiting: bool = False  # a use query is queued
    is_known: bool = False  # from an older incarnation of the portal, and not heard since

    def on_due(self) -> None:
        self.table.on_due(self)

    def leaving(self) -> lbmr.Tmr | None:
        return self.table.on_leaving(self)


class LocalInterest:
    """The interest of one TRD. `entries_max` bounds what strangers can make it remember, one address half of it.

    `refused`: how often there was no room for something new.
    """

    def __init__(
        self,
        topic_options: UseQueryOptions = DEFAULT_OPTIONS,
        pattern_options: UseQueryOptions = DEFAULT_OPTIONS,
        *,
        rate: Rate = USE_QUERY_RATE,
        pattern_rate: Rate | None = None,
        entries_max: int = 262_144,
        jitter: Callable[[int], int] = no_jitter,
    ) -> None:
        """`jitter(ns)`, a time in [0, ns), delays the periodic queries so that portals do not ask in step.

        `pattern_rate` is that of topics unless said otherwise.
        """
        self._jitter = jitter
        self._options = (topic_options, pattern_options)
        self._entries_max = entries_max
        self._entries: Table[Symbol, _Entry] = Table()
        self._calendar = Calendar()
        self._queues: tuple[RecordQueue[lbmr.Tmr], ...] = (
            RecordQueue(rate, write_tmr),
            RecordQueue(rate if pattern_rate is None else pattern_rate, write_tmr),
        )
        self._events: list[InterestEvent] = []
        self._now_ns = 0
        self._newcomers = NewEntryLimiter(NEW_INTEREST)
        self._by_address: Counter[int] = Counter()  # entries by who told them first
        self.kinds: Counter[int] = Counter()  # entries by pattern type
        self.refused = 0

    @property
    def limited(self) -> int:
        """How often something new was left out, as too much came in one second."""
        return self._newcomers.refused

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, symbol: Symbol) -> bool:
        return symbol in self._entries

    def symbols(self) -> list[Symbol]:
        return list(self._entries)

    def on_packet(self, packet: lbmr.Packet, now_ns: int, source_ip: int = 0) -> None:
        """A packet of this TRD that the portal did not send itself, and the address that it came from."""
        if packet.options is not None and packet.options.is_from_dro:
            return
        match packet.body:
            case lbmr.Queries(tqrs):
                for topic in tqrs:
                    self.on_sign((topic, 0), now_ns, source_ip)
            case lbmr.WildcardQueries(patterns):
                for query in patterns:
                    if query.pattern_type in (lbmr.PatternType.PCRE, lbmr.PatternType.REGEX):
                        self.on_sign((query.pattern, query.pattern_type), now_ns, source_ip)
            case lbmr.TopicManagement(records):
                for tmr in records:
                    self._on_tmr(tmr, now_ns, source_ip)
            case _:
                pass

    def on_sign(self, symbol: Symbol, now_ns: int, source_ip: int = 0) -> None:
        """A receiver of the TRD has shown that it is there."""
        self._now_ns = now_ns
        entry = self._entries.get(symbol)
        if entry is None:
            half = (self._entries_max + 1) // 2
            if len(self._entries) >= self._entries_max or self._by_address[source_ip] >= half:
                self.refused += 1
                return
            if not self._newcomers.admit(source_ip, now_ns):
                return
            self._add(symbol, now_ns, source_ip)
            return
        was_known = entry.is_known
        entry.heard_ns, entry.is_known = now_ns, False
        if entry.tries or entry.is_waiting or was_known:
            entry.tries = 0
            entry.is_waiting = False
            self._wait(entry)

    def _add(self, symbol: Symbol, now_ns: int, source_ip: int) -> _Entry:
        entry = self._entries[symbol] = _Entry(self, symbol, now_ns, source_ip)
        self._by_address[source_ip] += 1
        self.kinds[symbol[1]] += 1
        self._events.append(InterestGained(symbol))
        self._wait(entry)
        return entry

    def take_known(self, symbol: Symbol, now_ns: int) -> None:
        """An older incarnation of the portal had recorded this: as if it was heard now, until `check_known`."""
        self._now_ns = now_ns
        if symbol not in self._entries and len(self._entries) < self._entries_max:
            self._add(symbol, now_ns, 0).is_known = True

    def check_known(self, now_ns: int) -> None:
        """Ask for what was known and has not been heard until its turn comes, `KNOWN_PER_S`."""
        self._now_ns = now_ns
        self._calendar.run_in_slices(self._ask_known(), now_ns)

    def _ask_known(self) -> Iterator[None]:
        due_ns = self._now_ns
        for entry in list(self._entries.values()):
            if entry.is_known and self._entries.get(entry.symbol) is entry and not (entry.tries or entry.is_waiting):
                self._calendar.set(entry, tick_at(due_ns, TICK_NS, 0))
                due_ns += NS_PER_S // KNOWN_PER_S
            yield

    def on_leave(self, symbol: Symbol, now_ns: int) -> None:
        """A receiver of the TRD has gone; others may be left."""
        self._now_ns = now_ns
        entry = self._entries.get(symbol)
        if entry is not None and entry.tries == 0 and not entry.is_waiting:
            self._ask(entry)

    def set_options(
        self, topic_options: UseQueryOptions, pattern_options: UseQueryOptions, rates: tuple[Rate, Rate], now_ns: int
    ) -> None:
        """Other intervals and limits, of topics and of patterns.

        Who is silent for longer than a new interval already is asked now, as fast as the limit lets; a query that has
        left is waited for as it was, and the series then goes on by the new numbers.
        """
        self._now_ns = now_ns
        before, self._options = self._options, (topic_options, pattern_options)
        for queue, rate in zip(self._queues, rates, strict=True):
            queue.set_rate(rate)
        periods = [
            (old.periodic_interval_ns, new.periodic_interval_ns) for old, new in zip(before, self._options, strict=True)
        ]
        kinds = [kind for kind, (old_ns, new_ns) in enumerate(periods) if old_ns != new_ns]
        if kinds:
            self._calendar.run_in_slices(self._wait_anew(kinds), now_ns)

    def _wait_anew(self, kinds: list[int]) -> Iterator[None]:
        for entry in list(self._entries.values()):
            is_asked = entry.tries or entry.is_waiting or entry.is_known  # or will be, by `check_known`
            if _kind(entry) in kinds and not is_asked and self._entries.get(entry.symbol) is entry:
                self._wait(entry)
            yield

    def next_deadline(self) -> int | None:
        deadlines = [self._calendar.next_deadline(), *(queue.next_deadline(self._now_ns) for queue in self._queues)]
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._calendar.run_due(now_ns)

    def take_outgoing(self) -> list[lbmr.Tmr]:
        """Use queries that may leave now, to be packed into datagrams."""
        return [tmr for queue in self._queues for run in queue.take_runs(self._now_ns) for tmr in run]

    def take_events(self) -> list[InterestEvent]:
        events, self._events = self._events, []
        return events

    # ------------------------------------------------------------------------------------------------ inside

    def _on_tmr(self, tmr: lbmr.Tmr, now_ns: int, source_ip: int) -> None:
        symbol = (tmr.name, tmr.pattern_type)
        if tmr.kind == lbmr.TmrType.LEAVE:
            self.on_leave(symbol, now_ns)
        elif tmr.kind == lbmr.TmrType.USE and tmr.is_response:
            self.on_sign(symbol, now_ns, source_ip)

    def _options_of(self, entry: _Entry) -> UseQueryOptions:
        return self._options[_kind(entry)]

    def _wait(self, entry: _Entry) -> None:
        """Wait until the entry has been silent for its interval."""
        interval_ns = self._options_of(entry).periodic_interval_ns
        due_ns = entry.heard_ns + interval_ns + self._jitter(interval_ns // JITTER_PART)
        self._calendar.set(entry, tick_at(due_ns, TICK_NS, 0) if interval_ns > 0 else None)

    def on_due(self, entry: _Entry) -> None:
        """Nothing came in answer, or nothing was heard for long."""
        if entry.tries or entry.is_known:
            self._ask(entry)
        elif entry.heard_ns + self._options_of(entry).periodic_interval_ns > self._now_ns:
            self._wait(entry)  # heard since the timer was set, which costs nothing while it happens
        else:
            self._ask(entry)

    def _ask(self, entry: _Entry) -> None:
        """Send one use query more, or end the entry."""
        self._calendar.set(entry, None)
        if entry.tries >= self._options_of(entry).max_queries:
            del self._entries[entry.symbol]
            self.kinds[entry.symbol[1]] -= 1
            self._by_address[entry.source_ip] -= 1
            if not self._by_address[entry.source_ip]:
                del self._by_address[entry.source_ip]
            self._events.append(InterestLost(entry.symbol))
            return
        entry.is_waiting = True
        self._queues[_kind(entry)].put(entry.leaving)

    def on_leaving(self, entry: _Entry) -> lbmr.Tmr | None:
        """The query leaves now, unless a sign of life came first."""
        if not entry.is_waiting:
            return None
        entry.is_waiting = False
        entry.tries += 1
        timeout_ns = self._options_of(entry).timeout_ns
        self._calendar.set(entry, tick_at(self._now_ns + timeout_ns, TICK_NS, 0))
        name, pattern_type = entry.symbol
        return lbmr.Tmr(lbmr.TmrType.USE, pattern_flags(pattern_type), name)


def _kind(entry: _Entry) -> int:
    """Return 0 for a topic, 1 for a pattern."""
    return 1 if entry.symbol[1] else 0
