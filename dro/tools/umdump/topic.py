"""`umdump --follow-topic`: the messages of one topic in a capture, complete and once each.

Finds the topic's messages by the advertisements (session and topic index) or, in immediate messages, by the name they
carry; joins fragments; skips duplicates. Late join data on a request connection names no topic and is not found.
Memory: `MAX_PARTIAL` unfinished messages of `MAX_PARTIAL_BYTES` together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dro.dissect.capture import UmPacket
from dro.dissect.content import DataHead, data_head
from dro.dissect.fields import ip4
from dro.dissect.follow import LBTRM, LBTTCP, Directory, SessionKey
from dro.dissect.sqnset import SqnPool, SqnSet
from dro.errors import DecodeError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import properties
from dro.wire.lbmc.codes import FULL_HEADER_TYPES, BlockType, MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, TopicName
from dro.wire.source_string import LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress, format_source

MAX_PARTIAL: Final = 1024
MAX_PARTIAL_BYTES: Final = 64 << 20
MAX_SOURCES: Final = 16384
_POOL_CHUNKS: Final = 16384

_Key = tuple[SessionKey, int, int]  # session, topic index, first sqn


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """One application message, complete with its last fragment in `frame`."""

    frame: int
    time_ns: int
    source: str
    sqn: int
    payload: bytes
    properties: tuple[properties.Property, ...]
    fragments: int
    is_retransmission: bool  # at least one piece came as one


@dataclass(slots=True)
class _Partial:
    total: int
    properties_length: int = 0
    is_retransmission: bool = False
    held: int = 0
    pieces: dict[int, bytes] = field(default_factory=dict)


class TopicFollower:
    """Takes packets, gives the topic's messages in the order in which they become complete."""

    def __init__(self, topic: bytes, directory: Directory) -> None:
        self._topic = topic
        self._directory = directory
        self._pool = SqnPool(_POOL_CHUNKS)
        self._seen: OrderedDict[tuple[SessionKey, int], SqnSet] = OrderedDict()
        self._partial: OrderedDict[_Key, _Partial] = OrderedDict()
        self._partial_bytes = 0

    @property
    def unfinished(self) -> int:
        return len(self._partial)

    def on_packet(self, packet: UmPacket) -> Iterator[TopicMessage]:
        """Messages that the packet completes. What cannot be read is passed over; counting it is not done here."""
        head = data_head(packet, self._directory)
        if head is None or packet.cut:
            return
        try:
            for pos, length in lbmc.walk(packet.data, head.start, len(packet.data)):
                if packet.data[pos] in FULL_HEADER_TYPES:
                    found = self._on_message(packet, head, pos, length)
                    if found is not None:
                        yield found
        except DecodeError:
            return

    def _on_message(self, packet: UmPacket, head: DataHead, pos: int, length: int) -> TopicMessage | None:
        data = packet.data
        _, block, _, index, sqn = lbmc.HEADER.unpack_from(data, pos)
        is_advertised = head.session is not None and self._directory.topic(head.session, index) == self._topic
        if not is_advertised and not (block and self._is_named(data, pos, length)):
            return None
        session = head.session or (LBTTCP, packet.src, packet.sport, 0)
        is_stream = head.session is None  # a request connection: its sqns count nothing
        if not is_stream and not self._is_new(session, index, sqn):
            return None
        is_retransmission = head.is_retransmission or data[pos] in (
            MessageType.RETRANSMISSION,
            MessageType.PROACTIVE_RETRANSMISSION,
        )
        source = f"UIM:{ip4(packet.src)}:{packet.sport}" if is_stream else self._source(packet, session, index)
        properties_length = _properties_length(data, pos, length) if block else 0
        piece = lbmc.frag_of(data, pos, length)
        if piece is None:
            start = lbmc.payload_at(data, pos, length)
            if start < 0:
                return None
            return _message(packet, source, sqn, data[start : pos + length], properties_length, 1, is_retransmission)
        first_sqn, offset, total, start = piece
        key = (session, index, first_sqn)
        partial = self._add_piece(key, offset, total, data[start : pos + length])
        if offset == 0:
            partial.properties_length = properties_length
        partial.is_retransmission |= is_retransmission
        if partial.held < partial.total or key not in self._partial:  # not there yet, or too large to wait for
            return None
        whole = _join(partial)
        del self._partial[key]
        self._partial_bytes -= partial.held
        if whole is None:  # pieces that overlap: they are not of one message
            return None
        return _message(
            packet,
            source,
            first_sqn,
            whole,
            partial.properties_length,
            len(partial.pieces),
            partial.is_retransmission,
        )

    def _is_named(self, data: bytes, pos: int, length: int) -> bool:
        message = lbmc.decode(data[pos : pos + length])
        name = message.get(TopicName)
        return name is not None and name.topic.rstrip(b"\0") == self._topic

    def _is_new(self, session: SessionKey, index: int, sqn: int) -> bool:
        seen = self._seen.get((session, index))
        if seen is None:
            seen = self._seen[(session, index)] = SqnSet(self._pool)
            if len(self._seen) > MAX_SOURCES:
                self._seen.popitem(last=False)
        return seen.add(sqn)

    def _add_piece(self, key: _Key, offset: int, total: int, piece: bytes) -> _Partial:
        partial = self._partial.get(key)
        if partial is None or partial.total != total:
            if partial is not None:
                self._partial_bytes -= partial.held
            partial = self._partial[key] = _Partial(total)
        self._partial.move_to_end(key)
        if piece and offset not in partial.pieces:
            partial.pieces[offset] = piece
            partial.held += len(piece)
            self._partial_bytes += len(piece)
        while len(self._partial) > MAX_PARTIAL or self._partial_bytes > MAX_PARTIAL_BYTES:
            _, old = self._partial.popitem(last=False)
            self._partial_bytes -= old.held
        return partial

    def _source(self, packet: UmPacket, session: SessionKey, index: int) -> str:
        return format_source(session_address(self._directory, session, (packet.dst, packet.dport)), index)


def session_address(
    directory: Directory, session: SessionKey, group: tuple[int, int] | None = None
) -> TransportAddress:
    """The address of a session as advertised, or else as far as its packets tell; `group` for LBT-RM."""
    known = directory.address(session)
    if known is not None:
        return known
    proto, ip, port, session_id = session
    if proto == LBTRM:
        address, dport = group or (0, 0)
        return LbtrmAddress(ip, address, session_id, dport, port)
    return TcpAddress(ip, port, session_id) if proto == LBTTCP else LbtruAddress(ip, port, session_id)


def _properties_length(data: bytes, pos: int, length: int) -> int:
    """Count the bytes of message properties at the end of the whole message. Raises: DecodeError."""
    blocks, _, _ = lbmc.chain(data, pos, length)
    return sum(
        AppHdrChain.read(data, at, size).properties_length
        for code, at, size in blocks
        if code == BlockType.APPHDR_CHAIN
    )


def _join(partial: _Partial) -> bytes | None:
    out = bytearray()
    for offset in sorted(partial.pieces):
        if offset > len(out):
            return None
        out += partial.pieces[offset][len(out) - offset :]
    return bytes(out)


def _message(
    packet: UmPacket,
    source: str,
    sqn: int,
    body: bytes,
    properties_length: int,
    fragments: int,
    is_retransmission: bool,
) -> TopicMessage:
    found: tuple[properties.Property, ...] = ()
    if 0 < properties_length <= len(body):
        try:
            found = properties.decode(body[-properties_length:])
            body = body[:-properties_length]
        except DecodeError:
            found = ()  # then the payload is shown with the bytes that should have been properties
    return TopicMessage(packet.frame, packet.time_ns, source, sqn, body, found, fragments, is_retransmission)
