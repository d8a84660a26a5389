"""`<source-deletion-delay>`: how long a proxy source is kept after no sibling forwards to it any more.

Source: DRO guide, element of that name. Guess: a changed delay counts from when each proxy source lost its feeder.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from typing import Final

from dro.clock import ms

SOON_NS: Final = ms(200)
"""For one that was fed longer because of a reroute: what it was given last is sent before it is deleted."""
FED_NS: Final = ms(300)
"""How long one in a TRD is still fed when a reroute has taken it off and its end has been advertised: receivers take
another source of the same OTID meanwhile, and miss nothing. Longer than one of this library stays on both, 250 ms; with
`SOON_NS` no longer than the proxy receivers that feed it are kept (`portals.decisions.routes`)."""
AT_ONCE: Final = 32
"""Deletions: about two milliseconds of them."""


class SourceDeletionDelay:
    """The proxy sources that wait for their deletion, by OTID."""

    def __init__(self, delay_ns: int) -> None:
        self.delay_ns = delay_ns
        self._now_ns = 0
        # The first of a dict is searched for among all that were deleted before it.
        self._delete_at_ns = OrderedDict[bytes, int]()  # earliest first
        self._soon = OrderedDict[bytes, int]()  # likewise
        self._fed = OrderedDict[bytes, int]()  # those that are fed until then, and wait only afterwards

    def change(self, delay_ns: int) -> None:
        """Change the delay, also for those that wait already."""
        longer_ns, self.delay_ns = delay_ns - self.delay_ns, delay_ns
        for otid in self._delete_at_ns:
            self._delete_at_ns[otid] += longer_ns

    def pass_time(self, now_ns: int) -> None:
        """Tell what time it is to steps of long work, which name the time at which all of it began."""
        self._now_ns = max(self._now_ns, now_ns)

    def __contains__(self, otid: bytes) -> bool:
        return otid in self._delete_at_ns or otid in self._soon or otid in self._fed

    def is_fed(self, otid: bytes) -> bool:
        """Whether its end has been advertised, and its feeder goes on for a moment."""
        return otid in self._fed

    def begin(self, otid: bytes, now_ns: int, *, is_soon: bool = False) -> int:
        """Begin the delay of a source that does not wait yet. Returns when the proxy source is to be deleted."""
        self.pass_time(now_ns)
        waiting, delay_ns = (self._soon, SOON_NS) if is_soon else (self._delete_at_ns, self.delay_ns)
        waiting[otid] = self._now_ns + delay_ns
        return waiting[otid]

    def begin_fed(self, otid: bytes, now_ns: int) -> int:
        """Begin the wait of one whose end is advertised. Returns when its feeder is to stop."""
        self.pass_time(now_ns)
        self._fed[otid] = self._now_ns + FED_NS
        return self._fed[otid]

    def take_fed(self, now_ns: int) -> list[bytes]:
        """Take out those whose feeders are to stop now, `AT_ONCE` at most."""
        taken = [otid for otid, at_ns in islice(self._fed.items(), AT_ONCE) if at_ns <= now_ns]
        for otid in taken:
            del self._fed[otid]
        return taken

    def end(self, otid: bytes) -> None:
        """The proxy source is fed again or deleted; those that do not wait are fine."""
        self._delete_at_ns.pop(otid, None)
        self._soon.pop(otid, None)
        self._fed.pop(otid, None)

    def clear(self) -> None:
        self._delete_at_ns.clear()
        self._soon.clear()
        self._fed.clear()

    def next_deadline(self) -> int | None:
        firsts = (next(iter(waiting.values()), None) for waiting in (self._delete_at_ns, self._soon, self._fed))
        return min((at_ns for at_ns in firsts if at_ns is not None), default=None)

    def due(self, now_ns: int) -> list[bytes]:
        """List sources whose delay is over, earliest first, `AT_ONCE` at most; they wait until `end`."""
        first = chain(*(islice(waiting.items(), AT_ONCE // 2) for waiting in (self._soon, self._delete_at_ns)))
        return [otid for otid, delete_at_ns in first if delete_at_ns <= now_ns]
