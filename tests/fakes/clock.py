"""A clock for tests."""

from __future__ import annotations


class SteppedClock:
    """Time that moves only when a test says so."""

    def __init__(self, time_ns: int = 0) -> None:
        self.time_ns = time_ns

    def now_ns(self) -> int:
        return self.time_ns
