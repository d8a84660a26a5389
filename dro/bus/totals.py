"""Counters that a process knows as totals since its start, shown on a page that has those of earlier incarnations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from dro.bus.counters import CounterPage

S = TypeVar("S", bound=int)


class Totals(Generic[S]):
    """Adds what the page had before; none of its counters ever falls, as that of a socket would when it is closed."""

    def __init__(self, page: CounterPage, slots: Iterable[S]) -> None:
        self._page = page
        self._before = {slot: page[slot] for slot in slots}

    def show(self, totals: Mapping[S, int]) -> None:
        """Write `totals`, by slot, since the start of the process."""
        for slot, total in totals.items():
            self._page.set(slot, max(self._page[slot], self._before[slot] + total))
