"""What a host lends to those that leave something to the next incarnation of their process."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from dro.kept.gate import Gate
from dro.kept.rows import KeptRows

RECEIVING: Final = b"rcv "
"""Begins the names of sockets that sessions of sources of others are received on."""


class SocketHolder(Protocol):
    """Holds duplicates of sockets, by names of at most 200 bytes, so that they stay open when this process ends."""

    def keep(self, name: bytes, sock: socket.socket) -> None:
        """Hold a duplicate until `drop`; one under the same name is replaced."""

    def drop(self, name: bytes) -> None:
        """Close the duplicate; it belongs beside the close of the socket itself."""

    def take(self, name: bytes) -> socket.socket | None:
        """Return what the former incarnation had kept under that name, once."""

    def names(self) -> list[bytes]:
        """List what the former incarnation had kept and nobody has taken."""


class _NoSockets:
    """Keeps nothing."""

    def keep(self, name: bytes, sock: socket.socket) -> None:
        pass

    def drop(self, name: bytes) -> None:
        pass

    def take(self, name: bytes) -> socket.socket | None:
        return None

    def names(self) -> list[bytes]:
        return []


@dataclass(slots=True)
class TurnNumber:
    """Counts the turns in which something was sent; `former`: the last that the former incarnation has finished."""

    now: int = 1
    former: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """All that outlives a process: `rows` and `folder` (in shared memory, for logs) are None where nothing does.

    `gate`: nothing is read before it opens, where something goes on.
    """

    sockets: SocketHolder
    rows: KeptRows | None = None
    folder: Path | None = None
    gate: Gate = field(default_factory=Gate)
    turn: TurnNumber = field(default_factory=TurnNumber)


NOTHING_KEPT: Final = Kept(_NoSockets())
