"""Ranges of missing sqns against a model that keeps one object for each, and what a large gap costs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dro.clock import ms
from dro.proto.repair.loss import NAK_ROUND_NS, OWN_TIMER_MAX, PIECE, LossConfig, LossDetector, SqnRange
from tests.fakes.receiver_bench import sqns_of, synchronised

MASK = 0xFFFFFFFF
CONFIG = LossConfig(backoff_ns=ms(40), suppress_ns=ms(100), generation_ns=ms(300), naks_per_round=90)


@dataclass
class Missing:
    found_ns: int
    due_ns: int
    naks: int = 0


class Ranges(RuleBasedStateMachine):
    """Sqns go by their distance from the first, so that the model need not wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.start = 0xFFFFFF00
        self.end = 0
        self.loss = LossDetector(CONFIG, lambda: 0.5)
        self.model: dict[int, Missing] = {}
        self.asked: list[tuple[int, int]] = []

    def sqn(self, place: int) -> int:
        return (self.start + place) & MASK

    def places(self, ranges: list[SqnRange]) -> list[int]:
        assert all((a + n) & MASK != b for (a, n), (b, _) in pairwise(ranges)), "not merged"
        return [(sqn - self.start) & MASK for sqn in sqns_of(ranges)]

    def pop(self, places: list[int]) -> list[int]:
        for place in places:
            del self.model[place]
        return places

    @rule(skip=st.integers(0, 3), count=st.one_of(st.integers(1, 5), st.integers(OWN_TIMER_MAX, 2 * PIECE + 100)))
    def a_gap_opens(self, skip: int, count: int) -> None:
        first = self.end + skip
        self.end = first + count
        self.loss.open_gap(self.sqn(first), count, self.now)
        due = self.now + CONFIG.initial_backoff_ns
        self.model |= {place: Missing(self.now, due) for place in range(first, first + count)}

    @rule(back=st.integers(-2, 3000), count=st.integers(1, 40), step=st.sampled_from([1, 2, -1]))
    def repairs_come(self, back: int, count: int, step: int) -> None:
        for i in range(count):
            place = self.end - back + i * step
            found, known = self.loss.repair(self.sqn(place)), self.model.pop(place, None)
            assert (found is None) == (known is None)
            if found is not None and known is not None:
                assert (found.found_ns, found.naks) == (known.found_ns, known.naks)

    @rule(back=st.integers(-5, 3000), count=st.integers(1, 300))
    def an_ncf_comes(self, back: int, count: int) -> None:
        first = self.end - back
        self.loss.suppress(self.sqn(first), count, self.now)
        for place in range(first, first + count):
            if place in self.model:
                self.model[place].due_ns = self.now + CONFIG.suppress_ns

    @rule(back=st.integers(-5, 3000), count=st.integers(1, 300))
    def some_are_refused(self, back: int, count: int) -> None:
        first = self.end - back
        expected = [place for place in range(first, first + count) if place in self.model]
        assert self.places(self.loss.take(self.sqn(first), count)) == self.pop(expected)

    @rule(count=st.integers(1, 2000))
    def the_oldest_are_given_up(self, count: int) -> None:
        assert self.places(self.loss.pop_oldest(count)) == self.pop(list(self.model)[:count])

    @rule(back=st.integers(-5, 3000))
    def the_trail_moves(self, back: int) -> None:
        expected = [place for place in self.model if place < self.end - back]
        assert self.places(self.loss.pop_before(self.sqn(self.end - back))) == self.pop(expected)

    @rule(step=st.integers(0, 120).map(ms))
    def time_passes(self, step: int) -> None:
        self.now += step
        expected = [p for p, missing in self.model.items() if missing.found_ns <= self.now - CONFIG.generation_ns]
        assert self.places(self.loss.pop_expired(self.now)) == self.pop(expected)
        if self.model:
            self.ask()

    def ask(self) -> None:
        due = {place: missing.due_ns for place, missing in self.model.items() if missing.due_ns <= self.now}
        named = [(sqn - self.start) & MASK for sqn in self.loss.pop_naks(self.now)]
        assert named == sorted(set(named))
        assert set(named) <= set(due)
        self.asked.append((self.now, len(named)))
        in_round = sum(count for at, count in self.asked if at > self.now - NAK_ROUND_NS)
        assert in_round <= 2 * CONFIG.naks_per_round, "of two rounds at most"
        if rest := set(due) - set(named):
            assert in_round >= CONFIG.naks_per_round
            assert max([due[p] for p in named], default=0) <= min(due[p] for p in rest), "not those due longest"
        for place in named:
            self.model[place].naks += 1
            self.model[place].due_ns = self.now + CONFIG.backoff_ns

    @invariant()
    def both_miss_the_same(self) -> None:
        assert self.loss.count == len(self.model)
        ranges = [(gap.first & MASK, gap.end - gap.first) for gap in self.loss.gaps]
        assert list(sqns_of(ranges)) == [self.sqn(place) for place in self.model]
        if self.model:
            first = next(iter(self.model.values()))
            assert self.loss.oldest == self.sqn(next(iter(self.model)))
            deadline = self.loss.next_deadline()
            assert deadline <= first.found_ns + CONFIG.generation_ns
            naks = min(missing.due_ns for missing in self.model.values())
            assert deadline >= min(naks, first.found_ns + CONFIG.generation_ns)
        assert len(self.loss._heap) <= 40 * (len(self.loss.gaps) + 64)


TestRanges = Ranges.TestCase
TestRanges.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_large_gap_draws_once_for_many() -> None:
    draws = Random(1)
    drawn: list[float] = []
    loss = LossDetector(LossConfig(), lambda: drawn.append(draws.random()) or drawn[-1])  # type: ignore[func-returns-value]  # noted, then given
    loss.open_gap(0, OWN_TIMER_MAX, 0)
    assert len(drawn) == OWN_TIMER_MAX
    loss.open_gap(1000, 60_000, 0)
    assert len(drawn) == OWN_TIMER_MAX + -(-60_000 // PIECE)


def test_one_datagram_after_60000_lost_ones_costs_little_when_it_comes_and_later() -> None:
    """One object, draw and NAK for each took 90 ms at first, and then all the time of the processor for 10 s."""
    opening, turns = [], []
    for _ in range(5):
        b = synchronised()
        began = time.process_time()
        b.session.on_data(60_011, 0, False, ms(10))
        opening.append(time.process_time() - began)
        slowest = 0.0
        while (deadline := b.session.next_deadline()) is not None and deadline < ms(11_000):
            began = time.process_time()
            b.session.on_timer(deadline)
            b.session.take_events()
            slowest = max(slowest, time.process_time() - began)
        turns.append(slowest)
    assert b.stats.unrecovered_tmo == 60_000
    assert b.stats.naks_sent <= 10_000 // 50 * LossConfig().naks_per_round
    assert min(opening) < 0.001
    assert min(turns) < 0.020


def test_each_of_a_large_gap_is_asked_for_before_any_is_asked_for_again() -> None:
    b = synchronised()
    b.data(10, 60_011)
    b.tick(60 + 28 * 50)
    asked = [sqn for note in b.of("nak") for sqn in note[2]]  # type: ignore[attr-defined]  # a tuple of sqns
    assert len(set(asked)) == len(asked) == 29 * 2000
    b.tick(60 + 29 * 50)
    asked = [sqn for note in b.of("nak") for sqn in note[2]]  # type: ignore[attr-defined]  # a tuple of sqns
    assert set(asked) == set(range(11, 60_011))


def test_many_gaps_that_end_at_once_end_in_turns() -> None:
    b = synchronised(LossConfig(send_naks=False))
    for i in range(5000):
        b.session.on_data(12 + 2 * i, 0, False, ms(10))
    b.session.on_timer(ms(10_010))
    assert (b.stats.unrecovered_tmo, b.session.next_deadline()) == (4096, ms(10_010))
    b.session.on_timer(ms(10_010))
    assert b.stats.unrecovered_tmo == 5000


def test_a_nak_that_comes_back_to_its_old_time_names_each_once() -> None:
    loss = LossDetector(LossConfig(initial_backoff_ns=ms(50), backoff_ns=ms(20), suppress_ns=ms(20)), lambda: 0.5)
    loss.open_gap(7, 1, 0)
    loss.suppress(7, 1, ms(10))
    assert loss.pop_naks(ms(30)) == [7]
    assert (loss.next_deadline(), loss.pop_naks(ms(50)), loss.gaps[0].naks) == (ms(50), [7], 2)


def test_a_round_ends_at_32_packets() -> None:
    b = synchronised(replace(LossConfig(), max_naks_per_packet=1))
    b.data(10, 5011)
    b.tick(109)
    assert (b.stats.nak_pckts_sent, b.stats.naks_sent) == (32, 32)
    b.tick(110)
    assert b.stats.nak_pckts_sent == 64
