"""Sets of sequence numbers: exact within their memory, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dro.dissect.sqnset import SqnPool, SqnSet
from dro.sqn import MASK


@given(st.integers(0, MASK), st.lists(st.integers(0, 20000), min_size=1, max_size=60))
def test_a_set_counts_like_a_set_also_across_the_wrap(base: int, offsets: list[int]) -> None:
    sqns = SqnSet(SqnPool())
    seen: set[int] = set()
    for offset in offsets:
        assert sqns.add((base + offset) & MASK) == (offset not in seen)
        seen.add(offset)
    low, high = min(seen), max(seen)
    assert len(sqns) == len(seen)
    assert sqns.low == (base + low) & MASK
    assert sqns.high == (base + high) & MASK
    assert sqns.missing == high - low + 1 - len(seen)
    missing = [n for first, last in sqns.missing_ranges(100) for n in range(first, first + ((last - first) & MASK) + 1)]
    assert [n & MASK for n in missing] == [(base + n) & MASK for n in range(low, high) if n not in seen]


def test_an_empty_set_has_no_ends() -> None:
    sqns = SqnSet(SqnPool())
    assert (sqns.low, sqns.high, sqns.missing, sqns.missing_ranges(3), len(sqns)) == (None, None, 0, [], 0)


def test_a_full_pool_forgets_the_oldest_chunk_and_the_set_admits_it() -> None:
    pool = SqnPool(limit=2)
    a, b = SqnSet(pool), SqnSet(pool)
    a.add(0)
    b.add(0)
    assert a.is_exact
    b.add(5000)
    assert not a.is_exact
    assert b.is_exact
    assert a.add(0)  # forgotten, so new again
    assert len(a) == 2


def test_a_huge_jump_costs_no_memory_and_no_time() -> None:
    sqns = SqnSet(SqnPool())
    sqns.add(0)
    sqns.add(2**31 - 1)
    assert sqns.missing == 2**31 - 2
    assert sqns.missing_ranges(5) == [(1, 2**31 - 2)]


def test_only_as_many_ranges_are_listed_as_wanted() -> None:
    sqns = SqnSet(SqnPool())
    for sqn in range(0, 100, 2):
        sqns.add(sqn)
    assert sqns.missing_ranges(2) == [(1, 1), (3, 3)]
