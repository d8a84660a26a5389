"""Counter pages: 64-bit slots in shared memory with one writer, kept by the parent across restarts of the writer.

Layout of the file, all u64 in native order: a header of eight cells (magic, layout version, number of general slots,
number of pair blocks, slots per pair block), the general slots, then one block of pair slots per worker index. The
writer defines the meaning of the slots by an IntEnum; those of a portal are in `portals.datapath.counters`.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Final

from dro.clock import NS_PER_US
from dro.errors import LocalProtocolError, ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of

MAGIC: Final = int.from_bytes(b"DROCNTR\x00", "little")
LAYOUT_VERSION: Final = 1
HEADER_CELLS: Final = 8
GENERAL_SLOTS: Final = 512
MAX_WORKERS: Final = 256
PAIR_SLOTS: Final = 16
LONGEST_TURN_US: Final = 77
LONGEST_TURN_CPU_US: Final = 78
"""Slots that have the same meaning on the page of every worker."""
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
        self.slots = self._cells[HEADER_CELLS:]
        """All slots as u64, general ones first; a write above 2^64 - 1 is a ValueError."""
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
        size = 8 * (HEADER_CELLS + general_slots + pair_blocks * pair_slots)
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
        """Raises: ResourceError when there is no such page or its layout is another one."""
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
            ours = ours and size == 8 * (HEADER_CELLS + cells[2] + cells[3] * cells[4])
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

    def set(self, slot: int, value: int) -> None:
        self.slots[slot] = value & MASK

    def close(self) -> None:
        self._written = None
        self.slots.release()
        self._cells.release()
        self._whole.release()
        self._area.close()


def show_longest_turn(page: CounterPage, loop: Loop) -> None:
    page.set(LONGEST_TURN_US, loop.longest_turn_ns // NS_PER_US)
    page.set(LONGEST_TURN_CPU_US, loop.longest_turn_cpu_ns // NS_PER_US)
