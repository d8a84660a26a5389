"""Datagrams of a session to its socket: trains with segmentation offload where the kernel supports it.

A train is several datagrams of one size in one system call. What the system refuses for another reason than a full
socket is counted by the caller and counts as sent.
"""

from __future__ import annotations

import errno
import os
import socket
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import Final

from dro.transport import mmsg, sockets
from dro.transport.frames import TRAIN_BYTES, trains_of

_SEGMENT: Final = Struct("=H")
_MAX_TRAIN: Final = 64
OFF_HOST_TRAIN: Final = 16  # datagrams; a train is a burst, which switches must buffer
_UDP_IP_HEADERS: Final = 28
_NO_GSO_OF_SIZE: Final = frozenset((errno.EINVAL, errno.EMSGSIZE))
_NO_GSO: Final = frozenset((errno.EIO, errno.EOPNOTSUPP, errno.ENOPROTOOPT)) | _NO_GSO_OF_SIZE
Address = tuple[str, int]
BUSY: Final = frozenset((errno.EAGAIN, errno.ENOBUFS))


def _to_nobody(_error: OSError, _datagrams: int) -> None:
    """Ignore errors of a session that has ended."""


class Trains:
    """The data socket of one session. `busy`: errno of the send that found the socket full last.

    `on_error` gets how many datagrams were refused. `is_behind`: some receivers have yet to get what was sent.
    """

    def __init__(self, sock: socket.socket, interface: str) -> None:
        """`interface`: address of the one that data leaves from."""
        self.sent = 0
        self.busy = 0
        self.is_behind = False
        self.on_error: Callable[[OSError, int], object] = _to_nobody
        self._to: Address | None = None  # whom it is not connected to
        self._socket = sock
        self._sends = mmsg.Sends()
        mtu = sockets.interface_mtu(interface)
        self._segment_max = mtu - _UDP_IP_HEADERS if sockets.supports_gso(sock) else 0
        self._train_max = _MAX_TRAIN if interface.startswith("127.") else OFF_HOST_TRAIN

    def close(self) -> None:
        """Nothing more is sent, and nothing is told to the session, which has this."""
        self.on_error = _to_nobody

    def catch_up(self) -> bool:
        """Send what some receivers have yet to get; False: the socket is full."""
        return True

    def send_equal(self, view: memoryview, at: int, count: int, size: int) -> int:
        """Send `count` datagrams of `size` bytes that lie back to back from `at` on; how many were sent."""
        sent, to = 0, self._to
        per_train = min(self._train_max, TRAIN_BYTES // size)
        if count > 1 and per_train > 1 and size <= self._segment_max:
            control = [(sockets.SOL_UDP, sockets.UDP_SEGMENT, _SEGMENT.pack(size))]
            while count - sent > 1:
                train = min(per_train, count - sent)
                start = at + sent * size
                try:
                    if to is None:
                        self._socket.sendmsg([view[start : start + train * size]], control)
                    else:
                        self._socket.sendmsg([view[start : start + train * size]], control, 0, to)
                except OSError as e:
                    if e.errno in BUSY:
                        self.busy = e.errno
                        return sent
                    if e.errno in _NO_GSO:  # not again on this socket, or not for datagrams of this size
                        self._segment_max = size - 1 if e.errno in _NO_GSO_OF_SIZE else 0
                        break
                    self.on_error(e, train)
                self.sent += 1
                sent += train
        send = self._socket.send
        for start in range(at + sent * size, at + count * size, size):
            try:
                if to is None:
                    send(view[start : start + size])
                else:
                    self._socket.sendto(view[start : start + size], to)
            except OSError as e:
                if e.errno in BUSY:
                    self.busy = e.errno
                    break
                self.on_error(e, 1)
            sent += 1
        return sent

    def send_sizes(self, buffer: bytearray | memoryview, sizes: list[int], ends: list[int]) -> int:
        """Send datagrams that lie back to back, equal ones that follow each other as trains; how many were sent."""
        if len(sizes) == 1:
            return self.send_equal(memoryview(buffer), 0, 1, sizes[0])
        entries = trains_of(sizes, self._segment_max, self._train_max)
        done = 0
        while done < len(entries):
            taken, code = self._sends.send(self._socket, buffer, entries[done:], self._to)
            self.sent += taken - [segment for _, _, segment in entries[done : done + taken]].count(0)
            done += taken
            if not code:
                continue
            offset, nbytes, segment = entries[done]
            if code in BUSY:
                self.busy = code
                break
            if segment and code in _NO_GSO:  # not again on this socket, or not for datagrams of this size
                self._segment_max = segment - 1 if code in _NO_GSO_OF_SIZE else 0
                entries[done : done + 1] = [(at, segment, 0) for at in range(offset, offset + nbytes, segment)]
                continue
            self.on_error(OSError(code, os.strerror(code)), max(1, nbytes // segment) if segment else 1)
            done += 1
        reached = entries[done][0] if done < len(entries) else ends[-1]
        return bisect_right(ends, reached)
