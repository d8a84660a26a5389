"""Sources and interest at a server of topic resolution over TCP: what is kept, and who is told of which change.

A client that filters is told the sources of topics for which it has interest, one that floods all; one to which
interest is forwarded is told that of the others. Nobody is told what is its own. What was there before a client asks is
told by a walk, as fast as the client takes it; changes are queued for it. Work on one record goes in steps (generators
that yield), as a topic may meet many patterns and clients.

Guess: while another client tells the same OTID at another address, the end of a source is told as its record with cost
-1, which names the address; as SDR the end would be that of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dro.pattern_groups import PatternSet
from dro.patterns import PCRE, Pattern, PatternError
from dro.proto.srs.connection import SrsConnection
from dro.proto.srs.settings import SrsSettings
from dro.proto.srs.tables import (
    INTEREST_COST,
    PATTERN_COST,
    SOURCE_COST,
    NameKey,
    Roster,
    SrsClient,
    SrsInterest,
    SrsSource,
    SrsTopic,
)
from dro.wire.srs.messages import (
    END_COST,
    InterestInfo,
    MessageId,
    SourceDelete,
    SourceInfo,
    decode,
    encode,
)

Steps: TypeAlias = Iterator[None]
_FEW: Final = 64  # records that a step may queue
_LIMITED_SEARCHES: Final = 8
"""A pattern of which so many searches had to be given up is not searched any more."""
_GIVEN_UP: Final = 1 << 60


@dataclass(slots=True)
class RecordCounts:
    """Counts what was refused or has ended, since the start."""

    refused_bytes: int = 0  # records beyond the bytes of a client or of all
    refused_patterns: int = 0
    other_topic: int = 0  # an OTID that belongs to another topic
    given_up_patterns: int = 0
    told_records: int = 0  # queued for clients


class SrsRecords:
    """All records, and the telling of changes. `on_overflow` is told of a connection whose queue is full."""

    def __init__(self, settings: SrsSettings, on_overflow: Callable[[SrsConnection], object]) -> None:
        self._times = settings.times
        self._limits = settings.limits
        self._on_overflow = on_overflow
        self.counts = RecordCounts()
        self.record_bytes = 0
        self.source_count = 0
        self._topics: dict[bytes, SrsTopic] = {}
        self._topic_roster: Roster[SrsTopic] = Roster()
        self._otids: dict[bytes, list[SrsSource]] = {}
        self._names: dict[NameKey, SrsInterest] = {}
        self._name_roster: Roster[SrsInterest] = Roster()
        self._patterns: PatternSet[SrsInterest] = PatternSet()
        self._limited: dict[bytes, int] = {}  # searches given up, by pattern
        self._flooded: dict[SrsConnection, SrsClient] = {}
        self._forwarded: dict[SrsConnection, SrsClient] = {}
        self._farewells: deque[tuple[int, SrsSource]] = deque()

    @property
    def interest_count(self) -> int:
        return len(self._names)

    # clients

    def open_stream(self, client: SrsClient, connection: SrsConnection) -> None:
        """Tell a client from now on, and what there is."""
        mode = client.mode
        walks = connection.walks
        if mode.filters:
            walks["names"] = self._walk_names(client, walks)
        else:
            self._flooded[connection] = client
            walks["topics"] = self._walk_topics(client, None)
        if mode.forwards:
            self._forwarded[connection] = client
            walks["interest"] = self._walk_interest(client)

    def close_stream(self, connection: SrsConnection) -> None:
        connection.walks.clear()
        self._flooded.pop(connection, None)
        self._forwarded.pop(connection, None)

    def _walk_topics(self, client: SrsClient, matches: Callable[[bytes], bool] | None) -> Iterator[bytes | None]:
        for topic in self._topic_roster.walk():
            if topic is None or (matches is not None and not matches(topic.name)):
                yield None
                continue
            yield from self._records_of(topic, client)

    def _records_of(self, topic: SrsTopic, client: SrsClient) -> Iterator[bytes | None]:
        for source in list(topic.sources):
            yield source.raw if source.client is not client and source in topic.sources else None

    def _walk_name(self, client: SrsClient, entry: SrsInterest) -> Iterator[bytes | None]:
        """Yield the records of the sources that one topic or pattern wants."""
        is_pattern, name = entry.key
        if is_pattern:
            yield from self._walk_topics(client, self._matcher(name))
        elif (topic := self._topics.get(name)) is not None:
            yield from self._records_of(topic, client)

    def _walk_names(self, client: SrsClient, walks: Container[object]) -> Iterator[bytes | None]:
        """Yield the records of the sources that a client wants, but for names that have walks of their own."""
        several: set[NameKey] = set()  # names in more than one domain
        for is_pattern, name, _ in list(client.interest):
            yield None
            key = (is_pattern, name)
            entry = self._names.get(key)
            domains = 0 if entry is None else entry.wanting.get(client, 0)
            if entry is None or not domains or key in several or key in walks:
                continue
            if domains > 1:
                several.add(key)
            yield from self._walk_name(client, entry)

    def _walk_interest(self, client: SrsClient) -> Iterator[bytes | None]:
        for entry in self._name_roster.walk():
            yield None
            if entry is None:
                continue
            for (holder, domain_id), raw in list(entry.holders.items()):
                yield raw if holder is not client and (holder, domain_id) in entry.holders else None

    # telling

    def _tell(self, connections: list[SrsConnection], raw: bytes) -> Steps:
        self.counts.told_records += len(connections)
        for at in range(0, len(connections), _FEW):
            for connection in connections[at : at + _FEW]:
                if connection.stream_id is not None and not connection.push_record(raw):
                    self._on_overflow(connection)
            if at:
                yield

    def _told_of(self, topic: bytes, but: SrsClient) -> Generator[None, None, list[SrsConnection]]:
        """Find the connections that are told of a topic, in steps."""
        found: dict[SrsConnection, object] = dict(self._flooded)
        entry = self._names.get((False, topic))
        if entry is not None:
            self._add_wanting(found, entry)
        if len(self._patterns):
            for matched in self._patterns.steps(topic):
                if matched is None:
                    yield
                else:
                    self._add_wanting(found, matched)
            if self._limited:
                self._give_up_patterns()
        if but.connection is not None:
            found.pop(but.connection, None)
        return list(found)

    def _add_wanting(self, found: dict[SrsConnection, object], entry: SrsInterest) -> None:
        for client in entry.wanting:
            connection = client.connection
            if connection is not None and connection.stream_id is not None:
                found[connection] = None

    # accounts

    def take_bytes(self, client: SrsClient, count: int) -> bool:
        """Count bytes that a client brings; False, and nothing is counted, when they are too many."""
        limits = self._limits
        if (
            client.record_bytes + count > limits.client_record_bytes
            or self.record_bytes + count > limits.record_bytes
        ):  # fmt: skip
            self.counts.refused_bytes += 1
            return False
        client.record_bytes += count
        self.record_bytes += count
        return True

    def give_back(self, client: SrsClient, count: int) -> None:
        """Count bytes of a client no more."""
        client.record_bytes -= count
        self.record_bytes -= count

    # sources

    def on_source(self, client: SrsClient, record: SourceInfo) -> Steps:
        """Take a source, new, changed or told again."""
        raw = encode(record)
        source = client.sources.get(record.otid)
        if source is None:
            source = self._new_source(client, record, raw)
            if source is None:
                return
        else:
            if source.topic.name != record.topic:
                self.counts.other_topic += 1
                return
            source.farewell = b""
            if source.generation != client.generation:
                source.generation = client.generation
                client.sources.move_to_end(record.otid)
            if source.raw == raw:
                return
            if not self.take_bytes(client, len(raw) - len(source.raw)):
                return
            source.raw, source.address = raw, record.source
        yield from self._tell((yield from self._told_of(record.topic, client)), raw)

    def _new_source(self, client: SrsClient, record: SourceInfo, raw: bytes) -> SrsSource | None:
        others = self._otids.get(record.otid)
        if others and others[0].topic.name != record.topic:
            self.counts.other_topic += 1
            return None
        if not self.take_bytes(client, len(raw) + SOURCE_COST):
            return None
        topic = self._topics.get(record.topic)
        if topic is None:
            topic = self._topics[record.topic] = SrsTopic(name=record.topic)
            self._topic_roster.add(topic)
        source = SrsSource(client, record.otid, topic, record.source, raw, client.generation)
        topic.sources[source] = client.sources[record.otid] = source  # type: ignore[assignment]
        self._otids.setdefault(record.otid, []).append(source)
        self.source_count += 1
        return source

    def on_source_end(self, client: SrsClient, record: SourceInfo | SourceDelete, now_ns: int) -> Steps:
        """Take the end of a source, of which the others are told after the back-off. Only its OTID and kind count."""
        source = client.sources.get(record.otid)
        if source is None:
            return
        source.farewell = _end_of(source) if isinstance(record, SourceInfo) else _deletion_of(source)
        backoff_ns = self._times.source_leave_backoff_ns
        if not backoff_ns:
            yield from self.forget_source(source)
            return
        source.farewell_due_ns = now_ns + backoff_ns
        self._farewells.append((source.farewell_due_ns, source))

    def next_farewell_ns(self) -> int | None:
        return self._farewells[0][0] if self._farewells else None

    def due_farewells(self, now_ns: int) -> Iterator[tuple[SrsClient, Steps]]:
        """Yield the client and the telling of each source whose back-off is over."""
        while self._farewells and self._farewells[0][0] <= now_ns:
            due_ns, source = self._farewells.popleft()
            if source.farewell and source.farewell_due_ns == due_ns:
                yield source.client, self.forget_source(source)

    def forget_source(self, source: SrsSource) -> Steps:
        """Remove a source and tell it, unless another client has the same."""
        client, topic = source.client, source.topic
        if client.sources.get(source.otid) is not source:
            return
        del client.sources[source.otid]
        del topic.sources[source]
        self.source_count -= 1
        self.give_back(client, len(source.raw) + SOURCE_COST)
        if not topic.sources:
            del self._topics[topic.name]
            self._topic_roster.remove(topic)
        others = self._otids[source.otid]
        others.remove(source)
        if not others:
            del self._otids[source.otid]
            told = source.farewell or _deletion_of(source)
        elif any(other.address == source.address for other in others):
            return
        else:
            told = _end_of(source)
        yield from self._tell((yield from self._told_of(topic.name, client)), told)

    # interest

    def on_interest(self, client: SrsClient, record: InterestInfo) -> Steps:
        """Take what a client wants: a topic or pattern in a domain."""
        key = (record.is_pattern, record.name)
        raw = encode(record)
        entry = self._names.get(key)
        held = None if entry is None else entry.holders.get((client, record.domain_id))
        if entry is not None and held is not None:
            told = (*key, record.domain_id)
            if client.interest[told] != client.generation:
                client.interest[told] = client.generation
                client.interest.move_to_end(told)
            if held == raw:
                return
            entry.holders[client, record.domain_id] = raw  # of the same size: only numbers differ
        else:
            if not self._admits(client, record, len(raw)):
                return
            if entry is None:
                entry = self._new_name(key)
            self._hold(client, record, entry, raw)
        yield from self._tell(self._forwarded_to(client), raw)

    def _admits(self, client: SrsClient, record: InterestInfo, size: int) -> bool:
        if not record.is_pattern:
            return self.take_bytes(client, size + INTEREST_COST)
        limits = self._limits
        try:
            Pattern(record.name, PCRE)
        except PatternError:
            self.counts.refused_patterns += 1
            return False
        if client.patterns >= limits.client_patterns or len(self._patterns) >= limits.patterns:
            self.counts.refused_patterns += 1
            return False
        if not self.take_bytes(client, size + PATTERN_COST):
            return False
        client.patterns += 1
        return True

    def _new_name(self, key: NameKey) -> SrsInterest:
        entry = self._names[key] = SrsInterest(key=key)
        self._name_roster.add(entry)
        if key[0]:
            self._patterns.add(entry, self._matcher(key[1]))
        return entry

    def _matcher(self, pattern: bytes) -> Callable[[bytes], bool]:
        return Pattern(pattern, PCRE, self._on_limit)

    def _on_limit(self, pattern: bytes) -> None:
        if (True, pattern) in self._names:
            self._limited[pattern] = self._limited.get(pattern, 0) + 1

    def _give_up_patterns(self) -> None:
        """Search no more for what takes too long again and again."""
        for pattern, count in list(self._limited.items()):
            if _LIMITED_SEARCHES <= count < _GIVEN_UP:
                self._limited[pattern] = _GIVEN_UP
                self.counts.given_up_patterns += 1
                entry = self._names[True, pattern]
                self._patterns.remove(entry)
                self._patterns.add(entry, _never)

    def _hold(self, client: SrsClient, record: InterestInfo, entry: SrsInterest, raw: bytes) -> None:
        domain_id = record.domain_id
        entry.holders[client, domain_id] = raw
        entry.domains[domain_id] = entry.domains.get(domain_id, 0) + 1
        client.interest[(*entry.key, domain_id)] = client.generation
        wanted = entry.wanting[client] = entry.wanting.get(client, 0) + 1
        connection = client.connection
        if wanted == 1 and connection is not None and connection.stream_id is not None and client.mode.filters:
            connection.walks[entry.key] = self._walk_name(client, entry)

    def _forwarded_to(self, but: SrsClient) -> list[SrsConnection]:
        return [connection for connection, client in self._forwarded.items() if client is not but]

    def on_interest_end(self, client: SrsClient, record: InterestInfo) -> Steps:
        """Take that a client wants a topic or pattern no more."""
        return self.forget_interest(client, record.is_pattern, record.name, record.domain_id)

    def forget_interest(self, client: SrsClient, is_pattern: bool, name: bytes, domain_id: int) -> Steps:
        """Remove what a client wants and tell it, and the end in the domain if it was the last there."""
        key = (is_pattern, name)
        entry = self._names.get(key)
        raw = None if entry is None else entry.holders.pop((client, domain_id), None)
        if entry is None or raw is None:
            return
        del client.interest[(*key, domain_id)]
        self.give_back(client, len(raw) + (PATTERN_COST if is_pattern else INTEREST_COST))
        client.patterns -= is_pattern
        entry.wanting[client] -= 1
        if not entry.wanting[client]:
            del entry.wanting[client]
            if client.connection is not None:
                client.connection.walks.pop(key, None)
        entry.domains[domain_id] -= 1
        is_last = not entry.domains[domain_id]
        if is_last:
            del entry.domains[domain_id]
        if not entry.holders:
            del self._names[key]
            self._name_roster.remove(entry)
            if is_pattern:
                self._patterns.remove(entry)
                self._limited.pop(name, None)
        deleted, ended = (
            (MessageId.WILDCARD_DELETE, MessageId.WILDCARD_END) if is_pattern
            else (MessageId.RECEIVER_DELETE, MessageId.RECEIVER_END)
        )  # fmt: skip
        others = self._forwarded_to(client)
        for kind in (deleted, ended) if is_last else (deleted,):
            yield from self._tell(others, kind.to_bytes(2, "big") + raw[2:])

    # states that end

    def forget_sources(self, client: SrsClient, before: int) -> Steps:
        """Remove the sources of a client that were not told since a generation: the first ones."""
        while client.sources and (source := next(iter(client.sources.values()))).generation < before:
            yield from self.forget_source(source)
            yield

    def forget_all_interest(self, client: SrsClient, before: int) -> Steps:
        """Remove what a client wanted and has not told since a generation: the first ones."""
        while client.interest and client.interest[key := next(iter(client.interest))] < before:
            yield from self.forget_interest(client, *key)
            yield


def _end_of(source: SrsSource) -> bytes:
    """Make the record with cost -1 of what was told of a source."""
    (record,) = decode(source.raw)
    assert isinstance(record, SourceInfo)
    return encode(replace(record, cost=END_COST))


def _deletion_of(source: SrsSource) -> bytes:
    """Make the SDR of a source."""
    return encode(SourceDelete(source.otid, source.topic.name))


def _never(_: bytes) -> bool:
    return False
