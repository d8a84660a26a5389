"""How many new names a second strangers may bring: in all, and from one address.

State: how many came in the running second, by address. Called by the tables that remember what strangers say: sources
(`dro.proto.resolver.cache`) and interest (`dro.proto.interest`). What is refused comes again: advertisements, queries
and interest records are all repeated. Guess: the numbers, at the callers; seconds begin at multiples of 1 s.
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class NewEntryRate:
    """New names a second."""

    in_all: int
    of_one: int  # address


class NewEntryLimiter:
    """The account of one table. `refused` counts names, each time one is refused."""

    __slots__ = ("_by_address", "_count", "_rate", "_second", "refused")

    def __init__(self, rate: NewEntryRate) -> None:
        self._rate = rate
        self._second = -1
        self._count = 0
        self._by_address: dict[int, int] = {}
        self.refused = 0

    def admit(self, ip: int, now_ns: int) -> bool:
        """Whether one more new name from that address may be taken now."""
        second = now_ns // NS_PER_S
        if second != self._second:
            self._second, self._count = second, 0
            self._by_address.clear()
        of_one = self._by_address.get(ip, 0)
        if self._count >= self._rate.in_all or of_one >= self._rate.of_one:
            self.refused += 1
            return False
        self._count += 1
        self._by_address[ip] = of_one + 1
        return True
