"""Takes turns at asking the DRO: however many ask the monitor, parent and portals have time for their own work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from supervisor.monitor.answers.models import ApiError

WAITING_MAX: Final = 8
"""Requests that may wait for their turn."""
PATIENCE_S: Final = 2.0
"""For room to wait."""
REST_MAX_S: Final = 2.0


class Turns:
    """Lets one question be asked at a time, and rests as long as its answer took before the next."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._room = threading.BoundedSemaphore(WAITING_MAX)
        self._lock = threading.Lock()
        self._rested_s = -1e9

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Wait for a turn and hold it. Raises: ApiError when too many wait already."""
        if not self._room.acquire(timeout=PATIENCE_S):
            raise ApiError(503, f"{WAITING_MAX} questions wait already", "ask again in a moment")
        try:
            with self._lock:
                rest_s = self._rested_s - self._clock()
                if rest_s > 0:
                    self._sleep(rest_s)
                began_s = self._clock()
                try:
                    yield
                finally:
                    now_s = self._clock()
                    self._rested_s = now_s + min(now_s - began_s, REST_MAX_S)
        finally:
            self._room.release()
