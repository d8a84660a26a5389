"""How many new names a second are taken: in all, and from one address."""

from __future__ import annotations

from dro.clock import s
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate


def admitted(newcomers: NewEntryLimiter, ips: list[int], at_s: float) -> list[int]:
    return [ip for ip in ips if newcomers.admit(ip, s(1) * int(at_s * 10) // 10)]


def test_one_address_cannot_take_the_share_of_all() -> None:
    newcomers = NewEntryLimiter(NewEntryRate(in_all=5, of_one=3))
    assert admitted(newcomers, [1, 1, 1, 1, 2, 2, 3], 0) == [1, 1, 1, 2, 2]
    assert newcomers.refused == 2


def test_each_second_has_an_account_of_its_own() -> None:
    newcomers = NewEntryLimiter(NewEntryRate(in_all=2, of_one=1))
    assert admitted(newcomers, [1, 1, 2, 3], 0.9) == [1, 2]
    assert admitted(newcomers, [1, 2, 3], 1.0) == [1, 2]
    assert admitted(newcomers, [3], 1.9) == []
    assert admitted(newcomers, [3], 2.0) == [3]
    assert newcomers.refused == 4
