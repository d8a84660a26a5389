"""The sending half of a portal's data path: descriptors in, proxy sources out.

Copies a chunk out of the sender's ring, drops duplicates (`duplicate_window`) and fragments that do not fit, sorts the
rest by the transport session of their proxy sources (`plan`), gives each session its part at once, and queues what that
does not accept (`max_queue`). What a new feeder brings too early is held back (`feeder_order`). A fragment from a
sibling is always in exactly one of the states sent, dropped (by reason) or queued, as the counters show.

Source: DRO guide, `<max-queue>` and 5.4.2; forwarding notes, sections 13, 18 and 19.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from operator import sub
from typing import Final, Protocol

from dro.bus.counters import CounterPage
from dro.bus.descriptors import BatchDescriptor as QueueSlot
from dro.clock import ms
from dro.errors import DecodeError
from dro.kept.store import NOTHING_KEPT, Kept
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.metrics.slots import PairSlot, Slot
from dro.sqn import MASK
from dro.transport.runs import (
    FLAG_REPAIR,
    FLAGS_SHIFT,
    FRAGMENTS,
    KIND_SHIFT,
    OFFSET,
    ROW,
    SQN,
    TOPIC,
    WORDS,
    RunTable,
)
from dro.transport.session import SenderTransport
from portals.datapath import pair_books
from portals.datapath.descriptor import JOIN_BELOW, decode, table_bytes
from portals.datapath.feeder_order import FeederOrder
from portals.datapath.max_queue import MaxQueue
from portals.datapath.outgoing import MAX_FEEDERS, Lane, ProxySource, totals
from portals.datapath.plan import plan
from portals.datapath.waiting_log import WaitingLogs

# plain integers in the compiled form
_ACCOUNTED, _SENT, _SENT_OF, _FORWARDED = PairSlot.ACCOUNTED, Slot.SENT, PairSlot.SENT, Slot.FORWARDED

log = logging.getLogger(__name__)
events = LimitedLogger.of_events(log)
faults = LimitedLogger(log)
limited = faults.event
RELEASE_NS: Final = ms(5)  # between two looks at what is held back, at least


class RingCopy(Protocol):
    """The reading end of a sibling's ring."""

    def copy(self, pos: int, nbytes: int) -> bytearray | None: ...
    def append(self, buffer: bytearray, pos: int, nbytes: int) -> bool: ...


class Egress:
    """Owns the queue and the send-side counters of the portal."""

    def __init__(
        self,
        page: CounterPage,
        max_queue_bytes: int,
        now_ns: Callable[[], int],
        call_later: Callable[[int, Callable[[], object]], object],
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        """`kept`: what waits is left there, for the next incarnation."""
        self._page = page
        self.logs = WaitingLogs(kept, max_queue_bytes)
        pair_books.settle_restart(page, self.logs.total)
        self._now_ns = now_ns
        self._call_later = call_later
        self._feeds: dict[int, dict[int, ProxySource]] = {}  # by worker and handle
        self._lanes: dict[int, Lane] = {}  # by id of the session
        self._table = RunTable()  # the batch at hand, which lies in the buffer
        self._buffer = bytearray()
        self._worker = 0  # that it came from
        self._packs_all = False
        self._touched: dict[int, Lane] = {}  # sessions that got something since the last flush
        self._rings: dict[int, RingCopy] = {}
        self.queue = MaxQueue(page, max_queue_bytes, now_ns, self.logs if kept.rows is not None else None)
        self._order = FeederOrder(self.queue, now_ns)
        self._is_timed = False  # for what is held back
        self.is_operational = True
        """False, set by a link to another DRO that is down: what is dropped then is dropped for that reason."""
        self._drops_logged_ns = 0
        self._again: dict[int, list[int]] = {}  # fragments and bytes that come once more, and are counted already

    # siblings

    def on_ring(self, worker: int, ring: RingCopy | None) -> None:
        """The ring of a sibling's new incarnation, or None when it is gone."""
        if ring is None:
            self._rings.pop(worker, None)
        else:
            self._rings[worker] = ring

    def reconcile(self, worker: int, forwarded: int, forwarded_bytes: int) -> int:
        """Compare what the sibling ever handed over, by its own count, with what is known of it here.

        The difference, which is returned, was on the way to a worker that died, or from one; it is counted as
        `worker_restart`.
        """
        self._send_batch()
        known, known_bytes = self.books_of(worker)
        lost, lost_bytes = forwarded - known, forwarded_bytes - known_bytes
        if lost > 0 or lost_bytes > 0:
            self._page.add_sized(Slot.FORWARDED, lost, lost_bytes)
            self._drop(Slot.DROPPED_RESTART, worker, lost, lost_bytes)
        return lost

    def books_of(self, worker: int) -> tuple[int, int]:
        """Return fragments and bytes of the sibling that are in the books, without those that come once more."""
        return pair_books.books_of(self._page, worker, self._again.get(worker, pair_books.NOTHING_AGAIN))

    def go_back(self, worker: int, fragments: int, nbytes: int) -> None:
        """Note that what was accounted for beyond these is taken once more from the sibling's queue.

        What of it was sent already is no duplicate: it counts as sent, once (`_count_again`), until `end_again`.
        """
        self._again[worker] = pair_books.counted_beyond(self._page, worker, fragments, nbytes)

    def end_again(self, worker: int) -> None:
        """Nothing more comes from the sibling that the incarnation before has taken."""
        self._send_batch()
        if (again := self._again.pop(worker, None)) is not None:  # that was dropped, and then counted anew
            self._page.add_sized(self._page.pair(worker) + _ACCOUNTED, -again[0], -again[1])

    def _count_again(self, worker: int, fragments: int, length: int, dropped: Slot | None = None) -> None:
        pair_books.count_again(self._page, worker, self._again[worker], fragments, length, dropped)

    def take_waited(self, worker: int) -> None:
        """Take what waits of the sibling since the former incarnation, before anything else of it."""
        if worker not in self.logs.waited:
            return
        self._send_batch()
        table = self._table
        for waited in self.logs.waited.pop(worker):
            table.rows = waited.table.rows
            table.tobytes()[:] = waited.table.tobytes()
            fragments, nbytes = table.total()
            self._page.add_sized(_FORWARDED, fragments, nbytes)
            self._buffer, self._worker = waited.data, worker
            self._send_batch()
        self.flush_sessions()
        self.logs.on_taken(worker)

    def accounted(self, worker: int) -> int:
        """Fragments of the sibling that were ever sent or dropped here."""
        self._send_batch()
        return self._page[self._page.pair(worker) + PairSlot.ACCOUNTED]

    # proxy sources

    def feed(self, proxy: ProxySource, worker: int, handle: int, *, is_beside: bool = False) -> None:
        """Send fragments of (`worker`, `handle`) to `proxy` from now on; what still comes of its feeder before as well.

        `is_beside`: the one before brings what is new for a while yet, until `on_feeder_ended`.
        """
        if (worker, handle) not in proxy.feeders:
            self._release_now([proxy])
        proxy.before_goes_on = is_beside
        lane = proxy.lane
        if lane is None:
            lane = proxy.lane = self._lane(proxy.transport)
            lane.proxies[proxy.topic_index] = proxy
        feeder = (worker, handle)
        if feeder in proxy.feeders:
            proxy.feeders.remove(feeder)
        proxy.feeders.append(feeder)
        self._feeds.setdefault(worker, {})[handle] = proxy
        while len(proxy.feeders) > MAX_FEEDERS:
            self._remove_feeder(proxy, *proxy.feeders.pop(0))

    def _lane(self, transport: SenderTransport) -> Lane:
        lane = self._lanes.get(id(transport))
        if lane is None:
            lane = self._lanes[id(transport)] = Lane(transport)
            transport.packs_all = self._packs_all
            if transport.on_unblocked is None:
                transport.on_unblocked = lambda: self.drain(transport)
        return lane

    def sessions(self) -> list[SenderTransport]:
        """List those that proxy sources send on."""
        return [lane.transport for lane in self._lanes.values()]

    def lanes(self) -> list[Lane]:
        """List the sessions that proxy sources send on, with the proxy sources and what waits for the session."""
        return list(self._lanes.values())

    def set_smart_batch(self, is_on: bool) -> None:
        """`<smart-batch>`: sessions send all that waits for them at once in as few datagrams as possible."""
        self._packs_all = is_on
        for lane in self._lanes.values():
            lane.transport.packs_all = is_on

    def _remove_feeder(self, proxy: ProxySource, worker: int, handle: int) -> None:
        feeds = self._feeds.get(worker, {})
        if feeds.get(handle) is proxy:
            del feeds[handle]

    def on_feeder_ended(self, worker: int, handle: int) -> None:
        """The feeder before of a proxy source brings nothing new any more."""
        proxy = self._feeds.get(worker, {}).get(handle)
        if proxy is not None and proxy.feeder != (worker, handle):
            proxy.before_goes_on = False
            self._release_now([proxy])

    def stop_feeding(self, proxy: ProxySource) -> None:
        for feeder in proxy.feeders:
            self._remove_feeder(proxy, *feeder)
        proxy.feeders.clear()

    def flush(self, proxy: ProxySource) -> None:
        """The proxy source is being deleted: throw away what still waits for it."""
        self.stop_feeding(proxy)
        lane = proxy.lane
        if lane is None:
            return
        removed = self.queue.remove(lane, proxy)
        removed += [(part.worker, *part.table.total()) for part in self._order.take(proxy)]
        for worker, fragments, nbytes in removed:
            self._drop(self._why(Slot.DROPPED_DELETED), worker, fragments, nbytes)
        if removed:
            events.event(LogEvent.QUEUED_DATA_DROPPED, {"topic": proxy.topic})
        del lane.proxies[proxy.topic_index]
        self.queue.let_go(lane)
        proxy.lane = None
        if not lane.proxies:
            del self._lanes[id(lane.transport)]
            self._touched.pop(id(lane.transport), None)

    def drop_waiting(self) -> None:
        """Throw away what waits for a link that is down, and was not back in time."""
        self._send_batch()
        for proxy in list(self._order.held):
            for part in self._order.take(proxy):
                self._drop(Slot.DROPPED_NOT_OPERATIONAL, part.worker, *part.table.total())
        for lane in self._lanes.values():
            for worker, fragments, nbytes in self.queue.clear(lane):
                self._drop(Slot.DROPPED_NOT_OPERATIONAL, worker, fragments, nbytes)
            self.queue.let_go(lane)

    def _why(self, slot: Slot) -> Slot:
        """Return the reason to drop something: `slot`, while the link is up."""
        return slot if self.is_operational else Slot.DROPPED_NOT_OPERATIONAL

    # data

    def on_batch(self, worker: int, slot: QueueSlot) -> None:
        """What a descriptor of the sibling tells of: taken over, and sent at the next `flush_sessions` at the latest.

        Small batches that follow each other are sent as one. A broken one costs its fragments, and nothing else.
        """
        page, table = self._page, self._table
        if table.rows and (worker != self._worker or len(self._buffer) >= JOIN_BELOW or slot.rows > table.room // 2):
            self._send_batch()
        page.add_sized(_FORWARDED, slot.fragments, slot.nbytes)
        ring = self._rings.get(worker)
        if ring is None or slot.kind:  # it went with the sibling; or no source data, which is a bug of the sibling
            self._drop(Slot.DROPPED_ERROR, worker, slot.fragments, slot.nbytes)
            return
        rows, buffer = table.rows, self._buffer
        frame = ring.copy(slot.table, table_bytes(slot.rows))
        is_whole = frame is not None
        if frame is not None:
            try:
                position, size = decode(frame, table, len(buffer))
                if table.total(rows) != (slot.fragments, slot.nbytes):
                    table.rows = rows
                    raise DecodeError("descriptor", "it announces something else than its table holds")
            except DecodeError as e:
                self._drop(Slot.DROPPED_ERROR, worker, slot.fragments, slot.nbytes)
                limited(LogEvent.DESCRIPTOR_BROKEN, extra={"error": str(e)})
                return
            is_whole = not size or ring.append(buffer, position, size)
        if not is_whole:  # this portal was too slow: the writer has been round
            table.rows = rows
            self._drop(Slot.DROPPED_BLOCKED, worker, slot.fragments, slot.nbytes)
            self._log_drops(self._now_ns())
            return
        self._worker = worker

    def on_expired(self, worker: int, slot: QueueSlot) -> None:
        """Drop what a descriptor tells of that waited for too long while this portal was away."""
        self._page.add_sized(_FORWARDED, slot.fragments, slot.nbytes)
        self._drop(Slot.DROPPED_RESTART, worker, slot.fragments, slot.nbytes)

    def _send_batch(self) -> None:
        """Give what `on_batch` has taken over to the sessions, or to where it waits for them."""
        table, worker, buffer = self._table, self._worker, self._buffer
        if not table.rows:
            return
        lanes: list[Lane] = []
        feeds = self._feeds.get(worker, {})
        irregular = plan(table, feeds, lanes)
        for row in irregular:
            self._take_irregular(worker, table, row, lanes)
        handles = set(table.column(TOPIC)) if self._order.held else ()
        self._send_rows(lanes, worker, buffer)
        self._buffer = bytearray()  # what was sent of this one may be in use as the transmission window
        for handle in handles:
            proxy = feeds.get(handle)
            if proxy is not None and self._order.is_over(proxy, (worker, handle)):
                self._release(proxy)
        if handles:
            self._set_timer()

    def _send_rows(self, lanes: list[Lane], worker: int, buffer: bytearray) -> None:
        """Send what these lanes have noted of the table, which is empty then."""
        table, now_ns = self._table, self._now_ns()
        sent = [0, 0, 0, 0]
        for lane in lanes:
            self._send(lane, worker, buffer, lane.gather(table), now_ns, sent)
        self._count_sent(worker, sent)
        table.rows = 0

    def flush_sessions(self) -> None:
        """No more batches follow for now."""
        self._send_batch()
        while self._touched:
            self._touched.popitem()[1].transport.flush()

    def _take_irregular(
        self, worker: int, table: RunTable, row: int, lanes: list[Lane], released: ProxySource | None = None
    ) -> None:
        """Drop a run that is not simply the next one of its source, hold it back, or note what is to be sent.

        `released`: the proxy source for which it was held back until now.
        """
        words = table.words
        at = row * WORDS
        handle, sqn, fragments, _, length, stride, shape = ROW.unpack_from(words, row * ROW.size)
        nbytes = fragments * length
        proxy = released or self._feeds.get(worker, {}).get(handle)
        if proxy is None or proxy.lane is None:
            if worker in self._again:
                self._count_again(worker, fragments, length, self._why(Slot.DROPPED_DELETED))
            else:
                self._drop(self._why(Slot.DROPPED_DELETED), worker, fragments, nbytes)
            return
        lane = proxy.lane
        if length > lane.fragment_max_bytes:
            self._drop(Slot.DROPPED_SIZE, worker, fragments, nbytes)
            extra = {"topic": proxy.topic, "bytes": length, "limit": lane.fragment_max_bytes}
            faults.event(LogEvent.FRAGMENT_TOO_LARGE, extra=extra)
            return
        order = self._order if released is None and (proxy.before_goes_on or self._order.held) else None
        if order is not None and order.keeps(proxy, worker, self._buffer, table, row):
            return
        if not lane.noted and lane not in lanes:
            lanes.append(lane)
        if shape >> KIND_SHIFT:
            lane.note(row, proxy.topic_index)
            return
        window = proxy.window
        parts = window.take_run(sqn, fragments, bool(shape & FLAG_REPAIR << FLAGS_SHIFT), self._now_ns())
        if window.has_jumped:
            self._page.add(Slot.WINDOW_OVERFLOWS, 1)
        if window.has_restarted:
            self._page.add(Slot.FLOWS_RESTARTED, 1)
            faults.event(LogEvent.FLOW_RESTARTED, extra={"topic": proxy.topic, "sqn": sqn})
        again = fragments - sum([count for _, count in parts])
        if old := window.too_old:
            self._drop(Slot.DROPPED_OLD, worker, old, old * length)
            again -= old
        if again and worker in self._again:
            self._count_again(worker, again, length)
        elif again:
            self._drop(Slot.DROPPED_DUP, worker, again, again * length)
        for number, (index, count) in enumerate(parts):
            place = row
            if number:  # a row of its own, behind the others
                if not table.room:
                    self._drop(Slot.DROPPED_ERROR, worker, count, count * length)
                    continue
                place = table.rows
                words[place * WORDS : (place + 1) * WORDS] = words[at : at + WORDS]
                table.rows += 1
            words[place * WORDS + SQN] = sqn + index & MASK
            words[place * WORDS + FRAGMENTS] = count
            words[place * WORDS + OFFSET] += index * stride
            lane.note(place, proxy.topic_index)

    def _send(self, lane: Lane, worker: int, buffer: bytearray, table: RunTable, now_ns: int, sent: list[int]) -> None:
        """Send what one batch has for one session, or put it behind what waits already.

        `sent`: fragments and bytes, and those of requests among them, is added to.
        """
        if not table.rows:
            return
        offered = totals(table)
        if not lane.waiting:
            lane.transport.send_batch(buffer, table, now_ns)
            self._touched[id(lane.transport)] = lane
        left = totals(table) if table.rows else (0, 0, 0, 0)
        for at in range(4):
            sent[at] += offered[at] - left[at]
        if not table.rows:
            return
        self.queue.put(lane, worker, buffer, table, now_ns)
        if table.rows:  # newest first: what was there stays
            fragments, nbytes = table.total()
            self._drop(self._why(Slot.DROPPED_BLOCKED), worker, fragments, nbytes)
            self._log_drops(now_ns)

    # what is held back

    def _release(self, proxy: ProxySource) -> None:
        """Send what is held back of it, as if it came now; no batch is at hand."""
        table = self._table
        for part in self._order.take(proxy):
            table.rows = rows = part.table.rows
            table.tobytes()[:] = part.table.tobytes()
            lanes: list[Lane] = []
            for row in range(rows):
                self._take_irregular(part.worker, table, row, lanes, proxy)
            self._send_rows(lanes, part.worker, part.buffer)

    def _release_now(self, proxies: Iterable[ProxySource]) -> None:
        """Send what is held back of these proxy sources, at any time."""
        if not self._order.held:
            return
        self._send_batch()
        for proxy in proxies:
            self._release(proxy)
        self.flush_sessions()

    def _set_timer(self) -> None:
        deadline = None if self._is_timed else self._order.next_deadline()
        if deadline is not None:
            self._is_timed = True
            self._call_later(max(RELEASE_NS, deadline - self._now_ns()), self._on_time)

    def _on_time(self) -> None:
        self._is_timed = False
        self._release_now(self._order.due())
        self._set_timer()

    def drain(self, transport: SenderTransport) -> None:
        """The session has room again: send what waits for it, in order, until it blocks again."""
        lane = self._lanes.get(id(transport))
        now_ns = self._now_ns()
        while lane is not None and lane.waiting:
            waiting = lane.waiting[0]
            table = waiting.table
            rows, offered = table.column(0).tolist(), totals(table)
            taken = transport.send_batch(waiting.buffer, table, now_ns)
            if taken:
                self.queue.on_taken(lane, waiting, rows, taken)
                self._count_sent(waiting.worker, [*map(sub, offered, totals(table))])
                self.queue.let_go(lane)
            if table.rows:
                break
        transport.flush()

    # counting

    def _count_sent(self, worker: int, sent: list[int]) -> None:
        """Count what was sent; `sent` is as `totals` has it."""
        fragments, nbytes, requests, request_bytes = sent
        if not fragments:
            return
        page = self._page
        base = page.pair(worker)
        page.add_sized(base + _ACCOUNTED, fragments, nbytes)  # first, see `settle_restart`
        page.add_sized(_SENT, fragments, nbytes)
        page.add_sized(base + _SENT_OF, fragments, nbytes)
        if requests:
            page.add_sized(Slot.REQ_SENT, requests, request_bytes)

    def _drop(self, slot: Slot, worker: int, fragments: int, nbytes: int) -> None:
        page = self._page
        base = page.pair(worker)
        page.add_sized(base + PairSlot.ACCOUNTED, fragments, nbytes)
        page.add_sized(slot, fragments, nbytes)

    def _log_drops(self, now_ns: int) -> None:
        if now_ns - self._drops_logged_ns > 1_000_000_000:
            self._drops_logged_ns = now_ns
            log.info(
                LogEvent.QUEUE_DROPS,
                extra={"dropped": self._page[self._why(Slot.DROPPED_BLOCKED)], "max_queue": self.queue.limit_bytes},
            )
