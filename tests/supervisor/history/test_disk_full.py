"""A disk that is full costs samples alone: it is said, and goes on when there is room."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.rigs.circumstances import mounted
from tests.rigs.histories import TS_MS, Receiver, journalled, rows_of
from tests.rigs.loaded import Loaded
from tests.rigs.site import Site

pytestmark = pytest.mark.netns  # mounts


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leave no room where a directory is."""
    path = folder / "filler"
    with path.open("wb") as filler, contextlib.suppress(OSError):
        for page in range(1 << 20):
            os.posix_fallocate(filler.fileno(), page << 12, 1 << 12)
    yield
    path.unlink()


def test_a_receiver_refuses_what_finds_no_room_and_takes_it_later(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, mounted("size=16m", str(tmp_path)))
    try:
        disk = Path(f"/proc/{receiver.process.pid}/root{tmp_path}")
        assert receiver.send(10)
        with filled(disk):
            # its journal may have room to the end of a page
            assert not all(receiver.send(50) for _ in range(1000))
            assert receiver.refusal.startswith("503 ")
            assert f"cannot write the history at {tmp_path}" in receiver.refusal
            assert "No space left on device" in receiver.refusal
            assert "make room there" in receiver.refusal
            first = len(receiver.acknowledged)
            assert not receiver.send_again(first, 50), "it is as full as before"
            assert receiver.acknowledged == set(range(first))
        assert receiver.send_again(first, 50)
        receiver.wait_until_rolled(disk)
        found = [(round(row["ts"].timestamp() * 1000) - TS_MS, row["connects"])
                 for row in rows_of(disk, "portal", ["ts", "connects"])]  # fmt: skip
        assert sorted(found) == [(nth, nth) for nth in range(first + 50)]
    finally:
        receiver.close()


def test_a_dro_whose_history_finds_no_room_works_on(tmp_path: Path) -> None:
    site = Site(tmp_path, 2)
    (tmp_path / "history").mkdir()
    site.POPEN = partial(Loaded, preexec_fn=mounted("size=16m", str(tmp_path / "history")))  # type: ignore[misc]
    site.arguments = ("--history", str(tmp_path / "history"), "--history-interval", "0.2")
    try:
        site.start()
        disk = Path(f"/proc/{site.pid}/root{tmp_path}/history")

        def times() -> set[int]:
            return {row["ts"] for row in journalled(disk, "portal")}

        site.wait(lambda: len(times()) > 2, "samples")
        before = site.workers()
        with filled(disk):
            site.wait(lambda: "history is not written" in site.log, "it is said")
            known = times()
        assert "No space left on device" in site.log
        assert "make room there" in site.log
        site.wait(lambda: "history is written again" in site.log, "it is said")
        site.wait(lambda: len(times() - known) > 2, "samples")
        assert known <= times(), "what there was is there"
        assert site.log.count("history is not written") == 1
        assert site.workers() == before
        assert site.stop() == 0
    finally:
        site.close()
