"""Where an LBMC message comes from: the blocks of its origin, read and completed in place.

Called for every multicast immediate message that enters a DRO, and for unicast ones from a TRD. Source: wire notes of
LBMC, 5.1 (ODOMAIN, OTID, REQUEST); peer link notes, sections 4 and 14. Guess: the first block of a kind counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc.codes import FULL_HEADER_TYPES, BlockType
from dro.wire.lbmc.message import chain
from dro.wire.otid import OTID_SIZE

_HEAD: Final = Struct("!BBH")  # next, length, flags
_U32: Final = Struct("!I")
_DOMAIN_SIZE: Final = 8
_OTID_BLOCK_SIZE: Final = _HEAD.size + OTID_SIZE
_LEAST: Final = {BlockType.ODOMAIN: _DOMAIN_SIZE, BlockType.OTID: _OTID_BLOCK_SIZE}
_SQN_AT: Final = 8
_LENGTH_AT: Final = 2
_MESSAGE_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class MessageOrigin:
    """`domain_id` and `otid` are None when the message has no such block. The others say where it can be completed."""

    sqn: int
    domain_id: int | None
    otid: bytes | None
    has_topic: bool
    is_request: bool
    domain_at: int
    last_next_at: int  # where the code of one more block goes
    chain_end: int


def read_origin(message: bytes) -> MessageOrigin:
    """Read the origin of one whole message with the full header. Raises: DecodeError."""
    if len(message) < _SQN_AT + 4 or message[0] not in FULL_HEADER_TYPES:
        raise DecodeError("lbmc.type", "no message with a sequence number")
    blocks, _, end = chain(message, 0, len(message))
    first: dict[int, int] = {}
    for code, at, size in blocks:
        if size < _LEAST.get(code, 0):  # type: ignore[call-overload]  # any number is no member
            raise DecodeError(f"lbmc.block.{code:#04x}", f"{size} bytes", at)
        first.setdefault(code, at)
    domain_at = first.get(BlockType.ODOMAIN, 0)
    otid_at = first.get(BlockType.OTID, 0) + _HEAD.size
    return MessageOrigin(
        _U32.unpack_from(message, _SQN_AT)[0],
        _U32.unpack_from(message, domain_at + _HEAD.size)[0] if domain_at else None,
        message[otid_at : otid_at + OTID_SIZE] if BlockType.OTID in first else None,
        BlockType.TOPICNAME in first,
        BlockType.REQUEST in first,
        domain_at,
        blocks[-1][1] if blocks else 1,
        end,
    )


def completed(message: bytes, origin: MessageOrigin, domain_id: int, otid: bytes) -> bytes:
    """The same message with this domain in its ODOMAIN block, and with that OTID if it has none.

    Raises: DecodeError when it would be too long.
    """
    made = _in_domain(message, origin, domain_id)
    return _with_block(made, origin, BlockType.OTID, otid) if origin.otid is None else bytes(made)


def request_with_domain(message: bytes, domain_id: int) -> bytes:
    """A request that does not say from which domain it is says so; any other message stays as it is."""
    try:
        origin = read_origin(message)
        if not origin.is_request or origin.domain_id:
            return message
        if origin.domain_at:
            return bytes(_in_domain(message, origin, domain_id))
        return _with_block(bytearray(message), origin, BlockType.ODOMAIN, _U32.pack(domain_id))
    except DecodeError:
        return message


def _in_domain(message: bytes, origin: MessageOrigin, domain_id: int) -> bytearray:
    made = bytearray(message)
    if origin.domain_at:
        _U32.pack_into(made, origin.domain_at + _HEAD.size, domain_id)
    return made


def _with_block(made: bytearray, origin: MessageOrigin, code: int, data: bytes) -> bytes:
    """Add one more block at the end of the chain. Raises: DecodeError."""
    size = _HEAD.size + len(data)
    if len(made) + size > _MESSAGE_MAX:
        raise DecodeError("lbmc.msglen", f"{len(made)} bytes leave no room for a block of {size}")
    block = _HEAD.pack(made[origin.last_next_at], size, 0) + data
    made[origin.last_next_at] = code
    made[origin.chain_end : origin.chain_end] = block
    made[_LENGTH_AT : _LENGTH_AT + 2] = len(made).to_bytes(2, "big")
    return bytes(made)
