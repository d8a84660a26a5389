"""Sets of 32-bit circular sequence numbers in bounded memory, for counting what a capture shows.

A set keeps one bit per number in chunks of 4096; all sets of one `SqnPool` share a limit of chunks and the oldest chunk
is removed first. A number that recurs after its chunk was removed counts as new again; `is_exact` is then False.
Wrap-around is undone by comparing each number with the highest one seen.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dro.sqn import HALF, MASK

_BITS: Final = 12
_CHUNK_BYTES: Final = (1 << _BITS) // 8
_BASE: Final = 1 << 40  # where unwrapped numbers start, so that ones below the first stay positive

DEFAULT_CHUNKS: Final = 65536  # 40 MiB, 268 million numbers


class SqnPool:
    """The chunks of many sets: at most `limit` of them."""

    __slots__ = ("_limit", "_order")

    def __init__(self, limit: int = DEFAULT_CHUNKS) -> None:
        self._limit = max(1, limit)
        self._order: deque[tuple[SqnSet, int]] = deque()

    def chunk_for(self, owner: SqnSet, key: int) -> bytearray:
        if len(self._order) >= self._limit:
            oldest, old_key = self._order.popleft()
            oldest.forget(old_key)
        self._order.append((owner, key))
        return bytearray(_CHUNK_BYTES)


class SqnSet:
    """Which sequence numbers have been seen; `len()` is how many different ones."""

    __slots__ = ("_chunks", "_count", "_high", "_low", "_pool", "is_exact")

    def __init__(self, pool: SqnPool) -> None:
        self._pool = pool
        self._chunks: dict[int, bytearray] = {}
        self._count = 0
        self._low = -1
        self._high = -1
        self.is_exact = True

    def add(self, sqn: int) -> bool:
        """Add a number; True when it was not in the set."""
        high = self._high
        if high < 0:
            number = _BASE + sqn
            self._low = self._high = number
        else:
            step = (sqn - high) & MASK
            if step & HALF:
                number = high + step - 0x100000000
                if number < self._low:
                    self._low = number
            else:
                number = high + step
                self._high = number
        key = number >> _BITS
        chunk = self._chunks.get(key)
        if chunk is None:
            chunk = self._chunks[key] = self._pool.chunk_for(self, key)
        place = (number >> 3) & (_CHUNK_BYTES - 1)
        bit = 1 << (number & 7)
        if chunk[place] & bit:
            return False
        chunk[place] |= bit
        self._count += 1
        return True

    def __len__(self) -> int:
        return self._count

    @property
    def low(self) -> int | None:
        """The lowest number seen, None when empty."""
        return self._low & MASK if self._high >= 0 else None

    @property
    def high(self) -> int | None:
        return self._high & MASK if self._high >= 0 else None

    @property
    def missing(self) -> int:
        """How many numbers between the lowest and the highest were never seen."""
        return max(0, self._high - self._low + 1 - self._count) if self._high >= 0 else 0

    def missing_ranges(self, limit: int) -> list[tuple[int, int]]:
        """The first `limit` runs of numbers not seen, each as (first, last); only as exact as the set is."""
        if self._high < 0 or not self.is_exact:
            return []
        out: list[tuple[int, int]] = []
        expected = self._low
        for key in sorted(self._chunks):
            base = key << _BITS
            for place, byte in enumerate(self._chunks[key]):
                if not byte:
                    continue
                if byte == 0xFF and expected == base + place * 8:
                    expected += 8
                    continue
                for bit in range(8):
                    if byte >> bit & 1:
                        number = base + place * 8 + bit
                        if number > expected:
                            out.append((expected & MASK, (number - 1) & MASK))
                            if len(out) >= limit:
                                return out
                        expected = number + 1
        return out

    def forget(self, key: int) -> None:
        """Give up a chunk, whose count stays; called by the pool."""
        self._chunks.pop(key, None)
        self.is_exact = False
