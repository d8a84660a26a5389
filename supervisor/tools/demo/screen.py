"""Where a demonstration is watched: a picture that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from supervisor.samples.growth import growths
from supervisor.tools.demo.arrivals import Arrivals

REDRAW_S: Final = 0.5
RATES_S: Final = 10.0


class Picture:
    """Lines that replace those drawn before."""

    def __init__(self) -> None:
        self._lines = 0

    def draw(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self._lines}A" if self._lines else ""
        size = shutil.get_terminal_size()  # a line that wraps or scrolls would shift the next picture
        shown = lines[: size.lines - 1]
        sys.stdout.write(up + "".join(f"\x1b[2K{line[: size.columns]}\n" for line in shown) + "\x1b[J")
        sys.stdout.flush()
        self._lines = len(shown)


class CounterRates:
    """How much counters have grown per second over the last ten seconds."""

    def __init__(self) -> None:
        self._looks = deque[tuple[float, dict[str, int]]]()

    def of(self, counters: dict[str, int]) -> dict[str, float]:
        now = time.monotonic()
        self._looks.append((now, counters))
        while len(self._looks) > 1 and self._looks[1][0] <= now - RATES_S:
            self._looks.popleft()
        then, before = self._looks[0]
        return {name: grown / max(now - then, 1e-9) for name, grown in growths(before, counters).items()}


def latency_cells(arrivals: Arrivals) -> str:
    """Fill the columns `LATENCY_HEAD`."""
    p50, p99, p999 = (arrivals.percentile_us(fraction) for fraction in (0.5, 0.99, 0.999))
    return f"{p50:>9.0f}{p99:>9.0f}{p999:>10.0f}"


LATENCY_HEAD: Final = f"{'p50 us':>9}{'p99 us':>9}{'p99.9 us':>10}"
