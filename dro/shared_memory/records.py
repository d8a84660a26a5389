"""Records in a ring: one writer, any number of readers that write nothing into it.

A record is what was written at once. It has a number, which counts for ever; the index in front of the data says where
it lies, in entry number modulo the number of entries. A reader goes on at any number: what it finds in the index, it
copies, after it has looked whether the entry is still of that number, and then whether the ring has come round to the
bytes (`dro.shared_memory.ring`). What is no record any more was overrun; the reader goes on at the oldest one that is
still whole.

Layout, all u64 in native order. Header: the number of records so far (stored after the entry, which is stored after the
bytes), how many messages of life there were, how often the writer has asked where readers are. Index entry: number of
the record (FREE while it is written), position, length, number of the turn in which it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dro.errors import DecodeError, ResourceError
from dro.shared_memory.ring import HEADER_BYTES, RingReader, RingWriter

LAYOUT_VERSION: Final = 1
RECORD_MAX: Final = 256 << 10
"""Of a record; no more than a third of the ring either."""
MIN_CAPACITY: Final = 256 << 10
"""The largest message finds room several times."""
FREE: Final = (1 << 64) - 1
_COUNT, _LIFE, _ASKED = 24, 32, 33  # cells of the header
_INDEX_AT: Final = HEADER_BYTES // 8
_CELLS: Final = 4  # of an entry
_BYTES_OF_ENTRY: Final = 8 * _CELLS
_BYTES_PER_RECORD: Final = 512  # for which there is an entry
_ENTRIES_MIN: Final = 1024
_TRIES: Final = 16  # to find a record that is whole, beside a writer that goes on


class Record(NamedTuple):
    """Where a record lies, and the turn in which it was written."""

    number: int
    position: int
    length: int
    turn: int


def index_entries(capacity: int) -> int:
    """Return how many records the index of a ring of that size has room for."""
    return max(_ENTRIES_MIN, 1 << (capacity // _BYTES_PER_RECORD).bit_length() - 1)


def record_max(capacity: int) -> int:
    """Return how long a record may be."""
    return min(RECORD_MAX, capacity // 3)


class RecordWriter:
    """The writing end. It overwrites what nobody has read: who wants that to stay asks `has_room` before."""

    def __init__(self, ring: RingWriter) -> None:
        """Raises: ResourceError, with the ring closed, when there is no memory for a record."""
        try:
            ring.place(record_max(ring.capacity))
        except ResourceError:
            ring.close(unlink=False)
            raise
        self.ring = ring
        self.entries = (ring.data_at - HEADER_BYTES) // _BYTES_OF_ENTRY
        self.record_max = record_max(ring.capacity)
        self._cells = ring.queues.cast("Q")
        self._count: int = self._cells[_COUNT]
        self.ask()

    @classmethod
    def create(cls, path: Path, fd: int, capacity: int, name: int) -> RecordWriter:
        """Make a ring in an empty file. Raises: ResourceError when there is no memory for it; the file is closed."""
        capacity = max(capacity, MIN_CAPACITY)
        data_at = HEADER_BYTES + index_entries(capacity) * _BYTES_OF_ENTRY
        ring = RingWriter.of_file(path, fd, capacity, name, data_at, data_at)
        return cls(ring)

    @classmethod
    def go_on(cls, path: Path, name: int) -> RecordWriter:
        """Write on behind the last record of a ring. Raises: ResourceError when there is no such ring."""
        return cls(RingWriter.go_on(path, name))

    @property
    def count(self) -> int:
        """How many records were ever written; the number of the next."""
        return self._count

    def write(self, data: bytes | bytearray | memoryview, turn: int) -> None:
        """Write a record, over the oldest ones if need be. Raises: ResourceError when there is no memory at all."""
        position = self.ring.write(data)
        cells, number = self._cells, self._count
        at = _INDEX_AT + number % self.entries * _CELLS
        cells[at] = FREE
        cells[at + 1] = position
        cells[at + 2] = len(data)
        cells[at + 3] = turn
        cells[at] = number
        self._count = cells[_COUNT] = number + 1

    def has_room(self, nbytes: int, oldest: int) -> bool:
        """Say whether a record of that size leaves alone those from number `oldest` on."""
        if oldest >= self._count:
            return True
        if self._count - oldest >= self.entries:
            return False
        begin: int = self._cells[_INDEX_AT + oldest % self.entries * _CELLS + 1]
        return self.ring.place(nbytes) + nbytes <= begin + self.ring.capacity

    def bytes_from(self, oldest: int) -> int:
        """Return how many bytes of the ring are taken from number `oldest` on."""
        if oldest >= self._count:
            return 0
        if self._count - oldest > self.entries:
            return self.ring.capacity
        begin, newest = (_INDEX_AT + number % self.entries * _CELLS + 1 for number in (oldest, self._count - 1))
        return int(self._cells[newest] + self._cells[newest + 1] - self._cells[begin])

    def ask(self) -> None:
        """Ask readers where they are."""
        self._cells[_ASKED] += 1

    def show_life(self) -> None:
        """Count one more message of life."""
        self._cells[_LIFE] += 1

    def newest_first(self) -> Iterator[tuple[Record, memoryview]]:
        """Read the records, back to the oldest that is whole."""
        ring, cells = self.ring, self._cells
        reserved = ring.reserved
        for number in range(self._count - 1, max(-1, self._count - 1 - self.entries), -1):
            at = _INDEX_AT + number % self.entries * _CELLS
            found = Record(*cells[at : at + _CELLS].tolist())
            begin = ring.offset(found.position)
            if found.number != number or found.length > self.record_max or begin + found.length > ring.capacity:
                return
            if reserved > found.position + ring.capacity or found.position + found.length > ring.position:
                return
            yield found, ring.mv[begin : begin + found.length]

    def close(self, *, unlink: bool) -> None:
        """Give the memory back, apart from what readers have mapped; views of it must be gone."""
        self._cells.release()
        self.ring.close(unlink=unlink)


class RecordReader:
    """A reading end. Whatever it finds in the memory, it raises nothing but DecodeError.

    `number`: that of the record that comes next.
    """

    def __init__(self, path: Path, fd: int, name: int, number: int) -> None:
        """Map a ring; the descriptor stays the caller's. Raises: ResourceError when it is none."""
        self._ring = RingReader.of_file(path, fd, name)
        if len(self._ring.queues) < HEADER_BYTES + _BYTES_OF_ENTRY:
            self._ring.close()
            raise ResourceError(f"{path} has no index of records")
        self._cells = self._ring.queues.cast("Q")
        self.capacity = self._ring.capacity
        self.entries = (len(self._ring.queues) - HEADER_BYTES) // _BYTES_OF_ENTRY
        self._record_max = record_max(self.capacity)
        self.number = number
        self.end = 0
        """Where the last record ended that was read, in the ring; 0 before any was."""

    @property
    def count(self) -> int:
        """How many records were ever written."""
        found: int = self._cells[_COUNT]
        return found

    @property
    def life(self) -> int:
        """How many messages of life there were."""
        found: int = self._cells[_LIFE]
        return found

    @property
    def asked(self) -> int:
        """How often the writer has asked where readers are; each of its processes does so once at least."""
        found: int = self._cells[_ASKED]
        return found

    def read(self, buffer: bytearray, most: int) -> tuple[int, int]:
        """Add the next records to a buffer until it has `most` bytes; (records read, records lost in front of them).

        Raises: DecodeError when this is no ring of records.
        """
        lost = 0
        for _ in range(_TRIES):
            count = self.count
            if count < self.number:
                raise DecodeError("ring", f"{count} records, and {self.number} before")
            read = self._read(buffer, count, most)
            if read or self.number == count:
                return read, lost
            lost += self._skip(count)
        return 0, lost

    def _read(self, buffer: bytearray, count: int, most: int) -> int:
        """Add records until one is not whole."""
        read, number = 0, self.number
        while number < count and len(buffer) < most:
            found = self._entry(number)
            if found is None or not self._ring.append(buffer, found.position, found.length):
                break
            self.end = found.position + found.length
            number += 1
            read += 1
        self.number = number
        return read

    def _entry(self, number: int) -> Record | None:
        """Return where a record lies; None when it was overrun. Raises: DecodeError."""
        at = _INDEX_AT + number % self.entries * _CELLS
        found = Record(*self._cells[at : at + _CELLS].tolist())
        if found.number == number:
            found = found._replace(number=self._cells[at])  # it may have changed meanwhile
        if found.number != number:
            if found.number != FREE and (found.number < number or (found.number - number) % self.entries):
                raise DecodeError("ring", f"entry {found.number} in place of {number}")
            return None
        if found.length > self._record_max:
            raise DecodeError("ring", f"a record of {found.length} bytes")
        return found

    def _is_whole(self, number: int) -> bool:
        found = self._entry(number)
        return found is not None and not self._ring.is_overrun(found.position)

    def _skip(self, count: int) -> int:
        """Go to the oldest record that is whole; how many were lost. Raises: DecodeError for a record that is none."""
        if self._is_whole(self.number):
            raise DecodeError("ring", f"record {self.number} is not what it was")
        low, high = max(self.number, count - self.entries), count
        while low < high:
            middle = (low + high) // 2
            if self._is_whole(middle):
                high = middle
            else:
                low = middle + 1
        lost, self.number = low - self.number, low
        return lost

    def close(self) -> None:
        """Let go of the memory; idempotent."""
        self._cells.release()
        self._ring.close()
