"""The duplicate window of `<sqn-window>`: which topic sqns of one source a portal has already taken.

Works on runs: for traffic in order it is one comparison, however long the run. It keeps the sqns up to the newest that
were not seen, as the bits of one int: at most `size` bits for any input, and a run of duplicates costs as little as a
single one.

Source: DRO guide, `<sqn-window>`; forwarding notes, section 13. Sqns below the window count as duplicates. Guess:
sqns below the first one that was seen, but inside the window, are new.
"""

from __future__ import annotations

from dro.sqn import MASK, ahead


class DuplicateWindow:
    """`size` and `increment` in sqns: the top slides by the smallest multiple of `increment` that covers a new sqn."""

    __slots__ = ("_increment", "_missing", "_newest", "_origin", "_size", "_top")

    def __init__(self, size: int, increment: int) -> None:
        self._size = size
        self._increment = increment
        self._origin: int | None = None  # first sqn seen; positions below are unwrapped distances from it
        self._newest = -1
        self._top = increment  # one past the last position that the window covers
        self._missing = (1 << max(0, size - increment)) - 1  # bit i: the position `top - size + i` was not seen

    def take_run(self, first_sqn: int, count: int) -> list[tuple[int, int]]:
        """Mark a run as seen; returns the parts that are new as (index in the run, length), usually one."""
        if self._origin is None:
            self._origin = first_sqn
        newest = self._newest
        position = newest + ahead(first_sqn, (self._origin + newest) & MASK)
        last = position + count - 1
        if position > newest:
            self._newest = last
            if last >= self._top:
                self._slide(last)
            if position > newest + 1:
                base = self._top - self._size
                low = max(newest + 1, base)
                if position > low:
                    self._missing |= ((1 << (position - low)) - 1) << (low - base)
            return [(0, count)]
        base = self._top - self._size
        known = count - max(0, last - newest)  # of the run, the first so many are not beyond the newest
        below = min(known, max(0, base - position))
        at = position + below - base
        fresh = self._missing >> at & (1 << known - below) - 1 if known > below else 0
        self._missing ^= fresh << max(0, at)
        fresh <<= below
        if last > newest:
            fresh |= ((1 << (last - newest)) - 1) << known
            self._newest = last
            if last >= self._top:
                self._slide(last)
        return _parts(fresh)

    def _slide(self, position: int) -> None:
        distance = -(-(position + 1 - self._top) // self._increment) * self._increment
        self._top += distance
        self._missing >>= distance


def _parts(bits: int) -> list[tuple[int, int]]:
    """The runs of ones as (index of the first, length), from the lowest."""
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
