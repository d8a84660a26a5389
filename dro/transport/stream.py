"""Connections as streams of bytes: what lies below the transports that use TCP, and below a peer link.

`PlainStream` is TCP itself. Encryption and compression are other implementations of `ByteStream`; nobody above them
knows which it is. Every call returns at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dro.loop import Callback, Loop
from dro.transport import sockets

Piece = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StreamEvents:
    """What a stream reports: `on_open` or `on_lost` once, the others between `on_open` and its close.

    `on_readable` is called by the loop, and again in the same turn while it returns True. `on_writable` follows each
    BlockingIOError of `send_pieces`.
    """

    on_open: Callable[[], object]
    on_lost: Callable[[], object]
    on_readable: Callback
    on_writable: Callable[[], object]


def nothing() -> None:
    """Do nothing, for an event that leads to nothing."""


NO_EVENTS: Final = StreamEvents(nothing, nothing, nothing, nothing)
"""Of a closed stream: it refers to nobody who could refer to it."""


class ByteStream(Protocol):
    """One connection, which was accepted, or is being made."""

    def start(self, events: StreamEvents) -> None:
        """Begin to report events, some maybe from within; called once."""

    def take_over(self, events: StreamEvents) -> None:
        """Report to these from now on, of an open stream; `on_open` is not called again.

        What the stream holds already makes nothing readable: the caller reads once by itself.
        """

    def read_into(self, view: memoryview) -> int:
        """Read bytes; how many, 0 at the end of the stream. There is nothing more for now when `view` is not full.

        Raises: BlockingIOError when there is nothing, OSError when it broke.
        """

    def send_pieces(self, pieces: Sequence[Piece]) -> int:
        """Send; how many bytes were taken. Raises: BlockingIOError when none, OSError when it broke."""

    def backlog(self) -> int:
        """Count the bytes that were taken and have not reached the other machine yet."""

    @property
    def holds(self) -> int:
        """How many bytes were taken that the system has not got: a close would lose them."""

    def close(self) -> None:
        """No event follows."""


def joined(pieces: Sequence[Piece], limit: int) -> bytes:
    """The first bytes of the pieces, `limit` at most."""
    taken = []
    for piece in pieces:
        taken.append(piece[:limit])
        limit -= len(taken[-1])
        if not limit:
            break
    return b"".join(taken)


StreamMaker = Callable[[Loop, socket.socket, bool], ByteStream]
"""Of a socket that does not block. True: it was accepted, else it is being connected."""


class PlainStream:
    """TCP as it is."""

    def __init__(self, loop: Loop, sock: socket.socket, is_accepted: bool) -> None:
        self.sock = sock
        self._loop = loop
        self._is_accepted = is_accepted
        self._events = NO_EVENTS
        self.failure = ""
        """Why it was lost before it was open, where that is known."""
        self.is_refused = False
        """Both ends were there then, and did not agree."""

    def start(self, events: StreamEvents) -> None:
        self._events = events
        if self._is_accepted:
            self._open()
        else:
            self._loop.add_writer(self.sock, self._on_connected)

    def _on_connected(self) -> None:
        self._loop.remove_writer(self.sock)
        if error := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.failure = os.strerror(error)
            self._events.on_lost()
        else:
            self._open()

    def _open(self) -> None:
        self._loop.add_reader(self.sock, self._events.on_readable)
        self._events.on_open()

    def take_over(self, events: StreamEvents) -> None:
        self._events = events
        self._loop.add_reader(self.sock, events.on_readable)

    def read_into(self, view: memoryview) -> int:
        return self.sock.recv_into(view)

    def send_pieces(self, pieces: Sequence[Piece]) -> int:
        try:
            return self.sock.sendmsg(pieces) if len(pieces) > 1 else self.sock.send(pieces[0])
        except BlockingIOError:
            self._loop.add_writer(self.sock, self._on_writable)
            raise

    def _on_writable(self) -> None:
        self._loop.remove_writer(self.sock)
        self._events.on_writable()

    @property
    def local(self) -> str:
        """Address and port of this side; empty when the connection is gone."""
        try:
            host, port = self.sock.getsockname()
        except OSError:
            return ""
        return f"{host}:{port}"

    def backlog(self) -> int:
        return self.holds + sockets.unacknowledged_bytes(self.sock)

    @property
    def holds(self) -> int:
        return 0

    def close(self) -> None:
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        self.sock.close()
        self._events = NO_EVENTS
