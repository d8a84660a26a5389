"""`<source-deletion-delay>`: how long a proxy source is kept after no sibling forwards to it any more.

Source: DRO guide, element of that name. Guess: a changed delay counts from when each proxy source lost its feeder.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

AT_ONCE: Final = 32
"""Deletions: about two milliseconds of them."""


class SourceDeletionDelay:
    """The proxy sources that wait for their deletion, by OTID."""

    def __init__(self, delay_ns: int) -> None:
        self.delay_ns = delay_ns
        self._delete_at_ns: dict[bytes, int] = {}  # earliest first

    def change(self, delay_ns: int) -> None:
        """Also for those that wait already."""
        longer_ns, self.delay_ns = delay_ns - self.delay_ns, delay_ns
        for otid in self._delete_at_ns:
            self._delete_at_ns[otid] += longer_ns

    def __contains__(self, otid: bytes) -> bool:
        return otid in self._delete_at_ns

    def begin(self, otid: bytes, now_ns: int) -> int:
        """Of one that does not wait yet. Returns when the proxy source is to be deleted."""
        self._delete_at_ns[otid] = now_ns + self.delay_ns
        return self._delete_at_ns[otid]

    def end(self, otid: bytes) -> None:
        """The proxy source is fed again or deleted; those that do not wait are fine."""
        self._delete_at_ns.pop(otid, None)

    def clear(self) -> None:
        self._delete_at_ns.clear()

    def next_deadline(self) -> int | None:
        return next(iter(self._delete_at_ns.values()), None)

    def due(self, now_ns: int) -> list[bytes]:
        """Those whose delay is over, earliest first, `AT_ONCE` at most; they wait until `end`."""
        first = islice(self._delete_at_ns.items(), AT_ONCE)
        return [otid for otid, delete_at_ns in first if delete_at_ns <= now_ns]
