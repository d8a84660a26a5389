"""Where an LBMC message goes: the blocks that address it, read in place, without decoding the others.

Called for every unicast message that passes a DRO. Source: wire notes LBMC, 5.1 (CTXINSTD, STREAM, DESTINATION) and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc.codes import UNDERSTOOD_CODES, BlockType, MessageType
from dro.wire.lbmc.message import chain

_DESTINATION: Final = Struct("!IIHH")  # domain, address, port, hops taken
_DESTINATION_SIZE: Final = 28
_INSTANCE_SIZE: Final = 12
_STREAM: Final = Struct("!II8s")
_STREAM_SIZE: Final = 20
_HEAD: Final = 4  # of a block: next, length, flags
_HOPS_AT: Final = 14
_LEAST: Final = {
    BlockType.DESTINATION: _DESTINATION_SIZE,
    BlockType.CTXINSTD: _INSTANCE_SIZE,
    BlockType.STREAM: _STREAM_SIZE,
}
OF_DROS: Final = frozenset(
    {
        BlockType.ROUTE_INFO,
        BlockType.CTXINFO,
        BlockType.TNWG_CAPABILITIES,
        BlockType.TNWG_KA,
        BlockType.TOPIC_MD_INTEREST,
        BlockType.PATTERN_MD_INTEREST,
        BlockType.TOPIC_INTEREST,
        BlockType.PATTERN_INTEREST,
        BlockType.TOPIC_SOURCE,
        BlockType.ADVERTISEMENT,
        BlockType.DOMAIN,
        BlockType.SSF_CREQ,
    }
)
"""Blocks of control messages between DROs, and of others that are for this hop alone."""


@dataclass(frozen=True, slots=True)
class DestinationFields:
    """What the DESTINATION block says of the way; `at` is its offset in the message."""

    domain_id: int
    ip: int
    port: int
    hops_taken: int
    at: int


@dataclass(frozen=True, slots=True)
class Addressing:
    """`dro_code`: the block of `OF_DROS` that makes it a control message between DROs, 0 for none.

    `instance`: the context that it goes to. `stream`: context instance of the sender, stream id, sequence number.
    `has_unknown`: there is a block with a code that has no name here, which may say where it goes.
    """

    is_data: bool
    dro_code: int
    destination: DestinationFields | None
    instance: bytes | None
    stream: tuple[bytes, int, int] | None
    has_unknown: bool = False


def read_addressing(message: bytes) -> Addressing:
    """Read the addressing of one whole message; the first block of each kind counts. Raises: DecodeError."""
    is_data = message[0] & 0xF != MessageType.CONTROL
    first: dict[int, int] = {}
    dro_code, has_unknown = 0, False
    for code, at, size in chain(message, 0, len(message))[0]:
        if code in _LEAST and code not in first:
            if size < _LEAST[BlockType(code)]:
                raise DecodeError(f"lbmc.block.{code:#04x}", f"{size} bytes", at)
            first[code] = at
        elif code in OF_DROS and not is_data and not dro_code:
            dro_code = code
        elif code not in UNDERSTOOD_CODES:
            has_unknown = True
    destination = instance = stream = None
    if (at := first.get(BlockType.DESTINATION, 0)) > 0:
        domain_id, ip, port, hops_taken = _DESTINATION.unpack_from(message, at + _HEAD)
        destination = DestinationFields(domain_id, ip, port, hops_taken, at)
    if (at := first.get(BlockType.CTXINSTD, 0)) > 0:
        instance = message[at + _HEAD : at + _INSTANCE_SIZE]
    if (at := first.get(BlockType.STREAM, 0)) > 0:
        stream_id, sqn, sender = _STREAM.unpack_from(message, at + _HEAD)
        stream = (sender, stream_id, sqn)
    return Addressing(is_data, dro_code, destination, instance, stream, has_unknown)


def asks_for_repair(message: bytes) -> bool:
    """Say whether the message asks for retransmission: of a receiver that has lost something, or came late.

    Not if it is broken.
    """
    try:
        return any(code == BlockType.UME_RXREQ for code, _, _ in chain(message, 0, len(message))[0])
    except DecodeError:
        return False


def with_hops(message: bytes, destination: DestinationFields, hops_taken: int) -> bytes:
    """The same message after so many DROs."""
    at = destination.at + _HOPS_AT
    return b"".join((message[:at], hops_taken.to_bytes(2, "big"), message[at + 2 :]))
