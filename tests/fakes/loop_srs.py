"""An SRS on real sockets, in the loop of a test."""

from __future__ import annotations

import contextlib
import socket
from functools import partial

from dro.loop import Loop
from dro.proto.srs.connection import SrsConnection
from dro.proto.srs.server import SrsServer
from dro.proto.srs.settings import SrsSettings

LOOPBACK = "127.0.0.1"


class LoopSrs:
    """The core of a server, and its sockets."""

    def __init__(self, loop: Loop, port: int = 0) -> None:
        self.core = SrsServer(SrsSettings(), loop.now_ns())
        self._loop = loop
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((LOOPBACK, port))
        self._listener.listen(100)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: dict[SrsConnection, socket.socket] = {}
        self.registered = 0
        loop.add_reader(self._listener, self._on_client)

    def _on_client(self) -> bool:
        try:
            sock, peer = self._listener.accept()
        except BlockingIOError:
            return False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self.core.connect(f"{peer[0]}:{peer[1]}", self._loop.now_ns())
        assert connection is not None
        self._sockets[connection] = sock
        self._loop.add_reader(sock, partial(self._on_readable, connection, sock))
        return True

    def _on_readable(self, connection: SrsConnection, sock: socket.socket) -> bool:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self.core.on_bytes(connection, data, self._loop.now_ns())
        else:
            self._drop(connection)
        self._work()
        return bool(data)

    def _drop(self, connection: SrsConnection) -> None:
        sock = self._sockets.pop(connection, None)
        if sock is not None:
            self._loop.remove_reader(sock)
            sock.close()
            self.core.on_closed(connection)

    def _work(self) -> None:
        now_ns = self._loop.now_ns()
        self.core.on_timer(now_ns)
        while self.core.work(now_ns):
            pass
        self.core.take_ready()
        self.core.take_notes()
        for connection, sock in list(self._sockets.items()):
            with contextlib.suppress(BlockingIOError):
                while pending := connection.pending():
                    self.core.on_sent(connection, sock.send(pending), now_ns)
            if connection.is_closing:
                self._drop(connection)

    def work(self) -> None:
        """Do what time has brought."""
        self._work()

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._sockets):
            self._drop(connection)
