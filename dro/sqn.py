"""32-bit circular sequence numbers. The duplicate window of a portal is `portals.datapath.duplicate_window`.

Comparison is modulo 2^32: `a` is ahead of `b` by the signed 32-bit difference (wire notes, "sqns wrap").
"""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFFFFFF
HALF: Final = 0x80000000


def ahead(a: int, b: int) -> int:
    """Return how far `a` is ahead of `b`: positive, zero, or negative when it is behind. Range -2^31 .. 2^31 - 1."""
    d = (a - b) & MASK
    return d - 0x100000000 if d & HALF else d


def add(a: int, n: int) -> int:
    """`a` plus `n`, wrapped to 32 bits."""
    return (a + n) & MASK
