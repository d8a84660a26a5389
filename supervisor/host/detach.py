"""`tnwgd --detach`: the daemon runs without a terminal, and the command ends when the DRO runs, or cannot.

The command forks twice. The daemon has a session of its own that it does not lead, so it never gets a terminal, and the
working directory of the command, since relative names in the configuration count from there. Until the DRO runs, its
output to a terminal or a pipe goes through the command; afterwards it is discarded. Files that standard output and
standard error were redirected to stay.

Source: DRO guide, "Tnwgd Man Page". Guess: everything but the fork itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Final, NoReturn

from dro.errors import ResourceError
from dro.os_errors import remedy_of
from dro.standard_streams import say

_CHUNK: Final = 65_536
_SIGNAL_LATE_MS: Final = 1000  # a signal that comes as a wait begins is looked at after this
STOPPED: Final = "stopped before the DRO ran"
_LOST: Final = "the detached process ended before the DRO ran"
EXIT_FAILED: Final = 1


class StartReport:
    """The daemon's pipe to the command that started it: one message, then it is closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.register_at_fork(after_in_child=self.close)  # else the end of the daemon would not show

    def running(self) -> None:
        """The command ends with status 0."""
        self._send({"status": 0})

    def failed(self, status: int, why: str = "") -> None:
        """The command ends with that status; `why` is printed when it is not on the terminal already."""
        self._send({"status": status, "why": why})

    def _send(self, message: dict[str, object]) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fd, json.dumps(message).encode())
            self.close()

    def close(self) -> None:
        """Close the pipe; without a message before, this counts as a failure."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_kept(fd: int) -> bool:
    """Whether the daemon keeps writing there: a regular file, or the null device."""
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not os.isatty(fd))


def detach(prog: str) -> StartReport:
    """Returns in the daemon; the process that called it ends with the status that the daemon reports.

    Raises: ResourceError when no process can be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    outputs = {fd: os.pipe() for fd in (1, 2) if not is_kept(fd)}
    try:
        middle = os.fork()
    except OSError as e:
        raise ResourceError(f"cannot detach: {e.strerror}", remedy=remedy_of(e.errno)) from e
    if middle:
        for fd in (writing, *(sink for _, sink in outputs.values())):
            os.close(fd)
        os.waitpid(middle, 0)
        _Command(prog, reading, {source: fd for fd, (source, _) in outputs.items()}).run()
    os.close(reading)
    os.setsid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as e:
        StartReport(writing).failed(EXIT_FAILED, f"cannot detach: {e.strerror}; {remedy_of(e.errno)}")
        os._exit(EXIT_FAILED)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    for fd, (source, sink) in outputs.items():
        os.dup2(sink, fd)
        os.close(source)
        os.close(sink)
    report = StartReport(writing)
    os.write(writing, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    return report


class _Command:
    """The process in the foreground: passes on what the daemon says, and signals, until the report comes."""

    def __init__(self, prog: str, reading: int, relays: Mapping[int, int]) -> None:
        """`reading`: the daemon's reports. `relays`: where its output comes from, and where that goes."""
        self._prog = prog
        self._reports = reading
        self._relays = dict(relays)
        self._received = bytearray()
        self._daemon = 0
        self._signals: list[int] = []
        self._has_passed_on = False

    def run(self) -> NoReturn:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        report = self._relay_all()
        status, why = report.get("status"), report.get("why")
        if not isinstance(status, int):
            status, why = EXIT_FAILED, STOPPED if self._has_passed_on else _LOST
        if why:
            say(sys.stderr, f"{self._prog}: {why}\n")
        os._exit(status)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self._pass_signals_on()

    def _pass_signals_on(self) -> None:
        while self._daemon and self._signals:
            with contextlib.suppress(ProcessLookupError):
                self._has_passed_on = True
                os.kill(self._daemon, self._signals.pop())  # it has told its id, and its end of the pipe is open

    def _relay_all(self) -> dict[str, object]:
        """Relay all of the daemon until its end of the pipe is closed; its last report."""
        poll = select.poll()
        for fd in (self._reports, *self._relays):
            poll.register(fd, select.POLLIN)
        is_open = True
        while is_open:
            ready = {fd for fd, _ in poll.poll(_SIGNAL_LATE_MS)}
            for fd in ready & self._relays.keys():
                if not self._relay(fd):
                    poll.unregister(fd)
            if self._reports in ready:
                is_open = self._read_report()
        self._daemon = 0
        for fd in self._relays:
            os.set_blocking(fd, False)
            while self._relay(fd):
                pass
        with contextlib.suppress(ValueError):
            report = json.loads(self._received)
            if isinstance(report, dict):
                return report
        return {}

    def _read_report(self) -> bool:
        part = os.read(self._reports, _CHUNK)
        self._received += part
        if not self._daemon and b"\n" in self._received:  # the first message holds its process id
            line, _, self._received = self._received.partition(b"\n")
            self._daemon = int(json.loads(line)["pid"])
            self._pass_signals_on()
        return bool(part)

    def _relay(self, fd: int) -> bool:
        """Pass on what is there; False when there is nothing."""
        try:
            part = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        with contextlib.suppress(OSError):
            view = memoryview(part)
            while view:
                view = view[os.write(self._relays[fd], view) :]
        return bool(part)
