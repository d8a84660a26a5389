"""Log lines of every process, and a logger that strangers cannot flood.

A line is `time severity process: text key=value ...`, written with one system call, so lines of several processes
never tear. Control characters are escaped: what came from the network cannot forge a line.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_S

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ESCAPES: Final = {c: f"\\x{c:02x}" for c in (*range(32), 127, *range(128, 160), 0x2028, 0x2029)}
MAX_LINE: Final = 16_384


def printable(text: str) -> str:
    """`text` with every control character escaped."""
    return text.translate(_ESCAPES)


def _value(value: object) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    text = printable(text)
    return f'"{text}"' if not text or " " in text else text


def _fields(record: logging.LogRecord) -> str:
    """The `extra` fields in the order given, each behind a blank."""
    return "".join(f" {k}={_value(v)}" for k, v in vars(record).items() if k not in _STANDARD)


class ToolFormatter(logging.Formatter):
    """For the standard error of a tool: its name, the severity, the text, and the fields."""

    def __init__(self, prog: str) -> None:
        super().__init__()
        self._prog = prog

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._prog}: {record.levelname}: {printable(record.getMessage())}{_fields(record)}"[:MAX_LINE]


class LineFormatter(logging.Formatter):
    """Time in milliseconds, severity, process, text, and the `extra` fields in the order given."""

    def __init__(self, process: str, *, utc: bool = False) -> None:
        super().__init__()
        self._process = printable(process)
        self._utc = utc

    def renamed(self, process: str) -> LineFormatter:
        return LineFormatter(process, utc=self._utc)

    def format(self, record: logging.LogRecord) -> str:
        clock = time.gmtime(record.created) if self._utc else time.localtime(record.created)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", clock)
        zone = "Z" if self._utc else time.strftime("%z", clock)
        line = (
            f"{at}.{int(record.msecs):03d}{zone} {record.levelname} {self._process}: {printable(record.getMessage())}"
        )
        text = (line + _fields(record))[:MAX_LINE]
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "".join("\n    " + printable(part) for part in trace.splitlines())
        return text


class DescriptorHandler(logging.Handler):
    """Writes each record to a file descriptor with one `write`; a reader that is gone is no reason to stop."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
        except (ValueError, TypeError):
            self.handleError(record)
            return
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return


def set_up(process: str, *, level: int = logging.INFO, fd: int = 2, utc: bool = False) -> logging.Logger:
    """Send the log of this process to the descriptor `fd`."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = DescriptorHandler(fd)
    handler.setFormatter(LineFormatter(process, utc=utc))
    root.addHandler(handler)
    root.setLevel(level)
    logging.raiseExceptions = False
    return logging.getLogger("dro")


def rename(process: str) -> logging.Logger:
    """After a fork: the same log, in the name of the new process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LineFormatter):
            handler.setFormatter(handler.formatter.renamed(process))
    return logging.getLogger("dro")


@dataclass(slots=True)
class _Window:
    began_ns: int
    written: int = 0
    suppressed: int = 0


class LimitedLogger:
    """At most `burst` lines per key and `interval_ns`; the next line that passes tells how many did not.

    For faults that a stranger can cause. Keys are bounded: the one unused for longest is forgotten first.
    """

    def __init__(
        self,
        log: logging.Logger,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        burst: int = 5,
        interval_ns: int = 10 * NS_PER_S,
        max_keys: int = 1024,
    ) -> None:
        self._log = log
        self._now_ns = now_ns
        self._burst = burst
        self._interval_ns = interval_ns
        self._max_keys = max_keys
        self._windows: OrderedDict[object, _Window] = OrderedDict()

    def limited(
        self, key: object, text: str, *, level: int = logging.WARNING, extra: Mapping[str, object] | None = None
    ) -> bool:
        """Write `text` unless `key` has had its share; True when it was written."""
        now = self._now_ns()
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= self._max_keys:
                self._windows.popitem(last=False)
            window = self._windows[key] = _Window(now)
        else:
            self._windows.move_to_end(key)
        fields = dict(extra or {})
        if now - window.began_ns >= self._interval_ns:
            if window.suppressed:
                fields["suppressed"] = window.suppressed
            window.began_ns, window.written, window.suppressed = now, 0, 0
        if window.written >= self._burst:
            window.suppressed += 1
            return False
        window.written += 1
        self._log.log(level, text, extra=fields)
        return True
