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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def undo(self) -> None:
        """For a start that fails: as it was."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
