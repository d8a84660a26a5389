"""`tnwgd --detach`: the daemon goes on without a terminal, and the command ends when the DRO runs, or cannot.

The command forks twice. The daemon has a session of its own that it does not lead, so it never gets a terminal, and
the working directory of the command, since relative names in the configuration count from there. Until the DRO runs,
what it writes to a terminal or a pipe goes through the command; afterwards there is nobody to read it any more. Files
that standard output and standard error were redirected to stay.

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
from dro.streams import say

_CHUNK: Final = 65_536
STOPPED: Final = "stopped before the DRO ran"
_LOST: Final = "the detached process ended before the DRO ran"
EXIT_FAILED: Final = 1


class Report:
    """The daemon's line to the command that started it: one word, then it is closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.register_at_fork(after_in_child=self.close)  # else the end of the daemon would not show

    def running(self) -> None:
        """The command ends with status 0."""
        self._tell({"status": 0})

    def failed(self, status: int, why: str = "") -> None:
        """The command ends with that status; `why` is printed when it is not on the terminal already."""
        self._tell({"status": status, "why": why})

    def _tell(self, word: dict[str, object]) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.write(self._fd, json.dumps(word).encode())
            self.close()

    def close(self) -> None:
        """A word that was not said before counts as a failure."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_kept(fd: int) -> bool:
    """Whether the daemon keeps writing there: a regular file, or the null device."""
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not os.isatty(fd))


def detach(prog: str) -> Report:
    """Returns in the daemon; the process that called it ends with the status that the daemon reports.

    Raises: ResourceError when no process can be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    hears, tells = os.pipe()
    outputs = {fd: os.pipe() for fd in (1, 2) if not is_kept(fd)}
    try:
        middle = os.fork()
    except OSError as e:
        raise ResourceError(f"cannot detach: {e.strerror}", remedy=remedy_of(e.errno)) from e
    if middle:
        for fd in (tells, *(speaks for _, speaks in outputs.values())):
            os.close(fd)
        os.waitpid(middle, 0)
        _Command(prog, hears, {listens: fd for fd, (listens, _) in outputs.items()}).run()
    os.close(hears)
    os.setsid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as e:
        Report(tells).failed(EXIT_FAILED, f"cannot detach: {e.strerror}; {remedy_of(e.errno)}")
        os._exit(EXIT_FAILED)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    for fd, (listens, speaks) in outputs.items():
        os.dup2(speaks, fd)
        os.close(listens)
        os.close(speaks)
    report = Report(tells)
    os.write(tells, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    return report


class _Command:
    """The process in the foreground: passes on what the daemon says, and signals, until the word comes."""

    def __init__(self, prog: str, hears: int, relays: Mapping[int, int]) -> None:
        """`hears`: the daemon's reports. `relays`: where its output comes from, and where that goes."""
        self._prog = prog
        self._hears = hears
        self._relays = dict(relays)
        self._words = bytearray()
        self._daemon = 0
        self._signals: list[int] = []
        self._has_passed_on = False

    def run(self) -> NoReturn:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        said = self._listen()
        status, why = said.get("status"), said.get("why")
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

    def _listen(self) -> dict[str, object]:
        """What the daemon said last, when its end is closed."""
        poll = select.poll()
        for fd in (self._hears, *self._relays):
            poll.register(fd, select.POLLIN)
        is_open = True
        while is_open:
            ready = {fd for fd, _ in poll.poll()}
            for fd in ready & self._relays.keys():
                if not self._relay(fd):
                    poll.unregister(fd)
            if self._hears in ready:
                is_open = self._hear()
        self._daemon = 0
        for fd in self._relays:
            os.set_blocking(fd, False)
            while self._relay(fd):
                pass
        with contextlib.suppress(ValueError):
            said = json.loads(self._words)
            if isinstance(said, dict):
                return said
        return {}

    def _hear(self) -> bool:
        part = os.read(self._hears, _CHUNK)
        self._words += part
        if not self._daemon and b"\n" in self._words:  # the first word is who it is
            line, _, self._words = self._words.partition(b"\n")
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
