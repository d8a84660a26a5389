"""Keeps what was taken until it is in Parquet files: records in a file, each whole or not there, synced when told so.

A record is its length, the CRC-32 of its bytes, and the bytes. What a crash left behind a last good record was never
promised to anybody, so a reader ends there.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

_HEADER: Final = Struct("<II")
MAX_RECORD: Final = 64 << 20


class Journal:
    """One file that is written by this process alone."""

    def __init__(self, path: Path) -> None:
        """Make the file; it must not exist. Raises: OSError."""
        self.path: Final = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self.size = 0

    def append(self, record: bytes) -> None:
        """Add a record, on the disk when this returns. Raises: OSError, and the file is as before."""
        data = memoryview(_HEADER.pack(len(record), zlib.crc32(record)) + record)
        try:
            at = self.size
            while data:
                written = os.pwrite(self._fd, data, at)
                data, at = data[written:], at + written
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size = at

    def close(self) -> None:
        """Close it; the file stays."""
        os.close(self._fd)


def records(path: Path) -> Iterator[bytes]:
    """Read all whole records from the start. Raises: OSError."""
    with path.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            record = file.read(length) if length <= MAX_RECORD else b""
            if len(record) != length or zlib.crc32(record) != checksum:
                return
            yield record
