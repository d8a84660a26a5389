"""Processes that share one log file, for tests of the file: forked from one daemon, as workers are.

Run as a program: `python -m tests.rigs.log_writers DIRECTORY WRITERS LINES SIZE [KILLS]`. Each writer logs LINES lines
`w=<writer> n=<number>`, numbered from 0, to DIRECTORY/log, which rolls at SIZE bytes. With KILLS, that many writers are
killed while they write, each replaced by a new one with the next number. At the end it prints, as JSON, how many lines
each writer had come back from when it ended. A writer waits for each of its lines, however long the machine takes.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Final

from dro.log import file_thread
from dro.log import setup as logs
from dro.log.handler import Settings

MAX_WRITERS: Final = 512
FILLER: Final = "x" * 150  # makes a line of some 260 bytes


class Writers:
    """The daemon of the writers."""

    def __init__(self, directory: Path, lines: int, size: int) -> None:
        self._lines = lines
        self._written = memoryview(mmap.mmap(-1, 8 * MAX_WRITERS)).cast("Q")
        self._started = 0
        self.pids: dict[int, int] = {}
        self.log = logs.set_up("daemon", Settings("file", str(directory / "log"), size_bytes=size))

    def start(self) -> None:
        writer, self._started = self._started, self._started + 1
        pid = os.fork()
        if pid:
            self.pids[pid] = writer
            return
        status = 1
        try:
            self._write(writer, logs.rename(f"W{writer}"))
            status = 0
        finally:
            os._exit(status)

    def _write(self, writer: int, log: logging.Logger) -> None:
        fill = random.Random(writer)
        for number in range(self._lines):
            log.info("line", extra={"w": writer, "n": number, "x": FILLER[: fill.randrange(120, 150)]})
            self._written[writer] = number + 1
        logs.finish()

    def kill_one(self, chance: random.Random) -> None:
        """Kill a writer that has begun, at any point of its work."""
        pid, writer = chance.choice(list(self.pids.items()))
        while not self._written[writer]:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self.pids[pid]

    def join(self) -> dict[int, int]:
        for pid in self.pids:
            _, status = os.waitpid(pid, 0)
            assert status == 0, status
        return {writer: self._written[writer] for writer in range(self._started)}


def main(directory: Path, writers: int, lines: int, size: int, kills: int) -> None:
    file_thread.PATIENCE_S = 60.0  # type: ignore[misc]  # a loaded machine is no disk that hangs
    crew = Writers(directory, lines, size)
    for _ in range(writers):
        crew.start()
    chance = random.Random(size)
    for _ in range(kills):
        crew.kill_one(chance)
        crew.start()
    written = crew.join()
    crew.log.info("end")
    logs.finish()
    json.dump(written, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(text) for text in [*sys.argv[2:], "0"][:4]))
