"""Keeps what the UM library counts in a portal, a row for each context and transport session, in shared memory.

One process writes, anybody reads, also when the writer is dead; the next process of the portal goes on with the rows
of objects that it has as well, so no counter falls. Layout of the file, all u64 in native order: a header (magic,
layout version, rows in use), then rows: how often it was written, kind and flags (0: free), object id, instance,
domain id, length of the source string, the source string, and two copies of the values. A writer fills the older copy
and then adds one to the first cell, so whoever is killed in between leaves what was there. The file is sparse; memory
for rows is allocated before it is used, and a file has its header before it has its name.
"""

from __future__ import annotations

import mmap
import os
import secrets
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from dro.errors import ResourceError
from dro.metrics.library import CONTEXT, EVENT_QUEUE, RECEIVER, SOURCE, library_figures
from dro.os_errors import remedy_of

LIBRARY: Final = "library"
"""Begins the names of such files; the index of the worker follows."""
MAGIC: Final = int.from_bytes(b"DROLIBR\x00", "little")
_FIGURES: Final = [(key, [(f.name, f.behaviour) for f in figures]) for key, figures in library_figures().items()]
LAYOUT_VERSION: Final = 2 | crc32(repr(_FIGURES).encode()) << 8
"""Another table of figures is another layout: the rows then begin anew."""
HEADER_CELLS: Final = 8
VALUES: Final = 64
SOURCE_BYTES: Final = 128
ROWS_MAX: Final = 1 << 16
STEP: Final = 64  # rows that get memory at once
_WRITTEN, _KIND, _OBJECT, _INSTANCE, _DOMAIN, _LENGTH, _SOURCE = range(7)
_COPIES: Final = _SOURCE + SOURCE_BYTES // 8
ROW_CELLS: Final = _COPIES + 2 * VALUES + 2
_FILE_BYTES: Final = 8 * (HEADER_CELLS + ROWS_MAX * ROW_CELLS)
_TRIES: Final = 100
_OBJECTS: Final = (SOURCE, RECEIVER, CONTEXT, EVENT_QUEUE)  # this and what follows: never another order
SENDING, RECEIVING, QUEUE = "src_ctx", "rcv_ctx", "event_queue"
PARTS: Final = (SENDING, RECEIVING, QUEUE)
"""Ends of the application ids of a portal."""
_TRANSPORTS: Final = ("", "tcp", "lbtrm", "lbtru", "lbtipc")  # likewise
_MIM: Final = 1 << 24
_U64: Final = (1 << 64) - 1


class LibraryKey(NamedTuple):
    """Names what a row is about, in this process and the next; `source` of a session, without a topic index."""

    kind: str
    part: str
    transport: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One object; `values` by the names of the protobuf form, as in `lbtrm.msgs_sent`."""

    kind: str
    part: str
    transport: str
    is_mim: bool
    object_id: int
    context_instance: bytes
    domain_id: int
    source: str
    values: Mapping[str, int]

    @property
    def key(self) -> LibraryKey:
        return LibraryKey(self.kind, self.part, self.transport, self.source)


class LibraryRows:
    """The rows that a portal writes."""

    def __init__(self, fd: int, area: mmap.mmap) -> None:
        self._fd = fd
        self._area = area
        self._cells: Any = memoryview(area).cast("Q")
        self._former = {row.key: (at, row) for at, row in _rows(self._cells)}  # that this process has not shown yet
        self._shown: dict[LibraryKey, tuple[int, tuple[int, ...]]] = {}  # where it is, and what was there before
        taken = {at for at, _ in self._former.values()}
        count = self._cells[2]
        every = range(HEADER_CELLS, HEADER_CELLS + count * ROW_CELLS, ROW_CELLS)
        self._free: list[int] = []
        for at in every:
            if at not in taken:
                self._release(at)
        self._allocated = -(-count // STEP) * STEP
        self._left_out: set[LibraryKey] = set()  # that are there, and there is no room for
        self.not_shown = 0
        """Objects so far that there was no room for."""

    @classmethod
    def open(cls, path: Path) -> LibraryRows:
        """Open what a former process has left, or make the file. Raises: ResourceError."""
        try:
            try:
                return cls(*_mapped(path))
            except (FileNotFoundError, _NotOurs):
                new = path.with_name(f"{path.name}.new")
                new.unlink(missing_ok=True)
                _create(new)
                new.replace(path)
                return cls(*_mapped(path))
        except OSError as e:
            raise ResourceError(f"no room for {path}: {e.strerror}", remedy=remedy_of(e.errno)) from e

    def show(
        self, key: LibraryKey, values: Sequence[int], *, instance: bytes, domain_id: int, is_mim: bool = False
    ) -> None:
        """Write the values of an object, since this process began, in the order of `library_figures`."""
        figures = library_figures()[key.kind, key.transport]
        place = self._shown.get(key) or self._claim(key, is_mim=is_mim)
        if place is None:
            self.not_shown += key not in self._left_out
            self._left_out.add(key)
            return
        at, base = place
        cells = self._cells
        cells[at + _INSTANCE] = int.from_bytes(instance[:8].ljust(8, b"\0"), "little")
        cells[at + _DOMAIN] = domain_id
        shown = [figure.after(former, new) & _U64 for figure, former, new in zip(figures, base, values, strict=True)]
        written = (cells[at + _WRITTEN] + 1) & _U64
        copy = at + _COPIES + VALUES * (written & 1)
        cells[copy : copy + len(shown)] = array("Q", shown)
        cells[at + _WRITTEN] = written

    def free(self, key: LibraryKey) -> None:
        """Take out an object that is not there any more."""
        self._left_out.discard(key)
        if (place := self._shown.pop(key, None)) is not None:
            self._release(place[0])

    def forget_former(self) -> None:
        """Take out what the former process has left and this one has not shown."""
        for at, _ in self._former.values():
            self._release(at)
        self._former.clear()

    def _claim(self, key: LibraryKey, *, is_mim: bool) -> tuple[int, tuple[int, ...]] | None:
        """Find the row of an object that is shown first, and what is in it; None when there is no room."""
        figures = library_figures()[key.kind, key.transport]
        if (known := self._former.pop(key, None)) is not None:
            at, row = known
            base = tuple([row.values[_path(key.transport, figure.name)] for figure in figures])
        else:
            source = key.source.encode()
            free = self._take_row() if len(source) <= SOURCE_BYTES else None
            if free is None:
                return None
            at, base = free, tuple([figure.at_first for figure in figures])
            self._fill(at, key, source, base, is_mim=is_mim)
        self._shown[key] = at, base
        return at, base

    def _fill(self, at: int, key: LibraryKey, source: bytes, base: Sequence[int], *, is_mim: bool) -> None:
        """Write all of a free row, its kind last: then it is seen."""
        cells = self._cells
        kind = 1 + _OBJECTS.index(key.kind) + (PARTS.index(key.part) << 8) + (_TRANSPORTS.index(key.transport) << 16)
        head = [secrets.randbits(63) | 1, 0, 0, len(source)]
        cells[at + _OBJECT : at + _SOURCE] = array("Q", head)
        cells[at + _SOURCE : at + _COPIES] = memoryview(source.ljust(SOURCE_BYTES, b"\0")).cast("Q")
        copy = array("Q", [*base, *[0] * (VALUES - len(base))])
        cells[at + _COPIES : at + _COPIES + 2 * VALUES] = copy + copy
        cells[at + _WRITTEN] = (cells[at + _WRITTEN] + 1) & _U64
        cells[at + _KIND] = kind | (_MIM if is_mim else 0)

    def _take_row(self) -> int | None:
        if self._free:
            return self._free.pop()
        cells = self._cells
        count = cells[2]
        if count >= self._allocated:
            if self._allocated >= ROWS_MAX:
                return None
            try:
                first = 8 * (HEADER_CELLS + self._allocated * ROW_CELLS)
                os.posix_fallocate(self._fd, first, 8 * STEP * ROW_CELLS)
            except OSError:
                return None
            self._allocated += STEP
        cells[2] = count + 1
        return HEADER_CELLS + int(count) * ROW_CELLS

    def _release(self, at: int) -> None:
        self._cells[at + _KIND] = 0
        self._cells[at + _WRITTEN] = (self._cells[at + _WRITTEN] + 1) & _U64
        self._free.append(at)

    def close(self) -> None:
        """Let go of the file; rows stay for others."""
        self._cells.release()
        self._area.close()
        os.close(self._fd)


def read_library(path: Path) -> list[LibraryRow]:
    """Read all rows, also while they are written. Raises: ResourceError when it is no such file."""
    try:
        fd, area = _mapped(path, readonly=True)
    except _NotOurs as e:
        raise ResourceError(f"{path} has no rows of the UM library in the layout of this program") from e
    except OSError as e:
        raise ResourceError(f"cannot open {path}: {e.strerror}") from e
    os.close(fd)
    with area, memoryview(area) as whole, whole.cast("Q") as cells:
        return [row for _, row in _rows(cells)]


class _NotOurs(Exception):
    """Says that a file has another content or layout."""


def _mapped(path: Path, *, readonly: bool = False) -> tuple[int, mmap.mmap]:
    """Open a file that has the layout of now. Raises: OSError, _NotOurs."""
    fd = os.open(path, (os.O_RDONLY if readonly else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_size != _FILE_BYTES:
            raise _NotOurs
        area = mmap.mmap(fd, _FILE_BYTES, access=mmap.ACCESS_READ if readonly else mmap.ACCESS_WRITE)
        with memoryview(area) as whole, whole.cast("Q") as cells:
            is_ours = cells[0] == MAGIC and cells[1] == LAYOUT_VERSION and cells[2] <= ROWS_MAX
        if not is_ours:
            area.close()
            raise _NotOurs
    except BaseException:
        os.close(fd)
        raise
    return fd, area


def _create(path: Path) -> None:
    """Make a file without rows. Raises: OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, _FILE_BYTES)
        os.posix_fallocate(fd, 0, 8 * HEADER_CELLS)
        os.pwrite(fd, array("Q", [MAGIC, LAYOUT_VERSION, 0]).tobytes(), 0)
    finally:
        os.close(fd)


def _rows(cells: memoryview) -> list[tuple[int, LibraryRow]]:
    places = range(HEADER_CELLS, HEADER_CELLS + cells[2] * ROW_CELLS, ROW_CELLS)
    return [(at, row) for at in places if (row := _row(cells, at)) is not None]


def _row(cells: memoryview, at: int) -> LibraryRow | None:
    """Read one; None if it is free, or is being taken."""
    for _ in range(_TRIES):
        written, kind = cells[at + _WRITTEN], cells[at + _KIND]
        if not kind:
            return None
        copy = at + _COPIES + VALUES * (written & 1)
        head, values = cells[at : at + _COPIES].tolist(), cells[copy : copy + VALUES].tolist()
        if cells[at + _WRITTEN] == written and cells[at + _KIND] == kind:
            return _row_of(head, values)
    return None


def _row_of(head: Sequence[int], values: Sequence[int]) -> LibraryRow | None:
    number, part, transport = head[_KIND] & 0xFF, head[_KIND] >> 8 & 0xFF, head[_KIND] >> 16 & 0xFF
    if not 1 <= number <= len(_OBJECTS) or part >= len(PARTS) or transport >= len(_TRANSPORTS):
        return None
    kind, name = _OBJECTS[number - 1], _TRANSPORTS[transport]
    figures = library_figures().get((kind, name))
    if figures is None or head[_LENGTH] > SOURCE_BYTES:
        return None
    raw = b"".join(cell.to_bytes(8, "little") for cell in head[_SOURCE:_COPIES])[: head[_LENGTH]]
    return LibraryRow(
        kind, PARTS[part], name, bool(head[_KIND] & _MIM), head[_OBJECT], head[_INSTANCE].to_bytes(8, "little"),
        head[_DOMAIN], raw.decode(errors="replace"),
        {_path(name, figure.name): value for figure, value in zip(figures, values, strict=False)},
    )  # fmt: skip


def _path(transport: str, name: str) -> str:
    return f"{transport}.{name}" if transport else name
