"""The control socket between the parent and one worker: whole messages, both ways, from the fork on.

A SOCK_SEQPACKET pair keeps message boundaries and reports the other side's death at once. Sending never blocks: what
the kernel does not accept is queued here.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from dro.bus.codec import Codec, Record
from dro.errors import DecodeError, LocalProtocolError, ResourceError
from dro.loop import Loop

MAX_PACKET: Final = 128 << 10
MAX_WAITING: Final = 16_384  # messages
_PER_TURN: Final = 64

Out = TypeVar("Out", bound=Record)
In = TypeVar("In", bound=Record)


def control_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends, close-on-exec and non-blocking."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setblocking(False)
    theirs.setblocking(False)
    return mine, theirs


class ControlSocket(Generic[Out, In]):
    """One end on a loop. `on_message` gets what arrives; `on_closed` is called once when the other end is gone."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        sends: Codec[Out],
        hears: Codec[In],
        on_message: Callable[[In], object],
        on_closed: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._sends = sends
        self._hears = hears
        self._on_message = on_message
        self._on_closed = on_closed
        self._waiting: deque[bytes] = deque()
        self._open = True
        loop.add_reader(sock, self._take)

    def send(self, message: Out) -> None:
        """Send a message. Raises: ResourceError when thousands are waiting: the other side does not listen."""
        packet = self._sends.encode(message)
        if len(packet) > MAX_PACKET:
            raise LocalProtocolError(f"{type(message).__name__} takes {len(packet)} bytes")
        if not self._open:
            return
        if len(self._waiting) >= MAX_WAITING:
            raise ResourceError("the control socket is full")
        self._waiting.append(packet)
        if len(self._waiting) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._sock.send(self._waiting[0])
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._on_writable)
                return
            except OSError:  # gone; the reader finds out and says so
                self._waiting.clear()
                return
            self._waiting.popleft()

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._sock)
        self._flush()

    def _take(self) -> bool:
        for _ in range(_PER_TURN):
            if not self._open:
                return False
            try:
                packet = self._sock.recv(MAX_PACKET)
            except BlockingIOError:
                return False
            except OSError:
                packet = b""
            message = self._decoded(packet)
            if message is None:
                self.close()
                self._on_closed()
                return False
            self._on_message(message)
        return True

    def _decoded(self, packet: bytes) -> In | None:
        """Decode a packet; None at the end, and from a side with another language: that one counts as gone, too."""
        try:
            return self._hears.decode(packet) if packet else None
        except DecodeError:
            return None

    def drain(self) -> None:
        """Hear everything that is there; for the last words of a process that has ended."""
        while self._take():
            pass

    def close(self) -> None:
        """Leave the loop and close the descriptor; idempotent."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._sock)
                self._loop.remove_writer(self._sock)
            self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def is_idle(self) -> bool:
        """Nothing waits here to be sent."""
        return not self._waiting

    def close_inherited(self) -> None:
        """Close the descriptor in a forked child, whose loop is not this one."""
        self._sock.close()
