"""Loss detection: missing datagrams of one transport session and when to send NAKs; shared by LBT-RM and LBT-RU.

`LossDetector` owns the missing sqns with their timers. Its inputs are gaps, repairs, NCFs and trail moves; its
results are the sqns to name in a NAK and those given up. It counts and emits nothing: its caller, the receiver session,
does.

A missing sqn is NAKed after a random initial backoff, then after a random backoff counted from each NAK actually sent.
NAK suppression: an NCF delays the next NAK to its arrival plus the suppress interval, exactly. The generation interval
runs from detection and is never restarted. One random draw is taken per missing sqn and NAK.

What is missing is kept as ranges that share all of this, so a gap costs what it is, not what it holds. Guess: of a gap
of more than `OWN_TIMER_MAX` sqns, each `PIECE` share one draw; the option texts speak of one backoff per message, as it
is for shorter gaps.

Guess: a session asks for at most `naks_per_round` sqns in `NAK_ROUND_NS`, those that have been due longest; the rest
follows in the next rounds. UM's limit, if it has one, is not public. More would help nobody: 40,000 repairs a second
are about what this side can take in, as they come one by one, and many times what the default retransmission limit of
a source lets it send.

Source: UM Configuration Guide, transport_lbtrm_* and transport_lbtru_* receiver options; a UM 6.14 capture for the
timing after a NAK and after an NCF.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import ClassVar, Final

from dro.clock import NS_PER_MS, ms, s
from dro.proto.session_events import Began, Ended
from dro.sqn import MASK, ahead
from dro.state import StateLayout

Rng = Callable[[], float]
"""Uniform draws in [0, 1)."""

SqnRange = tuple[int, int]
"""First sqn, count."""

_GapState = tuple[int, int, int, int, int]

MIN_REPEAT_NS: Final = NS_PER_MS
"""Least time between two NAKs for one sqn. Guess: a backoff of 0 would spin; one millisecond is the options' unit."""

HEAP_SLACK: Final = 64
OWN_TIMER_MAX: Final = 64
PIECE: Final = 1000
NAK_ROUND_NS: Final = ms(50)
MAX_PACKETS_PER_ROUND: Final = 32
MAX_EXPIRED: Final = 4096
_NEVER: Final = -1  # `due_ns` of what is missing no more


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Receiver options of one session; the defaults are those of LBT-RM. All times in ns.

    `max_gap` bounds how many sqns may be missing at once. Guess: 65536, more than the default transmission window
    holds of all but the smallest datagrams. What a larger jump leaves out is given up at once.
    `max_naks_per_packet` is what fits one NAK packet of `datagram_max_size` (8192 by default). `naks_per_round` also
    ends at `MAX_PACKETS_PER_ROUND` packets.
    """

    initial_backoff_ns: int = ms(50)
    backoff_ns: int = ms(200)
    suppress_ns: int = ms(1000)
    generation_ns: int = ms(10_000)
    send_naks: bool = True
    activity_timeout_ns: int = s(60)
    preactivity_timeout_ns: int = 0
    max_gap: int = 65536
    max_naks_per_packet: int = 2045
    naks_per_round: int = 2000


LBTRM_LOSS: Final = LossConfig()
LBTRU_LOSS: Final = LossConfig(initial_backoff_ns=0)


class LossReason(Enum):
    """Why a datagram will not come any more; the values are the suffixes of the UM statistics."""

    TMO = "tmo"  # the generation interval is over
    TXW = "txw"  # the source cannot send it again: its window has moved on, or it said so


@dataclass(frozen=True, slots=True)
class NakDue:
    """Ask the source for these, in one packet. Shape: oldest first, at most `max_naks_per_packet`."""

    sqns: tuple[int, ...]
    at_ns: int


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """These datagrams are lost for good. Shape: oldest first, no two adjacent, at most `max_gap` sqns in all."""

    ranges: tuple[SqnRange, ...]
    reason: LossReason
    at_ns: int

    @property
    def count(self) -> int:
        return sum([count for _, count in self.ranges])

    @property
    def cause(self) -> str:
        """For operators."""
        return "timeout" if self.reason is LossReason.TMO else "window advance"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A jump left these `count` sqns from `first_sqn` out without ever asking for them; lost, reason TXW.

    `max_gap` does not bound it: a stranger chooses its length.
    """

    first_sqn: int
    count: int
    at_ns: int
    cause: ClassVar[str] = "jump"


SessionEvent = NakDue | Unrecoverable | Skipped | Began | Ended


@dataclass(slots=True, eq=False)
class Gap:
    """Missing sqns with one fate so far, by index (`LossDetector`): from `first` up to before `end`.

    When they were found missing, when their next NAK is due, how many NAKs have named each.
    """

    first: int
    end: int
    found_ns: int
    due_ns: int
    naks: int = 0


class LossDetector:
    """The missing sqns of one session, oldest first, and the deadlines of their NAKs.

    Counts sqns by index: a plain int that never wraps; sqn = index mod 2^32. `gaps` are disjoint, ascending and in
    the order of detection, as gaps only ever open at the leading edge; `count` is how many sqns are in them.
    """

    __slots__ = (
        "_cfg",
        "_credit",
        "_edge",
        "_heap",
        "_naks_per_round",
        "_rng",
        "_round_end_ns",
        "_serial",
        "_starts",
        "count",
        "gaps",
    )

    def __init__(self, cfg: LossConfig, rng: Rng) -> None:
        self._cfg = cfg
        self._rng = rng
        self.gaps: list[Gap] = []
        self.count = 0
        self._starts: list[int] = []  # `first` of each gap
        self._edge = 0  # index behind the newest gap
        self._heap: list[tuple[int, int, Gap]] = []  # (due, serial); dead when its gap has another due time
        self._serial = 0
        self._naks_per_round = min(cfg.naks_per_round, MAX_PACKETS_PER_ROUND * cfg.max_naks_per_packet)
        self._credit = self._naks_per_round
        self._round_end_ns = 0

    @property
    def oldest(self) -> int:
        """The oldest missing sqn. The caller knows that there is one."""
        return self._starts[0] & MASK

    def clear(self) -> None:
        self.gaps.clear()
        self._starts.clear()
        self._heap.clear()
        self.count = 0

    def open_gap(self, first_sqn: int, count: int, now_ns: int) -> None:
        """`count` sqns from `first_sqn` are missing; the caller keeps `count` within `max_gap`."""
        if not self.gaps:
            self._edge = first_sqn
        first = self._index(first_sqn)
        self._edge = end = first + count
        self.count += count
        step = 1 if count <= OWN_TIMER_MAX else PIECE
        initial_ns = self._cfg.initial_backoff_ns
        for at in range(first, end, step):
            gap = Gap(at, min(at + step, end), now_ns, now_ns)
            self._starts.append(at)
            self.gaps.append(gap)
            if self._cfg.send_naks:
                self._schedule(gap, now_ns + self._draw(initial_ns))
        self._compact()

    def repair(self, sqn: int) -> Gap | None:
        """Forget `sqn`; returns what was known, or None when it was not missing."""
        index = self._index(sqn)
        at = self._cut(index)
        if at == len(self.gaps) or self._starts[at] != index:
            return None
        gap = self.gaps[at]
        self.count -= 1
        gap.first = self._starts[at] = index + 1
        if gap.first == gap.end:
            self._forget(at, at + 1)
        return gap

    def take(self, first_sqn: int, count: int) -> list[SqnRange]:
        """Forget what is missing of these `count` sqns; returns it, oldest first."""
        index = self._index(first_sqn)
        begin = self._cut(index)
        return self._pop(begin, self._cut(index + count))

    def pop_oldest(self, count: int) -> list[SqnRange]:
        """Forget the `count` oldest; returns them."""
        for gap in self.gaps:
            size = gap.end - gap.first
            if count <= size:
                return self._pop(0, self._cut(gap.first + count))
            count -= size
        return self._pop(0, len(self.gaps))

    def pop_before(self, trail: int) -> list[SqnRange]:
        """Forget everything older than `trail`; returns it, oldest first."""
        return self._pop(0, self._cut(self._index(trail)))

    def pop_expired(self, now_ns: int) -> list[SqnRange]:
        """Forget what has been missing for the generation interval; returns it, oldest first.

        At most `MAX_EXPIRED` gaps; the rest is due still.
        """
        found_before = now_ns - self._cfg.generation_ns
        most = min(len(self.gaps), MAX_EXPIRED)
        return self._pop(0, bisect_right(self.gaps, found_before, 0, most, key=lambda gap: gap.found_ns))

    def suppress(self, first_sqn: int, count: int, now_ns: int) -> None:
        """An NCF named these sqns: the next NAK for each of them waits the suppress interval, from now."""
        if not self._cfg.send_naks:
            return
        index = self._index(first_sqn)
        begin = self._cut(index)
        end = self._cut(index + count)
        due_ns = now_ns + self._cfg.suppress_ns
        for gap in self.gaps[begin:end]:
            if gap.due_ns != due_ns:
                self._schedule(gap, due_ns)
        self._compact()

    def pop_naks(self, now_ns: int) -> list[int]:
        """Sqns whose NAK is due, oldest first; each gets its next deadline, counted from now.

        At most what is left of this round; of more, those that have been due longest.
        """
        if now_ns >= self._round_end_ns:
            self._credit = self._naks_per_round
            self._round_end_ns = now_ns + NAK_ROUND_NS
        heap = self._heap
        due: list[Gap] = []
        while self._credit and heap and heap[0][0] <= now_ns:
            due_ns, _, gap = heapq.heappop(heap)
            if gap.due_ns == due_ns:
                if gap.end - gap.first > self._credit:
                    self._cut(gap.first + self._credit)
                self._credit -= gap.end - gap.first
                gap.due_ns = _NEVER  # another entry may have had this time
                due.append(gap)
        due.sort(key=lambda gap: gap.first)
        backoff_ns = self._cfg.backoff_ns
        for gap in due:
            gap.naks += 1
            self._schedule(gap, now_ns + max(MIN_REPEAT_NS, self._draw(backoff_ns)))
        return [index & MASK for gap in due for index in range(gap.first, gap.end)]

    def next_deadline(self) -> int:
        """Return when a NAK is due or a generation interval is over, ns. The caller knows that something is missing."""
        expiry_ns = self.gaps[0].found_ns + self._cfg.generation_ns
        heap = self._heap
        while heap:
            due_ns, _, gap = heap[0]
            if gap.due_ns == due_ns:
                return min(due_ns if self._credit else max(due_ns, self._round_end_ns), expiry_ns)
            heapq.heappop(heap)
        return expiry_ns

    # within

    def _draw(self, interval_ns: int) -> int:
        return int(interval_ns * (0.5 + self._rng()))

    def _index(self, sqn: int) -> int:
        return self._edge + ahead(sqn, self._edge & MASK)

    def _schedule(self, gap: Gap, due_ns: int) -> None:
        gap.due_ns = due_ns
        self._serial += 1
        heapq.heappush(self._heap, (due_ns, self._serial, gap))

    def _cut(self, index: int) -> int:
        """Split a gap that reaches over `index`; returns the position of the first gap from there on."""
        at = bisect_right(self._starts, index)
        if not at:
            return 0
        gap = self.gaps[at - 1]
        if index >= gap.end:
            return at
        if index == gap.first:
            return at - 1
        rest = Gap(index, gap.end, gap.found_ns, gap.due_ns, gap.naks)
        gap.end = index
        self._starts.insert(at, index)
        self.gaps.insert(at, rest)
        if self._cfg.send_naks:
            self._schedule(rest, rest.due_ns)
        return at

    def _pop(self, begin: int, end: int) -> list[SqnRange]:
        gaps = self.gaps[begin:end]
        self.count -= sum([gap.end - gap.first for gap in gaps])
        ranges = [((gap.first & MASK), gap.end - gap.first) for gap in gaps]
        self._forget(begin, end)
        return merged(ranges)

    def _forget(self, begin: int, end: int) -> None:
        for gap in self.gaps[begin:end]:
            gap.due_ns = _NEVER
        del self.gaps[begin:end]
        del self._starts[begin:end]

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self.gaps) + HEAP_SLACK:
            self._heap = [(gap.due_ns, n, gap) for n, gap in enumerate(self._turns())]
            self._serial = len(self._heap)

    def _turns(self) -> list[Gap]:
        """List the gaps in the order of their next NAKs."""
        due = [gap for due_ns, _, gap in sorted(self._heap, key=itemgetter(0, 1)) if gap.due_ns == due_ns]
        return list(dict.fromkeys(due))

    @property
    def _missing(self) -> tuple[list[_GapState], list[int]]:
        """The gaps, and the order of their next NAKs as indexes."""
        at = {gap: n for n, gap in enumerate(self.gaps)}
        gaps = [(gap.first, gap.end, gap.found_ns, gap.due_ns, gap.naks) for gap in self.gaps]
        return gaps, [at[gap] for gap in self._turns()]

    @_missing.setter
    def _missing(self, state: tuple[list[_GapState], list[int]]) -> None:
        gaps = [Gap(*gap) for gap in state[0]]
        turns = [gaps[at] for at in state[1]]
        edges = [edge for gap in gaps for edge in (gap.first, gap.end)]
        if edges != sorted(edges) or any(gap.first == gap.end for gap in gaps):
            raise ValueError("gaps are not in order")
        asked = range(len(gaps) if self._cfg.send_naks else 0)
        if sorted(state[1]) != [*asked] or turns != sorted(turns, key=lambda gap: gap.due_ns):
            raise ValueError("not the order of the next NAKs")
        self.gaps[:] = gaps
        self._starts = [gap.first for gap in gaps]
        self.count = sum([gap.end - gap.first for gap in gaps])
        self._heap = [(gap.due_ns, n, gap) for n, gap in enumerate(turns)]
        self._serial = len(turns)


StateLayout(
    LossDetector,
    1,
    _missing=tuple[list[_GapState], list[int]],
    _edge=int,
    _credit=int,
    _round_end_ns=int,
)


def merged(ranges: Iterable[SqnRange]) -> list[SqnRange]:
    """The same sqns with each range that goes on where the one before ends put to it."""
    out: list[SqnRange] = []
    first = count = 0
    for start, n in ranges:
        if count and start == (first + count) & MASK:
            count += n
            continue
        if count:
            out.append((first, count))
        first, count = start, n
    if count:
        out.append((first, count))
    return out
