"""A record of payloads in the order in which they were sent or delivered, so that two ends can be compared."""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import BinaryIO, Final

from dro.errors import ResourceError

_LENGTH: Final = Struct("!I")
_BUFFER: Final = 1 << 16


class PayloadRecord:
    """SHA-256 over the payloads back to back and, with a file, each payload behind its length (4 bytes, big endian).

    Raises: ResourceError when the file cannot be made; `add` and `close` when it cannot be written.
    """

    def __init__(self, path: str | None = None) -> None:
        self._hash = hashlib.sha256()
        self._path = path
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = open(path, "wb", buffering=_BUFFER)  # noqa: SIM115 - closed by close()
            except OSError as e:
                raise self._refused(e) from e

    def add(self, payload: bytes) -> None:
        self._hash.update(payload)
        if self._file is not None:
            try:
                self._file.write(_LENGTH.pack(len(payload)))
                self._file.write(payload)
            except OSError as e:
                raise self._refused(e) from e

    def close(self) -> None:
        """Write what is buffered; nothing can be added afterwards."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as e:
                raise self._refused(e) from e

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _refused(self, e: OSError) -> ResourceError:
        return ResourceError(f"cannot write {self._path}: {e.strerror}", remedy="name another --payload-file")
