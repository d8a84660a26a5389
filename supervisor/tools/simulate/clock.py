"""The time of a simulation: what happens when, in one order that depends on nothing but the input."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Timed(Protocol):
    """A core, or what stands around one."""

    def next_deadline(self) -> int | None: ...

    def on_timer(self, now_ns: int) -> object: ...


class SimClock:
    """Events run in the order of their time, those of one time in the order in which they were put."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = count()
        self._armed: dict[Timed, int] = {}

    def after(self, delay_ns: int, event: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._serial), event))

    def arm(self, timed: Timed) -> None:
        """To be called whenever its deadline may have changed."""
        due_ns, armed_ns = timed.next_deadline(), self._armed.get(timed)
        if due_ns is None or (armed_ns is not None and armed_ns <= due_ns):
            return
        due_ns = max(due_ns, self.now_ns)
        self._armed[timed] = due_ns
        heapq.heappush(self._events, (due_ns, next(self._serial), lambda: self._on_due(timed, due_ns)))

    def _on_due(self, timed: Timed, due_ns: int) -> None:
        if self._armed.get(timed) != due_ns:
            return
        del self._armed[timed]
        deadline_ns = timed.next_deadline()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            timed.on_timer(self.now_ns)
        self.arm(timed)

    def run_until(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
        self.now_ns = until_ns
