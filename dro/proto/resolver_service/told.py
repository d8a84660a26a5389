"""Keeps what SRSes have told of other contexts, and hands it up as packets of those contexts.

State: sources and interest of others with the SRSes that hold each, what changed since it was handed up,
domain routes. Owned by the service client. What all SRSes have ended, or do not tell again after a new connection, is
handed up as ended.

Guess: interest of a DRO in its own domain is that of its proxy receivers, which other DROs must not take for
receivers; it is left out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeAlias

from dro.clock import s
from dro.errors import DecodeError
from dro.proto.resolver_service.records import advertisement
from dro.table import Table
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs.messages import END_COST, InterestInfo, MessageId, SourceDelete, SourceInfo, SourceLeave, SrsRecord

ROUTE_LIFE_NS: Final = s(30)
"""A domain route that is not told again for so long is forgotten."""
ROUTES_MAX: Final = 1024
HELD_MAX_BYTES: Final = 512 << 20
"""What SRSes may make a context remember, as counted by `_cost`."""
_RECORD_BYTES: Final = 1000
_DELETES: Final = (MessageId.RECEIVER_DELETE, MessageId.WILDCARD_DELETE)

SourceKey: TypeAlias = tuple[bytes, bytes]  # OTID, context instance
InterestKey: TypeAlias = tuple[bool, bytes, int, bytes]  # is pattern, name, domain, context instance
_Key: TypeAlias = SourceKey | InterestKey


def _cost(record: SourceInfo | InterestInfo) -> int:
    """Count the bytes of a record and of what is kept with it."""
    text = record.topic + record.source if isinstance(record, SourceInfo) else record.name
    return _RECORD_BYTES + 2 * len(text)


@dataclass(slots=True, eq=False)
class _Held:
    """A record of others. `told_in`: of each SRS the connection that it was told in last, 0 if it has it not; `up`:
    the source as it was handed up, or whether interest was; `is_local`: interest of this TRD."""

    record: SourceInfo | InterestInfo
    tir: lbmr.Tir | None
    cost: int
    told_in: list[int]
    is_local: bool = False
    up: lbmr.Tir | bool | None = None


class ToldRecords:
    """See the module text."""

    def __init__(self, source_id: bytes, domain_id: int) -> None:
        self.domain_id = domain_id
        self._connections: list[int] = []  # of each SRS, counted from 1
        self._source_id = source_id
        self._held: Table[_Key, _Held] = Table()
        self._by_otid: Table[bytes, dict[_Key, None]] = Table()
        self._by_topic: Table[bytes, dict[_Key, None]] = Table()
        self._wanting: Counter[tuple[bool, bytes]] = Counter()  # contexts of this TRD that want a name
        self._changed: dict[_Key, None] = {}
        self._ended: deque[lbmr.Packet] = deque()
        self._bytes = 0
        self._routes: dict[bytes, tuple[lbmr.Packet, int]] = {}  # by context instance; when they came

    # what SRSes tell

    def on_record(self, srs: int, record: SrsRecord) -> None:
        """Take a record of an SRS. Raises: DecodeError for one that cannot be used, or has no room."""
        match record:
            case SourceInfo():
                if record.is_end:
                    self._release((record.otid, record.context_instance), srs)
                else:
                    self._on_source(srs, record)
            case SourceDelete(otid=otid):
                for key in list(self._by_otid.get(otid, ())):
                    self._release(key, srs)
            case InterestInfo():
                about = (record.is_pattern, record.name, record.domain_id, record.context_instance)
                if record.is_wanted:
                    self._on_interest(srs, about, record)
                elif record.kind in _DELETES:
                    self._release(about, srs)
            case SourceLeave():
                pass

    def _on_source(self, srs: int, info: SourceInfo) -> None:
        if info.context_instance == self._source_id:
            return
        key = (info.otid, info.context_instance)
        held = self._held.get(key)
        if held is None:
            held = self._hold(key, info, advertisement(info))
            self._by_otid.setdefault(info.otid, {})[key] = None
            self._by_topic.setdefault(info.topic, {})[key] = None
        elif held.record != info:
            if key not in self._by_topic.get(info.topic, {}):
                raise DecodeError("sir.topic", f"the OTID of {info.topic!r} belongs to another topic")
            held.tir = advertisement(info)
            self._end_session(held, but=held.tir)
            self._bytes += _cost(info) - held.cost
            held.record, held.cost = info, _cost(info)
            self._changed[key] = None
        self._mark(held, srs)

    def _on_interest(self, srs: int, key: InterestKey, record: InterestInfo) -> None:
        is_dro = record.context_type == lbmr.SenderType.DRO
        is_local = self._is_local(record.domain_id)
        if record.context_instance == self._source_id or is_dro == is_local:
            return
        held = self._held.get(key)
        if held is None:
            held = self._hold(key, record, None)
            held.is_local = is_local
            if is_local:
                self._wanting[key[:2]] += 1
        self._mark(held, srs)

    def _hold(self, key: _Key, record: SourceInfo | InterestInfo, tir: lbmr.Tir | None) -> _Held:
        """Keep a new record. Raises: DecodeError when there is no room for it."""
        if self._bytes > HELD_MAX_BYTES:
            raise DecodeError("srs", f"records of SRSes take more than {HELD_MAX_BYTES >> 20} MiB, no more are kept")
        held = self._held[key] = _Held(record, tir, _cost(record), [0] * len(self._connections))
        self._bytes += held.cost
        self._changed[key] = None
        return held

    def _mark(self, held: _Held, srs: int) -> None:
        if len(held.told_in) <= srs:
            held.told_in += [0] * (srs + 1 - len(held.told_in))
        held.told_in[srs] = self._connections[srs]

    def _end_session(self, held: _Held, *, but: lbmr.Tir | None = None) -> None:
        """Hand up the end of a source, if it was handed up on another session than that of `but`."""
        if isinstance(held.up, lbmr.Tir) and (but is None or but.transport != held.up.transport):
            options = held.up.options or lbmr.TirOptions()
            last = replace(held.up, options=options.replacing(lbmr.Cost(0, END_COST)))
            self._ended.append(self._packet(held.record, lbmr.Queries((), (last,))))
            held.up = None

    def _is_local(self, domain_id: int) -> bool:
        return domain_id in (0, self.domain_id)

    def _release(self, key: _Key, srs: int) -> None:
        """Let one SRS have it no more; the last one ends it."""
        held = self._held.get(key)
        if held is None or srs >= len(held.told_in) or not held.told_in[srs]:
            return
        held.told_in[srs] = 0
        if not any(held.told_in):
            self._forget(key, held)

    def _forget(self, key: _Key, held: _Held) -> None:
        del self._held[key]
        self._changed.pop(key, None)
        record = held.record
        self._bytes -= held.cost
        if isinstance(record, SourceInfo):
            for table, name in ((self._by_otid, record.otid), (self._by_topic, record.topic)):
                del table[name][key]
                if not table[name]:
                    del table[name]
            self._end_session(held)
        elif not held.is_local:
            if held.up:
                self._ended.append(self._interest_packet(record, lbmr.InterestFlag.CANCEL))
        else:
            wanted = (record.is_pattern, record.name)
            self._wanting[wanted] -= 1
            if not self._wanting[wanted]:
                del self._wanting[wanted]
                if held.up:
                    flags = lbmr.TmrFlag.PCRE if record.is_pattern else 0
                    leave = lbmr.Tmr(lbmr.TmrType.LEAVE, flags, record.name)
                    self._ended.append(self._packet(record, lbmr.TopicManagement((leave,))))

    # connections

    def on_registered(self, srs: int) -> None:
        """A connection to that SRS begins: it will tell everything."""
        self._connections += [0] * (srs + 1 - len(self._connections))
        self._connections[srs] += 1

    def steps_to_release(self, srs: int, *, all_of_it: bool) -> Iterator[None]:
        """Release in steps what that SRS has not told since `on_registered`, or all that it has told."""
        for key in list(self._held):
            held = self._held.get(key)
            told_in = held.told_in[srs] if held is not None and srs < len(held.told_in) else 0
            if told_in and (all_of_it or told_in < self._connections[srs]):
                self._release(key, srs)
            yield

    def steps_to_release_unwanted(self, wants: Callable[[bytes], bool]) -> Iterator[None]:
        """Release in steps the sources whose topics are not wanted."""
        for topic in list(self._by_topic):
            if not wants(topic):
                for key in list(self._by_topic.get(topic, ())):
                    self._forget(key, self._held[key])
            yield

    # packets

    def ask(self, topic: bytes) -> None:
        """Hand up again what is known of the sources of a topic."""
        self._changed.update(self._by_topic.get(topic, {}))

    def steps_to_refresh(self) -> Iterator[None]:
        """Hand up again, in steps, the interest of other domains."""
        for key in list(self._held):
            held = self._held.get(key)
            if held is not None and isinstance(held.record, InterestInfo) and not held.is_local:
                self._changed[key] = None
            yield

    def answer(self, tmr: lbmr.Tmr) -> lbmr.Packet | None:
        """Answer a use query for the contexts that want the name; None when there is none."""
        if not self._wanting.get((tmr.is_pattern, tmr.name)):
            return None
        answer = lbmr.Tmr(lbmr.TmrType.USE, tmr.flags | lbmr.TmrFlag.RESPONSE, tmr.name)
        options = lbmr.standard_options(bytes(8), lbmr.SenderType.APPLICATION, 0)
        return lbmr.Packet(lbmr.VERSION, options, lbmr.TopicManagement((answer,)))

    def on_datagram(self, datagram: bytes, now_ns: int) -> lbmr.Packet:
        """A datagram that another context has sent in an extension. Raises: DecodeError."""
        packet = lbmr.decode(datagram)
        source_id = packet.options.source_id if packet.options is not None else None
        if source_id is None and not isinstance(packet.body, lbmr.TnwgContextInfo):  # that has it in its body
            raise DecodeError("packet.options", "a datagram in an extension names no context")
        if source_id is not None and isinstance(packet.body, lbmr.RemoteDomainRoute):
            self._routes.pop(source_id, None)
            self._routes[source_id] = (packet, now_ns)
            if len(self._routes) > ROUTES_MAX:
                del self._routes[next(iter(self._routes))]
        return packet

    def routes(self, now_ns: int) -> list[lbmr.Packet]:
        """Return the domain routes that hold, to be handed up as if they had just been sent."""
        for instance, (_, came_ns) in list(self._routes.items()):
            if now_ns - came_ns >= ROUTE_LIFE_NS:
                del self._routes[instance]
        return [packet for packet, _ in self._routes.values()]

    @property
    def has_changes(self) -> bool:
        return bool(self._changed or self._ended)

    def take_packets(self, most: int) -> list[lbmr.Packet]:
        """Return packets with what has ended, and then with what is new, of `most` records at the most."""
        packets = [self._ended.popleft() for _ in range(min(most, len(self._ended)))]
        for key in list(islice(self._changed, most - len(packets))):
            del self._changed[key]
            held = self._held[key]
            record = held.record
            held.up = held.tir or True
            match record:
                case SourceInfo():
                    assert held.tir is not None
                    packets.append(self._packet(record, lbmr.Queries((), (held.tir,))))
                case InterestInfo() if not held.is_local:
                    packets.append(self._interest_packet(record, 0))
                case InterestInfo(is_pattern=True):
                    query = lbmr.WildcardTqr(lbmr.PatternType.PCRE, record.name)
                    packets.append(self._packet(record, lbmr.WildcardQueries((query,))))
                case InterestInfo():
                    packets.append(self._packet(record, lbmr.Queries((record.name,))))
        return packets

    def _interest_packet(self, record: InterestInfo, flags: int) -> lbmr.Packet:
        kind = lbmr.PatternType.PCRE if record.is_pattern else 0
        flags |= lbmr.InterestFlag.PATTERN if record.is_pattern else 0
        interest = lbmr.InterestRecord(record.domain_id, record.name, flags, kind)
        return self._packet(record, lbmr.TnwgInterest((interest,)))

    def _packet(self, record: SourceInfo | InterestInfo, body: lbmr.Body) -> lbmr.Packet:
        options = lbmr.standard_options(record.context_instance, record.context_type, self.domain_id)
        return lbmr.Packet(lbmr.VERSION, options, body)
