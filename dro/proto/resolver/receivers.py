"""The receiver side of a context on the TR channel: sends queries, receives advertisements, decides what to join.

State: the wanted topics and patterns with their query schedules, the cache of all sources heard. Owned by the resolver.

    receiver added      join what the cache has, TQR at once, then the phases
    wildcard added      join what matches, WC-TQR at once, then doubling; topics found by a pattern are not queried
    TIR                 into the cache; wanted and not joined: join; joined at a higher cost: switch
    final TIR, EOS      forget that session, join another one that is alive, TQR at once, then the sustaining phase
    last one removed    LEAVE three times, 100 ms apart
    use query           answered if there is a receiver for exactly that topic, or a pattern spelt exactly so

Which sessions of a source are joined is decided in `dro.proto.resolver.joining`.

Source: UM documentation of the resolver; real capture. Guess: an alternative that was not heard for ten seconds is
joined with its next advertisement, for which the query asks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dro.pattern_groups import PatternSet
from dro.proto.resolver.cache import Learned, SourceKey, TopicCache
from dro.proto.resolver.events import (
    NoSource,
    OtidMismatch,
    SourceFinal,
    SourceFound,
    TopicMatched,
    TopicUnmatched,
    found,
)
from dro.proto.resolver.joining import Joining
from dro.proto.resolver.leaves import LeaveRecords
from dro.proto.resolver.output import Channel, pattern_flags
from dro.proto.resolver.schedule import Phase, QueryOptions, QuerySchedule, WildcardQueryOptions, WildcardQuerySchedule
from dro.proto.resolver.source_advertisements import Matcher
from dro.table import Table
from dro.timers import Due
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.records import write_tqr, write_wildcard_tqr


@dataclass(slots=True, eq=False)
class _Topic(Due):
    """A topic that receivers or patterns want."""

    side: ReceiverSide
    name: bytes
    options: QueryOptions
    receivers: int = 0
    wildcards: dict[int, _Wildcard] | None = None  # that found it
    schedule: QuerySchedule | None = None
    linger: _Linger | None = None
    is_waiting: bool = False  # a TQR is queued, and the next one falls due when it has left
    unanswered: int = 0  # queries since the last advertisement
    is_told: bool = False

    def on_due(self) -> None:
        self.side.on_query_due(self)

    def query(self) -> bytes | None:
        return self.side.on_query_leaving(self)


@dataclass(slots=True, eq=False)
class _Linger(Due):
    """The end of a topic that only patterns want and that has no source."""

    topic: _Topic

    def on_due(self) -> None:
        self.topic.side.on_linger(self.topic)


@dataclass(slots=True, eq=False)
class _Wildcard(Due):
    side: ReceiverSide
    query: lbmr.WildcardTqr
    options: WildcardQueryOptions
    query_options: QueryOptions  # for topics that it finds
    schedule: WildcardQuerySchedule
    topics: Table[bytes, _Topic] = field(default_factory=Table)  # that it wants
    is_waiting: bool = False
    is_removed: bool = False

    def on_due(self) -> None:
        self.side.run_wildcard(self)

    def leaving(self) -> lbmr.WildcardTqr | None:
        return self.side.on_wildcard_leaving(self)


class ReceiverSide:
    """Wanted topics, wanted patterns and the cache."""

    def __init__(self, channel: Channel, cache: TopicCache, *, leaves_matched: bool = False) -> None:
        """`leaves_matched`: leave records are sent also for topics that only patterns wanted."""
        self._leaves_matched = leaves_matched
        self.cache = cache
        self.channel = channel
        self._topics: Table[bytes, _Topic] = Table()
        self._wildcards: dict[int, _Wildcard] = {}
        self._patterns: Counter[lbmr.WildcardTqr] = Counter()  # how many of `_wildcards` ask so
        self._matchers: PatternSet[int] = PatternSet()  # of `_wildcards`
        self._handles = itertools.count(1)
        self._leaves = LeaveRecords(channel)
        self.joining = Joining(channel, cache, self._options_of)
        self._is_asking_all = False

    def _options_of(self, topic: bytes) -> QueryOptions | None:
        """Return the options of a topic, None for one that nobody wants."""
        wanted = self._topics.get(topic)
        return None if wanted is None else wanted.options

    def add_receiver(self, topic: bytes, options: QueryOptions) -> None:
        """One more receiver. Raises: DecodeError for a name that cannot be written."""
        write_tqr(topic)
        wanted = self._topics.get(topic)
        if wanted is None:
            wanted = self._topics[topic] = _Topic(self, topic, options)
        wanted.receivers += 1
        if wanted.receivers > 1:
            return
        self._leaves.cancel(topic, 0)
        wanted.options = options
        wanted.unanswered, wanted.is_told = 0, False
        self.joining.join_topic(topic)
        if options.source_threshold > 0:
            wanted.schedule = QuerySchedule(options, self.channel.now_ns, grid_ns=self.channel.grid_ns)
            self._run(wanted)

    def remove_receiver(self, topic: bytes) -> None:
        wanted = self._topics[topic]
        wanted.receivers -= 1
        if wanted.receivers == 0:
            wanted.schedule = None
            self._run(wanted)
            self._leaves.start(topic, 0)
            self._drop_unwanted(wanted)

    def add_wildcard(
        self,
        pattern: bytes,
        pattern_type: int,
        matcher: Matcher,
        options: WildcardQueryOptions,
        query_options: QueryOptions,
    ) -> int:
        """A wildcard receiver; gives its handle. Raises: DecodeError for a pattern that cannot be written."""
        query = lbmr.WildcardTqr(pattern_type, pattern)
        write_wildcard_tqr(query)
        schedule = WildcardQuerySchedule(options, self.channel.now_ns, grid_ns=self.channel.grid_ns)
        wildcard = _Wildcard(self, query, options, query_options, schedule)
        handle = next(self._handles)
        self._wildcards[handle] = wildcard
        self._patterns[query] += 1
        self._leaves.cancel(pattern, pattern_type)
        self._matchers.add(handle, matcher)
        self.channel.run_in_slices(self._match_known(handle, wildcard, matcher))
        self.run_wildcard(wildcard)
        return handle

    def _match_known(self, handle: int, wildcard: _Wildcard, matcher: Matcher) -> Iterator[None]:
        for topic in self.cache.topics():
            if wildcard.is_removed:
                return
            if matcher(topic) and self.cache.source_count(topic):
                self._match(handle, wildcard, topic)
                self.joining.join_topic(topic)
            yield

    def remove_wildcard(self, handle: int) -> Iterator[bytes]:
        """Remove a receiver; gives each topic that it had found, after taking it from the receiver."""
        wildcard = self._wildcards.pop(handle)
        self._matchers.remove(handle)
        wildcard.is_removed = True
        self.channel.calendar.set(wildcard, None)
        self._patterns[wildcard.query] -= 1
        if not self._patterns[wildcard.query]:
            del self._patterns[wildcard.query]
            self._leaves.start(wildcard.query.pattern, wildcard.query.pattern_type)
        return self._take_topics(handle, wildcard)

    def _take_topics(self, handle: int, wildcard: _Wildcard) -> Iterator[bytes]:
        for name, topic in wildcard.topics.items():
            if topic.wildcards is not None:
                topic.wildcards.pop(handle, None)
            if self._topics.get(name) is topic:
                self._drop_unwanted(topic)
            yield name

    # ------------------------------------------------------------------------------------------------ packets

    def join_known(self, tir: lbmr.Tir, *, source_ip: int, from_dro: bool, source_id: bytes | None) -> None:
        """See `Resolver.join_known`. Another session of the same source that is joined stays."""
        self.on_advertisement(tir, source_ip=source_ip, from_dro=from_dro, source_id=source_id, is_known=True)
        entry = self.cache.get((tir.topic, tir.transport, tir.topic_index))
        if entry is not None and self.cache.joined(tir.topic, entry.otid) is None and self.joining.is_accepted(entry):
            entry.is_joined = True
            self.channel.events.append(SourceFound(found(entry), is_known=True))

    def on_advertisement(
        self, tir: lbmr.Tir, *, source_ip: int, from_dro: bool, source_id: bytes | None, is_known: bool = False
    ) -> None:
        if tir.is_final:
            self._on_final(tir)
            return
        before = self.cache.get((tir.topic, tir.transport, tir.topic_index))
        old_options = before.tir.options if before is not None else None
        is_known_topic = self.cache.source_count(tir.topic) > 0  # compared with the patterns when it was first heard
        now_ns = self.channel.now_ns
        outcome, entry = self.cache.learn(
            tir, source_ip=source_ip, from_dro=from_dro, source_id=source_id, now_ns=now_ns, is_known=is_known
        )
        if outcome is Learned.MISMATCH:
            self.channel.events.append(OtidMismatch(tir.topic, tir))
        if entry is None or outcome is Learned.MISMATCH:
            return
        if outcome is Learned.NEW and not is_known_topic and self._wildcards:
            for handle in self._matchers.matching(tir.topic):
                self._match(handle, self._wildcards[handle], tir.topic)
        wanted = self._topics.get(tir.topic)
        if wanted is not None:
            self._on_answer(wanted)
            self.joining.choose(entry, has_changed=entry.is_joined and old_options != tir.options)

    def on_end(self, key: SourceKey) -> None:
        """A joined session of a source has ended: transport timeout, disconnect, or it could not be joined at all."""
        entry = self.cache.drop(key)
        wanted = self._topics.get(key[0])
        if wanted is not None and entry is not None and entry.is_joined:
            self.joining.rejoin(entry)
        if wanted is not None:
            self._ask_again(wanted)

    def on_use_queries(self, records: Iterable[lbmr.Tmr]) -> None:
        for tmr in records:
            if tmr.kind != lbmr.TmrType.USE or tmr.is_response:
                continue
            if tmr.is_pattern:
                is_mine = lbmr.WildcardTqr(tmr.pattern_type, tmr.name) in self._patterns
            else:
                wanted = self._topics.get(tmr.name)
                is_mine = wanted is not None and wanted.receivers > 0
            if is_mine:
                flags = lbmr.TmrFlag.RESPONSE | pattern_flags(tmr.pattern_type)
                self.channel.output.put_tmr(lbmr.Tmr(lbmr.TmrType.USE, flags, tmr.name))

    def on_query_request(self) -> None:
        """Receivers are asked to speak. Those in the initial phase do so anyway."""
        if not self._is_asking_all:
            self._is_asking_all = True
            self.channel.run_in_slices(self._ask_all())

    def _ask_all(self) -> Iterator[None]:
        for wanted in list(self._topics.values()):
            if wanted.schedule is not None and wanted.schedule.phase is not Phase.INITIAL:
                self._query(wanted)
                wanted.schedule.restart_sustaining(self.channel.now_ns)
                self._run(wanted)
            yield
        self._is_asking_all = False

    def on_wildcard_request(self) -> None:
        for wildcard in self._wildcards.values():
            wildcard.schedule.restart(self.channel.now_ns)
            self.run_wildcard(wildcard)

    # ------------------------------------------------------------------------------------------------ ends, patterns

    def _on_final(self, tir: lbmr.Tir) -> None:
        key = (tir.topic, tir.transport, tir.topic_index)
        entry = self.cache.get(key)
        if entry is None or (tir.otid is not None and tir.otid != entry.otid):
            return
        self.cache.drop(key)
        if entry.is_joined:
            self.channel.events.append(SourceFinal(found(entry)))
            wanted = self._topics.get(tir.topic)
            if wanted is not None:
                self.joining.rejoin(entry)
                self._ask_again(wanted)

    def _match(self, handle: int, wildcard: _Wildcard, topic: bytes) -> None:
        wanted = self._topics.get(topic)
        if wanted is None:
            if self._leaves_matched:
                self._leaves.cancel(topic, 0)
            wanted = self._topics[topic] = _Topic(self, topic, wildcard.query_options)
        if wanted.wildcards is None:
            wanted.wildcards = {}
        if handle not in wanted.wildcards:
            wanted.wildcards[handle] = wildcard
            wildcard.topics[topic] = wanted
            self.channel.events.append(TopicMatched(handle, topic))

    def _drop_unwanted(self, wanted: _Topic) -> None:
        if wanted.receivers or wanted.wildcards:
            return
        self._topics.pop(wanted.name, None)
        if self._leaves_matched and wanted.unanswered:
            self._leaves.start(wanted.name, 0)
        self.cache.leave_topic(wanted.name)
        wanted.schedule = None
        self._run(wanted)
        self._stop_linger(wanted)

    # ------------------------------------------------------------------------------------------------ queries

    def _run(self, wanted: _Topic) -> None:
        """Send what is due for a topic, and note when the next query is. While one waits to leave, none falls due."""
        if wanted.is_waiting:
            return
        due = wanted.schedule.next_due() if wanted.schedule is not None else None
        if due is not None and due <= self.channel.now_ns:
            self.on_query_due(wanted)
        else:
            self.channel.calendar.set(wanted, due)

    def on_query_due(self, wanted: _Topic) -> None:
        schedule = wanted.schedule
        assert schedule is not None
        is_sustaining = schedule.phase is Phase.SUSTAINING
        if is_sustaining and self.cache.source_count(wanted.name) >= wanted.options.source_threshold:
            schedule.stop()
        else:
            self._query(wanted, is_initial=not is_sustaining, is_first=schedule.is_at_start)

    def _query(self, wanted: _Topic, *, is_initial: bool = False, is_first: bool = False) -> None:
        if wanted.is_waiting:
            return
        is_found = self.cache.has_joined(wanted.name)
        if not is_found:
            self._check_unanswered(wanted)
            wanted.unanswered += 1
        wanted.is_waiting = True
        self.channel.calendar.set(wanted, None)
        output = self.channel.output
        queue = output.initial_queries if is_initial else output.sustain_queries
        queue.put(wanted.query, ahead=is_first or not (is_initial or is_found))

    def on_query_leaving(self, wanted: _Topic) -> bytes | None:
        wanted.is_waiting = False
        if self._topics.get(wanted.name) is not wanted:
            return None
        if wanted.schedule is not None:
            wanted.schedule.on_tick(self.channel.now_ns)
            self._run(wanted)
        return wanted.name

    def _check_unanswered(self, wanted: _Topic) -> None:
        """Report once that the last `threshold` queries brought nothing; topics that only patterns want linger then."""
        if wanted.is_told:
            return
        if wanted.receivers:
            threshold, linger_ns = wanted.options.no_source_threshold, None
        else:
            wildcards = (wanted.wildcards or {}).values()
            threshold = max(wildcard.options.no_source_threshold for wildcard in wildcards)
            linger_ns = max(wildcard.options.no_source_linger_ns for wildcard in wildcards)
        if 0 < threshold <= wanted.unanswered:
            wanted.is_told = True
            self.channel.events.append(NoSource(wanted.name))
            if linger_ns is not None:
                wanted.linger = _Linger(wanted)
                self.channel.calendar.set(wanted.linger, self.channel.now_ns + linger_ns)

    def on_linger(self, wanted: _Topic) -> None:
        if wanted.receivers:
            return
        for handle, wildcard in (wanted.wildcards or {}).items():
            if not wildcard.is_removed:
                del wildcard.topics[wanted.name]
                self.channel.events.append(TopicUnmatched(handle, wanted.name))
        wanted.wildcards = None
        self.cache.drop_topic(wanted.name)
        self._drop_unwanted(wanted)

    def _on_answer(self, wanted: _Topic) -> None:
        wanted.unanswered, wanted.is_told = 0, False
        self._stop_linger(wanted)
        if not wanted.receivers and wanted.schedule is not None:
            wanted.schedule = None  # found by a pattern only: not queried while a source lives
            self._run(wanted)

    def _stop_linger(self, wanted: _Topic) -> None:
        if wanted.linger is not None:
            self.channel.calendar.set(wanted.linger, None)

    def _ask_again(self, wanted: _Topic) -> None:
        """Query for a topic whose source has ended, once and at once, then in the sustaining phase."""
        if wanted.options.source_threshold <= 0:
            return
        if wanted.schedule is None:
            options = replace(wanted.options, minimum_initial_interval_ns=0)
            wanted.schedule = QuerySchedule(options, self.channel.now_ns, grid_ns=self.channel.grid_ns)
        else:
            wanted.schedule.restart_sustaining(self.channel.now_ns)
        self._query(wanted)
        self._run(wanted)

    def run_wildcard(self, wildcard: _Wildcard) -> None:
        if wildcard.is_waiting:
            return
        due = wildcard.schedule.next_due()
        if due is not None and due <= self.channel.now_ns:
            wildcard.is_waiting = True
            self.channel.calendar.set(wildcard, None)
            self.channel.output.wildcard_queries.put(wildcard.leaving)
        else:
            self.channel.calendar.set(wildcard, due)

    def on_wildcard_leaving(self, wildcard: _Wildcard) -> lbmr.WildcardTqr | None:
        wildcard.is_waiting = False
        if wildcard.is_removed:
            return None
        wildcard.schedule.on_tick(self.channel.now_ns)
        self.run_wildcard(wildcard)
        return wildcard.query
