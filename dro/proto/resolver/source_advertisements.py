"""The source side of a context on the TR channel: advertisements, answers to queries, final advertisements.

State: own sources with their schedules, series of final advertisements. Owned by the resolver.

    added          TIR at once (ttl 16), then the phases
    TQR            one TIR at once, alone in its datagram
    WC-TQR         all matching TIRs at once, in datagrams of their own
    removed        nothing, or final advertisements at 0, 100, 300, 700, 1500 ms (cost -1)

Source: UM documentation of the resolver; real capture for times and packing of answers. Guess: count and spacing of
final advertisements; the series ends when the same source is added again on the same session under the same index.
Under another index it continues, because receivers keep the old one until they get a final advertisement.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dro.clock import NS_PER_MS
from dro.proto.resolver.events import BadPattern
from dro.proto.resolver.output import Channel
from dro.proto.resolver.schedule import AdvertisingOptions, AdvertisingSchedule, Phase
from dro.timers import Due
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.records import write_tir
from dro.wire.source_string import TransportAddress

FINAL_TIMES_NS: Final = tuple(ms * NS_PER_MS for ms in (0, 100, 300, 700, 1500))
PATTERNS_MAX: Final = 1024  # compiled patterns of others, kept for their next query

_LeavingKey: TypeAlias = tuple[bytes | None, TransportAddress, int]  # OTID, session, topic index
Matcher: TypeAlias = Callable[[bytes], bool]  # whether a topic matches
PatternCompiler: TypeAlias = Callable[[bytes, int], Matcher | None]  # pattern, pattern type; None: cannot be used


@dataclass(slots=True, eq=False)
class _Source(Due):
    side: SourceSide
    tir: lbmr.Tir
    options: AdvertisingOptions
    schedule: AdvertisingSchedule
    is_waiting: bool = False  # the first TIR or a scheduled one is queued, and the next one falls due when it has left
    is_answering: bool = False  # an answer is queued
    is_removed: bool = False

    def on_due(self) -> None:
        self.side.on_due(self)

    def first(self) -> lbmr.Tir | None:
        return self.side.on_leaving(self, lbmr.FIRST_TIR_TTL)

    def scheduled(self) -> lbmr.Tir | None:
        self.schedule.on_tick(self.side.channel.now_ns)
        return self.side.on_leaving(self, lbmr.TIR_TTL)

    def answer(self) -> lbmr.Tir | None:
        self.is_answering = False
        return self.side.record(self, lbmr.TIR_TTL)


@dataclass(slots=True, eq=False)
class _Finals(Due):
    """The final advertisements of a source that was removed; the next one falls due when one has left."""

    side: SourceSide
    tir: lbmr.Tir
    removed_ns: int
    handle: int
    is_cancelled: bool = False

    def on_due(self) -> None:
        self.side.channel.output.sustain_advertisements.put(self.final)

    def final(self) -> lbmr.Tir | None:
        return None if self.is_cancelled else self.side.on_final_leaving(self)


class SourceSide:
    """Own sources by handle."""

    def __init__(self, channel: Channel, compile_pattern: PatternCompiler, *, adds_domain: bool) -> None:
        self.channel = channel
        self._compile = compile_pattern
        self._adds_domain = adds_domain
        self._handles = itertools.count(1)
        self._sources: dict[int, _Source] = {}
        self._by_topic: dict[bytes, dict[int, _Source]] = {}
        self._leaving: dict[int, _Finals] = {}
        self._leaving_by_key: dict[_LeavingKey, dict[int, _Finals]] = {}
        self._patterns: OrderedDict[tuple[bytes, int], Matcher | None] = OrderedDict()

    @property
    def finals_pending(self) -> int:
        """Removed sources whose final advertisements are not all out yet."""
        return len(self._leaving)

    def add(self, tir: lbmr.Tir, options: AdvertisingOptions) -> int:
        """Raises: DecodeError for a TIR that cannot be written."""
        write_tir(tir)
        self._cancel_finals(tir)
        schedule = AdvertisingSchedule(options, self.channel.now_ns, grid_ns=self.channel.grid_ns)
        source = _Source(self, tir, options, schedule)
        handle = next(self._handles)
        self._sources[handle] = source
        self._by_topic.setdefault(tir.topic, {})[handle] = source
        if options.send_initial:
            source.is_waiting = True
            self.channel.output.initial_advertisements.put(source.first)
        else:
            self._arm(source)
        return handle

    def update(self, handle: int, tir: lbmr.Tir) -> None:
        """Advertise something else from now on, once at once. The topic stays. Raises: DecodeError."""
        source = self._sources[handle]
        write_tir(tir)
        source.tir = replace(tir, topic=source.tir.topic)
        self._answer([source])

    def remove(self, handle: int, *, final: bool) -> None:
        source = self._sources.pop(handle)
        source.is_removed = True
        self.channel.calendar.set(source, None)
        by_topic = self._by_topic[source.tir.topic]
        del by_topic[handle]
        if not by_topic:
            del self._by_topic[source.tir.topic]
        if final:
            finals = _Finals(self, source.tir, self.channel.now_ns, handle)
            self._leaving[handle] = finals
            self._leaving_by_key.setdefault(_leaving_key(source.tir), {})[handle] = finals
            self.channel.calendar.set(finals, self.channel.now_ns)

    def on_topic_queries(self, topics: Iterable[bytes]) -> None:
        """TQRs of one packet, each topic once."""
        for topic in topics:
            for source in self._by_topic.get(topic, {}).values():
                self._answer([source])

    def on_pattern_queries(self, patterns: Iterable[lbmr.WildcardTqr]) -> None:
        """WC-TQRs of one packet, each pattern once."""
        if not self._sources:
            return
        for query in patterns:
            matcher = self._matcher(query)
            if matcher is not None:
                matching = [group for topic, group in self._by_topic.items() if matcher(topic)]
                self._answer([source for group in matching for source in group.values()])

    def on_request(self) -> None:
        """Everybody is asked to advertise: as a query for every source."""
        self._answer(list(self._sources.values()))

    # ------------------------------------------------------------------------------------------------ inside

    def _answer(self, sources: list[_Source]) -> None:
        """TIRs that share datagrams with nothing else; what still waits to be sent as an answer is not asked twice."""
        due = [source for source in sources if source.options.send_immediate_response and not source.is_answering]
        for source in sources:
            source.schedule.on_answered(self.channel.now_ns)
            self._arm(source)
        for queue, is_initial in (
            (self.channel.output.initial_advertisements, True),
            (self.channel.output.sustain_advertisements, False),
        ):
            group = [source for source in due if (source.schedule.phase is Phase.INITIAL) == is_initial]
            for source in group:
                source.is_answering = True
            if group:
                queue.put_group([source.answer for source in group])

    def _arm(self, source: _Source) -> None:
        if not source.is_waiting:
            self.channel.calendar.set(source, source.schedule.next_due())

    def on_due(self, source: _Source) -> None:
        source.is_waiting = True
        output = self.channel.output
        is_initial = source.schedule.phase is Phase.INITIAL
        (output.initial_advertisements if is_initial else output.sustain_advertisements).put(source.scheduled)

    def on_leaving(self, source: _Source, ttl: int) -> lbmr.Tir | None:
        source.is_waiting = False
        if source.is_removed:
            return None
        self._arm(source)
        return self.record(source, ttl)

    def record(self, source: _Source, ttl: int) -> lbmr.Tir | None:
        return None if source.is_removed else replace(self._with_domain(source.tir), ttl=ttl)

    def _with_domain(self, tir: lbmr.Tir) -> lbmr.Tir:
        """An application's TIR names the domain where it originates, once that is known."""
        options = tir.options
        if not self._adds_domain or not self.channel.domain_id or options is None or options.domain_id is not None:
            return tir
        return replace(tir, options=options.replacing(lbmr.DomainId(self.channel.domain_id)))

    def on_final_leaving(self, finals: _Finals) -> lbmr.Tir:
        """One of a series leaves now; those that were missed while it waited are not made up for."""
        after_ns = self.channel.now_ns - finals.removed_ns
        if after_ns < FINAL_TIMES_NS[-1]:
            later = next(at_ns for at_ns in FINAL_TIMES_NS if at_ns > after_ns)
            self.channel.calendar.set(finals, finals.removed_ns + later)
        else:
            self._has_left(finals.handle)
        tir = self._with_domain(finals.tir)
        options = tir.options or lbmr.TirOptions()
        hops = options.cost.hop_count if options.cost else 0
        cost = lbmr.Cost(hops, lbmr.FINAL_COST)
        return replace(tir, ttl=lbmr.TIR_TTL, options=options.replacing(cost))

    def _cancel_finals(self, tir: lbmr.Tir) -> None:
        if tir.otid is None:
            return
        for handle, finals in list(self._leaving_by_key.get(_leaving_key(tir), {}).items()):
            self._has_left(handle)
            self.channel.calendar.set(finals, None)
            finals.is_cancelled = True

    def _has_left(self, handle: int) -> None:
        key = _leaving_key(self._leaving.pop(handle).tir)
        alike = self._leaving_by_key[key]
        del alike[handle]
        if not alike:
            del self._leaving_by_key[key]

    def _matcher(self, query: lbmr.WildcardTqr) -> Matcher | None:
        key = (query.pattern, query.pattern_type)
        if key in self._patterns:
            self._patterns.move_to_end(key)
            return self._patterns[key]
        matcher = self._compile(query.pattern, query.pattern_type)
        if matcher is None:
            self.channel.events.append(BadPattern(query.pattern, query.pattern_type))
        self._patterns[key] = matcher
        if len(self._patterns) > PATTERNS_MAX:
            self._patterns.popitem(last=False)
        return matcher


def _leaving_key(tir: lbmr.Tir) -> _LeavingKey:
    return tir.otid, tir.transport, tir.topic_index
