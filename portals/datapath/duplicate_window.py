"""The duplicate window of `<sqn-window>`: which topic sqns of one source a portal has already taken.

Works on runs: for traffic in order it is one comparison, however long the run. It keeps the sqns up to the newest that
were not seen, as the bits of one int: at most `size` bits for any input, and a run of duplicates costs as little as a
single one. What was not seen when it left the window is remembered as ranges, so that a repair is never too late for
being slower than the window: at 300,000 sqns a second the default window is full in 50 ms, while a first repair takes
25 to 75 ms.

Source: DRO guide, `<sqn-window>`; forwarding notes, section 13. Sqns below the window count as duplicates, here only
those that were seen, or that are remembered no more. Guess: sqns below the first one that was seen, but inside the
window, are new. Guess: `REMEMBERED_NS` is the default NAK generation interval; who repairs for longer is rare.

Guess: when nothing newer comes for `RESTART_NS` while runs that follow each other, and are no repairs, come from below
the window, the source counts from there now: a forged sqn may have moved the window ahead, or the source has begun anew
under its old name. What the window knew is forgotten; sqns below the new place are duplicates. Within the window, where
the same may be a path that lags behind the one before, it takes `REPEAT_NS`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from dro.clock import NS_PER_S
from dro.sqn import MASK, ahead
from dro.state import BigInt, StateLayout

RESTART_NS: Final = NS_PER_S
REPEAT_NS: Final = 10 * NS_PER_S
REMEMBERED_NS: Final = 10 * NS_PER_S
REMEMBERED_MAX: Final = 1024  # ranges; the newest stay


class DuplicateWindow:
    """`size` and `increment` in sqns: the top slides by the smallest multiple of `increment` that covers a new sqn.

    `next_sqn` is the one after the newest taken, -1 before the first: a run that begins there is new as a whole, and
    `advance` is all it needs. After `take_run`, `too_old` says how many sqns of that run were refused because the
    window does not know any more whether they were seen, `has_restarted` whether the run began the flow anew, and
    `has_jumped` whether it began so far ahead that nothing of the window was left.
    """

    __slots__ = (
        "_increment",
        "_lost",
        "_missing",
        "_newest",
        "_now_ns",
        "_size",
        "_stray_newest",
        "_stray_next",
        "_stray_since_ns",
        "_taken_apart",
        "_top",
        "has_jumped",
        "has_restarted",
        "next_sqn",
        "too_old",
    )

    def __init__(self, size: int, increment: int) -> None:
        self._size = size
        self._increment = increment
        self.next_sqn = -1
        self._newest = -1  # positions are unwrapped distances from the first sqn
        self._top = increment  # one past the last position that the window covers
        self._missing = (1 << max(0, size - increment)) - 1  # bit i: the position `top - size + i` was not seen
        self._lost: list[tuple[int, int, int]] = []  # below the window and not seen: (first, end, when noted)
        self._now_ns = 0
        self._stray_next = self._stray_since_ns = 0  # the flow below the window: its next sqn, since when
        self._stray_newest = -1  # what the newest was then
        self._taken_apart = 0  # by how much more, or fewer, were taken than positions up to the newest
        self.too_old = 0
        self.has_restarted = self.has_jumped = False

    @property
    def taken(self) -> int:
        """How many sqns were new so far. It follows from the newest position, so a run in order does not count it."""
        return self._newest + 1 + self._taken_apart

    def advance(self, count: int) -> None:
        """Mark a run that begins at `next_sqn` as seen."""
        self.next_sqn = (self.next_sqn + count) & MASK
        self._newest += count
        if self._newest >= self._top:
            self._slide()

    def take_run(self, first_sqn: int, count: int, is_repair: bool = False, now_ns: int = 0) -> list[tuple[int, int]]:
        """Mark a run as seen; returns the parts that are new as (index in the run, length), usually one."""
        self.too_old = 0
        self.has_restarted = self.has_jumped = False
        if self.next_sqn < 0:
            self.next_sqn = first_sqn
        self._now_ns = now_ns
        newest = self._newest
        position = newest + 1 + ahead(first_sqn, self.next_sqn)
        if position > newest:
            self.has_jumped = position - newest > self._size
            self._skip_to(position)
            self.advance(count)
            return [(0, count)]
        last = position + count - 1
        base = self._top - self._size
        known = count - max(0, last - newest)  # of the run, the first so many are not beyond the newest
        below = min(known, max(0, base - position))
        recalled = self._recall(position, position + below) if below else 0
        at = position + below - base
        fresh = self._missing >> at & (1 << known - below) - 1 if known > below else 0
        is_stray = last <= newest and not is_repair and (below or not fresh)
        if is_stray and self._has_gone_on(first_sqn, count) >= (RESTART_NS if below else REPEAT_NS):
            self._restart(first_sqn, count)
            return [(0, count)]
        self._missing ^= fresh << max(0, at)
        fresh = fresh << below | recalled
        self._taken_apart += fresh.bit_count()
        self.too_old = below - recalled.bit_count()
        if last > newest:
            fresh |= ((1 << (last - newest)) - 1) << known
            self.advance(last - newest)
        return _parts(fresh)

    def _skip_to(self, position: int) -> None:
        """Go on to where the next run begins: what lies between was not seen."""
        first = self._newest + 1
        if position == first:
            return
        self._newest = position - 1
        self._taken_apart -= position - first
        self.next_sqn = (self.next_sqn + position - first) & MASK
        if position > self._top:
            self._slide()
        base = self._top - self._size
        if first < base:
            self._remember(first, min(position, base))
        low = max(first, base)
        if position > low:
            self._missing |= ((1 << (position - low)) - 1) << (low - base)

    def _slide(self) -> None:
        distance = -(-(self._newest + 1 - self._top) // self._increment) * self._increment
        if self._missing:
            gone = self._missing & (1 << min(distance, self._size)) - 1
            self._missing >>= distance
            base = self._top - self._size
            for at, length in _parts(gone):
                self._remember(base + at, base + at + length)
        self._top += distance

    # what is below the window

    def _remember(self, first: int, end: int) -> None:
        first = max(first, 0)
        if first >= end:
            return
        lost = self._lost
        lost.append((first, end, self._now_ns))
        old = bisect_right(lost, self._now_ns - REMEMBERED_NS, key=lambda found: found[2])
        del lost[: max(old, len(lost) - REMEMBERED_MAX)]

    def _recall(self, first: int, end: int) -> int:
        """Forget these positions; returns those that were remembered, as bits from `first` on."""
        lost = self._lost
        begin = at = bisect_right(lost, first, key=lambda found: found[1])
        bits = 0
        rest = []
        while at < len(lost) and lost[at][0] < end:
            low, high, noted_ns = lost[at]
            bits |= ((1 << (min(high, end) - max(low, first))) - 1) << max(low - first, 0)
            if low < first:
                rest.append((low, first, noted_ns))
            if high > end:
                rest.append((end, high, noted_ns))
            at += 1
        lost[begin:at] = rest
        return bits

    def _has_gone_on(self, first_sqn: int, count: int) -> int:
        """Return for how long runs have followed each other there, to this one, while nothing newer came, ns."""
        if self._stray_newest != self._newest or not 0 <= ahead(first_sqn, self._stray_next) < self._size:
            self._stray_newest, self._stray_since_ns = self._newest, self._now_ns
        self._stray_next = (first_sqn + count) & MASK
        return self._now_ns - self._stray_since_ns

    def _restart(self, first_sqn: int, count: int) -> None:
        self._lost.clear()
        self._missing = 0
        self._taken_apart += self._newest + 1
        self._newest, self._top, self.next_sqn = -1, self._increment, first_sqn
        self.has_restarted = True
        self.advance(count)


def _parts(bits: int) -> list[tuple[int, int]]:
    """Find the runs of ones as (index of the first, length), from the lowest."""
    parts: list[tuple[int, int]] = []
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        parts.append((at + zeros, ones))
        at += zeros + ones
    return parts


StateLayout(
    DuplicateWindow,
    1,
    next_sqn=int,
    too_old=int,
    has_restarted=bool,
    has_jumped=bool,
    _newest=int,
    _top=int,
    _missing=BigInt,
    _lost=list[tuple[int, int, int]],
    _now_ns=int,
    _stray_next=int,
    _stray_since_ns=int,
    _stray_newest=int,
    _taken_apart=int,
)
