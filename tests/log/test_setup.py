"""Log lines: the public form, not to be forged; the life of a process's log."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.errors import ResourceError
from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.log.file import Rolls
from dro.log.handler import LogHandler, Settings
from dro.log.lines import (
    MAX_LINE,
    MAX_TRACE_LINES,
    NOTICE,
    SEVERITIES,
    Clockface,
    JsonFormatter,
    TextFormatter,
    plain,
    printable,
    severity_of,
)
from dro.log.setup import ToolFormatter

PUBLIC = re.compile(
    r"^\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\] \[(?P<sev>[A-Za-z]+)\] (?P<thr>THROTTLED MSG: )?"
    r"(?:(?P<id>[A-Za-z]+-\d+-\d+): )?(?P<text>.*)$"
)
"""For readers; source: monitoring reference, line format."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def logger_to(settings: Settings) -> logging.Logger:
    """A logger of its own: the root belongs to the test runner."""
    logger = logging.Logger("t")
    logger.addHandler(LogHandler("E1", settings, Rolls(), os.getpid()))
    return logger


@pytest.fixture
def log(pipe: tuple[int, int]) -> logging.Logger:
    return logger_to(Settings(console_fd=pipe[1], utc=True))


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    root.handlers[:] = []
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


def lines(pipe: tuple[int, int]) -> list[str]:
    return os.read(pipe[0], 1 << 16).decode().splitlines()


def test_a_line_has_time_severity_text_fields_and_process(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.info("proxy source created", extra={"topic": b"A B", "otid": "00ff", "n": 3, "empty": "", "ids": [1, 2]})
    (line,) = lines(pipe)
    text = 'proxy source created topic="A B" otid=00ff n=3 empty="" ids=1,2 process=E1'
    assert re.fullmatch(rf"\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{6}}\] \[information\] {re.escape(text)}", line)
    found = PUBLIC.match(line)
    assert found is not None
    assert (found["id"], found["text"]) == (None, text)


def test_a_public_event_has_its_id_and_words(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.info(LogEvent.ROUTES_CALCULATED, extra={"took_s": "0.000095", "route_version": "1.1", "routes": 2})
    log.info(LogEvent.ENQUEUEING_BEGAN, extra={"suppressed": 3})
    log.info(LogEvent.STARTING, extra={"dro": "A"})
    found = [PUBLIC.match(line) for line in lines(pipe)]
    assert [(m["sev"], m["id"], m["text"]) for m in found if m] == [
        (
            "information",
            "Gwd-6361-74",
            "route recalculation took 0.000095 seconds route_version=1.1 routes=2 process=E1",
        ),
        ("information", "Gwd-6945-1", "Portal [E1] began enqueueing data suppressed=3 process=E1"),
        ("information", "Gwd-7136-1", "starting dro=A process=E1"),
    ]


def test_an_event_without_the_fields_of_its_shape_keeps_our_words(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.info(LogEvent.ROUTES_CALCULATED, extra={"routes": 2})
    assert lines(pipe)[0].endswith("] Gwd-6361-74: routes calculated routes=2 process=E1")


def test_what_came_from_the_network_cannot_forge_a_line(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.warning("bad\ntext", extra={"topic": b"x\n2026 INFO tnwgd: \x1b[31mfine\xff"})
    (line,) = lines(pipe)
    assert r"bad\x0atext" in line
    assert r"x\x0a2026 INFO tnwgd: \x1b[31mfine\\xff" in line


def test_nor_can_it_forge_a_field(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.warning("bad", extra={"topic": b'x" process="tnwgd', "other": b'q"', "pattern": rb"^a\.b"})
    (line,) = lines(pipe)
    assert line.endswith(r'bad topic="x\" process=\"tnwgd" other="q\"" pattern=^a\.b process=E1')


def test_a_tool_says_its_name_and_the_fields() -> None:
    record = logging.makeLogRecord({"msg": "dropped\n", "levelname": "WARNING", "error": "tir.topic: no NUL", "n": 2})
    assert ToolFormatter("lbmrcv").format(record) == r'lbmrcv: WARNING: dropped\x0a error="tir.topic: no NUL" n=2'


def test_the_eight_severities() -> None:
    public = ["debug", "information", "notice", "warning", "error", "critical", "alert", "emergency"]
    assert list(SEVERITIES.values()) == public
    assert [severity_of(level) for level in sorted(SEVERITIES)] == public
    assert [severity_of(level) for level in (1, NOTICE + 1, 1000)] == ["debug", "notice", "emergency"]


def test_times_are_of_the_zone_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    import time

    time.tzset()
    try:
        local, utc = Clockface(utc=False), Clockface(utc=True)
        at = 1774745999.25  # 2026-03-29 00:59:59 in Greenwich, a second before summer comes
        assert local.at(at) == 250_000
        assert (local.text, local.zone, local.day) == ("2026-03-29 01:59:59", "+01:00", 20260329)
        local.at(at + 1)
        assert (local.text, local.zone) == ("2026-03-29 03:00:00", "+02:00")
        utc.at(at)
        assert (utc.text, utc.zone) == ("2026-03-29 00:59:59", "Z")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_traceback_stays_with_its_line(log: logging.Logger, pipe: tuple[int, int]) -> None:
    try:
        raise RuntimeError("why")
    except RuntimeError:
        log.exception("worker failed")
    got = lines(pipe)
    assert got[0].endswith("[error] worker failed process=E1")
    assert got[-1] == "    RuntimeError: why"
    assert all(line.startswith("    ") for line in got[1:])


def test_lines_are_bounded_and_bad_arguments_do_no_harm(log: logging.Logger, pipe: tuple[int, int]) -> None:
    log.info("x" * 100_000)
    (line,) = lines(pipe)
    assert len(line) < MAX_LINE + 100
    assert line.endswith("x... process=E1")
    log.info("y", extra={"data": "z" * 100_000})
    assert len(lines(pipe)[0]) < 5000
    log.info("%d", "no number")
    assert "[information] log line cannot be made text='%d'" in lines(pipe)[0]


def test_a_long_trace_loses_its_middle() -> None:
    try:
        raise RuntimeError("\n".join(map(str, range(1000))))
    except RuntimeError as e:
        record = logging.makeLogRecord({"msg": "x", "exc_info": (type(e), e, e.__traceback__)})
    got = TextFormatter("P").body(record).splitlines()
    assert len(got) == MAX_TRACE_LINES + 2
    assert got[-1] == "    999"


def test_json_lines_are_objects(pipe: tuple[int, int]) -> None:
    log = logger_to(Settings(console_fd=pipe[1], utc=True, json=True))
    log.info(LogEvent.ROUTES_CALCULATED, extra={"took_s": "0.1", "routes": 2, "ids": (1, b"\xff"), "x": float("nan")})
    try:
        raise ValueError("no\nline")
    except ValueError:
        log.exception('a "quoted"\nevent')
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines(pipe))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first.pop("time"))
    assert first == {
        "severity": "information",
        "id": "Gwd-6361-74",
        "process": "E1",
        "text": "route recalculation took 0.1 seconds",
        "fields": {"took_s": "0.1", "routes": 2, "ids": [1, "\\xff"], "x": "nan"},
    }
    assert (second["id"], second["severity"], second["text"]) == (None, "error", r'a "quoted"\x0aevent')
    assert second["trace"][-1] == "line"


def test_json_stays_json_when_it_is_too_long() -> None:
    record = logging.makeLogRecord({"msg": "y" * 9000} | {f"f{i}": "z" * 9000 for i in range(9)})
    lines = JsonFormatter("P")
    made = json.loads(lines.line(0.5, logging.INFO, lines.body(record)))
    assert made["fields"] == {"left_out": ",".join(f"f{i}" for i in range(9))}


def test_printable_leaves_letters_alone() -> None:
    assert printable("Grüße €") == "Grüße €"
    assert printable("\x7f\x9b\u2028") == r"\x7f\x9b\x2028"
    assert plain(os.fsdecode(b"\xfffile")).encode("utf-8", "backslashreplace") == b"\\udcfffile"


def test_set_up_and_rename(root: logging.Logger, pipe: tuple[int, int]) -> None:
    logs.set_up("one", Settings(console_fd=pipe[1], utc=True), greets=True).info("first")
    logs.rename("two").info("second")
    logging.getLogger("dro").debug("hidden")
    got = lines(pipe)
    assert got[0] == "Daemon log entity unspecified. Defaulting to console "
    assert [line[28:] for line in got[1:]] == [" [information] first process=one", " [information] second process=two"]


def test_what_is_logged_before_the_settings_are_known_is_not_lost(
    root: logging.Logger, pipe: tuple[int, int], tmp_path: Path
) -> None:
    logs.hold().warning("early")
    logs.set_up("P", Settings("file", str(tmp_path / "log"))).info("late")
    assert [line[28:] for line in (tmp_path / "log").read_text().splitlines()] == [
        " [warning] early process=P",
        " [information] late process=P",
    ]


def test_settings_change_while_it_runs(root: logging.Logger, pipe: tuple[int, int], tmp_path: Path) -> None:
    console = Settings(console_fd=pipe[1])
    log = logs.set_up("P", console)
    log.info("one")
    logs.apply(Settings("file", str(tmp_path / "log"), level=logging.DEBUG, console_fd=pipe[1]))
    log.debug("two")
    with pytest.raises(ResourceError, match=r"No such file or directory.*make its directory"):
        logs.apply(Settings("file", str(tmp_path / "none" / "log")))
    log.info("three")
    logs.apply(console)
    log.debug("hidden")
    log.info("four")
    assert [line[28:].split()[1] for line in lines(pipe)] == ["one", "four"]
    assert [line[28:].split()[1] for line in (tmp_path / "log").read_text().splitlines()] == ["two", "three"]
    assert logs.settings() == console


def test_the_last_words_of_a_process(root: logging.Logger, pipe: tuple[int, int]) -> None:
    log = logs.set_up("P", Settings(console_fd=pipe[1]))
    for _ in range(7):
        log.info("again")
    logs.finish()
    got = [line[29:] for line in lines(pipe) if "again" in line]
    assert got[:2] == ["[information] again process=P", "[information] THROTTLED MSG: again process=P"]
    count = r"\[information\] \.\.\.previous THROTTLED MSG repeated 5 times in 1 seconds"
    assert re.fullmatch(rf"{count} last_s_ago=0\.\d line=again process=P", got[2])
    assert len(got) == 3


@pytest.mark.parametrize("in_json", [False, True])
def test_a_count_names_the_line_in_question(root: logging.Logger, pipe: tuple[int, int], in_json: bool) -> None:
    log = logs.set_up("P", Settings(console_fd=pipe[1], json=in_json))
    for _ in range(3):
        log.info('"again" and again', extra={"n": 1})
    logs.finish()
    (line,) = [line for line in lines(pipe) if "previous" in line and "again" in line]
    if in_json:
        assert json.loads(line)["fields"]["line"] == '"again" and again'
    else:
        assert line.endswith(r'line="\"again\" and again n=1" process=P')
