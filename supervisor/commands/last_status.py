"""Keeps the file of `supervisor.admin.last_status` up to date while a DRO runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dro.clock import ms
from dro.loop import Loop
from supervisor.admin.last_status import LastStatus, write_last_status
from supervisor.admin.status import DroStatus

LOOK_NS: Final = ms(500)
"""A change is in the file after so long: many changes at once, as at the start, are one."""


class LastStatusFile:
    """Written when anything but times and counts of log lines has changed."""

    def __init__(self, loop: Loop, folder: Callable[[], Path], look: Callable[[], DroStatus]) -> None:
        """`folder`: of the DRO in shared memory, asked for when the loop runs."""
        self._loop = loop
        self._folder = folder
        self._look = look
        self._written: DroStatus | None = None
        loop.call_later(LOOK_NS, self._turn)

    def _turn(self) -> None:
        self._loop.call_later(LOOK_NS, self._turn)
        status = self._look()
        workers = tuple(replace(w, uptime_s=0.0) for w in status.workers)
        timeless = replace(status, uptime_s=0.0, workers=workers, logged={})
        if timeless != self._written:
            with contextlib.suppress(OSError):  # without memory for it the earlier one stays; the next turn tries again
                write_last_status(self._folder(), LastStatus(round(time.monotonic(), 3), status))
                self._written = timeless
