"""The queue of `<max-queue>`: fragments that their transport sessions have not accepted yet, up to a limit in bytes.

One ordered queue for each session, in its lane; the limit is common to all, and to what `feeder_order` holds back. The
counters of the portal show what is queued, in total and by sibling, and for how long sends have blocked. Source: DRO
guide, `<max-queue>`; forwarding notes, section 19.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise

from dro.bus.counters import CounterPage
from dro.clock import NS_PER_US
from dro.log.events import LogEvent
from dro.metrics.slots import PairSlot, Slot
from dro.transport.frames import keep_first
from dro.transport.kept_senders import PIECES
from dro.transport.runs import FRAGMENTS, KIND_SHIFT, KIND_TSNI, LENGTH, ROW, SHAPE, RunTable
from portals.datapath.episodes import Episodes
from portals.datapath.outgoing import Lane, ProxySource, Waiting, copy_of, first_bytes, set_apart
from portals.datapath.waiting_log import Place, WaitingLogs

log = logging.getLogger(__name__)


class MaxQueue:
    """See the module text."""

    def __init__(
        self, page: CounterPage, limit_bytes: int, now_ns: Callable[[], int], logs: WaitingLogs | None = None
    ) -> None:
        """`logs`: of what waits, where that outlives the process."""
        self.nbytes = 0
        self._logs = logs
        self.place_of: Callable[[int], Place] = lambda _: (0, 0)
        """Says what was taken of a sibling by now."""
        self._page = page
        self._now_ns = now_ns
        self._blocked_ns = 0  # up to when it is counted for how long sends have blocked
        self._batches = 0
        self._batches_of: dict[ProxySource, dict[Waiting, None]] = {}  # in which its rows wait
        self._in_use = Episodes(
            lambda extra: log.info(LogEvent.ENQUEUEING_BEGAN, extra=extra),
            lambda: log.info(LogEvent.QUEUE_FLUSHED),
        )
        page.set(Slot.QUEUED, 0)
        page.set(Slot.QUEUED_BYTES, 0)
        page.set(Slot.SEND_BLOCKED, 0)
        self.set_limit(limit_bytes)

    def set_limit(self, limit_bytes: int) -> None:
        """What waits beyond a smaller limit stays; nothing more is taken until there is room again."""
        self.limit_bytes = limit_bytes
        self._page.set(Slot.QUEUE_LIMIT, limit_bytes)

    def put(self, lane: Lane, worker: int, buffer: bytearray, table: RunTable, now_ns: int) -> None:
        """Keep the rows of the table as far as they fit; newest first, the others stay in it: they are dropped.

        A TSNI of a proxy source that has one waiting is not kept either: one is enough, and a stranger may send
        thousands.
        """
        if any(shape >> KIND_SHIFT == KIND_TSNI for shape in table.column(SHAPE)):
            kept = self._without_tsnis(lane, table)
        else:
            kept, table.rows = copy_of(table), 0
        rest = keep_first(kept, first_bytes(kept, max(0, self.limit_bytes - self.nbytes)))
        for run in rest:
            table.add_run(run)
            if run.kind == KIND_TSNI:
                lane.proxies[run.topic_index].tsni_waits = False
        while kept.rows:
            left = keep_first(kept, min(PIECES, kept.fragments()))
            self._add(lane, worker, buffer, kept, now_ns)
            kept = left

    def _add(self, lane: Lane, worker: int, buffer: bytearray, kept: RunTable, now_ns: int) -> None:
        """Let these rows wait: no more of them than the next incarnation finds in the log of what was sent."""
        fragments, nbytes = kept.fragments(), kept.nbytes()
        waiting = Waiting(worker, set_apart(buffer, kept), kept, nbytes)
        for topic in kept.column(0):
            proxy = lane.proxies[topic]
            proxy.queued += 1
            self._batches_of.setdefault(proxy, {})[waiting] = None
        self._in_use.on_begin(now_ns)
        if not self._batches:
            self._blocked_ns = now_ns
            self._page.set(Slot.SEND_BLOCKED, 1)
            self._page.add(Slot.SEND_BLOCKED_EPISODES)
        self._batches += 1
        if lane.log is None and self._logs is not None and not lane.waiting:
            lane.log = self._logs.new_log()
        lane.waiting.append(waiting)
        if lane.log is not None:
            lane.log.add(waiting, lane, self.place_of(worker))
        self.count(worker, fragments, nbytes)

    @staticmethod
    def let_go(lane: Lane) -> None:
        """Log no longer what waits no more, when that is in the books."""
        if lane.log is None:
            return
        if lane.waiting:
            lane.log.keep_from(lane.waiting[0].number)
        elif lane.log.is_over() or not lane.proxies:
            lane.log.close()
            lane.log = None

    @staticmethod
    def _without_tsnis(lane: Lane, table: RunTable) -> RunTable:
        kept, over = RunTable(table.rows), RunTable(table.rows)
        for run in table:
            proxy = lane.proxies[run.topic_index]
            if run.kind == KIND_TSNI and proxy.tsni_waits:
                over.add_run(run)
            else:
                proxy.tsni_waits |= run.kind == KIND_TSNI
                kept.add_run(run)
        table.rows = 0
        for run in over:
            table.add_run(run)
        return kept

    def on_taken(self, lane: Lane, waiting: Waiting, rows: list[int], fragments: int) -> None:
        """Note that so many fragments of a lane's first batch were sent. `rows`: topic indexes that it had."""
        nbytes = waiting.table.nbytes()
        self.count(waiting.worker, -fragments, nbytes - waiting.nbytes)
        waiting.nbytes = nbytes
        left = waiting.table.column(0).tolist()
        for topic in left:
            lane.proxies[topic].queued += 1
        for topic in rows:
            proxy = lane.proxies[topic]
            proxy.queued -= 1
            if not proxy.queued:
                proxy.tsni_waits = False
        for topic in set(rows).difference(left):
            self._is_out_of(lane.proxies[topic], waiting)
        if not left:
            lane.waiting.popleft()
            self._forget()

    def _is_out_of(self, proxy: ProxySource, waiting: Waiting) -> None:
        """Forget a batch for the proxy source: it has no row of it any more."""
        batches = self._batches_of[proxy]
        del batches[waiting]
        if not batches:
            del self._batches_of[proxy]

    def remove(self, lane: Lane, proxy: ProxySource) -> list[tuple[int, int, int]]:
        """Take out all that waits for the proxy source: (worker, fragments, bytes). The others keep their order.

        The cost is that of the batches that have something of it, however many others wait.
        """
        removed: list[tuple[int, int, int]] = []
        for waiting in self._batches_of.pop(proxy, ()):
            waiting.table, gone = _without(waiting.table, proxy.topic_index)
            for fragments, length in gone:
                removed.append((waiting.worker, fragments, fragments * length))
                self.count(waiting.worker, -fragments, -fragments * length)
            waiting.nbytes = waiting.table.nbytes()
            if not waiting.table.rows:
                lane.waiting.remove(waiting)
                self._forget()
        proxy.queued, proxy.tsni_waits = 0, False
        return removed

    def clear(self, lane: Lane) -> list[tuple[int, int, int]]:
        """Take out all that waits in the lane: (worker, fragments, bytes)."""
        removed: list[tuple[int, int, int]] = []
        while lane.waiting:
            waiting = lane.waiting.popleft()
            removed.append((waiting.worker, waiting.table.fragments(), waiting.nbytes))
            self.count(waiting.worker, -waiting.table.fragments(), -waiting.nbytes)
            for topic in waiting.table.column(0):
                proxy = lane.proxies[topic]
                proxy.queued, proxy.tsni_waits = 0, False
                self._batches_of.pop(proxy, None)
            self._forget()
        return removed

    def _forget(self) -> None:
        if self._batches == 1:
            self.count_blocked()
            self._page.set(Slot.SEND_BLOCKED, 0)
            self._in_use.on_end()
        self._batches -= 1

    def count_blocked(self) -> None:
        """Count for how long sends have blocked up to now."""
        if self._batches:
            more_us = (self._now_ns() - self._blocked_ns) // NS_PER_US
            self._page.add(Slot.SEND_BLOCKED_US, more_us)
            self._blocked_ns += more_us * NS_PER_US

    def count(self, worker: int, fragments: int, nbytes: int) -> None:
        """Count so much more of the sibling as queued, or less."""
        page = self._page
        base = page.pair(worker)
        self.nbytes += nbytes
        page.add_sized(base + PairSlot.QUEUED, fragments, nbytes)
        page.add(Slot.QUEUED, fragments)
        page.set(Slot.QUEUED_BYTES, self.nbytes)
        if self.nbytes > page[Slot.QUEUED_BYTES_MAX]:
            page.set(Slot.QUEUED_BYTES_MAX, self.nbytes)


def _without(table: RunTable, topic_index: int) -> tuple[RunTable, list[tuple[int, int]]]:
    """Return the rows of other topics, and fragments and length of each row of this one."""
    rows = [row for row, topic in enumerate(table.column(0)) if topic == topic_index]
    raw, size = table.tobytes(), ROW.size
    kept = RunTable(table.rows)
    kept.rows = table.rows - len(rows)
    between = pairwise((-1, *rows, table.rows))
    kept.tobytes()[:] = b"".join([raw[(before + 1) * size : after * size] for before, after in between])
    counts, lengths = table.column(FRAGMENTS), table.column(LENGTH)
    return kept, [(counts[row], lengths[row]) for row in rows]
