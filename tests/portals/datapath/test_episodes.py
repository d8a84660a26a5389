"""A state that comes and goes quickly is logged from both ends, and seldom."""

from __future__ import annotations

from collections.abc import Mapping

from dro.clock import ms, s
from portals.datapath.episodes import INTERVAL_NS, LONG_NS, Episodes


class Log:
    """The lines of one kind of episode: `began` has the fields of each first line."""

    def __init__(self) -> None:
        self.began: list[Mapping[str, object]] = []
        self.ended = 0
        self.episodes = Episodes(self.began.append, self._end)

    def _end(self) -> None:
        self.ended += 1


def test_an_end_without_a_begin_is_not_worth_a_line() -> None:
    log = Log()
    log.episodes.on_end()
    assert (log.began, log.ended) == ([], 0)


def test_a_single_episode_is_logged_from_both_ends_and_once() -> None:
    log = Log()
    for now in (0, ms(1), s(20)):
        log.episodes.on_begin(now)
    assert (log.began, log.ended) == ([{}], 0)
    log.episodes.on_end()
    log.episodes.on_end()
    assert (log.began, log.ended) == ([{}], 1)


def test_a_state_that_comes_and_goes_all_the_time_does_not_fill_the_log() -> None:
    log = Log()
    for n in range(2 * INTERVAL_NS // ms(10) + 1):
        log.episodes.on_begin(n * ms(10))
        log.episodes.on_end()
    assert log.began == [{}, {"suppressed": 999}, {"suppressed": 999}]
    assert log.ended == 3


def test_an_episode_that_lasts_is_logged_even_soon_after_another() -> None:
    log = Log()
    log.episodes.on_begin(0)
    log.episodes.on_end()
    log.episodes.on_begin(ms(5))
    assert (len(log.began), log.ended) == (1, 1)
    log.episodes.on_begin(ms(5) + LONG_NS - 1)
    assert (len(log.began), log.ended) == (1, 1)
    log.episodes.on_begin(ms(5) + LONG_NS)
    log.episodes.on_end()
    assert (len(log.began), log.ended) == (2, 2)
