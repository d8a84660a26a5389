"""Rate limits: the timed scenarios T21 and T22, runs, the line of those who wait, and limits as they are documented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.ratelimit import RateLimiter


def test_t21_data_limiter() -> None:
    limiter = RateLimiter(10_000_000, ms(10), 0)
    assert [limiter.take(5000, ms(at), "me") for at in (0, 0, 1)] == [True, True, False]
    assert limiter.hold("me", 5000, ms(1)) == ms(10)
    assert [limiter.take(5000, ms(at), "me") for at in (9, 10, 10)] == [False, True, True]
    assert limiter.credit == 2500
    assert not limiter.take(5000, ms(11), "me")
    assert limiter.hold("me", 5000, ms(11)) == ms(20)
    assert limiter.take(5000, ms(20), "me")


def test_the_largest_limit_and_interval_of_the_options() -> None:
    limiter = RateLimiter(2**64 - 1, s(10), 0)
    assert limiter.take_run(1 << 40, 8192, 0) == 1 << 40
    assert limiter.take_sizes([8192] * 3, s(20)) == 3


def test_t22_quota_below_a_datagram() -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    assert limiter.quota == 500
    assert not limiter.take(1400, 0, "me")
    assert limiter.credit == 500
    assert limiter.hold("me", 1400, 0) == ms(20)
    assert limiter.next_refresh(ms(10)) == ms(20)
    assert limiter.credit == 1000
    assert limiter.take(1400, ms(20), "me")
    assert limiter.credit == 100


@pytest.mark.parametrize(
    ("bps", "interval_ms", "quota"),
    [(10_000_000, 10, 12_500), (5_000_000, 10, 6250), (10_000_000, 100, 125_000), (5_000_000, 100, 62_500), (1, 5, 1)],
)
def test_quotas(bps: int, interval_ms: int, quota: int) -> None:
    limiter = RateLimiter(bps, ms(interval_ms), 0)
    assert (limiter.quota, limiter.credit, limiter.is_unlimited) == (quota, quota, False)


def test_unused_credit_is_not_carried_over() -> None:
    limiter = RateLimiter(800_000, ms(10), 0)
    assert limiter.take_run(100, 100, ms(95)) == 10
    assert limiter.take_run(100, 100, ms(96)) == 0
    assert limiter.take_run(100, 100, ms(100)) == 10


def test_refreshes_are_aligned_to_the_start() -> None:
    limiter = RateLimiter(800_000, ms(10), ms(3))
    assert limiter.take(1000, ms(12))
    assert not limiter.take(1, ms(12))
    assert limiter.take(1000, ms(13))
    assert limiter.next_refresh(ms(14)) == ms(23)
    assert RateLimiter(800_000, 0, 0).next_refresh(4) == 5, "an interval is 1 ns at least"


def test_a_run_is_charged_as_far_as_it_fits() -> None:
    limiter = RateLimiter(800_000, ms(10), 0)
    assert limiter.take_run(64, 300, 0) == 3
    assert limiter.credit == 100
    assert limiter.take_run(64, 100, 0) == 1
    assert limiter.take_run(64, 0, 0) == 64


def test_no_limit() -> None:
    limiter = RateLimiter(0, ms(10), 0)
    assert limiter.take_run(1000, 65_535, 0) == 1000
    assert limiter.take(10**12, 0)
    assert limiter.hold("me", 10**12, ms(3)) == ms(3)
    limiter.charge(10**12, 0)
    assert limiter.take(1, 0)


def test_a_charge_takes_what_there_is() -> None:
    limiter = RateLimiter(800_000, ms(10), 0)
    limiter.charge(600, 0)
    assert not limiter.take(500, 1)
    limiter.charge(600, 2)
    assert limiter.credit == 0
    assert limiter.take(1000, ms(10))
    limiter.charge(600, ms(20))
    assert limiter.credit == 400


def test_the_first_in_line_goes_first() -> None:
    limiter = RateLimiter(800_000, ms(10), 0)
    assert limiter.take_run(9, 100, 0, "a") == 9
    assert limiter.take_run(9, 200, 1, "a") == 0
    assert limiter.hold("a", 200, 1) == ms(10)
    assert limiter.hold("b", 100, 2) == ms(10)
    assert not limiter.take(100, 3, "b")
    assert not limiter.take(100, 3)
    assert not limiter.take(100, ms(10), "b")
    assert limiter.hold("b", 100, ms(10)) == ms(11)
    assert limiter.take_run(3, 200, ms(10), "a") == 3
    assert limiter.hold("a", 200, ms(10)) > ms(10)
    assert not limiter.take(200, ms(10), "a")
    assert limiter.take(100, ms(11), "b")
    assert limiter.take(200, ms(11), "a")


@pytest.mark.parametrize(("need", "at_ms"), [(999, 6), (1000, 6), (1001, 10)])
def test_who_is_behind_one_that_can_go_tries_again_soon(need: int, at_ms: int) -> None:
    limiter = RateLimiter(800_000, ms(10), 0)
    limiter.hold("first", need, 0)
    assert limiter.hold("second", 100, ms(5)) == ms(at_ms)


def test_who_waits_is_served_at_the_next_refresh_if_that_comes_sooner() -> None:
    limiter = RateLimiter(800_000, ms(10), 0)
    assert limiter.hold("first", 1000, ms(9)) == ms(9), "it may go at once"
    assert limiter.hold("second", 100, ms(9) + 500_000) == ms(10)
    assert limiter.take(1000, ms(9), "first")
    assert limiter.hold("second", 100, ms(10)) == ms(10)
    assert limiter.credit == 1000, "a new interval has begun"


def test_a_place_in_the_line_can_be_changed_and_given_up() -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    assert limiter.hold("first", 1400, 0) == ms(20)
    assert limiter.hold("second", 100, 0) == ms(10)
    assert limiter.hold("first", 500, 0) == 0
    assert limiter.hold("second", 100, 0) == ms(1), "the first wants less now"
    limiter.release("first")
    limiter.release("nobody")
    assert limiter.take(100, 0, "second")
    assert limiter.take(400, 0, "anybody"), "nobody is left in the line"


def test_what_a_full_quota_takes_does_not_accumulate() -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    limiter.charge(400, 0)
    assert limiter.hold("me", 500, 0) == ms(10)
    assert (limiter.next_refresh(ms(10)), limiter.credit) == (ms(20), 500)
    limiter.hold("me", 501, ms(10))
    assert (limiter.next_refresh(ms(20)), limiter.credit) == (ms(30), 1000)
    assert (limiter.next_refresh(ms(30)), limiter.credit) == (ms(40), 1000), "it suffices"


@pytest.mark.parametrize(("need", "again_ms", "lost_ms"), [(1400, 0, 1020), (500, 0, 1010), (1400, 500, 1510)])
def test_a_place_is_kept_for_a_second(need: int, again_ms: int, lost_ms: int) -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    for at in (0, again_ms):
        for holder in ("gone", "gone, too"):
            limiter.hold(holder, need, ms(at))
    assert not limiter.take(100, ms(lost_ms) - 1, "other")
    assert limiter.take(100, ms(lost_ms), "other")


def test_a_small_datagram_does_not_starve_one_that_accumulates() -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    assert limiter.hold("big", 1400, 0) == ms(20)
    for t in range(20):
        assert not limiter.take(100, ms(t), "small")
    assert limiter.take(1400, ms(20), "big")
    assert limiter.take(100, ms(20), "small")


def test_late_accumulation_does_not_save_up() -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    limiter.hold("big", 1400, 0)
    assert limiter.take(1400, ms(900), "big")
    assert limiter.credit == 100


def test_a_place_that_is_not_used_is_lost() -> None:
    limiter = RateLimiter(400_000, ms(10), 0)
    limiter.hold("gone", 1400, 0)
    assert not limiter.take(100, ms(500), "other")
    assert limiter.take(100, s(3), "other")


@given(
    bps=st.integers(8_000, 10_000_000),
    interval_ms=st.sampled_from([5, 10, 20, 50, 100]),
    asks=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 70), st.integers(1, 9000)), max_size=60),
)
def test_the_rate_is_never_exceeded(bps: int, interval_ms: int, asks: list[tuple[int, int, int]]) -> None:
    limiter = RateLimiter(bps, ms(interval_ms), 0)
    now, sent = 0, 0
    for wait_ms, count, size in asks:
        now += ms(wait_ms)
        sent += limiter.take_run(count, size, now, "me") * size
        if not sent:
            assert limiter.hold("me", size, now) > now or size <= limiter.credit
        assert limiter.credit >= 0
        assert sent <= limiter.quota * (now // ms(interval_ms) + 1)
