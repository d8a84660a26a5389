"""What the log says about the queue of a portal."""

from __future__ import annotations

import pytest

from dro.clock import ms, s
from portals.endpoint.episodes import INTERVAL_NS, LONG_NS, Episodes

BEGAN, ENDED = "began enqueueing data", "completed flushing queue"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


def test_an_empty_queue_is_not_worth_a_line(told: pytest.LogCaptureFixture) -> None:
    Episodes().on_empty()
    assert told.messages == []


def test_a_single_episode_is_told_from_both_ends_and_once(told: pytest.LogCaptureFixture) -> None:
    episodes = Episodes()
    for now in (0, ms(1), s(20)):
        episodes.on_waiting(now)
    episodes.on_empty()
    episodes.on_empty()
    assert told.messages == [BEGAN, ENDED]


def test_a_rate_limit_that_fills_the_queue_again_and_again_does_not_fill_the_log(
    told: pytest.LogCaptureFixture,
) -> None:
    episodes = Episodes()
    for n in range(2 * INTERVAL_NS // ms(10) + 1):
        episodes.on_waiting(n * ms(10))
        episodes.on_empty()
    assert told.messages == [BEGAN, ENDED] * 3
    assert [getattr(r, "suppressed", None) for r in told.records if r.message == BEGAN] == [None, 999, 999]


def test_an_episode_that_lasts_is_told_even_soon_after_another(told: pytest.LogCaptureFixture) -> None:
    episodes = Episodes()
    episodes.on_waiting(0)
    episodes.on_empty()
    episodes.on_waiting(ms(5))
    assert told.messages == [BEGAN, ENDED]
    episodes.on_waiting(ms(5) + LONG_NS)
    episodes.on_empty()
    assert told.messages == [BEGAN, ENDED] * 2
