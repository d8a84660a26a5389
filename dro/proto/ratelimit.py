"""Rate limits of LBT-RM and LBT-RU: a quota of bytes per interval, refreshed at whole multiples of the interval.

`RateLimiter` is the credit of one limit (data or retransmissions) of one context, shared by its sessions.
`DataGate` is the documented send behaviour on top of the data credit: the first datagram that does not fit is queued
and blocks the transport type until the next refresh.

Source: UM Configuration Guide, `transport_lbtrm_data_rate_limit`, `_retransmit_rate_limit`, `_rate_interval`; UM
Concepts, "Rate Controller". Guess: what is counted is the UDP payload; refreshes are aligned to the start of the
context; credit that is left over is not carried into the next interval.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from dro.clock import NS_PER_MS, NS_PER_S

BITS_PER_BYTE: Final = 8
RETRY_NS: Final = NS_PER_MS
HOLD_GRACE_NS: Final = NS_PER_S
"""How long after its time a place in the line is kept for one who does not come."""


class _Place:
    """A place in the line: how many bytes are wanted, and until when the place is kept."""

    __slots__ = ("expiry_ns", "need")

    def __init__(self, need: int, expiry_ns: int) -> None:
        self.need = need
        self.expiry_ns = expiry_ns


class RateLimiter:
    """Credit in bytes. A limit of 0 bit/s is no limit.

    Who does not get what it asks for may `hold` a place in the line; while there is a line only its first may take,
    so a large datagram is not starved by small ones. Without anyone holding, takers are served as they come.
    `holder` is any hashable object that names the taker.
    """

    __slots__ = ("_interval_ns", "_line", "_next_ns", "_start_ns", "credit", "is_unlimited", "quota")

    def __init__(self, limit_bps: int, interval_ns: int, start_ns: int) -> None:
        self.is_unlimited = limit_bps <= 0
        # Guess: a quota that rounds to nothing is one byte, so that every datagram leaves some day.
        self.quota = max(1, limit_bps * interval_ns // (BITS_PER_BYTE * NS_PER_S))
        self.credit = self.quota
        self._interval_ns = max(1, interval_ns)
        self._start_ns = start_ns
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


class Verdict(Enum):
    """What became of a datagram offered to a `DataGate`."""

    SEND = "send"  # goes out now
    QUEUED = "queued"  # accepted; goes out at a later refresh
    WOULD_BLOCK = "would block"  # not accepted; a wakeup follows


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Release(Generic[T]):
    """The queued datagram goes out now."""

    item: T
    at_ns: int


@dataclass(frozen=True, slots=True)
class Wakeup:
    """Sending is possible again; given once, and only when a send had been refused."""

    at_ns: int


class DataGate(Generic[T]):
    """The data limit of one transport type of one context: at most one datagram is queued, the others must wait."""

    __slots__ = ("_limiter", "_queued", "_refused", "_wake_ns")

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._queued: tuple[T, int] | None = None
        self._refused = False
        self._wake_ns = 0

    @property
    def is_blocked(self) -> bool:
        return self._queued is not None

    def offer(self, item: T, nbytes: int, now_ns: int) -> Verdict:
        """A send of one datagram of `nbytes`. After WOULD_BLOCK nothing is kept."""
        if self._queued is not None:
            self._refused = True
            return Verdict.WOULD_BLOCK
        if self._limiter.take(nbytes, now_ns, self):
            return Verdict.SEND
        self._queued = (item, nbytes)
        self._wake_ns = self._limiter.hold(self, nbytes, now_ns)
        return Verdict.QUEUED

    def next_deadline(self) -> int | None:
        return self._wake_ns if self._queued is not None else None

    def on_timer(self, now_ns: int) -> list[Release[T] | Wakeup]:
        if self._queued is None or now_ns < self._wake_ns:
            return []
        item, nbytes = self._queued
        if not self._limiter.take(nbytes, now_ns, self):
            self._wake_ns = self._limiter.hold(self, nbytes, now_ns)
            return []
        self._queued = None
        effects: list[Release[T] | Wakeup] = [Release(item, now_ns)]
        if self._refused:
            self._refused = False
            effects.append(Wakeup(now_ns))
        return effects

    def close(self) -> T | None:
        """Give the place in the line up; returns what was still queued."""
        self._limiter.release(self)
        queued, self._queued = self._queued, None
        return queued[0] if queued is not None else None
