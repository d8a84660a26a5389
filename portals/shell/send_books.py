"""The books of one traffic that leaves by a portal, beside source data: forwarded is sent, dropped or waiting.

What waits ends with the process; the next one counts it as dropped, reason `worker_restart`.
"""

from __future__ import annotations

from dro.bus.counters import CounterPage
from dro.metrics.slots import Slot
from dro.metrics.table import PEER, flows


class SendBooks:
    """See the module text."""

    def __init__(self, page: CounterPage, traffic: str, most: Slot | None = None) -> None:
        """`traffic`: its label. `most`: where the most bytes that waited are shown."""
        flow = next(flow for flow in flows(PEER) if flow.traffic == traffic)  # that has all reasons
        self._page = page
        self._forwarded, self._waiting = Slot[flow.forwarded], Slot[flow.queued]
        self._most = most
        restart = next(Slot[name] for name in flow.dropped if name.endswith("_DROPPED_RESTART"))
        ended = [Slot[name] for name in (flow.sent, *flow.dropped)]
        lost = [page[self._forwarded + step] - sum(page[slot + step] for slot in ended) for step in (0, 1)]
        if any(lost):  # it may have died between two of its entries
            page.add_sized(restart, *lost)
        page.set(self._waiting, 0)
        page.set(self._waiting + 1, 0)

    def begin(self, nbytes: int) -> None:
        """Count one message that shall leave."""
        page = self._page
        page.add_sized(self._forwarded, 1, nbytes)
        page.add_sized(self._waiting, 1, nbytes)

    def note_most(self) -> None:
        """Compare what waits with the most so far; behind `begin`, when what is refused at once has been counted."""
        waiting = self._page[self._waiting + 1]
        if self._most is not None and waiting > self._page[self._most]:
            self._page.set(self._most, waiting)

    def end(self, slot: Slot, nbytes: int) -> None:
        """Count what has become of it."""
        self._page.add_sized(slot, 1, nbytes)
        self._page.add_sized(self._waiting, -1, -nbytes)
