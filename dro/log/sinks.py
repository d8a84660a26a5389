"""Destinations of log lines other than a file: a console and the local syslog. Neither ever blocks.

Lines that cannot be written now (a full pipe, a stopped terminal, a busy or restarting syslog daemon) are buffered;
what exceeds the buffer is refused, and the caller counts it. A pipe or terminal is opened again for non-blocking
writes: the mode belongs to the open file, which is shared with other programs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from dro.clock import NS_PER_S

PENDING_MAX: Final = 1 << 18  # bytes that wait
SYSLOG_PATH: Final = "/dev/log"
SYSLOG_MAX: Final = 8_192  # bytes of one datagram
_RETRY_NS: Final = NS_PER_S
_LAST_WORDS_S: Final = 0.2
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_journal(fd: int) -> bool:
    """Whether systemd has connected that descriptor of this process with its journal. Source: systemd.exec(5)."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _BufferedSink:
    """Takes lines, and keeps what its destination does not take now, up to PENDING_MAX bytes."""

    def __init__(self) -> None:
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._is_full = False

    def write(self, data: bytes) -> bool:
        """Take a line; False when there is no room for it."""
        if self._pending:
            self.flush()
        if not self._pending:
            data = data[self._put(data) :]
            if not data:
                return True
        elif self._pending_bytes + len(data) > (PENDING_MAX // 2 if self._is_full else PENDING_MAX):
            self._is_full = True  # until half of it is free: one gap is better than many
            return False
        self._is_full = False
        self._pending.append(data)
        self._pending_bytes += len(data)
        return True

    def flush(self) -> bool:
        """Hand over what waited; True when nothing waits any more."""
        while self._pending:
            data = self._pending[0]
            written = self._put(data)
            self._pending_bytes -= written
            if written < len(data):
                self._pending[0] = data[written:]
                return False
            self._pending.popleft()
        return True

    def after_fork(self) -> None:
        """What waited in the parent is the parent's to write."""
        self._pending.clear()
        self._pending_bytes = 0

    def take_lost(self) -> tuple[int, str]:
        """Nothing that was taken is lost later."""
        return 0, ""

    def close(self, wait_s: float = _LAST_WORDS_S) -> None:
        """Give what waits a last chance, for a moment."""
        deadline = time.monotonic() + wait_s
        while not self.flush() and (left := deadline - time.monotonic()) > 0:
            if not self._wait(left):
                return

    def _put(self, data: bytes) -> int:
        """Write bytes; how many were taken, or nobody will ever take. Raises: OSError where there is no room."""
        raise NotImplementedError

    def _wait(self, seconds: float) -> bool:
        """Wait until it may take more."""
        raise NotImplementedError


class Console(_BufferedSink):
    """A descriptor of the process, standard output as a rule. One that is gone takes everything."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._socket: socket.socket | None = None
        self._polls = False
        self._own = False
        self._is_gone = False
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            self._is_gone = True
            return
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif not stat.S_ISREG(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                self._fd = os.open(f"/proc/self/fd/{fd}", flags)
                self._own = True
            except OSError:
                self._polls = True  # the best that is left: ask before each write

    def put(self, line: str, day: int = 0) -> bool:
        """Take a line; False when there is no room for it. Raises: OSError from a full file."""
        return self.write((line + "\n").encode("utf-8", "backslashreplace"))

    def close(self, wait_s: float = _LAST_WORDS_S) -> None:
        with contextlib.suppress(OSError):
            super().close(wait_s)
        if self._socket is not None:
            self._socket.close()
        elif self._own:
            os.close(self._fd)
        self._is_gone = True

    def _put(self, data: bytes) -> int:
        if self._is_gone:
            return len(data)
        try:
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if self._polls and not self._wait(0):
                return 0
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as e:
            if e.errno in _NO_ROOM:
                raise
            return len(data)  # nobody reads it, and nobody will

    def _wait(self, seconds: float) -> bool:
        return _is_writable(self._socket if self._socket is not None else self._fd, seconds)


class Syslog(_BufferedSink):
    """The datagram socket of the local syslog daemon."""

    def __init__(
        self,
        complain: Callable[[str], object],
        *,
        path: str = SYSLOG_PATH,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """A daemon that is not there is told once through `complain`, and looked for again each second."""
        super().__init__()
        self._complain = complain
        self._path = path
        self._now_ns = now_ns
        self._socket: socket.socket | None = None
        self._retry_ns = 0
        self._is_told = False
        self._connect()

    def put(self, line: str, day: int = 0) -> bool:
        """Send each part of the line as a datagram; False when the first was not taken."""
        first, *rest = line.split("\n    ")
        if not self.write(_datagram(first)):
            return False
        head = first[: first.index(": ") + 2]
        for part in rest:
            self.write(_datagram(head + part))
        return True

    def after_fork(self) -> None:
        super().after_fork()
        self._disconnect()
        self._connect()

    def close(self, wait_s: float = _LAST_WORDS_S) -> None:
        super().close(wait_s)
        self._disconnect()

    def _put(self, data: bytes) -> int:
        for _ in range(2):
            if self._socket is None and not self._connect():
                return 0
            assert self._socket is not None
            try:
                return self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return 0
            except OSError:  # the daemon was restarted, as a rule
                self._disconnect()
                self._retry_ns = 0
        return 0

    def _wait(self, seconds: float) -> bool:
        return self._socket is not None and _is_writable(self._socket, seconds)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> bool:
        now_ns = self._now_ns()
        if now_ns < self._retry_ns:
            return False
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            made.connect(self._path)
        except OSError as e:
            made.close()
            self._retry_ns = now_ns + _RETRY_NS
            if not self._is_told:
                self._is_told = True
                self._complain(f"syslog socket {self._path}: {e.strerror}; it is tried again each second")
            return False
        self._socket = made
        self._is_told = False
        return True


def _datagram(line: str) -> bytes:
    data = line.encode("utf-8", "backslashreplace")
    return data if len(data) <= SYSLOG_MAX else data[: SYSLOG_MAX - 3] + b"..."


def _is_writable(descriptor: int | socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    with contextlib.suppress(OSError):
        return bool(poll.poll(seconds * 1000))
    return False
