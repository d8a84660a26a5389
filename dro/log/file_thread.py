"""The log file, written by a thread: a disk that hangs stops no worker.

A line is handed to the thread and waited for, so that in ordinary use it is in the file when the call returns. Where
no line gets there for PATIENCE_S the disk hangs: then nothing waits until the next one has, lines are kept up to
PENDING_MAX bytes, and what does not fit is refused and counted by the handler.

For workers only: the parent has no threads, as it forks, and writes its lines itself. The thread begins with the first
line, after the fork. It takes no signals and never logs. Raises: RuntimeError when there can be no further thread.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from dro.log.file import LogFile

PATIENCE_S: Final = 0.05  # for one line, once while a disk hangs
CLOSE_S: Final = 1.0  # for what waits at the end
PENDING_MAX: Final = 1 << 18  # bytes


@dataclass(slots=True, eq=False)
class _Line:
    data: bytes
    day: int
    error: OSError | None = None
    is_done: bool = False
    is_left: bool = False  # nobody waits for it any more


class FileThread:
    """Writes lines to one file, in their order."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._lines: deque[_Line] = deque()
        self._bytes = 0
        self._done = 0  # lines that the thread has taken out
        self._hangs = False
        self._is_closed = False
        self._lost = 0
        self._lost_why = ""
        self._thread = threading.Thread(target=self._run, name="log file", daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def write(self, data: bytes, day: int) -> bool:
        """False when there is no room for the line. Raises: OSError, and the line is not in the file."""
        line = _Line(data, day)
        with self._changed:
            if not self._hangs:
                self._changed.wait_for(lambda: self._bytes + len(data) <= PENDING_MAX, PATIENCE_S)
            if self._bytes + len(data) > PENDING_MAX:
                return False
            self._lines.append(line)
            self._bytes += len(data)
            self._changed.notify_all()
            done = self._done
            if not self._hangs and not self._changed.wait_for(lambda: line.is_done, PATIENCE_S):
                self._hangs = self._done == done
            line.is_left = True
        if line.error is not None:
            raise line.error
        return True

    def take_lost(self) -> tuple[int, str]:
        """Lines that were not waited for and could not be written, and why."""
        with self._changed:
            lost, self._lost = self._lost, 0
            return lost, self._lost_why

    def close(self) -> None:
        """Wait for what is left, for a moment; the thread closes the file when it is done with it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    break
                line = self._lines[0]
            try:
                self._file.write(line.data, line.day)
            except OSError as e:
                line.error = e
            with self._changed:
                self._lines.popleft()
                self._bytes -= len(line.data)
                self._done += 1
                self._hangs = False
                line.is_done = True
                if line.is_left and line.error is not None:
                    self._lost += 1
                    self._lost_why = line.error.strerror or str(line.error)
                self._changed.notify_all()
        self._file.close()
