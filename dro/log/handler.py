"""What happens to a record between the call and the destination of the log: text, repeats, loss.

Used by `dro.log.setup`, which decides which handler a process has.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from dro.log.events import LogEvent
from dro.log.file import LogFile, Rolls
from dro.log.file_thread import FileThread
from dro.log.limits import LineVerdict, Repeats, last_field
from dro.log.lines import (
    MARKED,
    TAG,
    Formatter,
    JournalFormatter,
    JsonFormatter,
    SyslogFormatter,
    TextFormatter,
    printable,
    severity_of,
)
from dro.log.sinks import SYSLOG_PATH, Console, Syslog, is_journal

CONSOLE: Final = "console"
FILE: Final = "file"
SYSLOG: Final = "syslog"
PREAMBLE: Final = "Daemon log entity unspecified. Defaulting to console \n"
"""First line of a console log, without time. Source: monitoring reference, line format."""
_ERROR_FD: Final = 2
LOST_TOLD_S: Final = 1.0  # between two attempts to tell of lost lines, where there is now room and now none
COMPLAINTS_MAX: Final = 64  # different ones in the life of a process
COMPLAINT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the log goes and what it looks like: element `<log>` and the options of the command line."""

    kind: str = CONSOLE
    file: str = ""  # absolute path; of kind file
    frequency: str = "disable"  # of rolling: disable, daily, hourly or test
    size_bytes: int = 0  # that a file is rolled at; 0: never
    level: int = logging.INFO
    utc: bool = False
    json: bool = False
    console_fd: int = 1
    syslog_path: str = SYSLOG_PATH
    syslog_tag: str = TAG


class _Destination(Protocol):
    """Takes lines; False or an OSError says that it did not take this one, and why."""

    def put(self, line: str, day: int) -> bool: ...

    def after_fork(self) -> None: ...

    def flush(self) -> object: ...

    def take_lost(self) -> tuple[int, str]:
        """Lines that were taken and lost later, and why."""
        ...

    def close(self) -> None: ...


class _ToFile:
    def __init__(self, file: LogFile, daemon_pid: int) -> None:
        self.file = file
        self._daemon_pid = daemon_pid
        self._thread: FileThread | None = None

    def put(self, line: str, day: int) -> bool:
        data = (line + "\n").encode("utf-8", "backslashreplace")
        if self._thread is None and os.getpid() != self._daemon_pid:
            with contextlib.suppress(RuntimeError):  # no more threads: the line is written all the same
                self._thread = FileThread(self.file)
        if self._thread is not None:
            return self._thread.write(data, day)
        self.file.write(data, day)
        return True

    def after_fork(self) -> None:
        self._thread = None
        self.file.after_fork()

    def take_lost(self) -> tuple[int, str]:
        return self._thread.take_lost() if self._thread is not None else (0, "")

    def flush(self) -> None:
        """Nothing waits that could go at once."""

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
        else:
            self.file.close()


_complained: Final[dict[str, float]] = {}


def _complain(what: str) -> None:
    """Say on standard error what cannot be said in the log; the same thing once in a while, and without waiting."""
    now = time.monotonic()
    if now < _complained.get(what, 0.0) or len(_complained) > COMPLAINTS_MAX:
        return
    _complained[what] = now + COMPLAINT_S
    console = Console(_ERROR_FD)
    with contextlib.suppress(OSError):
        console.put(f"tnwgd[{os.getpid()}]: {printable(what)}")
    console.close(wait_s=0)


counted: Counter[str] = Counter()
"""Lines that this process has logged, by severity."""


class LogHandler(logging.Handler):
    """Takes the records of a process to one destination."""

    def __init__(self, process: str, settings: Settings, rolls: Rolls, daemon_pid: int) -> None:
        """Raises: ResourceError when the destination cannot be had."""
        super().__init__()
        self.settings = settings
        self._rolls = rolls
        self._daemon_pid = daemon_pid
        self.process = process
        self._repeats = Repeats()
        self._lost = 0
        self._lost_why = ""
        self._lost_told = 0.0
        self._troubles: list[str] = []
        self.destination: _Destination = self._make_destination()
        self._lines = self._make_formatter()

    def _make_destination(self) -> _Destination:
        wanted = self.settings
        if wanted.kind == FILE:
            return _ToFile(
                LogFile(
                    wanted.file,
                    size_bytes=wanted.size_bytes,
                    frequency=wanted.frequency,
                    rolls=self._rolls,
                    pid=self._daemon_pid,
                    complain=self._on_trouble,
                ),
                self._daemon_pid,
            )
        return Syslog(_complain, path=wanted.syslog_path) if wanted.kind == SYSLOG else Console(wanted.console_fd)

    def _make_formatter(self) -> Formatter:
        wanted = self.settings
        if wanted.json and wanted.kind != SYSLOG:
            return JsonFormatter(self.process, utc=wanted.utc)
        if wanted.kind == CONSOLE and is_journal(wanted.console_fd):
            return JournalFormatter(self.process, utc=wanted.utc)
        if wanted.kind == SYSLOG:
            return SyslogFormatter(self.process, utc=wanted.utc, tag=wanted.syslog_tag)
        return TextFormatter(self.process, utc=wanted.utc)

    def after_fork(self) -> None:
        """Be the log of a new process, which has lost or counted nothing yet."""
        self._repeats = Repeats()
        self._lost = 0
        counted.clear()
        self._troubles.clear()
        self.destination.after_fork()
        self._lines = self._make_formatter()

    def rename(self, process: str) -> None:
        """Speak in the name of that process."""
        self.process = process
        self._lines = self._make_formatter()

    def begin(self) -> None:
        """Let the periods of rolling begin now; called by the daemon."""
        if isinstance(self.destination, _ToFile):
            self._lines.clock.at(time.time())
            self.destination.file.begin(self._lines.clock.day)

    def give_to(self, uid: int, gid: int) -> None:
        """Make that user the owner of a log file. Raises: OSError."""
        if isinstance(self.destination, _ToFile):
            self.destination.file.give_to(uid, gid)

    def greet(self) -> None:
        """Begin a console log with its first line."""
        if isinstance(self.destination, Console) and not self.settings.json:
            with contextlib.suppress(OSError):  # the first line has the same trouble, and tells it
                self.destination.write(PREAMBLE.encode())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            body = self._lines.body(record)
        except (ValueError, TypeError, KeyError):  # arguments that do not fit the text: a bug, told as such
            body = self._lines.body(_record(LogEvent.LOG_LINE_BROKEN, {"text": repr(record.msg)}))
        verdict = self._repeats.on_line(record.levelno, body, time.monotonic_ns())
        if verdict == LineVerdict.COUNT:
            return
        is_marked = verdict == LineVerdict.MARK or getattr(record, MARKED, False)
        self._put(record.created, record.levelno, body, is_throttled=is_marked)

    def tick(self, *, at_once: bool = False) -> None:
        """Write what waits and what is due: counts of repeats, of lines that were lost."""
        self.acquire()
        try:
            for report in self._repeats.take_reports(time.monotonic_ns(), at_once=at_once):
                extra = last_field(report.last_ago_ns) | {"line": self._lines.brief(report.body)}
                body = self._lines.body(_record(LogEvent.LINES_REPEATED, extra, report.level, report.repeated))
                self._put(time.time(), report.level, body)
            while self._troubles:
                body = self._lines.body(_record(LogEvent.LOG_TROUBLE, {"reason": self._troubles.pop(0)}))
                self._put(time.time(), logging.WARNING, body)
            with contextlib.suppress(OSError):  # what waits goes on waiting
                self.destination.flush()
            lost, why = self.destination.take_lost()
            if lost:
                self._lost, self._lost_why = self._lost + lost, why
            if self._lost:
                self._tell_lost(time.time())
        finally:
            self.release()

    def close(self) -> None:
        self.destination.close()
        super().close()

    def _put(self, created: float, level: int, body: str, *, is_throttled: bool = False) -> None:
        if self._lost and time.monotonic() - self._lost_told >= LOST_TOLD_S:
            self._tell_lost(created)
        counted[severity_of(level)] += 1
        line = self._lines.line(created, level, body, is_throttled=is_throttled)
        if not self._write(line):
            self._lost += 1

    def _on_trouble(self, what: str) -> None:
        """Say it on standard error now, and in the log at the next `tick`."""
        _complain(what)
        self._troubles.append(what)

    def _write(self, line: str) -> bool:
        why = "it takes nothing"
        try:
            if self.destination.put(line, self._lines.clock.day):
                return True
        except OSError as e:
            why = e.strerror or str(e)
        if not self._lost:
            where = self.settings.file or self.settings.kind
            _complain(f"log {where}: {why}; lines are lost and counted until it works again")
        self._lost_why = why
        return False

    def _tell_lost(self, created: float) -> None:
        """Say how many lines were lost, unless that one would be lost too."""
        extra = {"lines": self._lost, "reason": self._lost_why}
        body = self._lines.body(_record(LogEvent.LOG_LINES_LOST, extra))
        self._lost_told = time.monotonic()
        if self._write(self._lines.line(created, logging.WARNING, body)):
            self._lost = 0


def _record(
    event: LogEvent, extra: dict[str, object], level: int | None = None, args: tuple[object, ...] = ()
) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": event, "args": args, "levelno": level or event.level, **extra})
