"""Sockets as a context is given them: kept by the test, and refused where it says so."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from dro.errors import ResourceError
from dro.transport.sockets import OS_SOCKETS


class FaultySockets:
    """Implements `Sockets`: opens those of the system but the `refused` ones, which are calls of the protocol."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.opened: list[socket.socket] = []
        self.wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock

    def multicast_receiver(self, *place: object, **options: object) -> socket.socket:
        return self._open("multicast_receiver", place, options)

    def multicast_sender(self, *place: object, **options: object) -> socket.socket:
        return self._open("multicast_sender", place, options)

    def connecting(self, *place: object, **options: object) -> socket.socket:
        if "connecting" in self.refused:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._open("connecting", place, options)

    def bind_in_range(self, *place: object, **options: object) -> socket.socket:
        return self._open("bind_in_range", place, options)

    def nak_socket(self, *place: object) -> socket.socket:
        return self._open("nak_socket", place, {})

    def _open(self, call: str, place: tuple[object, ...], options: dict[str, object]) -> socket.socket:
        if call in self.refused:
            raise ResourceError(f"no {call}", remedy=f"change {options.get('option', 'the route')}")
        sock = self.wrap(getattr(OS_SOCKETS, call)(*place, **options))
        self.opened.append(sock)
        return sock
