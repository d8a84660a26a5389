"""Counter pages: 64-bit slots in shared memory with one writer, kept by the parent across restarts of the writer.

Layout of the file, all u64 in native order: a header of eight cells (magic, layout version, number of general slots,
number of pair blocks, slots per pair block, how often it was published), the general slots, one block of pair slots per
worker index, then two copies of the general slots. The meaning of the slots is in `dro.metrics.slots`.

The writer changes slots one by one. At the end of each turn it publishes: it copies the general slots into the older of
the two copies and adds one to the count, so a reader that finds the same count before and after has what belongs
together (`snapshot`), and whoever is killed in the middle of a turn leaves what it had published before. A published
counter never falls.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dro.errors import LocalProtocolError, ResourceError
from dro.os_errors import remedy_of

MAGIC: Final = int.from_bytes(b"DROCNTR\x00", "little")
LAYOUT_VERSION: Final = 2
HEADER_CELLS: Final = 8
GENERAL_SLOTS: Final = 512
MAX_WORKERS: Final = 256
PAIR_SLOTS: Final = 16
COPIES: Final = 2
_PUBLISHED: Final = 5  # the header cell with the count
_TRIES: Final = 1000  # of a reader, each a few microseconds
MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_MASK = MASK  # a plain integer in the compiled form


class CounterPage:
    """An open page. `page[slot]` reads, `add` and `set` write; `slots` is the raw view for hot code."""

    def __init__(self, path: Path, area: mmap.mmap) -> None:
        self.path = path
        self._area = area
        self._whole = memoryview(area)
        self._cells = self._whole.cast("Q")
        self.general_slots: int = self._cells[2]
        self.pair_blocks: int = self._cells[3]
        self.pair_slots: int = self._cells[4]
        end = HEADER_CELLS + self.general_slots + self.pair_blocks * self.pair_slots
        self.slots = self._cells[HEADER_CELLS:end]
        """All slots as u64, general ones first; a write above 2^64 - 1 is a ValueError."""
        self._general = self.slots[: self.general_slots]
        self._copies = [self._cells[at : at + self.general_slots] for at in (end, end + self.general_slots)]
        self._counted = 0
        self._written: Any = None if self.slots.readonly else self.slots  # of its own type in the compiled form

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        general_slots: int = GENERAL_SLOTS,
        pair_blocks: int = MAX_WORKERS,
        pair_slots: int = PAIR_SLOTS,
    ) -> CounterPage:
        """Make the file, all zero; it must not exist. Raises: ResourceError."""
        size = _size(general_slots, pair_blocks, pair_slots)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as e:
            what = f"cannot create the counter page {path}: {e.strerror}"
            raise ResourceError(what, remedy=remedy_of(e.errno)) from e
        try:
            os.posix_fallocate(fd, 0, size)
            area = mmap.mmap(fd, size)
        except OSError as e:
            path.unlink(missing_ok=True)
            what = f"no room for the counter page {path}: {e.strerror}"
            raise ResourceError(what, remedy=remedy_of(e.errno)) from e
        finally:
            os.close(fd)
        with memoryview(area) as whole, whole.cast("Q") as cells:
            cells[1], cells[2], cells[3], cells[4] = LAYOUT_VERSION, general_slots, pair_blocks, pair_slots
            cells[0] = MAGIC
        return cls(path, area)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False) -> CounterPage:
        """Open a page. Raises: ResourceError when there is none or its layout is another one."""
        try:
            fd = os.open(path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as e:
            raise ResourceError(f"cannot open the counter page {path}: {e.strerror}") from e
        try:
            size = os.fstat(fd).st_size
            if size < 8 * HEADER_CELLS or size % 8:
                raise ResourceError(f"{path} is not a counter page")
            area = mmap.mmap(fd, size, access=mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE)
        except OSError as e:
            raise ResourceError(f"cannot map the counter page {path}: {e.strerror}") from e
        finally:
            os.close(fd)
        with memoryview(area) as whole, whole.cast("Q") as cells:
            ours = cells[0] == MAGIC and cells[1] == LAYOUT_VERSION
            ours = ours and size == _size(cells[2], cells[3], cells[4])
        if not ours:
            area.close()
            raise ResourceError(f"{path} is not a counter page of layout {LAYOUT_VERSION}")
        return cls(path, area)

    def pair(self, worker: int) -> int:
        """First slot of the block about the sibling with that worker index."""
        if not 0 <= worker < self.pair_blocks:
            raise LocalProtocolError(f"no pair block for worker {worker}")
        return self.general_slots + worker * self.pair_slots

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, slot: int) -> int:
        return self.slots[slot]

    def add(self, slot: int, count: int = 1) -> None:
        """Add `count`, which may be negative for a gauge; wraps at 2^64."""
        slots = self._written
        slots[slot] = (slots[slot] + count) & _MASK

    def add_sized(self, slot: int, count: int, nbytes: int) -> None:
        """`add` to a slot, and the bytes to the one behind it."""
        slots = self._written
        slots[slot] = (slots[slot] + count) & _MASK
        slots[slot + 1] = (slots[slot + 1] + nbytes) & _MASK
        self._counted += count

    def set(self, slot: int, value: int) -> None:
        self.slots[slot] = value & MASK

    def publish(self) -> int:
        """Let readers see the slots as they are now. No other process may write to the page.

        Returns how much was added with a size since the last call.
        """
        counted, self._counted = self._counted, 0
        count = self._cells[_PUBLISHED] + 1
        self._copies[count % COPIES][:] = self._general
        self._cells[_PUBLISHED] = count
        return counted

    def snapshot(self) -> list[int]:
        """The general slots as they were published last; all zero before the first time.

        Raises: ResourceError when the writer publishes faster than this can read, which it never does for long.
        """
        for _ in range(_TRIES):
            count = self._cells[_PUBLISHED]
            data = self._copies[count % COPIES].tobytes()  # fast, so that the writer has not come round meanwhile
            if self._cells[_PUBLISHED] == count:
                return memoryview(data).cast("Q").tolist()
        raise ResourceError(f"{self.path} changes too fast to be read", remedy="try again")

    def go_back(self, slots: Iterable[int]) -> None:
        """Let these general slots be what was published last: what was added since is counted once more."""
        published = self._copies[self._cells[_PUBLISHED] % COPIES]
        for slot in slots:
            self.slots[slot] = published[slot]

    def close(self) -> None:
        self._written = None
        for part in (*self._copies, self._general):
            part.release()
        self.slots.release()
        self._cells.release()
        self._whole.release()
        self._area.close()


class Histogram:
    """The buckets of one histogram of a page, and the sum of its values, which are whole numbers."""

    def __init__(self, page: CounterPage, slot: int, bounds: tuple[int, ...]) -> None:
        """`slot` of the first bucket; the last one, for what is above all bounds, and the sum follow."""
        self._page = page
        self._slot = slot
        self._bounds = bounds

    def observe(self, value: int, count: int = 1) -> None:
        """Count `count` observations of the same value."""
        page, slot, at = self._page, self._slot, 0
        for bound in self._bounds:  # as `bisect_left`, without a call
            if value <= bound:
                break
            at += 1
        page.add(slot + at, count)
        page.add(slot + len(self._bounds) + 1, value * count)


def _size(general_slots: int, pair_blocks: int, pair_slots: int) -> int:
    return 8 * (HEADER_CELLS + (1 + COPIES) * general_slots + pair_blocks * pair_slots)
