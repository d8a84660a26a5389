"""What outlives a process, where the test is the process: sockets by name, and rows in a file."""

from __future__ import annotations

import socket
from pathlib import Path

from dro.kept.gate import Gate
from dro.kept.rows import KeptRows
from dro.kept.store import Kept


class Killed(Exception):
    """The process ends here."""


class HeldSockets:
    """Holds duplicates as a parent does; implements `SocketHolder`. `former`: what the process before has left."""

    def __init__(self, former: dict[bytes, socket.socket] | None = None) -> None:
        self.held: dict[bytes, socket.socket] = {} if former is None else former
        self._untaken = dict(self.held)
        self.taken: list[socket.socket] = []

    def keep(self, name: bytes, sock: socket.socket) -> None:
        self._untaken.pop(name, None)
        self.drop(name)
        self.held[name] = sock.dup()

    def drop(self, name: bytes) -> None:
        self._untaken.pop(name, None)
        if (sock := self.held.pop(name, None)) is not None:
            sock.close()

    def take(self, name: bytes) -> socket.socket | None:
        sock = self._untaken.pop(name, None)
        if sock is None:
            return None
        taken = sock.dup()
        taken.setblocking(False)
        self.taken.append(taken)
        return taken

    def names(self) -> list[bytes]:
        return list(self._untaken)


class Lives:
    """Gives one process after the other what the former one has left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows"
        self.sockets = HeldSockets()
        self.kept = Kept(self.sockets, KeptRows.open(self._path), folder)

    def next_life(self, *, is_open: bool = True) -> Kept:
        """Begin the next one, whose gate is open or not."""
        self._close_rows()
        self.sockets = HeldSockets(self.sockets.held)
        self.kept = Kept(self.sockets, KeptRows.open(self._path), self._path.parent, Gate(is_open=is_open))
        return self.kept

    def clean_life(self) -> Kept:
        """Begin the next one with nothing."""
        for name in list(self.sockets.held):
            self.sockets.drop(name)
        self._close_rows()
        self._path.unlink()
        self.sockets = HeldSockets()
        self.kept = Kept(self.sockets, KeptRows.open(self._path), self._path.parent)
        return self.kept

    def _close_rows(self) -> None:
        if self.kept.rows is not None:
            self.kept.rows.close()

    def close(self) -> None:
        self._close_rows()
        for name in list(self.sockets.held):
            self.sockets.drop(name)
