"""What a log line costs the process that writes it, in CPU time: `python -m tests.bench.log`."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.log.handler import Settings
from dro.log.limits import LimitedLogger

LINES: Final = 20_000


def cpu_us(log: logging.Logger, *, level: int = logging.INFO, same: bool = False) -> float:
    """CPU time of one call, in microseconds."""
    before = time.process_time_ns()
    for i in range(LINES):
        log.log(level, "proxy source created", extra={"topic": b"x.%d" % (0 if same else i), "otid": "00ff" * 16})
    return (time.process_time_ns() - before) / LINES / 1000


def main() -> None:
    unread, full_pipe = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "log")
        cases = {
            "console, /dev/null": Settings(console_fd=os.open("/dev/null", os.O_WRONLY)),
            "console, a pipe that nobody reads": Settings(console_fd=full_pipe),
            "file": Settings("file", path),
            "file that rolls by size and day": Settings("file", path, frequency="daily", size_bytes=1_000_000),
            "file of JSON": Settings("file", path, json=True),
        }
        for name, settings in cases.items():
            sys.stdout.write(f"{name}: {cpu_us(logs.set_up('E1', settings)):.1f} us\n")
        log = logs.set_up("E1", Settings("file", path))
        sys.stdout.write(f"a repeated line, counted: {cpu_us(log, same=True):.1f} us\n")
        sys.stdout.write(f"a line below the level: {cpu_us(log, level=logging.DEBUG):.2f} us\n")
        limited = LimitedLogger(log)
        before = time.process_time_ns()
        for _ in range(LINES):
            limited.event(LogEvent.SOURCE_HOPS, {"topic": "t"})
        sys.stdout.write(f"a limited line, counted: {(time.process_time_ns() - before) / LINES / 1000:.2f} us\n")
        logs.finish()
    os.close(unread)


if __name__ == "__main__":
    main()
