"""A TCP relay on a loop that passes everything on some time later: a long link in a network of stepped time."""

from __future__ import annotations

import socket
from functools import partial

from dro.clock import ms
from dro.loop import Loop

AGAIN_NS = ms(1)


class Relay:
    """Listens on one port of the loopback interface and connects to another, for each connection anew."""

    def __init__(self, loop: Loop, port: int, to: int, delay_ns: int) -> None:
        self._loop, self._to, self._delay_ns = loop, to, delay_ns
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.setblocking(False)
        loop.add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        one, _ = self._listener.accept()
        try:
            other = socket.create_connection(("127.0.0.1", self._to))
        except ConnectionRefusedError:
            one.close()
            return
        for sock, to in ((one, other), (other, one)):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(sock)
            self._loop.add_reader(sock, partial(self._on_readable, sock, to, bytearray()))

    def _on_readable(self, sock: socket.socket, to: socket.socket, waiting: bytearray) -> None:
        try:
            content = sock.recv(1 << 20)
        except OSError:
            content = b""
        if not content:
            self._loop.remove_reader(sock)
        self._loop.call_later(self._delay_ns, partial(self._pass, to, waiting, content, not content))

    def _pass(self, to: socket.socket, waiting: bytearray, content: bytes, is_end: bool) -> None:
        """To the other end, behind what that has not taken yet."""
        waiting += content
        try:
            del waiting[: to.send(waiting) if waiting else 0]
        except BlockingIOError:
            pass
        except OSError:
            waiting.clear()
        if waiting:
            self._loop.call_later(AGAIN_NS, partial(self._pass, to, waiting, b"", is_end))
        elif is_end:
            self._close(to)

    def _close(self, sock: socket.socket) -> None:
        if sock in self._open:
            self._open.remove(sock)
            self._loop.remove_reader(sock)
            sock.close()

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for sock in list(self._open):
            self._close(sock)
