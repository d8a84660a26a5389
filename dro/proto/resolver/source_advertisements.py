"""The source side of a context on the TR channel: advertisements, answers to queries, final advertisements.

State: own sources with their schedules, series of final advertisements. Owned by the resolver.

    added          TIR at once (ttl 16), then the phases
    TQR            one TIR at once, alone in its datagram; the answers to many TQRs of one packet share datagrams
    WC-TQR         all matching TIRs at once, in datagrams of their own; after a large answer none for a while
    removed        nothing, or final advertisements at 0, 100, 300, 700, 1500 ms (cost -1)

Source: UM documentation of the resolver; real capture for times and packing of answers. Guess: count and spacing of
final advertisements; the series ends when the same source is added again on the same session under the same index.
Under another index it continues, because receivers keep the old one until they get a final advertisement. How many
TQRs of a packet are many: the capture has one. The pause
after a large answer to a pattern; whoever asks meanwhile hears the sustaining phase that the answer begins.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from dro.clock import NS_PER_MS, NS_PER_S
from dro.proto.resolver.events import BadPattern
from dro.proto.resolver.output import Channel
from dro.proto.resolver.schedule import AdvertisingOptions, AdvertisingSchedule, Phase
from dro.table import Table
from dro.timers import DUE_MAX, Due
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.records import with_ttl, write_tir
from dro.wire.source_string import TransportAddress

FINAL_TIMES_NS: Final = tuple(ms * NS_PER_MS for ms in (0, 100, 300, 700, 1500))
PATTERNS_MAX: Final = 1024  # compiled patterns of others, kept for their next query
MATCHING_MAX: Final = 4096  # topics remembered for a pattern; one that more match is compared each time
SERIALS_AT_ONCE: Final = 8  # of topics that are gone, forgotten when another one goes
ALONE_MAX: Final = 8
LARGE_ANSWER: Final = 64  # sources: about one datagram
QUIET_NS: Final = NS_PER_S  # after a large answer the same pattern gets no other for so long
QUIET_NS_PER_SOURCE: Final = NS_PER_MS  # or for as long as the answer takes at the default limit

_LeavingKey: TypeAlias = tuple[bytes | None, TransportAddress, int]  # OTID, session, topic index
Matcher: TypeAlias = Callable[[bytes], bool]  # whether a topic matches
PatternCompiler: TypeAlias = Callable[[bytes, int], Matcher | None]  # pattern, pattern type; None: cannot be used


@dataclass(slots=True, eq=False)
class _Source(Due):
    side: SourceSide
    tir: lbmr.Tir
    options: AdvertisingOptions
    schedule: AdvertisingSchedule
    written: bytes = b""  # the advertisement as it leaves, but for its ttl; empty: to be written anew
    is_waiting: bool = False  # the first TIR or a scheduled one is queued, and the next one falls due when it has left
    is_answering: bool = False  # an answer is queued, or the first TIR, which is one to whoever asked meanwhile
    is_removed: bool = False

    def on_due(self) -> None:
        self.side.on_due(self)

    def first(self) -> bytes | None:
        self.is_answering = False
        return self.side.on_leaving(self, lbmr.FIRST_TIR_TTL)

    def scheduled(self) -> bytes | None:
        self.schedule.on_tick(self.side.channel.now_ns)
        return self.side.on_leaving(self, lbmr.TIR_TTL)

    def answer(self) -> bytes | None:
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

    def final(self) -> bytes | None:
        return None if self.is_cancelled else self.side.on_final_leaving(self)


class _OfTopic(dict[int, _Source]):
    """The sources of one topic by handle; empty for good when the last is gone. `serial`: larger for later topics."""

    __slots__ = ("serial",)

    def __init__(self, serial: int) -> None:
        self.serial = serial


@dataclass(slots=True, eq=False)
class _Pattern:
    """What others ask for; `matcher` None: cannot be used."""

    matcher: Matcher | None
    matching: list[bytes] = field(default_factory=list)  # topics, of those up to the serial `compared`
    compared: int = 0
    is_busy: bool = False  # an answer is being made
    quiet_ns: int = 0  # no answer before


class SourceSide:
    """Own sources by handle."""

    def __init__(self, channel: Channel, compile_pattern: PatternCompiler, *, adds_domain: bool) -> None:
        self.channel = channel
        self._compile = compile_pattern
        self._adds_domain = adds_domain
        self._handles = itertools.count(1)
        self._sources: Table[int, _Source] = Table()
        self._by_topic: Table[bytes, _OfTopic] = Table()
        self._by_serial: Table[int, bytes] = Table()
        self._serial = 0  # of the latest topic
        self._first_serial = 1  # no topic has a lower one; it follows within some removals
        self._leaving: Table[int, _Finals] = Table()
        self._leaving_by_key: Table[_LeavingKey, dict[int, _Finals]] = Table()
        self._patterns: OrderedDict[tuple[bytes, int], _Pattern] = OrderedDict()
        self._everything = _Pattern(None)

    @property
    def finals_pending(self) -> int:
        """Removed sources whose final advertisements are not all out yet."""
        return len(self._leaving)

    def add(self, tir: lbmr.Tir, options: AdvertisingOptions) -> int:
        """Advertise a source. Raises: DecodeError for a TIR that cannot be written."""
        written = write_tir(tir)
        self._cancel_finals(tir)
        schedule = AdvertisingSchedule(options, self.channel.now_ns, grid_ns=self.channel.grid_ns)
        source = _Source(self, tir, options, schedule, b"" if self._adds_domain else written)
        handle = next(self._handles)
        self._sources[handle] = source
        of_topic = self._by_topic.get(tir.topic)
        if of_topic is None:
            self._serial += 1
            of_topic = self._by_topic[tir.topic] = _OfTopic(self._serial)
            self._by_serial[self._serial] = tir.topic
        of_topic[handle] = source
        if options.send_initial:
            source.is_waiting = source.is_answering = True
            self.channel.output.initial_advertisements.put(source.first, ahead=True)
        else:
            self._arm(source)
        return handle

    def update(self, handle: int, tir: lbmr.Tir) -> None:
        """Advertise something else from now on, once at once. The topic stays. Raises: DecodeError."""
        source = self._sources[handle]
        write_tir(tir)
        source.tir, source.written = replace(tir, topic=source.tir.topic), b""
        self._answer([source])

    def remove(self, handle: int, *, final: bool) -> None:
        source = self._sources.pop(handle)
        source.is_removed = True
        self.channel.calendar.set(source, None)
        of_topic = self._by_topic[source.tir.topic]
        del of_topic[handle]
        if not of_topic:
            del self._by_topic[source.tir.topic], self._by_serial[of_topic.serial]
            for _ in range(SERIALS_AT_ONCE):
                if self._first_serial > self._serial or self._first_serial in self._by_serial:
                    break
                self._first_serial += 1
        if final:
            finals = _Finals(self, source.tir, self.channel.now_ns, handle)
            self._leaving[handle] = finals
            self._leaving_by_key.setdefault(_leaving_key(source.tir), {})[handle] = finals
            self.channel.calendar.set(finals, self.channel.now_ns)

    def on_topic_queries(self, topics: Iterable[bytes]) -> None:
        """TQRs of one packet, each topic once."""
        asked = [source for topic in topics for source in self._by_topic.get(topic, {}).values()]
        for group in [[source] for source in asked] if len(asked) <= ALONE_MAX else [asked]:
            self._answer(group)

    def on_pattern_queries(self, patterns: Iterable[lbmr.WildcardTqr]) -> None:
        """WC-TQRs of one packet, each pattern once."""
        if not self._sources:
            return
        for query in patterns:
            pattern = self._pattern(query)
            if pattern.matcher is not None and not pattern.is_busy and self.channel.now_ns >= pattern.quiet_ns:
                self.channel.run_in_slices(self._answer_all(self._matching(pattern), pattern))

    def on_request(self) -> None:
        """Everybody is asked to advertise: as a query for every source."""
        if not self._everything.is_busy:
            self.channel.run_in_slices(self._answer_all(iter(list(self._by_topic.values())), self._everything))

    # ------------------------------------------------------------------------------------------------ inside

    def _matching(self, pattern: _Pattern) -> Iterator[_OfTopic | None]:
        """Yield the sources of each topic that matches; None for one that does not. Only new topics are compared."""
        assert pattern.matcher is not None
        compared, pattern.compared = pattern.compared, self._serial
        known, pattern.matching = pattern.matching, []
        for topic in known:
            sources = self._by_topic.get(topic)
            if sources is not None and sources.serial <= compared:  # and did not end and come back
                pattern.matching.append(topic)
                yield sources
            else:
                yield None
        for serial in range(max(compared + 1, self._first_serial), pattern.compared + 1):
            new = self._by_serial.get(serial)
            if new is not None and pattern.matcher(new):
                pattern.matching.append(new)
                yield self._by_topic[new]
            else:
                yield None
        if len(pattern.matching) > MATCHING_MAX:
            pattern.matching, pattern.compared = [], 0

    def _answer_all(self, topics: Iterator[_OfTopic | None], pattern: _Pattern) -> Iterator[None]:
        """Answer with all sources of the topics, in as few datagrams as slices allow; a topic is a step."""
        pattern.is_busy = True
        answer: list[_Source] = []
        count = 0
        for sources in topics:
            if sources is not None:
                answer += sources.values()
            if len(answer) >= DUE_MAX:
                count += len(answer)
                self._answer(answer)
                answer = []
            yield
        self._answer(answer)
        count += len(answer)
        if count > LARGE_ANSWER:
            pattern.quiet_ns = self.channel.now_ns + max(QUIET_NS, count * QUIET_NS_PER_SOURCE)
        pattern.is_busy = False

    def _answer(self, sources: list[_Source]) -> None:
        """Send TIRs that share datagrams with nothing else; what still waits as an answer is not sent twice."""
        sources = [source for source in sources if not (source.is_answering or source.is_removed)]
        for source in sources:
            source.schedule.on_answered(self.channel.now_ns)
            self._arm(source)
        due = [source for source in sources if source.options.send_immediate_response]
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

    def on_leaving(self, source: _Source, ttl: int) -> bytes | None:
        source.is_waiting = False
        if source.is_removed:
            return None
        self._arm(source)
        return self.record(source, ttl)

    def record(self, source: _Source, ttl: int) -> bytes | None:
        if source.is_removed:
            return None
        written = source.written
        if not written:
            written = write_tir(self._with_domain(source.tir))
            if not self._adds_domain or self.channel.domain_id:
                source.written = written
        return with_ttl(written, source.tir.topic, ttl)

    def on_domain(self) -> None:
        """Write another domain id than before into what is advertised from now on."""
        if self._adds_domain:
            for source in self._sources.values():
                source.written = b""

    def _with_domain(self, tir: lbmr.Tir) -> lbmr.Tir:
        """Add the domain where an application's TIR originates, once that is known."""
        options = tir.options
        if not self._adds_domain or not self.channel.domain_id or options is None or options.domain_id is not None:
            return tir
        return replace(tir, options=options.replacing(lbmr.DomainId(self.channel.domain_id)))

    def on_final_leaving(self, finals: _Finals) -> bytes:
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
        return write_tir(replace(tir, ttl=lbmr.TIR_TTL, options=options.replacing(cost)))

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

    def _pattern(self, query: lbmr.WildcardTqr) -> _Pattern:
        key = (query.pattern, query.pattern_type)
        pattern = self._patterns.get(key)
        if pattern is not None:
            self._patterns.move_to_end(key)
            return pattern
        pattern = self._patterns[key] = _Pattern(self._compile(query.pattern, query.pattern_type))
        if pattern.matcher is None:
            self.channel.events.append(BadPattern(query.pattern, query.pattern_type))
        if len(self._patterns) > PATTERNS_MAX:
            self._patterns.popitem(last=False)
        return pattern


def _leaving_key(tir: lbmr.Tir) -> _LeavingKey:
    return tir.otid, tir.transport, tir.topic_index
