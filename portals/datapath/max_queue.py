"""The queue of `<max-queue>`: runs that their transport sessions have not accepted yet, up to a limit in bytes.

One ordered queue for each session; the limit is common to all. The counters of the portal show what is queued, in total
and by sibling. Source: DRO guide, `<max-queue>`; forwarding notes, section 19.
"""

from __future__ import annotations

import logging
from collections import deque

from dro.bus.counters import CounterPage
from dro.log.events import LogEvent
from dro.um.transport.session import SenderTransport
from portals.datapath.counters import PairSlot, Slot
from portals.datapath.episodes import Episodes
from portals.datapath.outgoing import OutgoingRun, ProxySource

log = logging.getLogger(__name__)


class MaxQueue:
    """See the module text."""

    def __init__(self, page: CounterPage, limit_bytes: int) -> None:
        self.nbytes = 0
        self._page = page
        self._runs: dict[int, deque[OutgoingRun]] = {}  # by id of the transport session
        self._in_use = Episodes(
            lambda extra: log.info(LogEvent.ENQUEUEING_BEGAN, extra=extra),
            lambda: log.info(LogEvent.QUEUE_FLUSHED),
        )
        page.set(Slot.QUEUED, 0)
        page.set(Slot.QUEUED_BYTES, 0)
        self.set_limit(limit_bytes)

    def set_limit(self, limit_bytes: int) -> None:
        """What waits beyond a smaller limit stays; nothing more is taken until there is room again."""
        self.limit_bytes = limit_bytes
        self._page.set(Slot.QUEUE_LIMIT, limit_bytes)

    def room_for(self, out: OutgoingRun) -> int:
        """How many fragments of its rest fit."""
        length = out.run.length
        return min(out.rest, max(0, self.limit_bytes - self.nbytes) // length) if length else out.rest

    def first(self, transport: SenderTransport) -> OutgoingRun | None:
        """What waits longest for the session; None when nothing does."""
        runs = self._runs.get(id(transport))
        return runs[0] if runs else None

    def put(self, out: OutgoingRun, now_ns: int) -> None:
        out.set_apart()
        self._in_use.on_begin(now_ns)
        self._runs.setdefault(id(out.proxy.transport), deque()).append(out)
        out.proxy.queued += 1
        self._count(out, out.rest)
        if self.nbytes > self._page[Slot.QUEUED_BYTES_MAX]:
            self._page.set(Slot.QUEUED_BYTES_MAX, self.nbytes)

    def take(self, out: OutgoingRun, fragments: int) -> None:
        """So many of the first run of a session were sent; it leaves the queue with its last fragment."""
        self._count(out, -fragments)
        out.first += fragments
        if not out.rest:
            runs = self._runs[id(out.proxy.transport)]
            runs.popleft()
            out.proxy.queued -= 1
            if not runs:
                self._forget(out.proxy.transport)

    def remove(self, proxy: ProxySource) -> list[OutgoingRun]:
        """All that waits for the proxy source; the others keep their order."""
        if not proxy.queued:
            return []
        runs = self._runs[id(proxy.transport)]
        removed = [out for out in runs if out.proxy is proxy]
        kept = deque([out for out in runs if out.proxy is not proxy])
        for out in removed:
            self._count(out, -out.rest)
        proxy.queued = 0
        if kept:
            self._runs[id(proxy.transport)] = kept
        else:
            self._forget(proxy.transport)
        return removed

    def _forget(self, transport: SenderTransport) -> None:
        """Nothing waits for the session any more, which may be about to end."""
        del self._runs[id(transport)]
        if not self._runs:
            self._in_use.on_end()

    def _count(self, out: OutgoingRun, fragments: int) -> None:
        page, nbytes = self._page, fragments * out.run.length
        base = page.pair(out.worker)
        self.nbytes += nbytes
        page.add_sized(base + PairSlot.QUEUED, fragments, nbytes)
        page.add(Slot.QUEUED, fragments)
        page.set(Slot.QUEUED_BYTES, self.nbytes)
