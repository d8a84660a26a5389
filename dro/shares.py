"""Equal-cost sharing: which of the equally good paths the data of a source takes.

For each destination there are `SHARES` in-trees of next hops, numbered from 0, see `router.paths`. A source goes by the
tree that its OTID says, so each source has one way and its order is kept. A set of trees is a mask with a bit for each.
Guess: all of it; the sharing is ours, and so used only where all DROs say that they share in this way (`METHOD`).
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

SHARES: Final = 64
"""So many trees fit one number, and four equally good paths get a quarter each within some percent."""
ALL_SHARES: Final = (1 << SHARES) - 1
FIRST_SHARE: Final = 1
"""The tree of all that is not the data of a source."""
METHOD: Final = 1
"""The number, order and choice of the trees, as DROs name it to each other; 0: none, only the first tree is used."""


def share_of(otid: bytes) -> int:
    """The tree of a source, as a mask."""
    return 1 << crc32(otid) % SHARES


def percent_of(shares: int) -> int:
    return round(100 * shares.bit_count() / SHARES)
