"""How the sending and receiving tools end: exit statuses, and the event that their main thread waits for.

Scripts rely on the statuses and on the last line of output; `docs/tools.md` lists both.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from types import FrameType
from typing import Any, Final

EXIT_OK: Final = 0
EXIT_BAD: Final = 1  # messages were lost or damaged, and an option asked to look
EXIT_USAGE: Final = 2  # arguments or configuration files that cannot be used
EXIT_RESOURCE: Final = 3  # the operating system refused a port, a group, a file
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LONGEST_WAIT_MS: Final = 3_600_000


def signal_status(number: int) -> int:
    """The status of a run that a signal ended early, as shells count it: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


class EndRequest:
    """A request to end that SIGINT, SIGTERM or another thread makes, and that the main thread waits for.

    A pipe carries it, so neither a signal handler nor a callback ever takes a lock. It is also the process's wake-up
    descriptor: Python's handler runs after the wait, so it alone cannot end a wait that begins as the signal comes.
    Signals are taken from `hold` on until the end of the context; before, they end the program, even in a system call
    that Python would repeat.
    """

    def __init__(self) -> None:
        self.signal = 0  # the first signal that came
        self._fd, self._request_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def hold(self) -> None:
        """Take the signals from here on. The main thread's."""
        self._wakeup_before = signal.set_wakeup_fd(self._request_fd, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}

    def __enter__(self) -> EndRequest:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        for fd in (self._fd, self._request_fd, self._wake_fd):
            os.close(fd)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number

    def request(self) -> None:
        """End the wait, from any thread."""
        with contextlib.suppress(BlockingIOError):  # a full pipe has requested it often enough
            os.write(self._request_fd, b"\0")

    def wait(self, seconds: float) -> bool:
        """Sleep for that long at most. Returns whether an end was requested, now or before."""
        return bool(self._poll.poll(min(max(0.0, seconds * 1000), _LONGEST_WAIT_MS)))

    def wait_until(self, monotonic_s: float) -> bool:
        """`wait` to a point of `time.monotonic()`."""
        while not self.wait(monotonic_s - time.monotonic()):
            if time.monotonic() >= monotonic_s:
                return False
        return True

    def wake(self) -> None:
        """End the next `wait_wake`, or the one that waits now, from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def wait_wake(self, seconds: float) -> None:
        """Sleep until `wake` or a request to end, for that long at most."""
        if self._wake_fd in self._ready(self._wake_fd, seconds):
            os.eventfd_read(self._wake_fd)

    def wait_readable(self, fd: int) -> bool:
        """Wait until `fd` has something to read, or has ended. Returns False when an end was requested instead."""
        return self._fd not in self._ready(fd, None)

    def _ready(self, fd: int, seconds: float | None) -> list[int]:
        both = select.poll()
        both.register(self._fd, select.POLLIN)
        both.register(fd, select.POLLIN)
        return [ready for ready, _ in both.poll(None if seconds is None else seconds * 1000)]
