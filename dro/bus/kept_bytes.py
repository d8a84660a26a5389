"""Bytes of a worker that outlive its process: what one incarnation has put there, the next one gets.

They are in memory that has no name, so nobody but the parent, which holds it, can remove it. Each put goes where the
former one is not, and counts when its header is written, which is one write of one page: whoever is killed in the
middle of a put leaves what was put before. Two headers take turns; a header is place, length and CRC of the content,
the number of the put, and a CRC of the header.
"""

from __future__ import annotations

import os
import weakref
import zlib
from struct import Struct
from typing import Final, NamedTuple

from dro.errors import ResourceError
from dro.os_errors import remedy_of

_HEADER: Final = Struct("=QQIQI")
_FIRST: Final = 2 * _HEADER.size


class _Header(NamedTuple):
    at: int
    length: int
    crc: int
    number: int


class KeptBytes:
    """Made by the parent; `put` and `get` by the worker of the moment."""

    def __init__(self, fd: int = -1) -> None:
        """`fd`: of such memory that is there. Raises: ResourceError."""
        try:
            self._fd = fd if fd >= 0 else os.memfd_create("dro-kept")
        except OSError as e:
            what = f"cannot make memory for a worker's successor: {e.strerror}"
            raise ResourceError(what, remedy=remedy_of(e.errno)) from e
        self.close = weakref.finalize(self, os.close, self._fd)
        """Closes this process's hold on it."""

    def fileno(self) -> int:
        return self._fd

    def put(self, data: bytes) -> None:
        """Replace what is there. Raises: OSError when there is no memory for it; what is there stays."""
        last = self._last() or _Header(_FIRST, 0, 0, 0)
        at = _FIRST if _FIRST + len(data) <= last.at else last.at + last.length
        if os.pwrite(self._fd, data, at) == len(data):
            fields = _HEADER.pack(at, len(data), zlib.crc32(data), last.number + 1, 0)[:-4]
            header = fields + zlib.crc32(fields).to_bytes(4, "little")
            os.pwrite(self._fd, header, last.number % 2 * _HEADER.size)
            os.ftruncate(self._fd, max(at + len(data), last.at + last.length))

    def get(self) -> bytes | None:
        """Return what was put last, or None."""
        header = self._last()
        if header is None:
            return None
        data = os.pread(self._fd, header.length, header.at)
        return data if len(data) == header.length and zlib.crc32(data) == header.crc else None

    def _last(self) -> _Header | None:
        found = []
        for place in (0, _HEADER.size):
            raw = os.pread(self._fd, _HEADER.size, place)
            if len(raw) == _HEADER.size and zlib.crc32(raw[:-4]) == int.from_bytes(raw[-4:], "little"):
                found.append(_Header(*_HEADER.unpack(raw)[:4]))
        return max(found, key=lambda header: header.number, default=None)
