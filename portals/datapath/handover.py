"""The end of forwarding to some siblings, at the portal that hears the sources, without loss before it.

When forwarding stops in the middle of a stream, earlier fragments may still be missing here and be repaired. A
`Handover` therefore lasts until the transport sessions have repaired, or given up, all that was missing. The place is
an `Edge`, one for each source; nothing is recorded for it before a handover begins.

    looking     everything is still handed on; each edge notes the newest fragment that passes. Over after `LOOK_TICKS`
                when what was missing at the beginning is there
    finishing   what lies before the edge, behind that newest fragment, is still handed on; the first run beyond may
                move the edge to where the message ends whose beginning was handed on already. Over when no edge has
                moved for `QUIET_TICKS` and nothing older than the edges is missing

A source that was silent while looking has no edge: all its earlier fragments were forwarded. Ticks are counted instead
of time: between two of them the loop has read all available data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from dro.errors import DecodeError
from dro.proto.context.sources import BoundSource, SessionView
from dro.sqn import HALF, MASK
from dro.transport.runs import KIND_CONTROL, KIND_DATA, Run
from dro.wire.lbmc.message import frag_of

LOOK_TICKS: Final = 2
QUIET_TICKS: Final = 10


class ForwardEntry:
    """What the data path knows of one own source: its handle and the siblings that want it."""

    __slots__ = ("_egress", "closing", "handle", "plain", "source")

    def __init__(self, handle: int, source: BoundSource[ForwardEntry]) -> None:
        self.handle = handle
        self.source = source
        self.closing: dict[int, Edge] = {}  # siblings that get only what lies before an edge
        self.egress = ()

    @property
    def egress(self) -> tuple[int, ...]:
        return self._egress

    @egress.setter
    def egress(self, workers: tuple[int, ...]) -> None:
        self._egress = workers
        self.plain = None if self.closing else workers
        """The siblings that get all of it, when there are no others."""

    def want(self, workers: tuple[int, ...]) -> None:
        """These siblings want the source; those among them that are about to get no more of it stay so."""
        self.egress = tuple([worker for worker in workers if worker not in self.closing])
        for worker in self.closing.keys() - set(workers):
            self.end_closing(worker)

    def end_closing(self, worker: int) -> None:
        """Stop forwarding to this sibling."""
        del self.closing[worker]
        self.egress = self._egress

    def close_to(self, workers: Collection[int], handover: Handover) -> bool:
        """Give none of these anything beyond an edge; False when none of them had it anyway."""
        leaving = [worker for worker in self.egress if worker in workers]
        if leaving:
            self.closing.update(dict.fromkeys(leaving, Edge(handover)))
            self.egress = tuple([worker for worker in self.egress if worker not in workers])
        return bool(leaving)


class Edge:
    """Where the stream of one source ends for some siblings."""

    __slots__ = ("_is_settled", "_sqn", "handover")

    def __init__(self, handover: Handover) -> None:
        self._sqn: int | None = None  # the first topic sqn that is not handed on
        self._is_settled = False
        self.handover = handover

    def before(self, view: memoryview, run: Run) -> int:
        """Count the fragments of the run, from its first on, that are still handed on."""
        if self.handover.is_looking:
            self._note(run)
            return run.fragments
        if run.kind != KIND_DATA:
            return 0  # control messages and TSNIs count from here on
        first, count = run.first_sqn, run.fragments
        beyond = 0 if self._sqn is None else (first - self._sqn) & MASK
        inside = 0 if beyond < HALF else min(MASK + 1 - beyond, count)
        if inside == count or self._is_settled:
            return inside
        while inside < count and _continues(view, run, inside):
            inside += 1
        self._is_settled = inside < count
        sqn = (first + inside) & MASK
        if inside or self._sqn not in (None, sqn):
            self.handover.on_moved()
        self._sqn = sqn
        return inside

    def _note(self, run: Run) -> None:
        """Move the edge by data and, as it speaks of them, by TSNIs."""
        if run.kind != KIND_CONTROL:
            end = (run.first_sqn + run.fragments) & MASK
            if self._sqn is None or (end - self._sqn) & MASK < HALF:
                self._sqn = end


def _continues(view: memoryview, run: Run, index: int) -> bool:
    """Say whether this fragment goes on with a message that an earlier one began. A broken chain counts as no."""
    try:
        frag = frag_of(view, run.offset + index * run.stride, run.length)
    except DecodeError:
        return False
    return frag is not None and frag[1] > 0


class Handover:
    """Ends the forwarding of some sources to some siblings; see the module text.

    One that begins while others are under way is over after them: a sibling that leaves may be in two.
    """

    def __init__(self, entries: Iterable[ForwardEntry], workers: Iterable[int]) -> None:
        self.workers = frozenset(workers)
        self.is_looking = True
        self.is_over = False
        entries = list(entries)
        self._entries = [entry for entry in entries if entry.close_to(self.workers, self)]
        self._before = {edge.handover for entry in entries for edge in entry.closing.values()} - {self}
        self._marks: dict[SessionView, int | None] = {}
        self._quiet = 0
        self._has_moved = False
        self._mark()

    def _mark(self) -> None:
        for entry in self._entries:
            transport = entry.source.transport
            if transport not in self._marks:
                self._marks[transport] = transport.mark()

    def on_moved(self) -> None:
        """An edge has moved: what came before it now counts as well."""
        self._has_moved = True

    def on_tick(self) -> bool:
        """True when it is over; the siblings get nothing more then, and it is not to be called again."""
        self._quiet += 1
        if self.is_looking and self._quiet >= LOOK_TICKS and not self.waiting:
            self.is_looking, self._has_moved = False, True
        if self._has_moved:
            self._has_moved, self._quiet = False, 0
            self._marks.clear()
            self._mark()
        if self._before and not all(handover.is_over for handover in self._before):
            return False
        if not self._entries or (not self.is_looking and self._quiet >= QUIET_TICKS and not self.waiting):
            self.cancel()
        return self.is_over

    @property
    def waiting(self) -> int:
        """Sessions that still have something to repair."""
        return sum([not transport.is_whole(mark) for transport, mark in self._marks.items()])

    def cancel(self) -> None:
        """End it at once: the siblings are gone, or it is over."""
        for entry in self._entries:
            for worker in self.workers & entry.closing.keys():
                if entry.closing[worker].handover is self:
                    entry.end_closing(worker)
        self._entries = []
        self.is_over = True
