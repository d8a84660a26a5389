"""Log lines: one write each, not to be forged, and limited where a stranger can cause them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator

import pytest

from dro.clock import s
from dro.log import MAX_LINE, DescriptorHandler, LimitedLogger, LineFormatter, ToolFormatter, printable, rename, set_up


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
    handler = DescriptorHandler(pipe[1])
    handler.setFormatter(LineFormatter("E1", utc=True))
    logger.addHandler(handler)
    return logger


def lines(pipe: tuple[int, int]) -> list[str]:
    return os.read(pipe[0], 1 << 16).decode().splitlines()


def test_a_line_has_time_severity_process_text_and_fields(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.info("proxy source created", extra={"topic": b"A B", "otid": "00ff", "n": 3, "empty": ""})
    (line,) = lines(pipe)
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO E1: proxy source created topic="A B" otid=00ff n=3 empty=""', line
    )


def test_what_came_from_the_network_cannot_forge_a_line(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.warning("bad\ntext", extra={"topic": b"x\n2026 INFO tnwgd: \x1b[31mfine\xff"})
    (line,) = lines(pipe)
    assert r"bad\x0atext" in line
    assert r"x\x0a2026 INFO tnwgd: \x1b[31mfine\xff" in line


def test_a_tool_says_its_name_and_the_fields() -> None:
    record = logging.makeLogRecord({"msg": "dropped\n", "levelname": "WARNING", "error": "tir.topic: no NUL", "n": 2})
    assert ToolFormatter("lbmrcv").format(record) == r'lbmrcv: WARNING: dropped\x0a error="tir.topic: no NUL" n=2'


def test_local_time_carries_its_offset(pipe: tuple[int, int]) -> None:
    record = logging.makeLogRecord({"msg": "x", "levelname": "INFO"})
    assert re.match(r".{23}[+-]\d{4} INFO P: x$", LineFormatter("P").format(record))


def test_a_traceback_stays_with_its_line(log: logging.Logger, pipe: tuple[int, int]) -> None:
    try:
        raise RuntimeError("why")
    except RuntimeError:
        log.exception("worker failed")
    got = lines(pipe)
    assert got[0].endswith("ERROR E1: worker failed")
    assert got[-1] == "    RuntimeError: why"
    assert all(line.startswith("    ") for line in got[1:])


def test_lines_are_bounded_and_bad_arguments_do_no_harm(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.info("x" * 100_000)
    assert len(lines(pipe)[0]) == MAX_LINE
    os.close(os.dup(pipe[1]))
    logging.raiseExceptions, before = False, logging.raiseExceptions
    try:
        log.info("%d", "no number")
    finally:
        logging.raiseExceptions = before


def test_a_reader_that_is_gone_does_not_stop_the_process(log: logging.Logger) -> None:
    ends = os.pipe()
    os.close(ends[0])
    logger = logging.Logger("t")
    logger.addHandler(DescriptorHandler(ends[1]))
    logger.error("x")
    os.close(ends[1])
    logger.error("x")


def test_printable_leaves_letters_alone() -> None:
    assert printable("Grüße €") == "Grüße €"
    assert printable("\x7f\x9b\u2028") == r"\x7f\x9b\x2028"


def test_set_up_and_rename(pipe: tuple[int, int]) -> None:
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    try:
        set_up("one", fd=pipe[1], utc=True).info("first")
        rename("two").info("second")
        logging.getLogger("dro").debug("hidden")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.raiseExceptions = raising
    assert [line[24:] for line in lines(pipe)] == [" INFO one: first", " INFO two: second"]


def test_a_limited_key_has_its_share_and_tells_what_was_left_out(log: logging.Logger, pipe: tuple[int, int]) -> None:
    now = 0
    limited = LimitedLogger(log, lambda: now, burst=2, interval_ns=s(10)).limited
    assert [limited("a", "bad packet") for _ in range(5)] == [True, True, False, False, False]
    assert limited("b", "other")
    now = s(9)
    assert not limited("a", "bad packet")
    now = s(10)
    assert limited("a", "bad packet", extra={"from": "10.0.0.1"}, level=logging.ERROR)
    got = lines(pipe)
    assert len(got) == 4
    assert got[3].endswith("ERROR E1: bad packet from=10.0.0.1 suppressed=4")
    now = s(40)
    limited("a", "bad packet")
    assert "suppressed" not in lines(pipe)[0]


def test_keys_are_bounded(log: logging.Logger) -> None:
    limited = LimitedLogger(log, lambda: 0, burst=1, max_keys=2).limited
    log.disabled = True
    assert limited(1, "x")
    assert limited(2, "x")
    assert not limited(1, "x")
    assert limited(3, "x")  # 2 is forgotten, 1 was used last
    assert not limited(1, "x")
    assert limited(2, "x")
