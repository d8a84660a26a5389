"""A log in shared memory of what a session has sent, or is about to send, for the next incarnation of its process.

A ring of records in a sparse file; the oldest make room for the newest, and it stays
small where shared memory is scarce. A record is complete when its end is in the row of the log (`dro.kept.rows`), which
is written after its bytes. Positions are virtual: they only grow, and the byte of position `p` lies at `p % capacity`.
A record does not wrap: it begins anew at the front. It has its own position at its head, so that a reader finds it, and
the way back to the one before.

A record says what it begins with, and what follows it: sequence numbers, or places in a stream. The values of the row:
position of the oldest record, end and position of the newest (without records, what follows), and what the owner wants
to find again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from dro.errors import DecodeError
from dro.kept.memory import leaves_enough
from dro.kept.rows import KeptRow
from dro.kept.store import TurnNumber

_HEAD: Final = Struct("=QIIQQQIIII")
"""Position, bytes, pieces that count, first, after, turn, size, payload, pieces, way back.

Of pieces that differ, in place of the payload: the check sum of the table at the end of the record.
"""
_HEAD_BYTES = _HEAD.size
_pack_into, _unpack_from = _HEAD.pack_into, _HEAD.unpack_from
_FIRST_BYTES: Final = 128 << 10  # that get memory at once; doubled from there on
MIN_CAPACITY: Final = 256 << 10
ROOM_SHARE: Final = 64
"""Says which part of the log is made free at once when records have to go."""


class LogRecord(NamedTuple):
    """`pieces` that were logged together: of `size` bytes with `payload` each, back to back in `data`.

    With a size of 0 they differ: number i ends at `ends[i]` of the data, and up to it there are `paid[i]` of payload.
    """

    first: int
    pieces: int
    turn: int
    size: int
    payload: int
    ends: memoryview
    paid: memoryview
    data: memoryview

    def place(self, number: int) -> tuple[int, int]:
        """Return where that piece begins and ends."""
        if self.size:
            return number * self.size, (number + 1) * self.size
        return self.ends[number - 1] if number else 0, self.ends[number]


class SharedLog:
    """One log; made by `open`."""

    def __init__(self, path: Path, fd: int, area: mmap.mmap, capacity: int, row: KeptRow, turn: TurnNumber) -> None:
        self.path = path
        self._fd = fd
        self._area = area
        self._mv = memoryview(area)
        self._cells = self._mv.cast("I")
        self._words = self._mv.cast("Q")
        self._capacity = capacity
        self._extent = 0
        self._row = row
        self._turn = turn
        self._begin = self._end = self._last = 0  # `last`: position of the newest record
        self._next = 0  # where the next record begins
        self._newest_bytes = 0  # of the data of the newest
        self._mark = 0
        self._first = 0  # what the oldest record begins with
        self._after = 0  # what follows the newest

    @classmethod
    def open(cls, path: Path, capacity: int, row: KeptRow, turn: TurnNumber) -> SharedLog | None:
        """Open what the former incarnation has left, or make a new one; None without memory for it."""
        capacity = -(-max(capacity, MIN_CAPACITY) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            if (found := os.fstat(fd).st_size) and row.former is not None:
                capacity = found
            os.ftruncate(fd, capacity)
            area = mmap.mmap(fd, capacity)
        except (OSError, ValueError):
            os.close(fd)
            return None
        made = cls(path, fd, area, capacity, row, turn)
        if row.former is not None and not made._go_on(*row.former):
            made.close()
            return None
        return made

    def _go_on(self, begin: int, end: int, last: int, mark: int) -> bool:
        """Go on behind what the former incarnation has logged; False when that is not there."""
        self._begin, self._end, self._mark = begin, end, mark
        self._extent = end if end <= self._capacity else 0  # it may have gone round without the last bytes
        self._last = self._after = last
        if begin < end:
            try:
                self._first = self._head_at(begin)[3]
                self._after = self._head_at(last)[4]
            except DecodeError:
                return False
        return True

    def _head_at(self, at: int) -> tuple[int, ...]:
        """Read the head of a record. Raises: DecodeError when there is none."""
        offset = at % self._capacity
        if self._begin <= at < self._end and offset + _HEAD_BYTES <= self._capacity:
            head = _unpack_from(self._mv, offset)
            own, nbytes, valid, _, _, _, size, _, count, _ = head
            is_sound = own == at and valid <= count and at + nbytes <= self._end and offset + nbytes <= self._capacity
            if is_sound and (nbytes == _HEAD_BYTES + size * count if size else nbytes >= _HEAD_BYTES + 8 * count):
                return head
        raise DecodeError(str(self.path), f"no record at {at}")

    def _write_row(self) -> None:
        self._row.write(self._begin, self._end, self._last if self._begin < self._end else self._after, self._mark)

    @property
    def goes_on(self) -> bool:
        """Whether the former incarnation has left it."""
        return self._row.former is not None

    @property
    def extent(self) -> int:
        """Return how much memory it takes."""
        return self._extent

    @property
    def mark(self) -> int:
        """Return what the owner wants to find again."""
        return self._mark

    def set_mark(self, mark: int) -> None:
        """Change what the owner wants to find again; it is written with the next record."""
        self._mark = mark

    @property
    def after(self) -> int:
        """Return what follows the newest record."""
        return self._after

    @property
    def capacity(self) -> int:
        """Return how many bytes it has room for; fewer than were asked for where memory is scarce."""
        return self._capacity

    def newest(self) -> memoryview:
        """Return the data of the newest record, which stays there until `first` has passed it."""
        begin = self._last % self._capacity + _HEAD_BYTES
        return self._mv[begin : begin + self._newest_bytes]

    def begin(self, after: int, mark: int) -> None:
        """Start with nothing in it."""
        self._begin = self._end
        self._after, self._mark = after, mark
        self._write_row()

    def append(self, first: int, count: int, size: int, payload: int, data: memoryview, after: int) -> bool:
        """Log `count` pieces of the same size; False when there is no room."""
        nbytes = len(data)
        if not self._find_room(_HEAD_BYTES + nbytes):
            return False
        begin = self._next % self._capacity + _HEAD_BYTES
        self._mv[begin : begin + nbytes] = data
        self._commit(first, count, size, payload, nbytes, _HEAD_BYTES + nbytes, after)
        return True

    def append_mixed(
        self, first: int, ends: Sequence[int], payloads: Sequence[int], data: memoryview, after: int
    ) -> bool:
        """Log pieces of any sizes that fill `data`, number i up to `ends[i]`; False when there is no room.

        `payloads` may have more, of pieces that are not logged now.
        """
        nbytes = len(data)
        to = self.reserve(nbytes, len(ends))
        if to is None:
            return False
        to[:] = data
        self.commit_mixed(first, ends, payloads, after)
        return True

    def reserve(self, nbytes: int, count: int) -> memoryview | None:
        """Return memory for the data of the next record, of at most `count` pieces; None when there is no room.

        Whoever does not commit it leaves the log as it is, but for the oldest records: this may be their memory.
        """
        if not self._find_room(_HEAD_BYTES + (nbytes + 7 & -8) + 8 * count):
            return None
        begin = self._next % self._capacity + _HEAD_BYTES
        return self._mv[begin : begin + nbytes]

    def commit_mixed(self, first: int, ends: Sequence[int], payloads: Sequence[int], after: int) -> None:
        """Log pieces of any sizes that lie in reserved memory, number i up to `ends[i]`."""
        count, nbytes, paid = len(ends), ends[-1], 0
        behind = _HEAD_BYTES + (nbytes + 7 & -8)
        table = self._next % self._capacity + behind
        cells, cell = self._cells, table >> 2
        for number in range(count):
            paid += payloads[number]
            cells[cell + number], cells[cell + count + number] = ends[number], paid
        check = crc32(self._mv[table : table + 8 * count])
        self._commit(first, count, 0, check, nbytes, behind + 8 * count, after)

    def _find_room(self, nbytes: int) -> bool:
        """Let the next record of that size begin where it has room; False when it has none."""
        capacity = self._capacity
        at = self._end + 7 & -8
        offset = at % capacity
        if offset + nbytes > capacity:
            at += capacity - offset
            offset = 0
        if nbytes > capacity:
            return False
        if offset + nbytes > self._extent and not self._grow(offset + nbytes):
            return self._shrink() and self._find_room(nbytes)
        if at + nbytes - self._begin > capacity:
            self._make_room(at + nbytes)
        self._next = at
        return True

    def _commit(self, first: int, count: int, size: int, payload: int, data: int, nbytes: int, after: int) -> None:
        """Log what stands behind the place for its head: a record of so many bytes, of which so many are data."""
        at, is_first = self._next, self._begin == self._end
        words, cells, begin = self._words, self._cells, at % self._capacity
        word, cell = begin >> 3, begin >> 2
        words[word], words[word + 2], words[word + 3], words[word + 4] = at, first, after, self._turn.now
        cells[cell + 2], cells[cell + 3] = nbytes, count
        cells[cell + 10], cells[cell + 11], cells[cell + 12] = size, payload, count
        cells[cell + 13] = 0 if is_first else at - self._last
        if is_first:
            self._begin, self._first = at, first
        self._last, self._end, self._after, self._newest_bytes = at, at + nbytes, after, data
        self._row.write(self._begin, self._end, at, self._mark)

    def _make_room(self, end: int) -> None:
        """Let go of the oldest records: what lies from `end - capacity` on stays, but for some that would go next.

        The row says so first.
        """
        begin, end = self._begin, end + self._capacity // ROOM_SHARE
        while begin < self._end and end - begin > self._capacity:
            begin = self._following(begin)
        self._begin_at(begin)

    def _begin_at(self, begin: int) -> None:
        self._begin = min(begin, self._end)
        if begin < self._end:
            self._first = self._words[(begin % self._capacity >> 3) + 2]
        self._write_row()

    def let_go(self, first: int) -> None:
        """Let go of the records in front of the one that begins with `first`, or of all."""
        begin = self._begin
        while begin < self._end and _unpack_from(self._mv, begin % self._capacity)[3] < first:
            begin = self._following(begin)
        self._begin_at(begin)

    def _following(self, at: int) -> int:
        """Return where the record behind that one begins, or would begin. Raises: DecodeError.

        Records are back to back up to the end of a round; the first of a round lies at the front.
        """
        capacity, cells, last = self._capacity, self._cells, self._last
        if at == last:
            return self._end
        nbytes = cells[(at % capacity >> 2) + 2]
        if nbytes < _HEAD_BYTES:
            raise DecodeError(str(self.path), f"a record of {nbytes} bytes")
        front = last - last % capacity
        return front if at < front and at == front - cells[13] else at + nbytes + 7 & -8

    def cut(self, count: int, after: int) -> None:
        """Let only the first `count` pieces of the newest record count."""
        offset = self._last % self._capacity
        at, nbytes, _, first, _, turn, size, payload, pieces, back = _unpack_from(self._mv, offset)
        _pack_into(self._mv, offset, at, nbytes, count, first, after, turn, size, payload, pieces, back)
        self._after = after

    def _grow(self, nbytes: int) -> bool:
        extent = min(self._capacity, max(2 * self._extent, _FIRST_BYTES, nbytes))
        try:
            if not leaves_enough(self._fd, extent - self._extent):
                return False
            os.posix_fallocate(self._fd, self._extent, extent - self._extent)
        except OSError:
            return False
        self._extent = extent
        return True

    @property
    def first(self) -> int:
        """Return what the oldest record begins with; without one, what follows."""
        return self._first if self._begin < self._end else self._after

    def _shrink(self) -> bool:
        """Let the log be no larger than it is, as there is no memory for more; False when that is too little."""
        if not MIN_CAPACITY <= self._extent < self._capacity or self._end > self._extent:
            return False
        self._capacity = self._extent
        os.ftruncate(self._fd, self._extent)
        return True

    def newest_first(self) -> Iterator[LogRecord]:
        """Read the records, back to the oldest. Raises: DecodeError for what is none, or does not lead to the newer."""
        at, follows = self._last, self._after
        while self._begin < self._end and at >= self._begin:
            _, nbytes, valid, first, after, turn, size, payload, count, back = self._head_at(at)
            start = at % self._capacity + _HEAD_BYTES
            end = start + nbytes - _HEAD_BYTES
            table = end if size else end - 8 * count
            lists = self._mv[table:end].cast("I")
            is_split = bool(size) or (
                crc32(self._mv[table:end]) == payload and 0 <= table - start - lists[count - 1] < 8
            )
            if after != follows or not is_split:
                raise DecodeError(str(self.path), f"the record at {at} was changed")
            data = self._mv[start : table if size else start + lists[count - 1]]
            follows = first
            payload = payload if size else 0
            yield LogRecord(first, valid, turn, size, payload, lists[:valid], lists[count : count + valid], data)
            if not back:
                break
            at -= back

    def close(self) -> None:
        """Remove the log: the session has ended. What was read of it stays."""
        with contextlib.suppress(BufferError):
            self._mv.release()
            self._area.close()
        os.close(self._fd)
        self.path.unlink(missing_ok=True)
