"""Keeps what a context has to tell every SRS: its own packets of topic resolution over UDP, as records that hold.

    TIR, final TIR             source record, its end
    TQR, WC-TQR, leave         interest of the own domain
    interest of other domains  the same of those domains
    a domain route             an extension with the datagram, told again from time to time
    all other packets          extensions with the datagram, told once

Owned by the service client. Guess: an application ends a source by SDR. A DRO ends a proxy source by a source record
with cost -1, which names the session: another DRO may advertise the same OTID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from dro.clock import s
from dro.pattern_groups import PatternSet
from dro.patterns import PCRE, Pattern, PatternError
from dro.proto.resolver_service.records import source_info
from dro.table import Table
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs import rsocket
from dro.wire.srs.messages import END_COST, EXT_LBMR, InterestInfo, MessageId, SourceDelete, SourceInfo, encode

ROUTE_EVERY_NS: Final = s(10)
"""A domain route that has not changed is told so often; an SRS keeps it for 30 s."""
_OWN: Final = -1
"""The own domain, known or not."""


@dataclass(frozen=True, slots=True)
class ToTell:
    """Something to tell. A later change of the same key stands in its place."""

    key: Hashable
    record: bytes
    is_extension: bool = False


class OwnRecords:
    """See the module text. `domain_id` is set when the context learns it."""

    def __init__(self, source_id: bytes, source_type: int, domain_id: int) -> None:
        self.domain_id = domain_id
        self._source_id = source_id
        self._source_type = source_type
        self._sources: Table[bytes, SourceInfo] = Table()  # by OTID
        self._interest: Table[tuple[bool, bytes, int], InterestInfo] = Table()  # by pattern or not, name, domain
        self._wanted: Counter[bytes] = Counter()  # domains that a topic is wanted for
        self._patterns: PatternSet[tuple[bool, bytes, int]] = PatternSet()  # keys as in `_interest`
        self._route = b""
        self._route_told_ns = -ROUTE_EVERY_NS
        self._serial = 0

    def all(self) -> Iterator[ToTell]:
        """Yield what holds now, for an SRS that knows nothing of it."""
        for otid, info in self._sources.items():
            yield ToTell(otid, encode(info))
        for key, record in self._interest.items():
            yield ToTell(key, encode(record))
        if self._route:
            yield ToTell("route", self._route, is_extension=True)

    def asked(self, topic: bytes) -> bool:
        """Whether the context has said that it wants the topic itself."""
        return (False, topic, _OWN) in self._interest

    def wants(self, topic: bytes) -> bool:
        """Whether sources of the topic are wanted, by its name or a pattern."""
        return topic in self._wanted or any(True for _ in self._patterns.matching(topic))

    def end(self) -> Iterator[ToTell]:
        """End all that holds."""
        for info in list(self._sources.values()):
            yield self._end(info)
        for is_pattern, name, domain_id in list(self._interest):
            yield from self._unwant(name, domain_id, is_pattern=is_pattern)

    def on_packet(self, packet: lbmr.Packet, datagram: bytes, now_ns: int) -> Iterator[ToTell]:
        """A packet of this context, decoded and as it would be sent; yields what is to be told of it."""
        match packet.body:
            case lbmr.Queries(tqrs, tirs):
                for topic in tqrs:
                    yield from self._want(topic, _OWN, is_pattern=False)
                yield from self._on_tirs(tirs)
            case lbmr.WildcardQueries(patterns, tirs):
                for query in patterns:
                    yield from self._want(query.pattern, _OWN, is_pattern=True)
                yield from self._on_tirs(tirs)
            case lbmr.TopicManagement(records):
                for tmr in records:
                    if tmr.kind == lbmr.TmrType.LEAVE:
                        yield from self._unwant(tmr.name, _OWN, is_pattern=tmr.is_pattern)
            case lbmr.TnwgInterest(records):
                for record in records:
                    change = self._unwant if record.is_cancel else self._want
                    yield from change(record.symbol, record.domain_id, is_pattern=record.is_pattern)
            case lbmr.RemoteDomainRoute():
                yield from self._on_route(datagram, now_ns)
            case lbmr.TopicResolutionRequest() | lbmr.ReceiverAlive() | lbmr.SourceAlive():
                pass  # an SRS tells everything by itself
            case _:
                self._serial += 1
                yield ToTell(self._serial, _extension(datagram), is_extension=True)

    def _on_tirs(self, tirs: tuple[lbmr.Tir, ...]) -> Iterator[ToTell]:
        for tir in tirs:
            info = source_info(tir, self._source_id, self._source_type, self.domain_id)
            if info is None:
                continue
            known = self._sources.get(info.otid)
            if not tir.is_final:
                if info != known:
                    self._sources[info.otid] = info
                    yield ToTell(info.otid, encode(info))
            elif known is not None and known.source == info.source:
                yield self._end(known)

    def _end(self, info: SourceInfo) -> ToTell:
        del self._sources[info.otid]
        is_dro = self._source_type == lbmr.SenderType.DRO
        return ToTell(
            info.otid, encode(replace(info, cost=END_COST) if is_dro else SourceDelete(info.otid, info.topic))
        )

    def _want(self, name: bytes, domain_id: int, *, is_pattern: bool) -> Iterator[ToTell]:
        key = (is_pattern, name, domain_id)
        if key not in self._interest:
            kind = MessageId.WILDCARD_INFO if is_pattern else MessageId.RECEIVER_INFO
            domain_id = self.domain_id if domain_id == _OWN else domain_id
            record = InterestInfo(kind, name, domain_id, self._source_id, self._source_type)
            self._interest[key] = record
            if is_pattern:
                self._patterns.add(key, _matcher(name))
            else:
                self._wanted[name] += 1
            yield ToTell(key, encode(record))

    def _unwant(self, name: bytes, domain_id: int, *, is_pattern: bool) -> Iterator[ToTell]:
        key = (is_pattern, name, domain_id)
        record = self._interest.pop(key, None)
        if record is not None:
            self._forget_name(key)
            kind = MessageId.WILDCARD_DELETE if is_pattern else MessageId.RECEIVER_DELETE
            yield ToTell(key, encode(replace(record, kind=kind)))

    def _forget_name(self, key: tuple[bool, bytes, int]) -> None:
        is_pattern, name, _ = key
        if is_pattern:
            self._patterns.remove(key)
            return
        self._wanted[name] -= 1
        if not self._wanted[name]:
            del self._wanted[name]

    def _on_route(self, datagram: bytes, now_ns: int) -> Iterator[ToTell]:
        frame = _extension(datagram)
        if frame != self._route or now_ns - self._route_told_ns >= ROUTE_EVERY_NS:
            self._route, self._route_told_ns = frame, now_ns
            yield ToTell("route", frame, is_extension=True)


def _matcher(pattern: bytes) -> Callable[[bytes], bool]:
    try:
        return Pattern(pattern, PCRE)
    except PatternError:
        return lambda topic: False


def _extension(datagram: bytes) -> bytes:
    return rsocket.encode(rsocket.ExtFrame(EXT_LBMR, datagram))
