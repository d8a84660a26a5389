"""Captured TCP segments put back into order: one `Direction` per sender of a connection.

Segments may come out of order, twice, overlapping, or never. The first copy of a byte wins. A hole is kept open until
the other side acknowledges bytes after it, or too much is waiting behind it, or the connection ends; then it is
returned as `Missing` and reading continues after it. Memory: `MAX_HELD` bytes per direction, `MAX_HELD_ALL` over all,
`MAX_DIRECTIONS` directions of which the least recently used is removed first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from dro.dissect.ipv4 import ACK, FIN, RST, SYN, Segment
from dro.sqn import MASK, ahead

MAX_HELD: Final = 256 * 1024  # bytes behind a hole, per direction
MAX_HELD_SEGMENTS: Final = 1024
MAX_HELD_ALL: Final = 64 * 1024 * 1024
MAX_DIRECTIONS: Final = 2048
_FAR: Final = 64 * 1024 * 1024  # a jump beyond any window: another connection on the same ports


@dataclass(frozen=True, slots=True)
class Missing:
    """A hole: `count` bytes were sent and are not in the capture, -1 when nobody can tell how many."""

    count: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection begins: what follows is its first byte."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The sender has finished; nothing follows."""


Piece = bytes | Missing | Opened | Closed
Flow = tuple[int, int, int, int]  # source address and port, destination address and port


@dataclass(slots=True)
class TcpCounts:
    """What was odd about the segments of a whole capture."""

    connections: int = 0
    out_of_order: int = 0
    retransmitted: int = 0  # segments that brought no new byte
    holes: int = 0
    missing_bytes: int = 0
    dropped_directions: int = 0


@dataclass(slots=True)
class _Budget:
    held: int = 0


class Direction:
    """The bytes that one side of a connection sends. Positions inside are sequence numbers that do not wrap."""

    __slots__ = ("_budget", "_counts", "_fin", "_heap", "_held", "_isn", "_next", "_waiting")

    def __init__(self, counts: TcpCounts, budget: _Budget) -> None:
        self._counts = counts
        self._budget = budget
        self._next = -1  # position of the next byte; -1 before the first segment
        self._isn = -1
        self._fin = -1  # position just behind the last byte, once known
        self._waiting: dict[int, bytes] = {}  # by position
        self._heap: list[int] = []  # the keys of _waiting
        self._held = 0

    def on_segment(self, seq: int, flags: int, payload: bytes, cut: int) -> list[Piece]:
        """Take one segment; what can be read now. `cut` bytes at its end were not captured."""
        out: list[Piece] = []
        if flags & SYN:
            if self._isn == seq:
                return out
            out += self.flush()
            self._isn = seq
            seq = (seq + 1) & MASK
            self._start(seq)
            if not flags & ACK:
                self._counts.connections += 1
            out.append(Opened())
        elif self._next < 0:
            if not payload and not cut:
                return out
            self._start(seq)
            out.append(Missing(-1))
        offset = ahead(seq, self._next & MASK)
        if abs(offset) > _FAR:
            out += self.flush()
            out.append(Missing(-1))
            self._start(seq)
            offset = 0
        at = self._next + offset
        if payload:
            self._take(at, payload, out)
        if flags & FIN:
            self._fin = at + len(payload) + cut
        if self._heap and (
            self._held > MAX_HELD or len(self._heap) > MAX_HELD_SEGMENTS or self._budget.held > MAX_HELD_ALL
        ):
            self._jump(out)
        if flags & RST:
            out += self.flush()
            self._fin = self._next
        self._end(out)
        return out

    def on_ack(self, ack: int) -> list[Piece]:
        """The other side has these bytes: a hole before `ack` will not be filled any more."""
        out: list[Piece] = []
        while self._heap:
            beyond = ahead(ack, self._heap[0] & MASK)
            if beyond < 0 or beyond > _FAR:
                break
            self._jump(out)
        if out:
            self._end(out)
        return out

    def flush(self) -> list[Piece]:
        """Give out all that waits, holes included: the connection is over or forgotten."""
        out: list[Piece] = []
        while self._heap:
            self._jump(out)
        return out

    def _start(self, seq: int) -> None:
        self._next = (1 << 32) + seq
        self._fin = -1

    def _take(self, at: int, payload: bytes, out: list[Piece]) -> None:
        behind = self._next - at
        if behind < 0:
            self._counts.out_of_order += 1
            self._hold(at, payload)
            return
        fresh = payload[behind:] if behind else payload
        if not fresh:
            self._counts.retransmitted += 1
            return
        out.append(fresh)
        self._next += len(fresh)
        if self._heap:
            self._drain(out)

    def _hold(self, at: int, payload: bytes) -> None:
        held = self._waiting.get(at)
        if held is None:
            self._waiting[at] = payload
            heappush(self._heap, at)
            grown = len(payload)
        else:
            grown = len(payload) - len(held)
            if grown <= 0:
                self._counts.retransmitted += 1
                return
            self._waiting[at] = held + payload[len(held) :]
        self._held += grown
        self._budget.held += grown

    def _drain(self, out: list[Piece]) -> None:
        """Give out what waited for the bytes that have just come."""
        while self._heap and self._heap[0] <= self._next:
            at = heappop(self._heap)
            payload = self._waiting.pop(at)
            self._held -= len(payload)
            self._budget.held -= len(payload)
            fresh = payload[self._next - at :]
            if fresh:
                out.append(fresh)
                self._next += len(fresh)

    def _jump(self, out: list[Piece]) -> None:
        hole = self._heap[0] - self._next
        if hole > 0:
            self._counts.holes += 1
            self._counts.missing_bytes += hole
            out.append(Missing(hole))
            self._next += hole
        self._drain(out)

    def _end(self, out: list[Piece]) -> None:
        if self._fin >= 0 and not self._heap and self._next >= self._fin:
            self._fin = -1
            out.append(Closed())


class TcpStreams:
    """All connections of a capture."""

    def __init__(self) -> None:
        self.counts = TcpCounts()
        self._budget = _Budget()
        self._directions: OrderedDict[Flow, Direction] = OrderedDict()

    def on_segment(self, segment: Segment) -> list[tuple[Flow, list[Piece]]]:
        """Pieces that the segment makes readable, of its own direction and, by what it acknowledges, of the other."""
        flow = (segment.src, segment.sport, segment.dst, segment.dport)
        out: list[tuple[Flow, list[Piece]]] = []
        if segment.flags & ACK:
            back = (segment.dst, segment.dport, segment.src, segment.sport)
            other = self._directions.get(back)
            if other is not None and (pieces := other.on_ack(segment.ack)):
                out.append((back, pieces))
        direction = self._directions.get(flow)
        if direction is None:
            direction = self._directions[flow] = Direction(self.counts, self._budget)
            while len(self._directions) > MAX_DIRECTIONS:
                old, lost = self._directions.popitem(last=False)
                self.counts.dropped_directions += 1
                out.append((old, [*lost.flush(), Missing(-1)]))
        else:
            self._directions.move_to_end(flow)
        if pieces := direction.on_segment(segment.seq, segment.flags, segment.payload, segment.cut):
            out.append((flow, pieces))
        return out

    def finish(self) -> list[tuple[Flow, list[Piece]]]:
        """The capture is over: what still waits behind a hole."""
        out = [(flow, direction.flush()) for flow, direction in self._directions.items()]
        self._directions.clear()
        return [(flow, pieces) for flow, pieces in out if pieces]
