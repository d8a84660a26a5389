"""Keeps what a peer portal leaves of its link, so that its next process is the same one for the companion.

Who it is and who the companion is (context instances of HELLO), up to where the companion's data was handed up, and
which numbers sources have. The data of this side is in a log (`portals.peer.stream.link_log`).
"""

from __future__ import annotations

import random
from struct import Struct
from typing import Final

from dro.kept.rows import KeptRow, KeptRows
from dro.proto.peerlink.sources import SourceNumbers

_LINK: Final = b"link"
"""Kind of the row: own context instance, that of the companion, position of its data, the next number of a source."""
_NUMBER: Final = b"srcidx"
"""Kind of the rows of sources, by OTID: the number of each."""
_INSTANCE: Final = Struct("!Q")


class KeptLink(SourceNumbers):
    """The row of the link, and those of numbers. `rows` is None where nothing outlives the process."""

    def __init__(self, rows: KeptRows | None) -> None:
        self._rows = rows
        self._row: KeptRow | None = rows.row(_LINK, b"") if rows is not None else None
        former = self._row.former if self._row is not None else None
        self.goes_on = former is not None and former.a != 0
        """The former process has left its link."""
        self.instance = random.Random().randbytes(_INSTANCE.size)
        """By which the companion knows this process."""
        self.companion = b""
        """The context instance of a companion that confirms data."""
        self.position = 0
        super().__init__()
        if former is not None:
            self._next = max(1, former.d)
            if self.goes_on:
                self.instance = _INSTANCE.pack(former.a)
                self.companion = _INSTANCE.pack(former.b) if former.b else b""
                self.position = former.c
        self._write()

    def _write(self) -> None:
        if self._row is not None:
            companion = _INSTANCE.unpack(self.companion)[0] if len(self.companion) == _INSTANCE.size else 0
            self._row.write(_INSTANCE.unpack(self.instance)[0], companion, self.position, self._next)

    def note(self, companion: bytes, position: int) -> None:
        """Note up to where the data of that companion was handed up, once the siblings know of it."""
        if position != self.position or companion != self.companion:
            self.companion, self.position = companion, position
            self._write()

    def forget(self) -> None:
        """Leave nothing: the next process is another one for the companion."""
        row, self._row = self._row, None
        if row is not None:
            row.write(0, 0, 0, self._next)

    def begin_anew(self) -> None:
        """Be another process than the former one, of which something is missing."""
        self.goes_on, self.companion, self.position = False, b"", 0
        self.instance = random.Random().randbytes(_INSTANCE.size)
        self._write()

    # numbers of sources

    def take(self, otid: bytes) -> int:
        row = self._rows.row(_NUMBER, otid) if self._rows is not None else None
        if row is not None and row.former is not None and 0 < row.former.a < self._next:
            number, row.former = row.former.a, None
            return number
        number = super().take(otid)
        self._write()
        if row is not None:
            row.write(number)
        return number

    def free(self, otid: bytes) -> None:
        if self._rows is not None:
            self._rows.free(_NUMBER, otid)
