"""Restart delays."""

from __future__ import annotations

from dro.clock import ms, s
from supervisor.parent.backoff import CLEAN_EXIT_DELAY_NS, Backoff
from supervisor.parent.processes import cause_of


def test_at_once_then_doubling_up_to_five_seconds() -> None:
    backoff = Backoff()
    delays = []
    for n in range(10):
        backoff.on_start(s(n))
        delays.append(backoff.on_death(s(n) + ms(999)))
    assert delays == [0, *(ms(100 << n) for n in range(6)), s(5), s(5), s(5)]


def test_a_long_life_is_forgiven() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.on_start(0)
        backoff.on_death(1)
    backoff.on_start(s(100))
    assert backoff.on_death(s(101)) == 0
    backoff.on_start(s(101))
    assert backoff.on_death(s(101) + ms(999)) == ms(100)


def test_an_orderly_end_is_given_a_moment() -> None:
    backoff = Backoff()
    backoff.on_start(0)
    assert backoff.on_death(1, clean=True) == CLEAN_EXIT_DELAY_NS
    backoff.on_start(0)
    assert backoff.on_death(1, clean=True) == ms(100)
    backoff.on_start(0)
    assert backoff.on_death(1, clean=True) == ms(200)


def test_causes_in_words() -> None:
    assert (cause_of(0), cause_of(0, is_ordered=True)) == ("ended by itself", "ended by order")
    assert cause_of(9, is_ordered=True) == "killed by SIGKILL"
    assert cause_of(3 << 8) == "exit status 3"
    assert cause_of(9) == "killed by SIGKILL"
    assert cause_of(11 | 0x80) == "killed by SIGSEGV"
    assert cause_of(40) == "killed by signal 40"


def test_delays_are_spread_by_up_to_a_quarter() -> None:
    backoff = Backoff(lambda: 0.5)
    backoff.on_start(0)
    assert backoff.on_death(ms(1)) == 0
    assert backoff.on_death(ms(2)) == ms(100) + ms(100) // 8
