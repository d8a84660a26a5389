"""A log in shared memory of what a session has sent, or is about to send, for the next incarnation of its process.

A ring of records in a sparse file; the oldest make room for the newest. A record is complete when its end is in the
row of the log (`dro.kept.rows`), which is written after its bytes. Positions are virtual: they only grow, and the byte
of position `p` lies at `p % capacity`. A record does not wrap: it begins anew at the front, and has its own position at
its head, so that a reader finds it there.

The values of the row: position of the oldest record, end of the newest, what follows the newest (a sequence number, or
a place in a stream), and what the owner wants to find again.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from dro.errors import DecodeError
from dro.kept.rows import KeptRow

_HEAD: Final = Struct("=QIIQIIII")  # position, bytes of the record, pieces that count, first, size, payload, pieces, 0
_HEAD_BYTES = _HEAD.size
_pack_into, _unpack_from = _HEAD.pack_into, _HEAD.unpack_from
_FIRST_BYTES: Final = 128 << 10  # that get memory at once; doubled from there on
MIN_CAPACITY: Final = 256 << 10


class LogRecord(NamedTuple):
    """Pieces that were logged together: `sizes` in bytes each, `payloads` as the owner gave them, `data` is theirs."""

    first: int
    sizes: Sequence[int]
    payloads: Sequence[int]
    data: memoryview


class SharedLog:
    """One log; made by `open`."""

    def __init__(self, path: Path, fd: int, area: mmap.mmap, capacity: int, row: KeptRow) -> None:
        self.path = path
        self._fd = fd
        self._area = area
        self._mv = memoryview(area)
        self._capacity = capacity
        self._extent = 0
        self._row = row
        self._begin = self._end = self._last = 0  # `last`: position of the newest record
        self._next = 0
        self._mark = 0
        self._after = 0  # what follows the newest

    @classmethod
    def open(cls, path: Path, capacity: int, row: KeptRow) -> SharedLog | None:
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
        made = cls(path, fd, area, capacity, row)
        if row.former is not None:
            made._begin, made._end, made._after, made._mark = row.former
            made._extent = min(capacity, made._end)
        return made

    @property
    def mark(self) -> int:
        """What the owner wants to find again."""
        return self._mark

    @property
    def after(self) -> int:
        """What follows the newest record."""
        return self._after

    def begin(self, after: int, mark: int) -> None:
        """Start with nothing in it."""
        self._begin = self._end
        self._after, self._mark = after, mark
        self._row.write(self._begin, self._end, after, mark)

    def append(self, first: int, count: int, size: int, payload: int, data: memoryview, after: int) -> bool:
        """Log `count` pieces of the same size; False when there is no room."""
        return self._append(first, count, size, payload, b"", data, after)

    def append_mixed(
        self, first: int, sizes: Sequence[int], payloads: Sequence[int], data: memoryview, after: int
    ) -> bool:
        """Log pieces of any sizes that fill `data`; False when there is no room."""
        table = array("I", sizes)
        table.extend(payloads)
        return self._append(first, len(sizes), 0, 0, table.tobytes(), data, after)

    def _append(
        self, first: int, count: int, size: int, payload: int, table: bytes, data: memoryview, after: int
    ) -> bool:
        nbytes = _HEAD_BYTES + len(table) + len(data)
        at = (self._end + 7) & -8
        offset = at % self._capacity
        if offset + nbytes > self._capacity:
            at += self._capacity - offset
            offset = 0
        end = at + nbytes
        if nbytes > self._capacity or (offset + nbytes > self._extent and not self._grow(offset + nbytes)):
            return False
        if end - self._begin > self._capacity:
            self._make_room(end)
        view = self._mv
        _pack_into(view, offset, at, nbytes, count, first, size, payload, count, 0)
        offset += _HEAD_BYTES
        if table:
            view[offset : offset + len(table)] = table
            offset += len(table)
        view[offset : offset + len(data)] = data
        if self._begin == self._end:
            self._begin = at
        self._last, self._end, self._after = at, end, after
        self._row.write(self._begin, end, after, self._mark)
        return True

    def _make_room(self, end: int) -> None:
        """Let go of the oldest records: what lies from `end - capacity` on stays. The row says so first."""
        begin = self._begin
        while begin < self._end and end - begin > self._capacity:
            begin = self._following(begin)
        self._begin = min(begin, self._end)
        self._row.write(self._begin, self._end, self._after, self._mark)

    def _following(self, at: int) -> int:
        """Return where the record behind that one begins, or would begin. Raises: DecodeError."""
        capacity = self._capacity
        nbytes: int = _unpack_from(self._mv, at % capacity)[1]
        after = (at + nbytes + 7) & -8
        offset = after % capacity
        if after < self._end and (offset + _HEAD_BYTES > capacity or _unpack_from(self._mv, offset)[0] != after):
            after += capacity - offset
        if nbytes < _HEAD_BYTES:
            raise DecodeError(str(self.path), f"a record of {nbytes} bytes")
        return after

    def cut(self, count: int, after: int) -> None:
        """Let only the first `count` pieces of the newest record count."""
        offset = self._last % self._capacity
        at, nbytes, _, first, size, payload, pieces, _ = _unpack_from(self._mv, offset)
        _pack_into(self._mv, offset, at, nbytes, count, first, size, payload, pieces, 0)
        self._after = after
        self._row.write(self._begin, self._end, after, self._mark)

    def release_before(self, position: int) -> None:
        """Forget the records before that position, which is one of `records` or the end."""
        self._begin = position
        self._row.write(position, self._end, self._after, self._mark)

    def _grow(self, nbytes: int) -> bool:
        extent = min(self._capacity, max(2 * self._extent, _FIRST_BYTES, nbytes))
        try:
            os.posix_fallocate(self._fd, self._extent, extent - self._extent)
        except OSError:
            return False
        self._extent = extent
        return True

    @property
    def end(self) -> int:
        """Position behind the newest record."""
        return self._end

    def records(self) -> Iterator[tuple[int, LogRecord]]:
        """Read all records, the oldest first, with the position of each. Raises: DecodeError for what is none."""
        at = self._begin
        while at < self._end:
            offset = at % self._capacity
            if offset + _HEAD_BYTES > self._capacity:
                raise DecodeError(str(self.path), f"no record at {at}")
            own, nbytes, valid, first, size, payload, count, _ = _unpack_from(self._mv, offset)
            table = 0 if size else 8 * count
            end = offset + nbytes
            is_sound = own == at and valid <= count and end <= self._capacity and at + nbytes <= self._end
            if not is_sound or nbytes < _HEAD_BYTES + table + size * count:
                raise DecodeError(str(self.path), f"no record at {at}")
            start = offset + _HEAD_BYTES
            sizes: Sequence[int] = [size] * valid
            payloads: Sequence[int] = [payload] * valid
            if not size:
                lists = array("I", bytes(self._mv[start : start + table]))
                sizes, payloads = lists[:valid], lists[count : count + valid]
            data = self._mv[start + table : end]
            if sum(sizes) > len(data):
                raise DecodeError(str(self.path), f"pieces beyond the record at {at}")
            yield at, LogRecord(first, sizes, payloads, data)
            at = self._following(at)

    def close(self) -> None:
        """Remove the log: the session has ended."""
        self._mv.release()
        self._area.close()
        os.close(self._fd)
        self.path.unlink(missing_ok=True)
