"""Sends each log event of a process to the monitor and the history of its DRO: one JSON datagram over a UNIX socket.

A process never waits for either: what does not go at once (nobody there, or stopped or busy) is dropped
and counted. Records of libraries are not sent, so that trouble with an event makes no further one.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dro.log.events import LogEvent
from dro.log.limits import LineVerdict, Repeats, last_field
from dro.log.lines import PublicEvent, plain, severity_of

EVENTS_SOCKET: Final = "events"
"""Name of the monitor's socket in the run directory."""
HISTORY_SOCKET: Final = "history-events"
MAX_DATAGRAM: Final = 4096  # bytes
MAX_TEXT: Final = 1000  # characters
MAX_FIELD: Final = 200
_SHORT: Final = 400  # characters of what is kept of too long an event: in UTF-8, with escapes, that always fits
_ROOM: Final = len('{"time_s": 12345678901.123456, ') - 1
_OURS: Final = "dro"  # the logger of messages that are no event: the last words of a process

dropped: Final[Counter[str]] = Counter()
"""Events that this process could not send, by name of the error."""


class EventSender(logging.Handler):
    """Takes the records of a process to the sockets at `paths`, whether somebody has bound them or not."""

    def __init__(self, paths: Iterable[Path], process: str) -> None:
        super().__init__()
        self.process = process
        self._paths = [str(path) for path in paths]
        self._socket: socket.socket | None = None
        self._repeats = Repeats()

    def after_fork(self) -> None:
        """Use a socket of its own, as what waits in one counts against all who share it."""
        self._repeats = Repeats()
        dropped.clear()
        self._close()

    def emit(self, record: logging.LogRecord) -> None:
        if not isinstance(record.msg, LogEvent) and record.name != _OURS:
            return
        try:
            body = _body(record, self.process)
        except (ValueError, TypeError, KeyError):  # arguments that do not fit the text; the log tells
            dropped["EINVAL"] += 1
            return
        if self._repeats.on_line(record.levelno, body, time.monotonic_ns()) != LineVerdict.COUNT:
            self._send(record.created, body)

    def tick(self, *, at_once: bool = False) -> None:
        """Tell how often the same was said again."""
        self.acquire()
        try:
            for report in self._repeats.take_reports(time.monotonic_ns(), at_once=at_once):
                extra = last_field(report.last_ago_ns) | {"line": json.loads(report.body)["text"]}
                made = {"msg": LogEvent.LINES_REPEATED, "args": report.repeated, "levelno": report.level, **extra}
                self._send(time.time(), _body(logging.makeLogRecord(made), self.process))
        finally:
            self.release()

    def close(self) -> None:
        self._close()
        super().close()

    def _send(self, created: float, body: str) -> None:
        data = f'{{"time_s": {created:.6f}, {body[1:]}'.encode("utf-8", "replace")
        for path in self._paths:
            try:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.sendto(data, socket.MSG_DONTWAIT, path)
            except OSError as e:
                dropped[errno.errorcode.get(e.errno or 0, "EIO")] += 1

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _body(record: logging.LogRecord, process: str) -> str:
    """Write all but the time, as JSON; at most what a datagram has room for."""
    event = PublicEvent(record, process)
    fields = {name: plain(value)[:MAX_FIELD] for name, value in event.fields.items()}
    if record.exc_info and record.exc_info[1] is not None:
        fields.setdefault("error", plain(repr(record.exc_info[1]))[:MAX_FIELD])
    members: dict[str, object] = {
        "level": severity_of(record.levelno),
        "event": event.id,
        "name": record.msg.name if isinstance(record.msg, LogEvent) else "",
        "worker": process[:MAX_FIELD],
        "text": event.text[:MAX_TEXT],
        "fields": fields,
    }
    body = json.dumps(members, ensure_ascii=False)
    if len(body.encode("utf-8", "replace")) + _ROOM > MAX_DATAGRAM:
        members |= {"text": event.text[:_SHORT], "fields": {"left_out": ",".join(fields)[:MAX_FIELD]}}
        body = json.dumps(members, ensure_ascii=False)
    return body
