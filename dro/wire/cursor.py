"""Bounds-checked reading and writing of bytes, used by every codec.

A `Reader` never reads past its end and raises `DecodeError`, nothing else; a declared length never drives allocation,
because every length is compared with the available bytes before it is used. `pack` is the writing half of the fixed
layouts.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final

from dro.errors import DecodeError, LocalProtocolError

U16: Final = Struct("!H")
U32: Final = Struct("!I")


class Reader:
    """A cursor over `data[pos:end]`. Offsets in errors count from the start of `data`."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes | memoryview, pos: int = 0, end: int | None = None) -> None:
        self.data = data if isinstance(data, bytes) else bytes(data)
        self.pos = pos
        self.end = len(self.data) if end is None else end

    @property
    def left(self) -> int:
        return self.end - self.pos

    def fail(self, where: str, why: str) -> DecodeError:
        return DecodeError(where, why, self.pos)

    def need(self, where: str, count: int) -> None:
        """Check that `count` bytes are left. Raises: DecodeError when there are fewer."""
        if count < 0 or self.end - self.pos < count:
            raise DecodeError(where, f"needs {count} bytes, {max(self.end - self.pos, 0)} left", self.pos)

    def unpack(self, where: str, layout: Struct) -> tuple[Any, ...]:
        self.need(where, layout.size)
        values = layout.unpack_from(self.data, self.pos)
        self.pos += layout.size
        return values

    def u8(self, where: str) -> int:
        self.need(where, 1)
        value = self.data[self.pos]
        self.pos += 1
        return value

    def u16(self, where: str) -> int:
        value: int = self.unpack(where, U16)[0]
        return value

    def u32(self, where: str) -> int:
        value: int = self.unpack(where, U32)[0]
        return value

    def take(self, where: str, count: int) -> bytes:
        self.need(where, count)
        value = self.data[self.pos : self.pos + count]
        self.pos += count
        return value

    def cstring(self, where: str, limit: int) -> bytes:
        """The bytes up to a NUL, which is consumed but not returned; at most `limit` bytes."""
        stop = self.data.find(0, self.pos, min(self.end, self.pos + limit + 1))
        if stop < 0:
            raise DecodeError(where, f"no NUL within {limit} bytes", self.pos)
        value = self.data[self.pos : stop]
        self.pos = stop + 1
        return value

    def sub(self, where: str, count: int) -> Reader:
        """A reader over the next `count` bytes, which this one then skips."""
        self.need(where, count)
        inner = Reader(self.data, self.pos, self.pos + count)
        self.pos += count
        return inner


def pack(layout: Struct, *values: object) -> bytes:
    """The bytes of `values`. Raises: LocalProtocolError when one does not fit its field, a bug of the caller."""
    try:
        packed = layout.pack(*values)
    except error as e:
        raise LocalProtocolError(f"{layout.format} cannot hold {values}: {e}") from e
    if layout.unpack(packed) != values:  # struct pads and cuts byte strings without a word
        raise LocalProtocolError(f"{layout.format} cannot hold {values}: a byte string has the wrong length")
    return packed
