"""Fragments of a batch, described as runs: the unit that transports deliver and portals forward.

A run is consecutive fragments of one topic of one transport session that are equally spaced in one buffer, all of one
length and with one chain head. A steady stream of equal messages gives one run per batch, so decisions per run cost
almost nothing per fragment; a mixed batch gives many runs of one.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from dro.wire.lbmc.message import HEADER, MINIMAL

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
    `next_header` is the code of the first block (0: user data follows the header).
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


class RunBuilder:
    """Puts single fragments together into runs, in order of arrival."""

    __slots__ = (
        "_count",
        "_first",
        "_head",
        "_headroom",
        "_length",
        "_next_offset",
        "_next_sqn",
        "_offset",
        "_stride",
        "_topic",
        "runs",
    )

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._count = 0
        self._topic = self._first = self._offset = self._length = self._stride = self._headroom = self._head = 0
        self._next_sqn = self._next_offset = 0

    def add(self, topic_index: int, sqn: int, offset: int, length: int, headroom: int, head: int) -> None:
        count = self._count
        if (
            count
            and sqn == self._next_sqn
            and topic_index == self._topic
            and length == self._length
            and head == self._head
            and headroom == self._headroom
            and (offset == self._next_offset or (count == 1 and offset >= self._offset + length + headroom))
        ):
            if count == 1:
                self._stride = offset - self._offset
            self._count = count + 1
        else:
            if count:
                self._close()
            self._topic, self._first, self._offset, self._length = topic_index, sqn, offset, length
            self._stride, self._headroom, self._head = length + headroom, headroom, head
            self._count = 1
        self._next_sqn = (sqn + 1) & MASK
        self._next_offset = offset + self._stride

    def add_run(self, run: Run) -> None:
        """As `add` for each fragment of a run of KIND_DATA; goes on with the one before where that fits."""
        if (
            self._count
            and run.first_sqn == self._next_sqn
            and run.offset == self._next_offset
            and run.stride == self._stride
            and run.topic_index == self._topic
            and run.length == self._length
            and run.next_header == self._head
            and run.headroom == self._headroom
        ):
            self._count += run.fragments
        else:
            if self._count:
                self._close()
            (self._topic, self._first, self._count, self._offset, self._length, self._stride, self._headroom,
             self._head, _) = run  # fmt: skip
        self._next_sqn = (run.first_sqn + run.fragments) & MASK
        self._next_offset = run.offset + run.fragments * run.stride

    def add_other(self, run: Run) -> None:
        """Take a run that is none of data as it is."""
        self._close()
        self.runs.append(run)

    def _close(self) -> None:
        if self._count:
            self.runs.append(
                Run(
                    self._topic,
                    self._first,
                    self._count,
                    self._offset,
                    self._length,
                    self._stride,
                    self._headroom,
                    self._head,
                    KIND_DATA,
                )
            )
            self._count = 0

    def take(self) -> list[Run]:
        """The runs so far; the builder starts anew."""
        self._close()
        runs, self.runs = self.runs, []
        return runs


def read_messages(view: memoryview | bytes | bytearray, pos: int, end: int, headroom: int, out: RunBuilder) -> int:
    """Walk the LBMC messages in `view[pos:end]` and add them to `out`; returns how many there were.

    `headroom` is what lies in front of the first message. 1 to 3 stray bytes at the end are ignored, as are EOT
    messages and control messages that concern no topic. Raises: DecodeError at the first bad length; what came
    before it has been added.
    """
    messages = 0
    while end - pos >= 4:
        kind, head, length = MINIMAL.unpack_from(view, pos)
        if length < 4 or pos + length > end:
            raise DecodeError("lbmc.msglen", f"{length} bytes declared, {end - pos} left", pos)
        if kind & 0xF0:
            raise DecodeError("lbmc.version", f"{kind >> 4} is not 0", pos)
        if kind in _DATA_TYPES:
            if length < HEADER_BYTES:
                raise DecodeError("lbmc.msglen", f"{length} is less than the 12-byte header", pos)
            _, _, _, topic_index, sqn = HEADER.unpack_from(view, pos)
            out.add(topic_index, sqn, pos, length, headroom, head)
        elif kind == TYPE_CONTROL:
            _read_control(view, pos, length, head, out)
        elif kind != MessageType.EOT:
            raise DecodeError("lbmc.type", f"unknown type {kind:#x}", pos)
        messages += 1
        headroom = 0
        pos += length
    return messages


def _read_control(view: memoryview | bytes | bytearray, start: int, length: int, head: int, out: RunBuilder) -> None:
    topic_index = None
    tsni: list[Run] = []
    for code, at, size in chain(view, start + 4, start + length, head):
        if code == _TSNI:
            tsni += [_tsni_run(view, record) for record in range(at + 4, at + size - 7, 8)]
        elif code == _TOPIC_IDX and size >= 8:
            topic_index = _U32.unpack_from(view, at + 4)[0]
    for run in tsni:
        out.add_other(run)
    if topic_index is not None:
        out.add_other(Run(topic_index, 0, 1, start, length, length, 0, head, KIND_CONTROL))


_TSNI_RECORD: Final = Struct("!II")
_U32: Final = Struct("!I")


def _tsni_run(view: memoryview | bytes | bytearray, record: int) -> Run:
    topic_index, sqn = _TSNI_RECORD.unpack_from(view, record)
    return Run(topic_index, sqn, 1, 0, 0, 0, 0, 0, KIND_TSNI)


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
    """In the TOPIC_IDX blocks of the control message at `at`, whose chain begins with the code `head`."""
    for code, block, size in chain(buffer, at + MINIMAL_BYTES, at + length, head):
        if code == _TOPIC_IDX and size >= 8:
            _U32.pack_into(buffer, block + 4, topic_index)


def has_block(view: memoryview | bytes | bytearray, run: Run, code: int) -> bool:
    """Does the chain of the run's first message hold a block of this code? A broken chain counts as no."""
    if run.next_header in _CHAIN_ENDS:
        return False
    try:
        return any(
            found == code
            for found, _, _ in chain(view, run.offset + HEADER_BYTES, run.offset + run.length, run.next_header)
        )
    except DecodeError:
        return False
