"""What all LBMC blocks share: reading and writing between the two leading bytes and the next block.

A block on the wire begins with the code of its *successor* and its own length; its own code stands in its
predecessor. A record here therefore holds neither: `CODE` belongs to the class, the successor to the message. Every
record keeps what it does not understand (flag bits, reserved fields, bytes beyond the known layout in `growth`), so a
block that is read and written again is the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar, Final, Self

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc_codes import BLOCK_MAX, BlockType
from dro.wire.packing import pack

HEAD_SIZE: Final = 2
IGNORE16: Final = 0x8000
IGNORE8: Final = 0x80
LOW15: Final = 0x7FFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Base of every block record; `growth` holds the bytes beyond the known layout.

    `flags` is the word (or byte) in which the sender may set the ignore bit: a receiver that does not know the block
    may skip it (meaning inferred from the name of the bit).
    """

    CODE: ClassVar[int]
    IGNORE: ClassVar[int] = IGNORE16

    flags: int = 0
    growth: bytes = b""

    @property
    def code(self) -> int:
        return self.CODE

    @property
    def ignore(self) -> bool:
        return bool(self.flags & self.IGNORE)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        """The block of `size` bytes at `pos`, its two leading bytes included. Raises: DecodeError."""
        raise NotImplementedError

    def body(self) -> bytes:
        """What follows the two leading bytes. Raises: LocalProtocolError when a value does not fit its field."""
        raise NotImplementedError


def too_short(name: str, pos: int, size: int, need: int) -> DecodeError:
    return DecodeError(f"lbmc.{name}", f"block of {size} bytes, its layout needs {need}", pos)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBlock(Block):
    """A block whose layout is one struct: `WIRE` names the record's fields in the order of `LAYOUT`."""

    LAYOUT: ClassVar[Struct]
    WIRE: ClassVar[tuple[str, ...]]

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        known = HEAD_SIZE + cls.LAYOUT.size
        if size < known:
            raise too_short(BlockType(cls.CODE).name.lower(), pos, size, known)
        values: dict[str, Any] = dict(zip(cls.WIRE, cls.LAYOUT.unpack_from(data, pos + HEAD_SIZE), strict=True))
        return cls(**values, growth=data[pos + known : pos + size])

    def body(self) -> bytes:
        return pack(self.LAYOUT, *(getattr(self, name) for name in self.WIRE)) + self.growth


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock(Block):
    """A flags word and a string that fills the rest of the block.

    Guess: strings are written without a terminator; NULs at the end of one that was read are no part of it and are
    kept in `growth`, so that the block survives unchanged.
    """

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        if size < TEXT_HEAD + 1:
            raise too_short(BlockType(cls.CODE).name.lower(), pos, size, TEXT_HEAD + 1)
        raw = data[pos + TEXT_HEAD : pos + size]
        text = raw.rstrip(b"\0")
        values: dict[str, Any] = {cls.text_field(): text}
        return cls(**values, flags=int.from_bytes(data[pos + 2 : pos + 4], "big"), growth=raw[len(text) :])

    @classmethod
    def text_field(cls) -> str:
        raise NotImplementedError

    def body(self) -> bytes:
        text: bytes = getattr(self, self.text_field())
        if not text and not self.growth:
            raise LocalProtocolError(f"{BlockType(self.CODE).name}: the text is empty")
        return pack(FLAGS16, self.flags) + text + self.growth


FLAGS16: Final = Struct("!H")
TEXT_HEAD: Final = HEAD_SIZE + FLAGS16.size
TEXT_MAX: Final = BLOCK_MAX - TEXT_HEAD  # a longer name cannot be carried: the block length is one byte


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A block kept byte for byte: one of the pass-through tier, or of a code that nobody outside can name."""

    code: int
    data: bytes  # everything after the two leading bytes

    @property
    def ignore(self) -> bool:
        """The ignore bit: the top bit of the third byte, whichever width the flags of the block have."""
        return bool(self.data) and bool(self.data[0] & IGNORE8)

    def body(self) -> bytes:
        return self.data
