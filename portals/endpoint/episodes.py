"""Log lines about the queue of a portal: how long it is in use, without a line for every moment of it."""

from __future__ import annotations

import logging
from typing import Final

from dro.clock import s

log = logging.getLogger(__name__)

INTERVAL_NS: Final = s(10)  # between two short episodes that are told
LONG_NS: Final = s(1)  # an episode that lasts is told in any case


class Episodes:
    """When the log tells that the queue is in use: a rate limit alone fills and empties it a hundred times a second."""

    def __init__(self) -> None:
        self._began_ns: int | None = None
        self._is_told = False
        self._told_ns: int | None = None
        self._untold = 0  # since the last one that was told

    def on_waiting(self, now_ns: int) -> None:
        """Something is put into the queue. Told at once after a quiet time, else when it has lasted for a while."""
        if self._began_ns is None:
            self._began_ns = now_ns
        if self._is_told:
            return
        is_quiet = self._told_ns is None or now_ns - self._told_ns >= INTERVAL_NS
        if is_quiet or now_ns - self._began_ns >= LONG_NS:
            extra = {"suppressed": self._untold} if self._untold else {}
            self._is_told, self._told_ns, self._untold = True, now_ns, 0
            log.info("began enqueueing data", extra=extra)

    def on_empty(self) -> None:
        """Nothing waits any more, or nothing waited."""
        if self._is_told:
            log.info("completed flushing queue")
        elif self._began_ns is not None:
            self._untold += 1
        self._began_ns, self._is_told = None, False
