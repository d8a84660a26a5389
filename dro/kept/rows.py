"""Rows of numbers in shared memory that outlive the process which writes them.

A row has a name and four u64. It is written turn about into two copies, each with its number and a check word over
all of it and the name; a row counts as its newest copy that is whole, so whoever is killed in the middle of a write
leaves what was written before. A file of another layout, or with a row of which no copy is whole, is refused: nothing
in it is believed then.

Layout, all u64 in native order: a header of 16 cells (magic, layout version, rows in use), then rows of 16 cells: the
name as a digest of 16 bytes, whose first cell is 0 in a free row, two copies of number, four values and check word, and
two cells of nothing. The file is sparse; memory for rows is allocated before it is used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from dro.errors import DecodeError, ResourceError
from dro.os_errors import remedy_of

MAGIC: Final = int.from_bytes(b"DROKEPT\x00", "little")
LAYOUT_VERSION: Final = 1
HEADER_CELLS: Final = 16
ROW_CELLS: Final = 16
ROWS: Final = 1 << 18
STEP: Final = 512  # rows that get memory at once
_COPY: Final = 6  # cells: number, four values, check word
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_A, _B, _C, _D, _E, _F, _G = (
    0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD,
    0xC4CEB9FE1A85EC53, 0xA0761D6478BD642F,
)  # fmt: skip
_NAME: Final = Struct("=QQ")
_FILE_BYTES: Final = 8 * (HEADER_CELLS + ROWS * ROW_CELLS)


class RowValues(NamedTuple):
    """Holds the four values of a row; their meaning is that of its writer."""

    a: int
    b: int
    c: int
    d: int


class KeptRow:
    """One row that this process writes to. `former`: what it held when it was found, None for a new one."""

    __slots__ = ("_at", "_cells", "_low", "_number", "former")

    def __init__(self, cells: Any, at: int, low: int, number: int, former: RowValues | None) -> None:  # noqa: ANN401
        self._cells = cells
        self._at = at
        self._low = low
        self._number = number
        self.former = former

    def write(self, a: int, b: int = 0, c: int = 0, d: int = 0) -> None:
        """Replace all four values, each a u64."""
        cells = self._cells
        self._number = number = self._number + 1
        at = self._at + 2 + _COPY * (number & 1)
        cells[at + 5] = 0
        cells[at] = number
        cells[at + 1] = a
        cells[at + 2] = b
        cells[at + 3] = c
        cells[at + 4] = d
        cells[at + 5] = check_word(self._low, number, a, b, c, d)


def check_word(low: int, number: int, a: int, b: int, c: int, d: int) -> int:
    """Return the check word of a copy; it is never 0. `low`: first cell of the name."""
    word = (low * _A + number * _B + a * _C + b * _D + c * _E + d * _F + _G) & _MASK
    return word | 1


class KeptRows:
    """All rows of one worker, in a file; made by `open`."""

    def __init__(self, path: Path, fd: int, area: mmap.mmap) -> None:
        self.path = path
        self._fd = fd
        self._area = area
        self._whole = memoryview(area)
        self._cells = self._whole.cast("Q")
        self._free: list[int] = []
        self._found: dict[bytes, KeptRow] = {}  # of the former incarnation, not asked for yet
        self._open: dict[bytes, KeptRow] = {}
        self._allocated = 0

    @classmethod
    def open(cls, path: Path) -> KeptRows:
        """Open the rows of the former incarnation, or make the file.

        Raises: ResourceError when there is no room; DecodeError when what is there cannot be believed.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise ResourceError(f"cannot open {path}: {e.strerror}", remedy=remedy_of(e.errno)) from e
        try:
            size = os.fstat(fd).st_size
            if size not in (0, _FILE_BYTES):
                raise DecodeError(str(path), f"{size} bytes")
            os.ftruncate(fd, _FILE_BYTES)
            os.posix_fallocate(fd, 0, 8 * (HEADER_CELLS + STEP * ROW_CELLS))
            area = mmap.mmap(fd, _FILE_BYTES)
        except (OSError, DecodeError) as e:
            os.close(fd)
            if isinstance(e, DecodeError):
                raise
            raise ResourceError(f"no room for {path}: {e.strerror}", remedy=remedy_of(e.errno)) from e
        made = cls(path, fd, area)
        if size == 0:
            made._begin()
        else:
            try:
                made._read()
            except DecodeError:
                made.close()
                raise
        return made

    def _begin(self) -> None:
        cells = self._cells
        cells[1], cells[2] = LAYOUT_VERSION, 0
        cells[0] = MAGIC
        self._allocated = STEP

    def _read(self) -> None:
        """Find the rows of the former incarnation. Raises: DecodeError."""
        cells = self._cells
        if cells[0] != MAGIC or cells[1] != LAYOUT_VERSION or cells[2] > ROWS:
            raise DecodeError(str(self.path), f"layout {cells[1]} with {cells[2]} rows, not layout {LAYOUT_VERSION}")
        self._allocated = max(STEP, -(-cells[2] // STEP) * STEP)
        for number in range(cells[2]):
            at = HEADER_CELLS + number * ROW_CELLS
            low = cells[at]
            if not low:
                self._free.append(at)
                continue
            whole = []
            for copy in (at + 2, at + 2 + _COPY):
                written, *values, check = cells[copy : copy + _COPY].tolist()
                if check and check == check_word(low ^ cells[at + 1], written, *values):
                    whole.append((written, RowValues(*values)))
            if not whole:
                raise DecodeError(str(self.path), f"row {number} is not whole")
            written, former = max(whole)
            name = _NAME.pack(low, cells[at + 1])
            self._found[name] = KeptRow(cells, at, low ^ cells[at + 1], written, former)

    def row(self, kind: bytes, name: bytes) -> KeptRow | None:
        """Return the row of that kind and name, that of the former incarnation if it had one; None without memory."""
        key = _key(kind, name)
        found = self._open.get(key)
        if found is None:
            found = self._found.pop(key, None) or self._make(key)
            if found is not None:
                self._open[key] = found
        return found

    def former(self, kind: bytes, name: bytes) -> RowValues | None:
        """Return what the former incarnation left under that name, while nobody has asked for the row."""
        found = self._found.get(_key(kind, name))
        return None if found is None else found.former

    def _make(self, key: bytes) -> KeptRow | None:
        cells = self._cells
        if self._free:
            at = self._free.pop()
        else:
            number = cells[2]
            if number >= self._allocated and not self._allocate():
                return None
            at = HEADER_CELLS + number * ROW_CELLS
            cells[2] = number + 1
        low, high = _NAME.unpack(key)
        row = KeptRow(cells, at, low ^ high, 0, None)
        row.write(0)
        row.write(0)  # nothing of a name before is left
        cells[at + 1] = high
        cells[at] = low
        return row

    def _allocate(self) -> bool:
        """Get memory for more rows; False when there is none."""
        if self._allocated >= ROWS:
            return False
        first = 8 * (HEADER_CELLS + self._allocated * ROW_CELLS)
        try:
            os.posix_fallocate(self._fd, first, 8 * STEP * ROW_CELLS)
        except OSError:
            return False
        self._allocated += STEP
        return True

    def free(self, kind: bytes, name: bytes) -> None:
        """Forget a row; it may be unknown."""
        key = _key(kind, name)
        row = self._open.pop(key, None) or self._found.pop(key, None)
        if row is not None:
            self._release(row)

    def free_rest(self) -> None:
        """Forget what the former incarnation left and nobody has asked for."""
        for row in self._found.values():
            self._release(row)
        self._found.clear()

    def _release(self, row: KeptRow) -> None:
        self._cells[row._at] = 0
        self._free.append(row._at)

    def close(self) -> None:
        """Let go of the file. Rows must not be written to any more; the memory goes with the last of them."""
        self._found.clear()
        self._open.clear()
        with contextlib.suppress(BufferError):
            self._cells.release()
            self._whole.release()
            self._area.close()
        os.close(self._fd)


def _key(kind: bytes, name: bytes) -> bytes:
    """Make the name in the file. Its first cell is never 0."""
    digest = blake2b(kind + b"\0" + name, digest_size=16).digest()
    return digest if any(digest[:8]) else b"\1" + digest[1:]
