"""The receiving half of an endpoint portal's data path: fragments of a batch into the ring, descriptors to siblings.

Per batch: one copy into the ring, one descriptor for each set of egress portals. Per run: one table look-up. Nothing
is done per fragment. Which siblings want a source is decided by the core and only looked up here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.bus.counters import CounterPage
from dro.bus.ring import RingWriter
from dro.sqn import MASK
from dro.um.runs import KIND_TSNI, Run, has_block
from dro.um.session import ReceiverTransport
from portals import descriptor
from portals.counters import PairSlot, Slot
from portals.descriptor import ForwardRun
from portals.endpoint.handover import ForwardEntry

BLOCK_REQUEST: Final = 0x04
SPREAD: Final = 2  # a chunk may be this many times as large as the fragments in it before they are copied one by one


class Ingress:
    """Takes runs from the transports of the receiving context and hands them to the siblings."""

    def __init__(
        self, ring: RingWriter, page: CounterPage, send: Callable[[int, bytes], bool], *, chunk_max_bytes: int
    ) -> None:
        """`send(worker, descriptor)` is False when the sibling's channel is full or gone.

        `chunk_max_bytes` is more than the largest fragment, and less than the ring's capacity.
        """
        self._ring = ring
        self._page = page
        self._send = send
        self._chunk_max = chunk_max_bytes

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
                page.add(Slot.CONTROL_RCVD)
                page.add(Slot.CONTROL_RCVD_BYTES, run.length)
            else:
                fragments += run.fragments
                nbytes += run.fragments * run.length
                if run.next_header and has_block(view, run, BLOCK_REQUEST):
                    page.add(Slot.TOPIC_REQ_RCVD, run.fragments)
                    page.add(Slot.TOPIC_REQ_RCVD_BYTES, run.fragments * run.length)
            entry = bound.user
            if isinstance(entry, ForwardEntry):
                if entry.closing:
                    for worker, edge in entry.closing.items():
                        if before := edge.before(view, run):
                            by_egress.setdefault((worker,), []).append((entry.handle, run._replace(fragments=before)))
                if entry.egress:
                    by_egress.setdefault(entry.egress, []).append((entry.handle, run))
        if fragments:
            page.add(Slot.TOPIC_RCVD, fragments)
            page.add(Slot.TOPIC_RCVD_BYTES, nbytes)
            page.add(Slot.BATCHES_IN)
            page.add(Slot.RUNS_IN, len(runs))
        for egress, wanted in by_egress.items():
            self._forward(egress, wanted, view)

    def _forward(self, egress: tuple[int, ...], wanted: list[tuple[int, Run]], view: memoryview) -> None:
        """Put what `egress` wants of the batch into the ring and tell them."""
        low, high, content = 1 << 62, 0, 0
        for _, run in wanted:
            if run.kind != KIND_TSNI:
                low = min(low, run.offset - run.headroom)
                high = max(high, run.offset + (run.fragments - 1) * run.stride + run.length)
                content += run.fragments * (run.length + run.headroom)
        if high - low > self._chunk_max or high - low > SPREAD * content + 4096:
            self._forward_scattered(egress, wanted, view)
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
        self._announce(egress, position, high - low, out)

    def _forward_scattered(self, egress: tuple[int, ...], wanted: list[tuple[int, Run]], view: memoryview) -> None:
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
                    self._announce(egress, self._ring.write(chunk), len(chunk), out)
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
        self._announce(egress, self._ring.write(chunk) if chunk else 0, len(chunk), out)

    def _announce(self, egress: tuple[int, ...], position: int, size: int, runs: list[ForwardRun]) -> None:
        frame = descriptor.encode(position, size, runs)
        fragments = sum(run.fragments for run in runs)
        nbytes = sum(run.fragments * run.length for run in runs)
        page = self._page
        for worker in egress:
            base = page.pair(worker)
            page.add(base + PairSlot.HANDED, fragments)
            page.add(base + PairSlot.HANDED_BYTES, nbytes)
            if not self._send(worker, frame):
                page.add(base + PairSlot.REFUSED, fragments)
                page.add(base + PairSlot.REFUSED_BYTES, nbytes)
