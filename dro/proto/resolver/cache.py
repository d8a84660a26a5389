"""The receiver side's cache: every source heard on the channel, subscribed or not, and which of them is joined.

State: entries keyed by (topic, transport session, topic index), grouped by topic and OTID: advertisements of one topic
with one OTID are alternative sessions of one originating source, of which a receiver joins exactly one, or, with
hotlinks, one of each plane (`dro.proto.resolver.joining`). Called by the resolver; one per context. UDP resolution
never withdraws an unsubscribed source, so the size is bounded, also by the memory of what is not joined, and so is how
much of what is new is taken in a second. What was forgotten is heard again with its next advertisement, or when it is
asked for.

Source: UM documentation and predecessor guide, "duplicate OTID". Guess: equal costs go to the lowest address; an
advertisement without an OTID gets one derived from its content, the same in every context (ContextID 0, transport index
CRC-32 of transport byte and body); a joined session is kept only until a cheaper one is heard; the limits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from dro.clock import NS_PER_S
from dro.errors import DecodeError
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.table import Table
from dro.wire import otid as otid_codec
from dro.wire.lbmr.packet import Tir
from dro.wire.lbmr.records import write_transport
from dro.wire.lbmr.tlv import UnknownOption
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    TransportAddress,
    UnknownTransport,
)

FRESH_NS: Final = 10 * NS_PER_S
"""How recently an alternative must have been heard to be joined without waiting for its next advertisement."""

ALTERNATIVES_MAX: Final = 64
"""Sessions that may carry one source in one TRD; beyond it the one not heard for longest goes."""

PLANES_MAX: Final = 8
"""Of one source are joined side by side."""

EVICTION_TRIES: Final = 64
BYTES_MAX: Final = 128 << 20
"""Bounds the memory of all sources that are not joined: some 75,000 of the usual kind."""
SOURCE_BYTES_MAX: Final = 16 << 10
"""Bounds the memory of one source; UM needs an eighth."""
_ENTRY_BYTES: Final = 1700  # of the usual kind
_OPTION_BYTES: Final = 130  # of an unknown option, besides its body
_OPTIONS_USUAL: Final = 16
_OPTION_MOST: Final = 400  # of any option
NEW_SOURCES: Final = NewEntryRate(in_all=20_000, of_one=10_000)

SourceKey: TypeAlias = tuple[bytes, TransportAddress, int]  # topic, session, topic index


@dataclass(slots=True, eq=False)
class CachedSource:
    """One source as it is reached in this TRD. `otid_made`: its advertisement has none. Costs are 0 at the origin."""

    key: SourceKey
    tir: Tir
    otid: bytes
    otid_made: bool
    cost: int
    hop_count: int
    from_dro: bool
    source_id: bytes | None  # of the advertising context
    source_ip: int  # of the advertising datagram
    heard_ns: int
    weight: int = 0  # bytes of memory that count; 0: it was joined when it was heard last
    is_joined: bool = False
    is_accepted: bool | None = None  # by the owner of the receivers; None: not asked yet
    is_carried: bool = True  # by this owner; False: another member of the TRD takes it on, so it is not accepted
    judgement: int = 0  # which of the owner's judges was asked
    older: CachedSource | None = field(default=None, repr=False)  # heard before it, and after it
    newer: CachedSource | None = field(default=None, repr=False)

    @property
    def domain_id(self) -> int:
        """Where the source originates; 0: not told, in this TRD."""
        return self.tir.domain_id

    @property
    def is_refused(self) -> bool:
        return self.is_accepted is False and self.is_carried

    @property
    def plane(self) -> int:
        """The hotlink index with which it is advertised; sessions of different planes can be joined side by side."""
        return self.tir.options.hotlink_index if self.tir.options else 0

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Smaller is better."""
        return (self.cost, *address_rank(self.tir.transport))


def weight_of(tir: Tir) -> int:
    """Estimate the bytes of memory that a source with that advertisement takes, by measurement."""
    options = tir.options.items if tir.options else ()
    unknown = sum(_OPTION_BYTES + len(o.body) for o in options[:_OPTIONS_USUAL] if isinstance(o, UnknownOption))
    return _ENTRY_BYTES + len(tir.topic) + unknown + _OPTION_MOST * max(0, len(options) - _OPTIONS_USUAL)


class Learned(Enum):
    """What one advertisement did to the cache."""

    NEW = "not known before"
    KNOWN = "heard again"
    MISMATCH = "a living source under another OTID: ignored"
    UNUSABLE = "a transport that cannot be joined"
    FULL = "no room, and everything known is joined"
    LIMITED = "too many new ones in this second"
    TOO_LARGE = "its options take too much memory"


def address_rank(address: TransportAddress) -> tuple[int, int, int]:
    """Address, port and session id, to decide between equals."""
    match address:
        case TcpAddress(ip, port, session) | LbtruAddress(ip, port, session) | RdmaAddress(ip, port, session):
            return ip, port, session
        case LbtrmAddress(ip=ip, nak_port=port, session_id=session):
            return ip, port, session
        case IpcAddress(host, session, transport_id) | SmxAddress(host, session, transport_id):
            return host, transport_id, session
        case UnknownTransport(code):
            return code, 0, 0


def make_otid(tir: Tir) -> bytes:
    """The OTID of a source that advertises none. Raises: DecodeError for a transport without a known layout.

    Source: peer link notes, "Identifiers".
    """
    code, body = write_transport(tir.transport)
    return otid_codec.encode(tir.transport, tir.topic_index, 0, zlib.crc32(bytes((code,)) + body))


class TopicCache:
    """All sources heard. `entries_max` 0: no bound; beyond it, and beyond `bytes_max` of memory of those that are not
    joined, the one not heard for longest and not joined goes."""

    def __init__(self, entries_max: int, bytes_max: int = BYTES_MAX) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._bytes = 0  # weight of all
        self._entries: Table[SourceKey, CachedSource] = Table()
        self._oldest: CachedSource | None = None  # least recently heard; a chain, since a table has no order
        self._newest: CachedSource | None = None
        self._topics: Table[bytes, dict[bytes, list[CachedSource]]] = Table()  # topic -> OTID -> sessions of it
        self._newcomers = NewEntryLimiter(NEW_SOURCES)
        self.refused = 0  # entries that are not accepted, though carried
        self.turned_away = 0  # how often there was no room for a source

    @property
    def limited(self) -> int:
        """How often a new source was left out, as too many came in one second."""
        return self._newcomers.refused

    def __len__(self) -> int:
        return len(self._entries)

    def learn(
        self,
        tir: Tir,
        *,
        source_ip: int,
        from_dro: bool,
        source_id: bytes | None,
        now_ns: int,
        is_known: bool = False,
    ) -> tuple[Learned, CachedSource | None]:
        """Enter an advertisement that is not final. `is_known`: not a stranger's, so never one too many a second."""
        key = (tir.topic, tir.transport, tir.topic_index)
        otid, otid_made = tir.otid, False
        if isinstance(tir.transport, UnknownTransport):
            return Learned.UNUSABLE, None
        if otid is None:
            try:
                otid, otid_made = make_otid(tir), True
            except DecodeError:
                return Learned.UNUSABLE, None
        known = self._entries.get(key)
        if known is not None and known.otid != otid:
            if known.is_joined:
                return Learned.MISMATCH, known
            self.drop(key)
            known = None
        weight = weight_of(tir)
        if weight > SOURCE_BYTES_MAX:
            self.turned_away += 1
            return Learned.TOO_LARGE, None
        cost = tir.options.cost if tir.options else None
        reach = (cost.cost, cost.hop_count) if cost else (0, 0)
        entry = known
        if entry is None:
            if not is_known and not self._newcomers.admit(source_ip, now_ns):
                return Learned.LIMITED, None
            if not self._make_room(tir.topic, otid):
                self.turned_away += 1
                return Learned.FULL, None
            entry = CachedSource(key, tir, otid, otid_made, *reach, from_dro, source_id, source_ip, now_ns)
            self._topics.setdefault(tir.topic, {}).setdefault(otid, []).append(entry)
            self._entries[key] = entry
        else:
            self._unchain(entry)
        self._chain(entry)
        entry.tir = tir
        self._weigh(entry, 0 if entry.is_joined else weight)
        entry.cost, entry.hop_count = reach
        entry.from_dro, entry.source_id, entry.source_ip, entry.heard_ns = from_dro, source_id, source_ip, now_ns
        return (Learned.NEW if known is None else Learned.KNOWN), entry

    def get(self, key: SourceKey) -> CachedSource | None:
        return self._entries.get(key)

    def drop(self, key: SourceKey) -> CachedSource | None:
        """Forget a source; gives what was known."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._unchain(entry)
            self._weigh(entry, 0)
            self.refused -= entry.is_refused
            by_otid = self._topics[key[0]]
            group = by_otid[entry.otid]
            group.remove(entry)
            if not group:
                del by_otid[entry.otid]
                if not by_otid:
                    del self._topics[key[0]]
        return entry

    def topics(self) -> Iterator[bytes]:
        """See `Table.snapshot`."""
        return self._topics.snapshot()

    def source_count(self, topic: bytes) -> int:
        """Count the originating sources of a topic that are known."""
        return len(self._topics.get(topic, ()))

    def otids(self, topic: bytes) -> list[bytes]:
        return list(self._topics.get(topic, ()))

    def joined(self, topic: bytes, otid: bytes, plane: int | None = None) -> CachedSource | None:
        """The session that is joined, in that plane or, if that is None, in any."""
        for entry in self._topics.get(topic, {}).get(otid, ()):
            if entry.is_joined and plane in (None, entry.plane):
                return entry
        return None

    def planes(self, topic: bytes, otid: bytes) -> list[int]:
        """List the planes of all sessions of a source."""
        return sorted({entry.plane for entry in self._topics.get(topic, {}).get(otid, ())})

    def sessions(self, topic: bytes, otid: bytes) -> list[CachedSource]:
        """All sessions of a source."""
        return list(self._topics.get(topic, {}).get(otid, ()))

    def entries(self) -> list[CachedSource]:
        return list(self._entries.values())

    def best(
        self,
        topic: bytes,
        otid: bytes,
        is_usable: Callable[[CachedSource], bool],
        heard_since_ns: int,
        plane: int | None = None,
    ) -> CachedSource | None:
        """The cheapest session of a source, in that plane or in any, of the usable ones heard at or after
        `heard_since_ns`."""
        group = [e for e in self._topics.get(topic, {}).get(otid, ()) if plane in (None, e.plane)]
        fresh = [entry for entry in group if entry.heard_ns >= heard_since_ns and is_usable(entry)]
        return min(fresh, key=lambda entry: entry.rank, default=None)

    def has_joined(self, topic: bytes) -> bool:
        return any(entry.is_joined for group in self._topics.get(topic, {}).values() for entry in group)

    def drop_topic(self, topic: bytes) -> None:
        """Forget everything about a topic."""
        for group in list(self._topics.get(topic, {}).values()):
            for entry in list(group):
                self.drop(entry.key)

    def leave_topic(self, topic: bytes) -> None:
        """Nobody wants the topic any more: nothing of it is joined."""
        for group in self._topics.get(topic, {}).values():
            for entry in group:
                entry.is_joined = False

    def _make_room(self, topic: bytes, otid: bytes) -> bool:
        """Make room for one entry more, in its group and in all. Joined entries met on the way count as just heard."""
        group = self._topics.get(topic, {}).get(otid, ())
        if len(group) >= ALTERNATIVES_MAX:
            others = (entry for entry in group if not entry.is_joined)  # at most `PLANES_MAX` are
            self.drop(min(others, key=lambda entry: entry.heard_ns).key)
        for _ in range(EVICTION_TRIES):
            entry = self._oldest
            if entry is None or not self._is_full:
                return True
            if not entry.is_joined:
                self.drop(entry.key)
                continue
            self._weigh(entry, 0)
            self._unchain(entry)
            self._chain(entry)
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        return 0 < self._entries_max <= len(self._entries) or self._bytes > self._bytes_max

    def _weigh(self, entry: CachedSource, weight: int) -> None:
        self._bytes += weight - entry.weight
        entry.weight = weight

    def _chain(self, entry: CachedSource) -> None:
        """Put the entry into the chain as the newest."""
        if self._newest is None:
            self._oldest = entry
        else:
            self._newest.newer = entry
        entry.older, self._newest = self._newest, entry

    def _unchain(self, entry: CachedSource) -> None:
        older, newer = entry.older, entry.newer
        if older is None:
            self._oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self._newest = older
        else:
            newer.older = older
        entry.older = entry.newer = None
