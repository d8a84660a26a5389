"""Bounds on the log: repeats collapse to first, count and last; a stranger's lines have a share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

import dro.log.setup  # noqa: F401  it registers what happens after a fork
from dro.clock import s
from dro.log.events import LogEvent
from dro.log.file import Rolls
from dro.log.handler import LogHandler, Settings
from dro.log.limits import EVENTS_BURST, SAME_BURST, SAME_KEYS, LimitedLogger, LineVerdict, Repeats

WRITE, MARK, COUNT = LineVerdict.WRITE, LineVerdict.MARK, LineVerdict.COUNT
BAD = LogEvent.SOURCE_HOPS


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.fixture
def log(pipe: tuple[int, int]) -> logging.Logger:
    """A logger of its own: the root belongs to the test runner."""
    logger = logging.Logger("t")
    logger.addHandler(LogHandler("E1", Settings(console_fd=pipe[1], utc=True), Rolls(), os.getpid()))
    return logger


def lines(pipe: tuple[int, int]) -> list[str]:
    return [line[29:].removesuffix(" process=E1") for line in os.read(pipe[0], 1 << 16).decode().splitlines()]


def test_a_limited_key_has_its_share_and_tells_what_was_left_out(log: logging.Logger, pipe: tuple[int, int]) -> None:
    now = 0
    limiter = LimitedLogger(log, lambda: now, burst=2, interval_ns=s(10))
    limited = limiter.event
    assert [limited(BAD, {"topic": str(i)}) for i in range(5)] == [True, True, False, False, False]
    assert limited(LogEvent.QUERY_PATTERN_BAD, {"pattern": "p"})
    now = s(4)
    assert not limited(BAD, {"topic": "t"})
    limiter.report()
    now = s(5)
    assert limited(LogEvent.PROXY_SOURCE_REFUSED, {"topic": "t", "error": "e"}, key=BAD)
    assert not limited(BAD, {"topic": "t"})
    now = s(10)
    limiter.report()
    limiter.report()
    assert lines(pipe) == [
        "[warning] source ignored: too many hops topic=0",
        "[warning] THROTTLED MSG: source ignored: too many hops topic=1",
        "[warning] wildcard query ignored: bad pattern pattern=p",
        "[error] THROTTLED MSG: Gwd-6361-38: proxy source cannot be created topic=t error=e",
        "[warning] ...previous THROTTLED MSG repeated 5 times in 10 seconds last_s_ago=5.0"
        ' line="source ignored: too many hops"',
    ]
    now = s(40)
    assert [limited(BAD, {"topic": f"later {i}"}) for i in range(3)] == [True, True, False]
    limiter.report()
    assert len(lines(pipe)) == 2
    limiter.report(at_once=True)
    assert lines(pipe)[0].startswith("[warning] ...previous THROTTLED MSG repeated 1 times in 1 seconds")


def test_what_comes_once_a_day_is_reported_once_a_day(log: logging.Logger, pipe: tuple[int, int]) -> None:
    """The rest was reported every ten seconds, so a warning for once a day had 8,640 lines beside it."""
    now = 0
    limiter = LimitedLogger(log, lambda: now, burst=1, interval_ns=s(86_400))
    for minutes in range(0, 24 * 60, 10):
        now = s(60 * minutes)
        limiter.event(BAD, {"topic": "t"})
        limiter.report()
    assert lines(pipe) == ["[warning] THROTTLED MSG: source ignored: too many hops topic=t"]
    now = s(87_000)
    limiter.report()
    assert [line.split(" in ")[0] for line in lines(pipe)] == ["[warning] ...previous THROTTLED MSG repeated 143 times"]


def test_a_forked_process_tells_nothing_of_what_its_parent_left_out(log: logging.Logger, pipe: tuple[int, int]) -> None:
    limiter = LimitedLogger(log, lambda: 0, burst=1, interval_ns=s(10))
    assert [limiter.event(BAD, {"topic": "t"}) for _ in range(3)] == [True, False, False]
    lines(pipe)
    pid = os.fork()
    if pid == 0:
        limiter.report(at_once=True)
        limiter.event(BAD, {"topic": "of the child"})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    limiter.report(at_once=True)
    [child, parent] = lines(pipe)
    assert child == '[warning] THROTTLED MSG: source ignored: too many hops topic="of the child"'
    assert "repeated 2 times" in parent


def test_keys_are_bounded_and_a_forgotten_one_tells_its_count(log: logging.Logger, pipe: tuple[int, int]) -> None:
    limiter = LimitedLogger(log, lambda: 0, burst=1, max_keys=2)

    def limited(key: int) -> bool:
        return limiter.event(BAD if key == 2 else LogEvent.SOURCE_OTHER_OTID, {"topic": "t"}, key=key)

    assert limited(1)
    assert limited(2)
    assert not limited(2)
    assert not limited(1)
    assert limited(3)  # 2 is forgotten, 1 was used last
    assert not limited(1)
    assert limited(2)
    assert [line for line in lines(pipe) if "previous" in line] == [
        "[warning] ...previous THROTTLED MSG repeated 1 times in 1 seconds last_s_ago=0.0"
        ' line="source ignored: too many hops"',
    ]


def test_the_same_line_at_once_again_is_counted() -> None:
    same = Repeats()
    assert [same.on_line(20, "a", s(i)) for i in range(5)] == [WRITE, MARK, COUNT, COUNT, COUNT]
    assert same.on_line(20, "b", s(5)) == WRITE
    assert same.on_line(30, "a", s(5)) == WRITE  # another severity is another line
    assert same.on_line(20, "a", s(6)) == COUNT
    assert same.take_reports(s(10)) == []
    (report,) = same.take_reports(s(12))
    assert (report.level, report.body, report.last_ago_ns) == (20, "a", s(6))
    assert report.repeated == (4, 11)


def test_while_it_goes_on_it_is_told_again_and_again_and_afterwards_forgotten() -> None:
    same = Repeats()
    verdicts, reports = [], []
    for i in range(100):
        verdicts.append(same.on_line(20, "a", s(i)))
        reports += same.take_reports(s(i))
    reports += same.take_reports(s(100), at_once=True)
    assert verdicts == [WRITE, MARK] + 98 * [COUNT]
    counts = [report.repeated[0] for report in reports]
    assert sum(counts) == 98
    assert 9 <= len(counts) <= 11
    same.take_reports(s(200))
    assert same.on_line(20, "a", s(200)) == WRITE


def test_lines_that_alternate_are_seen_a_few_times() -> None:
    same = Repeats()
    verdicts = [same.on_line(20, body, s(1)) for _ in range(20) for body in ("up", "down")]
    assert verdicts[: 2 * SAME_BURST] == 2 * SAME_BURST * [WRITE]
    assert verdicts[2 * SAME_BURST : 2 * SAME_BURST + 2] == [MARK, MARK]
    assert set(verdicts[2 * SAME_BURST + 2 :]) == {COUNT}


def test_a_line_that_comes_seldom_is_always_written() -> None:
    same = Repeats()
    verdicts = []
    for i in range(20):
        same.on_line(20, f"other {i}", s(11 * i))
        verdicts.append(same.on_line(20, "a", s(11 * i)))
    assert verdicts == 20 * [WRITE]


def test_the_memory_of_repeats_is_bounded_and_loses_no_count() -> None:
    same = Repeats()
    for i in range(4 * SAME_KEYS):
        for _ in range(3):
            same.on_line(20, str(i), 0)
    assert sum(report.repeated[0] for report in same.take_reports(0, at_once=True)) == 2 * SAME_KEYS
    for i in range(4 * SAME_KEYS):
        same.on_line(20, str(i), 0)
    assert same.take_reports(0, at_once=True) == []


def test_events_of_strangers_have_a_share_by_kind(log: logging.Logger, pipe: tuple[int, int]) -> None:
    now = 0
    events = LimitedLogger.of_events(log, lambda: now)
    os.set_blocking(pipe[0], False)
    told = [events.event(LogEvent.PROXY_SOURCE_CREATED, {"topic": str(i), "otid": ""}) for i in range(5000)]
    assert told == [True] * EVENTS_BURST + [False] * (5000 - EVENTS_BURST)
    assert events.event(LogEvent.PROXY_SOURCE_DELETED, {"topic": "x", "otid": ""})
    now = s(60)
    assert sum(events.event(LogEvent.PROXY_SOURCE_CREATED, {"topic": str(i), "otid": ""}) for i in range(5000)) == 12
