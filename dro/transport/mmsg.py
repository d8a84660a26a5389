"""Batched datagram receive and send: `recvmmsg` into one contiguous scratch area, and `sendmmsg`.

A datagram that is not longer than `stride` goes into its slot of the main area, so a batch of equal datagrams is
contiguous and can be parsed and copied as one piece. The part of a longer datagram beyond its slot goes into an
overflow slot, where the whole datagram is then assembled. `stride` follows the traffic: up at once, down when two
batches in a row were of equal datagrams.

The sender's address comes as the raw 8 bytes family, port and address of the `sockaddr_in`, as one integer, which
serves as a dictionary key without conversion; `address_of` decodes it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import sys
from array import array
from struct import Struct
from typing import Any, Final

from dro import system_calls
from dro.transport.sockets import SOL_UDP, UDP_SEGMENT

BATCH: Final = 64  # datagrams per call
MAX_DATAGRAM: Final = 65535
_MSGHDR: Final = 64  # sizeof(struct mmsghdr) on 64-bit Linux
_IOVS: Final = 2
_SOCKADDR: Final = 16
_FIRST_STRIDE: Final = 2048

_CMSG_SPACE: Final = 24  # of a u16, 64-bit Linux
_CONTROL = _CMSG_SPACE  # a plain integer in the compiled form
_CMSG_LEN: Final = 18
_SEGMENT: Final = Struct("=QiiH6x")  # cmsghdr with UDP_SEGMENT


def _receive(fd: int, headers_at: int, most: int) -> int:
    return system_calls.receive_many(fd, headers_at, most)


def address_of(raw: int) -> tuple[int, int]:
    """(IPv4 address, port) of a raw sender key as `DatagramBatch.senders` holds it."""
    packed = raw.to_bytes(8, "little")
    return int.from_bytes(packed[4:8], "big"), int.from_bytes(packed[2:4], "big")


class DatagramBatch:
    """The receive side of one UDP socket, or of several that see the same traffic.

    After `receive`: `count` datagrams; number i lies at `view[offsets[i] : offsets[i] + lengths[i]]` and came from
    `senders[i]`. They stay valid until the next `receive` of any batch with the same memory.
    """

    def __init__(self, like: DatagramBatch | None = None) -> None:
        """`like`: share the memory of that batch, of the same thread."""
        self._memory: mmap.mmap = mmap.mmap(-1, BATCH * MAX_DATAGRAM * 2) if like is None else like._memory
        """Pages that no datagram ever reaches cost nothing."""
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.view = memoryview(self._memory)
        self._overflow = BATCH * MAX_DATAGRAM
        self._names = bytearray(BATCH * _SOCKADDR)
        self._iovs = bytearray(BATCH * _IOVS * 16)
        self._headers = bytearray(BATCH * _MSGHDR)
        self._name_keys: Any = memoryview(self._names).cast("Q")[0::2]
        self._lens: Any = memoryview(self._headers).cast("I")[14::16]
        self._headers_at = ctypes.addressof(ctypes.c_char.from_buffer(self._headers))
        names_at = ctypes.addressof(ctypes.c_char.from_buffer(self._names))
        iovs_at = ctypes.addressof(ctypes.c_char.from_buffer(self._iovs))
        words = memoryview(self._headers).cast("Q")
        for i in range(BATCH):
            words[8 * i : 8 * i + 4] = array("Q", [names_at + i * _SOCKADDR, 16, iovs_at + i * 32, _IOVS])
        self._wish = 0
        self._set_stride(_FIRST_STRIDE)
        self.count = 0
        self.lengths: list[int] = []
        self.offsets: list[int] = []
        self.senders: list[int] = []

    def _set_stride(self, stride: int) -> None:
        self.stride = stride
        base, overflow = self._base, self._base + self._overflow
        words = memoryview(self._iovs).cast("Q")
        words[0::4] = array("Q", [base + i * stride for i in range(BATCH)])
        words[1::4] = array("Q", [stride] * BATCH)
        words[2::4] = array("Q", [overflow + i * MAX_DATAGRAM + stride for i in range(BATCH)])
        words[3::4] = array("Q", [MAX_DATAGRAM - stride] * BATCH)

    def receive(self, fd: int, most: int = BATCH) -> int:
        """Take what is waiting on `fd`, at most `most` datagrams; returns how many. Raises: OSError but not EAGAIN.

        `most` is at most `BATCH`.
        """
        n = _receive(fd, self._headers_at, most)
        if n <= 0:
            self.count = 0
            code = -n
            if code in (0, 11, 111):  # EAGAIN, and ECONNREFUSED left by an ICMP answer to a send
                return 0
            raise OSError(code, os.strerror(code))
        self.count = n
        stride, lens, names = self.stride, self._lens, self._name_keys
        first = longest = lens[0]
        is_equal = True
        for i in range(1, n):
            if lens[i] != first:
                is_equal = False
                longest = max(longest, lens[i])
        self.lengths = [lens[i] for i in range(n)]
        self.senders = [names[i] for i in range(n)]
        self.offsets = offsets = [i * stride for i in range(n)]
        if first == stride and is_equal:
            self._wish = 0
            return n
        if longest > stride:
            memory = self._memory
            for i in range(n):
                if lens[i] > stride:
                    at = self._overflow + i * MAX_DATAGRAM
                    memory[at : at + stride] = memory[offsets[i] : offsets[i] + stride]
                    offsets[i] = at
            self._set_stride(longest)
            self._wish = 0
        elif n > 1 and is_equal and longest:  # a stride of 0 is none, and empty datagrams are nobody's traffic
            if longest == self._wish:  # seen twice in a row: follow the traffic
                self._set_stride(longest)
                self._wish = 0
            else:
                self._wish = longest
        else:
            self._wish = 0
        return n


def raw_address(ip: str, port: int) -> int:
    """Return the sender key of an address, as `DatagramBatch.senders` holds it."""
    family = int(socket.AF_INET).to_bytes(2, sys.byteorder)
    return int.from_bytes(family + port.to_bytes(2, "big") + socket.inet_aton(ip), "little")


class Sends:
    """The send side of UDP sockets of one thread."""

    def __init__(self) -> None:
        iovs, headers = array("Q", bytes(16 * BATCH)), array("Q", bytes(64 * BATCH))
        controls = bytearray(_CMSG_SPACE * BATCH)
        for at in range(0, len(controls), _CMSG_SPACE):
            _SEGMENT.pack_into(controls, at, _CMSG_LEN, SOL_UDP, UDP_SEGMENT, 0)
        iovs_at, controls_at = iovs.buffer_info()[0], ctypes.addressof(ctypes.c_char.from_buffer(controls))
        for i in range(BATCH):
            headers[8 * i + 2 : 8 * i + 5] = array("Q", [iovs_at + 16 * i, 1, controls_at + _CMSG_SPACE * i])
        self._headers_at = headers.buffer_info()[0]
        self._name = array("Q", bytes(_SOCKADDR))
        self._name_at = self._name.buffer_info()[0]
        self._names = 0  # headers that have a name
        self._iovs, self._headers = iovs, headers
        self._segments = memoryview(controls).cast("H")[8 :: _CMSG_SPACE // 2]

    def send(
        self,
        sock: socket.socket,
        buffer: bytearray | memoryview,
        entries: list[tuple[int, int, int]],
        to: tuple[str, int] | None = None,
    ) -> tuple[int, int]:
        """Send pieces of `buffer`, each (offset, bytes, segment): a datagram, or a train of datagrams of `segment`
        bytes when that is not 0. Returns how many were sent, and the errno of what stopped the next one, or 0.

        `to`: for a socket that is not connected.
        """
        if len(entries) == 1:
            at, nbytes, segment = entries[0]
            piece = memoryview(buffer)[at : at + nbytes]
            try:
                control = [(SOL_UDP, UDP_SEGMENT, segment.to_bytes(2, sys.byteorder))] if segment else []
                if to is not None:
                    sock.sendmsg([piece], control, 0, to)
                elif segment:
                    sock.sendmsg([piece], control)
                else:
                    sock.send(piece)
            except OSError as e:
                return 0, e.errno or errno.EIO
            return 1, 0
        n = min(len(entries), BATCH)
        base = system_calls.memory_address(buffer)
        iovs, headers, segments = self._iovs, self._headers, self._segments
        for number in range(n):
            at, nbytes, segment = entries[number]
            iovs[2 * number], iovs[2 * number + 1] = base + at, nbytes
            headers[8 * number + 5] = _CONTROL if segment else 0
            segments[number] = segment
        if to is not None:
            self._name[0] = raw_address(*to)
        if to is not None or self._names:
            name_at, name_bytes = (0, 0) if to is None else (self._name_at, _SOCKADDR)
            for number in range(max(n, self._names)):
                headers[8 * number], headers[8 * number + 1] = name_at, name_bytes
            self._names = 0 if to is None else max(n, self._names)
        sent = system_calls.send_many(sock.fileno(), self._headers_at, n)
        if sent < 0:
            return 0, -sent
        return sent, 0
