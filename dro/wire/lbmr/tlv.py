"""Options in all LBMR blocks: one byte code, one byte total length, then the fields.

A table says which record a code becomes; the fields of a record are in wire order, so one reader and one writer serve
every option. An option in no table is kept unchanged when its ignore bit allows skipping it, else it ends the block.
Names are NUL-terminated, or bounded by the length of their record; they are bytes, since no character set is defined.
Source: wire notes LBMR sections 2, 6, 8 and 10, ambiguity A9.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import Field, dataclass, field
from functools import lru_cache, wraps
from struct import Struct, error
from typing import Any, ClassVar, Final, Generic, ParamSpec, Protocol, TypeVar

from dro.errors import DecodeError
from dro.wire.cursor import Reader

P = ParamSpec("P")
W = TypeVar("W")
IGNORE8: Final = 0x80
IGNORE16: Final = 0x8000
HEADER: Final = Struct("!BB")
MIN_LENGTH: Final = 4  # every option has at least its flags after code and length
SHARED_MAX_BYTES: Final = 16  # shorter bodies of options are often the same
NAME_MAX: Final = 255
"""Longest topic, pattern or queue name without its NUL: the buffers of the public API have 256 bytes."""


def fits(where: str) -> Callable[[Callable[P, W]], Callable[P, W]]:
    """Wrap a function that writes. Raises: DecodeError for a value that is too large for its field."""

    def decorate(write: Callable[P, W]) -> Callable[P, W]:
        @wraps(write)
        def checked(*args: P.args, **kwargs: P.kwargs) -> W:
            try:
                return write(*args, **kwargs)
            except error as e:
                raise DecodeError(where, "a value does not fit its field") from e

        return checked

    return decorate


def read_z(r: Reader, where: str) -> bytes:
    """A NUL-terminated name, without the NUL. Raises: DecodeError when there is none within `NAME_MAX` bytes."""
    return r.cstring(where, NAME_MAX)


def write_z(where: str, name: bytes) -> bytes:
    """Write a name. Raises: DecodeError for one that could not be read back: too long, or with a NUL inside."""
    if len(name) > NAME_MAX or b"\0" in name:
        raise DecodeError(where, f"a name has at most {NAME_MAX} bytes and no NUL")
    return name + b"\0"


def strip_counted(raw: bytes) -> bytes:
    """The name in a counted field: one trailing NUL is not part of it. Guess: both forms occur (A9)."""
    return raw[:-1] if raw.endswith(b"\0") else raw


def write_counted(name: bytes) -> bytes:
    """A counted string goes out with a NUL, the habit of the protocol. Guess: A9, not settled by a capture."""
    return name + b"\0"


class Record(Hashable, Protocol):
    """Any frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound=Record)


@dataclass(frozen=True, slots=True)
class Flags0:
    """An option whose first field are flags, of which none is known."""

    option_flags: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Flags8:
    """An option that may be skipped, by the ignore bit of its first byte."""

    option_flags: int = field(default=IGNORE8, kw_only=True)


@dataclass(frozen=True, slots=True)
class Flags16:
    """An option that may be skipped, by the ignore bit of its first word."""

    option_flags: int = field(default=IGNORE16, kw_only=True)


@dataclass(frozen=True, slots=True)
class UnknownOption:
    """An option of a code that is not known, kept for passing on. `body` is all after code and length, flags first."""

    code: int
    body: bytes


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[T]):
    """One row of a table. `layout` covers the fields after code and length; `has_name`: a counted string follows."""

    code: int
    record: type[T]
    layout: Struct
    has_name: bool
    names: tuple[str, ...]

    def read(self, where: str, body: bytes, at: int) -> T:
        size = self.layout.size
        if len(body) < size or (len(body) > size and not self.has_name):
            raise DecodeError(where, f"length {len(body) + 2} of option 0x{self.code:02x}", at)
        values = self.layout.unpack_from(body)
        if self.has_name:
            values += (strip_counted(body[size:]),)
        return self.record(**dict(zip(self.names, values, strict=True)))

    def write(self, where: str, option: T) -> bytes:
        values: tuple[Any, ...] = tuple(getattr(option, name) for name in self.names)
        tail = b""
        if self.has_name:
            *fixed, name = values
            values, tail = tuple(fixed), write_counted(name)
        raw = self.layout.pack(*values)
        if self.layout.unpack(raw) != values:  # struct pads or cuts bytes of the wrong size without a word
            raise DecodeError(where, f"a value of option 0x{self.code:02x} does not fit its field")
        return HEADER.pack(self.code, 2 + len(raw) + len(tail)) + raw + tail


def kind(code: int, record: type[T], layout: str) -> RecordKind[T]:
    """A row: `layout` in struct letters, `*` at its end for a counted string that fills the rest."""
    return RecordKind(
        code, record, Struct("!" + layout.rstrip("*")), layout.endswith("*"), tuple(record.__dataclass_fields__)
    )


class OptionTable(Generic[T]):
    """The options of one kind of block.

    `unknown` makes a record of a code that no row has, or is None where the protocol forbids such options.
    """

    def __init__(self, where: str, rows: Iterable[RecordKind[T]], unknown: Callable[[int, bytes], T] | None) -> None:
        self._where = where
        self._unknown = unknown
        rows = tuple(rows)
        self._by_code = {row.code: row for row in rows}
        self._by_record: dict[type[Record], RecordKind[T]] = {row.record: row for row in rows}
        self._read_once = lru_cache(maxsize=4096)(self._read_row)
        self._write_once = lru_cache(maxsize=4096)(self._write_row)

    def read(self, r: Reader) -> T:
        """One option. Raises: DecodeError on a bad length, or an unknown code without the ignore bit."""
        at = r.pos
        r.need(self._where, MIN_LENGTH)
        code, length = HEADER.unpack_from(r.data, at)
        if length < MIN_LENGTH:
            raise DecodeError(self._where, f"length {length} of option 0x{code:02x}", at)
        body = r.take(self._where, length)[2:]
        row = self._by_code.get(code)
        if row is not None:
            return self._shared(row, body, at) if len(body) <= SHARED_MAX_BYTES else row.read(self._where, body, at)
        if self._unknown is None or not body[0] & IGNORE8:
            raise DecodeError(self._where, f"unknown option 0x{code:02x} must not be ignored", at)
        return self._unknown(code, body)

    def _shared(self, row: RecordKind[T], body: bytes, at: int) -> T:
        """Read a record once for options that many sources have alike, such as the request address of their context."""
        try:
            return self._read_once(row.code, body)
        except DecodeError:
            return row.read(self._where, body, at)  # raises with the place in this packet

    def _read_row(self, code: int, body: bytes) -> T:
        return self._by_code[code].read(self._where, body, 0)

    def read_all(self, r: Reader, spare: int = 0) -> tuple[T, ...]:
        """Options until at most `spare` bytes are left."""
        options = []
        while r.left > spare:
            options.append(self.read(r))
        return tuple(options)

    def code(self, option: T) -> int:
        return option.code if isinstance(option, UnknownOption) else self._by_record[type(option)].code

    def write(self, option: T) -> bytes:
        """Write an option. Raises: DecodeError when a value does not fit."""
        if isinstance(option, UnknownOption):
            if not 2 <= len(option.body) <= 253:
                raise DecodeError(self._where, f"{len(option.body)} bytes in option 0x{option.code:02x}")
            return HEADER.pack(option.code, 2 + len(option.body)) + option.body
        row = self._by_record[type(option)]
        is_short = not row.has_name and row.layout.size <= SHARED_MAX_BYTES
        try:
            return self._write_once(option) if is_short else row.write(self._where, option)
        except error as e:
            raise DecodeError(self._where, f"a value of {type(option).__name__} does not fit its field") from e

    def _write_row(self, option: T) -> bytes:
        return self._by_record[type(option)].write(self._where, option)

    def write_all(self, options: Iterable[T]) -> bytes:
        return b"".join([self.write(option) for option in options])
