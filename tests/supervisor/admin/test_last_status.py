"""The file that says what counter pages belong to: replaced as a whole, for its owner, and never trusted blindly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dro.loop import Loop
from supervisor.admin.last_status import FILE_NAME, LastStatus, read_last_status, write_last_status
from supervisor.admin.status import DroStatus
from supervisor.commands.last_status import LOOK_NS, LastStatusFile
from tests.builders.top_samples import STATUS, WORKERS
from tests.fakes.clock import SteppedClock


def test_what_is_written_is_read_and_nobody_else_may(tmp_path: Path) -> None:
    last = LastStatus(12.5, STATUS)
    write_last_status(tmp_path, LastStatus(1.0, replace(STATUS, name="EARLIER")))
    write_last_status(tmp_path, last)
    assert read_last_status(tmp_path) == last
    assert os.listdir(tmp_path) == [FILE_NAME]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"time_s": 1}', b"\xff", b"[" * 100_000])
def test_a_file_that_is_not_understood_is_none(text: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(text)
    assert read_last_status(tmp_path) is None


def test_there_may_be_no_file(tmp_path: Path) -> None:
    assert read_last_status(tmp_path) is None


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / f"{FILE_NAME}.new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        write_last_status(tmp_path, LastStatus(1.0, STATUS))
    assert (tmp_path / "elsewhere").read_text() == "mine"


class Keeper:
    """A loop on a stepped clock, and what the parent would say."""

    def __init__(self, folder: Path) -> None:
        self.status = STATUS
        self.folder = folder
        self._clock = SteppedClock()
        self._loop = Loop(self._clock)
        self.keeper = LastStatusFile(self._loop, lambda: folder, lambda: self.status)

    def turn(self) -> LastStatus | None:
        """What is in the file after one more interval."""
        self._clock.time_ns += LOOK_NS
        self._loop.run_once(0)
        return read_last_status(self.folder)

    def close(self) -> None:
        self._loop.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with contextlib.closing(Keeper(tmp_path)) as made:
        yield made


def with_worker(**changes: object) -> DroStatus:
    return replace(STATUS, workers=(*WORKERS[:2], replace(WORKERS[2], **changes)))  # type: ignore[arg-type]  # any of them


def test_the_file_follows_changes_and_not_the_time(keeper: Keeper) -> None:
    first = keeper.turn()
    assert first is not None
    assert first.status == STATUS
    keeper.status = replace(with_worker(uptime_s=77.0), uptime_s=78.0)
    assert keeper.turn() == first
    keeper.status = with_worker(state="starting", uptime_s=0.5)
    second = keeper.turn()
    assert second is not None
    assert second.status == keeper.status


def test_what_could_not_be_written_is_written_later(keeper: Keeper) -> None:
    unfinished = keeper.folder / f"{FILE_NAME}.new"
    unfinished.mkdir()
    assert keeper.turn() is None
    unfinished.rmdir()
    assert keeper.turn() is not None
