"""The restart policy: a worker that ended is restarted at once the first time, then with growing pauses, and at once
again if it has run for long enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.clock import ms, s

FIRST_DELAY_NS: Final = ms(100)
LONGEST_DELAY_NS: Final = s(5)
LONG_LIFE_NS: Final = s(1)
"""Whoever worked for so long does not fail at its start, so waiting would cost traffic and gain nothing."""
CLEAN_EXIT_DELAY_NS: Final = ms(100)
"""A worker that ended in good order without being asked was signalled from outside, most often together with the
parent, which hears of it a moment later."""


class Backoff:
    """The restart delays of one worker."""

    def __init__(self, rng: Callable[[], float] = lambda: 0.0) -> None:
        """`rng`: in [0, 1); spreads delays by up to a quarter, so that many workers do not come back in step."""
        self._rng = rng
        self._started_ns = 0
        self._delay_ns = 0

    def on_start(self, now_ns: int) -> None:
        self._started_ns = now_ns

    def reset(self) -> None:
        """An operator wants it started now: what it did before does not count."""
        self._delay_ns = 0

    def on_death(self, now_ns: int, *, clean: bool = False) -> int:
        """Return how long to wait before the next start, in ns."""
        if now_ns - self._started_ns >= LONG_LIFE_NS:
            self._delay_ns = 0
        delay = self._delay_ns
        self._delay_ns = min(max(2 * delay, FIRST_DELAY_NS), LONGEST_DELAY_NS)
        delay += int(delay * self._rng() / 4)
        return max(delay, CLEAN_EXIT_DELAY_NS) if clean else delay
