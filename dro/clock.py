"""Time as integers: nanoseconds inside cores, and the one place where the real clock is read."""

from __future__ import annotations

import time
from typing import Final, Protocol

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000


def ms(value: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(value * NS_PER_MS)


def s(value: float) -> int:
    """Seconds as nanoseconds."""
    return round(value * NS_PER_S)


class Clock(Protocol):
    """Where a shell reads the time; cores get it as an argument instead."""

    def now_ns(self) -> int: ...


class MonotonicClock:
    """The clock of every real process: CLOCK_MONOTONIC, which all processes of one host share."""

    def now_ns(self) -> int:
        return time.monotonic_ns()
