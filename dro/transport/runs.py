"""Fragments of a batch, described as runs: the unit that transports deliver and portals forward.

A run is consecutive fragments of one topic of one transport session that are equally spaced in one buffer, all of one
length and with one chain head. A steady stream of equal messages gives one run per batch, so decisions per run cost
almost nothing per fragment; a mixed batch gives many runs of one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from dro.errors import DecodeError
from dro.sqn import MASK
from dro.wire.lbmc.codes import (
    END_DATA,
    END_NONE,
    FULL_HEADER_SIZE,
    FULL_HEADER_TYPES,
    MINIMAL_HEADER_SIZE,
    BlockType,
    MessageType,
)

HEADER_BYTES: Final = FULL_HEADER_SIZE
MINIMAL_BYTES: Final = MINIMAL_HEADER_SIZE
# plain numbers: an enumeration is looked up too slowly for each fragment
TYPE_MESSAGE: Final = int(MessageType.MESSAGE)
TYPE_CONTROL: Final = int(MessageType.CONTROL)
_DATA_TYPES: Final = frozenset(map(int, FULL_HEADER_TYPES))
_TSNI: Final = int(BlockType.TSNI)
_TOPIC_IDX: Final = int(BlockType.TOPIC_IDX)
_CHAIN_ENDS: Final = frozenset((END_DATA, END_NONE))

KIND_DATA: Final = 0  # LBMC messages with the full header
KIND_TSNI: Final = 1  # no bytes: `first_sqn` is the last topic sqn sent
KIND_CONTROL: Final = 2  # one LBMC control message that names its topic by a TOPIC_IDX block


class Run(NamedTuple):
    """Equal, consecutive fragments.

    `offset` is that of the first LBMC message in the buffer, `length` counts each message whole, `stride` is the
    distance from one to the next, `headroom` bytes in front of each belong to it and may be overwritten in a copy.
    `next_header` is the code of the first block (0: user data follows the header), `flags` are `FLAG_*`.
    """

    topic_index: int
    first_sqn: int
    fragments: int
    offset: int
    length: int
    stride: int
    headroom: int
    next_header: int
    kind: int
    flags: int = 0


ROWS: Final = 8192  # a datagram of the smallest messages has 5,459
WORDS: Final = 7  # of a row, u32 each
TOPIC, SQN, FRAGMENTS, OFFSET, LENGTH, STRIDE, SHAPE = range(WORDS)
"""Shape: headroom (bits 0 to 7), flags (8 to 15), next header (16 to 23), kind (24 to 31)."""
FLAGS_SHIFT: Final = 8
HEAD_SHIFT: Final = 16
KIND_SHIFT: Final = 24
FLAG_REPAIR: Final = 1  # was sent again
FLAG_REQUEST: Final = 2  # of a message that asks for a response
PLAIN_BELOW: Final = 1 << HEAD_SHIFT  # shapes below it are data without blocks
ROW: Final = Struct(f"={WORDS}I")
# the same for the compiled form, where they are plain integers
_MASK, _HEAD_SHIFT, _FLAGS_SHIFT, _DATA_BELOW = MASK, HEAD_SHIFT, FLAGS_SHIFT, 1 << KIND_SHIFT
_WORDS, _SQN, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE = WORDS, SQN, FRAGMENTS, OFFSET, LENGTH, STRIDE, SHAPE


class RunTable:
    """Runs as rows of one flat array, in order of arrival: from the scan of a batch to the egress of a portal.

    Row i is `words[i * WORDS : (i + 1) * WORDS]`; a column is `words[COLUMN : rows * WORDS : WORDS]`. In a table of
    received runs the first word is the topic index, in one between portals the handle of the source.
    """

    __slots__ = ("capacity", "cells", "rows", "words")

    def __init__(self, rows: int = ROWS) -> None:
        self.words = array("I", bytes(4 * WORDS * rows))
        self.cells = self.words  # as the compiled form has it
        self.capacity = rows
        self.rows = 0

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Run]:
        for topic, sqn, fragments, offset, length, stride, shape in ROW.iter_unpack(self.tobytes()):
            yield Run(topic, sqn, fragments, offset, length, stride, shape & 0xFF, shape >> HEAD_SHIFT & 0xFF,
                      shape >> KIND_SHIFT, shape >> FLAGS_SHIFT & 0xFF)  # fmt: skip

    @property
    def room(self) -> int:
        """Rows that can still be added."""
        return self.capacity - self.rows

    def tobytes(self) -> memoryview:
        return memoryview(self.words).cast("B")[: 4 * WORDS * self.rows]

    def column(self, column: int) -> array[int]:
        return self.words[column : self.rows * WORDS : WORDS]

    def total(self, first: int = 0) -> tuple[int, int]:
        """Fragments, and bytes of all messages, headers included, of the rows from number `first` on."""
        cells, fragments, nbytes = self.cells, 0, 0
        for row in range(first, self.rows):
            at = row * _WORDS
            fragments += cells[at + _FRAGMENTS]
            nbytes += cells[at + _FRAGMENTS] * cells[at + _LENGTH]
        return fragments, nbytes

    def has_other_than_data(self) -> bool:
        """Say whether there is any run of control messages or TSNIs."""
        cells, most = self.cells, 0
        for row in range(self.rows):
            at = row * _WORDS
            most = max(most, cells[at + _SHAPE])
        return most >= _DATA_BELOW

    def fragments(self) -> int:
        return self.total()[0]

    def nbytes(self) -> int:
        return self.total()[1]

    def clear(self) -> None:
        self.rows = 0

    def add(
        self, topic_index: int, sqn: int, offset: int, length: int, headroom: int, head: int, flags: int = 0
    ) -> None:
        """One fragment; becomes part of the run before it where that fits."""
        words, at = self.cells, self.rows * _WORDS
        shape = head << _HEAD_SHIFT | flags << _FLAGS_SHIFT | headroom
        if at:
            last = at - _WORDS
            count = words[last + _FRAGMENTS]
            if (
                words[last] == topic_index
                and words[last + _LENGTH] == length
                and words[last + _SQN] + count & _MASK == sqn
                and words[last + _SHAPE] == shape
            ):
                distance = offset
                distance -= words[last + _OFFSET]
                fits = distance == count * words[last + _STRIDE] if count > 1 else distance >= length + headroom
                if fits and (headroom or distance == count * length):
                    if count == 1:
                        words[last + _STRIDE] = distance
                    words[last + _FRAGMENTS] = count + 1
                    return
        words[at] = topic_index
        words[at + _SQN] = sqn
        words[at + _FRAGMENTS] = 1
        words[at + _OFFSET] = offset
        words[at + _LENGTH] = length
        words[at + _STRIDE] = length + headroom
        words[at + _SHAPE] = shape
        self.rows += 1

    def put(
        self, topic_index: int, sqn: int, fragments: int, offset: int, length: int, stride: int, shape: int
    ) -> None:
        """A row as it is. Goes on with the one before where both are data of a stream without gaps."""
        words, at = self.cells, self.rows * _WORDS
        if at and shape < _DATA_BELOW and not shape & 0xFF:
            last = at - _WORDS
            count = words[last + _FRAGMENTS]
            if (
                words[last] == topic_index
                and words[last + _LENGTH] == length
                and words[last + _SQN] + count & _MASK == sqn
                and words[last + _SHAPE] == shape
                and offset - words[last + _OFFSET] == count * length
            ):
                words[last + _FRAGMENTS] = count + fragments
                return
        words[at] = topic_index
        words[at + _SQN] = sqn
        words[at + _FRAGMENTS] = fragments
        words[at + _OFFSET] = offset
        words[at + _LENGTH] = length
        words[at + _STRIDE] = stride
        words[at + _SHAPE] = shape
        self.rows += 1

    def add_run(self, run: Run) -> None:
        """A row as it is."""
        self.put(run.topic_index, run.first_sqn, run.fragments, run.offset, run.length, run.stride, shape_of(run))

    def take(self) -> list[Run]:
        """The runs so far; the table is empty then."""
        runs = list(self)
        self.rows = 0
        return runs


def shape_of(run: Run) -> int:
    return run.headroom | run.flags << FLAGS_SHIFT | run.next_header << HEAD_SHIFT | run.kind << KIND_SHIFT


def read_messages(
    view: memoryview | bytes | bytearray, pos: int, end: int, headroom: int, out: RunTable, flags: int = 0
) -> int:
    """Walk the LBMC messages in `view[pos:end]` and add them to `out`; returns how many there were.

    `headroom` is what lies in front of the first message, `flags` are those of all. 1 to 3 stray bytes at the end are
    ignored, as are EOT messages and control messages that concern no topic. `out` has room for one row for each 8
    bytes. Raises: DecodeError at the first bad length; what came before it has been added.
    """
    messages = 0
    while end - pos >= 4:
        kind, head, length = view[pos], view[pos + 1], view[pos + 2] << 8 | view[pos + 3]
        if length < 4 or pos + length > end:
            raise DecodeError("lbmc.msglen", f"{length} bytes declared, {end - pos} left", pos)
        if kind & 0xF0:
            raise DecodeError("lbmc.version", f"{kind >> 4} is not 0", pos)
        if kind == TYPE_MESSAGE or kind in _DATA_TYPES:
            if length < HEADER_BYTES:
                raise DecodeError("lbmc.msglen", f"{length} is less than the 12-byte header", pos)
            out.add(u32(view, pos + 4), u32(view, pos + 8), pos, length, headroom, head, flags)
        elif kind == TYPE_CONTROL:
            _read_control(view, pos, length, head, flags, out)
        elif kind != MessageType.EOT:
            raise DecodeError("lbmc.type", f"unknown type {kind:#x}", pos)
        messages += 1
        headroom = 0
        pos += length
    return messages


def u32(view: memoryview | bytes | bytearray, at: int) -> int:
    """Read a number of 32 bits in network order; in the compiled form this is the fast way."""
    return view[at] << 24 | view[at + 1] << 16 | view[at + 2] << 8 | view[at + 3]


def write_u32(view: bytearray | memoryview, at: int, value: int) -> None:
    """Write a number of 32 bits in network order."""
    view[at], view[at + 1], view[at + 2], view[at + 3] = value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255


def _read_control(
    view: memoryview | bytes | bytearray, start: int, length: int, head: int, flags: int, out: RunTable
) -> None:
    topic_index = None
    tsni: list[tuple[int, int]] = []
    for code, at, size in chain(view, start + 4, start + length, head):
        if code == _TSNI:
            tsni += _TSNI_RECORD.iter_unpack(view[at + 4 : at + 4 + (size - 4) // 8 * 8])
        elif code == _TOPIC_IDX and size >= 8:
            topic_index = _U32.unpack_from(view, at + 4)[0]
    for topic, sqn in tsni:
        out.put(topic, sqn, 1, 0, 0, 0, KIND_TSNI << KIND_SHIFT)
    if topic_index is not None:
        shape = head << HEAD_SHIFT | flags << FLAGS_SHIFT | KIND_CONTROL << KIND_SHIFT
        out.put(topic_index, 0, 1, start, length, length, shape)


_TSNI_RECORD: Final = Struct("!II")
_U32: Final = Struct("!I")


def chain(view: memoryview | bytes | bytearray, pos: int, end: int, head: int) -> Iterable[tuple[int, int, int]]:
    """(code, offset, length) of each block of a chain that starts at `pos` with the code `head`.

    Raises: DecodeError when a block is shorter than 4 bytes or runs past `end`.
    """
    while head not in _CHAIN_ENDS and end - pos >= 4:
        size = view[pos + 1]
        if size < 4 or pos + size > end:
            raise DecodeError("lbmc.block", f"length {size} of block {head:#04x}, {end - pos} bytes left", pos)
        yield head, pos, size
        head = view[pos]
        pos += size


def set_topic_index(buffer: bytearray, at: int, length: int, head: int, topic_index: int) -> None:
    """Set it in the TOPIC_IDX blocks of the control message at `at`, whose chain begins with the code `head`."""
    for code, block, size in chain(buffer, at + MINIMAL_BYTES, at + length, head):
        if code == _TOPIC_IDX and size >= 8:
            _U32.pack_into(buffer, block + 4, topic_index)


def has_block(view: memoryview | bytes | bytearray, run: Run, code: int) -> bool:
    """Say whether the chain of the run's first message holds a block of this code. A broken chain counts as no."""
    if run.next_header in _CHAIN_ENDS:
        return False
    try:
        return any(
            found == code
            for found, _, _ in chain(view, run.offset + HEADER_BYTES, run.offset + run.length, run.next_header)
        )
    except DecodeError:
        return False
