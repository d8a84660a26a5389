"""A proxy source whose route moves to a faster way: in which order, and when, does what both ways bring leave?"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dro.clock import ms
from dro.metrics.slots import Slot
from dro.wire.lbmc import message as lbmc
from portals.datapath.feeder_order import AT_ONCE, LONGEST_NS, QUIET_NS
from tests.portals.datapath.test_data_path import LBMC, BlockingSender, Link, P, data

SLOW, FAST, OTHER = 1, 2, 3


class Move:
    """The proxy source is fed by the slow way, then by the fast one beside it."""

    def __init__(self, folder: Path, max_queue: int = 1_000_000, first: int = 0xFFFFFFF0) -> None:
        """`first`: the topic sqn of message 0."""
        self.first = first
        self.link = Link(folder, max_queue)
        self.out = BlockingSender()
        self.proxy = self.link.add_source(SLOW, self.out)
        self.unused = [self.link.add_source(way, BlockingSender()) for way in (FAST, OTHER)]
        self.bring(SLOW, range(5))
        self.feed(FAST)

    def feed(self, way: int, *, is_beside: bool = True) -> None:
        self.link.egress.feed(self.proxy, P, 1000 + way, is_beside=is_beside)

    def end(self, way: int) -> None:
        self.link.egress.on_feeder_ended(P, 1000 + way)

    def message(self, way: int, number: int) -> bytes:
        payload = b"%04d" % number
        return data(way, self.first + number & 0xFFFFFFFF, payload.ljust(4 + number // 50 % 3 * 100))

    def bring(self, way: int, numbers: Iterable[int]) -> None:
        self.link.receive(b"".join(self.message(way, number) for number in numbers))
        self.carry()

    def tell(self, way: int, number: int) -> None:
        """A TSNI: that is the newest."""
        self.link.receive(lbmc.encode(lbmc.tsni_message([(way, self.first + number & 0xFFFFFFFF)])))
        self.carry()

    def carry(self) -> None:
        self.link.carry()
        self.link.books()

    @property
    def sent(self) -> list[int]:
        return [int(payload) for _, _, payload in self.out.sent]

    @property
    def queued(self) -> int:
        return self.link.page_q[Slot.QUEUED]


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    made = Move(tmp_path)
    yield made
    made.link.close()


def test_what_the_slower_way_still_carries_leaves_before_what_has_overtaken_it(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    assert (move.sent, move.queued) == ([*range(5)], 4)
    move.bring(SLOW, range(5, 7))
    move.bring(FAST, range(12, 30))
    move.bring(SLOW, (7,))
    assert (move.sent, move.queued) == ([*range(30)], 0)
    move.bring(SLOW, range(8, 40))
    move.bring(FAST, range(30, 50))
    assert move.sent == [*range(50)]
    assert move.link.page_q[Slot.DROPPED_DUP] == 32
    move.link.books()


def test_both_ways_in_small_steps_and_of_several_sizes_lose_nothing_and_keep_the_order(tmp_path: Path) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        move = Move(folder)
        ahead, behind = rng.randrange(5, 60), 5
        while behind < 300:
            count = rng.randrange(1, 40)
            if rng.random() < 0.5:
                move.bring(FAST, range(ahead, ahead := min(300, ahead + count)))
            else:
                move.bring(SLOW, range(behind, behind := min(300, behind + count)))
        move.bring(FAST, range(ahead, 300))
        assert move.sent == [*range(300)], seed
        move.link.close()


def test_a_slower_new_way_repeats_and_holds_nothing_up(move: Move) -> None:
    move.bring(SLOW, range(5, 20))
    move.bring(FAST, range(8, 12))
    move.bring(SLOW, range(20, 22))
    move.end(SLOW)
    move.bring(FAST, range(12, 30))
    assert (move.sent, move.link.page_q[Slot.DROPPED_DUP]) == ([*range(30)], 14)


def test_what_the_slower_way_has_lost_is_not_waited_for_once_it_is_past_it(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.bring(SLOW, (5, 6))
    move.bring(SLOW, range(8, 20))
    assert (move.sent, move.queued) == ([*range(7), *range(8, 20)], 0)
    move.bring(SLOW, (7,))  # a repair
    assert move.sent[-1] == 7


def test_the_slower_way_is_past_the_gap_when_it_says_so_by_tsni(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.tell(SLOW, 6)
    assert move.queued == 4
    move.tell(SLOW, 8)
    assert (move.sent, move.queued, move.out.tsnis) == ([*range(5), *range(8, 12)], 0, [0xFFFFFFF6, 0xFFFFFFF8])


def test_a_tsni_does_not_overtake_what_it_speaks_of(move: Move) -> None:
    move.tell(FAST, 6)
    assert (move.out.tsnis, move.queued) == ([], 1)
    move.bring(SLOW, (5, 6))
    assert (move.out.tsnis, move.queued) == ([0xFFFFFFF6], 0)
    move.tell(FAST, 6)
    assert len(move.out.tsnis) == 2


def test_tsnis_that_are_held_back_are_bounded(move: Move) -> None:
    move.tell(FAST, 6)
    move.tell(FAST, 6)
    assert (len(move.out.tsnis), move.queued) == (2, 0)


def test_a_way_that_has_ended_is_not_waited_for(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.end(SLOW)
    assert (move.sent, move.queued) == ([*range(5), *range(8, 12)], 0)
    move.bring(FAST, (13,))
    move.bring(SLOW, (5, 6))  # was on its way from there
    assert move.sent == [*range(5), *range(8, 12), 13, 5, 6]


def test_a_way_that_is_not_beside_is_not_waited_for(move: Move) -> None:
    move.feed(OTHER, is_beside=False)
    move.bring(OTHER, (8,))
    assert move.sent == [*range(5), 8]


def test_a_way_that_brings_nothing_is_waited_for_a_moment(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.link.wait(QUIET_NS - 1)
    assert move.queued == 4
    move.link.wait(1)
    assert (move.sent, move.queued) == ([*range(5), *range(8, 12)], 0)
    move.bring(FAST, (14,))
    assert move.sent[-1] == 14, "it has had its time"
    move.carry()


def test_each_sign_of_life_prolongs_the_wait_up_to_a_limit(move: Move) -> None:
    move.bring(FAST, range(80, 90))
    step = QUIET_NS - ms(10)
    for number in range(LONGEST_NS // step):
        move.link.wait(step)
        move.bring(SLOW, (5 + number,))
    assert move.queued == 10
    move.link.wait(LONGEST_NS % step)
    assert move.queued == 0
    assert not move.link.timers


def test_a_full_queue_ends_the_wait_without_loss(tmp_path: Path) -> None:
    move = Move(tmp_path, max_queue=5 * (LBMC.size + 4))
    move.bring(FAST, range(8, 13))
    assert move.queued == 5
    move.bring(FAST, (13,))
    assert (move.sent, move.queued) == ([*range(5), *range(8, 14)], 0)
    move.bring(SLOW, (5,))
    move.bring(FAST, (15,))
    assert move.sent[-2:] == [5, 15]
    move.link.close()


def test_without_a_queue_nothing_is_held_back(tmp_path: Path) -> None:
    move = Move(tmp_path, max_queue=0)
    move.bring(FAST, range(8, 10))
    move.bring(SLOW, range(5, 8))
    assert move.sent == [*range(5), 8, 9, 5, 6, 7]
    move.link.close()


def test_what_a_session_does_not_take_when_it_is_released_waits_in_its_place(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.out.room = 2
    move.bring(SLOW, range(5, 8))
    assert (move.sent, move.queued) == ([*range(7)], 5)
    move.out.room = 100
    move.link.egress.drain(move.out)
    move.carry()
    assert (move.sent, move.queued) == ([*range(12)], 0)


def test_a_third_way_ends_the_wait_for_the_first(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.feed(OTHER)
    assert move.sent == [*range(5), *range(8, 12)]
    move.bring(OTHER, (15,))
    assert move.queued == 1
    move.bring(FAST, range(12, 15))
    assert move.sent == [*range(5), *range(8, 16)]


def test_the_way_before_takes_over_again_and_fills_the_gap(move: Move) -> None:
    """The source ends: the faster way says so first."""
    move.bring(FAST, range(8, 12))
    move.feed(SLOW, is_beside=False)
    assert move.queued == 4
    move.bring(SLOW, range(5, 12))
    assert (move.sent, move.queued) == ([*range(12)], 0)


def test_what_is_held_back_for_a_proxy_source_that_is_deleted_is_dropped(move: Move) -> None:
    move.bring(FAST, range(8, 12))
    move.link.egress.flush(move.proxy)
    assert (move.queued, move.link.page_q[Slot.DROPPED_DELETED]) == (0, 4)
    move.carry()
    move.link.wait(QUIET_NS)
    assert move.sent == [*range(5)]


def test_very_many_proxy_sources_are_released_in_turns(move: Move) -> None:
    """The time of all of them is over at once."""
    for way in range(10, 10 + AT_ONCE + 10):
        move.proxy = move.link.add_source(way, move.out)
        move.link.add_source(5000 + way, move.out)
        move.bring(way, (0,))
        move.feed(5000 + way)
        move.bring(5000 + way, (2,))
    move.link.wait(QUIET_NS)
    assert move.queued == 10
    move.link.wait(ms(5))
    assert move.queued == 0
