"""What `umdump --summary` counts: packets by protocol and type, transport sessions, topics, losses.

One call per packet. The usual packet, data with plain messages, is counted from its bytes alone; all others go through
the dissector as well, so that a malformed packet is never missed. Tables and sets of sequence numbers are bounded. The
result is rendered by `summary`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import InitVar, dataclass, field
from struct import Struct
from typing import Final

from dro.dissect.capture import UmPacket
from dro.dissect.content import DataHead, data_head, lbtru_session
from dro.dissect.follow import LBMC, LBMR, LBMSRS, LBTRM, LBTRU, LBTTCP, Directory, LbmrView, SessionKey
from dro.dissect.packet import fields
from dro.dissect.sqnset import SqnPool, SqnSet
from dro.errors import DecodeError
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc.message import HEADER
from dro.wire.srs.messages import MessageId
from dro.wire.srs.rsocket import FrameType

MAX_SESSIONS: Final = 16384
MAX_SOURCES: Final = 65536
MAX_TOPICS: Final = 65536

_FRAG: Final = Struct("!BBHIII")
_RU_SID: Final = 20  # LBT-RU data header with nothing but the session id option
_DATA_TYPES: Final = {0x0: "message", 0x2: "proactive retransmission", 0xA: "retransmission"}
_BARE_TYPES: Final = {0x1: "end of transmission", 0x8: "control"}
_REASONS: Final = {0: "do not retry", 1: "NAK ignored", 2: "retransmit delay", 3: "NAK shed"}


@dataclass(slots=True, eq=False)
class SeenSession:
    """One transport session as the capture shows it. For LBT-RU one per client, whose numbers may differ."""

    key: SessionKey
    client: tuple[int, int] | None
    pool: InitVar[SqnPool]
    group: tuple[int, int] | None = None  # LBT-RM: group and destination port
    data: int = 0  # datagrams first sent; on TCP LBMC messages
    retransmissions: int = 0
    missing_bytes: int = 0
    types: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # of NCF entries
    sqns: SqnSet = field(init=False)
    resent: SqnSet = field(init=False)
    naked: SqnSet = field(init=False)
    ncfed: SqnSet = field(init=False)

    def __post_init__(self, pool: SqnPool) -> None:
        self.sqns, self.resent, self.naked, self.ncfed = (SqnSet(pool) for _ in range(4))


@dataclass(slots=True, eq=False)
class SourceCounts:
    """One topic on one transport session: what LBMC says about it."""

    key: SessionKey
    index: int
    sqns: SqnSet
    messages: int = 0  # LBMC data messages, fragments being one each
    repeats: int = 0  # of those, how many had been there before
    payload_bytes: int = 0


@dataclass(slots=True, eq=False)
class TopicCounts:
    """How often a topic was asked for and advertised."""

    queries: int = 0
    tirs: int = 0


class CaptureCounts:
    """All counters of one run."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.malformed = 0
        self.first_errors: list[tuple[int, str, str]] = []  # frame, protocol, reason
        self.packets: Counter[str] = Counter()  # by protocol
        self.types: dict[str, Counter[str]] = {proto: Counter() for proto in (LBMR, LBTRM, LBTRU, LBTTCP, LBMC, LBMSRS)}
        self.lbmr_shapes: Counter[str] = Counter()
        self.lbmr_records: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()  # NAK and NCF list entries: "lbtrm nak" and so on
        self.messages: Counter[str] = Counter()  # LBMC by type
        self.fragments = 0
        self.sessions: OrderedDict[tuple[SessionKey, tuple[int, int] | None], SeenSession] = OrderedDict()
        self.sources: OrderedDict[tuple[SessionKey, int], SourceCounts] = OrderedDict()
        self.topics: OrderedDict[bytes, TopicCounts] = OrderedDict()
        self.patterns: OrderedDict[bytes, int] = OrderedDict()  # wildcard queries by pattern
        self.forgotten: Counter[str] = Counter()  # table entries given up because a table was full
        self._pool = SqnPool()

    def on_packet(self, packet: UmPacket) -> None:
        proto = packet.proto
        self.packets[proto] += 1
        if packet.cut:
            self.types[proto]["cut by the capture"] += 1
            return
        error = packet.error
        if proto == LBTRM:
            found = self._on_lbtrm(packet)
        elif proto == LBMR:
            found = self._on_lbmr(self.directory.on_lbmr(packet.data))
        elif proto == LBTRU:
            found = self._on_lbtru(packet)
        elif proto == LBMSRS:
            found = self._on_lbmsrs(packet)
        else:
            found = self._on_lbmc(packet)
        error = error or found
        if error is not None:
            self.malformed += 1
            if len(self.first_errors) < 10:
                self.first_errors.append((packet.frame, proto, str(error)))

    # topic resolution

    def _on_lbmr(self, view: LbmrView) -> DecodeError | None:
        self.types[LBMR][view.kind] += 1
        parts = (("TQR", len(view.tqrs)), ("WC-TQR", len(view.patterns)), ("TIR", len(view.tirs)))
        shape = " + ".join(f"{count} {name}" for name, count in parts if count)
        if shape:
            self.lbmr_shapes[shape] += 1
        for name, count in parts:
            self.lbmr_records[name] += count
        for topic in view.tqrs:
            self._topic(topic).queries += 1
        for pattern in view.patterns:
            self.patterns[pattern] = self.patterns.get(pattern, 0) + 1
            if len(self.patterns) > MAX_TOPICS:
                self.patterns.popitem(last=False)
                self.forgotten["patterns"] += 1
        for tir in view.tirs:
            self._topic(tir.topic).tirs += 1
        return view.error

    def _on_lbmsrs(self, packet: UmPacket) -> DecodeError | None:
        """Count frames and messages by what the dissector shows."""
        shown = fields(LBMSRS, packet.data)
        for name, kinds in (("lbmsrs.rsocket.frame_type", FrameType), ("lbmsrs.message_id", MessageId)):
            texts = shown.values.get(name, [])
            for text in [texts] if isinstance(texts, str) else texts:
                kind = next((kind.name for kind in kinds if kind == int(text)), f"unknown {text}")
                self.types[LBMSRS][kind.lower().replace("_", " ")] += 1
        return shown.error

    def _topic(self, name: bytes) -> TopicCounts:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicCounts()
            if len(self.topics) > MAX_TOPICS:
                self.topics.popitem(last=False)
                self.forgotten["topics"] += 1
        return found

    # transports

    def _session(self, key: SessionKey, client: tuple[int, int] | None = None) -> SeenSession:
        found = self.sessions.get((key, client))
        if found is None:
            found = self.sessions[(key, client)] = SeenSession(key, client, self._pool)
            if len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
                self.forgotten["sessions"] += 1
        return found

    def _on_lbtrm(self, packet: UmPacket) -> DecodeError | None:
        head = data_head(packet, self.directory)
        if head is not None and head.session is not None:
            session = self._session(head.session)
            if session.group is None:
                session.group = (packet.dst, packet.dport)
            self._on_data(LBTRM, head, session)
            return self._on_messages(packet, head)
        error = fields(LBTRM, packet.data).error
        try:
            record = lbtrm.decode(packet.data)
        except DecodeError as e:
            self.types[LBTRM]["malformed"] += 1
            return error or e
        is_to_source = isinstance(record, lbtrm.Nak) and packet.dst >> 28 != 0xE
        source_ip = packet.dst if is_to_source else packet.src
        session = self._session((LBTRM, source_ip, record.ucast_port, record.session_id))
        if not is_to_source and session.group is None:
            session.group = (packet.dst, packet.dport)
        match record:
            case lbtrm.Nak(sqns=sqns):
                self._on_naks(LBTRM, session, sqns)
            case lbtrm.Ncf(sqns=sqns, reason=reason):
                self._on_ncfs(LBTRM, session, sqns, reason)
            case lbtrm.SessionMessage():
                self._count(LBTRM, session, "session message")
            case lbtrm.Data():
                self._count(LBTRM, session, "data")
        return error

    def _on_lbtru(self, packet: UmPacket) -> DecodeError | None:
        head = data_head(packet, self.directory)
        if head is not None and head.session is not None:
            session = self._session(head.session, (packet.dst, packet.dport))
            self._on_data(LBTRU, head, session)
            return self._on_messages(packet, head)
        error = fields(LBTRU, packet.data).error
        try:
            record = lbtru.decode(packet.data)
        except DecodeError as e:
            self.types[LBTRU]["malformed"] += 1
            return error or e
        key, client = lbtru_session(packet, self.directory, record.session_id)
        session = self._session(key, client)
        match record:
            case lbtru.Nak(sqns=sqns):
                self._on_naks(LBTRU, session, sqns)
            case lbtru.Ncf(sqns=sqns, reason=reason):
                self._on_ncfs(LBTRU, session, sqns, reason)
            case lbtru.SessionMessage():
                self._count(LBTRU, session, "session message")
            case lbtru.Ack():
                self._count(LBTRU, session, "ACK")
            case lbtru.ConnectRequest():
                self._count(LBTRU, session, "connect request")
            case lbtru.Reset():
                self._count(LBTRU, session, "reset")
            case lbtru.Data():
                self._count(LBTRU, session, "data")
        return error

    def _count(self, proto: str, session: SeenSession, kind: str) -> None:
        self.types[proto][kind] += 1
        session.types[kind] += 1

    def _on_data(self, proto: str, head: DataHead, session: SeenSession) -> None:
        session.sqns.add(head.sqn)
        if head.is_retransmission:
            session.retransmissions += 1
            session.resent.add(head.sqn)
            self.types[proto]["retransmission"] += 1
        else:
            session.data += 1
            self.types[proto]["data"] += 1

    def _on_naks(self, proto: str, session: SeenSession, sqns: tuple[int, ...]) -> None:
        self._count(proto, session, "NAK")
        session.types["NAK entries"] += len(sqns)
        self.entries[f"{proto} NAK"] += len(sqns)
        for sqn in sqns:
            session.naked.add(sqn)

    def _on_ncfs(self, proto: str, session: SeenSession, sqns: tuple[int, ...], reason: int) -> None:
        self._count(proto, session, "NCF")
        session.types["NCF entries"] += len(sqns)
        self.entries[f"{proto} NCF"] += len(sqns)
        session.reasons[f"{reason} ({_REASONS.get(reason, 'unassigned')})"] += len(sqns)
        for sqn in sqns:
            session.ncfed.add(sqn)

    # messages

    def _on_lbmc(self, packet: UmPacket) -> DecodeError | None:
        head = data_head(packet, self.directory)
        if head is None:
            return fields(packet.proto, packet.data).error
        if head.session is not None:
            session = self._session(head.session)
            if packet.lost:
                session.missing_bytes += max(0, packet.lost)
        before = sum(self.messages.values())
        error = self._on_messages(packet, head)
        count = sum(self.messages.values()) - before
        self.types[packet.proto]["messages"] += count
        if head.session is not None:
            self._session(head.session).data += count
        return error

    def _on_messages(self, packet: UmPacket, head: DataHead) -> DecodeError | None:
        """Count the messages of a data packet. What is more than plain data is checked by the dissector."""
        data = packet.data
        pos = head.start
        end = len(data)
        session = head.session
        is_plain = packet.proto in (LBTTCP, LBMC) or not data[1] or (packet.proto == LBTRU and head.start == _RU_SID)
        while end - pos >= 4:
            kind = data[pos]
            length = data[pos + 2] << 8 | data[pos + 3]
            if length > end - pos:
                is_plain = False
                break
            name = _DATA_TYPES.get(kind)
            if name is None:
                is_plain = False
                name = _BARE_TYPES.get(kind)
                if name is None or length < 4:
                    break
                self.messages[name] += 1
                pos += length
                continue
            if length < 12:
                is_plain = False
                break
            self.messages[name] += 1
            _, block, _, index, sqn = HEADER.unpack_from(data, pos)
            size = length - 12
            if block:
                if block == 1 and length >= 28 and data[pos + 12] == 0 and data[pos + 13] == 16:
                    _, _, _, _, offset, total = _FRAG.unpack_from(data, pos + 12)
                    size -= 16
                    self.fragments += 1
                    if offset + size > total:
                        is_plain = False
                else:
                    is_plain = False
            if session is not None:
                self._on_message(session, index, sqn, size)
            pos += length
        return None if is_plain else fields(packet.proto, data).error

    def _on_message(self, session: SessionKey, index: int, sqn: int, size: int) -> None:
        source = self.sources.get((session, index))
        if source is None:
            source = self.sources[(session, index)] = SourceCounts(session, index, SqnSet(self._pool))
            if len(self.sources) > MAX_SOURCES:
                self.sources.popitem(last=False)
                self.forgotten["sources"] += 1
        source.messages += 1
        if source.sqns.add(sqn):
            source.payload_bytes += size
        else:
            source.repeats += 1
