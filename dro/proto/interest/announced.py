"""What a portal announces in its TRD on behalf of other domains: interest records, domain routes, start-up requests.

State: the interests and routes to announce, each with a schedule of doubling intervals. Owned by an endpoint portal,
which packs the result of `take_outgoing`.

    interest wanted     at once, then after 1 s, doubling to every 60 s; repeats carry REFRESH
    no longer wanted    CANCEL three times, 100 ms apart
    TRD asks            everything at once
    routes changed      at once, then after 100 ms, doubling to every 1000 ms, at most 50 domains a second
    start               one topic resolution request a second for ten seconds

Source: DRO guide, `<remote-topic-interest>`, `<remote-pattern-interest>`, `<domain-route>`, `<initial-request>`. Guess:
the doubling between the documented minimum and maximum, the number of cancels, REFRESH on repeats; an "object" of the
route rate is a domain; the last request comes before the duration is over (10 in all).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_S
from dro.proto.interest.events import Symbol
from dro.proto.resolver.record_queue import Rate, RecordQueue
from dro.proto.resolver.schedule import DoublingSchedule, tick_at
from dro.table import Table
from dro.timers import Calendar, Due
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.tnwg import write_interest_record

INTEREST_RATE: Final = Rate(500_000)
ROUTE_RATE: Final = Rate(0, 50)
TICK_NS: Final = 10 * NS_PER_MS  # repeats are rounded up to it
CANCEL_COUNT: Final = 3
CANCEL_INTERVAL_NS: Final = 100 * NS_PER_MS
START_REQUEST: Final = lbmr.RequestFlag.QUERY | lbmr.RequestFlag.WILDCARD_QUERY | lbmr.RequestFlag.DRO_REMOTE_INTEREST


@dataclass(frozen=True, slots=True)
class IntervalOptions:
    """`min-interval` and `max-interval` of an element."""

    min_interval_ns: int
    max_interval_ns: int


INTEREST_OPTIONS: Final = IntervalOptions(1000 * NS_PER_MS, 60_000 * NS_PER_MS)
ROUTE_OPTIONS: Final = IntervalOptions(100 * NS_PER_MS, 1000 * NS_PER_MS)


@dataclass(slots=True, eq=False)
class _Interest(Due):
    sender: InterestSender
    symbol: Symbol
    domain_id: int
    schedule: DoublingSchedule
    is_waiting: bool = False  # a record is queued; the next repeat falls due when it has left
    is_told: bool = False  # at least once
    cancels: int | None = None  # cancels still to be sent; None: wanted

    def on_due(self) -> None:
        self.sender.on_due(self)

    def leaving(self) -> lbmr.InterestRecord | None:
        return self.sender.on_leaving(self)


def _earliest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)


class InterestSender:
    """Interest records of one portal, topics and patterns."""

    def __init__(
        self,
        topic_options: IntervalOptions = INTEREST_OPTIONS,
        pattern_options: IntervalOptions = INTEREST_OPTIONS,
        *,
        rate: Rate = INTEREST_RATE,
        pattern_rate: Rate | None = None,
    ) -> None:
        """`pattern_rate` is that of topics unless said otherwise."""
        self._options = (topic_options, pattern_options)
        self._interests: Table[tuple[Symbol, int], _Interest] = Table()  # those being cancelled included
        self._calendar = Calendar()
        self._is_telling_all = False
        self._queues: tuple[RecordQueue[lbmr.InterestRecord], ...] = (
            RecordQueue(rate, write_interest_record),
            RecordQueue(rate if pattern_rate is None else pattern_rate, write_interest_record),
        )
        self._now_ns = 0

    def __len__(self) -> int:
        return sum(interest.cancels is None for interest in self._interests.values())

    def want(self, symbol: Symbol, domain_id: int, now_ns: int) -> None:
        """Receivers of `domain_id` want `symbol`; told at once and from time to time."""
        self._now_ns = now_ns
        interest = self._interests.get((symbol, domain_id))
        if interest is not None:
            if interest.cancels is None:
                return
            self._calendar.set(interest, None)
        options = self._options[_kind(symbol)]
        schedule = DoublingSchedule(options.min_interval_ns, options.max_interval_ns, now_ns)
        interest = self._interests[symbol, domain_id] = _Interest(self, symbol, domain_id, schedule)
        self._put(interest)

    def unwant(self, symbol: Symbol, domain_id: int, now_ns: int) -> None:
        """Nobody there wants it any more; neighbours are told so."""
        self._now_ns = now_ns
        interest = self._interests.get((symbol, domain_id))
        if interest is not None and interest.cancels is None:
            interest.cancels = CANCEL_COUNT
            self.on_due(interest)

    def set_options(
        self, topic_options: IntervalOptions, pattern_options: IntervalOptions, rates: tuple[Rate, Rate], now_ns: int
    ) -> None:
        """Other intervals and limits, of topics and of patterns; nothing is told because of that alone."""
        self._now_ns = now_ns
        before, self._options = self._options, (topic_options, pattern_options)
        for queue, rate in zip(self._queues, rates, strict=True):
            queue.set_rate(rate)
        kinds = [kind for kind in (0, 1) if self._options[kind] != before[kind]]
        if kinds:
            self._calendar.run_in_slices(self._repeat_anew(kinds), now_ns)

    def _repeat_anew(self, kinds: list[int]) -> Iterator[None]:
        for interest in list(self._interests.values()):
            kind = _kind(interest.symbol)
            if kind in kinds and interest.cancels is None:
                options = self._options[kind]
                interest.schedule.set_intervals(options.min_interval_ns, options.max_interval_ns, self._now_ns)
                self._arm(interest)
            yield

    def tell_all(self, now_ns: int) -> None:
        """A DRO of the TRD asks for everything (topic resolution request)."""
        self._now_ns = now_ns
        if not self._is_telling_all:
            self._is_telling_all = True
            self._calendar.run_in_slices(self._tell_all(), now_ns)

    def _tell_all(self) -> Iterator[None]:
        for interest in list(self._interests.values()):
            if interest.cancels is None:
                self._put(interest)
            yield
        self._is_telling_all = False

    def next_deadline(self) -> int | None:
        waiting = [queue.next_deadline(self._now_ns) for queue in self._queues]
        return _earliest(self._calendar.next_deadline(), *waiting)

    def on_timer(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._calendar.run_due(now_ns)

    def take_outgoing(self) -> list[lbmr.InterestRecord]:
        return [record for queue in self._queues for run in queue.take_runs(self._now_ns) for record in run]

    def on_due(self, interest: _Interest) -> None:
        self._put(interest)
        if interest.cancels is None:
            return
        interest.cancels -= 1
        if interest.cancels > 0:
            self._calendar.set(interest, self._now_ns + CANCEL_INTERVAL_NS)
        else:
            self._calendar.set(interest, None)
            del self._interests[interest.symbol, interest.domain_id]

    def _arm(self, interest: _Interest) -> None:
        due = interest.schedule.next_due()
        if not interest.is_waiting:
            self._calendar.set(interest, None if due is None else tick_at(due, TICK_NS, 0))

    def _put(self, interest: _Interest) -> None:
        if not interest.is_waiting:
            interest.is_waiting = True
            self._queues[_kind(interest.symbol)].put(interest.leaving)

    def on_leaving(self, interest: _Interest) -> lbmr.InterestRecord | None:
        interest.is_waiting = False
        name, pattern_type = interest.symbol
        flags = lbmr.InterestFlag.PATTERN if pattern_type else 0
        if interest.cancels is not None:
            current = self._interests.get((interest.symbol, interest.domain_id))
            if current is not None and current is not interest:
                return None  # wanted again meanwhile
            flags |= lbmr.InterestFlag.CANCEL
        else:
            interest.schedule.on_tick(self._now_ns)
            self._arm(interest)
            flags |= lbmr.InterestFlag.REFRESH if interest.is_told else 0
        interest.is_told = True
        return lbmr.InterestRecord(interest.domain_id, name, flags, pattern_type)


def _kind(symbol: Symbol) -> int:
    """Return 0 for a topic, 1 for a pattern."""
    return 1 if symbol[1] else 0


class DomainRouteSender:
    """Which domains are reached through this portal."""

    def __init__(self, options: IntervalOptions = ROUTE_OPTIONS, *, rate: Rate = ROUTE_RATE) -> None:
        self._options = options
        self._domains: tuple[int, ...] = ()
        self._schedule: DoublingSchedule | None = None
        self._queue: RecordQueue[int] = RecordQueue(rate, lambda domain: domain.to_bytes(4, "big"))
        self._waiting: set[int] = set()
        self._now_ns = 0

    def set_options(self, options: IntervalOptions, rate: Rate, now_ns: int) -> None:
        """Other intervals and another limit; nothing is told because of that alone."""
        self._queue.set_rate(rate)
        if options != self._options:
            self._options = options
            if self._schedule is not None:
                self._schedule.set_intervals(options.min_interval_ns, options.max_interval_ns, now_ns)

    def set_domains(self, domains: Iterable[int], now_ns: int) -> None:
        """All domains to announce from now on; a change is told at once. Raises: ValueError for domain 0."""
        wanted = tuple(sorted(set(domains)))
        if wanted and not 0 < wanted[0] <= wanted[-1] <= 0xFFFFFFFF:
            raise ValueError("a domain id is 1 to 4294967295")
        if wanted == self._domains:
            return
        self._domains = wanted
        options = self._options
        self._schedule = DoublingSchedule(options.min_interval_ns, options.max_interval_ns, now_ns) if wanted else None
        self.on_timer(now_ns)

    def next_deadline(self) -> int | None:
        due = self._schedule.next_due() if self._schedule is not None else None
        return _earliest(due, self._queue.next_deadline(self._now_ns))

    def on_timer(self, now_ns: int) -> None:
        self._now_ns = now_ns
        if self._schedule is not None and self._schedule.on_tick(now_ns):
            for domain in self._domains:
                if domain not in self._waiting:
                    self._waiting.add(domain)
                    self._queue.put(partial(self._announce, domain))

    def take_outgoing(self) -> tuple[int, ...]:
        """Domains to announce now; they share as few datagrams as they fit into."""
        return tuple(domain for run in self._queue.take_runs(self._now_ns) for domain in run)

    def _announce(self, domain: int) -> int | None:
        self._waiting.discard(domain)
        return domain if domain in self._domains else None


@dataclass(slots=True)
class _Offer:
    since_ns: int
    heard_ns: int


class DomainRouteTable:
    """A context's table: which DRO portal takes unicast traffic for a domain.

    Guess: an offer that is not repeated for three maximum intervals is void; of several DROs that offer the same
    domain the one counts that began last, since the others are about to stop.
    """

    def __init__(self, hold_ns: int = 3 * NS_PER_S, entries_max: int = 65_536, offers_max: int = 8) -> None:
        """`offers_max`: for one domain."""
        self._hold_ns = hold_ns
        self._entries_max = entries_max
        self._offers_max = offers_max
        self._offers: dict[int, dict[tuple[int, int], _Offer]] = {}  # domain -> address and port

    def __len__(self) -> int:
        return len(self._offers)

    def learn(self, domains: Iterable[int], ip: int, port: int, now_ns: int) -> None:
        for domain in domains:
            offers = self._offers.get(domain)
            if offers is None:
                if len(self._offers) >= self._entries_max:
                    continue
                offers = self._offers[domain] = {}
            offer = offers.get((ip, port))
            if offer is not None and now_ns - offer.heard_ns <= self._hold_ns:
                offer.heard_ns = now_ns
            elif offer is not None or len(self._living(domain, now_ns)) < self._offers_max:
                offers[ip, port] = _Offer(now_ns, now_ns)

    def find(self, domain: int, now_ns: int) -> tuple[int, int] | None:
        """Address and port, or None without a living route."""
        offers = self._living(domain, now_ns)
        if not offers:
            self._offers.pop(domain, None)
            return None
        return max(offers, key=lambda address: offers[address].since_ns)

    def _living(self, domain: int, now_ns: int) -> dict[tuple[int, int], _Offer]:
        offers = self._offers.get(domain, {})
        for address in [address for address, offer in offers.items() if now_ns - offer.heard_ns > self._hold_ns]:
            del offers[address]
        return offers


class InitialRequest:
    """Topic resolution requests of a portal that has just started: `<initial-request>`."""

    def __init__(
        self, start_ns: int, periodic_interval_ns: int = 1000 * NS_PER_MS, duration_ns: int = 10 * NS_PER_S
    ) -> None:
        self._interval_ns = periodic_interval_ns
        self._duration_ns = duration_ns
        self.restart(start_ns)

    def restart(self, now_ns: int) -> None:
        """Begin anew: nobody may have heard the requests before."""
        self._start_ns = self._due_ns = now_ns
        self._end_ns = now_ns + self._duration_ns

    def set_options(self, periodic_interval_ns: int, duration_ns: int, now_ns: int) -> None:
        """Other numbers, for as long as the requests of this start go on; they do not make them begin again."""
        self._duration_ns = duration_ns
        if now_ns < self._end_ns:
            self._end_ns = self._start_ns + duration_ns
            self._due_ns = max(now_ns, min(self._due_ns, now_ns + periodic_interval_ns))
            self._interval_ns = periodic_interval_ns

    def next_deadline(self) -> int | None:
        return self._due_ns if self._interval_ns > 0 and self._due_ns < self._end_ns else None

    def on_timer(self, now_ns: int) -> lbmr.TopicResolutionRequest | None:
        """The request to send now, if one is due; those that a late timer missed are left out."""
        due = self.next_deadline()
        if due is None or due > now_ns:
            return None
        self._due_ns = due + ((now_ns - due) // self._interval_ns + 1) * self._interval_ns
        return lbmr.TopicResolutionRequest(START_REQUEST)
