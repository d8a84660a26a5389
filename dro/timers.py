"""Deadlines with cheap cancellation: on a heap, for the event loop, and in a calendar, for cores with very many."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


_END: Final = object()
DUE_MAX: Final = 256  # calls of a calendar in one turn: about a millisecond


@dataclass(slots=True, eq=False)
class Due:
    """What a calendar calls at a time, by `on_due`; it stands there once at most."""

    due_ns: int | None = field(default=None, init=False)

    def on_due(self) -> None:
        raise NotImplementedError


class _Page:
    """What is due at one time. What was taken out stays in the list, with another time of its own or none."""

    __slots__ = ("items", "pending", "position")

    def __init__(self) -> None:
        self.items: list[Due] = []
        self.position = 0
        self.pending = 0


class Calendar:
    """Very many things that fall due at times that many share: each costs a place in a list, a time one heap entry.

    What falls due together is called in the order in which it was set, `DUE_MAX` at a time.
    """

    def __init__(self) -> None:
        self._pages: dict[int, _Page] = {}
        self._heap: list[int] = []  # times of the pages
        self._empty = 0  # pages with nothing pending
        self._slices: deque[Iterator[object]] = deque()
        self._now_ns = 0  # when they were last worked on

    def __len__(self) -> int:
        return sum(page.pending for page in self._pages.values())

    def set(self, item: Due, due_ns: int | None) -> None:
        """Call `item` at that time, and at no other; None: not at all."""
        if item.due_ns == due_ns:
            return
        if item.due_ns is not None:
            self._take(self._pages[item.due_ns])
        item.due_ns = due_ns
        if due_ns is None:
            return
        page = self._pages.get(due_ns)
        if page is None:
            page = self._pages[due_ns] = _Page()
            heapq.heappush(self._heap, due_ns)
        elif not page.pending:
            self._empty -= 1
        page.items.append(item)
        page.pending += 1

    def _take(self, page: _Page) -> None:
        page.pending -= 1
        if page.pending:
            return
        page.items, page.position = [], 0
        self._empty += 1
        if self._empty > COMPACT_AT and self._empty * 2 > len(self._heap):
            self._pages = {at: page for at, page in self._pages.items() if page.pending}
            self._heap = sorted(self._pages)
            self._empty = 0

    def next_deadline(self) -> int | None:
        """Time of the earliest in ns, or None; a time gone by while long work is going on."""
        at_ns = self._first()
        return at_ns if not self._slices else self._now_ns if at_ns is None else min(at_ns, self._now_ns)

    def _first(self) -> int | None:
        heap = self._heap
        while heap and not self._pages[heap[0]].pending:
            del self._pages[heapq.heappop(heap)]
            self._empty -= 1
        return heap[0] if heap else None

    def run_due(self, now_ns: int) -> None:
        """Call what is due at or before `now_ns`, in order, `DUE_MAX` of it at most; the deadline tells of more."""
        for _ in range(DUE_MAX):
            at_ns = self._first()
            if at_ns is None or at_ns > now_ns:
                break
            page = self._pages[at_ns]
            item = page.items[page.position]
            page.position += 1
            while item.due_ns != at_ns:
                item = page.items[page.position]
                page.position += 1
            item.due_ns = None
            self._take(page)
            item.on_due()
        self._now_ns = now_ns
        self._work()

    def run_in_slices(self, steps: Iterator[object], now_ns: int) -> None:
        """Run `steps` to its end, `DUE_MAX` a turn beside what is due; at once as far as nothing else is going on."""
        self._now_ns = now_ns
        self._slices.append(steps)
        if len(self._slices) == 1:
            self._work()

    def resume(self, steps: Iterator[object]) -> None:
        """Run `steps` with those that are under way, from the next turn on."""
        self._slices.append(steps)

    def _work(self) -> None:
        left = DUE_MAX
        while left and self._slices:
            steps = self._slices.popleft()
            while left:
                left -= 1
                if next(steps, _END) is _END:
                    break
            else:
                self._slices.append(steps)
