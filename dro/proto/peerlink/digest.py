"""A digest of a set that both ends of a link keep: order makes no difference, and a change costs little.

Source: own design. Guess: 64 bits; ends that differ by chance agree once in 2^64 times.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1


class Digest:
    """The sum of hashes of all members."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self, member: bytes) -> None:
        self.value = self.value + _hash(member) & _MASK

    def remove(self, member: bytes) -> None:
        self.value = self.value - _hash(member) & _MASK


def _hash(member: bytes) -> int:
    return int.from_bytes(blake2b(member, digest_size=8).digest(), "big")


def of_interest(symbol: bytes, kind: int, domain_id: int) -> bytes:
    return b"%d %d " % (kind, domain_id) + symbol


def of_source(srcidx: int, otid: bytes) -> bytes:
    return b"%d " % srcidx + otid
