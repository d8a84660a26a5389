"""When a portal that was restarted knows its domain again."""

from __future__ import annotations

from dro.clock import s
from portals.decisions.relearning import RELEARN_LIMIT_NS, Relearning


def test_it_is_over_when_almost_nothing_more_comes() -> None:
    relearning = Relearning(0)
    assert not relearning.is_over(3000, s(3))
    assert not relearning.is_over(6000, s(6))
    assert not relearning.is_over(6061, s(9)), "more than a hundredth"
    assert not relearning.is_over(6121, s(12)), "quiet once"
    assert not relearning.is_over(6300, s(15))
    assert not relearning.is_over(6362, s(18))
    assert relearning.is_over(6362, s(21))


def test_nothing_at_all_and_less_than_before_are_quiet_as_well() -> None:
    assert [(relearning := Relearning(0)).is_over(0, s(3)), relearning.is_over(0, s(6))] == [False, True]
    relearning = Relearning(0)
    assert not relearning.is_over(1, s(3))
    assert not relearning.is_over(0, s(6))
    assert relearning.is_over(0, s(9))


def test_a_domain_that_never_comes_to_rest_is_known_at_the_limit() -> None:
    relearning = Relearning(s(1))
    known = 0
    for now_ns in range(s(4), s(1) + RELEARN_LIMIT_NS, s(3)):
        known += 1 + known // 50
        assert not relearning.is_over(known, now_ns)
    assert relearning.is_over(2 * known, s(1) + RELEARN_LIMIT_NS)
