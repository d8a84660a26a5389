"""Values by number in files that outlive the process which writes them: each change is appended before it counts.

The values are in `FILES` files by their number, so that no file is long when it is written anew, which is done when
most of it is outdated. A record that was not written whole, the last of its file, is as if it had not been written.
When there is no room for a change all is removed: a part would be taken for all.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from dro.kept.memory import leaves_enough

FILES: Final = 16
SPARE_BYTES: Final = 64 << 10
"""Outdated bytes that a file may have, however short it is."""
_HEAD: Final = Struct("=QII")  # number, bytes of the value (0: there is none any more), check sum


class KeptValues:
    """The values of one name in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        """Read what the former process has left. `former`: its values; `is_whole`: and these are all."""
        self._paths = [folder / f"{name}.{file}" for file in range(FILES)]
        self._mark = folder / name  # is there while all is in the files
        self._fds: list[int] = []
        self._room = [0] * FILES  # bytes until a file is written anew
        self.former: dict[int, bytes] = {}
        self._unchanged: dict[int, int] = {}  # hashes of those that are noted, and not put since
        self.is_whole = self._mark.exists()
        try:
            self._mark.touch(0o600)
            for file in range(FILES):
                self._fds.append(self._open(file))
                values = self._read(file) if self.is_whole else {}
                self.former |= values
                self._write(file, values)
            self._unchanged = {number: hash(value) for number, value in self.former.items()}
        except OSError:
            self._give_up()

    def _open(self, file: int) -> int:
        return os.open(self._paths[file], os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _read(self, file: int) -> dict[int, bytes]:
        content = self._paths[file].read_bytes()
        values: dict[int, bytes] = {}
        at = 0
        while at + _HEAD.size <= len(content):
            number, size, check = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            value = content[at : at + size]
            if len(value) < size or crc32(value, number & 0xFFFF_FFFF) != check:
                break
            at += size
            values.pop(number, None)
            if value:
                values[number] = value
        return values

    def _write(self, file: int, values: dict[int, bytes]) -> None:
        """Write a file anew: killed in the middle, the process leaves the old one. Raises: OSError."""
        path = self._paths[file]
        made = path.with_suffix(path.suffix + ".new")
        content = b"".join([_record(number, value) for number, value in values.items()])
        if not leaves_enough(self._fds[file], len(content)):
            raise OSError
        made.write_bytes(content)
        made.chmod(0o600)
        made.replace(path)
        os.close(self._fds[file])
        self._fds[file] = self._open(file)
        self._room[file] = SPARE_BYTES + len(content)

    def put(self, number: int, value: bytes) -> None:
        """Note the value of a number; b"": it has none any more."""
        if not self._fds or self._unchanged.pop(number, None) == hash(value):
            return
        file, record = number % FILES, _record(number, value)
        try:
            if not leaves_enough(self._fds[file], len(record)) or os.write(self._fds[file], record) < len(record):
                raise OSError
            self._room[file] -= len(record)
            if self._room[file] < 0:
                self._write(file, self._read(file))
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Remove all, the mark first."""
        for path in (self._mark, *self._paths):
            path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Note nothing any more."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def _record(number: int, value: bytes) -> bytes:
    return _HEAD.pack(number, len(value), crc32(value, number & 0xFFFF_FFFF)) + value
