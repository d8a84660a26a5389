"""News of the devices and IPv4 addresses of this host, from the kernel (route netlink).

What they are now is asked elsewhere; here is told that something has changed, soon after it did, and which devices are
gone: one that is made again may have its former number. Source: rtnetlink(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Container
from typing import Final

from dro.clock import ms
from dro.errors import ResourceError
from dro.loop import Loop
from dro.timers import Timer

SETTLE_NS: Final = ms(20)
"""A device comes in several messages."""
_GROUPS: Final = 0x1 | 0x10  # RTMGRP_LINK, RTMGRP_IPV4_IFADDR
_DELLINK: Final = 17
_MESSAGE: Final = struct.Struct("=IHHII")
_LINK: Final = struct.Struct("=BxHi")  # family, type, number
_ALIGNMENT: Final = 4
_BATCH: Final = 1 << 16
_ALL: Final = range(1, 1 << 31)

OnChange = Callable[[Container[int]], object]
"""With the numbers of the devices that were removed, which may be in use again."""


class AddressWatch:
    """Calls `on_change` until it is closed."""

    def __init__(self, loop: Loop, on_change: OnChange) -> None:
        """Raises: ResourceError when the kernel does not let this process listen."""
        self._loop = loop
        self._on_change = on_change
        self._gone: set[int] = set()
        self._is_lost = False
        self._timer: Timer | None = None
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
            self._socket.bind((0, _GROUPS))
        except OSError as e:
            remedy = (
                "allow AF_NETLINK sockets: RestrictAddressFamilies= of the service, or the profile of the container"
            )
            raise ResourceError(f"devices and addresses cannot be watched: {e.strerror}", remedy=remedy) from e
        loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> bool:
        try:
            data = self._socket.recv(_BATCH)
        except BlockingIOError:
            return False
        except OSError as e:
            if e.errno != errno.ENOBUFS:
                raise
            self._is_lost = True  # more came than the kernel keeps: any of them may have gone
        else:
            self._gone |= removed(data)
        if self._timer is None:
            self._timer = self._loop.call_later(SETTLE_NS, self._tell)
        return True

    def _tell(self) -> None:
        gone: Container[int] = _ALL if self._is_lost else self._gone
        self._timer, self._gone, self._is_lost = None, set(), False
        self._on_change(gone)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def close_inherited(self) -> None:
        """Close the descriptor in a child: it is the parent's."""
        os.close(self._socket.detach())


def removed(data: bytes) -> set[int]:
    """The numbers of the devices that these messages say are removed."""
    found = set()
    at = 0
    while len(data) - at >= _MESSAGE.size:
        length, kind, *_ = _MESSAGE.unpack_from(data, at)
        if length < _MESSAGE.size:
            break
        if kind == _DELLINK and length >= _MESSAGE.size + _LINK.size and len(data) - at >= _MESSAGE.size + _LINK.size:
            found.add(_LINK.unpack_from(data, at + _MESSAGE.size)[2])
        at += -(-length // _ALIGNMENT) * _ALIGNMENT
    return found
