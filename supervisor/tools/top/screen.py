"""The live view on a terminal: draws, takes keys, and leaves the terminal as it was, however it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Final

from rich.console import Console
from rich.live import Live

from supervisor.tools.top.figures import DroFigures, Figures
from supervisor.tools.top.looker import Looker
from supervisor.tools.top.picture import Look, on_key, picture

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALS: Final = (*_ENDING, signal.SIGTSTP, signal.SIGWINCH)
_KEYS_MAX: Final = 64  # bytes read at once


class Screen:
    """Runs until `q` or a signal ends it."""

    def __init__(self, looker: Looker, console: Console, interval_s: float) -> None:
        self._looker = looker
        self._console = console
        self._interval_s = interval_s
        self._figures = Figures()
        self._shown: DroFigures | None = None
        self._newest: DroFigures | None = None
        self._next_s = 0.0
        self._has_keys = sys.stdin.isatty()
        self._look = Look(has_keys=self._has_keys)
        self._signals: deque[int] = deque()

    def run(self) -> signal.Signals | None:
        """The signal that ended it; None after `q`."""
        while True:
            with (
                _caught_signals(self._signals) as waker,
                _single_keys(is_wanted=self._has_keys),
                Live(console=self._console, screen=True, auto_refresh=False) as live,
            ):
                ended_by = self._loop(live, waker)
            if ended_by != signal.SIGTSTP:
                return ended_by
            os.kill(os.getpid(), signal.SIGSTOP)  # until the shell lets it go on

    def _loop(self, live: Live, waker: int) -> signal.Signals | None:
        """Show figures until a signal ends it, or stops it for a while, and return that; None after `q`."""
        while True:
            if time.monotonic() >= self._next_s:
                self._newest = self._figures.take(self._looker.look())
                self._next_s = time.monotonic() + self._interval_s
            if self._shown is None or not self._look.paused:
                self._shown = self._newest
            assert self._shown is not None
            live.update(picture(self._shown, self._look, *self._console.size), refresh=True)
            readers = [waker, *([sys.stdin.fileno()] if self._has_keys else [])]
            readable, _, _ = select.select(readers, [], [], max(0.0, self._next_s - time.monotonic()))
            if waker in readable:
                os.read(waker, _KEYS_MAX)
            while self._signals:
                number = signal.Signals(self._signals.popleft())
                if number != signal.SIGWINCH:
                    return number
            if sys.stdin.fileno() in readable:
                keys = os.read(sys.stdin.fileno(), _KEYS_MAX).decode("ascii", "replace")
                self._has_keys = bool(keys)  # else the terminal is gone
                for key in keys:
                    if key == "q":
                        return None
                    self._look = on_key(self._look, key)


@contextlib.contextmanager
def _caught_signals(into: deque[int]) -> Iterator[int]:
    """Catch signals: numbers go into `into`, and wake who waits for the descriptor; undone at the end."""

    def note(number: int, _frame: FrameType | None) -> None:
        into.append(number)

    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, note) for number in _SIGNALS}
    waker = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(waker)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _single_keys(*, is_wanted: bool) -> Iterator[None]:
    """Take keys at once, and do not show them; undone at the end."""
    if not is_wanted:
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
