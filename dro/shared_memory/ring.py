"""The fragment ring: one writer puts fragments into shared memory, many readers copy them out.

A ring is a file in shared memory: a header page, then `capacity` bytes of data. Positions are virtual: they only grow,
and the byte of position `p` lies at `p % capacity`. A chunk never wraps; the remainder at the end is skipped.

The file is sparse. Only the first `extent` bytes of the data have memory, which is allocated before it is written to:
in a full file system in memory, a store to a page that has none would end the process by SIGBUS. The writer begins the
next round early, within its extent, when it finds that its readers have copied all there is; while they have not, it
takes more memory. So nothing is overwritten that `capacity` bytes of memory would have held, and under full load, when
readers always have something left, a ring gets as large. An extent that was not needed for a while is given back.

Two cells make it safe without locks. The writer stores `reserved` (how far it may be writing) before it touches a
byte, and `committed` (how far the bytes are complete) afterwards. A reader copies first and then looks at
`reserved`: when that has not passed `position + capacity`, nothing that was copied can have been overwritten.

This relies on other processors seeing stores and loads in program order, as on x86-64. Elsewhere a reader stays a
quarter of the ring away from the writer, which makes an error improbable but not impossible.

Between the header and the data, in front of `data_at`, lies what tells readers of chunks: the descriptor queues of a
portal's siblings (`dro.bus.descriptors`), whose memory is taken when a reader is used first, or the index of a ring of
records (`dro.shared_memory.records`).

A new incarnation of a portal gets a new file; its ring is never repaired or reused. Who has mapped a ring can read it
to the end after its writer has died. A ring of records may be gone on with (`RingWriter.go_on`): from `committed` on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dro import system_calls
from dro.errors import LocalProtocolError, ResourceError
from dro.os_errors import remedy_of

MAGIC: Final = int.from_bytes(b"DRORING\x00", "little")
LAYOUT_VERSION: Final = 5
HEADER_BYTES: Final = 4096
READERS: Final = 256
CELLS_AT: Final = HEADER_BYTES  # of the queues: two cache lines for each reader
CELLS_BYTES: Final = 128
QUEUES_BYTES: Final = 128 << 10  # for the descriptors of a reader
SLOTS_AT: Final = CELLS_AT + READERS * CELLS_BYTES
DATA_AT: Final = SLOTS_AT + READERS * QUEUES_BYTES
ALIGN: Final = 64
MIN_CAPACITY: Final = HEADER_BYTES
FIRST_BYTES: Final = 128 << 10  # of data that get memory at the first chunk; doubled from there on
REMEDY: Final = "give the machine more shared memory or lower <max-queue>"

# cells of the header, as indexes of u64; those that change have a cache line of their own
_MAGIC, _VERSION, _INCARNATION, _CAPACITY, _DATA_AT = 0, 1, 2, 3, 4
_RESERVED, _COMMITTED = 8, 16
_ALIGN = ALIGN  # a plain integer in the compiled form

_STRONGLY_ORDERED: Final = platform.machine() in ("x86_64", "AMD64", "i686")


def _round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit


class RingWriter:
    """The writing end; made with `create` or `of_file`, or with `go_on`."""

    def __init__(
        self, path: Path, area: mmap.mmap, fd: int, capacity: int, incarnation: int, data_at: int = DATA_AT
    ) -> None:
        self.path = path
        self.capacity = capacity
        self.incarnation = incarnation
        self._area = area
        self._fd = fd
        self._whole = memoryview(area)
        self._cells: Any = self._whole[:HEADER_BYTES].cast("Q")
        self.queues = self._whole[:data_at]
        """Header, and what lies in front of the data, by offset in the file."""
        self.data_at = data_at
        self.mv = self._whole[data_at:]
        """The data area, `capacity` bytes; write only between `offset(pos)` and the end of what was reserved."""
        self._next = 0  # where the next chunk may begin
        self._reserved = 0
        self.extent = 0
        """How many bytes of the data area have memory, from its start on."""
        self._limit = 0  # up to here a chunk may be written as it comes
        self._had_backlog = False  # since `give_back` was called
        self._given_back_at = 0
        self.needs: list[Callable[[], bool]] = []
        """Is there anything that a reader has still to copy? Who knows readers adds this; without any, there is."""
        cells = self._cells
        if cells[_MAGIC] == MAGIC:
            self._next, self._reserved = cells[_COMMITTED], cells[_RESERVED]
            return
        cells[_VERSION], cells[_INCARNATION], cells[_CAPACITY] = LAYOUT_VERSION, incarnation, capacity
        cells[_DATA_AT] = data_at
        cells[_MAGIC] = MAGIC  # last: a ring with its magic is complete

    @classmethod
    def create(cls, path: Path, capacity: int, incarnation: int) -> RingWriter:
        """Make the file, which must not exist. `capacity` is rounded up to whole pages.

        Raises: ResourceError when shared memory has no room for what a ring without data takes, `SLOTS_AT` bytes.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as e:
            what = f"cannot create the fragment ring {path}: {e.strerror}"
            raise ResourceError(what, remedy=remedy_of(e.errno)) from e
        try:
            return cls.of_file(path, fd, capacity, incarnation)
        except ResourceError:
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def of_file(
        cls, path: Path, fd: int, capacity: int, incarnation: int, data_at: int = DATA_AT, taken: int = SLOTS_AT
    ) -> RingWriter:
        """Make a ring in an empty file, whose descriptor is the ring's from here on. `taken` bytes get memory at once.

        Raises: ResourceError when there is no room for these.
        """
        capacity = _round_up(max(capacity, MIN_CAPACITY), mmap.PAGESIZE)
        size = data_at + capacity
        try:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, taken)
            area = mmap.mmap(fd, size)
        except OSError as e:
            os.close(fd)
            raise ResourceError(f"no room for a fragment ring in {path.parent}: {e.strerror}", remedy=REMEDY) from e
        return cls(path, area, fd, capacity, incarnation, data_at)

    @classmethod
    def go_on(cls, path: Path, incarnation: int) -> RingWriter:
        """Write on, behind what the former writer has committed. Raises: ResourceError when there is no such ring."""
        fd, area, capacity, data_at = _open(path, incarnation)
        return cls(path, area, fd, capacity, incarnation, data_at)

    def allocate_queues(self, reader: int) -> None:
        """Take memory for the queues of that reader. Raises: ResourceError when there is none."""
        try:
            os.posix_fallocate(self._fd, SLOTS_AT + reader * QUEUES_BYTES, QUEUES_BYTES)
        except OSError as e:
            raise ResourceError(
                f"no room for descriptor queues of {QUEUES_BYTES} bytes in {self.path.parent}: {e.strerror}",
                remedy=REMEDY,
            ) from e

    @property
    def position(self) -> int:
        """End of what is committed, as a virtual position."""
        return self._next

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self._fd

    @property
    def reserved(self) -> int:
        """How far it may have been written, as a virtual position."""
        return self._reserved

    def offset(self, pos: int) -> int:
        """Return where the byte of virtual position `pos` lies in `mv`."""
        return pos % self.capacity

    def left(self, pos: int) -> int:
        """Bytes from virtual position `pos` to where the ring begins anew."""
        return self.capacity - pos % self.capacity

    def place(self, nbytes: int) -> int:
        """Return where the next chunk of that size will begin. Nothing that was written is gone by that.

        Raises: ResourceError when shared memory has no room for it.
        """
        if not 0 <= nbytes <= self.capacity:
            raise LocalProtocolError(f"a reservation of {nbytes} bytes in a ring of {self.capacity}")
        pos = (self._next + _ALIGN - 1) & -_ALIGN
        if pos + nbytes > self._limit:
            pos = self._next = self._find_room(pos, nbytes)
        return pos

    def reserve(self, nbytes: int) -> int:
        """Claim room for `nbytes` in one piece; returns its virtual position, a multiple of 64.

        From here on readers know that older bytes in that room are gone. A claim need not be used up: `commit` says
        how far it was, and the next one begins behind that. A claim made again without `commit` gets the same room.

        Raises: ResourceError when shared memory has no room for it; nothing has changed then.
        """
        pos = self.place(nbytes)
        end = pos + nbytes
        if end > self._reserved:
            self._reserved = end
            self._cells[_RESERVED] = end
        return pos

    def _find_room(self, pos: int, nbytes: int) -> int:
        """Find where a chunk begins that would begin at `pos` if there were memory, and nothing to be spared."""
        capacity = self.capacity
        start = pos - pos % capacity  # of this round
        has_backlog = self.is_needed()
        self._had_backlog |= has_backlog
        if pos + nbytes > start + capacity or (
            not has_backlog and nbytes <= self.extent and 2 * (pos - start) >= self.extent
        ):
            pos = start = start + capacity
        if pos + nbytes > start + self.extent and not self._grow(pos + nbytes - start):
            if nbytes > self.extent:
                raise ResourceError(f"no room for {nbytes} bytes in the fragment ring {self.path}", remedy=REMEDY)
            pos = start = start + capacity  # over what readers were too slow to copy, as at the end of every round
        extent = self.extent
        self._limit = min(start + extent, max(start + extent // 2, pos + nbytes + extent // 8))
        return pos

    def is_needed(self) -> bool:
        return not self.needs or any(needs() for needs in self.needs)

    def _grow(self, nbytes: int) -> bool:
        """Get memory for at least so many bytes of data; False when there is none."""
        extent = min(self.capacity, max(2 * self.extent, FIRST_BYTES, _round_up(nbytes, mmap.PAGESIZE)))
        try:
            os.posix_fallocate(self._fd, self.data_at + self.extent, extent - self.extent)
        except OSError:
            return False
        self.extent = extent
        return True

    def give_back(self) -> None:
        """Call it now and then: gives memory back that was not needed since the last call."""
        is_idle = self._given_back_at == self._next
        if not self._had_backlog and self.extent > (0 if is_idle else FIRST_BYTES) and not self.is_needed():
            with contextlib.suppress(OSError):  # a file system that cannot
                self._area.madvise(mmap.MADV_REMOVE, self.data_at, self.extent)
                self.extent = 0
                # two rounds on, so that nothing old counts as there
                self._next = self._limit = self._next - self._next % self.capacity + 2 * self.capacity
                self._reserved = self._cells[_RESERVED] = self._next
        self._had_backlog = False
        self._given_back_at = self._next

    def commit(self, end_pos: int) -> None:
        """Say that everything before `end_pos` is written; do it before the chunk is announced to anybody."""
        if not self._next <= end_pos <= self._reserved:
            raise LocalProtocolError(f"commit of {end_pos}, outside of {self._next}..{self._reserved}")
        self._next = end_pos
        self._cells[_COMMITTED] = end_pos

    def is_overrun(self, pos: int) -> bool:
        """Say whether what lay there has been overwritten, or may be."""
        return self._reserved > pos + self.capacity

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Reserve, copy and commit one chunk; returns its position."""
        nbytes = len(data)
        pos = self.reserve(nbytes)
        system_calls.copy_in(self.mv, pos % self.capacity, data)
        self.commit(pos + nbytes)
        return pos

    def close(self, *, unlink: bool = True) -> None:
        """Give the memory back. Every view that was taken of `mv` must be gone by then."""
        self._cells = None
        self.queues.release()
        self.mv.release()
        self._whole.release()
        self._area.close()
        os.close(self._fd)
        if unlink:
            self.path.unlink(missing_ok=True)


class RingReader:
    """A reading end; opened from the path and incarnation that the writer announced."""

    def __init__(self, path: Path, area: mmap.mmap, capacity: int, incarnation: int, data_at: int = DATA_AT) -> None:
        self.path = path
        self.capacity = capacity
        self.incarnation = incarnation
        self._area = area
        self._whole = memoryview(area)
        self._cells: Any = self._whole[:HEADER_BYTES].cast("Q")
        self.queues = self._whole[:data_at]
        """As in the writer; the own cells are written to."""
        self._data = self._whole[data_at:]
        self._reach = capacity if _STRONGLY_ORDERED else capacity - capacity // 4

    @classmethod
    def open(cls, path: Path, incarnation: int) -> RingReader:
        """Open a ring. Raises: ResourceError when there is none, or it belongs to another incarnation."""
        fd, area, capacity, data_at = _open(path, incarnation)
        os.close(fd)
        return cls(path, area, capacity, incarnation, data_at)

    @classmethod
    def of_file(cls, path: Path, fd: int, incarnation: int) -> RingReader:
        """Map a ring that is only read; the descriptor stays the caller's. Raises: ResourceError, as `open`."""
        area, capacity, data_at = _map(path, fd, incarnation, mmap.ACCESS_READ)
        return cls(path, area, capacity, incarnation, data_at)

    @property
    def position(self) -> int:
        """End of what the writer has committed."""
        committed: int = self._cells[_COMMITTED]
        return committed

    def is_overrun(self, pos: int) -> bool:
        """Say whether what lay there has been overwritten, or may be."""
        reserved: int = self._cells[_RESERVED]
        return reserved > pos + self._reach

    def copy(self, pos: int, nbytes: int) -> bytearray | None:
        """A private copy of `nbytes` from virtual position `pos`, or None when they are gone or never were.

        None is an overrun and for the caller to count: the writer has been round, or may be at it.
        """
        data = bytearray()
        return data if self.append(data, pos, nbytes) else None

    def append(self, buffer: bytearray, pos: int, nbytes: int) -> bool:
        """Do as `copy`, to the end of a buffer, which stays as it is when False is returned."""
        committed = self._cells[_COMMITTED]
        if not (0 <= nbytes <= self.capacity and 0 <= pos <= committed - nbytes):
            return False
        start, gone_at, cells = pos % self.capacity, pos + self._reach, self._cells
        if start + nbytes > self.capacity or cells[_RESERVED] > gone_at:
            return False  # spares a copy that would be thrown away
        system_calls.append_part(buffer, self._data, start, nbytes)
        if cells[_RESERVED] > gone_at:
            del buffer[len(buffer) - nbytes :]
            return False
        return True

    def close(self) -> None:
        """Views of the queues must be gone by then."""
        self._cells = None
        self.queues.release()
        self._data.release()
        self._whole.release()
        self._area.close()


def _open(path: Path, incarnation: int) -> tuple[int, mmap.mmap, int, int]:
    """Open a ring: descriptor, memory, capacity, where the data begins. Raises: ResourceError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as e:
        raise ResourceError(f"cannot open the fragment ring {path}: {e.strerror}") from e
    try:
        return fd, *_map(path, fd, incarnation, mmap.ACCESS_WRITE)
    except ResourceError:
        os.close(fd)
        raise


def _map(path: Path, fd: int, incarnation: int, access: int) -> tuple[mmap.mmap, int, int]:
    """Map a ring whose header is sound. Raises: ResourceError."""
    try:
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES + MIN_CAPACITY:
            raise ResourceError(f"{path} is too short for a fragment ring")
        area = mmap.mmap(fd, size, access=access)
    except OSError as e:
        raise ResourceError(f"cannot map the fragment ring {path}: {e.strerror}") from e
    with memoryview(area) as whole, whole[:HEADER_BYTES] as head, head.cast("Q") as cells:
        capacity, found, data_at = cells[_CAPACITY], cells[_INCARNATION], cells[_DATA_AT]
        complete = cells[_MAGIC] == MAGIC and cells[_VERSION] == LAYOUT_VERSION and size == data_at + capacity
    if not complete or found != incarnation or data_at < HEADER_BYTES or data_at % 8 or capacity < MIN_CAPACITY:
        area.close()
        why = f"belongs to incarnation {found}, not {incarnation}" if complete else "is not a fragment ring"
        raise ResourceError(f"{path} {why}")
    return area, capacity, data_at
