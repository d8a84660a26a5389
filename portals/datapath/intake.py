"""What comes from siblings: their descriptor queues, in turn, into the egress; addressed data after source data.

The poller of the portal's loop. A queue is read from where this portal, or its incarnation before, had stopped, but not
before the portal can deliver what the sibling announced while it was away, nor before the sibling's greeting has been
compared with what lies before it: `PortalHello` counts what was announced up to then, and what comes later must not be
in the books yet. The queue of a sibling that has died is read to its end before the next incarnation of the sibling is
met. All of it is done a few batches a turn.

    added            nothing is taken
    greeted          what waited for too long is dropped; the rest waits until it can be delivered
    greeting         what is left of its older incarnation, with which this portal died, or which died before the
                     portal could deliver, is taken, then what was announced before the greeting; then it is compared
    polled           what comes is taken
    leaving          the rest is taken, then the ring is closed
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro import system_calls
from dro.bus.counters import CounterPage
from dro.bus.descriptors import ADDRESSED, DescriptorReader
from dro.kept.rows import KeptRow
from dro.kept.store import NOTHING_KEPT, Kept
from dro.shared_memory.ring import RingReader
from portals.datapath.addressed import AddressedData
from portals.datapath.egress import Egress

PLACE: Final = b"place"
"""Kind of the rows: incarnation of a sibling's ring, descriptors worked off, fragments and bytes in its books."""
TURN: Final = b"turn"
"""Kind of the row of the last turn that was finished."""
BATCHES_PER_TURN: Final = 8  # of each sibling
MESSAGES_PER_TURN: Final = 8  # of addressed data, likewise


class Intake:
    """The queues of all siblings that are up, and of those that are not read to their end."""

    def __init__(
        self,
        egress: Egress,
        addressed: AddressedData,
        page: CounterPage,
        kept: Kept = NOTHING_KEPT,
        on_read: Callable[[int, int], object] = lambda _worker, _incarnation: None,
    ) -> None:
        """`page` has the books; `kept`: what the next incarnation of this portal goes on with.

        `on_read` is told of a sibling's ring, by worker and incarnation, that was read to its end.
        """
        self._on_read = on_read
        self._page = page
        self._rows = kept.rows
        self._again: dict[int, int] = {}  # up to here the incarnation before may have taken descriptors of a sibling
        self._turn = kept.turn
        self._turn_row = kept.rows.row(TURN, b"") if kept.rows is not None else None
        if self._turn_row is not None and self._turn_row.former is not None:
            self._turn.former = self._turn_row.former.a
            self._turn.now = self._turn.former + 2
        self._places: dict[int, KeptRow] = {}  # how far the queue of a sibling was worked off, and its books
        self._taken: dict[int, DescriptorReader] = {}  # queues of which something was taken in this turn
        self._egress = egress
        self._addressed = addressed
        self._addressed_queues: dict[int, DescriptorReader] = {}
        self._queues: dict[int, DescriptorReader] = {}
        self._introduced: dict[int, tuple[int, int, Callable[[], object]]] = {}  # expired, announced, what comes then
        self._can_deliver: set[int] = set()
        self._polled: dict[int, DescriptorReader] = {}
        self._leaving: dict[int, DescriptorReader] = {}
        self._waits: dict[int, Callable[[], object]] = {}  # for the end of one that leaves
        self._me = 0
        if self._rows is not None:
            egress.queue.place_of = self._place_of
        self._older: dict[int, list[DescriptorReader]] = {}  # of a sibling that died before this portal could deliver

    def __contains__(self, worker: int) -> bool:
        return worker in self._queues

    def add(
        self,
        worker: int,
        ring: RingReader,
        me: int,
        older_rings: Callable[[int], list[RingReader]] = lambda _: [],
    ) -> None:
        """`me` is the worker index of this portal.

        `older_rings` opens what this portal had not read of the sibling's incarnations from that one on.
        """
        self._me = me
        row = self._rows.row(PLACE, b"%d" % worker) if self._rows is not None else None
        former = row.former if row is not None and worker not in self._places else None
        older = older_rings(former.a) if former is not None and former.a != ring.incarnation else []
        goes_on_at: int | None = None  # in a clean life, nobody knows what was sent of what had been begun
        waited = waited_bytes = 0
        if row is not None and worker not in self._places:
            place = None if former is None else (former.a, former.b)
            waited, waited_bytes = self._egress.logs.finished(worker, place)
        if former is not None and (older or former.a == ring.incarnation):
            goes_on_at = former.b
            self._egress.go_back(worker, former.c - waited, former.d - waited_bytes)
            self._again[worker] = former.b + BATCHES_PER_TURN
        if row is not None:
            self._places[worker] = row
        if older:
            first, *others = older
            self._older[worker] = [DescriptorReader(first, me, goes_on_at=goes_on_at)]
            self._older[worker] += [DescriptorReader(other, me) for other in others]
            goes_on_at = None
        self._queues[worker] = queue = DescriptorReader(ring, me, goes_on_at=goes_on_at)
        before = self._older.get(worker)
        if row is not None and not before and (former is None or former.a != ring.incarnation):
            row.write(ring.incarnation, queue.taken, *self._egress.books_of(worker))
        self._addressed_queues[worker] = DescriptorReader(ring, me, ADDRESSED)
        self._egress.on_ring(worker, before[0].ring if before else ring)

    def remove(self, worker: int) -> None:
        """The sibling is gone: take all that it has announced, then let go of its ring.

        What cannot be delivered yet waits for its next incarnation, or for `leave`.
        """
        self._waits.pop(worker, None)
        queue = self._queues.pop(worker, None)
        if queue is None:
            return
        self._introduced.pop(worker, None)
        if self._rows is not None and worker not in self._can_deliver:
            self._older.setdefault(worker, []).append(queue)
            self._addressed_queues.pop(worker).close()
            return
        self._can_deliver.discard(worker)
        self._polled.pop(worker, None)
        self._leave(worker, queue)

    def leave(self, worker: int) -> None:
        """Take what waits for the next incarnation of a sibling, unless that is there."""
        if worker in self._older and worker not in self._queues and worker not in self._leaving:
            queue = self._older[worker].pop()
            if not self._older[worker]:
                del self._older[worker]
            self._addressed_queues[worker] = DescriptorReader(queue.ring, self._me, ADDRESSED)
            self._egress.take_waited(worker)
            self._leave(worker, queue)

    def _leave(self, worker: int, queue: DescriptorReader) -> None:
        self._leaving[worker] = queue
        if worker not in self._older and self._again.pop(worker, None) is not None:
            self._egress.end_again(worker)

    def when_gone(self, worker: int, then: Callable[[], object]) -> None:
        """Call `then` as soon as nothing is left of an incarnation that was removed, which may be now."""
        if worker in self._leaving:
            self._waits[worker] = then
        else:
            then()

    def on_hello(self, worker: int, announced: int, then: Callable[[], object], expired: int = 0) -> None:
        """Take the first `announced` descriptors of the queue, as far as that was not done, call `then`, and go on.

        The first `expired` of them are dropped, the others not taken before `deliver`.
        """
        if worker in self._queues:
            self._introduced[worker] = (expired, announced, then)

    def deliver(self, worker: int) -> None:
        """Begin to take what the sibling has announced: it can be delivered, or has waited for long enough."""
        if worker in self._queues:
            self._can_deliver.add(worker)

    def delivers(self, worker: int) -> bool:
        """Say whether what the sibling announced is taken, or is next."""
        return worker in self._can_deliver

    def poll(self, worker: int) -> None:
        """Take from now on what the sibling announces."""
        if (queue := self._queues.get(worker)) is not None:
            self._polled[worker] = queue

    def _take_addressed(self, worker: int, messages: DescriptorReader, most: int) -> None:
        for _ in range(most):
            if (slot := messages.take()) is None:
                break
            self._addressed.on_message(worker, slot, messages.ring)
        messages.finish()

    # the poller of the loop

    def take(self) -> bool:
        worked = False
        if self._introduced:
            worked = self._take_introduced()
        for worker, queue in self._polled.items():
            if queue.has_more():
                worked |= self._take(worker, queue, BATCHES_PER_TURN)
        if self._leaving:
            worked |= self._take_leaving()
        if worked:
            self._egress.flush_sessions()
            self._finish_taken()
        for worker, messages in self._addressed_queues.items():
            if messages.has_more():
                worked = True
                self._take_addressed(worker, messages, MESSAGES_PER_TURN)
        return worked

    def _take_introduced(self) -> bool:
        worked = False
        for worker, (expired, announced, then) in list(self._introduced.items()):
            queue = self._queues[worker]
            if queue.taken < expired:
                while queue.taken < expired and (slot := queue.take()) is not None:
                    self._egress.on_expired(worker, slot)
                self._finish(worker, queue)  # the queue may be full of these
            if worker not in self._can_deliver:
                continue
            if self._rows is not None:
                self._egress.take_waited(worker)
            if worker in self._older:
                worked = True
                if self._take_older(worker):
                    continue
            worked |= self._take(worker, queue, min(BATCHES_PER_TURN, announced - queue.taken))
            if queue.taken >= announced or not queue.has_more():
                del self._introduced[worker]
                then()
                if self._rows is not None:  # its books are others now
                    self._taken[worker] = queue
                    worked = True
                self.poll(worker)
        return worked

    def _take_leaving(self) -> bool:
        worked = False
        for worker, queue in list(self._leaving.items()):
            if worker in self._older and self._take_older(worker):
                worked = True
                continue
            worked |= self._take(worker, queue, BATCHES_PER_TURN)
            if not queue.has_more():
                self._close(worker, queue)
        return worked

    def _take_older(self, worker: int) -> bool:
        """Take what a sibling had announced that died together with this portal; whether there is more of it."""
        older = self._older[worker][0]
        self._take(worker, older, BATCHES_PER_TURN)
        if older.has_more():
            return True
        self._egress.flush_sessions()
        self._finish_taken()
        if self._again.pop(worker, None) is not None:
            self._egress.end_again(worker)
        self._older[worker].pop(0)
        queue = self._reading(worker)
        assert queue is not None
        self._egress.on_ring(worker, queue.ring)
        self._finish(worker, queue)
        messages = DescriptorReader(older.ring, self._me, ADDRESSED)
        self._take_addressed(worker, messages, ADDRESSED.slots)
        self._let_go(worker, older, messages)
        if self._older[worker]:
            return True
        del self._older[worker]
        return False

    def _reading(self, worker: int) -> DescriptorReader | None:
        """Return the queue of the sibling that is read now."""
        if older := self._older.get(worker):
            return older[0]
        return self._queues.get(worker) or self._leaving.get(worker)

    def _take(self, worker: int, queue: DescriptorReader, most: int) -> bool:
        worked = False
        for _ in range(most):
            slot = queue.take()
            if slot is None:
                break
            worked = True
            self._egress.on_batch(worker, slot)
        if worked:
            self._taken[worker] = queue
        return worked

    def _finish_taken(self) -> None:
        """Note that all that was taken has been sent, dropped or queued: the next incarnation goes on behind it."""
        for worker, queue in self._taken.items():
            self._finish(worker, queue)
            if self._again and queue.taken >= self._again.get(worker, queue.taken + 1):
                del self._again[worker]
                self._egress.end_again(worker)
        self._taken.clear()
        if self._turn_row is not None:
            self._turn_row.write(self._turn.now)
            self._turn.now += 1

    def _place_of(self, worker: int) -> tuple[int, int]:
        """Return up to where descriptors of the sibling have been taken: incarnation of its ring, and how many."""
        queue = self._reading(worker)
        return (0, 0) if queue is None else (queue.ring.incarnation, queue.taken)

    def _finish(self, worker: int, queue: DescriptorReader) -> None:
        if (row := self._places.get(worker)) is not None and self._reading(worker) is queue:
            row.write(queue.ring.incarnation, queue.taken, *self._egress.books_of(worker))
        queue.finish()

    def _close(self, worker: int, queue: DescriptorReader) -> None:
        del self._leaving[worker]
        self._egress.flush_sessions()
        self._finish_taken()
        self._egress.on_ring(worker, None)
        messages = self._addressed_queues.pop(worker)
        self._take_addressed(worker, messages, ADDRESSED.slots)
        self._let_go(worker, queue, messages)
        if (then := self._waits.pop(worker, None)) is not None:
            then()

    def _let_go(self, worker: int, queue: DescriptorReader, messages: DescriptorReader) -> None:
        """Close a ring that was read to its end, and its queues."""
        messages.close()
        queue.close()
        queue.ring.close()
        self._on_read(worker, queue.ring.incarnation)

    def before_sleep(self) -> bool:
        if self._leaving or not self._can_deliver.isdisjoint(self._introduced):
            return False
        for queue in self._addressed_queues.values():  # of both of a sibling
            queue.ask_for_wake_up()
        system_calls.fence()
        for queues in (self._polled, self._addressed_queues):
            for queue in queues.values():
                if queue.has_more():
                    return False
        return True

    def after_sleep(self) -> None:
        for queue in self._addressed_queues.values():
            queue.stay_awake()
