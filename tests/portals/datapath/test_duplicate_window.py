"""The duplicate window against a model that marks every sqn in a set."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.sqn import MASK
from portals.datapath.duplicate_window import DuplicateWindow


class Model:
    """One position after the other, nothing clever. Below the window, what was not seen is new, up to the first."""

    def __init__(self, size: int, increment: int) -> None:
        self.size, self.increment, self.top, self.seen = size, increment, increment, set[int]()

    def take(self, position: int) -> bool:
        if position >= self.top:
            self.top += -(-(position + 1 - self.top) // self.increment) * self.increment
        if position < min(0, self.top - self.size) or position in self.seen:
            return False
        self.seen.add(position)
        return True


runs = st.lists(st.tuples(st.integers(-40, 60), st.integers(1, 20)), max_size=40)


@given(start=st.sampled_from([0, 7, MASK - 5, 0x7FFFFFF8]), steps=runs)
def test_every_sqn_is_taken_exactly_as_the_model_takes_it(start: int, steps: list[tuple[int, int]]) -> None:
    window, model = DuplicateWindow(32, 8), Model(32, 8)
    position = 0
    for step, count in [(0, 1), *steps]:
        position = max(position + step, -20)
        taken = {
            index
            for at, length in window.take_run((start + position) & MASK, count)
            for index in range(at, at + length)
        }
        assert taken == {index for index in range(count) if model.take(position + index)}
        assert window.taken == len(model.seen)


def test_of_a_late_run_across_the_lower_edge_what_was_not_seen_is_new_once() -> None:
    window = DuplicateWindow(16, 8)
    window.take_run(0, 4)
    window.take_run(20, 1)  # the window is now 8 to 23
    assert window.take_run(2, 8) == [(2, 6)]
    assert window.too_old == 2
    assert window.take_run(6, 6) == [(4, 2)]
    assert window.too_old == 2


@pytest.mark.parametrize("behind", [14_000, 17_000, 200_000])
def test_a_repair_is_new_however_far_the_flow_has_gone_on(behind: int) -> None:
    """Above 40,000 to 190,000 fragments a second, repairs came after the window had passed them."""
    window = DuplicateWindow(16384, 2048)
    window.take_run(0, 100)
    window.take_run(103, 97, now_ns=ms(1))  # without 100 to 102
    for first in range(200, 200 + behind, 50):
        assert window.next_sqn == first
        window.advance(50)
    assert window.take_run(102, 1, is_repair=True, now_ns=s(1)) == [(0, 1)]
    assert window.take_run(100, 2, is_repair=True, now_ns=s(1)) == [(0, 2)]
    assert window.too_old == 0
    assert window.take_run(100, 3, is_repair=True, now_ns=s(1)) == []
    assert window.take_run(99, 4, is_repair=True, now_ns=s(1)) == []
    assert window.too_old == (0 if behind == 14_000 else 4)


def test_what_was_not_seen_is_remembered_for_ten_seconds_and_1024_ranges() -> None:
    window = DuplicateWindow(16, 8)
    window.take_run(0, 1)
    for i in range(2000):
        window.take_run(2 * i + 2, 1, now_ns=s(1))
    lowest = 4000 + 1 - 16 - 2 * 1024
    assert len(window._lost) == 1024
    assert window.take_run(lowest - 16, 1, now_ns=s(2)) == []
    assert window.too_old == 1
    assert window.take_run(lowest + 16, 1, now_ns=s(2)) == [(0, 1)]
    window.take_run(9000, 1, now_ns=s(12))
    assert [noted for _, _, noted in window._lost] == [s(12)] * len(window._lost)
    assert window.take_run(lowest + 18, 1, now_ns=s(12)) == []


def test_one_forged_sqn_loses_nothing_of_the_flow() -> None:
    window = DuplicateWindow(16384, 2048)
    first = 0x8000_0000
    window.take_run(first, 100, now_ns=0)
    at = first + 100
    assert window.take_run(at + 0x7000_0000, 1, now_ns=ms(1)) == [(0, 1)]
    for t in range(2, 3000, 10):
        assert window.take_run(at, 64, now_ns=ms(t)) == [(0, 64)]
        assert window.too_old == 0
        assert window.has_restarted == (t == 1002)
        at += 64
    assert window.next_sqn == at
    assert window.taken == 101 + 300 * 64, "also of what it knows no more"
    assert window.take_run(at - 128, 64, now_ns=s(3)) == []
    assert window.take_run(first, 64, now_ns=s(3)) == []
    assert window.take_run(first + 100 + 0x7000_0000, 1, now_ns=s(3)) == [(0, 1)], "and is forgotten"


def test_what_lies_below_a_flow_that_began_anew_is_not_new() -> None:
    window = DuplicateWindow(16, 8)
    window.take_run(0, 1)
    for sqn in (200, 202, 204):  # 1 to 199 were not seen, nor two in the window
        window.take_run(sqn, 1)
    for t in (0, 1, 2):
        assert window.take_run(100 + t, 1, now_ns=s(t)) == [(0, 1)]
        assert window.has_restarted == (t == 1)
    for sqn in (*range(80, 103), 50):
        assert window.take_run(sqn, 1, is_repair=True, now_ns=s(2)) == []
    assert window.take_run(104, 1, now_ns=s(2)) == [(0, 1)]
    assert window.take_run(103, 1, now_ns=s(2)) == [(0, 1)]


def test_the_wrap_is_no_beginning() -> None:
    window = DuplicateWindow(16, 8)
    assert window.take_run(MASK - 4, 5) == [(0, 5)]
    assert window.next_sqn == 0
    assert window.take_run(MASK - 1, 1) == []


@pytest.mark.parametrize(("sent", "silent_ms"), [(100_000, 1000), (10_000, 10_000)])
def test_a_source_that_begins_anew_is_taken_again(sent: int, silent_ms: int) -> None:
    """From below the window at once; within it that might be a path that lags behind."""
    window = DuplicateWindow(16384, 2048)
    window.take_run(0, sent)
    for t in range(0, silent_ms, 100):
        assert window.take_run(t // 100, 1, now_ns=s(5) + ms(t)) == []
        assert window.too_old == (sent == 100_000)
    assert window.take_run(silent_ms // 100, 1, now_ns=s(5) + ms(silent_ms)) == [(0, 1)]
    assert (window.has_restarted, window.next_sqn, window.too_old) == (True, silent_ms // 100 + 1, 0)
    assert window.take_run(0, 1, now_ns=s(20)) == []


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda window, i: window.advance(1), id="newer data"),
        pytest.param(lambda window, i: window.take_run(50 - i, 1, now_ns=s(i)), id="what does not follow"),
    ],
)
def test_duplicates_alone_are_no_new_flow(between: Callable[[DuplicateWindow, int], object]) -> None:
    window = DuplicateWindow(16, 8)
    window.take_run(0, 1000)
    for i in range(40):
        assert window.take_run(100 + i, 1, now_ns=s(i)) == []
        between(window, i)
        assert not window.has_restarted


def test_repairs_are_no_new_flow() -> None:
    window = DuplicateWindow(16, 8)
    window.take_run(0, 1000)
    for i in range(40):
        assert window.take_run(i, 1, is_repair=True, now_ns=s(i)) == []


def test_a_run_at_the_next_sqn_needs_only_advance() -> None:
    one, other = DuplicateWindow(64, 8), DuplicateWindow(64, 8)
    assert one.next_sqn == -1
    sqn = MASK - 100
    for window in (one, other):
        window.take_run(sqn, 1)
        window.take_run((sqn + 5) & MASK, 1)
    sqn += 6
    for _ in range(40):
        assert one.next_sqn == sqn & MASK
        one.advance(7)
        assert other.take_run(sqn & MASK, 7) == [(0, 7)]
        sqn += 7
    for window in (one, other):
        assert window.take_run(MASK - 99, 9) == [(0, 4)]


def test_a_run_in_order_is_one_part_and_leaves_no_holes() -> None:
    window = DuplicateWindow(16384, 2048)
    for first in range(0, 100_000, 64):
        assert window.take_run(first, 64) == [(0, 64)]
    assert window._missing.bit_count() == len(window._lost) == 0
    assert window.take_run(99_968, 32) == []


@given(
    start=st.sampled_from([0, MASK - 5]),
    steps=st.lists(st.tuples(st.integers(-100, 100), st.integers(1, 70)), max_size=60),
    sizes=st.sampled_from([(8, 8), (16, 8), (64, 8), (64, 64)]),
)
def test_windows_of_any_size_and_runs_longer_than_they_are(
    start: int, steps: list[tuple[int, int]], sizes: tuple[int, int]
) -> None:
    window, model = DuplicateWindow(*sizes), Model(*sizes)
    position = 0
    for step, count in [(0, 1), *steps]:
        position = max(position + step, -50)
        parts = window.take_run((start + position) & MASK, count)
        taken = [index for at, length in parts for index in range(at, at + length)]
        assert taken == [index for index in range(count) if model.take(position + index)]
        assert all(a + n < b for (a, n), (b, _) in pairwise(parts))
        assert window._missing.bit_count() <= sizes[0]


def test_a_stranger_who_jumps_costs_no_more_than_one_who_does_not() -> None:
    """Guards against a set of holes: each of these jumps then made and dropped 16384 entries."""
    began = time.process_time()
    window = DuplicateWindow(16384, 2048)
    sqn = 0
    for _ in range(20_000):
        sqn = (sqn + 17_000) & MASK
        assert window.take_run(sqn, 1) == [(0, 1)]
        assert window.take_run((sqn - 5) & MASK, 1) == [(0, 1)]
        assert window.take_run((sqn - 5) & MASK, 6) == [(1, 4)]
    assert time.process_time() - began < 3


def test_a_jump_of_half_the_sequence_space_keeps_memory_within_the_window() -> None:
    window = DuplicateWindow(16384, 2048)
    window.take_run(0, 1)
    window.take_run(0x7FFFFFF0, 1)
    assert window._missing.bit_count() <= 16384


def test_every_sequence_of_four_runs_around_the_edges_is_taken_as_the_model_takes_it() -> None:
    """The same positions in each run of the tests, unlike above."""
    for spread in product(((-9, 3), (-1, 1), (1, 2), (5, 9), (8, 1), (17, 8), (40, 2)), repeat=3):
        window, model = DuplicateWindow(16, 8), Model(16, 8)
        position = 0
        for step, count in ((0, 3), *spread):
            position += step
            parts = window.take_run(position & MASK, count)
            taken = [index for at, length in parts for index in range(at, at + length)]
            assert taken == [index for index in range(count) if model.take(position + index)], (spread, position)
