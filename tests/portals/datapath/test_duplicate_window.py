"""The duplicate window against a model that marks every sqn in a set."""

from __future__ import annotations

import time
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from dro.sqn import MASK
from portals.datapath.duplicate_window import DuplicateWindow


class Model:
    """One position after the other, nothing clever."""

    def __init__(self, size: int, increment: int) -> None:
        self.size, self.increment, self.top, self.seen = size, increment, increment, set[int]()

    def take(self, position: int) -> bool:
        if position >= self.top:
            self.top += -(-(position + 1 - self.top) // self.increment) * self.increment
        if position < self.top - self.size or position in self.seen:
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


def test_of_a_late_run_across_the_lower_edge_the_part_inside_is_new() -> None:
    window = DuplicateWindow(16, 8)
    window.take_run(0, 1)
    window.take_run(20, 1)  # the window is now 8 to 23
    assert window.take_run(6, 4) == [(2, 2)]
    assert window.take_run(6, 6) == [(4, 2)]


def test_a_run_in_order_is_one_part_and_leaves_no_holes() -> None:
    window = DuplicateWindow(16384, 2048)
    for first in range(0, 100_000, 64):
        assert window.take_run(first, 64) == [(0, 64)]
    assert window._missing.bit_count() == 0
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
