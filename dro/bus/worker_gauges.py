"""Shows on the page of every worker: its longest turn, the delay of its timers, its heap, its log lines.

Source: DRO guide 5.4.1 for the heap.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from dro.bus.counters import CounterPage, Histogram
from dro.bus.totals import Totals
from dro.clock import NS_PER_US, s
from dro.log.handler import counted
from dro.log.lines import SEVERITIES
from dro.log.to_monitor import dropped
from dro.loop import Loop
from dro.metrics.slots import WorkerSlot as Slot
from dro.metrics.table import WORKER, bounds_of

SHOW_NS: Final = s(1)

_LOG_SLOTS: Final = {severity: Slot[f"LOG_{severity.upper()}"] for severity in SEVERITIES.values()}


class _Mallinfo(ctypes.Structure):
    """Holds what `mallinfo2(3)` of the GNU C library returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


_HEAP_SLOTS: Final = {
    name: Slot[name.upper()] for name in ("arena", "ordblks", "hblks", "hblkhd", "uordblks", "fordblks")
}


def _find_mallinfo() -> Callable[[], _Mallinfo] | None:
    """Find the C library's function; None where there is none (musl, glibc before 2.33)."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Mallinfo
    function.argtypes = []
    return function


_mallinfo = _find_mallinfo()


class WorkerGauges:
    """Writes them each second."""

    def __init__(self, page: CounterPage, loop: Loop) -> None:
        self._page = page
        self._loop = loop
        self._lag = Histogram(page, Slot.LOOP_LAG, bounds_of(WORKER, "LOOP_LAG"))
        self._logged = Totals(page, [*_LOG_SLOTS.values(), Slot.MONITOR_EVENTS_DROPPED])

    def start(self) -> None:
        self.show()
        self._next(self._loop.now_ns() + SHOW_NS)

    def _next(self, due_ns: int) -> None:
        def on_time() -> None:
            now_ns = self._loop.now_ns()
            self._lag.observe((now_ns - due_ns) // NS_PER_US)
            self.show()
            self._next(now_ns + SHOW_NS)

        self._loop.call_at(due_ns, on_time)

    def show(self) -> None:
        page = self._page
        page.set(Slot.LONGEST_TURN_US, self._loop.longest_turn_ns // NS_PER_US)
        page.set(Slot.LONGEST_TURN_CPU_US, self._loop.longest_turn_cpu_ns // NS_PER_US)
        if _mallinfo is not None:
            heap = _mallinfo()
            for name, slot in _HEAP_SLOTS.items():
                page.set(slot, getattr(heap, name))
        logged = {slot: counted[severity] for severity, slot in _LOG_SLOTS.items()}
        self._logged.show({**logged, Slot.MONITOR_EVENTS_DROPPED: dropped.total()})
