"""Collections of reference cycles in a worker: short ones, however much the worker knows and however fast it learns.

A full collection of CPython looks at every object: 100,000 topics are three million, which takes 0.2 s and comes again
with each quarter more. Its short collections are no shorter when as many objects go as come: CPython counts what has
come less what has gone, and half a million new ones may wait for the next collection. Here what has survived two
collections is frozen, and not looked at again. When the process has worked for more than `BUSY_NS` since the last
collection, so that there may be many, they are frozen unseen, which takes a microsecond. So few collections take longer
than 5 ms, and an idle worker makes none.

Cycles among frozen objects that are not used any more stay; there are few, as objects that come and go with topics and
sources make none. A sweep of all objects takes up to a second: it is done when there is so much more than twice what
the last one left that cycles must be among it, once the worker has been quiet for a second, or at `MANY`.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Final

from dro.clock import ms, s
from dro.loop import Loop

BUSY_NS: Final = ms(20)
"""Processor time: at most a few thousand objects come in less."""
LOOK_EVERY: Final = 1024
"""Freezings until what there is is counted, which takes a millisecond."""
SPARE: Final = 9_000_000  # 100,000 topics are seven million
MANY: Final = 18_000_000
"""Blocks of memory beyond twice those that the last sweep left: before the next is done when quiet, and at all."""
QUIET_NS: Final = s(1)
QUIET_PART: Final = 20
"""A worker is quiet when it needs less than this part of a processor."""
_NEVER: Final = 1 << 30
_THRESHOLDS: Final = (700, 5, _NEVER)
"""New objects until a collection of these, those until one of the survivors; what survives that is frozen."""


class CycleCollector:
    """Of the whole process; there is one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._thresholds = gc.get_threshold()
        self._used_ns = 0  # processor time of the process at the last collection
        self._freezings = 0
        self._swept = 0  # what the last sweep left
        self._is_watching = False

    def start(self) -> None:
        """What there is now stays."""
        self._freeze()
        self._used_ns = time.process_time_ns()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """As Python has it; for tests, as a worker ends with its process. May be called without `start`."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """On the thread that made the object too many. A collection of all is always one that was asked for."""
        generation = info["generation"]
        if phase == "start" and generation < 2:
            used_ns = time.process_time_ns()
            if used_ns - self._used_ns > BUSY_NS:
                self._keep()
            self._used_ns = used_ns
        elif phase == "stop" and generation == 1:
            self._keep()

    def _keep(self) -> None:
        gc.freeze()
        self._freezings += 1
        if self._freezings % LOOK_EVERY == 0:
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        grown = sys.getallocatedblocks() - 2 * self._swept
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
        self._swept = sys.getallocatedblocks()
