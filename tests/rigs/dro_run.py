"""Starts `tests.rigs.dro_process`, watches what its workers tell, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.dro_process import events
from tests.rigs.loaded import Loaded

ROOT = Path(__file__).parents[2]


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class FakeDro:
    """One run; `wait_for` polls what the workers have told."""

    def __init__(
        self, *names: str, without: tuple[str, ...] = (), directory: Path | None = None, ping_ms: int = 1000
    ) -> None:
        """`without`: base directories that shall be missing. `directory`: that of another run, which removes it."""
        self.directory = directory or Path(tempfile.mkdtemp(prefix="dro-t-"))  # short: sockets live in it
        for base in {"run", "shm"}.difference(without):
            (self.directory / base).mkdir(exist_ok=directory is not None)
        self.names = names
        self.log_path = self.directory / ("log" if directory is None else "log.again")
        with self.log_path.open("wb") as log:
            self.process: subprocess.Popen[bytes] = Loaded(
                [sys.executable, "-m", "tests.rigs.dro_process", str(self.directory), str(ping_ms), *names],
                cwd=ROOT,
                stderr=log,
                stdout=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait_until(self, holds: Callable[[], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"did not happen in time\n{self.log}\n{events(self.directory)}"
            time.sleep(0.005)  # between two looks; the condition decides

    def told(self, what: str, **details: object) -> list[dict[str, Any]]:
        wanted = {"what": what, **details}.items()
        return [event for event in events(self.directory) if wanted <= event.items()]

    def wait_for(self, what: str, count: int = 1, **details: object) -> list[dict[str, Any]]:
        self.wait_until(lambda: len(self.told(what, **details)) >= count)
        return self.told(what, **details)

    def pid_of(self, worker: str) -> int:
        return int(self.wait_for("start", worker=worker)[-1]["pid"])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_exit(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)

    def leftovers(self) -> list[str]:
        return [str(p) for base in ("run", "shm") for p in (self.directory / base).rglob("*")]

    def pids(self) -> set[int]:
        return {int(event["pid"]) for event in self.told("start")}

    def close(self) -> None:
        """Nothing survives the test, whatever it did."""
        self.process.kill()
        self.process.wait()
        for pid in self.pids():
            if is_running(pid) and os.getpgid(pid) == self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory)


@pytest.fixture
def start() -> Iterator[Callable[..., FakeDro]]:
    """Starts DROs of fake workers and ends them with the test."""
    running: list[FakeDro] = []

    def make(*names: str, without: tuple[str, ...] = (), ping_ms: int = 1000) -> FakeDro:
        running.append(FakeDro(*names, without=without, ping_ms=ping_ms))
        return running[-1]

    yield make
    for dro in running:
        dro.close()
