"""Proxy sources of a portal as its data path knows them, and the lanes of the sessions that they send on.

A proxy source survives a change of its feeder (the sibling that forwards to it, with the handle of the source there),
and keeps its duplicate window. It keeps the feeder before as well, until it changes again: what is still on its way
from there is sent, and the window removes what comes from both. `portals.datapath.feeder_order` keeps them in order.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from dro.transport.runs import (
    FLAG_REQUEST,
    FLAGS_SHIFT,
    FRAGMENTS,
    KIND_SHIFT,
    KIND_TSNI,
    LENGTH,
    OFFSET,
    ROW,
    SHAPE,
    STRIDE,
    WORDS,
    RunTable,
)
from dro.transport.session import SenderTransport
from portals.datapath.duplicate_window import DuplicateWindow

COPY_BELOW_SHARE: Final = 4
"""What waits and fills less than this fraction of its buffer is copied, so that it does not keep the rest alive."""
MAX_FEEDERS: Final = 2
# plain integers in the compiled form
_REQUEST = FLAG_REQUEST << FLAGS_SHIFT
_WORDS, _FRAGMENTS, _LENGTH, _SHAPE = WORDS, FRAGMENTS, LENGTH, SHAPE

Feeder = tuple[int, int]
"""Worker and the handle of the source there."""


class LaneLog(Protocol):
    """Logs what waits in a lane, for the next incarnation of this process; see `portals.datapath.waiting_log`."""

    def add(self, waiting: Waiting, lane: Lane, place: tuple[int, int]) -> None: ...
    def keep_from(self, number: int) -> None: ...
    def is_over(self) -> bool: ...
    def close(self) -> None: ...


class ProxySource:
    """What the data path knows of one proxy source.

    `feeders`: the newest last. `before_goes_on`: the one before it brings what is new as well, and is waited for.
    `lane`: of its session, while it is fed. `queued`: rows that wait.
    """

    __slots__ = (
        "before_goes_on",
        "feeders",
        "lane",
        "otid",
        "queued",
        "topic",
        "topic_index",
        "transport",
        "tsni_waits",
        "window",
    )

    def __init__(
        self, otid: bytes, topic: bytes, topic_index: int, transport: SenderTransport, window: DuplicateWindow
    ) -> None:
        self.otid = otid
        self.topic = topic
        self.topic_index = topic_index
        self.transport = transport
        self.window = window
        self.feeders: list[Feeder] = []
        self.before_goes_on = False
        self.lane: Lane | None = None
        self.queued = 0
        self.tsni_waits = False

    @property
    def feeder(self) -> Feeder | None:
        return self.feeders[-1] if self.feeders else None


@dataclass(slots=True, eq=False)
class Waiting:
    """Holds what a session did not take of a batch of a sibling; `number`: in the log of its lane, 0: not there."""

    worker: int
    buffer: bytearray
    table: RunTable
    nbytes: int
    number: int = 0


class Lane:
    """One session that proxy sources share: the rows of the batch at hand, and what waits, with its log."""

    __slots__ = ("fragment_max_bytes", "log", "noted", "proxies", "table", "topics", "transport", "waiting")

    def __init__(self, transport: SenderTransport) -> None:
        self.transport = transport
        self.fragment_max_bytes = transport.fragment_max_bytes
        self.proxies: dict[int, ProxySource] = {}  # by topic index
        self.noted: list[int] = []  # rows of the batch at hand
        self.topics: list[int] = []  # their topic indexes
        self.table = RunTable()
        self.waiting: deque[Waiting] = deque()
        self.log: LaneLog | None = None

    def note(self, row: int, topic_index: int) -> None:
        """That row of the batch at hand is for the session, with that topic index."""
        self.noted.append(row)
        self.topics.append(topic_index)

    def gather(self, batch: RunTable) -> RunTable:
        """Return the rows that were noted, as a table for the session."""
        table, noted, topics = self.table, self.noted, self.topics
        table.rows = rows = len(noted)
        cells, found, to = table.cells, batch.cells, 0
        for number in range(rows):
            start = noted[number] * _WORDS
            cells[to] = topics[number]
            for column in range(1, _WORDS):
                cells[to + column] = found[start + column]
            to += _WORDS
        noted.clear()
        topics.clear()
        return table


def totals(table: RunTable) -> tuple[int, int, int, int]:
    """Fragments and bytes in the table, and those of requests among them."""
    fragments = nbytes = 0
    cells = table.cells
    for nth in range(table.rows):
        at = nth * _WORDS
        if cells[at + _SHAPE] & _REQUEST:
            fragments += cells[at + _FRAGMENTS]
            nbytes += cells[at + _FRAGMENTS] * cells[at + _LENGTH]
    return *table.total(), fragments, nbytes


def copy_of(table: RunTable) -> RunTable:
    made = RunTable(table.rows)
    made.rows = table.rows
    made.tobytes()[:] = table.tobytes()
    return made


def set_apart(buffer: bytearray, table: RunTable) -> bytearray:
    """A buffer for what waits: another one, and the rows changed, when most of `buffer` is of others."""
    if table.nbytes() * COPY_BELOW_SHARE >= len(buffer):
        return buffer
    view = memoryview(buffer)
    pieces: list[memoryview] = []
    sizes: list[int] = []
    for _, _, fragments, offset, length, stride, shape in ROW.iter_unpack(table.tobytes()):
        if shape >> KIND_SHIFT != KIND_TSNI:
            pieces += [view[at : at + length] for at in range(offset, offset + fragments * stride, stride)]
        sizes.append(fragments * length)
    words, end = table.words, table.rows * WORDS
    words[OFFSET:end:WORDS] = array("I", [*accumulate(sizes, initial=0)][:-1])
    words[STRIDE:end:WORDS] = words[LENGTH:end:WORDS]
    words[SHAPE:end:WORDS] = array("I", [shape & ~0xFF for shape in table.column(SHAPE)])
    return bytearray().join(pieces)


def first_bytes(table: RunTable, most: int) -> int:
    """Count the fragments, from the first on, that have at most `most` bytes together."""
    fits = 0
    for count, length in zip(table.column(FRAGMENTS), table.column(LENGTH), strict=True):
        taken = min(count, most // length) if length else count
        fits += taken
        most -= taken * length
        if taken < count:
            break
    return fits
