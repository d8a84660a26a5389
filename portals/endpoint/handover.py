"""The end of forwarding to some siblings, at the portal that hears the sources, with nothing missing before it.

When forwarding stops in the middle of a stream, what comes before that place may still be missing here and be asked
for. An `Edge` is the place, one for each source and end; a `Handover` goes on forwarding what lies before it until
the transport sessions have repaired, or given up, all that was missing.

    begin       each source gets its edge: behind the newest fragment that was handed on
    a run       what lies before the edge is still handed on; the first one beyond may move the edge to where the
                message ends whose beginning was handed on already
    tick        over when no edge has moved for `QUIET_TICKS` and nothing older than the edges is missing

Ticks and not time are counted: between two of them the loop has read what was there to be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from struct import Struct
from typing import Final, Protocol

from dro.errors import DecodeError
from dro.sqn import HALF, MASK
from dro.um.runs import HEADER_BYTES, KIND_CONTROL, KIND_DATA, Run, chain
from dro.um.session import BoundSource, ReceiverTransport

QUIET_TICKS: Final = 10
_FRAG: Final = Struct("!III")  # first sqn of the message, offset of this fragment, bytes of the message
_FRAG_BYTES: Final = 16
_BLOCK_FRAG: Final = 0x01


class ForwardEntry:
    """What the data path knows of one own source: its handle and the siblings that want it."""

    __slots__ = ("closing", "egress", "handle", "next_sqn", "source")

    def __init__(self, handle: int, source: BoundSource) -> None:
        self.handle = handle
        self.source = source
        self.egress: tuple[int, ...] = ()
        self.closing: dict[int, Edge] = {}  # siblings that get only what lies before an edge
        self.next_sqn: int | None = None  # topic sqn after the newest one that was handed on

    def want(self, workers: tuple[int, ...]) -> None:
        """These siblings want the source; those among them that are about to get no more of it stay so."""
        self.egress = tuple([worker for worker in workers if worker not in self.closing])
        for worker in self.closing.keys() - set(workers):
            del self.closing[worker]

    def close_to(self, workers: Collection[int], handover: Handover) -> bool:
        """Let none of these have more than is before the edge that is now; False if none of them has had anything."""
        leaving = [worker for worker in self.egress if worker in workers]
        if leaving:
            edge = Edge(self.next_sqn, handover)
            self.closing.update(dict.fromkeys(leaving, edge))
            self.egress = tuple([worker for worker in self.egress if worker not in workers])
        return bool(leaving)


class Edge:
    """Where the stream of one source ends for some siblings."""

    __slots__ = ("_is_settled", "_sqn", "handover")

    def __init__(self, sqn: int | None, handover: Handover) -> None:
        """`sqn`: the first topic sqn that is not handed on; None: nothing was, so nothing will be."""
        self._sqn = sqn
        self.handover = handover
        self._is_settled = sqn is None

    def before(self, view: memoryview, run: Run) -> int:
        """How many fragments of the run, from its first on, lie before the edge."""
        if self._sqn is None or run.kind != KIND_DATA:
            return 0  # what a source says about itself counts from here on
        first, count = run.first_sqn, run.fragments
        beyond = (first - self._sqn) & MASK
        inside = 0 if beyond < HALF else min(MASK + 1 - beyond, count)
        if inside == count or self._is_settled:
            return inside
        while inside < count and _continues(view, run, inside):
            inside += 1
        self._is_settled = inside < count
        sqn = (first + inside) & MASK
        if sqn != self._sqn:
            self._sqn = sqn
            self.handover.on_moved()
        return inside


def _continues(view: memoryview, run: Run, index: int) -> bool:
    """Does this fragment of the run go on with a message that an earlier one began? A broken chain counts as no."""
    at = run.offset + index * run.stride
    try:
        for code, block, size in chain(view, at + HEADER_BYTES, at + run.length, run.next_header):
            if code == _BLOCK_FRAG and size >= _FRAG_BYTES:
                return bool(_FRAG.unpack_from(view, block + 4)[1])
    except DecodeError:
        pass
    return False


def note(entry: ForwardEntry, run: Run) -> None:
    """A run was handed on. Data and, as it speaks of them, TSNIs move the place where an end would be."""
    if run.kind != KIND_CONTROL:
        end = (run.first_sqn + run.fragments) & MASK
        if entry.next_sqn is None or (end - entry.next_sqn) & MASK < HALF:
            entry.next_sqn = end


class Sessions(Protocol):
    """What is known of the transport sessions that were joined (`dro.um.joined.Joined`)."""

    def mark(self, transport: ReceiverTransport) -> int | None:
        """The place in the stream of datagrams that was reached."""

    def is_whole(self, transport: ReceiverTransport, mark: int | None) -> bool:
        """Is nothing missing any more of what came before that place?"""


class Handover:
    """Ends the forwarding of some sources to some siblings; see the module text.

    One that begins while others are under way is over after them: a sibling that leaves may be in two.
    """

    def __init__(self, sessions: Sessions, entries: Iterable[ForwardEntry], workers: Iterable[int]) -> None:
        self.workers = frozenset(workers)
        self.is_over = False
        self._sessions = sessions
        entries = list(entries)
        self._entries = [entry for entry in entries if entry.close_to(self.workers, self)]
        self._before = {edge.handover for entry in entries for edge in entry.closing.values()} - {self}
        self._marks: dict[int, tuple[ReceiverTransport, int | None]] = {}  # by id of the session
        self._quiet = 0
        self._has_moved = False
        self._mark()

    def _mark(self) -> None:
        for entry in self._entries:
            transport = entry.source.transport
            if id(transport) not in self._marks:
                self._marks[id(transport)] = (transport, self._sessions.mark(transport))

    def on_moved(self) -> None:
        """An edge has moved: what came before it now counts as well."""
        self._has_moved = True

    def on_tick(self) -> bool:
        """True when it is over; the siblings get nothing more then, and it is not to be called again."""
        self._quiet += 1
        if self._has_moved:
            self._has_moved, self._quiet = False, 0
            self._marks.clear()
            self._mark()
        if self._before and not all(handover.is_over for handover in self._before):
            return False
        if not self._entries or (self._quiet >= QUIET_TICKS and not self.waiting):
            self.cancel()
        return self.is_over

    @property
    def waiting(self) -> int:
        """Sessions that still have something to repair."""
        return sum([not self._sessions.is_whole(*mark) for mark in self._marks.values()])

    def cancel(self) -> None:
        """End it at once: the siblings are gone, or it is over."""
        for entry in self._entries:
            for worker in self.workers & entry.closing.keys():
                if entry.closing[worker].handover is self:
                    del entry.closing[worker]
        self._entries = []
        self.is_over = True
