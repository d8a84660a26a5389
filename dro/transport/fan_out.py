"""Sends one datagram to many addresses from one UDP socket: `sendmmsg` over addresses that stand in one array.

The headers of the calls stay as they are while the array is where it was, so a datagram costs one system call for
`CHUNK` addresses and nothing else by address. Nothing waits: what the socket does not take is dropped and counted.
"""

from __future__ import annotations

import ctypes
import errno
import socket
from array import array
from typing import Final

CHUNK: Final = 1024  # UIO_MAXIOV: the kernel takes no more in a call
_MSGHDR: Final = 64  # sizeof(struct mmsghdr) on 64-bit Linux
_SOCKADDR: Final = 16
_FULL: Final = (errno.EAGAIN, errno.ENOBUFS)
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_sendmmsg = ctypes.CDLL(None, use_errno=True).sendmmsg
_sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]
_sendmmsg.restype = ctypes.c_int


class FanOut:
    """The addresses of one array, two words each, and what became of datagrams to them."""

    def __init__(self, addresses: array[int]) -> None:
        self.sent = self.blocked = self.failed = 0
        self._error = 0
        self._addresses = addresses
        self._iov = array("Q", (0, 0))
        self._headers = array("Q")
        self._names_at = 0

    def send(self, fd: int, data: bytes, start: int, stop: int) -> None:
        """Send `data` to the addresses from number `start` to `stop`, which is not included."""
        self._fit()
        pointer = ctypes.c_char_p(data)
        self._iov[0], self._iov[1] = ctypes.cast(pointer, ctypes.c_void_p).value or 0, len(data)
        headers_at = self._headers.buffer_info()[0]
        while start < stop:
            count = _sendmmsg(fd, headers_at + _MSGHDR * start, min(stop - start, CHUNK), _DONTWAIT)
            if count > 0:
                self.sent += count
                start += count
                continue
            code = ctypes.get_errno()
            if code in _FULL:
                self.blocked += stop - start
                return
            if code != errno.EINTR:  # of this address alone
                self.failed += 1
                self._error = code
                start += 1

    def take_error(self) -> int:
        """Return the errno of the last address that could not be sent to since the last call, 0 when there is none."""
        error, self._error = self._error, 0
        return error

    def _fit(self) -> None:
        """Make headers for all addresses, when there are more than before or the array has moved."""
        names_at, words = self._addresses.buffer_info()
        count = words // 2
        if names_at == self._names_at and 8 * count <= len(self._headers):
            return
        if 8 * count > len(self._headers):
            room = count + count // 4
            self._headers = array("Q", (0, _SOCKADDR, self._iov.buffer_info()[0], 1, 0, 0, 0, 0)) * room
        room = len(self._headers) // 8
        self._headers[0::8] = array("Q", range(names_at, names_at + _SOCKADDR * room, _SOCKADDR))
        self._names_at = names_at
