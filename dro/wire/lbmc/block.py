"""What all LBMC blocks share: reading and writing between the two leading bytes and the next block.

A block on the wire begins with the code of its *successor* and its own length; its own code is in its predecessor. A
record therefore holds neither: `CODE` belongs to the class, the successor to the message. Every record keeps what it
does not understand (flag bits, reserved fields, bytes beyond the known layout in `growth`), so a block that is read and
written again is the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from struct import Struct
from typing import Any, ClassVar, Final, Self, TypeVar, dataclass_transform

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.cursor import pack
from dro.wire.lbmc.codes import BLOCK_MAX, BlockType

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
    LAYOUT: ClassVar[Struct]
    WIRE: ClassVar[tuple[str, ...]]
    SHARED: ClassVar[str]

    flags: int = 0
    growth: bytes = b""

    @property
    def code(self) -> int:
        return self.CODE

    @property
    def ignore(self) -> bool:
        return bool(self.flags & (IGNORE8 if self.LAYOUT.format[1] == "B" else IGNORE16))

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        """The block of `size` bytes at `pos`, its two leading bytes included. Raises: DecodeError."""
        raise NotImplementedError

    def body(self) -> bytes:
        """Return what follows the two leading bytes. Raises: LocalProtocolError when a value does not fit its field."""
        raise NotImplementedError

    @classmethod
    def unpack(cls, data: bytes, pos: int, size: int, more: int = 0) -> tuple[Any, ...]:
        """The values of `LAYOUT`. Raises: DecodeError when they and `more` bytes do not fit the block."""
        need = HEAD_SIZE + cls.LAYOUT.size + more
        if size < need:
            name = BlockType(cls.CODE).name.lower()
            raise DecodeError(f"lbmc.{name}", f"block of {size} bytes, its layout needs {need}", pos)
        return cls.LAYOUT.unpack_from(data, pos + HEAD_SIZE)


B = TypeVar("B", bound=Block)
BLOCK_RECORDS: Final[dict[int, type[Block]]] = {}
"""All records by block code; each enters it where it is defined."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def block(code: int, layout: str = "H", wire: str = "", shared: str = "") -> Callable[[type[B]], type[B]]:
    """A block record. `layout`: its fixed part in struct letters, the first of them for `flags`.

    `wire`: the fields behind `flags` in the order of the layout, by default as in the class. `shared`: the field in
    the low 15 bits of the flags word, which then has only the ignore bit besides.
    """

    def make(cls: type[B]) -> type[B]:
        record = dataclass(frozen=True, slots=True)(cls)
        own = (f.name for f in fields(record) if f.name not in ("flags", "growth", shared))
        record.CODE, record.LAYOUT, record.SHARED = code, Struct("!" + layout), shared
        record.WIRE = ("flags", *(wire.split() or own))
        BLOCK_RECORDS[code] = record
        return record

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBlock(Block):
    """A block whose layout is one struct."""

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        values: dict[str, Any] = dict(zip(cls.WIRE, cls.unpack(data, pos, size), strict=True))
        if cls.SHARED:
            word = values["flags"]
            values |= {cls.SHARED: word & LOW15, "flags": word & IGNORE16}
        return cls(**values, growth=data[pos + HEAD_SIZE + cls.LAYOUT.size : pos + size])

    def body(self) -> bytes:
        word, *rest = (getattr(self, name) for name in self.WIRE)
        return pack(self.LAYOUT, word | getattr(self, self.SHARED) if self.SHARED else word, *rest) + self.growth


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock(Block):
    """A flags word and a string that fills the rest of the block.

    Guess: strings are written without a terminator; NULs at the end of one that was read are no part of it and are
    kept in `growth`, so that the block survives unchanged.
    """

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        (flags,) = cls.unpack(data, pos, size, more=1)
        raw = data[pos + TEXT_HEAD : pos + size]
        text = raw.rstrip(b"\0")
        values: dict[str, Any] = {cls.WIRE[-1]: text}
        return cls(**values, flags=flags, growth=raw[len(text) :])

    def body(self) -> bytes:
        text: bytes = getattr(self, self.WIRE[-1])
        if not text and not self.growth:
            raise LocalProtocolError(f"{BlockType(self.CODE).name}: the text is empty")
        return pack(self.LAYOUT, self.flags) + text + self.growth


TEXT_HEAD: Final = HEAD_SIZE + 2
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
