"""The end of forwarding to some siblings, at the portal that hears the sources, with nothing missing before it.

When forwarding stops in the middle of a stream, what comes before that place may still be missing here and be asked
for. A `Handover` therefore goes on until the transport sessions have repaired, or given up, all that was missing. The
place is an `Edge`, one for each source; nothing is known of it, and nothing noted for it, before a handover begins.

    looking     everything is still handed on; each edge notes the newest fragment that passes. Over after `LOOK_TICKS`
                when what was missing at the beginning is there
    finishing   what lies before the edge, behind that newest fragment, is still handed on; the first run beyond may
                move the edge to where the message ends whose beginning was handed on already. Over when no edge has
                moved for `QUIET_TICKS` and nothing older than the edges is missing

A source that was silent while looking has no edge: all of it that came before was handed on. Ticks and not time are
counted: between two of them the loop has read what was there to be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from struct import Struct
from typing import Final, Protocol

from dro.errors import DecodeError
from dro.sqn import HALF, MASK
from dro.um.runs import HEADER_BYTES, KIND_CONTROL, KIND_DATA, Run, chain
from dro.um.session import BoundSource, ReceiverTransport

LOOK_TICKS: Final = 2
QUIET_TICKS: Final = 10
_FRAG: Final = Struct("!III")  # first sqn of the message, offset of this fragment, bytes of the message
_FRAG_BYTES: Final = 16
_BLOCK_FRAG: Final = 0x01


class ForwardEntry:
    """What the data path knows of one own source: its handle and the siblings that want it."""

    __slots__ = ("closing", "egress", "handle", "source")

    def __init__(self, handle: int, source: BoundSource) -> None:
        self.handle = handle
        self.source = source
        self.egress: tuple[int, ...] = ()
        self.closing: dict[int, Edge] = {}  # siblings that get only what lies before an edge

    def want(self, workers: tuple[int, ...]) -> None:
        """These siblings want the source; those among them that are about to get no more of it stay so."""
        self.egress = tuple([worker for worker in workers if worker not in self.closing])
        for worker in self.closing.keys() - set(workers):
            del self.closing[worker]

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
        """How many fragments of the run, from its first on, are still handed on."""
        if self.handover.is_looking:
            self._note(run)
            return run.fragments
        if run.kind != KIND_DATA:
            return 0  # what a source says about itself counts from here on
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
        """Data and, as it speaks of them, TSNIs move the edge."""
        if run.kind != KIND_CONTROL:
            end = (run.first_sqn + run.fragments) & MASK
            if self._sqn is None or (end - self._sqn) & MASK < HALF:
                self._sqn = end


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
        self.is_looking = True
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
        return sum([not self._sessions.is_whole(*mark) for mark in self._marks.values()])

    def cancel(self) -> None:
        """End it at once: the siblings are gone, or it is over."""
        for entry in self._entries:
            for worker in self.workers & entry.closing.keys():
                if entry.closing[worker].handover is self:
                    del entry.closing[worker]
        self._entries = []
        self.is_over = True
