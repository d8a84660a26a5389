"""What the tests of the bus share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dro.clock import s
from dro.loop import Loop

Until = Callable[[Callable[[], bool]], None]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def files_by_name() -> set[tuple[str, str]]:
    """Descriptors that are open, and what they are; for one that ends with others that end meanwhile."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="dro-t-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def until(loop: Loop) -> Until:
    """Turn the loop until something holds, ten seconds at most."""

    def turn(holds: Callable[[], bool]) -> None:
        deadline = loop.now_ns() + s(10)
        while not holds():
            assert loop.now_ns() < deadline, "did not happen in time"
            loop.run_once(s(0.05))

    return turn
