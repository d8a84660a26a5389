"""Deadlines on a heap with cheap cancellation; used by the event loop and by cores with many timers."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

COMPACT_AT: Final = 64  # cancelled entries are swept once they are this many and the majority


class Timer:
    """One pending call. `cancel()` is idempotent and O(1)."""

    __slots__ = ("_heap", "callback", "when_ns")

    def __init__(self, heap: TimerHeap, when_ns: int, callback: Callable[[], object]) -> None:
        self._heap: TimerHeap | None = heap
        self.when_ns = when_ns
        self.callback: Callable[[], object] | None = callback

    @property
    def is_pending(self) -> bool:
        return self.callback is not None

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            if self._heap is not None:
                self._heap.on_cancel()
                self._heap = None


class TimerHeap:
    """Timers in order of deadline; those of equal deadline run in the order in which they were made."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def call_at(self, when_ns: int, callback: Callable[[], object]) -> Timer:
        timer = Timer(self, when_ns, callback)
        self._serial += 1
        heapq.heappush(self._heap, (when_ns, self._serial, timer))
        return timer

    def on_cancel(self) -> None:
        self._dead += 1
        if self._dead > COMPACT_AT and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def next_deadline(self) -> int | None:
        """Deadline of the earliest pending timer in ns, or None."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def run_due(self, now_ns: int) -> int:
        """Run everything due at or before `now_ns`, in order; returns how many ran.

        A timer that a callback sets for a time already past runs in the same call, so a core driven by a fake
        clock sees its events in time order.
        """
        ran = 0
        while (when := self.next_deadline()) is not None and when <= now_ns:
            timer = heapq.heappop(self._heap)[2]
            callback = timer.callback
            timer.callback = None
            timer._heap = None
            if callback is not None:
                callback()
                ran += 1
        return ran
