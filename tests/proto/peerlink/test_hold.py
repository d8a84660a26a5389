"""How long a link that was lost is held."""

from __future__ import annotations

from dro.clock import ms, s
from dro.proto.peerlink.hold import HOLD_NS, LOOK_NS, QUIET_NS, LinkHold


def test_nothing_is_held_of_a_first_link() -> None:
    hold = LinkHold()
    hold.on_up(0, 0)
    assert (hold.is_on, hold.next_deadline()) == (False, None)
    assert not hold.on_timer(s(100), 0)


def test_a_link_that_does_not_come_back_is_held_to_the_limit() -> None:
    hold = LinkHold()
    hold.on_down(s(1))
    assert hold.next_deadline() == s(1) + HOLD_NS
    assert not hold.on_timer(s(1) + HOLD_NS - 1, 3)
    assert hold.on_timer(s(1) + HOLD_NS, 3)
    assert (hold.is_on, hold.next_deadline()) == (False, None)


def test_a_link_that_is_back_is_over_when_all_is_confirmed() -> None:
    hold = LinkHold()
    hold.on_down(0)
    hold.on_up(s(6), 3)
    assert hold.next_deadline() == s(6) + LOOK_NS
    assert not hold.on_timer(s(6) + LOOK_NS, 1)
    assert hold.on_timer(s(6) + 2 * LOOK_NS, 0)
    assert not hold.is_on


def test_what_is_not_confirmed_goes_once_nothing_more_is_confirmed() -> None:
    """An exchange may last longer than the limit for a link that is down."""
    hold, now_ns, left = LinkHold(), s(7), 1000
    hold.on_down(0)
    hold.on_up(now_ns, left)
    while left > 100:
        now_ns, left = now_ns + ms(500), left - 10
        assert not hold.on_timer(now_ns, left)
    assert not hold.on_timer(now_ns + QUIET_NS - 1, left)
    assert hold.on_timer(now_ns + QUIET_NS, left)


def test_a_link_that_flaps_is_not_held_for_longer() -> None:
    hold = LinkHold()
    hold.on_down(0)
    hold.on_up(s(5), 3)
    hold.on_down(s(6))
    assert hold.next_deadline() == HOLD_NS
    assert hold.on_timer(HOLD_NS, 3)
    hold.on_down(s(20))
    assert hold.next_deadline() == s(20) + HOLD_NS
