"""Formats of log lines: the public text form, JSON, and syslog.

    [2026-11-21 19:30:00.123456] [information] Gwd-6945-1: Portal [E1] began enqueueing data process=E1

The text is that of the public catalogue (`dro.log.events`) where it has the event, else our own; fields follow as
`name=value`, and the name of the writing process is last. Control characters are escaped and values quoted: input from
the network cannot forge a line or a field.

A formatter builds a line in two steps: `body` is everything that distinguishes events, `line` adds time and severity,
so that repeated bodies can be recognised in between.
"""

from __future__ import annotations

import json
import logging
import os
import time
from math import isfinite
from typing import Final, Protocol

from dro.log.events import LogEvent

NOTICE: Final = 25  # between the levels of the standard library
ALERT: Final = 55
EMERGENCY: Final = 60

MAX_LINE: Final = 16_384  # characters of a line without its trace
MAX_VALUE: Final = 4_096  # characters of one field
MAX_TRACE_LINES: Final = 200
THROTTLED: Final = "THROTTLED MSG: "
TAG: Final = "tnwgd"
"""Of lines for syslog."""

SEVERITIES: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "information",
    NOTICE: "notice",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
    ALERT: "alert",
    EMERGENCY: "emergency",
}
_SYSLOG: Final = {name: 7 - i for i, name in enumerate(SEVERITIES.values())}
_FACILITY_DAEMON: Final = 3 << 3

MARKED: Final = "is_throttled"  # of a record: the first of several that will not be written
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", MARKED}
_ESCAPES: Final = {c: f"\\x{c:02x}" for c in (*range(32), 127, *range(128, 160), 0x2028, 0x2029)}


def severity_of(level: int) -> str:
    """The public name of a level; one in between counts as the next lower."""
    name = SEVERITIES.get(level)
    return name if name is not None else SEVERITIES[max((known for known in SEVERITIES if known <= level), default=10)]


def printable(text: str) -> str:
    """`text` with every control character escaped."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
    elif isinstance(value, (list, tuple, set, frozenset)):
        text = ",".join([_text(one) for one in value])
    else:
        text = str(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def plain(value: object) -> str:
    """A value of a field on one line: bytes as the text they are, several values with commas between."""
    return printable(_text(value))


def _quoted(value: object) -> str:
    text = _text(value)
    if not text or " " in text or '"' in text:
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return printable(text)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return what was given as `extra`, in that order."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def shown_fields(fields: dict[str, object]) -> str:
    """Write each field behind a blank."""
    return "".join([f" {name}={_quoted(value)}" for name, value in fields.items()])


class PublicEvent:
    """A record in public words."""

    __slots__ = ("fields", "id", "shown", "text")

    def __init__(self, record: logging.LogRecord, process: str) -> None:
        self.id = ""
        self.text = printable(record.getMessage())
        self.fields = fields_of(record)
        self.shown: frozenset[str] = frozenset()
        event = record.msg
        if not isinstance(event, LogEvent):
            return
        self.id = event.id
        if event.shape and event.shown <= self.fields.keys() | {"process"}:
            values = {name: plain(value) for name, value in self.fields.items()}
            self.text = event.render({"process": process, **values})
            self.shown = event.shown


def _trace(record: logging.LogRecord) -> list[str]:
    if not record.exc_info:
        return []
    lines = [printable(line) for line in logging.Formatter().formatException(record.exc_info).splitlines()]
    if len(lines) <= MAX_TRACE_LINES:
        return lines
    half = MAX_TRACE_LINES // 2
    return [*lines[:half], f"({len(lines) - 2 * half} lines left out)", *lines[-half:]]


class Clockface:
    """Text of a time, made anew once a second."""

    def __init__(self, *, utc: bool) -> None:
        self._utc = utc
        self._second = -1
        self.text = ""
        self.zone = ""
        self.day = 0  # yyyymmdd

    def at(self, seconds: float) -> int:
        """Set `text`, `zone` and `day` for that time of `time.time`; the microseconds beyond the second."""
        whole = int(seconds)
        if whole != self._second:
            clock = time.gmtime(whole) if self._utc else time.localtime(whole)
            self.text = time.strftime("%Y-%m-%d %H:%M:%S", clock)
            offset = "+0000" if self._utc else time.strftime("%z", clock)
            self.zone = "Z" if self._utc else f"{offset[:3]}:{offset[3:5]}"
            self.day = clock.tm_year * 10_000 + clock.tm_mon * 100 + clock.tm_mday
            self._second = whole
        return int((seconds - whole) * 1_000_000)


class Formatter(Protocol):
    """Makes lines without the line end; a line may go on in further ones that begin with blanks."""

    clock: Clockface

    def body(self, record: logging.LogRecord) -> str: ...

    def line(self, created: float, level: int, body: str, *, is_throttled: bool = False) -> str: ...

    def brief(self, body: str) -> str:
        """Return what a body says, for a line about that line."""
        ...


class TextFormatter:
    """The public form."""

    def __init__(self, process: str, *, utc: bool = False) -> None:
        self.clock = Clockface(utc=utc)
        self._process = process
        self._tail = shown_fields({"process": process})

    def body(self, record: logging.LogRecord) -> str:
        event = PublicEvent(record, self._process)
        text = f"{event.id}: {event.text}" if event.id else event.text
        if event.fields:
            fields = event.fields
            text += shown_fields({n: v for n, v in fields.items() if n not in event.shown} if event.shown else fields)
        if len(text) + len(self._tail) > MAX_LINE:
            text = text[: MAX_LINE - len(self._tail) - 3] + "..."
        text += self._tail
        for line in _trace(record):
            text += "\n    " + line
        return text

    def line(self, created: float, level: int, body: str, *, is_throttled: bool = False) -> str:
        microseconds = self.clock.at(created)
        mark = THROTTLED if is_throttled else ""
        return f"[{self.clock.text}.{microseconds:06d}] [{severity_of(level)}] {mark}{body}"

    def brief(self, body: str) -> str:
        return body.partition("\n")[0].removesuffix(self._tail)


class SyslogFormatter(TextFormatter):
    """For the local syslog socket: priority, tag and process id; the time is the receiver's.

    Source: RFC 3164, 4.1.1 and 4.1.3. Facility daemon. Guess: no time in the header, as in the text.
    """

    def __init__(self, process: str, *, utc: bool = False, tag: str = TAG) -> None:
        super().__init__(process, utc=utc)
        self._tag = f"{tag}[{os.getpid()}]: "

    def line(self, created: float, level: int, body: str, *, is_throttled: bool = False) -> str:
        mark = THROTTLED if is_throttled else ""
        return f"<{_FACILITY_DAEMON | _SYSLOG[severity_of(level)]}>{self._tag}{mark}{body}"


class JournalFormatter(TextFormatter):
    """The form for the journal of systemd: the priority before each line; the time is the journal's.

    Source: sd-daemon(3).
    """

    def line(self, created: float, level: int, body: str, *, is_throttled: bool = False) -> str:
        priority = f"<{_SYSLOG[severity_of(level)]}>"
        mark = THROTTLED if is_throttled else ""
        return (priority + mark + body).replace("\n", "\n" + priority)


class JsonFormatter:
    """One object per line: time, severity, id, process, text, fields; `throttled` and `trace` where they apply."""

    def __init__(self, process: str, *, utc: bool = False) -> None:
        self.clock = Clockface(utc=utc)
        self._process = process

    def body(self, record: logging.LogRecord) -> str:
        event = PublicEvent(record, self._process)
        members: dict[str, object] = {
            "id": event.id or None,
            "process": self._process,
            "text": event.text[:MAX_VALUE],
            "fields": {name: _json_value(value) for name, value in event.fields.items()},
        }
        trace = _trace(record)
        if trace:
            members["trace"] = trace
        text = json.dumps(members, ensure_ascii=False)[1:-1]
        if len(text) > MAX_LINE and not trace:
            members["fields"] = {"left_out": ",".join(event.fields)[:MAX_VALUE]}
            text = json.dumps(members, ensure_ascii=False)[1:-1]
        return text

    def line(self, created: float, level: int, body: str, *, is_throttled: bool = False) -> str:
        microseconds = self.clock.at(created)
        at = f"{self.clock.text.replace(' ', 'T')}.{microseconds:06d}{self.clock.zone}"
        mark = '"throttled": true, ' if is_throttled else ""
        return f'{{"time": "{at}", "severity": "{severity_of(level)}", {mark}{body}}}'

    def brief(self, body: str) -> str:
        return str(json.loads("{" + body + "}")["text"])


def _json_value(value: object) -> object:
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json_value(one) for one in value]
    return plain(value)
