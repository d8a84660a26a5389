"""The selection: which runs of a batch go to which siblings, and where they lie in the chunk for the ring.

Pure, and the reference for its compiled form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dro.proto.context.sources import BoundSource
from dro.sqn import MASK
from dro.transport.runs import (
    FRAGMENTS,
    LENGTH,
    OFFSET,
    PLAIN_BELOW,
    ROW,
    SHAPE,
    STRIDE,
    WORDS,
    RunTable,
)
from portals.datapath.handover import ForwardEntry

# plain integers in the compiled form
_WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE = WORDS, FRAGMENTS, OFFSET, LENGTH, STRIDE, SHAPE

HEADROOM: Final = 32
"""What every chunk has in front of its first fragment, for the header of any transport."""
_HEADROOM: Final = HEADROOM
_PLAIN_BELOW: Final = PLAIN_BELOW
_NO_HEADROOM: Final = MASK & ~0xFF
"""Of a shape: all but the headroom."""


def plain_part(
    table: RunTable, sources: Mapping[int, BoundSource[ForwardEntry]]
) -> tuple[tuple[int, ...], list[int]] | None:
    """(siblings, handles by row) of a table of plain data that is all for the same siblings; None when it is none."""
    handles: list[int] = []
    cells, egress = table.cells, None
    for nth in range(table.rows):
        at = nth * _WORDS
        bound = sources.get(cells[at])
        if cells[at + _SHAPE] >= _PLAIN_BELOW or bound is None or (entry := bound.user) is None:
            return None
        if at and entry.plain is not egress and entry.plain != egress:
            return None
        egress = entry.plain
        handles.append(entry.handle)
    return None if egress is None else (egress, handles)


def take_all(table: RunTable, handles: list[int], out: RunTable) -> None:
    """Append all rows with these handles; `out` has room."""
    cells, to, at, n = table.cells, out.cells, out.rows * WORDS, table.rows
    for row in range(n):
        start = row * _WORDS
        to[at] = handles[row]
        for column in range(1, _WORDS):
            to[at + column] = cells[start + column]
        at += _WORDS
    out.rows += n


def extent(table: RunTable, first: int = 0) -> tuple[int, int]:
    """(first byte, end) of all fragments of the rows from number `first` on; (0, 0) when there are none."""
    low, high = MASK, 0
    cells = table.cells
    for row in range(first, table.rows):
        at = row * _WORDS
        offset, length = cells[at + _OFFSET], cells[at + _LENGTH]
        if length:
            low = min(low, offset)
            high = max(high, offset + (cells[at + _FRAGMENTS] - 1) * cells[at + _STRIDE] + length)
    return (low if high else 0), high


def move(table: RunTable, distance: int, first: int = 0) -> None:
    """The fragments of the rows from number `first` on lie that much earlier."""
    cells = table.cells
    for row in range(first, table.rows):
        at = row * _WORDS + _OFFSET
        cells[at] = max(0, cells[at] - distance)


def compact(view: memoryview, table: RunTable, first: int, most: int) -> bytearray | None:
    """A chunk with the fragments of the rows from number `first` on close together; the rows are changed to fit it.

    None, and nothing changed, when it would be longer than `most` bytes.
    """
    size = HEADROOM + table.total(first)[1]
    if size > most:
        return None
    chunk = bytearray(size)
    cells, source, out, to = table.cells, view, chunk, _HEADROOM
    for row in range(first, table.rows):
        at = row * _WORDS
        offset, length = cells[at + _OFFSET], cells[at + _LENGTH]
        cells[at + _OFFSET] = to
        for _ in range(cells[at + _FRAGMENTS]):
            out[to : to + length] = source[offset : offset + length]
            to += length
            offset += cells[at + _STRIDE]
        cells[at + _STRIDE] = length
        cells[at + _SHAPE] &= _NO_HEADROOM
    return chunk


def split(view: memoryview, table: RunTable, most: int) -> Iterable[tuple[bytearray, RunTable]]:
    """Chunks of at most `most` bytes, which is more than the largest fragment, with the fragments of the table close
    together, and their rows."""
    chunk, out = bytearray(HEADROOM), RunTable(table.rows + 1)
    for handle, sqn, fragments, offset, length, stride, shape in ROW.iter_unpack(table.tobytes()):
        if not length:
            out.put(handle, sqn, fragments, 0, 0, 0, shape)
            continue
        done = 0
        while done < fragments:
            count = min((most - len(chunk)) // length, fragments - done)
            if count < 1:
                yield chunk, out
                chunk, out = bytearray(HEADROOM), RunTable(table.rows + 1)
                continue
            start = offset + done * stride
            at = len(chunk)
            chunk += b"".join([view[o : o + length] for o in range(start, start + count * stride, stride)])
            out.put(handle, (sqn + done) & MASK, count, at, length, length, shape & _NO_HEADROOM)
            done += count
    if out.rows:
        yield chunk, out
