"""Time as integers: nanoseconds inside cores, and the one place where the real clock is read."""

from __future__ import annotations

from typing import Final, Protocol

from dro import system_calls

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000


def ms(value: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(value * NS_PER_MS)


def s(value: float) -> int:
    """Seconds as nanoseconds."""
    return round(value * NS_PER_S)


def duration(seconds: float) -> str:
    """Write seconds as `3d 4h`, `5h 02m`, `7m 31s` or `12s`."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {whole % 60:02}s" if minutes else f"{whole}s"


class Clock(Protocol):
    """Where a shell reads the time; cores get it as an argument instead."""

    def now_ns(self) -> int: ...


class MonotonicClock:
    """The clock of every real process: CLOCK_MONOTONIC, which all processes of one host share."""

    def now_ns(self) -> int:
        return system_calls.monotonic_ns()
