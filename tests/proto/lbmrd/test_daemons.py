"""Which resolver daemon a context uses, and when each gets a keepalive."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.lbmrd.daemons import DaemonTimes, ResolverDaemons

DEFAULT = DaemonTimes(keepalive_ns=ms(500), check_ns=ms(200), change_ns=ms(200), activity_ns=ms(1000))


class Life:
    """Daemons in stepped time; `alive` answer every keepalive at once."""

    def __init__(self, count: int, times: DaemonTimes = DEFAULT, seed: int = 1) -> None:
        self.now_ns = s(1)
        self.daemons = ResolverDaemons(count, times, random.Random(seed).random, self.now_ns)
        self.alive = set(range(count))
        self.keepalives: list[tuple[int, int]] = []  # ms, daemon
        self.silent: list[tuple[int, int]] = []
        self.back: list[tuple[int, int]] = []
        self.used: list[tuple[int, int]] = []  # ms, the daemon that is used from then on

    def run(self, until_ms: int) -> None:
        until_ns = s(1) + ms(until_ms)
        while True:
            deadline_ns = self.daemons.next_deadline()
            if deadline_ns is None or max(deadline_ns, self.now_ns) > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(deadline_ns, self.now_ns)
            at = (self.now_ns - s(1)) // ms(1)
            self.silent += [(at, number) for number in self.daemons.on_timer(self.now_ns)]
            for number in self.daemons.due_keepalives(self.now_ns):
                self.daemons.on_keepalive(number, self.now_ns)
                self.daemons.on_sent(number, self.now_ns)
                self.keepalives.append((at, number))
                if number in self.alive and self.daemons.on_heard(number, self.now_ns):
                    self.back.append((at, number))
            if not self.used or self.used[-1][1] != self.daemons.current:
                self.used.append((at, self.daemons.current))


def test_each_daemon_gets_a_keepalive_at_once_and_when_nothing_else_was_sent_to_it() -> None:
    life = Life(2)
    life.run(1200)
    assert [at for at, number in life.keepalives if number == 0] == [0, 500, 1000]
    life.daemons.on_sent(0, life.now_ns)  # a topic query, at 1200
    life.daemons.on_heard(0, life.now_ns)  # and one of others
    life.run(1800)
    assert [at for at, number in life.keepalives if number == 0] == [0, 500, 1000, 1700]
    assert [at for at, number in life.keepalives if number == 1] == [0, 500, 1000, 1500]


def test_a_silent_daemon_is_left_at_the_next_look_and_used_again_when_it_answers() -> None:
    life = Life(2)
    life.run(300)
    life.alive.discard(1)
    life.run(5000)
    assert life.silent == [(1000, 1)], "heard last at 0"
    assert {number for at, number in life.used if at > 1000} <= {0}
    assert life.daemons.active == [0]
    life.alive.add(1)
    life.run(9000)
    assert life.back == [(5500, 1)]
    assert {number for at, number in life.used if at > 5500} == {0, 1}


def test_the_daemon_in_use_changes_at_random_times_about_the_interval() -> None:
    life = Life(3)
    life.run(60_000)
    gaps = [later - earlier for (earlier, _), (later, _) in zip(life.used, life.used[1:], strict=False)]
    assert 100 <= min(gaps) < 130
    assert 270 < max(gaps) <= 300
    assert 190 < sum(gaps) / len(gaps) < 210
    shares = [sum(number == n for _, number in life.used) / len(life.used) for n in range(3)]
    assert all(0.3 < share < 0.36 for share in shares)


def test_a_context_that_was_held_up_itself_takes_no_daemon_for_silent() -> None:
    """What has come meanwhile is read after the look. When there is nothing, the next look finds it."""
    life = Life(1)
    life.run(600)
    life.now_ns += s(2)
    assert life.daemons.on_timer(life.now_ns) == []
    life.daemons.on_heard(0, life.now_ns)
    life.run(2900)
    assert life.silent == []
    life.alive = set()
    life.now_ns += s(2)
    assert life.daemons.on_timer(life.now_ns) == []
    life.now_ns += ms(400)
    assert life.daemons.on_timer(life.now_ns) == [0]


@pytest.mark.parametrize("seed", range(8))
def test_after_a_time_without_any_the_daemon_that_is_heard_is_used_at_once(seed: int) -> None:
    """What a context tells then it tells once, so it must not go to one that is still dead."""
    life = Life(3, seed=seed)
    life.run(600)
    life.alive = set()
    life.run(3000)
    assert not life.daemons.active
    life.daemons.on_heard(1, life.now_ns)
    assert life.daemons.current == 1
    life.daemons.on_heard(2, life.now_ns)
    assert life.daemons.current == 1


def test_with_no_active_daemon_all_are_tried_in_turn_twice_as_fast() -> None:
    life = Life(2)
    life.alive.clear()
    life.run(1200)
    assert life.daemons.active == []
    life.used.clear()
    life.run(31_200)
    gaps = [later - earlier for (earlier, _), (later, _) in zip(life.used, life.used[1:], strict=False)]
    assert min(gaps) >= 50
    assert max(gaps) <= 150
    assert {number for _, number in life.used} == {0, 1}


@pytest.mark.parametrize(
    ("times", "deadline"),
    [
        (DaemonTimes(0, ms(200), ms(200), ms(1000)), True),
        (DaemonTimes(0, 0, 0, 0), False),
        (DaemonTimes(0, ms(200), 0, 0), False),
    ],
)
def test_zeros_switch_off(times: DaemonTimes, deadline: bool) -> None:
    life = Life(1, times)
    life.alive.clear()
    life.run(10_000)
    assert [number for _, number in life.keepalives] == [0], "the first, which makes it known"
    assert (life.daemons.next_deadline() is not None) is deadline
    assert life.daemons.active == ([] if deadline else [0])


@given(
    st.integers(1, 5),
    st.integers(0, 1 << 30),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 4)), max_size=12),
)
def test_whatever_dies_and_comes_back_a_living_daemon_is_used_a_second_later(
    count: int, seed: int, changes: list[tuple[int, int]]
) -> None:
    life = Life(count, seed=seed)
    at = 0
    for wait, number in changes:
        at += wait
        life.run(at)
        life.alive ^= {number % count}
    life.run(at + 1800)  # silent for 1000, seen 200 later at most; a keepalive finds it again within 500
    if life.alive:
        assert life.daemons.current in life.alive
        assert set(life.daemons.active) == life.alive
    else:
        assert life.daemons.active == []
