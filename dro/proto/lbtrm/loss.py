"""Loss detection: missing datagrams of one transport session and when to send NAKs; shared by LBT-RM and LBT-RU.

`LossDetector` owns the set of missing sqns with their timers. Its inputs are gaps, repairs, NCFs and trail moves; its
results are the sqns to name in a NAK and those given up. It counts and emits nothing: its caller, the receiver session,
does.

A missing sqn is NAKed after a random initial backoff, then after a random backoff counted from each NAK actually sent.
NAK suppression: an NCF delays the next NAK to its arrival plus the suppress interval, exactly. The generation interval
runs from detection and is never restarted. One random draw is taken per missing sqn and NAK.

Source: UM Configuration Guide, transport_lbtrm_* and transport_lbtru_* receiver options; a UM 6.14 capture for the
timing after a NAK and after an NCF.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.clock import NS_PER_MS, ms, s
from dro.proto.session_events import Began, Ended
from dro.sqn import HALF, MASK

Rng = Callable[[], float]
"""Uniform draws in [0, 1)."""

MIN_REPEAT_NS: Final = NS_PER_MS
"""Least time between two NAKs for one sqn. Guess: a backoff of 0 would spin; one millisecond is the options' unit."""

HEAP_SLACK: Final = 64

MAX_NAKS_PER_ROUND: Final = 4096
"""Most sqns that one call asks for; what is left is still due and follows in the next."""


@dataclass(frozen=True, slots=True)
class LossConfig:
    """Receiver options of one session; the defaults are those of LBT-RM. All times in ns.

    `max_gap` bounds how many sqns may be missing at once. Guess: 65536, more than the default transmission window
    holds of all but the smallest datagrams. What a larger jump leaves out is given up at once.
    `max_naks_per_packet` is what fits one NAK packet of `datagram_max_size` (8192 by default).
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
    """These datagrams are lost for good. Shape: oldest first, at most `max_gap`."""

    sqns: tuple[int, ...]
    reason: LossReason
    at_ns: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A jump left these `count` sqns from `first_sqn` out without ever asking for them; lost, reason TXW.

    A range instead of a list, because a stranger chooses its length.
    """

    first_sqn: int
    count: int
    at_ns: int


SessionEvent = NakDue | Unrecoverable | Skipped | Began | Ended


@dataclass(slots=True, eq=False)
class Gap:
    """One missing sqn: when it was found missing, when its next NAK is due, how many NAKs have named it."""

    found_ns: int
    due_ns: int
    naks: int = 0


class LossDetector:
    """The missing sqns of one session, oldest first, and the deadlines of their NAKs."""

    __slots__ = ("_cfg", "_heap", "_rng", "missing")

    def __init__(self, cfg: LossConfig, rng: Rng) -> None:
        self._cfg = cfg
        self._rng = rng
        # Gaps only ever open at the leading edge, so insertion order is sqn order and order of detection.
        self.missing: OrderedDict[int, Gap] = OrderedDict()
        self._heap: list[tuple[int, int]] = []  # (due, sqn); an entry whose gap has another due time is dead

    def _draw(self, interval_ns: int) -> int:
        return int(interval_ns * (0.5 + self._rng()))

    def open_gap(self, first_sqn: int, count: int, now_ns: int) -> None:
        """`count` sqns from `first_sqn` are missing; the caller keeps `count` within `max_gap`."""
        missing = self.missing
        send_naks, initial_ns = self._cfg.send_naks, self._cfg.initial_backoff_ns
        for i in range(count):
            sqn = (first_sqn + i) & MASK
            due_ns = now_ns
            if send_naks:
                due_ns += self._draw(initial_ns)
                heapq.heappush(self._heap, (due_ns, sqn))
            missing[sqn] = Gap(now_ns, due_ns)
        self._compact()

    def repair(self, sqn: int) -> Gap | None:
        """Forget `sqn`; returns what was known, or None when it was not missing."""
        return self.missing.pop(sqn, None)

    def pop_oldest(self, count: int) -> tuple[int, ...]:
        """Forget the `count` oldest; returns them."""
        return tuple(self.missing.popitem(last=False)[0] for _ in range(min(count, len(self.missing))))

    def pop_before(self, trail: int) -> tuple[int, ...]:
        """Forget everything older than `trail`; returns it, oldest first."""
        missing = self.missing
        lost = []
        while missing:
            sqn = next(iter(missing))
            if not 0 < ((trail - sqn) & MASK) < HALF:
                break
            del missing[sqn]
            lost.append(sqn)
        return tuple(lost)

    def pop_expired(self, now_ns: int) -> tuple[int, ...]:
        """Forget what has been missing for the generation interval; returns it, oldest first."""
        missing = self.missing
        found_before = now_ns - self._cfg.generation_ns
        lost = []
        while missing:
            sqn, gap = next(iter(missing.items()))
            if gap.found_ns > found_before:
                break
            del missing[sqn]
            lost.append(sqn)
        return tuple(lost)

    def suppress(self, sqn: int, now_ns: int) -> None:
        """An NCF named `sqn`: the next NAK for it waits the suppress interval, from now."""
        gap = self.missing.get(sqn)
        if gap is None or not self._cfg.send_naks:
            return
        due_ns = now_ns + self._cfg.suppress_ns
        if due_ns != gap.due_ns:
            gap.due_ns = due_ns
            heapq.heappush(self._heap, (due_ns, sqn))
            self._compact()

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self.missing) + HEAP_SLACK:
            self._heap = [(gap.due_ns, sqn) for sqn, gap in self.missing.items()]
            heapq.heapify(self._heap)

    def pop_naks(self, now_ns: int) -> list[int]:
        """Sqns whose NAK is due, oldest first; each gets its next deadline, counted from now.

        At most `MAX_NAKS_PER_ROUND`, so that a long outage does not stop everything else. The caller knows that
        something is missing.
        """
        heap, missing = self._heap, self.missing
        due: dict[int, Gap] = {}
        while heap and heap[0][0] <= now_ns and len(due) < MAX_NAKS_PER_ROUND:
            due_ns, sqn = heapq.heappop(heap)
            gap = missing.get(sqn)
            if gap is not None and gap.due_ns == due_ns:
                due[sqn] = gap
        oldest = next(iter(missing))
        sqns = sorted(due, key=lambda sqn: (sqn - oldest) & MASK)
        backoff_ns = self._cfg.backoff_ns
        for sqn in sqns:
            gap = due[sqn]
            gap.naks += 1
            gap.due_ns = now_ns + max(MIN_REPEAT_NS, self._draw(backoff_ns))
            heapq.heappush(heap, (gap.due_ns, sqn))
        return sqns

    def next_deadline(self) -> int:
        """When a NAK is due or a generation interval is over, ns. The caller knows that something is missing."""
        missing = self.missing
        expiry_ns = next(iter(missing.values())).found_ns + self._cfg.generation_ns
        heap = self._heap
        while heap:
            due_ns, sqn = heap[0]
            gap = missing.get(sqn)
            if gap is not None and gap.due_ns == due_ns:
                return min(due_ns, expiry_ns)
            heapq.heappop(heap)
        return expiry_ns
