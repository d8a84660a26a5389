"""Signals between the start of the program and the moment when the DRO takes them.

Until a DRO has made anything, SIGTERM and SIGINT end the program at once, by the kernel, whatever it is doing: waiting
for a name server, parsing, or compiling. To process 1 of a container the kernel does not do that, so it does it itself
as soon as the interpreter gets round to it. A SIGHUP waits: the DRO takes it for an order to look at its file again.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_INIT_PROCESS: Final = 1


class EarlySignals:
    """In force from when it is made; the parent's handlers replace it."""

    def __init__(self) -> None:
        ending = _end if os.getpid() == _INIT_PROCESS else signal.SIG_DFL
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        self._before = {number: signal.signal(number, ending) for number in _ENDING}
        self._is_over = False
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def undo(self) -> None:
        """As it was before, for a start that fails or is none; nothing when the DRO has taken over."""
        if not self._is_over:
            self._is_over = True
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def leave(self) -> None:
        """To the DRO, which has handlers of its own from here on."""
        self._is_over = True


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
