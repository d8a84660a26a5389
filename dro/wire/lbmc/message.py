"""LBMC framing: messages to records and back, and the fast walk over a datagram of messages.

Two levels. `decode` and `encode` turn one message into a `Message` with typed blocks and back, losslessly. The
functions at the end (`walk`, `chain`, `frag_of`, `payload_at`) work on a buffer with offsets and build no records;
per-fragment forwarding uses those and does not copy.

Called by everything that carries LBMC: source transports, UIM connections, peer links, the dissector. No state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, TypeVar

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.cursor import pack
from dro.wire.lbmc.block import Block, RawBlock
from dro.wire.lbmc.blocks import AnyBlock, read_block, write_block
from dro.wire.lbmc.codes import (
    BLOCK_MIN,
    END_DATA,
    END_NONE,
    FULL_HEADER_SIZE,
    FULL_HEADER_TYPES,
    MESSAGE_MAX,
    MINIMAL_HEADER_SIZE,
    UNDERSTOOD_CODES,
    BlockType,
    MessageType,
)
from dro.wire.lbmc.data_blocks import TcpSid, Tsni, TsniRecord

Buffer = bytes | bytearray | memoryview
B = TypeVar("B", bound=Block)
BlockKind = type[B]  # spelt here because `Message.type` hides the built-in in the class below

HEADER: Final = Struct("!BBHII")  # version and type, first block, message length, topic index, sqn
MINIMAL: Final = Struct("!BBH")
FRAG_HEADER: Final = Struct("!BBHIIBBHIII")  # HEADER followed by a FRAG block: 28 bytes

_NEVER: Final = MESSAGE_MAX + 1
# Size of the header by first byte; for a version or type that does not exist more than any message can have.
_HEADER_SIZES: Final = tuple(
    (FULL_HEADER_SIZE if first in FULL_HEADER_TYPES else MINIMAL_HEADER_SIZE)
    if first in MessageType.__members__.values()
    else _NEVER
    for first in range(256)
)


@dataclass(frozen=True, slots=True)
class Message:
    """One LBMC message.

    `topic_index` and `sqn` are None exactly for the types with the minimal header. `payload` is the user data; it is
    empty unless the chain ended with 0x00. What stands behind a chain that ended otherwise means nothing and is kept
    in `trailer`; `end` then is 0xFF, or the code of a block for which fewer than 4 bytes were left.
    """

    type: MessageType
    topic_index: int | None
    sqn: int | None
    blocks: tuple[AnyBlock, ...] = ()
    payload: bytes = b""
    end: int = END_DATA
    version: int = 0
    trailer: bytes = field(default=b"", kw_only=True)

    def find(self, code: BlockType) -> AnyBlock | None:
        """The first block of that code, or None."""
        return next((block for block in self.blocks if block.code == code), None)

    def get(self, kind: BlockKind[B]) -> B | None:
        """The first block of that record class, or None."""
        return next((block for block in self.blocks if isinstance(block, kind)), None)

    @property
    def must_drop(self) -> bool:
        """Whether a block that nobody here understands forbids use of the message.

        Guess: an unknown block without the ignore bit does, one with the bit is skipped. For receivers; a DRO that
        only forwards keeps either kind. Pass-through blocks are known: they never forbid.
        """
        return any(
            isinstance(block, RawBlock) and block.code not in UNDERSTOOD_CODES and not block.ignore
            for block in self.blocks
        )


def header_size(kind: int) -> int:
    """Bytes before the first block, by message type (or by first byte, version 0)."""
    return _HEADER_SIZES[kind]


def decode(data: bytes, pos: int = 0) -> Message:
    """The message that starts at `pos`; bytes behind it are not looked at. Raises: DecodeError."""
    msglen = _message_length(data, pos, len(data))
    first, code = data[pos], data[pos + 1]
    topic_index, sqn = HEADER.unpack_from(data, pos)[3:] if _HEADER_SIZES[first] == FULL_HEADER_SIZE else (None, None)
    end = pos + msglen
    at = pos + _HEADER_SIZES[first]
    blocks: list[AnyBlock] = []
    while code != END_DATA and code != END_NONE and end - at >= BLOCK_MIN:
        size = data[at + 1]
        if size < BLOCK_MIN or size > end - at:
            raise _bad_block(code, size, end - at, at)
        blocks.append(read_block(code, data, at, size))
        code = data[at]
        at += size
    rest = data[at:end]
    payload, trailer = (rest, b"") if code == END_DATA else (b"", rest)
    return Message(MessageType(first), topic_index, sqn, tuple(blocks), payload, code, trailer=trailer)


def encode(message: Message) -> bytes:
    """The bytes of one message. Raises: LocalProtocolError when a value does not fit its field or the message."""
    codes = [*(block.code for block in message.blocks), message.end]
    body = b"".join(write_block(block, successor) for block, successor in zip(message.blocks, codes[1:], strict=True))
    body += message.payload + message.trailer
    first = message.version << 4 | message.type
    size = _HEADER_SIZES[message.type] + len(body)
    if size > MESSAGE_MAX:
        raise LocalProtocolError(f"message of {size} bytes, at most {MESSAGE_MAX} fit")
    if message.type in FULL_HEADER_TYPES:
        return pack(HEADER, first, codes[0], size, message.topic_index, message.sqn) + body
    return pack(MINIMAL, first, codes[0], size) + body


def control_message(*blocks: AnyBlock) -> Message:
    """A message without user data. Guess: its chain ends with 0xFF (0x00 is accepted as well)."""
    return Message(MessageType.CONTROL, None, None, blocks, b"", END_NONE)


def tsni_message(records: Iterable[tuple[int, int]]) -> Message:
    """Topic sequence number information for pairs of topic index and last sqn sent; at most 31 fit one message."""
    return control_message(Tsni(tuple(TsniRecord(*record) for record in records)))


def tcp_sid_message(session_id: int) -> Message:
    """Return what a receiver sends first on a connection to an LBT-TCP source whose advertisement has a session id."""
    return control_message(TcpSid(session_id))


def walk(buf: Buffer, pos: int, end: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each message in `buf[pos:end]`; 1 to 3 stray bytes at the end are ignored.

    Lengths are checked, chains are not. Raises: DecodeError on reaching a message of length 0, of a length below its
    header, of an unknown type or version, or past `end`; what was yielded before is sound.
    """
    while end - pos >= MINIMAL_HEADER_SIZE:
        msglen = buf[pos + 2] << 8 | buf[pos + 3]
        if msglen < _HEADER_SIZES[buf[pos]] or msglen > end - pos:
            raise _bad_length(buf, pos, msglen, end)
        yield pos, msglen
        pos += msglen


def chain(buf: Buffer, pos: int, msglen: int) -> tuple[list[tuple[int, int, int]], int, int]:
    """Blocks of the message at `pos` as (code, offset, size), the code that ended the chain, and where it ended.

    `walk` must have accepted the message. Raises: DecodeError on a block shorter than 4 bytes or past the message.
    """
    end = pos + msglen
    code = buf[pos + 1]
    at = pos + _HEADER_SIZES[buf[pos]]
    blocks: list[tuple[int, int, int]] = []
    while code and code != END_NONE and end - at >= BLOCK_MIN:
        size = buf[at + 1]
        if size < BLOCK_MIN or size > end - at:
            raise _bad_block(code, size, end - at, at)
        blocks.append((code, at, size))
        code = buf[at]
        at += size
    return blocks, code, at


def payload_at(buf: Buffer, pos: int, msglen: int) -> int:
    """Offset of the user data of the message at `pos`, or -1 when it carries none. Raises: DecodeError as `chain`."""
    if not buf[pos + 1]:
        return pos + _HEADER_SIZES[buf[pos]]
    _, code, at = chain(buf, pos, msglen)
    return at if code == END_DATA else -1


_FRAG: Final = Struct("!III")
_FRAG_SIZE: Final = 16


def frag_of(buf: Buffer, pos: int, msglen: int) -> tuple[int, int, int, int] | None:
    """Fragment data of the message at `pos`: (first sqn, offset, total length, offset of the piece in `buf`).

    None when the message has no FRAG block, so holds a whole one; `payload_at` then finds its data.
    Raises: DecodeError as `chain`, and on a FRAG block that is too short, has no user data behind the chain, or a
    piece that reaches past the total.
    """
    code = buf[pos + 1]
    if not code:
        return None
    end = pos + msglen
    at = pos + _HEADER_SIZES[buf[pos]]
    found = -1
    while code and code != END_NONE and end - at >= BLOCK_MIN:
        size = buf[at + 1]
        if size < BLOCK_MIN or size > end - at:
            raise _bad_block(code, size, end - at, at)
        if code == BlockType.FRAG and found < 0:
            if size < _FRAG_SIZE:
                raise _bad_block(code, size, end - at, at)
            found = at
        code = buf[at]
        at += size
    if found < 0:
        return None
    first_sqn, offset, total = _FRAG.unpack_from(buf, found + BLOCK_MIN)
    if code != END_DATA or offset + end - at > total:
        raise DecodeError("lbmc.frag", f"piece at {offset} does not fit a message of {total} bytes", found)
    return first_sqn, offset, total, at


def _message_length(data: bytes, pos: int, end: int) -> int:
    if end - pos < MINIMAL_HEADER_SIZE:
        raise DecodeError("lbmc.header", f"needs {MINIMAL_HEADER_SIZE} bytes, {max(end - pos, 0)} left", pos)
    msglen = data[pos + 2] << 8 | data[pos + 3]
    if msglen < _HEADER_SIZES[data[pos]] or msglen > end - pos:
        raise _bad_length(data, pos, msglen, end)
    return msglen


def _bad_length(buf: Buffer, pos: int, msglen: int, end: int) -> DecodeError:
    need = _HEADER_SIZES[buf[pos]]
    if need == _NEVER:
        return DecodeError("lbmc.type", f"version {buf[pos] >> 4}, type {buf[pos] & 15:#x} is not known", pos)
    if msglen < need:
        return DecodeError("lbmc.msglen", f"{msglen} bytes, the header alone has {need}", pos)
    return DecodeError("lbmc.msglen", f"{msglen} bytes, {end - pos} left", pos)


def _bad_block(code: int, size: int, left: int, at: int) -> DecodeError:
    return DecodeError(f"lbmc.block.{code:#04x}", f"{size} bytes, {left} left in the message", at)
