"""A TCP relay between the two ends of a peer link, in threads of its own: it holds back, breaks off, and adds messages.

The link is plain, so what passes are LBMC messages, and what is added goes between two of them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

BUFFER_BYTES: Final = 1 << 16
READ_BYTES: Final = 1 << 16
LOOK_S: Final = 0.2
LOOPBACK: Final = "127.0.0.1"


class _Way:
    """What goes one way over one connection."""

    def __init__(self, come: socket.socket, to: socket.socket, may_pass: threading.Event) -> None:
        self._come, self._to, self._may_pass = come, to, may_pass
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def add(self, message: bytes) -> None:
        with self._lock:
            self._to.sendall(message)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._come.shutdown(socket.SHUT_RDWR)
        self._may_pass.set()
        self._thread.join()
        self._come.close()

    def _run(self) -> None:
        left = b""
        with contextlib.suppress(OSError):
            while self._may_pass.wait() and (data := self._come.recv(READ_BYTES)):
                whole = self._whole(data := left + data)
                left = data[whole:]
                with self._lock:
                    self._to.sendall(data[:whole])
        with contextlib.suppress(OSError):
            self._to.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _whole(data: bytes) -> int:
        """Bytes of the whole messages."""
        at = 0
        while len(data) - at >= 4:
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            if length > len(data) - at:
                break
            at += length
        return at


class LinkRelay:
    """Listens where the initiator connects to, and connects to where the acceptor listens; a context manager."""

    def __init__(self, port: int, to: int, *, listens: str = LOOPBACK, connects: str = LOOPBACK) -> None:
        """Address that it listens at, and the one that it connects from."""
        self._to = to
        self._connects = connects
        self._listener = socket.create_server((listens, port))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # of each connection
        self._listener.settimeout(LOOK_S)
        self._ways: tuple[_Way, ...] = ()  # to the acceptor, to the initiator
        self._forth = threading.Event()
        self._takes = threading.Event()
        self._takes.set()
        self._forth.set()
        self._is_over = False
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over = True
        self._thread.join()
        self.cut()
        self._listener.close()

    def add(self, message: bytes) -> None:
        """Send this to the acceptor, as if it came from the initiator."""
        self._ways[0].add(message)

    def hold(self) -> None:
        """Take nothing more from the initiator."""
        self._forth.clear()

    def cut(self) -> None:
        """Break off, and take no connection until `mend`."""
        self._takes.clear()
        for way in self._ways:
            way.end()
        self._ways = ()

    def mend(self) -> None:
        self._forth.set()
        self._takes.set()

    def _accept(self) -> None:
        always = threading.Event()
        always.set()
        while not self._is_over:
            try:
                one, _ = self._listener.accept()
            except TimeoutError:
                continue
            if not self._takes.is_set():
                one.close()
                continue
            try:
                other = socket.create_connection((LOOPBACK, self._to), source_address=(self._connects, 0))
            except OSError:
                one.close()
                continue
            for sock in (one, other):
                sock.setblocking(True)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for way in self._ways:
                way.end()
            self._ways = (_Way(one, other, self._forth), _Way(other, one, always))
