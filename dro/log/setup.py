"""The log of a process: its destination, and the path of a line from the call to it.

`set_up` at the start of the daemon, `rename` in every process after its fork, `apply` when the settings change, `tick`
each second, `finish` at the end. A line that a console, a syslog daemon or a full disk does not accept is dropped and
counted; the process does not wait. The number of lost lines is logged when there is room again.

The handler is in `dro.log.handler`, how a line looks in `lines`, the events in `events`, the file and its
rolling in `file`, the other destinations in `sinks`, repeats and limits in `limits`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dro.errors import ResourceError
from dro.log.file import LogFile, Rolls
from dro.log.handler import FILE, LogHandler, Settings
from dro.log.limits import forget_limited, report_limited
from dro.log.lines import MAX_LINE, fields_of, printable, shown_fields
from dro.log.to_monitor import EventSender

HELD_MAX: Final = 10_000  # lines before the destination is known


class ToolFormatter(logging.Formatter):
    """For the standard error of a tool: its name, the severity, the text, and the fields."""

    def __init__(self, prog: str) -> None:
        super().__init__()
        self._prog = prog

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self._prog}: {record.levelname}: {printable(record.getMessage())}{shown_fields(fields_of(record))}"
        return text[:MAX_LINE]


class _Holding(logging.Handler):
    """Keeps the first lines of a process until it knows where they go."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < HELD_MAX:
            self.records.append(record)


_rolls: Rolls | None = None
_daemon_pid = 0


def _handler() -> LogHandler | None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogHandler):
            return handler
    return None


def _sender() -> EventSender | None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, EventSender):
            return handler
    return None


def send_events(paths: Sequence[Path]) -> None:
    """Send the events of this process, and of those that it forks, also to the sockets at `paths`; to no others."""
    root, old, handler = logging.getLogger(), _sender(), _handler()
    if old is not None:
        root.removeHandler(old)
        old.close()
    if paths:
        root.addHandler(EventSender(paths, handler.process if handler is not None else "tnwgd"))


def hold(level: int = logging.INFO) -> logging.Logger:
    """Keep all lines until `set_up` says where they go."""
    _replace(_Holding(), level)
    return logging.getLogger("dro")


def set_up(process: str, settings: Settings | None = None, *, greets: bool = False) -> logging.Logger:
    """Send the log of this process, the daemon, and of those that it forks, where `settings` say.

    `greets`: begin a console log with its first line. Raises: ResourceError when the destination cannot be had, and
    everything is as before.
    """
    global _rolls, _daemon_pid
    _rolls = _rolls or Rolls()
    _daemon_pid = os.getpid()
    handler = LogHandler(process, settings or Settings(), _rolls, _daemon_pid)
    handler.begin()
    if greets:
        handler.greet()
    _replace(handler, handler.settings.level)
    return logging.getLogger("dro")


def _replace(made: logging.Handler, level: int) -> None:
    """Make `made` the only way of the log; it gets what was held."""
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        if isinstance(old, LogHandler):
            old.close()
        elif isinstance(old, _Holding):
            for record in old.records:
                made.handle(record)
    root.addHandler(made)
    root.setLevel(level)
    logging.raiseExceptions = False


def settings() -> Settings:
    """Return the settings that hold; of a process without a log of ours, the defaults."""
    handler = _handler()
    return handler.settings if handler is not None else Settings()


def check_settings(wanted: Settings) -> None:
    """Check that `apply` could take these. A log file that is not there is made for that. Raises: ResourceError."""
    if wanted.kind == FILE:
        LogFile(wanted.file).close()


def apply(wanted: Settings) -> None:
    """Change to these settings, all or nothing; also in a worker. Raises: ResourceError."""
    old = _handler()
    if old is None or wanted == old.settings:
        return
    assert _rolls is not None
    made = LogHandler(old.process, wanted, _rolls, _daemon_pid)
    is_another = replace(wanted, level=0, utc=False, json=False) != replace(
        old.settings, level=0, utc=False, json=False
    )
    if is_another and os.getpid() == _daemon_pid:
        made.begin()
    old.tick(at_once=True)
    root = logging.getLogger()
    root.addHandler(made)
    root.removeHandler(old)
    root.setLevel(wanted.level)
    old.close()


def _in_child() -> None:
    """Start anew after any fork: what was not written yet is the parent's, and we need a file position of our own."""
    forget_limited()
    handler = _handler()
    if handler is not None:
        handler.after_fork()
    if (sender := _sender()) is not None:
        sender.after_fork()


os.register_at_fork(after_in_child=_in_child)


def rename(process: str) -> logging.Logger:
    """Use the same log in the name of the new process, after a fork of which the log was told."""
    handler = _handler()
    if handler is not None:
        handler.rename(process)
    if (sender := _sender()) is not None:
        sender.process = process
    return logging.getLogger("dro")


def give_to(uid: int, gid: int) -> None:
    """Make that user the owner of a log file, before its rights are all that the daemon has. Raises: ResourceError."""
    handler = _handler()
    if handler is not None:
        try:
            handler.give_to(uid, gid)
        except OSError as e:
            raise ResourceError(f"log file {handler.settings.file} cannot be given to user {uid}: {e.strerror}") from e


def tick() -> None:
    """Write what is due without a line that asks for it; called each second."""
    report_limited()
    handler = _handler()
    if handler is not None:
        handler.tick()
    if (sender := _sender()) is not None:
        sender.tick()


def finish() -> None:
    """Write at the end of a process what was counted and what waits, as far as that goes at once."""
    report_limited(at_once=True)
    handler = _handler()
    if handler is not None:
        handler.tick(at_once=True)
        logging.getLogger().removeHandler(handler)
        handler.close()
    if (sender := _sender()) is not None:
        sender.tick(at_once=True)
    send_events([])
