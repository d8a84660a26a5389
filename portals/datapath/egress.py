"""The sending half of a portal's data path: descriptors in, proxy sources out.

Copies a chunk out of the sender's ring, drops duplicates (`duplicate_window`) and fragments that do not fit, passes the
rest to the transport session of each proxy source, and queues what that does not accept (`max_queue`). A fragment from
a sibling is always in exactly one of the states sent, dropped (by reason) or queued, as the counters show.

Source: DRO guide, `<max-queue>` and 5.4.2; forwarding notes, sections 13, 18 and 19.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol

from dro.bus.counters import CounterPage
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.sqn import MASK
from dro.um.transport.runs import KIND_DATA, KIND_TSNI, Run, has_block
from dro.um.transport.session import SenderTransport
from dro.wire.lbmc.codes import BlockType
from portals.datapath import descriptor
from portals.datapath.counters import DROP_SLOTS, PairSlot, Slot
from portals.datapath.descriptor import ForwardRun
from portals.datapath.max_queue import MaxQueue
from portals.datapath.outgoing import OutgoingRun, ProxySource

log = logging.getLogger(__name__)
events = LimitedLogger.of_events(log)
faults = LimitedLogger(log)

_TOPIC: Final = Struct("!I")
_TOPIC_AT: Final = 4  # of the topic index in a message with the full header


class RingCopy(Protocol):
    """The reading end of a sibling's ring."""

    def copy(self, pos: int, nbytes: int) -> bytearray | None: ...


class Egress:
    """Owns the queue and the send-side counters of the portal."""

    def __init__(self, page: CounterPage, max_queue_bytes: int, now_ns: Callable[[], int]) -> None:
        self._page = page
        self._now_ns = now_ns
        self._feeds: dict[tuple[int, int], ProxySource] = {}
        self._rings: dict[int, RingCopy] = {}
        self.queue = MaxQueue(page, max_queue_bytes)
        self._drops_logged_ns = 0

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
        page = self._page
        base = page.pair(worker)
        lost = forwarded - page[base + PairSlot.ACCOUNTED] - page[base + PairSlot.QUEUED]
        lost_bytes = forwarded_bytes - page[base + PairSlot.ACCOUNTED_BYTES] - page[base + PairSlot.QUEUED_BYTES]
        if lost > 0 or lost_bytes > 0:
            page.add_sized(Slot.FORWARDED, lost, lost_bytes)
            self._drop(Slot.DROPPED_RESTART, worker, lost, lost_bytes)
        return lost

    def reconcile_own_restart(self) -> None:
        """At start: what an earlier incarnation of this portal had taken over and still queued died with it.

        It may have died between two of its entries. The pairs are written first, so they are right: what they have
        and the portal's totals have not is counted as `worker_restart`, and what the totals had taken over but
        nobody had accounted for is taken back, as the sibling's `PortalHello` will bring it again.
        """
        page = self._page
        accounted = [0, 0]
        for worker in range(page.pair_blocks):
            base = page.pair(worker)
            queued, nbytes = page[base + PairSlot.QUEUED], page[base + PairSlot.QUEUED_BYTES]
            if queued or nbytes:
                page.set(base + PairSlot.QUEUED, 0)
                page.set(base + PairSlot.QUEUED_BYTES, 0)
                self._drop(Slot.DROPPED_RESTART, worker, queued, nbytes)
            accounted[0] += page[base + PairSlot.ACCOUNTED]
            accounted[1] += page[base + PairSlot.ACCOUNTED_BYTES]
        for step, total in enumerate(accounted):
            known = page[Slot.SENT + step] + sum([page[slot + step] for slot in DROP_SLOTS.values()])
            if total > known:
                page.add(Slot.DROPPED_RESTART + step, total - known)
            page.set(Slot.FORWARDED + step, max(total, known))

    def accounted(self, worker: int) -> int:
        """Fragments of the sibling that were ever sent or dropped here."""
        return self._page[self._page.pair(worker) + PairSlot.ACCOUNTED]

    # proxy sources

    def feed(self, proxy: ProxySource, worker: int, handle: int) -> None:
        """From now on fragments of (`worker`, `handle`) go to `proxy`, and those of its former feeder nowhere."""
        self.stop_feeding(proxy)
        proxy.feeder = (worker, handle)
        self._feeds[worker, handle] = proxy
        if proxy.transport.on_unblocked is None:
            transport = proxy.transport
            transport.on_unblocked = lambda: self.drain(transport)

    def stop_feeding(self, proxy: ProxySource) -> None:
        if proxy.feeder is not None:
            self._feeds.pop(proxy.feeder, None)
            proxy.feeder = None

    def flush(self, proxy: ProxySource) -> None:
        """The proxy source is being deleted: throw away what still waits for it."""
        self.stop_feeding(proxy)
        removed = self.queue.remove(proxy)
        for out in removed:
            self._drop(Slot.DROPPED_DELETED, out.worker, out.rest, out.rest * out.run.length)
        if removed:
            events.event(LogEvent.QUEUED_DATA_DROPPED, {"topic": proxy.topic})

    # data

    def on_descriptors(self, batch: list[tuple[int, bytes]]) -> None:
        now_ns = self._now_ns()
        for worker, frame in batch:
            try:
                self._on_descriptor(worker, descriptor.decode(frame), now_ns)
            except DecodeError:
                log.exception(LogEvent.DESCRIPTOR_BROKEN)
                raise

    def _on_descriptor(self, worker: int, chunk: descriptor.Descriptor, now_ns: int) -> None:
        page = self._page
        fragments = sum([run.fragments for run in chunk.runs])
        nbytes = sum([run.fragments * run.length for run in chunk.runs])
        page.add_sized(Slot.FORWARDED, fragments, nbytes)
        buffer: bytearray | None = bytearray()
        if chunk.size:
            ring = self._rings.get(worker)
            if ring is None:  # it went with the sibling
                self._drop(Slot.DROPPED_ERROR, worker, fragments, nbytes)
                return
            buffer = ring.copy(chunk.position, chunk.size)
        if buffer is None:  # this portal was too slow: the writer has been round
            self._drop(Slot.DROPPED_BLOCKED, worker, fragments, nbytes)
            self._log_drops(now_ns)
            return
        together: list[OutgoingRun] = []
        for run in chunk.runs:
            proxy = self._feeds.get((worker, run.handle))
            if proxy is None:
                self._drop(Slot.DROPPED_DELETED, worker, run.fragments, run.fragments * run.length)
                continue
            for part in self._accept(proxy, worker, buffer, run, now_ns):
                if together and not part.follows(together[-1]):
                    self._send(together, now_ns)
                    together = []
                together.append(part)
        if together:
            self._send(together, now_ns)

    def _accept(
        self, proxy: ProxySource, worker: int, buffer: bytearray, found: ForwardRun, now_ns: int
    ) -> list[OutgoingRun]:
        """What of the run is to be sent: usually all of it, as one part."""
        if found.length > proxy.transport.fragment_max_bytes:
            self._drop(Slot.DROPPED_SIZE, worker, found.fragments, found.fragments * found.length)
            extra = {"topic": proxy.topic, "bytes": found.length, "limit": proxy.transport.fragment_max_bytes}
            what = LogEvent.FRAGMENT_TOO_LARGE
            faults.event(what, extra=extra)
            return []
        run = Run(proxy.topic_index, *found[1:])
        if run.kind != KIND_DATA:
            return [OutgoingRun(proxy, worker, buffer, run, 0, False)]
        is_request = bool(run.next_header) and has_block(buffer, run, BlockType.REQUEST)
        window = proxy.window
        if run.first_sqn == window.next_sqn:
            window.advance(run.fragments)
            return [OutgoingRun(proxy, worker, buffer, run, 0, is_request)]
        parts = window.take_run(run.first_sqn, run.fragments, now_ns=now_ns)
        if window.has_restarted:
            self._page.add(Slot.FLOWS_RESTARTED, 1)
            faults.event(LogEvent.FLOW_RESTARTED, extra={"topic": proxy.topic, "sqn": run.first_sqn})
        if len(parts) == 1 and parts[0][1] == run.fragments:
            return [OutgoingRun(proxy, worker, buffer, run, 0, is_request)]
        fresh = []
        again = run.fragments
        for index, count in parts:
            again -= count
            part = run._replace(
                first_sqn=(run.first_sqn + index) & MASK, fragments=count, offset=run.offset + index * run.stride
            )
            fresh.append(OutgoingRun(proxy, worker, buffer, part, 0, is_request))
        if old := window.too_old:
            self._drop(Slot.DROPPED_OLD, worker, old, old * run.length)
            again -= old
        self._drop(Slot.DROPPED_DUP, worker, again, again * run.length)
        return fresh

    def _send(self, together: list[OutgoingRun], now_ns: int) -> None:
        """Send runs that follow each other at once, which saves most of the cost of a session of many topics."""
        taken = 0
        if self.queue.first(together[0].proxy.transport) is None:
            taken = self._offer(together[0], now_ns) if len(together) == 1 else self._offer_all(together, now_ns)
        for part in together:
            part.first = min(taken, part.run.fragments)
            taken -= part.first
            if part.first:
                self._count_sent(part, part.first)
            if part.rest:
                self._enqueue(part, now_ns)

    @staticmethod
    def _offer(part: OutgoingRun, now_ns: int) -> int:
        proxy, run = part.proxy, part.run
        if run.kind == KIND_TSNI:
            return int(proxy.send_tsni(run.first_sqn, now_ns))
        return proxy.transport.send_run(part.buffer, run, 0, proxy.topic_index, now_ns, first=part.first)

    @staticmethod
    def _offer_all(together: list[OutgoingRun], now_ns: int) -> int:
        head = together[0]
        buffer, step = head.buffer, head.run.length + head.run.headroom
        fragments = 0
        for part in together:
            for at in range(part.run.offset, part.run.offset + part.run.fragments * step, step):
                _TOPIC.pack_into(buffer, at + _TOPIC_AT, part.proxy.topic_index)
            fragments += part.run.fragments
        run = head.run._replace(fragments=fragments, stride=step)
        return head.proxy.transport.send_run(buffer, run, 0, None, now_ns)

    # what waits

    def _enqueue(self, out: OutgoingRun, now_ns: int) -> None:
        if out.run.kind == KIND_TSNI:
            if out.proxy.tsni_waits:  # one is enough, and a stranger may send thousands
                self._drop(Slot.DROPPED_BLOCKED, out.worker, 1, 0)
                return
            out.proxy.tsni_waits = True
        kept = self.queue.room_for(out)
        if over := out.rest - kept:  # newest first: what was there stays
            self._drop(Slot.DROPPED_BLOCKED, out.worker, over, over * out.run.length)
            self._log_drops(now_ns)
            if not kept:
                return
            out.run = out.run._replace(fragments=out.first + kept)
        self.queue.put(out, now_ns)

    def drain(self, transport: SenderTransport) -> None:
        """The session has room again: send what waits for it, in order, until it blocks again."""
        now_ns = self._now_ns()
        while (out := self.queue.first(transport)) is not None:
            taken = self._offer(out, now_ns)
            if taken:
                self.queue.take(out, taken)
                self._count_sent(out, taken)
            if out.rest:
                return
            if out.run.kind == KIND_TSNI:
                out.proxy.tsni_waits = False

    # counting

    def _count_sent(self, part: OutgoingRun, fragments: int) -> None:
        page = self._page
        nbytes = fragments * part.run.length
        base = page.pair(part.worker)
        page.add_sized(base + PairSlot.ACCOUNTED, fragments, nbytes)  # first, see `reconcile_own_restart`
        page.add_sized(Slot.SENT, fragments, nbytes)
        page.add_sized(base + PairSlot.SENT, fragments, nbytes)
        if part.is_request:
            page.add_sized(Slot.REQ_SENT, fragments, nbytes)

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
                extra={"dropped": self._page[Slot.DROPPED_BLOCKED], "max_queue": self.queue.limit_bytes},
            )
