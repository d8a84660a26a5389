"""Unicast messages between contexts: bytes to records and back, in pieces if large.

State: the pieces of messages that are not whole yet, of at most `STREAMS_MAX` streams and `PARTS_MAX_BYTES` in all, of
which the one begun first gives way; the number of the next message of the own stream.

    immediate        topic index 0; [TOPICNAME] [REQUEST, ODOMAIN] [APPHDR_CHAIN]
    response         topic index as the request index; [APPHDR_CHAIN]
    retransmission   its type; topic index as the request index; the blocks of the message that is sent again
    control          its type; LJI_REQ, UME_LJ_INFO, UME_RXREQ and those of persistence
    all              DESTINATION, STREAM, and FRAG when it is a piece

Source: wire notes LBMC, sections 5.1, 6 and 7. Guess: pieces of a
message have consecutive sqns, which are those of the stream; a message of one piece has sqn 0. Guess: the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from dro.errors import DecodeError
from dro.proto.delivery.fragment import fragments
from dro.proto.delivery.reassembly import ArrivalReassembly, Delivered
from dro.sqn import add
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_DATA, MESSAGE_MAX, MessageType
from dro.wire.lbmc.data_blocks import Destination, Frag, Stream, TopicName
from dro.wire.lbmc.headers import ContextAddress, MessageHeaders, read_headers

MESSAGE_MAX_BYTES: Final = 1 << 24
PARTS_MAX_BYTES: Final = 1 << 26
STREAMS_MAX: Final = 1024
_FRAG_BYTES: Final = 16

Sender = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Immediate:
    """A whole message to the context, or to its receivers of a topic; `data` ends with the message properties.

    `origin`: the context that sent it, as its DESTINATION block says; None without one.
    """

    data: bytes
    topic: bytes | None = None
    headers: MessageHeaders | None = None
    origin: ContextAddress | None = None


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """A whole response, perhaps to a request that is over; `data` ends with the message properties."""

    data: bytes
    request_index: int
    headers: MessageHeaders | None = None
    origin: ContextAddress | None = None


@dataclass(frozen=True, slots=True)
class Retransmission:
    """One fragment that a source or a store sends again, with its blocks and its topic sqn."""

    request_index: int
    message: lbmc.Message


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A message without data. `origin`: who sent it, as its DESTINATION block says; None without one."""

    message: lbmc.Message
    origin: ContextAddress | None


Record: TypeAlias = Immediate | ReceivedResponse | Retransmission | ControlMessage


class NotTaken(Enum):
    """Why a message is dropped."""

    BROKEN = "its layout is broken"
    UNKNOWN = "it has a block that is not known"
    NO_DATA = "it is no message of an application, no repair and no control message"
    PIECE = "it is a piece that does not fit"
    NOBODY = "nobody waits for it"


@dataclass(slots=True)
class _Parts:
    """The pieces of one stream."""

    joiner: ArrivalReassembly = field(default_factory=lambda: ArrivalReassembly(MESSAGE_MAX_BYTES))
    held_bytes: int = 0


class UnicastReader:
    """Counts what it does not take, by reason."""

    def __init__(self) -> None:
        self.dropped: Counter[NotTaken] = Counter()
        self._partial: dict[tuple[object, ...], _Parts] = {}  # the one begun first in front
        self._held_bytes = 0

    def read(self, message: bytes, sender: Sender) -> Record | NotTaken | None:
        """Take one whole LBMC message; None while pieces of it are missing."""
        try:
            made = self._read(lbmc.decode(message), sender)
        except DecodeError:
            made = NotTaken.BROKEN
        return self.drop(made) if isinstance(made, NotTaken) else made

    def drop(self, why: NotTaken) -> NotTaken:
        """Count a message that is not taken."""
        self.dropped[why] += 1
        return why

    def _read(self, message: lbmc.Message, sender: Sender) -> Record | NotTaken | None:
        if message.must_drop:
            return NotTaken.UNKNOWN
        if message.type == MessageType.CONTROL and message.blocks:
            return ControlMessage(message, _origin(message))
        if message.end != END_DATA:
            return NotTaken.NO_DATA
        if message.type == MessageType.RETRANSMISSION:
            return Retransmission(message.topic_index or 0, message)
        if message.type != MessageType.MESSAGE:
            return NotTaken.NO_DATA
        headers = read_headers(message)
        whole = self._whole(message, headers, sender)
        if not isinstance(whole, Delivered):
            return whole
        data, headers = bytes(whole.payload), whole.headers
        if headers is not None and headers.properties_length > len(data):
            return NotTaken.BROKEN
        name = message.get(TopicName)
        if message.topic_index and name is None and (headers is None or headers.returns_to is None):
            return ReceivedResponse(data, message.topic_index, headers, _origin(message))
        return Immediate(data, None if name is None else name.topic, headers, _origin(message))

    def _whole(
        self, message: lbmc.Message, headers: MessageHeaders | None, sender: Sender
    ) -> Delivered | NotTaken | None:
        frag = message.get(Frag)
        if frag is None:
            return Delivered(0, 0, message.payload, 0, None, headers)
        key = _stream_of(message, sender)
        parts = self._partial.get(key)
        if parts is None:
            if len(self._partial) >= STREAMS_MAX:
                self._forget(next(iter(self._partial)))
            parts = self._partial[key] = _Parts()
        place = (frag.first_sqn, frag.offset, frag.length)
        outcome = parts.joiner.take(message.sqn or 0, place, message.payload, 0, headers)
        self._held_bytes += parts.joiner.held_bytes - parts.held_bytes
        parts.held_bytes = parts.joiner.held_bytes
        if parts.joiner.is_idle:
            self._forget(key)
        while self._held_bytes > PARTS_MAX_BYTES:
            self._forget(next(iter(self._partial)))
        return outcome if outcome is None or isinstance(outcome, Delivered) else NotTaken.PIECE

    def _forget(self, key: tuple[object, ...]) -> None:
        self._held_bytes -= self._partial.pop(key).held_bytes


def _stream_of(message: lbmc.Message, sender: Sender) -> tuple[object, ...]:
    stream = message.get(Stream)
    return sender if stream is None else (stream.ctxinst, stream.stream_id)


def _origin(message: lbmc.Message) -> ContextAddress | None:
    way = message.get(Destination)
    return None if way is None else ContextAddress(way.origin_domain_id, way.origin_ip, way.origin_port)


class UnicastWriter:
    """The stream of one context. All messages name where they go (`to`) and the context itself (`origin`)."""

    def __init__(self, instance: bytes, stream_id: int) -> None:
        """`instance`: of the context, 8 bytes."""
        self._instance = instance
        self._stream_id = stream_id
        self._next_sqn = 0

    def data(
        self,
        data: bytes,
        index: int,
        blocks: Iterable[AnyBlock],
        to: ContextAddress,
        origin: ContextAddress,
        largest: int = MESSAGE_MAX,
    ) -> list[bytes]:
        """Make those of one immediate message (`index` 0) or response; `blocks` stand in the first, a topic in all.

        `largest`: bytes of each.
        """
        blocks = tuple(blocks)

        def made(sqn: int, before: tuple[AnyBlock, ...], piece: bytes, *behind: AnyBlock) -> bytes:
            way = self._way(to, origin)
            return lbmc.encode(lbmc.Message(MessageType.MESSAGE, index, sqn, (*before, *way, *behind), piece))

        start = self._next_sqn
        room = largest - len(made(0, blocks, b""))
        self._next_sqn = start
        if len(data) <= room:
            return [made(0, blocks, data)]
        return [
            made(
                part.sqn,
                tuple(block for block in blocks if isinstance(block, TopicName)) if part.offset else blocks,
                bytes(part.piece),
                Frag(part.first_sqn, part.offset, part.total),
            )
            for part in fragments(data, start, room - _FRAG_BYTES)
        ]

    def control(self, blocks: Iterable[AnyBlock], to: ContextAddress, origin: ContextAddress) -> bytes:
        """Make one control message."""
        return lbmc.encode(lbmc.control_message(*blocks, *self._way(to, origin)))

    def retransmission(self, sent: bytes, request_index: int, to: ContextAddress, origin: ContextAddress) -> bytes:
        """Make the message that sends a message of a source again, which has room for its way (`message_limit`)."""
        message = lbmc.decode(sent)
        blocks = (*self._way(to, origin), *message.blocks)
        again = lbmc.Message(MessageType.RETRANSMISSION, request_index, message.sqn, blocks, message.payload)
        return lbmc.encode(again)

    def _way(self, to: ContextAddress, origin: ContextAddress) -> tuple[Destination, Stream]:
        way = Destination(to.domain_id, to.ip, to.port, origin.domain_id, origin.ip, origin.port)
        stream = Stream(self._stream_id, self._next_sqn, self._instance)
        self._next_sqn = add(self._next_sqn, 1)
        return way, stream
