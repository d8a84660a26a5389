"""What a portal announces to a sibling: a table of runs, and where in the ring their fragments lie.

The table is written into the ring like the fragments: {u64 ring position of the fragments, u32 their bytes, u32 rows}
in native order, then the rows of a `RunTable` with the handle of the source in place of a topic index, and offsets that
count from the fragments. The descriptor in the sibling's queue (`dro.bus.descriptors`) tells where the table is.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.transport.runs import (
    FRAGMENTS,
    HEADER_BYTES,
    KIND_CONTROL,
    KIND_DATA,
    KIND_SHIFT,
    KIND_TSNI,
    LENGTH,
    MINIMAL_BYTES,
    OFFSET,
    ROW,
    ROWS,
    SHAPE,
    STRIDE,
    WORDS,
    RunTable,
)
from portals.datapath.select import move

HEAD: Final = Struct("=QII")
JOIN_BELOW: Final = 96 << 10
"""Bytes: batches that come together are announced as one, and those of a sibling sent as one, until it has so many.
Longer ones make longer trains, but from about 128 KiB on the caches and the allocator take it back."""
# plain integers in the compiled form
_WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE = WORDS, FRAGMENTS, OFFSET, LENGTH, STRIDE, SHAPE
_KIND_SHIFT, _DATA, _CONTROL, _TSNI = KIND_SHIFT, KIND_DATA, KIND_CONTROL, KIND_TSNI
_LEAST, _LEAST_CONTROL = HEADER_BYTES, MINIMAL_BYTES
_pack, _unpack_from = HEAD.pack, HEAD.unpack_from


class BatchKind(IntEnum):
    """What the rows of a batch are."""

    SOURCE_DATA = 0  # fragments of sources, by handle
    # one message to a TRD or DRO, see `portals.datapath.addressed`
    UNICAST = 1  # UIM: responses, control messages of late join and recovery, and what answers them
    IMMEDIATE = 2  # MIM


def encode(position: int, size: int, table: RunTable) -> bytes:
    head: bytes = _pack(position, size, table.rows)
    return head + table.tobytes()


def table_bytes(rows: int) -> int:
    """Return how long the encoded table is."""
    return HEAD.size + rows * ROW.size


def decode(frame: bytes | bytearray, table: RunTable, base: int = 0) -> tuple[int, int]:
    """Append the rows to `table`, which has room; returns ring position and bytes of the fragments.

    The caller copies these to `base` of the buffer that the table's offsets are in.

    Raises: DecodeError when the frame is no table, or a run cannot be, or does not lie within its chunk; the table is
    then as it was.
    """
    if len(frame) < HEAD.size:
        raise DecodeError("descriptor", f"{len(frame)} bytes")
    position, size, rows = _unpack_from(frame)
    if not 0 < rows <= ROWS or len(frame) != table_bytes(rows):
        raise DecodeError("descriptor", f"{rows} runs in {len(frame)} bytes")
    first = table.rows
    table.rows += rows
    table.tobytes()[first * ROW.size :] = memoryview(frame)[HEAD.size :]
    try:
        check(table, first, size)
    except DecodeError:
        table.rows = first
        raise
    move(table, -base, first)
    return position, size


def check(table: RunTable, first: int, size: int) -> None:
    """What the egress relies on, of the rows from `first` on: it writes into the headroom and steps by the stride."""
    words = table.cells
    for row in range(first, table.rows):
        at = row * _WORDS
        fragments, offset, length = words[at + _FRAGMENTS], words[at + _OFFSET], words[at + _LENGTH]
        stride, shape = words[at + _STRIDE], words[at + _SHAPE]
        headroom, kind = shape & 0xFF, shape >> _KIND_SHIFT
        if kind == _DATA:
            is_sound = fragments > 0 and length >= _LEAST
        elif kind == _CONTROL:
            is_sound = fragments == 1 and length >= _LEAST_CONTROL
        else:
            is_sound = kind == _TSNI and fragments == 1 and length == 0
        if not is_sound or (fragments > 1 and stride < length + headroom):
            raise DecodeError("descriptor", f"no run of kind {kind}: {fragments} fragments of {length} bytes")
        if length and (offset < headroom or offset + (fragments - 1) * stride + length > size):
            raise DecodeError("descriptor", "a run reaches out of its chunk")
