"""Collections of reference cycles in a worker: short ones, however much the worker knows.

A full collection of CPython looks at every object: 100,000 topics are three million, which takes 0.2 s and comes again
with each quarter more. Here a full collection comes when ten or twenty thousand objects have been added; what survives
it is frozen and not looked at again. So few take longer than 5 ms, and an idle worker makes none.

Cycles among frozen objects that are not used any more stay; there are few, as objects that come and go with topics and
sources make none. A sweep of all objects takes up to a second: it is done when there are so many more than twice those
of the last one that cycles must be among them, once the worker has been quiet for a second, or at `MANY`.
"""

from __future__ import annotations

import gc
import time
from typing import Final

from dro.clock import s
from dro.loop import Loop

TIDY_AFTER: Final = 2
"""Collections of the middle generation, each of up to 7,700 objects more, until all that was added is frozen."""
LOOK_EVERY: Final = 256
"""Freezings until what is frozen is counted, which takes 20 ms for three million objects; no more come with fewer."""
SPARE: Final = 4_000_000  # 100,000 topics are three million
MANY: Final = 8_000_000
"""Objects that may be frozen beyond twice those of the last sweep: before it is done when quiet, and at all."""
QUIET_NS: Final = s(1)
QUIET_PART: Final = 20
"""A worker is quiet when it needs less than this part of a processor."""
_YOUNGER: Final = (700, 10)  # the defaults of Python 3.11
_NEVER: Final = 1 << 30


class CycleCollector:
    """Of the whole process; there is one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._thresholds = gc.get_threshold()
        self._is_due = False
        self._freezings = 0
        self._swept = 0  # what was frozen after the last sweep
        self._is_watching = False

    def start(self) -> None:
        """What there is now stays."""
        self._freeze()
        gc.set_threshold(*_YOUNGER, _NEVER)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """As Python has it; for tests, as a worker ends with its process. May be called without `start`."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 1 and not self._is_due and gc.get_count()[2] >= TIDY_AFTER:
            self._is_due = True
            self._loop.call_soon(self._tidy)

    def _tidy(self) -> None:
        self._is_due = False
        gc.collect()
        gc.freeze()
        self._freezings += 1
        if self._freezings % LOOK_EVERY == 0:
            self._look(gc.get_freeze_count() - 2 * self._swept)

    def _look(self, grown: int) -> None:
        if grown > MANY:
            self._sweep()
        elif grown > SPARE and not self._is_watching:
            self._is_watching = True
            self._watch()

    def _watch(self) -> None:
        used_ns = time.process_time_ns()
        self._loop.call_later(QUIET_NS, lambda: self._sweep_if_quiet(used_ns))

    def _sweep_if_quiet(self, used_ns: int) -> None:
        if (time.process_time_ns() - used_ns) * QUIET_PART < QUIET_NS:
            self._is_watching = False
            self._sweep()
        else:
            self._watch()

    def _sweep(self) -> None:
        gc.unfreeze()
        self._freeze()

    def _freeze(self) -> None:
        gc.collect()
        gc.freeze()
        self._swept = gc.get_freeze_count()
