"""Signals before the DRO has installed its handlers, and those that the starter has set.

Until a DRO has created anything, SIGTERM and SIGINT end the program at once, by the kernel, whatever it is doing:
waiting for a name server, parsing, or compiling. For process 1 of a container the kernel does not do that, so the
program ends itself as soon as the interpreter runs the handler. A SIGHUP, blocked since `main` began, is pending until
the DRO runs and then causes a reload; when the start fails it has no effect.

What a program sets of signals outlives the start of another one in its place: signals that are ignored or blocked, and
an alarm that would end a DRO.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_OF_OURS: Final = (signal.SIGCHLD, signal.SIGALRM, signal.SIGQUIT)
"""Ends of workers, the end of one that does nothing sensible any more, and the order to leave a core: by default."""
_INIT_PROCESS: Final = 1


class EarlySignals:
    """In force from when it is made; the parent's handlers replace it."""

    def __init__(self, mask: Collection[int]) -> None:
        """`mask`: the signals that were blocked before SIGHUP was."""
        ending = _end if os.getpid() == _INIT_PROCESS else signal.SIG_DFL
        self._mask = mask
        handlers = {**dict.fromkeys(_ENDING, ending), **dict.fromkeys(_OF_OURS, signal.SIG_DFL)}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._is_over = False
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDING, *_OF_OURS))

    def undo(self) -> None:
        """Restore what was there before, for a start that fails or is none; nothing when the DRO has taken over."""
        if not self._is_over:
            self._is_over = True
            for number, handler in self._before.items():
                signal.signal(number, handler)
            hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # drops one that is pending
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            signal.signal(signal.SIGHUP, hangup)

    def hand_over(self) -> None:
        """Hand over to the parent's own handlers."""
        self._is_over = True


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
