"""Rate limits of LBT-RM and LBT-RU: a quota of bytes per interval, refreshed at whole multiples of the interval.

`RateLimiter` is the credit of one limit (data or retransmissions) of one context, shared by its sessions.

Source: UM Configuration Guide, `transport_lbtrm_data_rate_limit`, `_retransmit_rate_limit`, `_rate_interval`; UM
Concepts, "Rate Controller". Guess: the UDP payload is counted; refreshes are aligned to the start of the context;
unused credit is not carried into the next interval.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_S
from dro.state import Outside, StateLayout

BITS_PER_BYTE: Final = 8
RETRY_NS: Final = NS_PER_MS
HOLD_GRACE_NS: Final = NS_PER_S
"""How long after its time a place in the line is kept for one who does not come."""


@dataclass(slots=True, eq=False)
class _Place:
    """A place in the line: how many bytes are wanted, and until when the place is kept."""

    need: int
    expiry_ns: int


class RateLimiter:
    """Credit in bytes. A limit of 0 bit/s is no limit.

    Who does not get what it asks for may `hold` a place in the line; while there is a line only its first may take,
    so a large datagram is not starved by small ones. Without anyone holding, takers are served as they come.
    `holder` is any hashable object that names the taker.
    """

    __slots__ = ("_interval_ns", "_line", "_next_ns", "credit", "is_unlimited", "quota")

    def __init__(self, limit_bps: int, interval_ns: int, start_ns: int) -> None:
        self.is_unlimited = limit_bps <= 0
        # Guess: a quota that rounds to nothing is one byte, so that every datagram leaves some day.
        self.quota = max(1, limit_bps * interval_ns // (BITS_PER_BYTE * NS_PER_S))
        self.credit = self.quota
        self._interval_ns = max(1, interval_ns)
        self._next_ns = start_ns + self._interval_ns
        self._line: dict[Hashable, _Place] = {}

    def _refresh(self, now_ns: int) -> None:
        passed = (now_ns - self._next_ns) // self._interval_ns + 1
        self._next_ns += passed * self._interval_ns
        line = self._line
        while line:
            holder = next(iter(line))
            if line[holder].expiry_ns > now_ns:
                break
            del line[holder]
        need = line[next(iter(line))].need if line else 0
        if need > self.quota:  # accumulate until it suffices, and no further
            wanted = max(0, -(-(need - self.credit) // self.quota))
            self.credit += min(passed, wanted) * self.quota
        else:
            self.credit = self.quota

    def next_refresh(self, now_ns: int) -> int:
        """The next whole multiple of the interval after `now_ns`."""
        if now_ns >= self._next_ns:
            self._refresh(now_ns)
        return self._next_ns

    def take(self, nbytes: int, now_ns: int, holder: Hashable = None) -> bool:
        """Charge one datagram; False, and nothing charged, when it must wait."""
        return self.take_run(1, nbytes, now_ns, holder) == 1

    def take_run(self, count: int, size: int, now_ns: int, holder: Hashable = None) -> int:
        """Charge as many of `count` datagrams of `size` bytes as may go now; returns how many."""
        if self.is_unlimited:
            return count
        if now_ns >= self._next_ns:
            self._refresh(now_ns)
        line = self._line
        if line:
            if next(iter(line)) != holder:
                return 0
            if self.credit < size:
                return 0
            del line[holder]
        fits = min(count, self.credit // size) if size else count
        self.credit -= fits * size
        return fits

    def take_sizes(self, sizes: Sequence[int], now_ns: int, holder: Hashable = None) -> int:
        """Charge as many datagrams of these sizes, from the first on, as may go now; returns how many."""
        if self.is_unlimited:
            return len(sizes)
        total = sum(sizes)
        if now_ns < self._next_ns and not self._line and total <= self.credit:
            self.credit -= total
            return len(sizes)
        for done, size in enumerate(sizes):
            if not self.take_run(1, size, now_ns, holder):
                return done
        return len(sizes)

    def charge(self, nbytes: int, now_ns: int) -> None:
        """Take `nbytes` off the credit, as far as there is any, without holding anything back."""
        if self.is_unlimited:
            return
        if now_ns >= self._next_ns:
            self._refresh(now_ns)
        self.credit = max(0, self.credit - nbytes)

    def hold(self, holder: Hashable, nbytes: int, now_ns: int) -> int:
        """Join the line with a datagram of `nbytes`, or change what is wanted; returns when to try again, ns."""
        if self.is_unlimited:
            return now_ns
        if now_ns >= self._next_ns:
            self._refresh(now_ns)
        line = self._line
        first = next(iter(line)) if line else holder
        if first == holder:
            if nbytes <= self.credit:
                when_ns = now_ns
            else:
                refreshes = -(-(nbytes - self.credit) // self.quota) if nbytes > self.quota else 1
                when_ns = self._next_ns + (refreshes - 1) * self._interval_ns
        elif line[first].need <= self.credit:
            when_ns = min(self._next_ns, now_ns + RETRY_NS)  # the first can go now: our turn may come soon
        else:
            when_ns = self._next_ns
        expiry_ns = max(when_ns, self._next_ns) + HOLD_GRACE_NS
        place = line.get(holder)
        if place is None:
            line[holder] = _Place(nbytes, expiry_ns)
        else:
            place.need = nbytes
            place.expiry_ns = expiry_ns
        return when_ns

    def release(self, holder: Hashable) -> None:
        """Leave the line; for one who closes."""
        self._line.pop(holder, None)


StateLayout(RateLimiter, 1, credit=int, _next_ns=int, _line=dict[Outside, _Place])
