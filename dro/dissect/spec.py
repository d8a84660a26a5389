"""A small notation for fixed layouts, and the reader that prints them as named fields.

A specification is a line of items, each the next bytes of the record:

    name:d4            unsigned, decimal, 4 bytes (1, 2, 4 or 8)
    name:x2            the same in hex, padded to the width of the field
    name:i8            signed, decimal
    name:ip            IPv4 address
    name:b8 name:b*    bytes as 0a:0b, 8 of them or all that is left
    name:s* name:t*    text that fills the rest of the record: at least one byte, or possibly none
    ...[sub=4000]      after a number: one field per mask (hex), as 0 or 1; `sub=7f:d` prints the masked number
    _:x1[sub=80]       the number itself is not shown, its parts are
    -2                 two bytes that are not shown
    @3                 go on at offset 3

A `sub` is named under its number, under the record when the number is `_`, and under the protocol when it begins
with `^`: names are those of the standard dissectors, which are not quite regular.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.dissect.fields import FieldList, colon_hex, flag, hexint, ip4
from dro.errors import DecodeError

_REST: Final = -1


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    mask: int
    shift: int
    form: str  # f flag, d decimal, x hex
    width: int  # hex digits


@dataclass(frozen=True, slots=True)
class _Item:
    name: str  # empty: not shown
    form: str  # d x i ip b s t, - skip, @ go to
    size: int
    parts: tuple[_Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """A compiled specification."""

    items: tuple[_Item, ...]

    def print_fields(self, data: bytes, start: int, pos: int, end: int, out: FieldList) -> int:
        """Print the record whose block starts at `start`, from `pos` on; returns the offset behind it.

        Raises: DecodeError at the first field that does not lie before `end`; the fields before it are printed.
        """
        for item in self.items:
            if item.form == "@":
                pos = start + item.size
                continue
            size = end - pos if item.size == _REST else item.size
            if size > end - pos or (item.form == "s" and size == 0):
                raise DecodeError(item.name or "record", f"needs {max(size, 1)} bytes, {max(end - pos, 0)} left", pos)
            raw = data[pos : pos + size]
            pos += size
            if item.name:
                out.add(item.name, _text_of(item.form, raw))
            if item.parts:
                number = int.from_bytes(raw, "big")
                for part in item.parts:
                    out.add(part.name, _part_text(part, number))
        return pos


def compile_spec(prefix: str, spec: str) -> Layout:
    """The layout of a record whose field names begin with `prefix.`."""
    return Layout(tuple(_item(prefix, word) for word in spec.split()))


def printed_text(data: bytes) -> str:
    """A string field: up to a NUL, bytes outside ASCII as U+FFFD; control characters are left to whoever shows it."""
    return data.partition(b"\0")[0].decode("ascii", "replace")


def _text_of(form: str, raw: bytes) -> str:
    match form:
        case "d":
            return str(int.from_bytes(raw, "big"))
        case "x":
            return hexint(int.from_bytes(raw, "big"), 2 * len(raw))
        case "i":
            return str(int.from_bytes(raw, "big", signed=True))
        case "ip":
            return ip4(raw)
        case "s" | "t":
            return printed_text(raw)
        case _:
            return colon_hex(raw)


def _part_text(part: _Part, number: int) -> str:
    value = (number & part.mask) >> part.shift
    if part.form == "f":
        return flag(value)
    return hexint(value, part.width) if part.form == "x" else str(value)


def _item(prefix: str, word: str) -> _Item:
    if word[0] in "-@":
        return _Item("", word[0], int(word[1:]))
    head, _, tail = word.partition("[")
    name, _, form = head.partition(":")
    full = "" if name == "_" else f"{prefix}.{name}"
    if form == "ip":
        return _Item(full, "ip", 4)
    kind, size = form[0], form[1:]
    parts = tuple(_part(prefix, full, part) for part in tail.rstrip("]").split(",") if part)
    return _Item(full, kind, _REST if size == "*" else int(size), parts)


def _part(prefix: str, parent: str, text: str) -> _Part:
    name, _, mask_and_form = text.partition("=")
    mask_text, _, form = mask_and_form.partition(":")
    full = f"{prefix.partition('.')[0]}.{name[1:]}" if name[0] == "^" else f"{parent or prefix}.{name}"
    mask = int(mask_text, 16)
    shift = (mask & -mask).bit_length() - 1
    return _Part(full, mask, shift, form[:1] or "f", int(form[1:] or 0))
