"""Call the system for each message, and copy memory: the plain form of what the data path has in C.

Compiled steps have the same functions from `dro/system_calls.pxd`, as a call by `ctypes` or of a method of a memory
view costs more than what it does.
"""

from __future__ import annotations

import ctypes
import socket
import threading
import time
from typing import Final

_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
_libc.sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]
_lock: Final = threading.Lock()
monotonic_ns: Final = time.monotonic_ns
thread_time_ns: Final = time.thread_time_ns


def fence() -> None:
    """Make what was stored before visible before anything is loaded after: a lock does that by its instruction."""
    with _lock:
        pass


def receive_many(fd: int, headers_at: int, most: int) -> int:
    """Call `recvmmsg` without waiting, with the headers at that address; returns its result, or less than 0: errno."""
    count: int = _libc.recvmmsg(fd, headers_at, most, _DONTWAIT, None)
    return count if count >= 0 else -ctypes.get_errno()


def send_many(fd: int, headers_at: int, most: int) -> int:
    """Call `sendmmsg` likewise."""
    count: int = _libc.sendmmsg(fd, headers_at, most, _DONTWAIT)
    return count if count >= 0 else -ctypes.get_errno()


def memory_address(buffer: bytearray | memoryview) -> int:
    """Return where the bytes of a buffer lie, which has to stay as it is meanwhile."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def copy_in(into: memoryview, at: int, data: bytes | bytearray | memoryview) -> None:
    """Copy bytes to `at`, where there is room for them."""
    into[at : at + len(data)] = data


def append_part(buffer: bytearray, data: memoryview, at: int, nbytes: int) -> None:
    """Append `nbytes` of `data` from `at` on."""
    buffer += data[at : at + nbytes]
