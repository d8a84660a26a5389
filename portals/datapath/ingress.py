"""The receiving half of a portal's data path: fragments of a batch into the ring, descriptors to siblings.

Per batch of a socket: one copy into the ring. Per turn of the loop: one table and descriptor for each egress portal,
more when there is much. Per run: one table look-up. Nothing is done per fragment of a run. Which siblings want a source
is decided by the core and only looked up here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from dro.bus.counters import CounterPage, Histogram
from dro.bus.descriptors import BatchDescriptor as QueueSlot
from dro.bus.descriptors import announced_in
from dro.clock import NS_PER_US, MonotonicClock
from dro.errors import ResourceError
from dro.kept.rows import KeptRow, KeptRows
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.metrics.slots import PairSlot, Slot
from dro.metrics.table import PORTAL, bounds_of
from dro.proto.context.sources import BoundSource
from dro.shared_memory.ring import RingReader, RingWriter
from dro.transport.runs import (
    FLAG_REQUEST,
    FLAGS_SHIFT,
    ROW,
    WORDS,
    Run,
    RunTable,
    has_block,
    shape_of,
)
from dro.transport.session import ReceiverTransport
from dro.wire.lbmc.codes import BlockType
from portals.datapath.descriptor import JOIN_BELOW, BatchKind, encode
from portals.datapath.episodes import Episodes
from portals.datapath.handover import ForwardEntry
from portals.datapath.select import HEADROOM, compact, extent, move, plain_part, split, take_all

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

CHUNK_MAX_BYTES: Final = 1 << 20
HANDED: Final = b"handed"
"""Kind of the rows: descriptors announced to a sibling, fragments and bytes handed to it, incarnation of the ring."""
# plain integers in the compiled form; and `QueueSlot` without a function of Python
_HANDED, _TOPIC_RCVD, _BATCHES_IN, _RUNS_IN = PairSlot.HANDED, Slot.TOPIC_RCVD, Slot.BATCHES_IN, Slot.RUNS_IN
_SOURCE_DATA, _new, _NS_PER_US = int(BatchKind.SOURCE_DATA), tuple.__new__, NS_PER_US
_monotonic_ns = MonotonicClock().now_ns
SPREAD: Final = 2  # a chunk may be this many times as large as the fragments in it before they are copied one by one


class Announce(Protocol):
    """How siblings get descriptors; `put` is False when the queue is full or there is none."""

    def put(self, reader: int, slot: QueueSlot) -> bool: ...


class CompleteRequests(Protocol):
    """Who puts their domain into the requests that enter the network of DROs here."""

    def complete(self, view: memoryview, run: Run, source: BoundSource[ForwardEntry]) -> bytes: ...


class Pending:
    """Keeps what a sibling gets of the turn: its first `placed` rows lie in the ring, from `base` to `end`.

    `since_ns`: when the oldest of it was received.
    """

    __slots__ = ("base", "end", "placed", "since_ns", "table")

    def __init__(self) -> None:
        self.table = RunTable()
        self.placed = self.base = self.end = self.since_ns = 0

    def new_rows(self) -> memoryview:
        """Return rows that do not lie in the ring yet, as bytes."""
        return self.table.tobytes()[self.placed * ROW.size :]


Found = tuple[int, Pending]
"""A sibling by worker, and what it gets."""


class Ingress:
    """Takes runs from the transports of the receiving context and hands them to the siblings."""

    def __init__(
        self,
        ring: RingWriter,
        page: CounterPage,
        queues: Announce,
        wake: Callable[[int], object],
        *,
        now_ns: Callable[[], int] = _monotonic_ns,
        chunk_max_bytes: int = CHUNK_MAX_BYTES,
        name_of: Callable[[int], str] = str,
        at_turn_end: Callable[[Callable[[], object]], object] = lambda call: call(),
        rows: KeptRows | None = None,
    ) -> None:
        """`wake(worker)` is called after each descriptor, and the callable that `at_turn_end` gets after the turn.

        `now_ns` is the clock of `on_fragments`. `chunk_max_bytes` is more than the largest fragment, and less than the
        ring's capacity. `name_of` names siblings in the log. `rows`: for the books of the next incarnation.
        """
        self._rows = rows
        self._handed: dict[int, KeptRow | None] = {}
        self._announced: dict[int, int] = {}  # descriptors, by sibling
        self._ring = ring
        self._page = page
        self._queues = queues
        self._wake = wake
        self._clock = now_ns
        self._latency = Histogram(page, Slot.FORWARD_LATENCY, bounds_of(PORTAL, "FORWARD_LATENCY"))
        self._chunk_max = chunk_max_bytes
        self._name_of = name_of
        self._at_turn_end = at_turn_end
        self.requests: CompleteRequests | None = None
        """Set by a link to a TRD."""
        self.counts_unknown = False
        """Set by a link to another DRO, which should tell of every source before its data."""
        self._pending: dict[int, Pending] = {}
        self._now_ns = 0
        self._refusals: dict[int, Episodes] = {}  # of siblings whose queue was full at some time

    def on_fragments(self, view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
        self._now_ns = now_ns
        for transport, table in parts:
            if not table.rows:
                continue
            for pending in self._pending.values():
                if pending.table.room < table.rows:
                    self._place(view)
                    self.flush()
                    break
            if not self._select_plain(transport.sources, table):
                self._select(transport, view, table)
        self._place(view)
        self._at_turn_end(self.flush)

    def go_on(self, former_ring: Callable[[int], RingReader | None]) -> None:
        """Take back what the former incarnation had counted and not announced: it comes once more.

        `former_ring` opens its ring, of which it gets the incarnation.
        """
        page = self._page
        page.go_back((_TOPIC_RCVD, _TOPIC_RCVD + 1))
        ring: RingReader | None = None
        for worker in range(page.pair_blocks if self._rows is not None else 0):
            row = self._row(worker) if page[page.pair(worker) + _HANDED] else None
            if row is None or row.former is None:
                continue
            announced, fragments, nbytes, incarnation = row.former
            ring = ring or former_ring(incarnation)
            if ring is not None and ring.incarnation == incarnation and announced_in(ring, worker) == announced:
                page.set(page.pair(worker) + PairSlot.HANDED, fragments)
                page.set(page.pair(worker) + PairSlot.HANDED_BYTES, nbytes)
        if ring is not None:
            ring.close()

    def _row(self, worker: int) -> KeptRow | None:
        """Return where it is noted what a sibling was handed."""
        if worker not in self._handed:
            self._handed[worker] = None if self._rows is None else self._rows.row(HANDED, b"%d" % worker)
        return self._handed[worker]

    def _note(self, worker: int) -> None:
        """Note what the sibling was handed, as its queue has it now."""
        if (row := self._row(worker)) is not None:
            page = self._page
            base = page.pair(worker)
            row.write(self._announced.get(worker, 0), page[base + _HANDED], page[base + _HANDED + 1],
                      self._ring.incarnation)  # fmt: skip

    def flush(self) -> None:
        """Announce what lies in the ring."""
        for worker, pending in self._pending.items():
            if pending.placed:
                self._announce(worker, pending)

    def handed(self, worker: int) -> tuple[int, int]:
        """Fragments and bytes that the sibling's queue ever took, from all incarnations of this portal."""
        self.flush()
        page = self._page
        base = page.pair(worker)
        return (
            page[base + PairSlot.HANDED] - page[base + PairSlot.REFUSED] - page[base + PairSlot.NO_MEMORY],
            page[base + PairSlot.HANDED_BYTES]
            - page[base + PairSlot.REFUSED_BYTES]
            - page[base + PairSlot.NO_MEMORY_BYTES],
        )

    def _out(self, worker: int) -> Pending:
        pending = self._pending.get(worker)
        if pending is None:
            pending = self._pending[worker] = Pending()
        return pending

    # which runs

    def _select_plain(self, sources: Mapping[int, BoundSource[ForwardEntry]], table: RunTable) -> bool:
        """Take a table of plain data that is all for the same siblings; False, with nothing done, when it is none."""
        found = plain_part(table, sources)
        if found is None:
            return False
        egress, handles = found
        page = self._page
        fragments, nbytes = table.total()
        page.add_sized(_TOPIC_RCVD, fragments, nbytes)
        page.add(_BATCHES_IN)
        page.add(_RUNS_IN, table.rows)
        for worker in egress:
            take_all(table, handles, self._out(worker).table)
        return True

    def _select(self, transport: ReceiverTransport, view: memoryview, table: RunTable) -> None:
        sources, page, requests = transport.sources, self._page, self.requests
        fragments = nbytes = 0
        own = bytearray()  # requests that are longer than they came; later rows wait until they are in the ring
        for run in table:
            bound = sources.get(run.topic_index)
            if bound is None:
                transport.lbm_msgs_no_topic_rcved += run.fragments
                if self.counts_unknown:
                    self._count_unknown(view, run)
                else:
                    page.add(Slot.NO_TOPIC_RCVD, run.fragments)
                continue
            shape = shape_of(run)
            longer = b""
            if run.kind:
                page.add_sized(Slot.CONTROL_RCVD, 1, run.length)
            else:
                fragments += run.fragments
                nbytes += run.fragments * run.length
                if run.next_header and has_block(view, run, BlockType.REQUEST):
                    page.add_sized(Slot.TOPIC_REQ_RCVD, run.fragments, run.fragments * run.length)
                    shape |= FLAG_REQUEST << FLAGS_SHIFT
                    if requests is not None:
                        longer = requests.complete(view, run, bound)
            entry = bound.user
            if entry is None:
                continue
            where = view
            if longer:
                if not own:
                    self._place(view)
                    own += bytes(HEADROOM)
                size = len(longer) // run.fragments
                run = run._replace(offset=len(own), length=size, stride=size, headroom=0)
                shape &= ~0xFF
                own += longer
                where = memoryview(own)
            elif own:
                self._place(memoryview(own))
                own = bytearray()
            for worker, edge in entry.closing.items():
                if before := edge.before(where, run):
                    self._add(worker, entry.handle, run, before, shape)
            for worker in entry.egress:
                self._add(worker, entry.handle, run, run.fragments, shape)
        if own:
            self._place(memoryview(own))
        if fragments:
            page.add_sized(Slot.TOPIC_RCVD, fragments, nbytes)
            page.add(Slot.BATCHES_IN)
            page.add(Slot.RUNS_IN, table.rows)

    def _count_unknown(self, view: memoryview, run: Run) -> None:
        """Count a run of a source that is not known."""
        slot = Slot.UNKNOWN_SOURCE_CONTROL if run.kind else Slot.UNKNOWN_SOURCE
        self._page.add_sized(slot, run.fragments, run.fragments * run.length)
        if not run.kind and run.next_header and has_block(view, run, BlockType.REQUEST):
            self._page.add_sized(Slot.UNKNOWN_SOURCE_REQ, run.fragments, run.fragments * run.length)

    def _add(self, worker: int, handle: int, run: Run, fragments: int, shape: int) -> None:
        pending = self._out(worker)
        if pending.table.rows == pending.placed:  # the last row is of another batch
            self._announce(worker, pending)
        pending.table.put(handle, run.first_sqn, fragments, run.offset, run.length, run.stride, shape)

    # to the siblings

    def _place(self, view: memoryview) -> None:
        """Put what siblings want of the batch into the ring."""
        found = [(worker, pending) for worker, pending in self._pending.items() if pending.table.rows > pending.placed]
        if not found:
            return
        low, content, high = len(view), 0, 0
        for _, pending in found:
            first, end = extent(pending.table, pending.placed)
            fragments, nbytes = pending.table.total(pending.placed)
            if end:  # not only TSNIs, which have no bytes
                low = min(low, first)
            high, content = max(high, end), max(content, nbytes + HEADROOM * fragments)
        low = max(0, low - HEADROOM) if high else 0
        if high - low > self._chunk_max or high - low > SPREAD * content + 4096:
            self._place_compact(view, found)
            return
        self._join(found, view[low:high], low)

    def _join(self, found: list[Found], data: bytearray | memoryview, low: int) -> None:
        """Put a chunk into the ring, in which the new rows lie; their offsets count from `low`."""
        size = len(data)
        position = self._put(data) if size else self._ring.position
        for worker, pending in found:
            if position is None:
                self._refuse(worker, pending)
                continue
            if pending.placed and not 0 < position - pending.base <= self._ring.left(pending.base) - size:
                self._announce(worker, pending)  # the ring has begun anew
            if not pending.placed:
                pending.base, pending.since_ns = position, self._now_ns
            move(pending.table, low - (position - pending.base), pending.placed)
            pending.placed, pending.end = pending.table.rows, position + size
            if pending.end - pending.base >= JOIN_BELOW:
                self._announce(worker, pending)

    def _place_compact(self, view: memoryview, found: list[Found]) -> None:
        """Copy one by one into the ring what lies far apart in the batch."""
        groups: dict[bytes, list[Found]] = {}
        for each in found:
            groups.setdefault(bytes(each[1].new_rows()) if len(found) > 1 else b"", []).append(each)
        for same in groups.values():  # they share a copy
            pending = same[0][1]
            chunk = compact(view, pending.table, pending.placed, self._chunk_max)
            if chunk is None:
                for worker, pending in same:
                    self._place_split(view, worker, pending)
                continue
            for _, other in same[1:]:
                other.new_rows()[:] = pending.new_rows()
            self._join(same, chunk, 0)

    def _place_split(self, view: memoryview, worker: int, pending: Pending) -> None:
        """Announce in several chunks what is too much for one."""
        self._announce(worker, pending)
        table = pending.table
        for chunk, pending.table in split(view, table, self._chunk_max):
            self._join([(worker, pending)], chunk, 0)
            self._announce(worker, pending)
        pending.table = table
        table.rows = 0

    def _put(self, data: bytes | bytearray | memoryview) -> int | None:
        """Write it into the ring; where it lies there, None when there is no shared memory for it."""
        try:
            return self._ring.write(data)
        except ResourceError as e:
            limited(LogEvent.RING_FULL, extra={"error": str(e)})
            return None

    def has_placed(self) -> bool:
        """Say whether there is anything in the ring that is not announced yet."""
        return any(pending.placed for pending in self._pending.values())

    def _refuse(self, worker: int, pending: Pending) -> None:
        """Drop the rows that do not lie in the ring yet, as there is no shared memory for them."""
        fragments, nbytes = pending.table.total(pending.placed)
        pending.table.rows = pending.placed
        self._page.add_sized(self._page.pair(worker) + PairSlot.HANDED, fragments, nbytes)
        self._count_refused(worker, PairSlot.NO_MEMORY, fragments, nbytes)

    def _announce(self, worker: int, pending: Pending) -> None:
        """Announce the rows that lie in the ring; the others stay."""
        table, placed = pending.table, pending.placed
        if not placed:
            return
        left, table.rows = table.rows - placed, placed
        at = self._put(encode(pending.base, pending.end - pending.base, table))
        fragments, nbytes = table.total()
        pending.placed, table.rows = 0, left
        if left:
            table.words[: left * WORDS] = table.words[placed * WORDS : (placed + left) * WORDS]
        if self._rows is not None and worker not in self._announced:
            self._announced[worker] = 0
            self._note(worker)
        # counted first: a sibling never accounts for more than was handed to it, wherever this process is killed
        self._page.add_sized(self._page.pair(worker) + _HANDED, fragments, nbytes)
        if at is None:
            self._count_refused(worker, PairSlot.NO_MEMORY, fragments, nbytes)
        elif not self._queues.put(worker, _new(QueueSlot, (at, placed, fragments, nbytes, _SOURCE_DATA))):
            self._count_refused(worker, PairSlot.REFUSED, fragments, nbytes)
        else:
            if self._rows is not None:
                self._announced[worker] += 1
            self._latency.observe((self._clock() - pending.since_ns) // _NS_PER_US, fragments)
            if worker in self._refusals:
                self._refusals[worker].on_end()
        if self._rows is not None:
            self._note(worker)
        self._wake(worker)

    def _count_refused(self, worker: int, why: int, fragments: int, nbytes: int) -> None:
        """Count what a sibling does not get; `why`: the slot of the pair."""
        page = self._page
        page.add_sized(page.pair(worker) + why, fragments, nbytes)
        if worker not in self._refusals:
            self._refusals[worker] = self._refusals_of(worker)
        self._refusals[worker].on_begin(self._now_ns)

    def _refusals_of(self, worker: int) -> Episodes:
        name, refused = self._name_of(worker), self._page.pair(worker) + PairSlot.REFUSED

        def log_begin(extra: Mapping[str, object]) -> None:
            log.warning(LogEvent.SIBLING_FULL, extra={"sibling": name, **extra})

        def log_end() -> None:
            log.info(LogEvent.SIBLING_TAKES_AGAIN, extra={"sibling": name, "refused": self._page[refused]})

        return Episodes(log_begin, log_end)
