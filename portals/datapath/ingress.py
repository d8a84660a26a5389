"""The receiving half of a portal's data path: fragments of a batch into the ring, descriptors to siblings.

Per batch: one copy into the ring, one descriptor for each set of egress portals. Per run: one table look-up. Nothing
is done per fragment. Which siblings want a source is decided by the core and only looked up here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from dro.bus.counters import CounterPage
from dro.bus.ring import RingWriter
from dro.log.events import LogEvent
from dro.sqn import MASK
from dro.um.transport.runs import KIND_TSNI, Run, has_block
from dro.um.transport.session import ReceiverTransport
from dro.wire.lbmc.codes import BlockType
from portals.datapath import descriptor
from portals.datapath.counters import PairSlot, Slot
from portals.datapath.descriptor import ForwardRun
from portals.datapath.episodes import Episodes
from portals.datapath.handover import ForwardEntry

log = logging.getLogger(__name__)

RING_MIN_BYTES: Final = 16 << 20
RING_PER_QUEUE: Final = 4  # the ring is this many times as large as <max-queue>
CHUNK_MAX_BYTES: Final = 1 << 20
SPREAD: Final = 2  # a chunk may be this many times as large as the fragments in it before they are copied one by one


def ring_bytes(max_queue_bytes: int) -> int:
    """The size of a portal's ring."""
    return max(RING_MIN_BYTES, RING_PER_QUEUE * max_queue_bytes)


class Ingress:
    """Takes runs from the transports of the receiving context and hands them to the siblings."""

    def __init__(
        self,
        ring: RingWriter,
        page: CounterPage,
        send: Callable[[int, bytes], bool],
        *,
        chunk_max_bytes: int = CHUNK_MAX_BYTES,
        name_of: Callable[[int], str] = str,
    ) -> None:
        """`send(worker, descriptor)` is False when the sibling's channel is full or gone.

        `chunk_max_bytes` is more than the largest fragment, and less than the ring's capacity. `name_of` names
        siblings in the log.
        """
        self._ring = ring
        self._page = page
        self._send = send
        self._chunk_max = chunk_max_bytes
        self._name_of = name_of
        self._refusals: dict[int, Episodes] = {}  # of siblings whose channel was full at some time

    def on_fragments(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        sources = transport.sources
        page = self._page
        by_egress: dict[tuple[int, ...], list[tuple[int, Run]]] = {}
        fragments = nbytes = 0
        for run in runs:
            bound = sources.get(run.topic_index)
            if bound is None:
                transport.lbm_msgs_no_topic_rcved += run.fragments
                page.add(Slot.NO_TOPIC_RCVD, run.fragments)
                continue
            if run.kind:
                page.add_sized(Slot.CONTROL_RCVD, 1, run.length)
            else:
                fragments += run.fragments
                nbytes += run.fragments * run.length
                if run.next_header and has_block(view, run, BlockType.REQUEST):
                    page.add_sized(Slot.TOPIC_REQ_RCVD, run.fragments, run.fragments * run.length)
            entry = bound.user
            if isinstance(entry, ForwardEntry):
                if entry.closing:
                    for worker, edge in entry.closing.items():
                        if before := edge.before(view, run):
                            by_egress.setdefault((worker,), []).append((entry.handle, run._replace(fragments=before)))
                if entry.egress:
                    by_egress.setdefault(entry.egress, []).append((entry.handle, run))
        if fragments:
            page.add_sized(Slot.TOPIC_RCVD, fragments, nbytes)
            page.add(Slot.BATCHES_IN)
            page.add(Slot.RUNS_IN, len(runs))
        for egress, wanted in by_egress.items():
            self._forward(egress, wanted, view, now_ns)

    def handed(self, worker: int) -> tuple[int, int]:
        """Fragments and bytes that the sibling's channel ever took, from all incarnations of this portal."""
        page = self._page
        base = page.pair(worker)
        return (
            page[base + PairSlot.HANDED] - page[base + PairSlot.REFUSED],
            page[base + PairSlot.HANDED_BYTES] - page[base + PairSlot.REFUSED_BYTES],
        )

    def _forward(self, egress: tuple[int, ...], wanted: list[tuple[int, Run]], view: memoryview, now_ns: int) -> None:
        """Put what `egress` wants of the batch into the ring and announce it to them."""
        low, high, content = len(view), 0, 0
        for _, run in wanted:
            if run.kind != KIND_TSNI:
                low = min(low, run.offset - run.headroom)
                high = max(high, run.offset + (run.fragments - 1) * run.stride + run.length)
                content += run.fragments * (run.length + run.headroom)
        if high - low > self._chunk_max or high - low > SPREAD * content + 4096:
            self._forward_scattered(egress, wanted, view, now_ns)
            return
        position = 0
        if high:
            position = self._ring.write(view[low:high])
        else:
            low = high = 0
        out = [
            ForwardRun(handle, run.first_sqn, run.fragments, run.offset - low if run.length else 0, run.length,
                       run.stride, run.headroom, run.next_header, run.kind)
            for handle, run in wanted
        ]  # fmt: skip
        self._announce(egress, position, high - low, out, now_ns)

    def _forward_scattered(
        self, egress: tuple[int, ...], wanted: list[tuple[int, Run]], view: memoryview, now_ns: int
    ) -> None:
        """As `_forward`, for fragments that lie far apart or are too many for a chunk: they are copied together."""
        chunk = bytearray()
        out: list[ForwardRun] = []
        for handle, run in wanted:
            if run.kind == KIND_TSNI:
                out.append(ForwardRun(handle, *run[1:]))
                continue
            step, done = run.headroom + run.length, 0
            while done < run.fragments:
                count = min((self._chunk_max - len(chunk)) // step, run.fragments - done)
                if count < 1:
                    self._announce(egress, self._ring.write(chunk), len(chunk), out, now_ns)
                    chunk, out = bytearray(), []
                    continue
                at, start = len(chunk) + run.headroom, run.offset - run.headroom + done * run.stride
                if run.stride == step:
                    chunk += view[start : start + count * step]
                else:
                    chunk += b"".join(
                        [view[o : o + step] for o in range(start, start + count * run.stride, run.stride)]
                    )
                out.append(
                    ForwardRun(handle, (run.first_sqn + done) & MASK, count, at, run.length, step, run.headroom,
                               run.next_header, run.kind)
                )  # fmt: skip
                done += count
        self._announce(egress, self._ring.write(chunk) if chunk else 0, len(chunk), out, now_ns)

    def _announce(self, egress: tuple[int, ...], position: int, size: int, runs: list[ForwardRun], now_ns: int) -> None:
        frame = descriptor.encode(position, size, runs)
        fragments = sum(run.fragments for run in runs)
        nbytes = sum(run.fragments * run.length for run in runs)
        page = self._page
        for worker in egress:
            base = page.pair(worker)
            page.add_sized(base + PairSlot.HANDED, fragments, nbytes)
            if not self._send(worker, frame):
                page.add_sized(base + PairSlot.REFUSED, fragments, nbytes)
                if worker not in self._refusals:
                    self._refusals[worker] = self._refusals_of(worker)
                self._refusals[worker].on_begin(now_ns)
            elif worker in self._refusals:
                self._refusals[worker].on_end()

    def _refusals_of(self, worker: int) -> Episodes:
        name, refused = self._name_of(worker), self._page.pair(worker) + PairSlot.REFUSED

        def log_begin(extra: Mapping[str, object]) -> None:
            log.warning(LogEvent.SIBLING_FULL, extra={"sibling": name, **extra})

        def log_end() -> None:
            log.info(LogEvent.SIBLING_TAKES_AGAIN, extra={"sibling": name, "refused": self._page[refused]})

        return Episodes(log_begin, log_end)
