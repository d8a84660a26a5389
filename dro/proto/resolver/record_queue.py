"""Rate limits of topic resolution: what may be sent in this tenth of a second, and the queue of pending records.

State: one `ClassLimit` and one `RecordQueue` per class of records. Called by the resolver and by the DRO's senders.

    each 100 ms: bps / 10 bits and per-second / 10 records; the first record always goes, the last one may exceed
    0 = unlimited

Source: UM documentation of the resolver rate options. Guess: intervals start at multiples of 100 ms, an excess is not
carried over, and the UDP payload is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dro.clock import NS_PER_MS

INTERVAL_NS: Final = 100 * NS_PER_MS
DRAIN_MAX: Final = 64
ALONE_COSTS_RECORDS: Final = 7  # how much more than a record a datagram of its own costs, in records
DATAGRAM_OVERHEAD_BYTES: Final = 40  # packet header and the five packet options


@dataclass(frozen=True, slots=True)
class Rate:
    """`bps` bits and `per_second` records each second; 0 = unlimited."""

    bps: int = 0
    per_second: int = 0


class ClassLimit:
    """The account of one class."""

    __slots__ = ("_bits", "_bits_max", "_interval", "_records", "_records_max", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._bits_max = rate.bps // 10 or min(rate.bps, 1)
        self._records_max = rate.per_second // 10 or min(rate.per_second, 1)
        self._interval: int | None = None  # the one that `_bits` and `_records` are of

    def has_room(self, now_ns: int) -> bool:
        """Whether one more record may leave now."""
        interval = now_ns // INTERVAL_NS
        if interval != self._interval:
            self._interval = interval
            self._bits = self._records = 0
        return not (0 < self._bits_max <= self._bits or 0 < self._records_max <= self._records)

    def charge(self, nbytes: int, records: int = 1) -> None:
        self._bits += nbytes * 8
        self._records += records

    def next_interval(self, now_ns: int) -> int:
        return (now_ns // INTERVAL_NS + 1) * INTERVAL_NS


R = TypeVar("R")


class _Group(Generic[R]):
    """Holds records that share datagrams, and with `shares_with_neighbours` those of their neighbours as well."""

    __slots__ = ("shares_with_neighbours", "suppliers")

    def __init__(self, suppliers: Iterable[Callable[[], R | None]], *, shares_with_neighbours: bool) -> None:
        self.suppliers = deque(suppliers)
        self.shares_with_neighbours = shares_with_neighbours


class RecordQueue(Generic[R]):
    """Records of one class in order, each made when it leaves, so that it is up to date and may have become void."""

    __slots__ = ("_ahead", "_encode", "_groups", "_limit")

    def __init__(self, rate: Rate, encode: Callable[[R], bytes]) -> None:
        self._limit = ClassLimit(rate)
        self._encode = encode
        self._ahead: deque[_Group[R]] = deque()
        self._groups: deque[_Group[R]] = deque()

    def __len__(self) -> int:
        return sum(len(group.suppliers) for group in (*self._ahead, *self._groups))

    @property
    def has_records(self) -> bool:
        """Whether any wait."""
        return bool(self._ahead or self._groups)

    def set_rate(self, rate: Rate) -> None:
        """Set another limit for what waits and comes."""
        if rate != self._limit.rate:
            self._limit = ClassLimit(rate)

    def put(self, supply: Callable[[], R | None], *, ahead: bool = False) -> None:
        """One record that may share a datagram; `supply` gives None when it is no longer wanted.

        `ahead`: it leaves before all that is not, as what is said for the first time does before repeats.
        """
        groups = self._ahead if ahead else self._groups
        if not (groups and groups[-1].shares_with_neighbours):
            groups.append(_Group((), shares_with_neighbours=True))
        groups[-1].suppliers.append(supply)

    def put_group(self, suppliers: Iterable[Callable[[], R | None]]) -> None:
        """Records that share datagrams with nothing else: an answer. It leaves before repeats, too."""
        self._ahead.append(_Group(suppliers, shares_with_neighbours=False))

    def take_runs(self, now_ns: int) -> list[list[R]]:
        """The runs that may leave now, each to be packed into datagrams of its own; the rest stays in order.

        At most `DRAIN_MAX` records are looked at, fewer when they are sent alone, so that a turn of the owner ends; the
        deadline tells of more.
        """
        runs: list[list[R]] = []
        left = DRAIN_MAX
        while left > 0 and (groups := self._ahead or self._groups):
            group = groups[0]
            left -= 0 if group.shares_with_neighbours else ALONE_COSTS_RECORDS
            run: list[R] = []
            while group.suppliers and left > 0 and self._limit.has_room(now_ns):
                left -= 1
                record = group.suppliers.popleft()()
                if record is not None:
                    self._limit.charge(len(self._encode(record)) + (0 if run else DATAGRAM_OVERHEAD_BYTES))
                    run.append(record)
            if run:
                runs.append(run)
            if group.suppliers:
                break
            groups.popleft()
        return runs

    def next_deadline(self, now_ns: int) -> int | None:
        """Return when more may leave: now, at the next interval, or None when nothing waits."""
        if not (self._ahead or self._groups):
            return None
        return now_ns if self._limit.has_room(now_ns) else self._limit.next_interval(now_ns)
