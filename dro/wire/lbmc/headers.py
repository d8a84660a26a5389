"""What a message says beside its data and its place: where answers go, and its application headers.

Called by receivers of all data messages, live, unicast and sent again. No state. Source: wire notes LBMC, 5.1 (REQUEST,
APPHDR_CHAIN), 6 and 7. Guess: the blocks of a message in pieces are those of its first piece; the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc.codes import BlockType
from dro.wire.lbmc.data_blocks import AppHdrChain, AppHdrType, Destination, ODomain, Request
from dro.wire.lbmc.message import Message

HEADER_CODES: Final = frozenset({BlockType.REQUEST, BlockType.APPHDR_CHAIN})
"""Messages with none of these blocks have no headers."""
ELEMENTS_MAX: Final = 64
ELEMENT_BYTES: Final = 128
"""About what an element takes in memory, beside its data."""
_MULTICAST: Final = 0xE0000000


@dataclass(frozen=True, slots=True)
class ContextAddress:
    """The request port of a context; domain 0: the own one, or not known."""

    domain_id: int
    ip: int
    port: int


@dataclass(frozen=True, slots=True)
class ReturnAddress:
    """Where the responses to a request go, and which number they carry there."""

    request_index: int
    requester: ContextAddress


@dataclass(frozen=True, slots=True)
class MessageHeaders:
    """`elements`: those of the application header chains, each as (type, data, subtype)."""

    returns_to: ReturnAddress | None = None
    elements: Sequence[tuple[int, bytes, int]] = ()

    @property
    def size(self) -> int:
        """Bytes that they take in memory, about."""
        return ELEMENT_BYTES * (1 + len(self.elements)) + sum(len(data) for _, data, _ in self.elements)

    @property
    def properties_length(self) -> int:
        """Bytes of message properties at the end of the whole message."""
        kind = AppHdrType.PROPERTIES_LENGTH
        return sum(int.from_bytes(data[:4], "big") for found, data, _ in self.elements if found == kind)

    def element(self, kind: int) -> tuple[bytes, int] | None:
        """Return data and subtype of the first element of a type."""
        return next(((data, subtype) for found, data, subtype in self.elements if found == kind), None)


def is_request_port(ip: int, port: int) -> bool:
    """Say whether a context can have its request port there."""
    return 0 < ip < _MULTICAST and port > 0


def read_headers(message: Message) -> MessageHeaders | None:
    """Read the headers; None when there are none.

    Raises: DecodeError for a request that cannot be answered, and for more than `ELEMENTS_MAX` application headers.
    """
    request = message.get(Request)
    elements = [
        (e.type, e.data, e.subtype)
        for block in message.blocks
        if isinstance(block, AppHdrChain)
        for e in block.elements
    ]
    if len(elements) > ELEMENTS_MAX:
        raise DecodeError("lbmc.apphdr_chain", f"{len(elements)} application headers, at most {ELEMENTS_MAX}")
    if request is None:
        return MessageHeaders(None, tuple(elements)) if elements else None
    if request.transport or not request.request_index or not is_request_port(request.ip, request.port):
        raise DecodeError("lbmc.request", "no index or address for a response")
    origin, destination = message.get(ODomain), message.get(Destination)
    domain_id = origin.domain_id if origin is not None else 0
    if not domain_id and destination is not None:
        domain_id = destination.origin_domain_id
    requester = ContextAddress(domain_id, request.ip, request.port)
    return MessageHeaders(ReturnAddress(request.request_index, requester), tuple(elements))
