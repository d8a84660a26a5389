"""Requests and responses as unicast immediate messages without a topic: bytes to records and back, in pieces if large.

State: the pieces of messages that are not whole yet, of at most `STREAMS_MAX` streams with `MESSAGE_MAX_BYTES` each, of
which the one begun first gives way; the number of the next message of the own stream.

    request     topic index 0, REQUEST (where responses go, and under which index), ODOMAIN (domain of the requester)
    response    topic index as the request index
    both        DESTINATION, STREAM, FRAG when it is a piece

Source: wire notes LBMC, sections 5.1, 6 and 7. Guess: pieces of a message have consecutive sqns, which are those of the
stream; a message of one piece has sqn 0. Guess: the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.errors import DecodeError
from dro.proto.delivery.fragment import fragments
from dro.proto.delivery.reassembly import ArrivalReassembly, Refusal
from dro.sqn import add
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_DATA, MESSAGE_MAX, MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, Destination, Frag, ODomain, Request, Stream, TopicName

MESSAGE_MAX_BYTES: Final = 1 << 20
STREAMS_MAX: Final = 16
_FRAG_BYTES: Final = 16
_MULTICAST: Final = 0xE0000000

Sender = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ContextAddress:
    """The request port of a context; domain 0: the own one, or not known."""

    domain_id: int
    ip: int
    port: int


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A whole request, and where its responses go."""

    data: bytes
    request_index: int
    requester: ContextAddress


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """A whole response, perhaps to a request that is over."""

    data: bytes
    request_index: int


class NotTaken(Enum):
    """Why a message is dropped."""

    BROKEN = "its layout is broken"
    UNKNOWN = "it has a block that is not known"
    NO_REQUEST = "it is no request and no response"
    TOPIC = "it has a topic"
    PIECE = "it is a piece that does not fit"
    NOBODY = "nobody waits for it"


class RequestReader:
    """Counts what it does not take, by reason."""

    def __init__(self) -> None:
        self.dropped: Counter[NotTaken] = Counter()
        self._partial: dict[tuple[object, ...], ArrivalReassembly] = {}  # the one begun first in front

    def read(self, message: bytes, sender: Sender) -> ReceivedRequest | ReceivedResponse | NotTaken | None:
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

    def _read(self, message: lbmc.Message, sender: Sender) -> ReceivedRequest | ReceivedResponse | NotTaken | None:
        request = message.get(Request)
        if message.must_drop:
            return NotTaken.UNKNOWN
        if message.type != MessageType.MESSAGE or message.end != END_DATA or not (request or message.topic_index):
            return NotTaken.NO_REQUEST
        if message.get(TopicName) is not None:
            return NotTaken.TOPIC
        requester = None
        if request is not None:
            requester = _requester(message, request)
            if not requester.ip or not requester.port or requester.ip >= _MULTICAST or request.transport:
                return NotTaken.BROKEN
        data = self._whole(message, sender)
        if not isinstance(data, bytes):
            return data
        if (chain := message.get(AppHdrChain)) is not None:
            data = data[: max(0, len(data) - chain.properties_length)]
        if request is not None and requester is not None:
            return ReceivedRequest(data, request.request_index, requester)
        return ReceivedResponse(data, message.topic_index or 0)

    def _whole(self, message: lbmc.Message, sender: Sender) -> bytes | NotTaken | None:
        frag, stream = message.get(Frag), message.get(Stream)
        if frag is None:
            return message.payload
        key = (stream.ctxinst, stream.stream_id) if stream is not None else sender
        partial = self._partial.get(key)
        if partial is None:
            if len(self._partial) >= STREAMS_MAX:
                del self._partial[next(iter(self._partial))]
            partial = self._partial[key] = ArrivalReassembly(MESSAGE_MAX_BYTES)
        place = (frag.first_sqn, frag.offset, frag.length)
        outcome = partial.take(message.sqn or 0, place, message.payload, 0)
        if partial.is_idle:
            del self._partial[key]
        if isinstance(outcome, Refusal):
            return NotTaken.PIECE
        return None if outcome is None else bytes(outcome.payload)


def _requester(message: lbmc.Message, request: Request) -> ContextAddress:
    origin, destination = message.get(ODomain), message.get(Destination)
    domain_id = origin.domain_id if origin is not None else 0
    if not domain_id and destination is not None:
        domain_id = destination.origin_domain_id
    return ContextAddress(domain_id, request.ip, request.port)


class RequestWriter:
    """The stream of one context."""

    def __init__(self, instance: bytes, stream_id: int) -> None:
        """`instance`: of the context, 8 bytes."""
        self._instance = instance
        self._stream_id = stream_id
        self._next_sqn = 0

    def request(self, data: bytes, request_index: int, to: ContextAddress, origin: ContextAddress) -> list[bytes]:
        """Make the messages of one request."""
        blocks = (Request(request_index, origin.ip, origin.port), ODomain(origin.domain_id))
        return self._pieces(data, 0, blocks, to, origin)

    def response(self, data: bytes, request_index: int, to: ContextAddress, origin: ContextAddress) -> list[bytes]:
        """Make the messages of one response."""
        return self._pieces(data, request_index, (), to, origin)

    def _pieces(
        self, data: bytes, index: int, blocks: Iterable[AnyBlock], to: ContextAddress, origin: ContextAddress
    ) -> list[bytes]:
        way = Destination(to.domain_id, to.ip, to.port, origin.domain_id, origin.ip, origin.port)

        def made(sqn: int, offset: int, piece: bytes, *more: AnyBlock) -> bytes:
            stream = Stream(self._stream_id, add(self._next_sqn, offset), self._instance)
            return lbmc.encode(lbmc.Message(MessageType.MESSAGE, index, sqn, (*blocks, way, stream, *more), piece))

        room = MESSAGE_MAX - len(made(0, 0, b""))
        if len(data) <= room:
            pieces = [made(0, 0, data)]
        else:
            parts = fragments(data, self._next_sqn, room - _FRAG_BYTES)
            pieces = [
                made(part.sqn, number, bytes(part.piece), Frag(part.first_sqn, part.offset, part.total))
                for number, part in enumerate(parts)
            ]
        self._next_sqn = add(self._next_sqn, len(pieces))
        return pieces
