"""How much shared memory the ring of a portal takes."""

from __future__ import annotations

from typing import Final

from dro.shared_memory.ring import FIRST_BYTES, SLOTS_AT

RING_START_BYTES: Final = SLOTS_AT + FIRST_BYTES  # with the first fragment in it
RING_MAX_BYTES: Final = 16 << 20  # that a ring grows to
_PER_QUEUE: Final = 4  # or up to this many times <max-queue>


def ring_bytes(max_queue_bytes: int) -> int:
    """Return what a portal's ring may grow to."""
    return max(RING_MAX_BYTES, _PER_QUEUE * max_queue_bytes)
