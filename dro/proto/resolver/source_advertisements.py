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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from dro.clock import NS_PER_MS
from dro.proto.resolver.events import BadPattern
from dro.proto.resolver.output import Channel
from dro.proto.resolver.schedule import AdvertisingOptions, AdvertisingSchedule, Phase
from dro.timers import Timer
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.records import write_tir
from dro.wire.source_string import TransportAddress

FINAL_TIMES_NS: Final = tuple(ms * NS_PER_MS for ms in (0, 100, 300, 700, 1500))
PATTERNS_MAX: Final = 1024  # compiled patterns of others, kept for their next query

_LeavingKey: TypeAlias = tuple[bytes | None, TransportAddress, int]  # OTID, session, topic index
Matcher: TypeAlias = Callable[[bytes], bool]  # whether a topic matches
PatternCompiler: TypeAlias = Callable[[bytes, int], Matcher | None]  # pattern, pattern type; None: cannot be used


@dataclass(slots=True, eq=False)
class _Source:
    tir: lbmr.Tir
    options: AdvertisingOptions
    schedule: AdvertisingSchedule
    timer: Timer | None = None
    is_waiting: bool = False  # a scheduled TIR is queued
    is_answering: bool = False  # an answer is queued
    is_removed: bool = False
    finals: list[Timer] = field(default_factory=list)


class SourceSide:
    """Own sources by handle."""

    def __init__(self, channel: Channel, compile_pattern: PatternCompiler, *, adds_domain: bool) -> None:
        self._channel = channel
        self._compile = compile_pattern
        self._adds_domain = adds_domain
        self._handles = itertools.count(1)
        self._sources: dict[int, _Source] = {}
        self._by_topic: dict[bytes, dict[int, _Source]] = {}
        self._leaving: dict[int, _Source] = {}
        self._leaving_by_key: dict[_LeavingKey, dict[int, _Source]] = {}
        self._patterns: OrderedDict[tuple[bytes, int], Matcher | None] = OrderedDict()

    @property
    def finals_pending(self) -> int:
        """Removed sources whose final advertisements are not all out yet."""
        return len(self._leaving)

    def add(self, tir: lbmr.Tir, options: AdvertisingOptions) -> int:
        """Raises: DecodeError for a TIR that cannot be written."""
        write_tir(tir)
        self._cancel_finals(tir)
        source = _Source(
            tir, options, AdvertisingSchedule(options, self._channel.now_ns, grid_ns=self._channel.grid_ns)
        )
        handle = next(self._handles)
        self._sources[handle] = source
        self._by_topic.setdefault(tir.topic, {})[handle] = source
        if options.send_initial:
            self._channel.output.initial_advertisements.put(partial(self._first, source))
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
        if source.timer is not None:
            source.timer.cancel()
        by_topic = self._by_topic[source.tir.topic]
        del by_topic[handle]
        if not by_topic:
            del self._by_topic[source.tir.topic]
        if final:
            self._leaving[handle] = source
            self._leaving_by_key.setdefault(_leaving_key(source.tir), {})[handle] = source
            for nth, after_ns in enumerate(FINAL_TIMES_NS):
                is_last = nth == len(FINAL_TIMES_NS) - 1
                callback = partial(self._put_final, handle, is_last=is_last)
                source.finals.append(self._channel.timers.call_at(self._channel.now_ns + after_ns, callback))

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
            source.schedule.on_answered(self._channel.now_ns)
            self._arm(source)
        for queue, is_initial in (
            (self._channel.output.initial_advertisements, True),
            (self._channel.output.sustain_advertisements, False),
        ):
            group = [source for source in due if (source.schedule.phase is Phase.INITIAL) == is_initial]
            for source in group:
                source.is_answering = True
            if group:
                queue.put_group([partial(self._answered, source) for source in group])

    def _arm(self, source: _Source) -> None:
        due = source.schedule.next_due()
        if source.timer is not None:
            if source.timer.is_pending and source.timer.when_ns == due:
                return
            source.timer.cancel()
        source.timer = None if due is None else self._channel.timers.call_at(due, partial(self._on_due, source))

    def _on_due(self, source: _Source) -> None:
        is_initial = source.schedule.phase is Phase.INITIAL
        if source.schedule.on_tick(self._channel.now_ns) and not source.is_waiting:
            source.is_waiting = True
            queue = (
                self._channel.output.initial_advertisements
                if is_initial
                else self._channel.output.sustain_advertisements
            )
            queue.put(partial(self._scheduled, source))
        self._arm(source)

    def _first(self, source: _Source) -> lbmr.Tir | None:
        return self._record(source, lbmr.FIRST_TIR_TTL)

    def _scheduled(self, source: _Source) -> lbmr.Tir | None:
        source.is_waiting = False
        return self._record(source, lbmr.TIR_TTL)

    def _answered(self, source: _Source) -> lbmr.Tir | None:
        source.is_answering = False
        return self._record(source, lbmr.TIR_TTL)

    def _record(self, source: _Source, ttl: int) -> lbmr.Tir | None:
        return None if source.is_removed else replace(self._with_domain(source.tir), ttl=ttl)

    def _with_domain(self, tir: lbmr.Tir) -> lbmr.Tir:
        """An application's TIR names the domain where it originates, once that is known."""
        options = tir.options
        if not self._adds_domain or not self._channel.domain_id or options is None or options.domain_id is not None:
            return tir
        return replace(tir, options=options.replacing(lbmr.DomainId(self._channel.domain_id)))

    def _put_final(self, handle: int, *, is_last: bool) -> None:
        source = self._leaving[handle]
        if is_last:
            self._has_left(handle)
        self._channel.output.sustain_advertisements.put(partial(self._final, source))

    def _final(self, source: _Source) -> lbmr.Tir | None:
        if not source.finals:
            return None
        tir = self._with_domain(source.tir)
        options = tir.options or lbmr.TirOptions()
        hops = options.cost.hop_count if options.cost else 0
        cost = lbmr.Cost(hops, lbmr.FINAL_COST)
        return replace(tir, ttl=lbmr.TIR_TTL, options=options.replacing(cost))

    def _cancel_finals(self, tir: lbmr.Tir) -> None:
        if tir.otid is None:
            return
        for handle, source in list(self._leaving_by_key.get(_leaving_key(tir), {}).items()):
            self._has_left(handle)
            for timer in source.finals:
                timer.cancel()
            source.finals.clear()

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
            self._channel.events.append(BadPattern(query.pattern, query.pattern_type))
        self._patterns[key] = matcher
        if len(self._patterns) > PATTERNS_MAX:
            self._patterns.popitem(last=False)
        return matcher


def _leaving_key(tir: lbmr.Tir) -> _LeavingKey:
    return tir.otid, tir.transport, tir.topic_index
