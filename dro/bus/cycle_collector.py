"""Collections of reference cycles in a worker: short ones, however much the worker knows and however fast it learns.

A full collection of CPython looks at every object: 100,000 topics are three million, which takes 0.2 s and comes again
with each quarter more. Its short collections are no shorter when as many objects go as come: CPython counts what has
come less what has gone, and half a million new ones may wait for the next collection. Here what has survived two
collections is frozen, and not looked at again. When the process has worked for more than `BUSY_NS` since the last
collection, so that there may be many, they are frozen unseen, which takes a microsecond. So few collections take longer
than 5 ms, and an idle worker makes none.

Cycles among frozen objects that are not used any more stay; there should be none, as what ends lets go of what refers
to it. Should there be some after all, a sweep of all objects finds them. It takes up to a second, so a child process
looks first whether it is worth that (`dro.bus.cycle_search`). That is done when the worker has been quiet for a second,
and only when so much has come since that cycles may be among it (blocks of memory, or bytes, as a few cycles may hold
large buffers), or an hour after the last time if anything was frozen since. It is done at once when very much has come.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Final

from dro.bus.cycle_search import own_bytes, search
from dro.clock import ms, s
from dro.loop import Loop
from dro.timers import Timer

BUSY_NS: Final = ms(20)
"""Processor time: at most a few thousand objects come in less."""
LOOK_NS: Final = s(10)
"""From a freezing until what there is is counted, which takes a millisecond."""
RARELY_NS: Final = s(3600)
"""From a sweep to the next when quiet, however little has come."""
SPARE: Final = 9_000_000  # 100,000 topics are seven million
MANY: Final = 18_000_000
"""Blocks of memory beyond twice those that the last sweep left: before the next is done when quiet, and at all."""
SPARE_BYTES: Final = 32 << 20
MANY_BYTES: Final = 512 << 20
"""Likewise, bytes of memory that are the process's own, beyond a quarter more than after the last sweep."""
QUIET_NS: Final = s(1)
QUIET_PART: Final = 20
"""A worker is quiet when it needs less than this part of a processor."""
_NEVER: Final = 1 << 30
_THRESHOLDS: Final = (700, 5, _NEVER)
"""New objects until a collection of these, those until one of the survivors; what survives that is frozen."""
WORTH_BYTES: Final = 4 << 20
"""In cycles, for which all objects are swept."""


class CycleCollector:
    """Collects the reference cycles of the whole process; there is one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._thresholds = gc.get_threshold()
        self._used_ns = 0  # processor time of the process at the last collection
        self._swept = self._swept_bytes = self._swept_ns = 0  # what the last sweep left, and when that was
        self._is_looking = False  # soon, or each second until a sweep
        self._timer: Timer | None = None

    def start(self) -> None:
        """Keep what there is now, unseen: a worker that goes on has much by then."""
        gc.freeze()
        self._note_swept()
        self._used_ns = time.process_time_ns()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Give collecting back to Python; for tests, as a worker ends with its process. Works without `start`."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Freeze objects, on the thread that made one too many. A collection of all always is one asked for."""
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
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_soon(lambda: self._look_at(self._loop.now_ns() + LOOK_NS))

    def _look_at(self, when_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when_ns, self._look)

    def _look(self) -> None:
        blocks = sys.getallocatedblocks() - 2 * self._swept
        nbytes = own_bytes() - self._swept_bytes * 5 // 4
        next_ns = self._swept_ns + RARELY_NS
        if blocks > MANY or nbytes > MANY_BYTES:
            self._search()
        elif blocks > SPARE or nbytes > SPARE_BYTES or self._loop.now_ns() >= next_ns:
            self._is_looking = True
            used_ns = time.process_time_ns()
            self._timer = self._loop.call_later(QUIET_NS, lambda: self._sweep_if_quiet(used_ns))
        else:
            self._is_looking = False
            self._look_at(next_ns)

    def _sweep_if_quiet(self, used_ns: int) -> None:
        if (time.process_time_ns() - used_ns) * QUIET_PART < QUIET_NS:
            self._search()
        else:
            self._look()

    def _search(self) -> None:
        try:
            search(self._loop, self._on_found)
        except OSError:  # no memory or no processes left
            self._sweep()

    def _on_found(self, nbytes: int) -> None:
        if nbytes >= WORTH_BYTES:
            self._sweep()
        else:
            self._note_swept()

    def _sweep(self) -> None:
        gc.unfreeze()
        self._freeze()

    def _freeze(self) -> None:
        gc.collect()
        gc.freeze()
        self._note_swept()

    def _note_swept(self) -> None:
        self._swept, self._swept_bytes, self._swept_ns = sys.getallocatedblocks(), own_bytes(), self._loop.now_ns()
        self._is_looking = False
