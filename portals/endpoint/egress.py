"""The sending half of an endpoint portal's data path: descriptors in, proxy sources out.

Copies a chunk out of the sender's ring, drops what was seen before or does not fit, gives the rest to the transport
session of each proxy source, and queues what that does not take, up to `<max-queue>`. A fragment that came from a
sibling is always in exactly one of the states sent, dropped (by reason) or queued, and the counter page says so.

Source: DRO guide, `<max-queue>` and 5.4.2; forwarding notes, sections 13, 18 and 19.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from dro.bus.counters import CounterPage
from dro.errors import DecodeError
from dro.log import LimitedLogger
from dro.sqn import MASK
from dro.um.runs import KIND_DATA, KIND_TSNI, Run, has_block
from dro.um.session import SenderTransport
from portals import descriptor
from portals.counters import DROP_SLOTS, PairSlot, Slot
from portals.descriptor import ForwardRun
from portals.endpoint.episodes import Episodes
from portals.window import SequenceWindow

log = logging.getLogger(__name__)
events = LimitedLogger.of_events(log)
faults = LimitedLogger(log)

BLOCK_REQUEST: Final = 0x04
_TOPIC: Final = Struct("!I")
_TOPIC_AT: Final = 4  # of the topic index in a message with the full header
COPY_BELOW_SHARE: Final = 4
"""What waits and fills less than this fraction of its buffer is copied, so that it does not keep the rest alive."""


class RingCopy(Protocol):
    """The reading end of a sibling's ring."""

    def copy(self, pos: int, nbytes: int) -> bytearray | None: ...


class ProxySource:
    """What the data path knows of one proxy source. It outlives a change of feeder, with its window."""

    __slots__ = ("feeder", "otid", "queued", "send_tsni", "topic", "topic_index", "transport", "tsni_waits", "window")

    def __init__(
        self,
        otid: bytes,
        topic: bytes,
        topic_index: int,
        transport: SenderTransport,
        window: SequenceWindow,
        send_tsni: Callable[[int, int], bool],
    ) -> None:
        """`send_tsni(sqn, now_ns)` sends topic sequence number information; False when the session is blocked."""
        self.otid = otid
        self.topic = topic
        self.topic_index = topic_index
        self.transport = transport
        self.window = window
        self.send_tsni = send_tsni
        self.feeder: tuple[int, int] | None = None
        self.queued = 0  # runs that wait
        self.tsni_waits = False


@dataclass(slots=True)
class _Waiting:
    """A run that is to be sent, from fragment `first` on."""

    proxy: ProxySource
    worker: int
    buffer: bytearray
    run: Run
    first: int
    is_request: bool

    def follows(self, other: _Waiting) -> bool:
        """Does this run lie right behind one of equal fragments, for the same session? Both are of one descriptor."""
        mine, before = self.run, other.run
        step = mine.length + mine.headroom
        return (
            mine.kind == before.kind == KIND_DATA
            and mine.offset == before.offset + before.fragments * step
            and mine.length == before.length
            and mine.headroom == before.headroom
            and self.proxy.transport is other.proxy.transport
            and (mine.fragments == 1 or mine.stride == step)
            and (before.fragments == 1 or before.stride == step)
        )

    def set_apart(self) -> None:
        """Copy the fragments when they would keep alive a much larger buffer."""
        run, first = self.run, self.first
        count, step = run.fragments - first, run.length + run.headroom
        if count * step * COPY_BELOW_SHARE >= len(self.buffer):
            return
        starts = [run.offset - run.headroom + i * run.stride for i in range(first, run.fragments)]
        self.buffer = bytearray().join([self.buffer[at : at + step] for at in starts])
        sqn = (run.first_sqn + first) & MASK
        self.run = run._replace(first_sqn=sqn, fragments=count, offset=run.headroom, stride=step)
        self.first = 0


class Egress:
    """Owns the queue and the send-side counters of the portal."""

    def __init__(self, page: CounterPage, max_queue_bytes: int, now_ns: Callable[[], int]) -> None:
        self._page = page
        self._limit = max_queue_bytes
        self._now_ns = now_ns
        self._feeds: dict[tuple[int, int], ProxySource] = {}
        self._rings: dict[int, RingCopy] = {}
        self._queues: dict[int, deque[_Waiting]] = {}  # by id of the transport session
        self._queued_bytes = 0
        self._enqueueing = Episodes()
        self._drops_logged_ns = 0
        page.set(Slot.QUEUE_LIMIT, max_queue_bytes)
        page.set(Slot.QUEUED, 0)
        page.set(Slot.QUEUED_BYTES, 0)

    def set_limit(self, max_queue_bytes: int) -> None:
        """What waits beyond a smaller limit stays; nothing more is taken until there is room again."""
        self._limit = max_queue_bytes
        self._page.set(Slot.QUEUE_LIMIT, max_queue_bytes)

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

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
            page.add(Slot.FORWARDED, lost)
            page.add(Slot.FORWARDED_BYTES, lost_bytes)
            self._drop(Slot.DROPPED_RESTART, worker, lost, lost_bytes)
        return lost

    def reconcile_own_restart(self) -> None:
        """At start: what an earlier incarnation of this portal had taken over and still queued died with it.

        It may have died between two of its entries. The pairs are written first, so they are right: what they have
        and the portal's totals have not is counted as `worker_restart`, and what the totals had taken over but
        nobody had accounted for is taken back, as the sibling's greeting will bring it again.
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

    # proxy sources

    def feed(self, proxy: ProxySource, worker: int, handle: int) -> None:
        """From now on fragments of (`worker`, `handle`) go to `proxy`, and those of its former feeder nowhere."""
        self.starve(proxy)
        proxy.feeder = (worker, handle)
        self._feeds[worker, handle] = proxy
        if proxy.transport.on_unblocked is None:
            transport = proxy.transport
            transport.on_unblocked = lambda: self.drain(transport)

    def starve(self, proxy: ProxySource) -> None:
        if proxy.feeder is not None:
            self._feeds.pop(proxy.feeder, None)
            proxy.feeder = None

    def flush(self, proxy: ProxySource) -> None:
        """The proxy source is being deleted: throw away what still waits for it."""
        self.starve(proxy)
        queue = self._queues.get(id(proxy.transport))
        if not queue or not proxy.queued:
            return
        kept: deque[_Waiting] = deque()
        for waiting in queue:
            if waiting.proxy is proxy:
                self._unqueue(waiting, waiting.run.fragments - waiting.first)
                self._drop_waiting(waiting, Slot.DROPPED_DELETED)
            else:
                kept.append(waiting)
        events.told("queued data of a deleted proxy source thrown away", {"topic": proxy.topic})
        proxy.queued = 0
        if kept:
            self._queues[id(proxy.transport)] = kept
        else:
            self._forget_queue(proxy.transport)

    # data

    def on_descriptors(self, batch: list[tuple[int, bytes]]) -> None:
        now_ns = self._now_ns()
        for worker, frame in batch:
            try:
                self._on_descriptor(worker, descriptor.decode(frame), now_ns)
            except DecodeError:
                log.exception("descriptor of a sibling does not decode")
                raise

    def _on_descriptor(self, worker: int, chunk: descriptor.Descriptor, now_ns: int) -> None:
        page = self._page
        fragments = sum([run.fragments for run in chunk.runs])
        nbytes = sum([run.fragments * run.length for run in chunk.runs])
        page.add(Slot.FORWARDED, fragments)
        page.add(Slot.FORWARDED_BYTES, nbytes)
        buffer: bytearray | None = None
        if chunk.size:
            ring = self._rings.get(worker)
            buffer = None if ring is None else ring.copy(chunk.position, chunk.size)
            if buffer is None:  # this portal was too slow: the writer has been round
                self._drop(Slot.DROPPED_BLOCKED, worker, fragments, nbytes)
                self._log_drops(now_ns)
                return
        else:
            buffer = bytearray()
        together: list[_Waiting] = []
        for run in chunk.runs:
            proxy = self._feeds.get((worker, run.handle))
            if proxy is None:
                self._drop(Slot.DROPPED_DELETED, worker, run.fragments, run.fragments * run.length)
                continue
            for part in self._accept(proxy, worker, buffer, run):
                if together and not part.follows(together[-1]):
                    self._send(together, now_ns)
                    together = []
                together.append(part)
        if together:
            self._send(together, now_ns)

    def _accept(self, proxy: ProxySource, worker: int, buffer: bytearray, run: ForwardRun) -> list[_Waiting]:
        """What of the run is to be sent: usually all of it, as one part."""
        plain = Run(*run)  # the handle stands where the topic index was; the transport writes its own
        if run.length > proxy.transport.fragment_max_bytes:
            self._drop(Slot.DROPPED_SIZE, worker, run.fragments, run.fragments * run.length)
            extra = {"topic": proxy.topic, "bytes": run.length, "limit": proxy.transport.fragment_max_bytes}
            what = "fragment larger than the datagram size of the transport"
            faults.limited("size", what, level=logging.ERROR, extra=extra)
            return []
        if run.kind != KIND_DATA:
            return [_Waiting(proxy, worker, buffer, plain, 0, False)]
        is_request = bool(run.next_header) and has_block(buffer, plain, BLOCK_REQUEST)
        parts = proxy.window.take_run(run.first_sqn, run.fragments)
        if len(parts) == 1 and parts[0][1] == run.fragments:
            return [_Waiting(proxy, worker, buffer, plain, 0, is_request)]
        fresh = []
        again = run.fragments
        for index, count in parts:
            again -= count
            part = plain._replace(
                first_sqn=(run.first_sqn + index) & MASK, fragments=count, offset=run.offset + index * run.stride
            )
            fresh.append(_Waiting(proxy, worker, buffer, part, 0, is_request))
        self._drop(Slot.DROPPED_DUP, worker, again, again * run.length)
        return fresh

    def _send(self, together: list[_Waiting], now_ns: int) -> None:
        """Send runs that follow each other at once, which saves most of the cost of a session of many topics."""
        taken = 0
        if not self._queues.get(id(together[0].proxy.transport)):
            taken = self._offer(together[0], now_ns) if len(together) == 1 else self._offer_all(together, now_ns)
        for part in together:
            part.first = min(taken, part.run.fragments)
            taken -= part.first
            if part.first:
                self._count_sent(part, part.first)
            if part.first < part.run.fragments:
                self._enqueue(part, now_ns)

    @staticmethod
    def _offer(part: _Waiting, now_ns: int) -> int:
        proxy, run = part.proxy, part.run
        if run.kind == KIND_TSNI:
            return int(proxy.send_tsni(run.first_sqn, now_ns))
        return proxy.transport.send_run(part.buffer, run, 0, proxy.topic_index, now_ns, first=part.first)

    @staticmethod
    def _offer_all(together: list[_Waiting], now_ns: int) -> int:
        head = together[0]
        buffer, step = head.buffer, head.run.length + head.run.headroom
        fragments = 0
        for part in together:
            for at in range(part.run.offset, part.run.offset + part.run.fragments * step, step):
                _TOPIC.pack_into(buffer, at + _TOPIC_AT, part.proxy.topic_index)
            fragments += part.run.fragments
        run = head.run._replace(fragments=fragments, stride=step)
        return head.proxy.transport.send_run(buffer, run, 0, None, now_ns)

    # the queue

    def _enqueue(self, waiting: _Waiting, now_ns: int) -> None:
        run = waiting.run
        wanted = run.fragments - waiting.first
        if run.kind == KIND_TSNI:
            if waiting.proxy.tsni_waits:  # one is enough, and a stranger may send thousands
                self._drop(Slot.DROPPED_BLOCKED, waiting.worker, 1, 0)
                return
            waiting.proxy.tsni_waits = True
        room = self._limit - self._queued_bytes
        kept = wanted if not run.length else min(wanted, max(0, room) // run.length)
        if kept < wanted:  # newest first: what was there stays
            self._drop(Slot.DROPPED_BLOCKED, waiting.worker, wanted - kept, (wanted - kept) * run.length)
            self._log_drops(now_ns)
            if not kept:
                return
            waiting.run = run = run._replace(fragments=waiting.first + kept)
        waiting.set_apart()
        self._enqueueing.on_waiting(now_ns)
        self._queues.setdefault(id(waiting.proxy.transport), deque()).append(waiting)
        waiting.proxy.queued += 1
        self._queued_bytes += kept * run.length
        page = self._page
        base = page.pair(waiting.worker)
        page.add(base + PairSlot.QUEUED, kept)
        page.add(base + PairSlot.QUEUED_BYTES, kept * run.length)
        page.add(Slot.QUEUED, kept)
        page.set(Slot.QUEUED_BYTES, self._queued_bytes)
        if self._queued_bytes > page[Slot.QUEUED_BYTES_MAX]:
            page.set(Slot.QUEUED_BYTES_MAX, self._queued_bytes)

    def _unqueue(self, waiting: _Waiting, fragments: int) -> None:
        nbytes = fragments * waiting.run.length
        self._queued_bytes -= nbytes
        page = self._page
        base = page.pair(waiting.worker)
        page.add(base + PairSlot.QUEUED, -fragments)
        page.add(base + PairSlot.QUEUED_BYTES, -nbytes)
        page.add(Slot.QUEUED, -fragments)
        page.set(Slot.QUEUED_BYTES, self._queued_bytes)

    def drain(self, transport: SenderTransport) -> None:
        """The session has room again: send what waits for it, in order, until it blocks again."""
        queue = self._queues.get(id(transport))
        now_ns = self._now_ns()
        while queue:
            waiting = queue[0]
            taken = self._offer(waiting, now_ns)
            if taken:
                self._unqueue(waiting, taken)
                self._count_sent(waiting, taken)
                waiting.first += taken
            if waiting.first < waiting.run.fragments:
                return
            queue.popleft()
            waiting.proxy.queued -= 1
            if waiting.run.kind == KIND_TSNI:
                waiting.proxy.tsni_waits = False
        self._forget_queue(transport)

    def _forget_queue(self, transport: SenderTransport) -> None:
        """Nothing waits for the session any more, which may be about to end."""
        self._queues.pop(id(transport), None)
        if not self._queues:
            self._enqueueing.on_empty()

    # counting

    def _count_sent(self, part: _Waiting, fragments: int) -> None:
        page = self._page
        nbytes = fragments * part.run.length
        base = page.pair(part.worker)
        page.add(base + PairSlot.ACCOUNTED, fragments)  # first, see `reconcile_own_restart`
        page.add(base + PairSlot.ACCOUNTED_BYTES, nbytes)
        page.add(Slot.SENT, fragments)
        page.add(Slot.SENT_BYTES, nbytes)
        page.add(base + PairSlot.SENT, fragments)
        page.add(base + PairSlot.SENT_BYTES, nbytes)
        if part.is_request:
            page.add(Slot.REQ_SENT, fragments)
            page.add(Slot.REQ_SENT_BYTES, nbytes)

    def _drop(self, slot: Slot, worker: int, fragments: int, nbytes: int) -> None:
        page = self._page
        base = page.pair(worker)
        page.add(base + PairSlot.ACCOUNTED, fragments)
        page.add(base + PairSlot.ACCOUNTED_BYTES, nbytes)
        page.add(slot, fragments)
        page.add(slot + 1, nbytes)

    def _drop_waiting(self, waiting: _Waiting, slot: Slot) -> None:
        fragments = waiting.run.fragments - waiting.first
        self._drop(slot, waiting.worker, fragments, fragments * waiting.run.length)

    def _log_drops(self, now_ns: int) -> None:
        if now_ns - self._drops_logged_ns > 1_000_000_000:
            self._drops_logged_ns = now_ns
            log.info(
                "dropping data due to high volume",
                extra={"dropped": self._page[Slot.DROPPED_BLOCKED], "max_queue": self._limit},
            )
