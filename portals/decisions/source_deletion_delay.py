"""`<source-deletion-delay>`: how long a proxy source is kept after no sibling forwards to it any more.

Source: DRO guide, element of that name. Guess: a changed delay counts from when each proxy source lost its feeder.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Final

from dro.clock import ms

SOON_NS: Final = ms(200)
"""For one that was fed longer because of a reroute: what it has sent last arrives before its end is advertised."""
AT_ONCE: Final = 32
"""Deletions: about two milliseconds of them."""


class SourceDeletionDelay:
    """The proxy sources that wait for their deletion, by OTID."""

    def __init__(self, delay_ns: int) -> None:
        self.delay_ns = delay_ns
        self._delete_at_ns: dict[bytes, int] = {}  # earliest first
        self._soon: dict[bytes, int] = {}  # likewise

    def change(self, delay_ns: int) -> None:
        """Also for those that wait already."""
        longer_ns, self.delay_ns = delay_ns - self.delay_ns, delay_ns
        for otid in self._delete_at_ns:
            self._delete_at_ns[otid] += longer_ns

    def __contains__(self, otid: bytes) -> bool:
        return otid in self._delete_at_ns or otid in self._soon

    def begin(self, otid: bytes, now_ns: int, *, is_soon: bool = False) -> int:
        """Of one that does not wait yet. Returns when the proxy source is to be deleted."""
        waiting, delay_ns = (self._soon, SOON_NS) if is_soon else (self._delete_at_ns, self.delay_ns)
        waiting[otid] = now_ns + delay_ns
        return waiting[otid]

    def end(self, otid: bytes) -> None:
        """The proxy source is fed again or deleted; those that do not wait are fine."""
        self._delete_at_ns.pop(otid, None)
        self._soon.pop(otid, None)

    def clear(self) -> None:
        self._delete_at_ns.clear()
        self._soon.clear()

    def next_deadline(self) -> int | None:
        firsts = (next(iter(waiting.values()), None) for waiting in (self._delete_at_ns, self._soon))
        return min((at_ns for at_ns in firsts if at_ns is not None), default=None)

    def due(self, now_ns: int) -> list[bytes]:
        """Those whose delay is over, earliest first, `AT_ONCE` at most; they wait until `end`."""
        first = chain(*(islice(waiting.items(), AT_ONCE // 2) for waiting in (self._soon, self._delete_at_ns)))
        return [otid for otid, delete_at_ns in first if delete_at_ns <= now_ns]
