"""The receiving half of a portal's data path: fragments of a batch into the ring, descriptors to siblings.

Per batch: one copy into the ring, and one table and descriptor for each egress portal. Per run: one table look-up.
Nothing is done per fragment of a run. Which siblings want a source is decided by the core and only looked up here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from dro.bus.counters import CounterPage
from dro.bus.descriptors import Slot as QueueSlot
from dro.bus.ring import FIRST_BYTES, SLOTS_AT, RingWriter
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.um.transport.runs import (
    FLAG_REQUEST,
    FLAGS_SHIFT,
    FRAGMENTS,
    PLAIN_BELOW,
    SHAPE,
    Run,
    RunTable,
    has_block,
    shape_of,
)
from dro.um.transport.session import BoundSource, ReceiverTransport
from dro.wire.lbmc.codes import BlockType
from portals.datapath import descriptor
from portals.datapath.counters import PairSlot, Slot
from portals.datapath.descriptor import BatchKind
from portals.datapath.episodes import Episodes
from portals.datapath.handover import ForwardEntry
from portals.datapath.select import HEADROOM, compact, extent, move, take_all

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

RING_MAX_BYTES: Final = 16 << 20  # that a ring grows to
RING_START_BYTES: Final = SLOTS_AT + FIRST_BYTES  # what a ring takes with the first fragment in it
RING_PER_QUEUE: Final = 4  # or up to this many times <max-queue>
CHUNK_MAX_BYTES: Final = 1 << 20
SPREAD: Final = 2  # a chunk may be this many times as large as the fragments in it before they are copied one by one


def ring_bytes(max_queue_bytes: int) -> int:
    """What a portal's ring may grow to."""
    return max(RING_MAX_BYTES, RING_PER_QUEUE * max_queue_bytes)


class Announce(Protocol):
    """How siblings get descriptors; `put` is False when the queue is full or there is none."""

    def put(self, reader: int, slot: QueueSlot) -> bool: ...


class Ingress:
    """Takes runs from the transports of the receiving context and hands them to the siblings."""

    def __init__(
        self,
        ring: RingWriter,
        page: CounterPage,
        queues: Announce,
        wake: Callable[[int], object],
        *,
        chunk_max_bytes: int = CHUNK_MAX_BYTES,
        name_of: Callable[[int], str] = str,
    ) -> None:
        """`wake(worker)` is called after each descriptor.

        `chunk_max_bytes` is more than the largest fragment, and less than the ring's capacity. `name_of` names
        siblings in the log.
        """
        self._ring = ring
        self._page = page
        self._queues = queues
        self._wake = wake
        self._chunk_max = chunk_max_bytes
        self._name_of = name_of
        self._tables: dict[int, RunTable] = {}  # what each sibling gets of the batch; empty between batches
        self._refusals: dict[int, Episodes] = {}  # of siblings whose queue was full at some time

    def on_fragments(self, view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
        for transport, table in parts:
            if not table.rows:
                continue
            for out in self._tables.values():
                if out.room < table.rows:
                    self._forward(view, now_ns)
                    break
            if not self._select_plain(transport.sources, table):
                self._select(transport, view, table)
        self._forward(view, now_ns)

    def handed(self, worker: int) -> tuple[int, int]:
        """Fragments and bytes that the sibling's queue ever took, from all incarnations of this portal."""
        page = self._page
        base = page.pair(worker)
        return (
            page[base + PairSlot.HANDED] - page[base + PairSlot.REFUSED],
            page[base + PairSlot.HANDED_BYTES] - page[base + PairSlot.REFUSED_BYTES],
        )

    def _out(self, worker: int) -> RunTable:
        table = self._tables.get(worker)
        if table is None:
            table = self._tables[worker] = RunTable()
        return table

    # which runs

    def _select_plain(self, sources: Mapping[int, BoundSource], table: RunTable) -> bool:
        """Take a table of plain data that is all for the same siblings; False, with nothing done, when it is none."""
        if max(table.column(SHAPE)) >= PLAIN_BELOW:
            return False
        try:
            entries = [sources[topic].user for topic in table.column(0)]
            plain = [entry.plain for entry in entries]  # type: ignore[attr-defined]
            handles = [entry.handle for entry in entries]  # type: ignore[attr-defined]
        except (KeyError, AttributeError):
            return False
        egress = plain[0]
        if egress is None or plain.count(egress) != len(plain):
            return False
        page = self._page
        page.add_sized(Slot.TOPIC_RCVD, table.fragments(), table.nbytes())
        page.add(Slot.BATCHES_IN)
        page.add(Slot.RUNS_IN, table.rows)
        for worker in egress:
            take_all(table, handles, self._out(worker))
        return True

    def _select(self, transport: ReceiverTransport, view: memoryview, table: RunTable) -> None:
        sources, page = transport.sources, self._page
        fragments = nbytes = 0
        for run in table:
            bound = sources.get(run.topic_index)
            if bound is None:
                transport.lbm_msgs_no_topic_rcved += run.fragments
                page.add(Slot.NO_TOPIC_RCVD, run.fragments)
                continue
            shape = shape_of(run)
            if run.kind:
                page.add_sized(Slot.CONTROL_RCVD, 1, run.length)
            else:
                fragments += run.fragments
                nbytes += run.fragments * run.length
                if run.next_header and has_block(view, run, BlockType.REQUEST):
                    page.add_sized(Slot.TOPIC_REQ_RCVD, run.fragments, run.fragments * run.length)
                    shape |= FLAG_REQUEST << FLAGS_SHIFT
            entry = bound.user
            if isinstance(entry, ForwardEntry):
                for worker, edge in entry.closing.items():
                    if before := edge.before(view, run):
                        self._add(worker, entry.handle, run, before, shape)
                for worker in entry.egress:
                    self._add(worker, entry.handle, run, run.fragments, shape)
        if fragments:
            page.add_sized(Slot.TOPIC_RCVD, fragments, nbytes)
            page.add(Slot.BATCHES_IN)
            page.add(Slot.RUNS_IN, table.rows)

    def _add(self, worker: int, handle: int, run: Run, fragments: int, shape: int) -> None:
        self._out(worker).put(handle, run.first_sqn, fragments, run.offset, run.length, run.stride, shape)

    # to the siblings

    def _forward(self, view: memoryview, now_ns: int) -> None:
        """Put what siblings want of the batch into the ring and announce it to them."""
        tables = [(worker, table) for worker, table in self._tables.items() if table.rows]
        if not tables:
            return
        extents = [extent(table) for _, table in tables]
        lows = [low for low, high in extents if high]
        low, high = max(0, min(lows, default=0) - HEADROOM), max([high for _, high in extents])
        content = max([table.nbytes() + HEADROOM * table.fragments() for _, table in tables])
        if high - low > self._chunk_max or high - low > SPREAD * content + 4096:
            for worker, table in tables:
                for chunk, rows in compact(view, table, self._chunk_max):
                    self._announce(worker, self._put(chunk), len(chunk), rows, now_ns)
        else:
            position = self._put(view[low:high]) if high else 0
            for worker, table in tables:
                move(table, low)
                self._announce(worker, position, high - low, table, now_ns)
        for _, table in tables:
            table.rows = 0

    def _put(self, data: bytes | bytearray | memoryview) -> int | None:
        """Where it lies in the ring; None when there is no shared memory for it."""
        try:
            return self._ring.write(data)
        except ResourceError as e:
            limited(LogEvent.RING_FULL, extra={"error": str(e)})
            return None

    def _announce(self, worker: int, position: int | None, size: int, table: RunTable, now_ns: int) -> None:
        """`position` None: there was no room for the fragments."""
        at = None if position is None else self._put(descriptor.encode(position, size, table))
        fragments, nbytes = sum(table.column(FRAGMENTS)), table.nbytes()
        page = self._page
        base = page.pair(worker)
        page.add_sized(base + PairSlot.HANDED, fragments, nbytes)
        if at is None or not self._queues.put(
            worker, QueueSlot(at, table.rows, fragments, nbytes, BatchKind.SOURCE_DATA)
        ):
            page.add_sized(base + PairSlot.REFUSED, fragments, nbytes)
            if worker not in self._refusals:
                self._refusals[worker] = self._refusals_of(worker)
            self._refusals[worker].on_begin(now_ns)
        elif worker in self._refusals:
            self._refusals[worker].on_end()
        self._wake(worker)

    def _refusals_of(self, worker: int) -> Episodes:
        name, refused = self._name_of(worker), self._page.pair(worker) + PairSlot.REFUSED

        def log_begin(extra: Mapping[str, object]) -> None:
            log.warning(LogEvent.SIBLING_FULL, extra={"sibling": name, **extra})

        def log_end() -> None:
            log.info(LogEvent.SIBLING_TAKES_AGAIN, extra={"sibling": name, "refused": self._page[refused]})

        return Episodes(log_begin, log_end)
